#!/usr/bin/env python3
"""new_chapter.py my01 fwd02: a chapter of the reader's own, with the idea of fwd02, for the reader to write its kernel.

chapters/my01_from_fwd02/kernel.cu is fwd02's with empty kernels: idea, constants, launch and registration stay, so
that it compiles, runs and fails its check. Device functions that only the kernels use go with their bodies. Git ignores
chapters/my*. A request that cannot be met gets one sentence on stderr and exit status 2, and nothing is written.
"""

import re
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

from find_chapter import CHAPTERS, ROOT, find_chapter, is_own, known_chapters

KERNEL_HEADERS = ROOT / "common/kernel"
WIDTH = 100  # of a line, as in .clang-format
SHORT = 30  # letters of a sentence that needs the next one to say something

# What a chapter of each kind of launchers must write.
OUTPUTS = {"ForwardLaunchers": "y, mean and rstd of every row", "BackwardLaunchers": "dx, dweight and dbias"}


class RequestError(Exception):
    """What the reader asked for cannot be done; the message is a sentence."""


# --- A little C++: no parser, but it sees where comments, strings and brackets begin and end ---

HIDDEN = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|(?<!\w)'(?:\\.|[^'\\\n])*'""", re.DOTALL)


def code_of(text):
    """The text with blanks for its comments and strings: each letter of code stays at its place."""
    return HIDDEN.sub(lambda hidden: re.sub(r"[^\n]", " ", hidden[0]), text)


def end_of_bracket(code, start):
    """Where the bracket has closed that opens at `start`."""
    depth = 0
    for at in range(start, len(code)):
        depth += (code[at] in "({[") - (code[at] in ")}]")
        if depth == 0:
            return at + 1
    raise RequestError("a bracket in this kernel.cu never closes: does it compile?")


def end_of_line(text, code, end):
    """The same end, behind a comment that follows on the line and on indented lines of its own."""
    while True:
        line_end = text.find("\n", end)
        line_end = len(text) if line_end < 0 else line_end
        if code[end:line_end].strip():
            return end
        end = line_end
        if not re.match(r"\n[ \t]+//", text[end:]):
            return end
        end += 1


def declarations(text):
    """The declarations of a namespace's text, one after the other, each with the comment above it."""
    code = code_of(text)
    start = at = 0
    while at < len(code):
        if code[at] == "#" and not code[start:at].strip():  # a line of the preprocessor
            ends = end_of_line(text, code, code.find("\n", at))
        elif code[at] == ";":
            ends = end_of_line(text, code, at + 1)
        elif code[at] in "({[":
            closed = end_of_bracket(code, at)
            if code[at] != "{" or re.match(r"\s*[;,({]", code[closed:]):
                at = closed
                continue
            ends = end_of_line(text, code, closed)
        else:
            at += 1
            continue
        yield text[start:ends]
        start = at = ends
    yield text[start:]


def body_of(declaration):
    """(begin, end) of what stands between the braces of a function; None where it has none."""
    code = code_of(declaration).rstrip()
    at = 0
    while at < len(code):
        if code[at] in "({[":
            closed = end_of_bracket(code, at)
            if code[at] == "{" and closed == len(code):
                return at + 1, closed - 1
            at = closed
        else:
            at += 1
    return None


def name_of(declaration):
    """What a struct or a function is called; None where that cannot be seen, as of an operator."""
    code = re.sub(r"\btemplate\s*<[^<>]*>|\b(?:alignas|decltype)\s*\([^()]*\)", "", code_of(declaration))
    match = re.search(r"\b(?:struct|class)\s+(\w+)\s*[:{]", code) or re.search(r"(\w+)\s*\(", code)
    return match[1] if match and "operator" not in words_of(declaration) else None


def words_of(text):
    return set(re.findall(r"\w+", code_of(text)))


def is_kernel(declaration):
    return "__global__" in words_of(declaration) and body_of(declaration) is not None


def is_device_code(declaration):
    return "__device__" in words_of(declaration)


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


def included(text, headers=KERNEL_HEADERS):
    """The kernel headers that a text includes, itself and through one another, by path."""
    found, left = [], [text]
    while left:
        names = re.findall(r'^#include "common/kernel/(\w+\.h)"', left.pop(), re.MULTILINE)
        new = [headers / name for name in names if headers / name not in found]
        found += new
        left += [path.read_text(encoding="utf-8") for path in new]
    return sorted(set(found))


def primitives(kernel):
    """{"warp_sum": "reduce.h", …}: the device functions and the types in the headers that a kernel includes."""
    found = {}
    for header in included(kernel):
        code = code_of(header.read_text(encoding="utf-8"))
        functions = re.findall(r"^(?:\w+ )*__device__\b[^;{}()]*?\b(\w+)\(", code, re.MULTILINE)
        types = re.findall(r"^(?:struct|class)\s+(?:alignas\([^()]*\)\s*)?(\w+)\s*[:{]", code, re.MULTILINE)
        if header.name not in ("contract.h", "description.h"):  # the top comment names the first
            found |= dict.fromkeys(functions + types, header.name)
    return found


def used_primitives(code, known):
    """'warp_sum (reduce.h); from_float, to_float (types.h)'"""
    headers = {}
    for name in sorted(words_of(code) & known.keys()):
        headers.setdefault(known[name], []).append(name)
    return "; ".join(f"{', '.join(names)} ({header})" for header, names in sorted(headers.items()))


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


