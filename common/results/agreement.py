#!/usr/bin/env python3
"""Do the SIMT machine's counts agree with the hardware's? Both, kernel by kernel.

    python3 -m common.results.agreement                                   the cells that differ, and a sum
    python3 -m common.results.agreement build/cpu-watch/bin/chapters build/cpu-watch/bin/library_kernels
                                                                        count anew, into counts.csv

notebooks/data/counts.csv has what `make count` says of three problems, counts_h100.csv what Nsight Compute
counted of the same (common/bench/profile_chapter.py --counts). `make tables` writes both into
common/watch/agreement.md, and what a chapter's kernels ask for into its laboratory.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from common.results import records as measurements
from common.results import store

ROOT = Path(__file__).resolve().parents[2]
COUNTED = Path("notebooks/data/counts.csv")
MEASURED = Path("notebooks/data/counts_h100.csv")
PROBLEMS = ("--rows 1024 --cols 2048", "--dtype bf16 --rows 512 --cols 2560", "--rows 777 --cols 1001")
NEAR = 0.05  # two figures agree that differ by less, of the larger
GLOBAL = "l1tex__t_{}_pipe_lsu_mem_global_op_{}.sum"


class Quantity(NamedTuple):
    name: str
    counted: object  # of a record's totals
    measured: object  # of a record's metrics


def ratio(top, bottom):
    return top / bottom if bottom else 0


def of_op(what, *ops):
    return lambda m: sum(m.get(GLOBAL.format(what, op), 0) for op in ops)


ATOMICS = ("red", "atom")
QUANTITIES = (
    Quantity("load requests", lambda t: t["load requests"] + t["async copy requests"], of_op("requests", "ld")),
    Quantity("sectors a load request",
             lambda t: ratio(t["load sectors"] + t["async copy sectors"],
                             t["load requests"] + t["async copy requests"]),
             lambda m: ratio(of_op("sectors", "ld")(m), of_op("requests", "ld")(m))),
    Quantity("store requests", lambda t: t["store requests"], of_op("requests", "st")),
    Quantity("sectors a store request", lambda t: ratio(t["store sectors"], t["store requests"]),
             lambda m: ratio(of_op("sectors", "st")(m), of_op("requests", "st")(m))),
    Quantity("L2 sectors written", lambda t: t["store sectors"] + t["bulk store bytes"] // 32,
             lambda m: m["lts__t_sectors_srcunit_tex_op_write.sum"]),
    Quantity("atomic requests", lambda t: t["atomic requests"], of_op("requests", *ATOMICS)),
    Quantity("atomic sectors", lambda t: t["atomic sectors"], of_op("sectors", *ATOMICS)),
    Quantity("shared-memory passes",
             lambda t: t["shared load passes"] + t["shared store passes"] + t["async copy passes"],
             lambda m: m["memory_l1_wavefronts_shared"]),
    Quantity("bank conflicts", lambda t: t["shared conflicts"],
             lambda m: m["memory_l1_wavefronts_shared"] - m["memory_l1_wavefronts_shared_ideal"]),
)


# Why a cell differs: the first line that fits. Each number is a section of common/watch/agreement.md.
REASONS = (
    (1, r"fwd0[234] .* 777 .* (load|store) request"),
    (1, r"fwd02 .* 777 .*: L2 sectors written"),
    (1, r"(bwd0[23] .*|bwd06 input_gradient) .*777 .* (load|store) request"),
    (2, r"bwd03 .*: shared-memory passes"),
    (3, r"(lib_fwd_registers|lib_fwd_fused_any) .* 777 .* store requests?"),
    (3, r"(lib_bwd_from_y|lib_bwd_any) .* store requests?"),
    (3, r"(lib_fwd_cluster_ring|lib_bwd_registers) .*: (shared-memory passes|bank conflicts)"),
    (3, r"bwd17 add_partial_sums_kernel .*: (shared-memory passes|bank conflicts)"),
    (4, r"lib_bwd_one_shot .*: (load requests|shared-memory passes|bank conflicts)"),
    (4, r"bwd17 layer_norm_backward .*: bank conflicts"),
    (5, r".*: L2 sectors written"),
    (6, r"fwd0[49] .*: shared-memory passes"),
    (7, r"bwd08 .*: atomic (requests|sectors)"),
)


class Cell(NamedTuple):
    """A quantity of a kernel on a problem, counted and measured."""

    chapter: str
    kernel: str
    problem: str
    quantity: str
    counted: float
    measured: float

    @property
    def agrees(self):
        return abs(self.counted - self.measured) <= NEAR * max(self.counted, self.measured)

    @property
    def reason(self):
        """Why it differs: a number of REASONS; None where it agrees, or nobody knows."""
        if self.agrees:
            return None
        text = f"{self.chapter} {self.kernel} {self.problem}: {self.quantity}"
        return next((number for number, pattern in REASONS if re.fullmatch(pattern + ".*", text)), None)

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


def cells(root=ROOT):
    """All cells of the kernels that are in both files."""
    hardware = {}
    for record in read(root / MEASURED):
        key = (record["chapter"], base_name(record["kernel"]), words(record["problem"]))
        hardware.setdefault(key, []).append(record["metrics"])
    found = []
    for record in read(root / COUNTED):
        key = (record["chapter"], base_name(record["kernel"]), words(record["problem"]))
        for quantity in QUANTITIES if hardware.get(key) else ():
            found.append(Cell(*key, quantity.name, quantity.counted(record["totals"]),
                              quantity.measured(hardware[key][-1])))
    return found


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


SECTOR = 32


def bytes_of(chapter, problem, root=ROOT):
    """{what: (counted, measured)} in bytes, over a chapter's kernels; a measured one may be None."""
    counted = [record["totals"] for record in read(root / COUNTED)
               if record["chapter"] == chapter and words(record["problem"]) == problem]
    measured = [record["metrics"] for record in read(root / MEASURED)
                if record["chapter"] == chapter and words(record["problem"]) == problem]
    if not counted:
        return {}

    def of_counts(quantity):
        return sum(quantity(totals) for totals in counted)

    def of_metrics(quantity):
        return sum(quantity(metrics) for metrics in measured) if measured else None

    def asked(totals):
        return (totals["load sectors"] + totals["async copy sectors"]) * SECTOR

    def from_l2(totals):
        return asked(totals) - totals["sectors held by L1"] * SECTOR + totals["bulk load bytes"]

    return {
        "loads ask L1 for": (of_counts(asked), of_metrics(lambda m: of_op("sectors", "ld")(m) * SECTOR)),
        "L1 and bulk copies ask L2 for":
            (of_counts(from_l2), of_metrics(lambda m: m["lts__t_sectors_srcunit_tex_op_read.sum"] * SECTOR)),
        "device memory gives": (of_counts(lambda t: from_l2(t) - t["sectors held by L2"] * SECTOR),
                                of_metrics(lambda m: m["dram__bytes_read.sum"])),
        "stores write to L2":
            (of_counts(lambda t: t["store sectors"] * SECTOR + t["bulk store bytes"]),
             of_metrics(lambda m: m["lts__t_sectors_srcunit_tex_op_write.sum"] * SECTOR)),
        "atomics update in L2":
            (of_counts(lambda t: t["atomic sectors"] * SECTOR),
             of_metrics(lambda m: of_op("sectors", *ATOMICS)(m) * SECTOR)),
    }


def written_once(chapter, root=ROOT):
    """Bytes of device memory that a chapter's kernels write on the first problem, each kernel's sectors once."""
    records = [record for record in read(root / COUNTED) if record["chapter"] == chapter]
    first = [record for record in records if words(record["problem"]) == words(records[0]["problem"])]
    return sum(record["totals"]["sectors written once"] for record in first) * SECTOR


def main(arguments):
    if arguments:
        store.write(ROOT / COUNTED, [record for program in arguments for record in count(program)])
    found = cells()
    for cell in found:
        if not cell.agrees:
            print(f"{cell.chapter} {cell.kernel}, {cell.problem}: {cell.quantity} counted {cell.counted:,.1f}, "
                  f"measured {cell.measured:,.1f}, reason {cell.reason}")
    print(summary(found))


if __name__ == "__main__":
    main(sys.argv[1:])
