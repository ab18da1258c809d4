#!/usr/bin/env python3
"""Runs a .cu file from elsewhere, with its own main, on the SIMT machine: `make check FILE=other.cu`.

    python3 -m common.tools.check_file other.cu [ARGUMENT…]    the arguments go to its main

The file is compiled as it is but for three rewritings, which keep its lines: `kernel<<<…>>>(…)`, `extern __shared__
T name[]` and, in front of it, an include of common/simt/foreign.h. The address sanitizer watches every access to device
memory. Exit status: that of the program; 1 where the machine or the sanitizer found a fault; 2 where the file cannot be
run here, with one sentence that names the line.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/cpu-asan"
SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize=null,pointer-overflow,object-size",
             "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")

REFUSED = (  # what no header of the machine has: a pattern, what it is, what to use
    (r"#\s*include\s*<mma\.h>|\bwmma::", "tensor-core fragments (wmma)", "plain multiply-adds in float"),
    (r"\btexture\s*<|\btex[123]D\w*\s*[<(]|\bcudaTextureObject_t\b", "textures", "a pointer, and __ldg"),
    (r"\bsurf[123]D\w*\s*[<(]|\bcudaSurfaceObject_t\b", "surfaces", "a pointer"),
    (r"\basm\s*(volatile\s*)?\(", "inline PTX", "the intrinsic of the same name (common/simt/README.md lists them)"),
    (r"\bcudaLaunchCooperativeKernel\b|\bgrid_group\b", "a barrier of the whole grid", "two launches"),
    (r"\bcudaGraph\w+", "CUDA graphs", "the launches themselves"),
    (r"#\s*include\s*<(cublas|cudnn|cufft|curand|nccl|thrust|cutlass|cute)[\w/.]*>", "this library",
     "code of your own"),
)
ALIGN = r"(?:(?:__align__|alignas)\s*\([^)]*\)\s*)?"
EXTERN_SHARED = rf"\bextern\s+{ALIGN}__shared__\s+{ALIGN}([\w:\s<>]+?)\s*\b(\w+)\s*\[\s*\]\s*;"
COMMENTS_AND_TEXTS = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)


class RequestError(Exception):
    """The file cannot be run here; the message is a sentence."""


class Launch(NamedTuple):
    start: int  # of the kernel's name
    configuration: tuple  # (start, end) between <<< and >>>
    name: str


# --- Rewriting ---


def blanked(source):
    """The source with spaces for its comments and texts, so that what is found is code at the same offset."""
    return COMMENTS_AND_TEXTS.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), source)


def line_of(source, at):
    return source.count("\n", 0, at) + 1


def refuse(path, source, code):
    """Raises RequestError for the first thing that the machine does not have, or where there is no kernel."""
    found = [(match.start(), what, instead) for pattern, what, instead in REFUSED
             if (match := re.search(pattern, code))]
    if found:
        at, what, instead = min(found)
        raise RequestError(f"{path}:{line_of(source, at)}: the SIMT machine has no {what}; use {instead}")
    if not re.search(r"\b__global__\b", code):
        raise RequestError(f"{path} has no kernel: no function in it is __global__")
    if not re.search(r"\bmain\s*\(", code):
        raise RequestError(f"{path} has no main: a kernel alone becomes a chapter with `make new`")


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
            raise RequestError(f"{path}:{line_of(source, match.start())}: no kernel's name stands before this <<<")
        found.append(Launch(start, (match.end(), at), name))
    return found


def rewritten(path, source):
    """The source as C++ with the same lines. Raises RequestError."""
    code = blanked(source)
    refuse(path, source, code)
    edits = []  # (start, end, text)
    for launch in launches(path, source, code):
        first, last = launch.configuration
        call = f'[&](auto... simt_arguments) {{ {launch.name}(simt_arguments...); }}'
        name = " ".join(launch.name.split()).replace('"', "'")
        edits.append((launch.start, last + 3, f'::simt::ForeignLaunch("{name}", {call}, {source[first:last].strip()})'))
    for match in re.finditer(EXTERN_SHARED, code):
        depth = code.count("{", 0, match.start()) - code.count("}", 0, match.start())
        of_type, name = match[1].strip(), match[2]
        text = f"{of_type}* const {name} = ::lnc::dynamic_shared<{of_type}>();"
        if depth == 0:  # of the whole file: a name for what each block has
            if source[source.rfind("\n", 0, match.start()) + 1:match.start()].strip():
                line = line_of(source, match.start())
                raise RequestError(f"{path}:{line}: outside a kernel, `extern __shared__` needs its own line")
            text = f"#define {name} (::lnc::dynamic_shared<{of_type}>())"
        edits.append((match.start(), match.end(), text))
    for start, end, text in sorted(edits, reverse=True):
        lines = source.count("\n", start, end) - text.count("\n")
        source = source[:start] + text + "\n" * lines + source[end:]
    return f'#include "common/simt/foreign.h"\n#line 1 "{path}"\n{source}'


# --- Compiling and running ---


def cached(name):
    """A variable of the build's CMake cache."""
    match = re.search(rf"^{name}:\w+=(.*)$", (BUILD / "CMakeCache.txt").read_text("utf-8"), re.MULTILINE)
    return match[1] if match else ""


