"""What compare_peers.py asks for and writes: problems, statistics, records, tables. Plain functions
that need neither PyTorch nor a GPU.

A record is that of common/results/records.py, with the provider in place of the chapter:

    provider    "torch", "liger", …; "dispatch", "dispatch-invariant" and "dispatch-from-y" for this project's own
                choice, a chapter's id for that chapter
    chosen      of the dispatch: the chapter that it took
    passed      False: the result was wrong, so there is no time
    late        true: the host could not keep ahead of the device, so the time has some of its own
    host        "hidden", or "counted" where the host's time is meant to be in it (--with-launch)
    note        what is not alike in this provider's work
    run         when the run started; side_by_side() says which records are held against each other
    packages    {"torch": "2.11.0", …}: the versions
"""

import math
import re

from common.results.chapters import load_catalogue
from common.results.problems import SETS, Problem, problem_of
from common.results.records import MISSING, SCHEMA, is_right, number

DIRECTIONS = ("forward", "backward")
KINDS = ("layer", "rms")
TYPES = {entry["name"]: entry for entry in load_catalogue()["types"]}
DTYPES = {name: entry["long_name"] for name, entry in TYPES.items()}
LIMITS = {name: entry["relative_error_limit"] for name, entry in TYPES.items()}  # of the error in norm
CLOCK = 2  # as records.py says: the number of flushes is drawn by lot, and inputs take turns
SHAPES = SETS["peers"]

FLUSH_BYTES = 256 << 20  # five times an H100's L2, twice a B200's
MOST_COPIES = 32  # of the inputs; more would not help the smallest: they are launches

DISPATCH = ("dispatch", "dispatch-invariant", "dispatch-from-y")
CHAPTER = re.compile(r"(former )?(fwd|bwd|my)\d\d|lib_(fwd|bwd)_\w+")  # my: of the reader's own


class RequestError(Exception):
    """A request that means nothing; the message is a sentence."""


def is_ours(provider):
    return provider in DISPATCH or CHAPTER.fullmatch(provider) is not None


# --- What is asked for ---


def parse_shapes(text, dtype=None, kinds=("layer",)):
    """'1024x2048,bf16:8192x4096' -> Problems of each kind. `dtype` is that of shapes that name none.

    Without a text: the default shapes, of one type only if one is given.
    """
    if text is None:
        return [problem._replace(kind=kind) for problem in SHAPES if dtype in (None, problem.dtype) for kind in kinds]
    problems = []
    for word in text.split(","):
        parts = re.fullmatch(r"\s*(?:(\w+):)?(\d+)[x×](\d+)\s*", word)
        if not parts or (parts[1] or "bf16") not in DTYPES or not int(parts[2]) or not int(parts[3]):
            raise RequestError(f"'{word.strip()}' is no shape; write ROWSxCOLS or DTYPE:ROWSxCOLS, as in "
                               f"bf16:8192x4096, with {', '.join(DTYPES)}")
        problems += [Problem(parts[1] or dtype or "bf16", int(parts[2]), int(parts[3]), kind) for kind in kinds]
    return list(dict.fromkeys(problems))


def parse_sets(text, dtype=None, kinds=KINDS):
    """'widths,smaller' -> the Problems of these sets, in their order; of one type, of some kinds."""
    plain = [name for name, problems in SETS.items() if not any(problem.options for problem in problems)]
    problems = [problem for name in parse_names(text, plain, "set for peers") for problem in SETS[name]
                if dtype in (None, problem.dtype) and problem.kind in kinds]
    return list(dict.fromkeys(problems))


def parse_names(text, known, what):
    """'torch,liger' -> names; None -> all that are known."""
    if text is None:
        return list(known)
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise RequestError(f"{' '.join(unknown) or 'nothing'} is no {what}; choose from {', '.join(known)}")
    return list(dict.fromkeys(names))


# --- Statistics ---


def quantile(samples, q):
    """Linear between the two nearest, as common/harness/statistics.h."""
    samples = sorted(samples)
    at = q * (len(samples) - 1)
    below = int(at)
    above = min(below + 1, len(samples) - 1)
    return samples[below] + (at - below) * (samples[above] - samples[below])


def affordable(seconds, each_us, most, least=5):
    """How many samples of `each_us` fit into `seconds`: at most `most`, at least `least` of them."""
    return max(min(least, most), min(most, int(seconds * 1e6 / max(each_us, 1e-3))))


