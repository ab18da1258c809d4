"""The first error of a compiler's output in one sentence: `python3 -m common.tools.compile_errors LOG` prints it, and
then the output without the build's progress."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UNKNOWN = "{0} is not known here: a slip, or an intrinsic that the machine does not have"
LESSONS = (  # what g++ says of a construct, and what that means for a kernel
    (r"‘(\w+)’ was not declared", UNKNOWN),
    (r"there are no arguments to ‘(\w+)’ that depend on a template parameter", UNKNOWN),
    (r"conflicting specifiers in declaration of ‘(\w+)’",
     "{0} is `extern __shared__`, which a chapter spells `T* {0} = dynamic_shared<T>();`"),
    (r"fatal error: ([\w/.]+): No such file", "the header {0} is not here"),
    (r"no matching function for call to ‘([\w:]+)", "no {0} takes these arguments"),
)


def in_a_sentence(errors):
    """'other.cu:7: __foo is not known here: …', from what g++ wrote."""
    first = re.search(r"^(.*?):(\d+):\d+: (?:fatal )?error: (.*)$", errors, re.MULTILINE)
    if undefined := re.search(r"^(?:.*ld: )?(.*?)\.\w+:(\d+): undefined reference to `(.*)'$", errors, re.MULTILINE):
        file, line, name = undefined.groups()  # of the rewritten file, whose lines are those of the .cu file
        return f"{Path(file).name}.cu:{line}: {name} is declared, but not here: define it, or do without"
    if not first:
        return "g++ cannot compile it"
    whole = first[0]
    for pattern, sentence in LESSONS:
        if match := re.search(pattern, whole):
            return f"{first[1]}:{first[2]}: {sentence.format(*match.groups())}"
    return f"{first[1]}:{first[2]}: {first[3]}"


def main(log):
    text = Path(log).read_text(encoding="utf-8", errors="replace").replace(f"{ROOT}/", "")
    print(in_a_sentence(text), *(line for line in text.splitlines() if not re.match(r"\[\d+/\d+\]", line)),
          sep="\n", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1])
