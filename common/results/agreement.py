#!/usr/bin/env python3
"""Do the SIMT machine's counts agree with the hardware's? Both, kernel by kernel.

    python3 -m common.results.agreement                                   the cells that differ, and a sum
    python3 -m common.results.agreement build/cpu-watch/bin/chapters build/cpu-watch/bin/library_kernels
                                                                        count anew, into counts.csv
    python3 -m common.results.agreement --programs                      the same for counts_programs.csv

notebooks/data/counts.csv has what `make count` says of three problems, counts_h100.csv what Nsight Compute
counted of the same (common/bench/profile_chapter.py --counts). counts_programs.csv and counts_programs_h200.csv
have the same of programs from elsewhere, one record for each launch: `make count FILE=…`, and `ncu --csv --page raw
--clock-control none` of what `nvcc -O3 -arch=sm_90a` compiles. `make tables` writes all of it into
common/watch/agreement.md, and what a chapter's kernels ask for into its laboratory.
"""

import datetime
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from common.results import records as measurements
from common.results import store
from common.results.problems import ROOT
from common.tools import check_file

COUNTED = Path("notebooks/data/counts.csv")
MEASURED = Path("notebooks/data/counts_h100.csv")
PROGRAMS_COUNTED = Path("notebooks/data/counts_programs.csv")
PROGRAMS_MEASURED = Path("notebooks/data/counts_programs_h200.csv")
FOREIGN = Path("common/tools/tests/foreign")
PROBLEMS = ("--rows 1024 --cols 2048", "--dtype bf16 --rows 512 --cols 2560", "--rows 777 --cols 1001")
NEAR = 0.05  # two figures agree that differ by less, of the larger
SECTOR = 32  # bytes
ATOMICS = ("red", "atom")
DEFAULTS = "by default"  # a program's problem: without arguments


class Quantity(NamedTuple):
    name: str
    counted: Callable  # of a record's totals
    measured: Callable  # of a record's metrics


def total(*names, times=1):
    """Of totals or metrics, the sum of these."""
    return lambda record: times * sum(record[name] for name in names)


def of_op(what, *ops, times=1):
    """The same of the requests or sectors of some operations on device memory that the hardware has seen."""
    names = [f"l1tex__t_{what}_pipe_lsu_mem_global_op_{op}.sum" for op in ops]
    return lambda metrics: times * sum(metrics.get(name, 0) for name in names)


def ratio(top, bottom):
    return lambda record: top(record) / bottom(record) if bottom(record) else 0


def from_l2(totals):
    """Bytes that L1 and bulk copies ask L2 for."""
    return LOAD_SECTORS(totals) * SECTOR - totals["sectors held by L1"] * SECTOR + totals["bulk load bytes"]


LOADS = total("load requests", "async copy requests")
LOAD_SECTORS = total("load sectors", "async copy sectors")
QUANTITIES = (
    Quantity("load requests", LOADS, of_op("requests", "ld")),
    Quantity("sectors a load request", ratio(LOAD_SECTORS, LOADS),
             ratio(of_op("sectors", "ld"), of_op("requests", "ld"))),
    Quantity("store requests", total("store requests"), of_op("requests", "st")),
    Quantity("sectors a store request", ratio(total("store sectors"), total("store requests")),
             ratio(of_op("sectors", "st"), of_op("requests", "st"))),
    Quantity("L2 sectors written", lambda t: t["store sectors"] + t["bulk store bytes"] // SECTOR,
             total("lts__t_sectors_srcunit_tex_op_write.sum")),
    Quantity("atomic requests", total("atomic requests"), of_op("requests", *ATOMICS)),
    Quantity("atomic sectors", total("atomic sectors"), of_op("sectors", *ATOMICS)),
    Quantity("shared-memory passes",
             total("shared load passes", "shared store passes", "shared atomic passes", "async copy passes"),
             total("memory_l1_wavefronts_shared")),
    Quantity("bank conflicts", total("shared conflicts"),
             lambda m: m["memory_l1_wavefronts_shared"] - m["memory_l1_wavefronts_shared_ideal"]),
)
BYTES = (  # of all kernels of a chapter
    Quantity("loads ask L1 for", lambda t: LOAD_SECTORS(t) * SECTOR, of_op("sectors", "ld", times=SECTOR)),
    Quantity("L1 and bulk copies ask L2 for", from_l2, total("lts__t_sectors_srcunit_tex_op_read.sum", times=SECTOR)),
    Quantity("device memory gives", lambda t: from_l2(t) - t["sectors held by L2"] * SECTOR,
             total("dram__bytes_read.sum")),
    Quantity("stores write to L2", lambda t: t["store sectors"] * SECTOR + t["bulk store bytes"],
             total("lts__t_sectors_srcunit_tex_op_write.sum", times=SECTOR)),
    Quantity("atomics update in L2", total("atomic sectors", times=SECTOR), of_op("sectors", *ATOMICS, times=SECTOR)),
)


