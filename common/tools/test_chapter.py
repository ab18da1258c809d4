#!/usr/bin/env python3
"""test_chapter.py PROGRAM OBJECT [ARGUMENT…]: runs a chapter's tests on the SIMT machine, and fails too where
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


def compiled_kernels(nm, nm_demangled):
    """{the linker's name: the kernel's} of those functions of two listings of `nm` that have the tag of __global__."""
    kernels = {}
    for mangled, plain in zip(nm.splitlines(), nm_demangled.splitlines(), strict=True):
        name = plain.split(maxsplit=2)[-1].removeprefix("void ")
        inside_of_one = "{lambda" in name or not name.endswith(")")  # its shared variables too
        if re.match(r"(\w+::)*\w+\[abi:kernel\][<(]", name) and not inside_of_one:
            kernels[mangled.split()[-1]] = name.replace("[abi:kernel]", "", 1)
    return kernels


def list_symbols(program, *options):
    command = ["nm", "--defined-only", "--no-sort", *options, program]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main(program, object_file, *arguments):
    with tempfile.TemporaryDirectory() as folder:
        launched = Path(folder, "launched.txt")
        done = subprocess.run([program, *arguments], env={**os.environ, "SIMT_LAUNCHED": str(launched)}, check=False)
        if done.returncode != 0:
            return done.returncode
        seen = set(launched.read_text().split()) if launched.exists() else set()
    kernels = compiled_kernels(list_symbols(object_file), list_symbols(object_file, "--demangle"))
    never = sorted(name for symbol, name in kernels.items() if symbol not in seen)
    print(f"kernels: {len(kernels) - len(never)} of {len(kernels)} launched")
    for name in never:
        print(f"no test launches {name}")
    return 1 if never or not kernels else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