def instead_of(code, helpers, origin):
    """The comment that stands in an emptied kernel. `helpers`: the chapter's own device code that goes with it."""
    all_code = "\n".join([code, *helpers.values()])
    steps = remarks(origin.notes)
    numbers = [number for number in remark_numbers(all_code) if number in steps]
    lines = [comment(f"Write this kernel. {origin.lesson} says{':' if numbers else ' how.'}", "  ")]
    lines += [comment(f"[{number}] {steps[number]}", "  ", "    ") for number in numbers]
    if helpers:
        lines.append(comment(f"{origin.id} has device code of its own for it: {', '.join(helpers)}.", "  "))
    if used := used_primitives(all_code, primitives(origin.kernel)):
        lines.append(comment(f"Of common/kernel it uses {used}.", "  "))
    return "\n".join(lines)


# --- The chapter ---


def without_unused(parts):
    """(the declarations that stay, {name: device code that only emptied kernels use})."""
    kept = {at for at, part in enumerate(parts) if is_kernel(part) or not is_device_code(part) or not name_of(part)}

    def seen(at):  # of a kernel that will be empty, its signature
        body = body_of(parts[at]) if is_kernel(parts[at]) else None
        return words_of(parts[at][: body[0]] if body else parts[at])

    while True:
        words = set().union(*(seen(at) for at in kept))
        needed = {at for at, part in enumerate(parts) if at not in kept and name_of(part) in words}
        if not needed:
            break
        kept |= needed
    gone = {name_of(part): part for at, part in enumerate(parts) if at not in kept}
    return [part for at, part in enumerate(parts) if at in kept], gone


def reached(code, functions):
    """Those of {name: code} that some code uses, itself or through another of them."""
    found, left = {}, [code]
    while left:
        words = words_of(left.pop())
        new = {name: text for name, text in functions.items() if name in words and name not in found}
        found |= new
        left += new.values()
    return {name: text for name, text in functions.items() if name in found}


def emptied(text, origin):
    """A namespace's text with empty kernels."""
    parts, gone = without_unused(list(declarations(text)))
    made = []
    for part in parts:
        if is_kernel(part):
            begin, end = body_of(part)
            helpers = reached(part[begin:end], gone)
            gone = {name: code for name, code in gone.items() if name not in helpers}  # told once
            part = f"{part[:begin]}\n{instead_of(part[begin:end], helpers, origin)}\n{part[end:]}"
        made.append(part)
    return "".join(made)


def renamed(kernel, chapter, identifier):
    """The namespace and the registration with the new id."""
    code = code_of(kernel)
    for match in reversed(list(re.finditer(rf"\b{chapter}\b", code))):
        kernel = kernel[: match.start()] + identifier + kernel[match.end() :]
    kernel = re.sub(rf"(// (?:end of )?namespace ){chapter}\b", rf"\g<1>{identifier}", kernel)
    kernel = re.sub(rf'(\.id = "){chapter}"', rf'\g<1>{identifier}"', kernel)
    return re.sub(r'(\.(?:source|parent) = ")[^"]*"', rf'\g<1>{chapter}"', kernel)


def task(origin, identifier):
    """What the reader is asked for, under the idea."""
    several = len(re.findall(r"\b__global__\b", code_of(origin.kernel))) > 1
    outputs = next((words for launchers, words in OUTPUTS.items() if launchers in origin.kernel), "")
    solution = f"chapters/{origin.directory}/kernel.cu"
    sentences = [f"The kernel{'s are' if several else ' is'} yours to write.",
                 outputs and f"{'They write' if several else 'It writes'} {outputs}.",
                 f"What `a` holds is explained in common/kernel/contract.h, and [n] is remark n of {origin.lesson}.",
                 f"`make run CH={identifier}` checks what you wrote; {solution} is a solution."]
    return " ".join(filter(None, sentences))


def new_kernel(origin, identifier):
    """The text of the new kernel.cu."""
    kernel, code = origin.kernel, code_of(origin.kernel)
    opening = re.search(rf"\bnamespace\s+{origin.id}\s*\{{", code)
    heading = re.match(rf"// {origin.id}\b(.*)\n((?://.*\n)*)", kernel)
    if not opening or not heading:
        raise RequestError(f"chapters/{origin.directory}/kernel.cu has no top comment, or no namespace {origin.id}")
    begin, end = opening.end(), end_of_bracket(code, opening.end() - 1) - 1
    top = f"// {identifier}{heading[1]}\n{heading[2]}//\n{comment(task(origin, identifier))}\n"
    rest = kernel[heading.end() : begin] + emptied(kernel[begin:end], origin) + kernel[end:]
    return top + renamed(rest, origin.id, identifier)


def make_chapter(asked, origin, chapters=CHAPTERS):
    """Writes the new chapter. Returns its directory and its origin's id. Raises RequestError and LookupError."""
    known = known_chapters(chapters)
    name = Path(asked).name
    if not asked:
        raise RequestError("CH is missing: make new CH=my01 FROM=fwd02")
    if name in known.values() or (name in known and not is_own(name)):
        raise RequestError(f"CH={asked} is a chapter already; one of your own is called my and two digits: CH=my01")
    if not re.fullmatch(r"my\d\d", asked):
        raise RequestError(f"CH={asked} is no name for a chapter of your own: take my and two digits, CH=my01")
    for directory in sorted(chapters.glob(f"{asked}*")):
        raise RequestError(f"chapters/{directory.name} is there already: delete it, or choose another id than {asked}")
    if not origin:
        raise RequestError(f"FROM is missing, the chapter whose idea you want to try: make new CH={asked} FROM=fwd02")
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
    print(f"2. make run CH={asked} builds and checks it. As it is, it fails.")
    print(f"3. When it passes, compare: make run CH={found}. A solution is {found}'s kernel.")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
