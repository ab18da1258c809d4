"""The tables of the machine: its memories, the constants that lessons take, and the time model of the roofs."""

from pathlib import Path
from typing import NamedTuple

from common.results.other_tables import read_lines_with
from common.results.records import MISSING, number
from common.results.rendering import table

MACHINE = Path("notebooks/data/machine_h100.jsonl")
COMMAND = "bash common/setup/build.sh cuda machine && build/cuda/bin/machine"
MEMORIES = (
    ("registers", "a multiprocessor", "256 KB", None, None),
    ("shared memory", "a multiprocessor", "up to 227 KB of the 256 beside it", "latency: shared memory", None),
    ("L1", "a multiprocessor", "256 KB, less shared memory", "latency: L1", "bandwidth: L1, read"),
    ("L2", "the GPU", "50 MB", "latency: L2", "bandwidth: L2, read"),
    ("device memory", "the GPU", "80 GB", "latency: device memory", "bandwidth: copy of 1024 MiB"))


class Constant(NamedTuple):
    """What the lessons take for a figure. A test holds `taken` to within `tolerance` of what is measured."""

    name: str
    taken: str
    unit: str
    figure: str
    tolerance: float = 0.05


CONSTANTS = (
    Constant("launch: an empty kernel, between two events", "3.9", "µs", "events around a launch"),
    Constant("a second small kernel after it, launched normally", "2.0", "µs",
             "a second kernel, empty, behind the first"),
    Constant("bandwidth of device memory", "3.0", "TB/s", "bandwidth: copy of 1024 MiB"),
    *(Constant(f"… with {kb} KB in flight per multiprocessor", taken, "TB/s", f"{kb} KB on the way a multiprocessor")
      for kb, taken in ((2, "0.56"), (4, "1.04"), (8, "1.74"), (16, "2.5"), (32, "2.85"), (64, "2.9"))),
    Constant("bandwidth of L2, read", "7.4", "TB/s", "bandwidth: L2, read"),
    Constant("bandwidth of all L1s, read", "31", "TB/s", "bandwidth: L1, read"),
    Constant("a wait for 1 load from device memory", "0.35", "µs", "latency: device memory"),
    Constant("… for 4 independent loads", "0.40", "µs", "at once: 4 cold loads"),
    Constant("… for 8 independent loads", "0.45", "µs", "at once: 8 cold loads"),
    Constant("… for 16 independent loads", "0.51", "µs", "at once: 16 cold loads"),
    Constant("a wait for a load from L2", "0.14", "µs", "latency: L2"),
    Constant("… from L1", "0.02", "µs", "latency: L1"),
    Constant("… from shared memory", "0.015", "µs", "latency: shared memory"),
    Constant("L1 is occupied by a request to 1 line", "3", "cycles", "L1: a request to 1 line"),
    Constant("… to 32 lines", "32", "cycles", "L1: a request to 32 lines"),
    Constant("a multiply-add that needs the one before", "4.7", "cycles", "latency: a dependent multiply-add"),
    Constant("`warp_sum`", "151", "cycles", "meeting: warp_sum"),
    Constant("`__syncthreads`, 256 threads", "29", "cycles", "meeting: __syncthreads, 256 threads"),
    Constant("… 1024 threads", "77", "cycles", "meeting: __syncthreads, 1024 threads"),
    Constant("`block_sum`, 256 threads", "0.19", "µs", "meeting: block_sum, 256 threads"),
    Constant("… 1024 threads", "0.25", "µs", "meeting: block_sum, 1024 threads"),
    Constant("a sum over a cluster of 2 to 8 blocks, of 256 threads each", "0.5", "µs",
             "meeting: a sum over a cluster of 8 blocks"),
    Constant("clock of a multiprocessor", "1.98", "GHz", "SM clock"),
    Constant("warp instructions issued per cycle and multiprocessor", "4", "",
             "issue: warp instructions a cycle and multiprocessor", 0.1),  # its loop takes issue slots too
    Constant("4.2 million float atomics, 1024 rows of 4096 in step", "33.4", "µs",
             "4 194 304 atomics, 1024 warps in step"),
    Constant("… each row starting 32 columns further", "19.2", "µs", "4 194 304 atomics, each warp 32 columns later"),
    Constant("… the 32 lanes of a warp to one address", "426", "µs",
             "4 194 304 atomics, a warp's lanes to one address"),
    Constant("a MB of partial sums, written by all blocks and added up", "0.40", "µs",
             "partial sums: a MB written and added up"))
TAKEN = {one.figure: float(one.taken) for one in CONSTANTS}
ROOFS = (("copy", 2), ("triad", 3))  # and the tensors that each moves
SIZES = (1, 8, 64, 1024)  # MiB a tensor
MIB = 1 << 20


def read_figures(root):
    """{figure: record}: what was measured of the machine."""
    return {one["figure"]: one for one in read_lines_with(root / MACHINE, "figure", "value", schema=None)}


