#!/usr/bin/env python3
"""Holds the measured times of the widths against the targets of this project.

    python3 -m common.campaign.targets                # of notebooks/data/peers*.csv
    python3 -m common.campaign.targets FILE …         # of these files, which compare_peers.py wrote
    python3 -m common.campaign.targets --all FILE …   # names every problem that misses a target, not the worst eight

For each GPU a line a target: met or missed, by how much, and where. Ours, the fastest peer and the roof are those of
the tables (peers.side_by_side and peers.pairs); a GPU without any of these problems is named alone. The share of the
roof is of the time that a copy (forward) or a triad (backward) takes for the bytes that the operator must move. Exit
status 0 where every target is met at every problem, 1 where one is missed or not measured everywhere, 2 where the files
cannot be used.
"""

import argparse
import itertools
import sys
from pathlib import Path
from typing import NamedTuple

from common.results.peers import DISPATCH, is_ours, nearest, newest_run, own_choice, pairs, side_by_side
from common.results import records as measurements
from common.results.chapters import KINDS
from common.results.device import PEERS
from common.results.problems import ROOT, SETS, WIDTHS, DataError, Problem, mib, problem_of
from common.results.records import MISSING, geometric_mean, is_right, provenance

LARGEST = Problem.of("f32", 512, 262144)  # 512 MiB, of the set "wide"


class Standing(NamedTuple):
    """Ours on one problem, in the newest run that has it, beside the roof; and ours and the roof over the fastest peer,
    in the run that has both."""

    direction: str
    problem: Problem
    us: float
    roof_us: float | None  # for the operator's bytes
    of_peer: float | None
    roof_of_peer: float | None

    @property
    def share(self):
        """Percent of the roof."""
        return self.roof_us and 100 * self.roof_us / self.us

    @property
    def times_roof(self):
        return self.roof_us and self.us / self.roof_us


def standings(records):
    """{(direction, problem): Standing} of one device's records."""
    found = {}
    for record in records:
        if "provider" in record and is_right(record) and measurements.condition(record) == ("cold", "hidden"):
            found.setdefault((record["direction"], problem_of(record)), []).append(record)
    made = {key: standing(*key, own) for key, own in found.items()}
    return {key: one for key, one in made.items() if one}


def standing(direction, problem, records):
    records = [record for record in records if record["provider"] not in DISPATCH[1:]]
    together = side_by_side(records)
    ours = newest_run([record for record in records if is_ours(record["provider"])])
    if not ours:
        return None
    own = own_choice(ours)
    beside, peer = nearest(pairs(together, records)) if together else (None, None)
    of_peer = roof_of_peer = None
    if peer:
        of_peer = beside["median_us"] / peer["median_us"]
        roof_of_peer = roof_of(beside) and roof_of(beside) / peer["median_us"]
    return Standing(direction, problem, own["median_us"], roof_of(own), of_peer, roof_of_peer)


def roof_of(record):
    """The roof's time for the bytes that the operator must move, in microseconds."""
    return record["roof_us"] * record["operator_bytes"] / record["roof_bytes"] if record.get("roof_us") else None


# --- The targets ---


def in_sets(*sizes):
    """Of the widths' sets those with so many MiB a tensor."""
    problems = [problem for name in ("widths", "smaller") for problem in SETS[name]]
    return [problem for problem in problems if mib(problem) in sizes]


class Target(NamedTuple):
    words: str
    direction: str
    problems: list
    value: str  # a field of a Standing
    limit: float
    at_least: bool = False  # else at most
    is_mean: bool = False  # the geometric mean over the problems is held against the limit, else each problem's value
    of_roof: str = ""  # of a mean: the field with what a kernel would have at the roof; no limit below it can be met

    def __str__(self):
        return f"{self.direction}, {self.words}"

    @property
    def bound(self):
        return f"{'least' if self.at_least else 'most'} {self.limit:g}"

    def missed_by(self, value):
        """Above 0 where it is missed."""
        return self.limit - value if self.at_least else value - self.limit


def at(sizes, low=1, high=1 << 30, more=lambda cols: True):
    return [problem for problem in in_sets(*sizes) if low <= problem.cols <= high and more(problem.cols)]


