#!/usr/bin/env python3
"""budget.py BUILD: names the chapters that take longer to build, or to test, than their share of `make test`.

A newcomer waits for all chapters together; with a budget for each, ten more chapters cannot make the wait too long
unnoticed. The times are those of the last build and of the last tests, on all cores at once; nothing fails here, since
another machine is slower.
"""

import re
import sys
from pathlib import Path

BUILD_SECONDS = 25  # of a kernel.cu, two compilers side by side
TEST_SECONDS = 10  # of its quick tests


def build_seconds(ninja_log):
    """{"fwd01": seconds} of each kernel of a .ninja_log: start, end in ms, a time, the file. The last line counts."""
    seconds = {}
    for line in ninja_log.splitlines()[1:]:
        start, end, _, path, *_ = line.split("\t")
        if chapter := re.match(r"CMakeFiles/([a-z]+\d+)_kernel\.dir/", path):
            seconds[chapter[1]] = (int(end) - int(start)) / 1000
    return seconds


def test_seconds(ctest_output):
    """{"fwd01": seconds} of the quick tests in what ctest prints."""
    line = re.compile(r"Test +#\d+: ([a-z]+\d+) \.+ *\S+ +([\d.]+) sec")
    return {match[1]: float(match[2]) for match in line.finditer(ctest_output)}


def over(seconds, budget, what):
    """A sentence for each chapter over its budget."""
    return [f"budget: {chapter} takes {taken:.0f} s to {what}, but its share is {budget} s"
            for chapter, taken in sorted(seconds.items()) if taken > budget]


def text_of(path):
    return path.read_text(encoding="utf-8") if path.exists() else ""


def main(build):
    sentences = over(build_seconds(text_of(Path(build, ".ninja_log"))), BUILD_SECONDS, "build")
    sentences += over(test_seconds(text_of(Path(build, "tests.log"))), TEST_SECONDS, "test")
    print(*sentences, sep="\n", end="\n" if sentences else "")


if __name__ == "__main__":
    main(sys.argv[1])
