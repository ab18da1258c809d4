#!/usr/bin/env python3
"""test_chapter.py PROGRAM OBJECT KERNEL_CU [ARGUMENT…]: runs a chapter's tests on the SIMT machine, and fails too where
they launch not every kernel that the chapter's object has.

A template is a kernel for each set of its arguments, and each is machine code of its own: one that no test launches is
one that no test has tried.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

KERNEL_HEADERS = Path(__file__).resolve().parents[1] / "kernel"


def kernel_names(source):
    """The names of the kernels that a source declares: {'layer_norm_forward', …}."""
    names = set()
    for start in re.finditer(r"__global__\s+void\s+", source):
        rest = source[start.end() :]
        if rest.startswith("__launch_bounds__"):
            rest = rest[end_of_parenthesis(rest) :]
        names.add(re.match(r"\s*(\w+)\s*\(", rest)[1])
    return names


def end_of_parenthesis(text):
    """Where the first parenthesis of a text has closed."""
    depth = 0
    for at, letter in enumerate(text):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == ")" and depth == 0:
            return at + 1
    return len(text)


def compiled_kernels(nm, nm_demangled, names):
    """{the linker's name: the kernel's} of those functions of two listings of `nm` that are kernels of these names."""
    kernels = {}
    for mangled, plain in zip(nm.splitlines(), nm_demangled.splitlines(), strict=True):
        name = plain.split(maxsplit=2)[-1].removeprefix("void ")
        inside_of_one = "{lambda" in name or not name.endswith(")")  # its shared variables too
        if re.match(rf"(\w+::)*({'|'.join(names)})[<(]", name) and not inside_of_one:
            kernels[mangled.split()[-1]] = name
    return kernels


def list_symbols(program, *options):
    command = ["nm", "--defined-only", "--no-sort", *options, program]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main(program, object_file, kernel_cu, *arguments):
    with tempfile.TemporaryDirectory() as folder:
        launched = Path(folder, "launched.txt")
        done = subprocess.run([program, *arguments], env={**os.environ, "SIMT_LAUNCHED": str(launched)}, check=False)
        if done.returncode != 0:
            return done.returncode
        seen = set(launched.read_text().split()) if launched.exists() else set()
    sources = [Path(kernel_cu), *KERNEL_HEADERS.glob("*.h")]
    names = set.union(*(kernel_names(source.read_text()) for source in sources))
    kernels = compiled_kernels(list_symbols(object_file), list_symbols(object_file, "--demangle"), names)
    never = sorted(name for symbol, name in kernels.items() if symbol not in seen)
    print(f"kernels: {len(kernels) - len(never)} of {len(kernels)} launched")
    for name in never:
        print(f"no test launches {name}")
    return 1 if never or not kernels else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