def copies(x_bytes):
    """How many copies of the inputs take turns, so that 256 MB of x come between two uses of one.

    A flush alone does not make x cold: a line that was loaded with evict_last, as the kernels of
    torch.compile do with what they read twice, stays in L2 while 256 MB of other lines come and go.
    Tensors of less than 1.6 MB may all stay, and so may weight and bias.
    """
    return min(MOST_COPIES, -(-FLUSH_BYTES // x_bytes))


def bytes_of(*tensors):
    """What these tensors occupy."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def rounded(value, digits):
    """To so many significant digits, so that a file does not pretend more."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


# --- Records ---


def make_record(provider, direction, problem, made_by, samples=(), *, eps, seed, passed, host="hidden", **more):
    """One line of the file. Without samples: a provider whose result was wrong. `made_by`: the run's
    device, versions, date; `more`: bytes and roof, and what else there is to say: None, "" and False
    are not said."""
    record = {"schema": SCHEMA, "provider": provider, "direction": direction,
              "problem": {"kind": problem.kind, "dtype": problem.dtype, "rows": problem.rows, "cols": problem.cols,
                          "eps": eps, "seed": seed, "options": dict(problem.options)},
              "set": set_of(problem),
              "l2": "cold", "clock": CLOCK, "host": host, **made_by, "passed": passed}
    if samples:
        record |= {"median_us": round(quantile(samples, 0.5), 2), "p10_us": round(quantile(samples, 0.1), 2),
                   "p90_us": round(quantile(samples, 0.9), 2), "samples": len(samples)}
    return record | {key: value for key, value in more.items() if value or isinstance(value, float)}


def set_of(problem):
    """The set that a problem is of, of those that are made for peers; None for any other problem."""
    return "peers" if problem._replace(kind="layer") in SHAPES else next(
        (name for name in ("widths", "smaller") if problem in SETS[name]), None)


# --- What is shown ---


def is_of_widths(problem):
    """Whether a problem is of the sets of widths alone: where few problems are shown, hundreds would hide them."""
    return set_of(problem) in ("widths", "smaller")


def columns_of(records):
    """The providers, ours first: dispatch, peers in the order of the records, chapters."""
    names = list(dict.fromkeys(record["provider"] for record in records))
    peers = [name for name in names if not is_ours(name)]
    chapters = sorted(name for name in names if CHAPTER.fullmatch(name))
    return [name for name in DISPATCH if name in names] + peers + chapters


def cell(record):
    """A time, or what there is in its place."""
    if record is None:
        return MISSING
    if not record.get("passed", True):
        return "wrong"
    return number(record["median_us"]) + (" +" if record.get("late") else "")


def best(records):
    """The fastest right record, or None."""
    timed = [record for record in records if record and is_right(record)]
    return fastest(timed) if timed else None


def beside(records):
    """{(direction, kind, problem): {provider: record}}, in the order of the records."""
    problems = {}
    for record in records:
        problem = problem_of(record["problem"])
        problems.setdefault((record["direction"], problem.kind, problem), {})[record["provider"]] = record
    return problems


ROOFS_AGREE = 0.01  # two calls whose roofs are closer than this found the GPU in one state


def side_by_side(records):
    """Of the right records of one problem and direction on one device, those that may be held against each other:
    of one run with our kernels and a peer, and what that lacks from others where their roofs agree: peers of any
    commit, since ours does not change them, our kernels of the same. Of the runs of the newest such commit it is the
    one that comes to the most peers, the newest of equals. Empty where ours or the peers are missing."""
    runs = {}
    for record in records:
        if record.get("run"):
            runs.setdefault(record["run"], []).append(record)
    joined = {run: joined_with(run, runs) for run, own in runs.items() if any(is_ours(one["provider"]) for one in own)}
    found = {run: together for run, together in joined.items() if peers_of(together)}
    if not found:
        return []
    has_peers = {run: bool(peers_of(runs[run])) for run in found}
    newest = max(found, key=lambda run: (has_peers[run], run))
    alike = [run for run in found
             if has_peers[run] == has_peers[newest] and commits_of(runs[run]) == commits_of(runs[newest])]
    return found[max(alike, key=lambda run: (len(peers_of(found[run])), run))]


def commits_of(records):
    return {record.get("commit") for record in records}


def peers_of(records):
    return [record for record in records if not is_ours(record["provider"])]


def fastest(records):
    return min(records, key=lambda record: record["median_us"])


def own_choice(records):
    """Of our records of a problem the dispatch's, or the fastest chapter's where it was not measured."""
    return next((record for record in records if record["provider"] == "dispatch"), None) or fastest(records)


def pairs(together, records):
    """[(ours, a peer's)] for each peer of `together`, which side_by_side() chose of `records`: ours of the peer's own
    run, so that their ratio is one run's; where that run lacks ours, or is of another commit, that of the row's run."""
    own = own_choice([record for record in together if is_ours(record["provider"])])
    same = {record["run"]: record for record in records if record.get("run")
            and (record["provider"], record.get("commit")) == (own["provider"], own.get("commit"))}
    return [(same.get(theirs["run"], own), theirs) for theirs in peers_of(together)]


def nearest(found):
    """Of pairs() that of the fastest peer: whom ours are the least ahead of, or the farthest behind."""
    return max(found, key=lambda pair: pair[0]["median_us"] / pair[1]["median_us"])


def newest_run(records):
    last = max((record.get("run", "") for record in records), default="")
    return [record for record in records if record.get("run", "") == last]


def newest_with_chapters(records):
    """Of our records those of the newest run in which a chapter or kernel was asked for by its name."""
    runs = {record["run"] for record in records if CHAPTER.fullmatch(record["provider"])}
    return [record for record in records if record["run"] == max(runs, default=None)]


def in_use(records, from_y):
    """Of the right records of one problem and direction on one device those that anything shows: what is compared with
    peers, with every dispatch and with the plain one alone (targets.py), our newest run, and the kernels that the test
    of the dispatch holds its choice against. from_y: the ids of the kernels that start from y."""
    plain = [record for record in records if record["provider"] not in DISPATCH[1:]]
    ours = [record for record in plain if is_ours(record["provider"])]
    found = newest_run(ours)
    for own in (records, plain):
        if together := side_by_side(own):
            found += together + [beside for beside, _ in pairs(together, own)]
    for starts_from_y in (False, True):
        found += newest_with_chapters([record for record in records if is_ours(record["provider"])
                                       and (record.get("chosen", record["provider"]) in from_y) == starts_from_y])
    return found


def joined_with(run, runs):
    """The records of a run, then for who is not among them the newest of the runs that agree with it."""
    found = {record["provider"]: record for record in runs[run]}
    for other in sorted(runs, reverse=True):
        if agree(runs[run], runs[other]):
            same = commits_of(runs[run]) == commits_of(runs[other])
            found = {record["provider"]: record for record in runs[other]
                     if same or not is_ours(record["provider"])} | found
    return list(found.values())


def agree(records, others):
    """Whether two runs' times of a problem may stand in one row."""
    roofs = roof_of(records), roof_of(others)
    return None not in roofs and max(roofs) <= (1 + ROOFS_AGREE) * min(roofs)


def roof_of(records):
    """Microseconds of the roof, from any record that has it; None without."""
    return next((record["roof_us"] for record in records if record.get("roof_us")), None)


def aligned(rows):
    """A table as text: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join([row[0].ljust(widths[0]), *(text.rjust(width) for text, width in zip(row[1:], widths[1:]))])
            .rstrip() for row in rows]


def tables(records):
    """The lines for a terminal: for each direction and kind the peers and the dispatch, then the
    chapters, in microseconds."""
    lines, problems = [], beside(records)
    for direction, kind in dict.fromkeys(key[:2] for key in problems):
        own = {key[2]: found for key, found in problems.items() if key[:2] == (direction, kind)}
        names = columns_of([record for found in own.values() for record in found.values()])
        others = [name for name in names if not CHAPTER.fullmatch(name)]
        chapters = [name for name in names if CHAPTER.fullmatch(name)]
        title = f"{direction}, {kind} norm, median µs"
        head = ["problem, M × N", "roof", *others, "ours / best peer"]
        body = []
        for problem, found in own.items():
            roof = roof_of(found.values())
            ours = best(record for name, record in found.items() if is_ours(name))
            theirs = best(record for name, record in found.items() if not is_ours(name))
            ratio = f"{ours['median_us'] / theirs['median_us']:.2f}" if ours and theirs else MISSING
            body.append([str(problem), number(roof), *(cell(found.get(name)) for name in others), ratio])
        if others:
            lines += [title, *aligned([head, *body]), ""]
        if chapters:
            body = [[str(problem), *(cell(found.get(name)) for name in chapters)] for problem, found in own.items()]
            lines += [f"{title}: the chapters", *aligned([["problem, M × N", *chapters], *body]), ""]
    if any(record.get("late") for record in records):
        lines += ["+ the host could not keep ahead of the device: the time has some of the host's own.", ""]
    return lines


def missing_lines(missing):
    """`missing`: [(provider, why, how to get it)]."""
    return ["Not compared:", *(f"  {name}: {why}; {how}" for name, why, how in missing)] if missing else []


def note_lines(notes):
    """`notes`: {(provider, sentence): [where]}: why a cell is empty or wrong."""
    return ["Notes:", *(f"  {provider}: {sentence} ({shortened(places)})"
                        for (provider, sentence), places in notes.items())] if notes else []


def shortened(places, most=2):
    return "; ".join(places[:most]) + (f"; and {len(places) - most} more" if len(places) > most else "")