# Why a cell differs: the first line that fits. Each number is a section of common/watch/agreement.md.
REASONS = (
    (1, r"fwd0[234] .* 777 .* (load|store) request"),
    (1, r"fwd02 .* 777 .*: L2 sectors written"),
    (1, r"(bwd0[23] .*|bwd06 input_gradient) .*777 .* (load|store) request"),
    (2, r"bwd03 .*: shared-memory passes"),
    (2, r"layernorm.cu layernorm_backward_kernel2 .*: load requests"),
    (2, r"reduction.cu reduce7<.*: shared-memory passes"),
    (2, r"scan.cu scan_blelloch.*: (shared-memory passes|bank conflicts)"),
    (3, r"(lib_fwd_registers|lib_fwd_fused_any) .* 777 .* store requests?"),
    (3, r"(lib_bwd_from_y|lib_bwd_any) .* store requests?"),
    (3, r"(lib_fwd_cluster_ring|lib_bwd_registers) .*: (shared-memory passes|bank conflicts)"),
    (3, r"bwd17 add_partial_sums_kernel .*: (shared-memory passes|bank conflicts)"),
    (3, r"softmax.cu .*: (load requests|store requests|L2 sectors written)"),
    (4, r"lib_bwd_one_shot .*: (load requests|shared-memory passes|bank conflicts)"),
    (4, r"bwd17 layer_norm_backward .*: bank conflicts"),
    (5, r".*: L2 sectors written"),
    (6, r"fwd0[49] .*: shared-memory passes"),
    (6, r"(matmul|sgemm).cu .*: (shared-memory passes|bank conflicts)"),
    (7, r"bwd08 .*: atomic (requests|sectors)"),
    (8, r"layernorm.cu layernorm_backward_kernel2 .*: shared-memory passes"),
)


class Cell(NamedTuple):
    """A quantity of a kernel on a problem, counted and measured."""

    chapter: str  # or the file of a program from elsewhere
    kernel: str
    problem: str
    quantity: str
    counted: float
    measured: float

    @property
    def agrees(self):
        return abs(self.counted - self.measured) <= NEAR * max(self.counted, self.measured)

    @property
    def words(self):
        """What REASONS' patterns match."""
        return f"{self.chapter} {self.kernel} {self.problem}: {self.quantity}"

    @property
    def reason(self):
        """Why it differs: a number of REASONS; None where it agrees, or nobody knows."""
        if self.agrees:
            return None
        return next((number for number, pattern in REASONS if re.fullmatch(pattern + ".*", self.words)), None)

    @property
    def empty(self):
        return self.counted == 0 and self.measured == 0


def base_name(kernel):
    """'lnc::add_partial_sums_kernel<…>' -> 'add_partial_sums_kernel'"""
    return re.sub(r"<.*", "", kernel).split("::")[-1]


def words(problem):
    return f"{problem['dtype']} {problem['rows']} × {problem['cols']}"


def read(path):
    """The records of a file, but for those of kernels that are gone."""
    records = [measurements.with_current_ids(record) for _, record in measurements.read_objects(Path(path))]
    return [record for record in records if not record["chapter"].startswith("former ")]


def key_of(record):
    return record["chapter"], base_name(record["kernel"]), words(record["problem"])


def cells(root=ROOT):
    """All cells of the kernels that are in both files."""
    hardware = {key_of(record): record["metrics"] for record in read(root / MEASURED)}
    return [Cell(*key_of(record), quantity.name, quantity.counted(record["totals"]),
                 quantity.measured(hardware[key_of(record)]))
            for record in read(root / COUNTED) if key_of(record) in hardware for quantity in QUANTITIES]


