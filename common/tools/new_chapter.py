#!/usr/bin/env python3
"""new_chapter.py my01 fwd02: a chapter of the reader's own, with the idea of fwd02, for the reader to write its kernel.

chapters/my01_from_fwd02/kernel.cu is fwd02's with empty kernels: idea, constants, launch and registration stay, so
that it compiles, runs and fails its check. Lines `// exercise` in fwd02's say what is emptied. Git ignores
chapters/my*. A request that cannot be met gets one sentence on stderr and exit status 2, and nothing is written.
"""

import re
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

from common.tools.find_chapter import CHAPTERS, find_chapter, is_own, known_chapters

BEGIN, END = "// exercise", "// end of exercise"  # lines of a kernel.cu
WIDTH = 100  # of a line, as in .clang-format
SHORT = 30  # letters of a sentence that needs the next one to say something

OUTPUTS = {"cop": "y, a copy of x", "fwd": "y, mean and rstd of every row", "bwd": "dx, dweight and dbias"}


class RequestError(Exception):
    """What the reader asked for cannot be done; the message is a sentence."""


# --- What the reader is told in place of the code ---


def plain(markdown):
    """Markdown as a comment of C++ can have it."""
    for pattern, by in ((r"\[([^\]]*)\]\([^)]*\)", r"\1"), (r"\*\*(.*?)\*\*", r"\1"), (r"\\hat\{?(\w)\}?", r"\1hat"),
                        (r"\\cdot\b", "·"), (r"\\mu\b", "mean"), (r"\\([a-z]+)", r"\1"), (r"\$", "")):
        markdown = re.sub(pattern, by, markdown)
    return " ".join(markdown.split())


def first_sentence(text):
    sentences = re.split(r"(?<=[.?!])\s+(?=[A-Z`\d])", text)
    said = sentences.pop(0)
    while sentences and len(said) < SHORT:
        said += " " + sentences.pop(0)
    return said


def remarks(notes):
    """{1: "Four warps a block, each with a row of its own."}: what the numbered remarks of a lesson begin with."""
    found = re.finditer(r"\*\*\[(\d+)\]\*\*(.*?)(?=\n\s*\n|\n#|\n?[-\s]*\*\*\[\d+\]\*\*|\Z)", notes, re.DOTALL)
    return {int(remark[1]): first_sentence(plain(remark[2])) for remark in found}


def remark_numbers(code):
    comments = "\n".join(re.findall(r"//.*", code))
    return sorted({int(number) for number in re.findall(r"(?<!\w)\[(\d+)\]", comments)})


def comment(text, indent="", hanging=""):
    unbroken = re.sub(r"`[^`]*`", lambda command: command[0].replace(" ", "\0"), text)
    lines = textwrap.fill(unbroken, WIDTH, initial_indent=f"{indent}// ", subsequent_indent=f"{indent}// {hanging}",
                          break_long_words=False, break_on_hyphens=False)
    return lines.replace("\0", " ")


class Origin(NamedTuple):
    """The chapter that a new one is made from."""

    id: str
    directory: str  # "fwd02_warp_per_row"
    kernel: str  # the text of its kernel.cu
    notes: str  # and of its notes.md

    @property
    def lesson(self):
        return f"chapters/{self.directory}/notes.md"


def instead_of(code, indent, origin):
    """The comment that stands in place of an exercise: a kernel's body, or device code that only the kernels use."""
    steps = remarks(origin.notes)
    numbers = [number for number in remark_numbers(code) if number in steps]
    asked = "Write this kernel." if indent else f"{origin.id} has device code of its own here."
    if numbers or indent:
        asked += f" {origin.lesson} says{':' if numbers else ' how.'}"
    lines = [comment(asked, indent)]
    return lines + [comment(f"[{number}] {steps[number]}", indent, "    ") for number in numbers]


# --- The chapter ---


