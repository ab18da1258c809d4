"""Reads the measurements that the chapters' programs write with --json.

A file holds one JSON object a line. A header (device, driver, cuda, backend, date, commit) opens a
run, the records of that run follow, and a file may hold several runs:

    results = load("notebooks/data/h100.jsonl")
    record = results.find("bwd02", *PROGRESSION)
    record["median_us"], record["device"], record["commit"]

A record is a plain dict, so `pandas.DataFrame(results.records)` is a table of everything. Its units:

    median_us, p10_us, p90_us   microseconds of one launch with a cold L2
    samples, cut_short          launches timed; true where the time budget ended the sampling
    cycles                      elapsed SM cycles of one launch, median
    gbps, roof_gbps             1e9 bytes per second: the operator's bytes (forward 2·M·N, backward
                                3·M·N elements) over its median, and over that of a copy or a triad
    predicted_bytes             bytes to and from device memory that the chapter predicts
    parts_us, parts_bytes       of a fused chapter: median and predicted bytes of what it fuses, as
                                kernels of their own, one after another
    max_abs_err, rel_err        of the worst output, against the double-precision reference

What gpt_training.py appends is read by load_training: a model's training with the norms that
`training` names, and

    losses, entropy             of each step (null where not finite), and the least that a model can reach
    order                       of a batch's sums: "as it is", or changed, to see what rounding does
    distance, noise, agrees     from torch's losses; what torch's own differ by; whether that explains it
    step_us, graph_us           the median step, as it is and as one CUDA graph; of a GPU only
    peak_bytes                  the most memory in use, likewise
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

NARROW_SPACE = "\u202f"  # between groups of three digits; no line breaks there
MISSING = "–"


class DataError(Exception):
    """Measurements that cannot be used; the message is a sentence for the reader."""

    def _render_traceback_(self):  # all that a notebook shows of it
        return [f"{type(self).__name__}: {self}"]


class MissingData(DataError):
    """There is no such file."""


class MixedBackends(DataError):
    """Emulated times and a GPU's in one file."""


class Problem(NamedTuple):
    """rows × cols elements of one type, normalised over the columns."""

    dtype: str
    rows: int
    cols: int

    def __str__(self):
        return f"{self.dtype}, {self.rows} × {self.cols}"

    @property
    def tensor_bytes(self):
        return self.rows * self.cols * (4 if self.dtype == "f32" else 2)