def cells_of_programs(root=ROOT):
    """All cells of the programs from elsewhere. Their launches are in the same order in both files."""
    pairs = zip(store.read(root / PROGRAMS_COUNTED), store.read(root / PROGRAMS_MEASURED), strict=True)
    return [Cell(hardware["program"], hardware["kernel"], DEFAULTS, quantity.name, quantity.counted(machine["totals"]),
                 quantity.measured(hardware["metrics"]))
            for machine, hardware in pairs for quantity in QUANTITIES]


def count_program(name):
    """A record for each launch of a program from elsewhere, as counts_programs.csv has it."""
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    made_by = {"schema": measurements.SCHEMA, "date": datetime.date.today().isoformat(),
               "commit": commit.stdout.strip() or "unknown"}
    _, record = check_file.counted(ROOT / FOREIGN / name)
    return [{**made_by, "program": name, **{key: launch[key] for key in ("kernel", "grid", "block", "totals")}}
            for launch in record["launches"]]


def count(program):
    """Counts the three problems and returns the records that counts.csv holds."""
    records = []
    for problem in PROBLEMS:
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "counts.jsonl"
            subprocess.run([sys.executable, "-m", "common.watch.count", program, "--json", str(file),
                            *problem.split()], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
            for record in read(file):
                for launch in record["launches"]:
                    records.append({**{key: record[key] for key in ("schema", "chapter", "problem", "date", "commit")},
                                    **{key: launch[key] for key in ("kernel", "grid", "block", "totals")}})
    return records


def summary(found):
    """'622 of 681 cells (91 %) agree within 5 %'"""
    filled = [cell for cell in found if not cell.empty]
    agreeing = sum(cell.agrees for cell in filled)
    return f"{agreeing} of {len(filled)} cells ({agreeing / len(filled):.0%}) agree within {NEAR:.0%}"


def show(value, quantity):
    return f"{value:.1f}" if quantity.startswith("sectors a") else measurements.count(value)


def table_rows(found):
    """{problem: [(chapter, kernel, a text for each quantity), …]}: where a cell differs, both figures and why."""
    tables = {}
    for cell in found:
        rows = tables.setdefault(cell.problem, {})
        texts = rows.setdefault((cell.chapter, cell.kernel), [])
        text = "" if cell.empty else show(cell.counted, cell.quantity)
        if not cell.agrees:
            text = f"**{text} / {show(cell.measured, cell.quantity)}** ({cell.reason or '?'})"
        texts.append(text)
    return {problem: [(*key, *texts) for key, texts in rows.items()] for problem, rows in tables.items()}


def differing_rows(found):
    """[(program, kernel, quantity, counted, measured, why), …] of the cells that differ."""
    return [(cell.chapter, f"`{cell.kernel}`", cell.quantity, show(cell.counted, cell.quantity),
             show(cell.measured, cell.quantity), cell.reason or "?") for cell in found if not cell.agrees]


def bytes_of(chapter, problem, root=ROOT):
    """{what: (counted, measured)} in bytes, over a chapter's kernels; a measured one may be None."""
    counted, measured = ([record[field] for record in read(root / file)
                          if record["chapter"] == chapter and words(record["problem"]) == problem]
                         for file, field in ((COUNTED, "totals"), (MEASURED, "metrics")))
    return {one.name: (sum(map(one.counted, counted)), sum(map(one.measured, measured)) if measured else None)
            for one in BYTES if counted}


def written_once(chapter, root=ROOT):
    """Bytes of device memory that a chapter's kernels write on the first problem, each kernel's sectors once."""
    records = [record for record in read(root / COUNTED) if record["chapter"] == chapter]
    first = [record for record in records if words(record["problem"]) == words(records[0]["problem"])]
    return sum(record["totals"]["sectors written once"] for record in first) * SECTOR


def main(arguments):
    if arguments == ["--programs"]:
        programs = dict.fromkeys(record["program"] for record in store.read(ROOT / PROGRAMS_MEASURED))
        store.write(ROOT / PROGRAMS_COUNTED, [record for name in programs for record in count_program(name)])
    elif arguments:
        store.write(ROOT / COUNTED, [record for program in arguments for record in count(program)])
    for found in (cells(), cells_of_programs()):
        for cell in found:
            if not cell.agrees:
                print(f"{cell.chapter} {cell.kernel}, {cell.problem}: {cell.quantity} counted {cell.counted:,.1f}, "
                      f"measured {cell.measured:,.1f}, reason {cell.reason}")
        print(summary(found))


if __name__ == "__main__":
    main(sys.argv[1:])
