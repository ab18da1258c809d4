#!/usr/bin/env python3
"""Makes the book: a static site in build/book, from the chapters, the notebooks and what the SIMT machine sees.

    make book                       all of it; what has not changed is not made again
    make book ARGS=--quick          the notebooks without their outputs, if these are not there yet

Open build/book/index.html. Every warning of Sphinx is an error: a link or a word of the glossary that is not there, a
remark without its other half, a picture without words. They are told with file and line, and the exit status is 1.
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from common.book import chart, traces
from common.book.seen import COUNTS, DATA, EXECUTED, TRACES, counts_of, has_trace, the_map
from common.tools import run_notebooks

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

BOOK = ROOT / "build/book"
WATCHING = ROOT / "build/cpu-watch"
KERNELS = ("chapters/*/kernel.cu", "common/library/kernels/*", "common/kernel/*", "common/simt/*", "common/cuda/*",
           "common/harness/*", "common/program/*", "reference_cpu/*", "CMakeLists.txt")
WATCH = ("common/watch/*.cpp", "common/watch/*.h", "common/watch/*.py")
FIGURES = ("notebooks/lab/*", "notebooks/data/*", "common/bench/*.py", "common/results/*.py")
RUN_KERNELS = ("1_derivation", "4_numerics", "6_simt_machine")  # the others draw what was measured

PICTURE = re.compile(r"^!\[", re.MULTILINE)


def say(text):
    print(f"book: {text}", flush=True)


def content(*patterns, also=""):
    """A hash of what the files have that match the patterns, in the repository."""
    seen = hashlib.sha256(also.encode())
    for path in sorted({path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file()}):
        seen.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return seen.hexdigest()


class Made:
    """Notes from what each part was made, in build/book-data/made; a part of the same is not made again."""

    def __init__(self):
        self.directory = DATA / "made"
        self.directory.mkdir(parents=True, exist_ok=True)

    def is_from(self, part, key):
        note = self.directory / part
        return note.exists() and note.read_text() == key

    def note(self, part, key):
        (self.directory / part).write_text(key)


# --- What the machine sees ---


def has_gcc():
    """Only GCC puts calls into a kernel that tell of its accesses."""
    try:
        said = subprocess.run([*os.environ.get("CXX", "c++").split(), "--version"], capture_output=True, text=True,
                              check=False)
    except OSError:
        return False
    return said.returncode == 0 and "clang" not in said.stdout


def see(made):
    """Counts and traces of all chapters, from a build of its own."""
    key = content(*KERNELS, *WATCH, "common/book/traces.py")
    if made.is_from("seen", key) and COUNTS.exists():
        return
    if not has_gcc():
        say("no GCC here, so no counts and no traces: CXX names one")
        return
    say("builds the chapters so that the machine can watch them (two minutes, the first time)")
    subprocess.run(["bash", "common/setup/build.sh", "cpu-watch", "all"], cwd=ROOT, check=True)
    say("counts what each line asks of memory")
    new = COUNTS.with_suffix(".new")
    new.unlink(missing_ok=True)
    subprocess.run([sys.executable, "-m", "common.watch.count", str(WATCHING / "bin/chapters"), "--json", str(new)],
                   cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    new.replace(COUNTS)
    say("traces one block of each chapter")
    TRACES.mkdir(parents=True, exist_ok=True)
    traces.write(WATCHING / "bin", TRACES)
    made.note("seen", key)


# --- The notebooks ---


def execute(made, quick):
    """Executes the notebooks whose content, or what they draw and run, has changed. Returns whether all went well."""
    well = True
    for notebook in sorted(ROOT.glob("notebooks/*.ipynb")):
        watched = (*FIGURES, *(KERNELS + WATCH if notebook.stem in RUN_KERNELS else ()))
        key = content(notebook.relative_to(ROOT).as_posix(), *watched, also=os.environ.get("LNC_DATA", ""))
        there = (EXECUTED / notebook.name).exists()
        if there and made.is_from(notebook.name, key):
            continue
        if quick:
            say(f"{notebook.name}: {'as it was executed before' if there else 'without its outputs'} (--quick)")
            continue
        say(f"executes {notebook.name}")
        if run_notebooks.execute([notebook], EXECUTED):
            well = False
        else:
            made.note(notebook.name, key)
    return well


# --- The pages ---


def missing():
    """What the book lacks, a line for each kind."""
    chapters = the_map().chapters.values()

    def without(name):
        return [chapter.id for chapter in chapters if not (ROOT / chapter.directory / name).exists()]

    def has_picture(chapter):
        lesson = ROOT / chapter.directory / "notes.md"
        return not lesson.exists() or PICTURE.search(lesson.read_text(encoding="utf-8"))

    lacking = {f"{name}, so no such page": without(name) for name in ("notes.md", "questions.md", "lab.md")}
    lacking["picture in the lesson"] = [one.id for one in chapters if not has_picture(one)]
    lacking["trace, so nothing moves"] = [one.id for one in chapters if not has_trace(one.id)]
    lacking["counts in the margin"] = [one.id for one in chapters if not counts_of(one.id)]
    lacking["outputs"] = [path.name for path in sorted(ROOT.glob("notebooks/*.ipynb"))
                          if not (EXECUTED / path.name).exists()]
    return [f"without {what}: {', '.join(names)}" for what, names in lacking.items() if names]


def write_pages():
    """Calls Sphinx. Returns its exit status."""
    say("writes the pages")
    options = ["--fail-on-warning", "--keep-going", "--quiet", "-j", "auto", "-b", "html"]
    return subprocess.run([sys.executable, "-m", "sphinx", *options, "-c", str(HERE), "-d", str(DATA / "doctrees"),
                           str(ROOT), str(BOOK)], cwd=ROOT, check=False).returncode


def size_of(directory):
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="execute no notebook")
    options = parser.parse_args(argv)
    start = time.monotonic()
    made = Made()
    (DATA / "static").mkdir(parents=True, exist_ok=True)
    try:
        see(made)
    except subprocess.CalledProcessError as error:
        print(f"book: {' '.join(map(str, error.cmd[:4]))} … ended with status {error.returncode}", file=sys.stderr)
        return 1
    chart.write(ROOT, DATA / "static")
    well = execute(made, options.quick)
    for line in missing():
        say(line)
    status = write_pages()
    if status or not well:
        say("not made whole: what is wrong stands above, with file and line")
        return 1
    say(f"build/book/index.html, {size_of(BOOK) / 1e6:.0f} MB, in {time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
