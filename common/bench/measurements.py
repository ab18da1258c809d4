"""Reads the measurements that the chapters' programs and compare_peers.py write with --json.

A file holds one JSON object a line, and each says all that made it (schema 2), so lines of many runs
may stand in one file, in any order of runs. What is committed is stored as a table (archive.py):

    results = load("notebooks/data/h100.csv")
    record = results.find("bwd02", PROGRESSION)
    record["median_us"], record["device"], record["commit"]

A record is a flat dict, its problem's fields among the others, so `pandas.DataFrame(results.records)`
is a table of everything:

    chapter, direction          or `provider` in place of the chapter, of what peers.py explains
    kind, dtype, rows, cols     the problem; `options` holds what differs from a plain one, as in
                                {"dropout": 0.1, "residual": "same"}; eps and seed, of its inputs
    set                         the problem set that asked for it, or None
    l2                          "cold" or "warm": what a launch found there; None where nobody said
    clock                       how it was timed. 1: one flush before each sample, the same inputs.
                                2: a number of flushes drawn by lot, inputs in turns
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

What gpt_training.py appends is read by load_training: a model's training with the norms that
`training` names and one seed, and

    seed, steps                 of the first weights and the text; how many steps
    order                       of each batch's sequences: "as it is", or "reversed", to see what rounding does
    entropy                     of the text: the least loss that a model can reach
    last                        mean loss of the last tenth of the steps; null where one is not finite
    losses                      of each step, likewise; of the first seed only
    step_us, graph_us           the median step, as it is and in a CUDA graph; of a GPU and the first seed only
    peak_bytes                  the most memory in use, likewise

How far two trainings are apart stands in no record: seeds.py computes it from their last losses.

A line of another schema is skipped, counted and named: it is never guessed what its fields mean.
"""

import functools
import itertools
import json
import math
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import archive

SCHEMA = 2
ROOT = Path(__file__).resolve().parents[2]
PROBLEM_SETS = ROOT / "common/harness/problem_sets.json"
FORMER_IDS = ROOT / "common/library/former_ids.json"
CATALOGUE = Path("notebooks/data/chapters.json")  # what the programs say of themselves: catalogue.py

NARROW_SPACE = "\u202f"  # between groups of three digits; no line breaks there
MISSING = "–"


class DataError(ValueError):
    """Measurements that cannot be used; the message is a sentence for the reader."""

    def _render_traceback_(self):  # all that a notebook shows of it
        return [f"{type(self).__name__}: {self}"]


class MissingData(DataError):
    """There is no such file."""


class MixedBackends(DataError):
    """Emulated times and a GPU's in one file."""


# --- Problems ---

# What a problem may have beside its shape, and what a plain one has. The order is that of the words.
ALWAYS = ("kind", "dtype", "rows", "cols", "eps", "seed")  # of a problem; whatever else there is may be usual
LISTED = json.loads((ROOT / CATALOGUE).read_text(encoding="utf-8"))["options"]
OPTIONS = {option["name"]: option["default"] for option in LISTED if option["name"] not in ALWAYS}
WORDS = {"affine": "no weight or bias", "weight_scale": "weight scale", "recompute_output": "recompute output",
         "second_input": "parallel", "second_affine": "parallel"}  # the programs' --parallel


