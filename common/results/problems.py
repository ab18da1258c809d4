"""What is measured: a problem's shape, type and options, and the named sets of problems.

The sets are those of common/harness/problem_sets.json, which the programs read as well; the options and their defaults
those that the programs list in notebooks/data/chapters.json.
"""

import itertools
import json
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PROBLEM_SETS = ROOT / "common/harness/problem_sets.json"
CATALOGUE = Path("notebooks/data/chapters.json")  # what the programs say of themselves: chapters.py

SHAPE = ("dtype", "rows", "cols", "kind")
INPUTS = ("eps", "seed")
LISTED = json.loads((ROOT / CATALOGUE).read_text(encoding="utf-8"))["options"]
OPTIONS = {option["name"]: option["default"] for option in LISTED if option["name"] not in (*SHAPE, *INPUTS)}
WORDS = {"affine": "no weight or bias", "weight_scale": "weight scale", "recompute_output": "recompute output",
         "second_input": "parallel", "second_affine": "parallel"}  # the programs' --parallel
BYTES = {"f32": 4, "f16": 2, "bf16": 2}


class DataError(ValueError):
    """Measurements that cannot be used; the message is a sentence for the reader."""

    def _render_traceback_(self):  # all that a notebook shows of it
        return [f"{type(self).__name__}: {self}"]


class Problem(NamedTuple):
    """rows × cols elements of one type, normalised over the columns.

    `options`: sorted (name, value) pairs that differ from OPTIONS; Problem.of makes them.
    """

    dtype: str
    rows: int
    cols: int
    kind: str = "layer"
    options: tuple = ()

    @classmethod
    def of(cls, dtype, rows, cols, kind="layer", options=None):
        own = {name: float(f"{value:.6g}") if isinstance(value, float) else value  # 0.1 of a float and of a double
               for name, value in (options or {}).items()}
        return cls(dtype, rows, cols, kind, tuple(sorted((name, value) for name, value in own.items()
                                                         if name not in OPTIONS or value != OPTIONS[name])))

    def __str__(self):
        return f"{self.dtype}, {self.rows} × {self.cols}"

    @property
    def shape(self):
        """The same problem without its options."""
        return self._replace(options=())

    def with_options(self, **options):
        return Problem.of(*self[:4], {**dict(self.options), **options})

    @property
    def words(self):
        """'dropout 0.1, residual, prenorm': the options; empty for a plain problem."""
        known = list(OPTIONS)
        own = sorted(self.options, key=lambda pair: known.index(pair[0]) if pair[0] in known else len(known))
        return ", ".join(dict.fromkeys(option_words(*pair) for pair in own))

    @property
    def group(self):
        """The option group (rows a block, buffers, …) where it is the only option; else None."""
        return self.options[0][1] if [name for name, _ in self.options] == ["group"] else None


def option_words(name, value):
    if name == "residual":
        return "residual f32" if value == "f32" else "residual"
    word = WORDS.get(name, name)
    return word if isinstance(value, bool) else f"{word} {value:g}" if isinstance(value, float) else f"{word} {value}"


def problem_of(record):
    """The Problem of a record, or of a row made from one."""
    return Problem.of(record["dtype"], record["rows"], record["cols"], record.get("kind", "layer"),
                      record.get("options"))


def size_of(problem):
    """Bytes of one tensor of rows × cols."""
    return problem.rows * problem.cols * BYTES.get(problem.dtype, 2)


def mib(problem):
    """MiB of one tensor, to the next multiple of 8: a set's tensors hold whole rows only."""
    return -(-size_of(problem) // (8 << 20)) * 8


def load_sets(path=PROBLEM_SETS):
    """{name: Problems} of the programs' --set, and of what `make peers` measures. Raises DataError."""
    try:
        sets = json.loads(path.read_text(encoding="utf-8"))
        return {name: tuple(problem for entry in own["problems"] for problem in expand(entry, name))
                for name, own in sets.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{path} holds no problem sets: {error}") from error


def expand(entry, name):
    """The Problems of one entry. A list stands for each of its values: a product, the last field varies fastest."""
    fields = ("kind", *SHAPE[:3], *OPTIONS)
    for key in entry:
        if key not in fields:
            raise DataError(f"the set '{name}' has an unknown field '{key}'; the fields are {', '.join(fields)}")
    for values in itertools.product(*(value if isinstance(value, list) else [value] for value in entry.values())):
        one = dict(zip(entry, values))
        yield Problem.of(**{key: one.pop(key) for key in SHAPE if key in one}, options=one)


SETS = load_sets()
PROGRESSION, = SETS["progression"]
SWEEP, LARGE, WIDE, NARROW, ODD, SMALL = (SETS[name] for name in ("sweep", "large", "wide", "narrow", "odd", "small"))
GROUPS = tuple(dict.fromkeys(problem.shape for problem in SETS["groups"]))  # each with a group of 1, 2, 4, …
UNUSUAL_WIDTHS = (65, 127, 1000, 1023, 4097, 5119, 12289, 50257)  # of the set "widths": no model has these
WIDEST = 65536  # nor those from here on
WIDTHS = tuple(one for one in SETS["widths"] if one.cols not in UNUSUAL_WIDTHS and one.cols < WIDEST)