def thousands(cols):
    return cols % 1024 == 0 and cols <= 8192


def of_list(kind, dtype):
    """The widths that models have."""
    return [problem for problem in WIDTHS if (problem.kind, problem.dtype) == (kind, dtype)]


def targets():
    middle, round_widths = at([128], 256, 16384), at([128], more=thousands)
    outside = [*at([128], high=255), *at([128], low=16385)]
    found = [
        Target("128 MiB, from 256 columns on: % of the copy", "forward", at([128], low=256), "share", 97, True),
        Target("128 MiB, below 256 columns: % of the copy", "forward", at([128], high=255), "share", 93, True),
        Target("128 MiB: ours / fastest peer", "forward", at([128]), "of_peer", 1.01),
        Target("8 MiB: ours / fastest peer", "forward", at([8]), "of_peer", 1.02),
        Target("128 MiB, 256 to 16384 columns: % of the triad", "backward", middle, "share", 93, True),
        Target("128 MiB, below 256 and beyond 16384 columns: % of the triad", "backward", outside, "share", 90, True),
        Target("128 MiB, multiples of 1024 up to 8192: % of the triad", "backward", round_widths, "share", 95, True),
        Target("64 MiB: % of the triad", "backward", at([64]), "share", 90, True),
        Target("128 MiB: ours / fastest peer", "backward", at([128]), "of_peer", 1.0),
        Target("64 MiB: ours / fastest peer", "backward", at([64]), "of_peer", 1.0),
        Target("8 MiB: ours / fastest peer", "backward", at([8]), "of_peer", 1.0),
        Target("8 MiB: ours / triad", "backward", at([8]), "times_roof", 1.30),
        Target(f"{LARGEST}: % of the triad", "backward", [LARGEST], "share", 88, True)]
    for dtype in ("bf16", "f32"):
        found += [Target(f"{dtype}, {KINDS['layer']}, the list at 128 MiB: mean of ours / fastest peer", "backward",
                         of_list("layer", dtype), "of_peer", 0.75, is_mean=True,
                         of_roof="roof_of_peer"),
                  # ours / peer <= 1.08 triad / peer: in a mean over the same problems the peer's time falls out
                  Target(f"{dtype}, {KINDS['rms']}, the list at 128 MiB: mean of ours / triad", "backward",
                         of_list("rms", dtype), "times_roof", 1.08, is_mean=True)]
    return found


# --- The judgement ---


def values_of(target, found, value=None):
    """{problem: the target's value, or another one} of what is measured."""
    standings_of = {problem: found.get((target.direction, problem)) for problem in target.problems}
    values = {problem: getattr(one, value or target.value) for problem, one in standings_of.items() if one}
    return {problem: value for problem, value in values.items() if value}


def mean_of(target, found, value=None):
    """The geometric mean of values_of(); None where there are none."""
    values = values_of(target, found, value).values()
    return geometric_mean(list(values)) if values else None


def mean_of_roof(target, found):
    """A mean if each of its problems took the roof's time; None where it does not ask for that."""
    return mean_of(target, found, target.of_roof) if target.of_roof else None


def misses(target, values):
    """The problems that miss it, the worst first."""
    order = sorted(values, key=lambda problem: -target.missed_by(values[problem]))
    return [problem for problem in order if target.missed_by(values[problem]) > 0]


def judge(target, found, most=8):
    """(whether it is met everywhere, the line that says so)"""
    values = values_of(target, found)
    if not values:
        return False, f"unmeasured  {target}"
    lacking, missed = len(target.problems) - len(values), misses(target, values)
    gaps = f"; {lacking} of {len(target.problems)} problems not measured" if lacking else ""
    if target.is_mean:
        mean, least = mean_of(target, found), mean_of_roof(target, found)
        met = mean <= target.limit
        text = f": {mean:.3f}, {'met' if met else 'missed'} by {abs(mean - target.limit):.3f}"
        text += f"; the roof itself {least:.3f}" if least else ""
    elif met := not missed:
        nearest_one = max(values, key=lambda problem: target.missed_by(values[problem]))
        text = (f": {'least' if target.at_least else 'most'} {where(nearest_one, values)}, of {len(values)}, by at "
                f"least {digits(-target.missed_by(values[nearest_one]), target)}")
    else:
        worst = "; ".join(where(problem, values) for problem in missed[:most])
        worst += f"; and {len(missed) - most} more" if len(missed) > most else ""
        text = (f": at {len(missed)} of {len(values)}, by up to "
                f"{digits(target.missed_by(values[missed[0]]), target)}: {worst}")
    return met and not lacking, f"{'met   ' if met else 'MISSED'}  {target} at {target.bound}{text}{gaps}"