class Problem(NamedTuple):
    """rows × cols elements of one type, normalised over the columns.

    `options`: (name, value) pairs of what is not as in a plain problem; Problem.of sorts them.
    """

    dtype: str
    rows: int
    cols: int
    kind: str = "layer"
    options: tuple = ()

    @classmethod
    def of(cls, dtype, rows, cols, kind="layer", options=None):
        own = {name: float(f"{value:.6g}") if isinstance(value, float) else value  # a float's 0.1 is no double's
               for name, value in (options or {}).items()}
        return cls(dtype, rows, cols, kind, tuple(sorted((name, value) for name, value in own.items()
                                                         if name not in OPTIONS or value != OPTIONS[name])))

    def __str__(self):
        return f"{self.dtype}, {self.rows} × {self.cols}"

    @property
    def shape(self):
        """The same without its options."""
        return self._replace(options=())

    def with_options(self, **options):
        return Problem.of(*self[:4], {**dict(self.options), **options})

    @property
    def words(self):
        """'dropout 0.1, residual, prenorm': what is not as in a plain problem; empty for one."""
        known = list(OPTIONS)
        own = sorted(self.options, key=lambda pair: known.index(pair[0]) if pair[0] in known else len(known))
        return ", ".join(dict.fromkeys(option_words(*pair) for pair in own))

    @property
    def group(self):
        """How many rows a block, buffers, … were asked for, where that is all that is not plain; else None."""
        return self.options[0][1] if [name for name, _ in self.options] == ["group"] else None


def option_words(name, value):
    if name == "residual":
        return "residual f32" if value == "f32" else "residual"
    word = WORDS.get(name, name)
    if isinstance(value, bool):
        return word
    return f"{word} {value:g}" if isinstance(value, float) else f"{word} {value}"


def problem_of(record):
    """The Problem of a record, or of a row that book.py made of one."""
    return Problem.of(record["dtype"], record["rows"], record["cols"], record.get("kind", "layer"),
                      record.get("options"))


def load_sets(path=PROBLEM_SETS):
    """{name: Problems} of the programs' --set, and of what `make peers` measures.

    A value that is a list stands for each of its values: a product, the last field's values next to
    each other. Raises DataError where the file cannot be read or has a field that nobody knows.
    """
    try:
        sets = json.loads(path.read_text(encoding="utf-8"))
        return {name: tuple(problem for entry in own["problems"] for problem in expand(entry, name, path))
                for name, own in sets.items()}
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{path} holds no problem sets: {error!r}") from error


def expand(entry, name, path):
    """The Problems that one entry of a set stands for."""
    unknown = [key for key in entry if key not in (*Problem._fields[:4], *OPTIONS)]
    if unknown:
        raise DataError(f"{path}: the set '{name}' has an unknown field '{unknown[0]}'; the fields are "
                        f"{', '.join(('kind', 'dtype', 'rows', 'cols', *OPTIONS))}")
    lists = [value if isinstance(value, list) else [value] for value in entry.values()]
    for values in itertools.product(*lists):
        one = dict(zip(entry, values))
        shape = {key: one.pop(key) for key in Problem._fields[:4] if key in one}
        yield Problem.of(**shape, options=one)


SETS = load_sets()
PROGRESSION, = SETS["progression"]
SWEEP, LARGE, WIDE, NARROW, ODD, SMALL = (SETS[name] for name in ("sweep", "large", "wide", "narrow", "odd", "small"))
NOBODYS = (65, 127, 1000, 1023, 4097, 5119, 12289, 50257)  # of the set "widths": no model has them
VERY_WIDE = 65536  # of the same: from here on, likewise
WIDTHS = tuple(problem for problem in SETS["widths"] if problem.cols not in NOBODYS and problem.cols < VERY_WIDE)
GROUPS = tuple(dict.fromkeys(problem.shape for problem in SETS["groups"]))  # each with a group of 1, 2, 4, …

# --- Records ---

NUMBERS = ("median_us", "p10_us", "p90_us", "samples", "cycles", "operator_bytes", "predicted_bytes", "roof_us",
           "roof_bytes", "parts_us", "parts_bytes")
ERRORS = ("max_abs_err", "rel_err")  # null where nothing could be compared
TRAINING_NUMBERS = ("last", "entropy", "step_us", "graph_us", "peak_bytes")
MODEL = ("steps", "width", "layers", "batch", "context")  # of a model in training