# The problem sets of the programs' --set.
PROGRESSION = Problem("f32", 16 * 64, 2048)
SWEEP = tuple(Problem("f16", 4096, 512 * i) for i in range(2, 32))
LARGE = tuple(Problem("bf16", 131072, cols) for cols in (1024, 2048, 4096, 8192))
WIDE = (Problem("bf16", 8192, 4096),
        *(Problem(dtype, elements // cols, cols) for cols in (4096, 16384, 65536, 262144)
          for dtype, elements in (("bf16", 2**28), ("f32", 2**27))))
GROUPS = (PROGRESSION, Problem("bf16", 16384, 4096))  # each with --group 1, 2, 4, ... 512

NUMBERS = ("median_us", "p10_us", "p90_us", "samples", "cycles", "gbps", "roof_gbps",
           "predicted_bytes", "parts_us", "parts_bytes", "max_abs_err", "rel_err")
TRAINING_NUMBERS = ("entropy", "distance", "noise", "step_us", "graph_us", "peak_bytes")
AGREES = 3  # times torch's own noise: so far from torch's losses others agree with them
MODEL = ("width", "layers", "batch", "context")  # of a model in training


@dataclass
class Measurements:
    path: Path
    runs: list  # the header of each run
    records: list  # the newest record of each problem, with its run's header fields
    skipped: int  # lines that could not be read

    def find(self, name, dtype, rows, cols, kind="layer", affine=True, direction=None, variant=""):
        """The record of a chapter on one problem, or None. A peer is found by its provider's name
        and the direction, which a chapter's id tells anyway."""
        for record in self.records:
            if direction in (None, record.get("direction")) and (
                    identity(record)[1:] == (name, kind, dtype, rows, cols, affine, variant)):
                return record
        return None


def identity(record):
    """What a later record must share with an earlier one to replace it."""
    return (record.get("direction"), record.get("chapter") or record["provider"],
            record.get("kind", "layer"), record["dtype"], record["rows"], record["cols"],
            record.get("affine", True), record.get("variant", ""))


def load(path, backend=None):
    """Reads a file of measurements, of one backend ("cuda" or "cpu") only if one is named.

    Skips lines that are no record, such as the last of an interrupted run, and counts them on
    stderr. Raises MissingData, MixedBackends, or DataError where the file cannot be read.
    """
    return read(Path(path), parse, identity, backend, f"make bench JSON={path}")


def load_training(path, backend=None):
    """Reads a file of gpt_training.py as load() does, but keeps every run: only the losses of one
    run can be held against each other."""
    def identity(record):
        return tuple(record.get(key) for key in ("run", "kind", "dtype", "training", "order"))

    command = f"python3 common/bench/gpt_training.py --json {path}"
    return read(Path(path), parse_training, identity, backend, command)


def read(path, parse, identity, backend, command):
    """Of entries with the same identity the last; `command` writes such a file."""
    runs, newest, skipped = [], {}, 0
    try:
        lines = read_lines(path)
    except MissingData as error:
        raise MissingData(f"{error}; `{command}` measures it") from None
    for line in lines:
        entry = parse(line)
        if entry is None:
            skipped += 1
        elif is_header(entry):
            runs.append(entry)
        else:
            record = {**(runs[-1] if runs else {}), **entry}
            if backend is None or record.get("backend", backend) == backend:
                newest[identity(record)] = record
    if skipped:
        print(f"{path}: skipped {skipped} {'line' if skipped == 1 else 'lines'} that could not be "
              "read as a record (cut short?)", file=sys.stderr)
    records = list(newest.values())
    if len({record.get("backend") == "cpu" for record in records}) > 1:
        raise MixedBackends(
            f"{path} holds emulated times (backend cpu) and a GPU's; the two must not stand side by "
            'side. Load one of them with backend="cuda" or backend="cpu"')
    return Measurements(path, runs, records, skipped)


def read_lines(path):
    """The lines of a text file that are not empty."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        raise MissingData(f"{path} is not there yet") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    return [line for line in text.split("\n") if line.strip()]


def is_header(entry):
    return "device" in entry and "chapter" not in entry and "provider" not in entry


def parse_object(line):
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None


def parse(line):
    """The header or the record that a line holds, or None."""
    entry = parse_object(line)
    if entry is None or is_header(entry):
        return entry
    named = isinstance(entry.get("chapter") or entry.get("provider"), str)
    shaped = isinstance(entry.get("dtype"), str) and all(
        type(entry.get(size)) is int for size in ("rows", "cols"))
    numeric = all(type(entry[key]) in (int, float) for key in NUMBERS if key in entry)
    return entry if named and shaped and numeric else None


def parse_training(line):
    """The same for a file of gpt_training.py."""
    entry = parse_object(line)
    if entry is None or is_header(entry):
        return entry
    losses = entry.get("losses")
    named = all(isinstance(entry.get(key), str) for key in ("training", "order", "kind", "dtype"))
    shaped = all(type(entry.get(size)) is int for size in MODEL) and isinstance(losses, list) and losses
    numeric = shaped and all(type(value) in (int, float, type(None)) for value in
                             [*losses, *(entry.get(key) for key in TRAINING_NUMBERS)])
    return entry if named and numeric else None


def number(value, digits=4):
    """Three or four significant digits: 1330.69 -> '1 331', 12.861 -> '12.86', 0 -> '0'."""
    if value is None:
        return MISSING
    whole = len(str(int(abs(value)))) if abs(value) >= 1 else 1
    decimals = 0 if float(value).is_integer() and abs(value) < 1 else max(0, digits - whole)
    return f"{value:,.{decimals}f}".replace(",", NARROW_SPACE)


def count(value):
    """Whole numbers in full: 7482424 -> '7 482 424'."""
    return MISSING if value is None else f"{value:,.0f}".replace(",", NARROW_SPACE)