LESSONS = (  # what g++ says of a construct, and what that means for a kernel
    (r"‘(\w+)’ was not declared", "{0} is not known here: a slip, or an intrinsic that the machine does not have"),
    (r"fatal error: ([\w/.]+): No such file", "the header {0} is not here"),
    (r"no matching function for call to ‘([\w:]+)", "no {0} takes these arguments"),
)


def in_a_sentence(errors):
    """'other.cu:7: __foo is not known here: …', from what g++ wrote."""
    first = re.search(r"^(.*?):(\d+):\d+: (?:fatal )?error: (.*)$", errors, re.MULTILINE)
    if not first:
        return "g++ cannot compile it"
    whole = first[0]
    for pattern, sentence in LESSONS:
        if match := re.search(pattern, whole):
            return f"{first[1]}:{first[2]}: {sentence.format(*match.groups())}"
    return f"{first[1]}:{first[2]}: {first[3]}"


def compiled(path, folder):
    """The program of a .cu file. Raises RequestError."""
    folder.mkdir(parents=True, exist_ok=True)
    text, program = folder / (path.stem + ".cpp"), folder / path.stem
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{path} cannot be read: {error}") from None
    text.write_text(rewritten(path, source), encoding="utf-8")
    compiler = cached("CMAKE_CXX_COMPILER") or "g++"
    command = [compiler, "-std=c++20", "-O1", "-g", "-Wall", "-Wno-sign-compare",
               "-Wno-unknown-pragmas", *SANITIZED, f"-I{ROOT}",
               f"-I{path.resolve().parent}", f"-isystem{ROOT / 'common/simt/include'}",
               f"-isystem{cached('CUDA_HEADERS')}", text, "-o", program, BUILD / "libforeign.a", BUILD / "libsimt.a",
               cached("BOOST_CONTEXT"), "-fopenmp", "-ldl", "-rdynamic"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode != 0:
        raise RequestError(f"{in_a_sentence(done.stderr)}\n\n{done.stderr.rstrip()}")
    if done.stderr:
        print(done.stderr.rstrip(), file=sys.stderr)
    return program


def of_sanitizer(path, said):
    """One sentence for the address sanitizer's report; nothing where it says nothing."""
    match = re.search(r"AddressSanitizer: ([\w-]+).*?\n(READ|WRITE) of size (\d+)(.*)", said, re.DOTALL)
    if not match:
        return ""
    kind, access, size, rest = match.groups()
    frames = re.findall(r"#\d+ \S+ in (.*?) (\S+:\d+)", rest)
    place = next((frame for frame in frames if Path(path).name in frame[1]), None)
    where = re.search(r"is located (\d+) bytes (after|before|inside of|to the \w+ of) (\d+)-byte region", rest)
    sentence = f"{access.lower()}s {size} bytes out of bounds ({kind})"
    if where:
        side = {"to the right of": "after", "to the left of": "before", "inside of": "into"}.get(where[2], where[2])
        sentence = f"{access.lower()}s {size} bytes, {where[1]} bytes {side} a buffer of {where[3]} bytes"
    if not place:
        return sentence
    name = re.split(r"[(\[]", place[0])[0]
    return f"{place[1]}: {name} {sentence}"


def main(argv):
    if not argv or argv[0] in ("-h", "--help"):
        print(__doc__.strip())
        return 0 if argv else 2
    path = Path(argv[0])
    try:
        program = compiled(path, ROOT / "build/foreign")
    except RequestError as error:
        print(error, file=sys.stderr)
        return 2
    done = subprocess.run([program, *argv[1:]], stderr=subprocess.PIPE, text=True,
                          env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"})
    sentence = of_sanitizer(path, done.stderr)
    if sentence:
        log = program.with_suffix(".sanitizer")
        log.write_text(done.stderr, encoding="utf-8")
        print(f"{sentence}\n(the whole report: {log.relative_to(ROOT)})", file=sys.stderr)
        return 1
    print(done.stderr, end="", file=sys.stderr)
    if done.returncode < 0:
        print(f"{path} ended by signal {-done.returncode}", file=sys.stderr)
    return 1 if done.returncode < 0 else done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