@dataclass
class Measurements:
    path: Path
    records: list = field(default_factory=list)  # the newest of each identity
    skipped: int = 0  # lines that could not be read, or are of another schema

    def find(self, name, problem, direction=None, l2="cold", host="hidden"):
        """The newest record of a chapter on one problem, or None. A peer is found by its provider's
        name and the direction, which a chapter's id tells anyway."""
        found = [record for record in self.records
                 if name_of(record) == name and direction in (None, record["direction"])
                 and problem_of(record) == problem and condition(record) == (l2, host)]
        return found[-1] if found else None

    def only(self, l2="cold", host="hidden"):
        """The same without the records that must not stand beside these: of a warm L2, or with the
        host's time in them."""
        return replace(self, records=[record for record in self.records
                                      if condition(record) == (l2, host)])


def name_of(record):
    return record.get("chapter") or record["provider"]


def condition(record):
    """Under which a time was taken; times of two conditions never stand side by side."""
    return record["l2"], record.get("host", "hidden")


def identity(record):
    """What a later record must share with an earlier one to replace it. The clock is no part of it;
    of the peers the run is, for only what one run measured is held against each other."""
    return (record["direction"], name_of(record), problem_of(record), condition(record),
            record.get("run") if "provider" in record else None)


def load(path, backend=None):
    """Reads a file of measurements, of one backend ("cuda" or "cpu") only if one is named.

    Skips lines that are no record, such as the last of an interrupted run, and lines of another
    schema, and counts them on stderr. Raises MissingData, MixedBackends, or DataError where the file
    cannot be read.
    """
    command = f"make bench JSON={path}"
    if Path(path).suffix == ".csv":
        command = f"make bench JSON=mine.jsonl; python3 common/bench/archive.py add {path} mine.jsonl"
    return read(Path(path), parse, identity, backend, command)


def load_training(path, backend=None):
    """Reads a file of gpt_training.py as load() does, but keeps every run: only the losses of one
    run can be held against each other."""
    def identity(record):
        return tuple(record.get(key) for key in ("run", "kind", "dtype", "training", "order", "seed"))

    command = f"python3 common/bench/gpt_training.py --json {path}"
    return read(Path(path), parse_training, identity, backend, command)


def read(path, parse, identity, backend, command):
    """Of records with the same identity the last; `command` writes such a file."""
    try:
        found, skipped = read_records(path, parse)
    except MissingData as error:
        raise MissingData(f"{error}; `{command}` measures it") from None
    newest = {}
    for record in found:
        if backend is None or record.get("backend", backend) == backend:
            newest[identity(record)] = record
    records = list(newest.values())
    if len({record.get("backend") == "cpu" for record in records}) > 1:
        raise MixedBackends(
            f"{path} holds emulated times (backend cpu) and a GPU's; the two must not stand side by "
            'side. Load one of them with backend="cuda" or backend="cpu"')
    return Measurements(path, records, skipped)


def read_records(path, parse, what="record"):
    """(the records of a file, how many lines are none); says on stderr which lines it skips.

    `parse` makes a record of an object of this schema, or None.
    """
    records, broken, foreign = [], [], {}
    for line, entry in read_objects(path):
        if entry is not None and entry.get("schema") != SCHEMA:
            schema = f"schema {json.dumps(entry['schema'])}" if "schema" in entry else "no schema"
            foreign.setdefault(schema, []).append(line)
            continue
        record = entry and parse(entry)
        if record:
            records.append(record)
        else:
            broken.append(line)
    if foreign:
        counts = " and ".join(
            f"{len(lines)} {'record' if len(lines) == 1 else 'records'} of {schema} ({line_numbers(lines)})"
            for schema, lines in foreign.items())
        print(f"{path}: skipped {counts}: this reads schema {SCHEMA}", file=sys.stderr)
    if broken:
        print(f"{path}: skipped {len(broken)} {'line' if len(broken) == 1 else 'lines'} that could not be "
              f"read as a {what} (cut short?): {line_numbers(broken)}", file=sys.stderr)
    return records, len(broken) + sum(map(len, foreign.values()))