def digits(value, target):
    return f"{value:.1f}" if target.at_least else f"{value:.3f}"


def where(problem, values):
    value = values[problem]
    return f"{problem.dtype} {problem.kind} {problem.cols} ({value:.{1 if value > 10 else 3}f})"


def judged_records(records, found):
    return [record for record in records if (record.get("direction"), problem_of(record)) in found]


# --- Misses by region ---


def starts_anywhere(cols):
    return cols % 4 != 0


# What a kernel meets there, and whether problems of so many MiB and columns are there. A problem belongs to the first
# that has it.
REGIONS = {
    "tensors of 8 MiB": lambda size, cols: size == 8,
    "tensors of 64 MiB": lambda size, cols: size == 64,
    "single elements: 65 and 127 columns": lambda size, cols: starts_anywhere(cols) and cols < 256,
    "rows that start anywhere, up to 12 288 columns": lambda size, cols: starts_anywhere(cols) and cols <= 12288,
    "wide rows that start anywhere": lambda size, cols: starts_anywhere(cols),
    "narrow rows, below 256 columns": lambda size, cols: cols < 256,
    "256 to 8192 columns": lambda size, cols: cols <= 8192,
    "8193 to 18 432 columns": lambda size, cols: cols <= 18432,
    "the widest rows": lambda size, cols: True}


def region_of(problem):
    return next(name for name, has in REGIONS.items() if has(mib(problem), problem.cols))


def target_row(target, found):
    """(missed at, the worst) in words, as a row of a table shows them; of a mean, whether it is met, and the mean."""
    values = values_of(target, found)
    if not values:
        return MISSING, "not measured"
    if target.is_mean:
        mean, of_roof = mean_of(target, found), mean_of_roof(target, found)
        return ("met" if mean <= target.limit else "missed",
                f"{mean:.3f}" + (f"; the triad itself {of_roof:.3f}" if of_roof else ""))
    if not (missed := misses(target, values)):
        return f"met at {len(values)}", MISSING
    return f"{len(missed)} of {len(values)}", where(missed[0], values)


def region_rows(found):
    """[(region, target, missed at, of, the worst problem and value)] of what is missed, region by region."""
    rows = []
    for region, target in itertools.product(REGIONS, [target for target in targets() if not target.is_mean]):
        values = {problem: value for problem, value in values_of(target, found).items() if region_of(problem) == region}
        if missed := misses(target, values):
            rows.append((region, target, len(missed), len(values), where(missed[0], values)))
    return rows


# --- The program ---


def report(records, most=8):
    """(whether all is met, lines) for one device's records."""
    found = standings(records)
    if not any((target.direction, problem) in found for target in targets() for problem in target.problems):
        return False, [f"{provenance(records)}: none of the targets' problems measured"]
    judged = [judge(target, found, most) for target in targets()]
    return all(met for met, _ in judged), [provenance(judged_records(records, found)), *(line for _, line in judged)]


def main(argv, root=ROOT):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--all", action="store_true", help="name every problem that misses a target")
    options = parser.parse_args(argv)
    try:
        files = options.files or sorted(root.glob(PEERS))
        records = [record for path in files for record in measurements.load(path, backend="cuda").records]
    except DataError as error:
        print(error, file=sys.stderr)
        return 2
    devices = {}
    for record in records:
        if "provider" in record:
            devices.setdefault(record.get("device"), []).append(record)
    if not devices:
        print("no record of a GPU with providers is there; `make peers` measures some", file=sys.stderr)
        return 2
    all_met = True
    for own in devices.values():
        met, lines = report(own, 1 << 30 if options.all else 8)
        all_met &= met
        print("\n".join(lines))
    return int(not all_met)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