def emptied(kernel, origin):
    """The lines of a kernel.cu with comments in place of its exercises.

    An exercise begins below a line `// exercise`. One in a function ends with it, others at `// end of exercise`.
    """
    lines, made, at = kernel.splitlines(), [], 0
    while at < len(lines):
        line, indent = lines[at], lines[at].partition(BEGIN)[0]
        at += 1
        if line != indent + BEGIN:
            made.append(line)
            continue
        end = "}" if indent else END
        if end not in lines[at:]:
            raise RequestError(f"chapters/{origin.directory}/kernel.cu has a '{BEGIN}' without its '{end}'")
        begin, at = at, lines.index(end, at)
        made += instead_of("\n".join(lines[begin:at]), indent, origin)
        at += end == END
    return made


def renamed(line, chapter, identifier):
    """The namespace and the registration with the new id."""
    line = re.sub(rf'(\bnamespace |^ *\.id = "){chapter}\b', rf"\g<1>{identifier}", line)
    line = re.sub(rf"\b{chapter}::", f"{identifier}::", line)
    return re.sub(r'(^ *\.(?:source|parent) = ")[^"]*"', rf'\g<1>{chapter}"', line)


def task(origin, identifier):
    """What the reader is asked for, under the idea."""
    return (f"The kernels below are empty, for you to write. The outputs are {OUTPUTS[origin.id[:3]]}. What `a` holds "
            f"is explained in common/kernel/contract.h, and [n] is remark n of {origin.lesson}. <<<...>>>, extern "
            "__shared__ and inline PTX work, too. "
            f"`make run CH={identifier}` checks what you wrote; chapters/{origin.directory}/kernel.cu is a solution.")


def new_kernel(origin, identifier):
    """The text of the new kernel.cu."""
    heading = re.match(rf"// {origin.id}\b(.*)\n((?://.*\n)*)", origin.kernel)
    if not heading or BEGIN not in origin.kernel:
        raise RequestError(f"chapters/{origin.directory}/kernel.cu has no top comment, or no line '{BEGIN}'")
    top = f"// {identifier}{heading[1]}\n{heading[2]}//\n{comment(task(origin, identifier))}\n"
    rest = emptied(origin.kernel[heading.end():], origin)
    return top + "".join(renamed(line, origin.id, identifier) + "\n" for line in rest)


def make_chapter(asked, origin, chapters=CHAPTERS):
    """Writes the new chapter. Returns its directory and its origin's id. Raises RequestError and LookupError."""
    known = known_chapters(chapters)
    name = Path(asked).name
    if not asked:
        raise RequestError("CH is missing: make new CH=my01 FROM=fwd02")
    if name in known.values() or (name in known and not is_own(name)):
        raise RequestError(f"CH={asked} is already a chapter; your own id must be my and two digits: CH=my01")
    if not re.fullmatch(r"my\d\d", asked):
        raise RequestError(f"CH={asked} is not an id for a chapter of your own; use my and two digits, such as CH=my01")
    for directory in sorted(chapters.glob(f"{asked}*")):
        raise RequestError(f"chapters/{directory.name} already exists: delete it, or choose another id than {asked}")
    if not origin:
        raise RequestError(f"FROM, the chapter whose idea you want to try, is missing: make new CH={asked} FROM=fwd02")
    if is_own(Path(origin).name):
        raise RequestError(f"FROM={origin} is a chapter of your own: name one of the repository's, FROM=fwd02")
    found = find_chapter(origin, {each: name for each, name in known.items() if not is_own(each)}, "FROM")
    source = chapters / known[found]
    notes = source / "notes.md"
    kernel = new_kernel(Origin(found, source.name, (source / "kernel.cu").read_text(encoding="utf-8"),
                               notes.read_text(encoding="utf-8") if notes.exists() else ""), asked)
    directory = chapters / f"{asked}_from_{found}"
    directory.mkdir()
    (directory / "kernel.cu").write_text(kernel, encoding="utf-8")
    return directory, found


def main(asked="", origin=""):
    try:
        directory, found = make_chapter(asked.strip(), origin.strip())
    except (RequestError, LookupError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"1. Open chapters/{directory.name}/kernel.cu, and write what its comments ask for.")
    print(f"2. make run CH={asked} builds and checks it. It fails until you have written the kernel.")
    print(f"3. Once it passes, compare its time with make run CH={found}. The kernel of {found} is one solution.")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
