"""One record of a measurement, and the one reader of files of them.

A file holds one JSON object a line, each complete in itself (schema 2), so lines of many runs may follow in any order;
what is committed is stored as a table (store.py). A record is a flat dict that has its problem's fields too, so
`pandas.DataFrame(results.records)` is a table of everything:

    results = load("notebooks/data/h100.csv")
    record = results.find("bwd02", PROGRESSION)
    record["median_us"], record["device"], record["commit"]

    chapter, direction          or `provider` in place of the chapter, of what peers.py explains
    kind, dtype, rows, cols     the problem; `options` holds what differs from a plain one, as in
                                {"dropout": 0.1, "residual": "same"}; eps and seed, of its inputs
    set                         the problem set that asked for it, or None
    l2                          "cold" or "warm": what a launch found there; None where it is unknown
    clock                       how it was timed. 1: one flush before each sample, the same inputs.
                                2: a random number of flushes, several inputs in turn
    device, driver, cuda, backend, date, commit
    passed, error               false where the result was wrong, or the launch failed, with the reason
    max_abs_err, rel_err        of the worst output, against the double-precision reference
    distances                   relative distances that have no limit, by name
    median_us, p10_us, p90_us   microseconds of one launch
    samples, cut_short          launches timed; true where the time budget ended the sampling
    cycles                      elapsed SM cycles of one launch, median
    operator_bytes              what any implementation must move
    predicted_bytes             bytes to and from device memory that the chapter predicts
    roof_us, roof_bytes         a copy or a triad of the tensors' size in the same run, and what it moves
    parts_us, parts_bytes       of a fused chapter: median and predicted bytes of what it fuses, as
                                kernels of their own, one after another

What gpt_training.py appends is read by load_training: a model's training with the norms that `training` names and one
seed, and

    seed, steps                 of the first weights and the text; how many steps
    order                       of each batch's sequences: "as it is", or "reversed", to see what rounding does
    entropy                     of the text: the least loss that a model can reach
    last                        mean loss of the last tenth of the steps; null where one is not finite
    losses                      of each step, of the first seed only
    step_us, graph_us           the median step, as it is and in a CUDA graph; of a GPU and the first seed only
    peak_bytes                  the most memory in use, of the same
"""

import functools
import json
import math
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

from common.results import store
from common.results.problems import ROOT, DataError, problem_of

SCHEMA = 2
FORMER_IDS = ROOT / "common/library/former_ids.json"
NARROW_SPACE = "\u202f"  # between groups of three digits; no line breaks there
MISSING = "–"

NUMBER, OR_NULL = (int, float), (int, float, type(None))


def fields(types, names):
    return dict.fromkeys(names.split(), types)


# The types of fields: those that a record must have, and those of the others that are read as numbers.
RECORD = fields((str,), "direction") | fields((dict,), "problem")
TIMED = (fields(NUMBER, "median_us p10_us p90_us samples cycles operator_bytes predicted_bytes")
         | fields(NUMBER, "roof_us roof_bytes parts_us parts_bytes") | fields(OR_NULL, "max_abs_err rel_err"))
PROBLEM = fields((str,), "kind dtype") | fields((int,), "rows cols")
MODEL = ("steps", "width", "layers", "batch", "context")  # of a model in training
TRAINING = (fields((str,), "training order kind dtype") | dict.fromkeys(("seed", *MODEL), (int,))
            | fields(OR_NULL, "last"))
TRAINED = fields(OR_NULL, "entropy step_us graph_us peak_bytes") | fields((list,), "losses")


class MissingData(DataError):
    """There is no such file."""


class MixedBackends(DataError):
    """Emulated times and a GPU's in one file."""


@dataclass
class Measurements:
    path: Path
    records: list = field(default_factory=list)  # the newest of each identity
    skipped: int = 0  # lines that could not be read, or are of another schema

    def find(self, name, problem, direction=None, l2="cold", host="hidden"):
        """The newest record of a chapter on one problem, or None. A peer is found by its provider's name and the
        direction; a chapter's id implies its direction."""
        found = [record for record in self.records
                 if name_of(record) == name and direction in (None, record["direction"])
                 and problem_of(record) == problem and condition(record) == (l2, host)]
        return found[-1] if found else None

    def only(self, l2="cold", host="hidden"):
        """The same without the records of another condition: of a warm L2, or with the host's time in them."""
        return replace(self, records=[record for record in self.records if condition(record) == (l2, host)])


def name_of(record):
    return record.get("chapter") or record["provider"]


def condition(record):
    """Under which a time was taken; times of two conditions are never compared."""
    return record["l2"], record.get("host", "hidden")


def is_right(record):
    return record.get("passed", True) and "median_us" in record


def identity(record):
    """What a later record must share with an earlier one to replace it. The clock is not part of it; a peer's run is,
    because ratios are of times of one run."""
    return (record["direction"], name_of(record), problem_of(record), condition(record),
            record.get("run") if "provider" in record else None)


# --- Reading ---


def load(path, backend=None):
    """Reads a file of measurements, of one backend ("cuda" or "cpu") only if one is named.

    Skips lines that hold no record, such as the last of an interrupted run, and lines of another schema, and counts
    them on stderr. Raises MissingData, MixedBackends, or DataError where the file cannot be read.
    """
    command = f"make bench JSON={path}"
    if Path(path).suffix == ".csv":
        command = f"make bench JSON=mine.jsonl; python3 -m common.results.archive add {path} mine.jsonl"
    return newest_of_each(Path(path), parse, identity, backend, command)


