"""What Nsight Compute counted of a chapter: records of common/bench/profile_chapter.py, as rows of a table."""

from pathlib import Path
from typing import NamedTuple

from common.results import records as measurements
from common.results.problems import problem_of
from common.results.records import MISSING, count, number


class Metric(NamedTuple):
    name: str  # Nsight Compute's
    label: str
    unit: str  # as shown; the JSON records hold bytes and nanoseconds
    words: str


METRICS = (
    Metric("dram__bytes_read.sum", "device memory read", "MB", "from a cold L2"),
    Metric("dram__bytes_write.sum", "device memory written", "MB",
           "only what left L2 before the kernel ended; the rest still waits there"),
    Metric("lts__t_sectors_op_read.sum", "L2 sectors read", "",
           "32 bytes each; one that crosses between the two halves of an H100's L2 counts again"),
    Metric("lts__t_sectors_op_write.sum", "L2 sectors written", "", "counted in the same way"),
    Metric("lts__t_sectors_op_red.sum", "L2 sectors reduced", "",
           "atomic additions, done in L2; counted in the same way"),
    Metric("lts__t_requests_op_red.sum", "L2 reduction requests", "", "up to four sectors each"),
    Metric("l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",
           "sectors per load request", "",
           "4 where 32 lanes read 128 neighbouring bytes, 32 where each reads elsewhere"),
    Metric("l1tex__t_sector_hit_rate.pct", "L1 hit rate", "%", "sectors that L1 already held"),
    Metric("lts__t_sector_hit_rate.pct", "L2 hit rate", "%", "sectors that L2 already held"),
    Metric("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", "shared-memory bank conflicts", "",
           "extra passes, because lanes met in a bank"),
    Metric("launch__registers_per_thread", "registers per thread", "",
           "32 or fewer leave room for all 64 warps of an SM"),
    Metric("sm__warps_active.avg.per_cycle_active", "warps active per SM", "",
           "of 64, while the SM had any"),
    Metric("sm__cycles_elapsed.max", "SM cycles", "", "elapsed, from the launch's start to its end"),
    Metric("gpu__time_duration.sum", "duration", "µs", "of the kernel alone; the medians include the launch"),
)

# Why a warp could not issue: cycles that it waits for this reason between two instructions.
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
STALLS = {
    "long_scoreboard": "device memory, L2, L1",
    "short_scoreboard": "shared memory, shuffles",
    "lg_throttle": "full queue to memory",
    "mio_throttle": "full queue to shared memory",
    "barrier": "__syncthreads",
    "membar": "__threadfence",
    "math_pipe_throttle": "busy arithmetic",
    "wait": "fixed latency",
    "drain": "stores at the end",
}


def load_profiles(path):
    """{(chapter, Problem): [record, …]}: a chapter's launches in the newest run of its problem.

    Skips and counts lines as measurements.load does. Raises MissingData and DataError.
    """
    profiles = {}
    for record in measurements.read_records(Path(path), parse_profile, "profile")[0]:
        launches = profiles.setdefault((record["chapter"], problem_of(record)), [])
        if launches and launches[0].get("run") != record.get("run"):
            launches.clear()
        launches.append(record)
    return profiles


def parse_profile(entry):
    record = measurements.parse(entry)
    return record if record and "chapter" in record and isinstance(record.get("metrics"), dict) else None


def show(metric, launch):
    value = launch["metrics"].get(metric.name)
    if value is None:
        return MISSING
    if metric.unit == "MB":
        return number(value / 1e6) + " MB"
    if metric.unit == "µs":
        return number(value / 1e3) + " µs"
    if metric.unit == "%":
        return f"{value:.1f} %"
    if metric.name.endswith(".sum") or metric.name.startswith(("launch__", "sm__cycles")):
        return count(value)
    return number(value, 3)


def show_wait(launch, rank):
    """What a warp waits for longest (rank 0), second longest (1), and for how many cycles."""
    waits = {words: launch["metrics"].get(STALL.format(stall), 0) for stall, words in STALLS.items()}
    words = sorted(waits, key=waits.get, reverse=True)[rank]
    return f"{words}: {waits[words]:.1f}" if waits[words] >= 0.05 else MISSING


def profile_rows(launches, predicted_bytes=None):
    """Rows of text for a chapter's launches: [label, value of each launch …, words]."""
    longest = max(range(len(launches)),
                  key=lambda i: launches[i]["metrics"].get("gpu__time_duration.sum", 0))
    predicted = [""] * len(launches)
    predicted[longest] = (MISSING if predicted_bytes is None else number(predicted_bytes / 1e6) + " MB")
    rows = [[metric.label, *(show(metric, launch) for launch in launches), metric.words]
            for metric in METRICS]
    rows.insert(2, ["device memory, predicted", *predicted, "read and written, by the whole chapter"])
    rows.append(["longest wait of a warp", *(show_wait(launch, 0) for launch in launches),
                 "what for: cycles of it from one instruction to the next"])
    rows.append(["second longest", *(show_wait(launch, 1) for launch in launches), "the same, for the next cause"])
    return rows
