#!/usr/bin/env python3
"""spills.py BUILD_DIRECTORY: no kernel that the dispatch may pick keeps a register in memory.

Reads what ptxas said while `make compile-cuda` compiled the kernels that the dispatch chooses
from, as notebooks/data/chapters.json says. A kernel has a stack frame where its registers did not suffice (a spill), or
where an array has an index that is not known; either goes through local memory in each turn. The
architecture of the measurements behind the table is judged, the others are shown.
"""

import re
import sys
from pathlib import Path
from typing import NamedTuple

from common.tools.kernel_names import demangle, without_parameters
from common.results.chapters import dispatched, load_catalogue
from common.results.problems import DataError

ROOT = Path(__file__).resolve().parents[2]

JUDGED = "sm_90"


class Known(NamedTuple):
    """Kernels that spill, how much at most, and why that is accepted."""

    kernels: str
    bytes: int
    why: str


BWD11 = ("64 of a thread's 128 registers hold dweight and dbias; in a row of more than 8192 columns up to four numbers "
         "go to memory and back")
BWD10 = ("fused rows that start at no 16-byte boundary, element by element, which no other kernel takes: bwd10's "
         "laboratory has the bytes")
KNOWN = [
    Known(r"lib_bwd_registers::layer_norm_backward<__nv_bfloat16, float, 32>$", 8, BWD11),
    Known(r"lib_bwd_registers::layer_norm_backward<(float|__half), float, 32>$", 16, BWD11),
    Known(r"lib_bwd_fused_any::fused_backward<.*, 1, 1>$", 48, BWD10),
]


class Kernel(NamedTuple):
    architecture: str
    name: str  # as its source spells it, without parameters: "fwd06::layer_norm_forward<float, …>"
    registers: int
    stack_bytes: int


def read_report(text):
    """The Kernels of one object's report."""
    found = re.findall(
        r"Compiling entry function '(\S+)' for '(\w+)'\n"
        r"(?:(?!.*Compiling entry function).*\n)*?"
        r" +(\d+) bytes stack frame.*\n(?:(?!.*Compiling entry function).*\n)*?"
        r".*Used (\d+) registers", text)
    if len(found) != text.count("Compiling entry function"):
        raise ValueError("a report of ptxas that this script cannot read")
    names = map(without_parameters, demangle([name for name, *_ in found]))
    return [Kernel(architecture, name, int(registers), int(stack_bytes))
            for name, (_, architecture, stack_bytes, registers) in zip(names, found)]


def judge(chapter, kernels):
    """(Lines to print, whether all is well, the KNOWN entries that were needed), of a chapter."""
    lines, good, needed = [], True, set()
    for kernel in (k for k in kernels if k.stack_bytes > 0 and k.architecture == JUDGED):
        known = next((k for k in KNOWN if re.search(k.kernels, kernel.name)), None)
        accepted = known is not None and kernel.stack_bytes <= known.bytes
        good = good and accepted
        needed |= {known} if known else set()
        lines.append(f"{'known' if accepted else 'SPILL'}  {kernel.name}: {kernel.stack_bytes} bytes"
                     + (f" ({known.why})" if accepted else ""))
    judged = [k for k in kernels if k.architecture == JUDGED]
    if not judged:
        return [f"SPILL  {chapter}: the report has no kernel for {JUDGED}"], False, needed
    others = {k.architecture for k in kernels if k.stack_bytes > 0} - {JUDGED}
    lines.append(f"{chapter}: {len(judged)} kernels on {JUDGED}, at most "
                 f"{max(k.registers for k in judged)} registers"
                 + (f"; some spill on {', '.join(sorted(others))}" if others else ""))
    return lines, good, needed


def main(directory):
    try:
        chapters = dispatched(load_catalogue())
    except DataError as error:
        sys.exit(f"spills: {error}")
    good, needed = bool(chapters), set()
    for chapter in chapters:
        reports = list(Path(directory).glob(f"CMakeFiles/{chapter}_kernel.dir/**/*.ptxas"))
        if not reports:
            sys.exit(f"spills: {directory} has no report of {chapter}; 'make compile-cuda' makes it")
        kernels = [k for path in reports for k in read_report(path.read_text(encoding="utf-8"))]
        lines, chapter_is_good, chapter_needs = judge(chapter, kernels)
        print("\n".join(lines))
        good = good and chapter_is_good
        needed |= chapter_needs
    for known in set(KNOWN) - needed:
        print(f"SPILL  nothing spills that matches {known.kernels}: remove it from {Path(__file__).name}")
        good = False
    print("spills: " + ("only known ones" if good else "see SPILL above"))
    return 0 if good else 1


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