def load_training(path, backend=None):
    """Reads a file of gpt_training.py as load() does, but keeps every run: only losses of one run are compared."""
    def identity(record):
        return tuple(record.get(key) for key in ("run", "kind", "dtype", "training", "order", "seed"))

    return newest_of_each(Path(path), parse_training, identity, backend,
                          f"python3 -m common.campaign.gpt_training --json {path}")


def newest_of_each(path, parse, identity, backend, command):
    """Of records with the same identity the last; `command` writes such a file."""
    try:
        found, skipped = read_records(path, parse)
    except MissingData as error:
        raise MissingData(f"{error}; `{command}` measures it") from None
    newest = {identity(record): record for record in found
              if backend is None or record.get("backend", backend) == backend}
    records = list(newest.values())
    if len({record.get("backend") == "cpu" for record in records}) > 1:
        raise MixedBackends(f"{path} holds both emulated times (backend cpu) and a GPU's, which cannot be compared. "
                            'Load one of them with backend="cuda" or backend="cpu"')
    return Measurements(path, records, skipped)


def read_records(path, parse, what="record", schema=SCHEMA):
    """(the records of a file, how many lines were skipped); says on stderr which, and why.

    `parse` makes a record of an object of this schema, or None. A schema of None: the file's objects have none.
    """
    records, skipped = [], {}
    for line, entry in read_objects(path):
        if entry is not None and entry.get("schema") != schema:
            other = f"schema {json.dumps(entry['schema'])}" if "schema" in entry else "no schema"
            skipped.setdefault(f"of {other}; this reads schema {schema}", []).append(line)
        elif record := entry and parse(entry):
            records.append(record)
        else:
            skipped.setdefault(f"that could not be read as a {what} (cut short?)", []).append(line)
    for reason, lines in skipped.items():
        shown = ", ".join(map(str, lines[:5])) + (f" and {len(lines) - 5} more" if len(lines) > 5 else "")
        s = "s" * (len(lines) > 1)
        print(f"{path}: skipped {len(lines)} line{s} {reason}: line{s} {shown}", file=sys.stderr)
    return records, sum(map(len, skipped.values()))


def read_objects(path):
    """(line, the object that it holds, or None) of a file; or (row, record) of a committed table."""
    lines = read_lines(path)
    if path.suffix != ".csv" or not lines or lines[0][1].startswith("{"):
        found = [(number, store.unpack(line)) for number, line in lines]
        return [(number, entry if isinstance(entry, dict) else None) for number, entry in found]
    try:
        return list(enumerate(store.read(path), 2))
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path}: {error}") from error


def read_lines(path):
    """(number, text) of the lines of a file that are not empty."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        raise MissingData(f"{path} is not there yet") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    return [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def has_types(entry, required, types=()):
    """Whether an object has the required fields, and these and those of `types` that it has are of these types."""
    return all(key in entry for key in required) and all(
        type(entry[key]) in own for key, own in (required | dict(types)).items() if key in entry)


def parse(entry):
    """The record, flat, that an object holds, or None."""
    problem = entry.get("problem")
    whole = all(there not in entry or needed in entry  # a time needs what it is compared with
                for there, needed in (("median_us", "operator_bytes"), ("roof_us", "roof_bytes")))
    if not (isinstance(entry.get("chapter") or entry.get("provider"), str) and whole
            and has_types(entry, RECORD, TIMED) and has_types(problem, PROBLEM, {"options": (dict,)})
            and entry.get("l2", "") in ("cold", "warm", None)
            and all(isinstance(value, (bool, int, float, str)) for value in problem.get("options", {}).values())):
        return None
    return {**with_current_ids({key: value for key, value in entry.items() if key != "problem"}), **problem}


def parse_training(entry):
    """The same for a file of gpt_training.py."""
    right = has_types(entry, TRAINING, TRAINED) and all(type(loss) in OR_NULL for loss in entry.get("losses", []))
    return entry if right else None


@functools.cache
def former_ids():
    """The commits of former_ids.json, and the library's kernel by what was then a chapter's id."""
    former = json.loads(FORMER_IDS.read_text(encoding="utf-8"))
    return frozenset(former["commits"]), {each["id"]: each["records"] for each in former["kernels"]}


def with_current_ids(record):
    """A record with the ids that its kernels have today; a removed kernel is called 'former fwd11'."""
    commits, kernels = former_ids()
    if record.get("commit") not in commits:
        return record
    return {**record, **{key: kernels[record[key]] or f"former {record[key]}"
                         for key in ("chapter", "provider", "chosen") if record.get(key) in kernels}}


# --- Numbers for a reader ---


def geometric_mean(ratios):
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def gbps(record):
    """1e9 bytes per second of the bytes that the operator must move."""
    return record["operator_bytes"] / record["median_us"] / 1e3


def roof_gbps(record):
    """The same of the copy or triad; None where it was not measured."""
    return record["roof_bytes"] / record["roof_us"] / 1e3 if record.get("roof_us") else None


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


def provenance(records):
    """'NVIDIA H100 80GB HBM3, driver 580.159.04, CUDA 13.0, 2026-11-21, commit 1a2b3c4'"""
    parts = []
    told = [{**record, "torch": record.get("packages", {}).get("torch")} for record in records]
    for key, word in (("device", ""), ("driver", "driver "), ("cuda", "CUDA "), ("torch", "PyTorch "), ("date", ""),
                      ("commit", "commit ")):
        values = sorted({str(record[key]) for record in told if record.get(key)})
        several = key == "commit" and len(values) > 1
        parts += [(word.replace(" ", "s ") if several else word) + " and ".join(values)] if values else []
    return ", ".join(parts)