def line_numbers(lines, most=5):
    """'line 3', 'lines 3, 5 and 9', 'lines 3, 5, 9, 12, 14 and 7 more'"""
    shown = [str(line) for line in lines[:most]]
    if len(lines) > most:
        shown.append(f"{len(lines) - most} more")
    return f"line{'s' if len(lines) > 1 else ''} {' and '.join(filter(None, (', '.join(shown[:-1]), shown[-1])))}"


def read_objects(path):
    """(line, the object that it holds, or None) of a file; or (row, record) of a table of archive.py."""
    lines = read_lines(path)
    if path.suffix != ".csv" or not lines or lines[0][1].startswith("{"):
        return [(number, parse_object(line)) for number, line in lines]
    try:
        return list(enumerate(archive.read(path), 2))
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


def parse_object(line):
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None


def parse(entry):
    """The record, flat, that an object holds, or None."""
    problem = entry.get("problem")
    named = isinstance(entry.get("chapter") or entry.get("provider"), str) and isinstance(
        entry.get("direction"), str)
    shaped = (isinstance(problem, dict) and all(isinstance(problem.get(key), str) for key in ("kind", "dtype"))
              and all(type(problem.get(size)) is int for size in ("rows", "cols"))
              and isinstance(problem.get("options", {}), dict)
              and all(isinstance(value, (bool, int, float, str)) for value in problem.get("options", {}).values()))
    numeric = (all(type(entry[key]) in (int, float) for key in NUMBERS if key in entry)
               and all(type(entry[key]) in (int, float, type(None)) for key in ERRORS if key in entry))
    whole = all(there not in entry or needed in entry  # no time without what it is held against
                for there, needed in (("median_us", "operator_bytes"), ("roof_us", "roof_bytes")))
    if not (named and shaped and numeric and whole and entry.get("l2", "") in ("cold", "warm", None)):
        return None
    return {**with_current_ids({key: value for key, value in entry.items() if key != "problem"}), **problem}


@functools.cache
def former_ids():
    """The commits of former_ids.json, and the library's kernel by what was then a chapter's id."""
    former = json.loads(FORMER_IDS.read_text(encoding="utf-8"))
    return frozenset(former["commits"]), {each["id"]: each["records"] for each in former["kernels"]}


def with_current_ids(record):
    """A record with the ids that its kernels have today; a kernel that is gone is called 'former fwd11'."""
    commits, kernels = former_ids()
    if record.get("commit") not in commits:
        return record
    return {**record, **{key: kernels[record[key]] or f"former {record[key]}"
                         for key in ("chapter", "provider", "chosen") if record.get(key) in kernels}}


def parse_training(entry):
    """The same for a file of gpt_training.py."""
    losses = entry.get("losses", [])
    named = all(isinstance(entry.get(key), str) for key in ("training", "order", "kind", "dtype"))
    shaped = all(type(entry.get(size)) is int for size in ("seed", *MODEL)) and isinstance(losses, list)
    numeric = shaped and "last" in entry and all(type(value) in (int, float, type(None)) for value in
                                                 [*losses, *(entry.get(key) for key in TRAINING_NUMBERS)])
    return entry if named and numeric else None


def size_of(problem):
    """Bytes of one tensor of rows × cols."""
    return problem.rows * problem.cols * {"f32": 4}.get(problem.dtype, 2)


def mib(problem):
    """Of one tensor; its rows are whole, so that it may lack a part of the last."""
    return -(-size_of(problem) // (8 << 20)) * 8


def geometric_mean(ratios):
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def gbps(record):
    """1e9 bytes per second of the bytes that the operator must move."""
    return record["operator_bytes"] / record["median_us"] / 1e3


def roof_gbps(record):
    """The same of the copy or triad; None where it was not measured."""
    return record["roof_bytes"] / record["roof_us"] / 1e3 if record.get("roof_us") else None


# --- Numbers for a reader ---


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