def clock_of(figures):
    """GHz, so cycles a nanosecond; None where it is not measured."""
    return figures["SM clock"]["value"] if "SM clock" in figures else None


def digits(value):
    """Three significant digits: 0.0146, 10.5, 1 078."""
    return f"{value:#.3g}" if value and value < 1 else number(value, 3)


def spread(record, scale=1.0):
    """'0.342–0.346': the lowest and the highest of the repeats, where the record has them."""
    ends = [record.get(end) if record else None for end in ("low", "high")]
    return MISSING if None in ends else "–".join(digits(end * scale) for end in ends)


def measured(constant, figures, clock):
    """(value, its scale to the record's own): what was measured, in the constant's unit; None where nothing was."""
    record = figures.get(constant.figure)
    scale = 1e-3 / clock if record and constant.unit == "µs" and record.get("unit") == "cycles" else 1.0
    return (record["value"] * scale if record else None), scale


def in_the_other_unit(constant, record, clock):
    """A time in cycles where the lessons take µs, and the reverse."""
    if not record or record.get("unit") != "cycles":
        return ""
    cycles = record["value"]
    return f"{number(cycles, 3)} cycles" if constant.unit == "µs" else f"{digits(cycles / clock / 1e3)} µs"


@table("machine", COMMAND)
def machine(results):
    """how large, how slow and how fast each memory of the GPU is"""
    figures = read_figures(results.root)
    value, clock = {name: record["value"] for name, record in figures.items()}, clock_of(figures)
    rows = [(name, where, size, value.get(latency), value.get(latency) and value[latency] / clock, value.get(bandwidth))
            for name, where, size, latency, bandwidth in MEMORIES] if clock else []
    return {"rows": rows, "clock": clock, "records": list(figures.values())} if clock else None


@table("constants", COMMAND)
def constants(results):
    """the constants that every lesson's prediction takes, and what they were rounded from"""
    figures = read_figures(results.root)
    if not (clock := clock_of(figures)):
        return None
    rows = []
    for one in CONSTANTS:
        record = figures.get(one.figure)
        value, scale = measured(one, figures, clock)
        rows.append((one.name, f"{one.taken} {one.unit}".strip(), digits(value), spread(record, scale),
                     in_the_other_unit(one, record, clock)))
    return {"rows": rows, "records": list(figures.values())}


@table("machine strides", COMMAND)
def strides(results):
    """what a request that is not coalesced costs: sectors, and the useful bytes a second"""
    figures = read_figures(results.root)
    rows = [(f"{apart} float{'s' * (apart > 1)}", str(min(4 * apart, 32)), record)
            for apart in (1, 2, 4, 8, 16, 32) if (record := figures.get(f"lanes {apart} floats apart: useful"))]
    return {"heads": ["distance between lanes", "sectors per request", "useful TB/s", "lowest–highest"], "left": (0,),
            "rows": [[name, sectors, digits(one["value"]), spread(one)] for name, sectors, one in rows],
            "records": [one for *_, one in rows], "template": "machine_figures"} if rows else None


@table("machine flight", COMMAND)
def flight(results):
    """the bandwidth that so many bytes in flight on each multiprocessor reach"""
    figures = read_figures(results.root)
    named = [(kb, figures.get(f"{kb} KB on the way a multiprocessor")) for kb in (2, 4, 8, 16, 32, 64)]
    found = [(kb, record) for kb, record in named if record]
    return {"heads": ["KB in flight per multiprocessor", *(str(kb) for kb, _ in found)], "left": (0,),
            "rows": [["TB/s", *(digits(one["value"]) for _, one in found)],
                     ["lowest–highest", *(spread(one) for _, one in found)]],
            "records": [one for _, one in found], "template": "machine_figures"} if found else None


def predict_roof(tensors, mib):
    """(MB moved, µs): the time model, with the constants that the lessons take."""
    megabytes = tensors * mib * MIB / 1e6
    launch, bandwidth, wait = (TAKEN[name] for name in ("events around a launch", "bandwidth: copy of 1024 MiB",
                                                        "latency: device memory"))
    return megabytes, launch + megabytes / bandwidth + wait


@table("roofs", COMMAND)
def roofs(results):
    """what the time model predicts of a copy and a triad, what is measured, and what the model misses"""
    figures = read_figures(results.root)
    rows = []
    for name, tensors in ROOFS:
        for mib in SIZES:
            megabytes, predicted = predict_roof(tensors, mib)
            record = figures.get(f"{name} of {mib} MiB")
            us = record and record["value"]
            rows.append((f"{name}, {mib} MiB", number(megabytes), digits(predicted), digits(us), spread(record),
                         f"{us - predicted:+.1f}".replace("-", "−") if us else MISSING,
                         digits(us and megabytes / us)))
    return {"rows": rows, "records": list(figures.values())} if figures else None
