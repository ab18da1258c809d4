#!/usr/bin/env python3
"""CUDA as C++ for the SIMT machine: what g++ cannot read becomes what it can, on the same lines.

    python3 -m common.tools.rewrite_cuda kernel.cu kernel.cpp     for a chapter of the reader's own

Rewritten are launches, `kernel<<<…>>>(…)`; `extern __shared__ T name[]`; `__shared__ alignas(n)`; `static __shared__`;
`__noinline__`; the `extern "C"` of a kernel; and inline PTX (inline_ptx.py). What the machine does not have is refused
in a sentence that names the line.
"""

import re
import sys
from pathlib import Path
from typing import NamedTuple

from common.tools import inline_ptx
from common.tools.cpp_text import blanked, closing, line_of
from common.tools.inline_ptx import RequestError

REFUSED = (  # what no header of the machine has: a pattern, what it is, what to use
    (r"#\s*include\s*<mma\.h>|\bwmma::", "tensor-core fragments (wmma)", "plain multiply-adds in float"),
    (r"\btexture\s*<|\btex[123]D\w*\s*[<(]|\bcudaTextureObject_t\b", "textures", "a pointer, and __ldg"),
    (r"\bsurf[123]D\w*\s*[<(]|\bcudaSurfaceObject_t\b", "surfaces", "a pointer"),
    (r"\bcudaLaunchCooperativeKernel\b|\bgrid_group\b", "barrier of the whole grid", "two launches"),
    (r"\bcudaGraph\w+", "CUDA graphs", "the launches themselves"),
    (r"#\s*include\s*<(cublas|cudnn|cufft|curand|nccl|thrust|cutlass|cute)[\w/.]*>", "such library",
     "code of your own"),
)
ALIGN = r"(?:(?:__align__|alignas)\s*\([^)]*\)\s*)?"
EXTERN_SHARED = rf"\bextern\s+{ALIGN}__shared__\s+{ALIGN}([\w:\s<>]+?)\s*\b(\w+)\s*\[\s*\]\s*;"


class Launch(NamedTuple):
    start: int  # of the kernel's name
    configuration: tuple  # (start, end) between <<< and >>>
    name: str


# --- Rewriting ---


def refuse(path, source, code):
    """Raises RequestError for the first thing that the machine does not have."""
    found = [(match.start(), what, instead) for pattern, what, instead in REFUSED
             if (match := re.search(pattern, code))]
    if found:
        at, what, instead = min(found)
        raise RequestError(f"{path}:{line_of(source, at)}: the SIMT machine has no {what}; use {instead}")


def start_of_name(code, end):
    """Where the expression that ends at `end` begins: a kernel's name, with namespaces and template arguments."""
    at = end
    while at > 0 and code[at - 1].isspace():
        at -= 1
    if at and code[at - 1] == ">":
        depth = 0
        while at > 0:
            at -= 1
            depth += (code[at] == ">") - (code[at] == "<")
            if depth == 0:
                break
    while at > 0 and (code[at - 1].isalnum() or code[at - 1] in "_:"):
        at -= 1
    return at


def launches(path, source, code):
    """The launches of a source, in order."""
    found = []
    for match in re.finditer(r"<<<", code):
        depth, at = 0, match.end()
        while not (depth == 0 and code.startswith(">>>", at)):
            if at >= len(code):
                raise RequestError(f"{path}:{line_of(source, match.start())}: this <<< has no >>>")
            depth += (code[at] in "([{") - (code[at] in ")]}")
            at += 1
        start = start_of_name(code, match.start())
        name = source[start:match.start()].strip()
        if not name:
            raise RequestError(f"{path}:{line_of(source, match.start())}: there is no kernel name before this <<<")
        found.append(Launch(start, (match.end(), at), name))
    return found


def rewritten(path, source, launch_as="::simt::RewrittenLaunch"):
    """The source as C++ with the same lines; a launch calls an object of `launch_as`. Raises RequestError."""
    code = blanked(source)
    refuse(path, source, code)
    edits = inline_ptx.edits(path, source, code)  # (start, end, text)
    for launch in launches(path, source, code):
        first, last = launch.configuration
        call = f'[&](auto... simt_arguments) {{ {launch.name}(simt_arguments...); }}'
        name = " ".join(launch.name.split()).replace('"', "'")
        edits.append((launch.start, last + 3, f'{launch_as}("{name}", {call}, {source[first:last].strip()})'))
    for match in re.finditer(EXTERN_SHARED, code):
        edits.append((match.start(), match.end(), shared_array(path, source, code, match)))
    for match in re.finditer(r"(?<!extern )\b__shared__\s+(alignas\s*\([^)]*\))", code):  # g++ wants it in front
        edits.append((match.start(), match.end(), f"{match[1]} __shared__"))
    for match in re.finditer(r"\bstatic\s+(?=__shared__)", code):  # it is static here already
        edits.append((match.start(), match.end(), ""))
    for match in re.finditer(r"(?<!\()\b__noinline__\b", code):  # not a macro: g++'s own headers use the word
        edits.append((match.start(), match.end(), "__attribute__((noinline))"))
    edits += [(at, at, "++") for at in c_linkage(source, code)]
    for start, end, text in sorted(edits, reverse=True):
        line_ends = re.findall(r"\\?\n", source[start:end])  # in a macro each has a backslash
        source = source[:start] + text + "".join(line_ends[text.count("\n"):]) + source[end:]
    return source


def c_linkage(source, code):
    """Where the C of each `extern "C"` ends that has a kernel or a variable whose C++ name tells what it is."""
    for match in re.finditer(r'\bextern\s+"C"', source):
        if not code.startswith("extern", match.start()):  # in a comment
            continue
        begins = re.search(r"[;{]|$", code[match.end():])
        end = match.end() + begins.start()
        if begins[0] == "{":
            end = closing(source, end)
        if re.search(r"\b__(global|constant|shared)__\b", code[match.end():end]):
            yield match.end() - 1


def shared_array(path, source, code, match):
    """What stands in place of an `extern __shared__ T name[];`."""
    depth = code.count("{", 0, match.start()) - code.count("}", 0, match.start())
    of_type, name = match[1].strip(), match[2]
    if depth > 0:
        return f"{of_type}* const {name} = ::lnc::dynamic_shared<{of_type}>();"
    if source[source.rfind("\n", 0, match.start()) + 1:match.start()].strip():
        line = line_of(source, match.start())
        raise RequestError(f"{path}:{line}: outside a kernel, `extern __shared__` needs its own line")
    return f"#define {name} (::lnc::dynamic_shared<{of_type}>())"  # of the whole file: what each block has


def main(argv):
    path, to = map(Path, argv)
    try:
        text = rewritten(path, path.read_text(encoding="utf-8"))
    except RequestError as error:
        print(error, file=sys.stderr)
        return 2
    to.write_text(f'#include "common/simt/rewritten.h"\n#line 1 "{path.resolve()}"\n{text}', encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
