"""The tables of ours beside others' kernels: what each shows. How it is written is in templates/."""

from collections import Counter

import pandas

from common.results import peers
from common.results.chapters import DIRECTIONS
from common.results.problems import PROGRESSION, SETS, WIDTHS, Problem, mib, problem_of
from common.results.records import geometric_mean
from common.results.rendering import table

RESULTS = (PROGRESSION, Problem.of("f16", 4096, 1024), Problem.of("bf16", 131072, 4096),
           Problem.of("bf16", 16384, 16384))  # of `make peers`: the least work, few columns, many rows, wide rows
LEVEL = 0.01  # of a peer's time: nearer than this, neither is ahead
WIDTHS_COMMAND = 'make peers ARGS="--set widths"'


def shown_pairs(results, direction, kind="layer"):
    """The rows of against_peers() on the problems of `make peers`, in their order."""
    of_problem = {problem_of(row): row for row in results.against_peers(direction, kind)}
    return [of_problem[problem] for problem in peers.parse_shapes(None, kinds=[kind]) if problem in of_problem]


def pairs_of_layer_norm(results):
    """The same in both directions: what the picture of the peers is drawn from."""
    return [row for direction in DIRECTIONS for row in shown_pairs(results, direction)]


@table("peers", "make peers", kind="layer")
@table("peers rms", "make peers", kind="rms")
def peer_times(results, kind):
    """our time, the roof, and each peer's time on the problems of `make peers`"""
    found, timed = {}, []
    for direction in DIRECTIONS:
        ours, theirs = results.contenders(direction, kind)
        pairs = {problem_of(pair): pair | {"times": {}} for pair in shown_pairs(results, direction, kind)}
        for row in theirs:
            if pair := pairs.get(problem_of(row)):
                pair["times"][row["provider"]] = row["median_us"]
        names = dict.fromkeys(name for pair in pairs.values() for name in pair["times"])
        timed += [row for row in ours if problem_of(row) in pairs]
        found |= {direction: (list(names), list(pairs.values()))} if pairs else {}
    about = results.about_peers(kind, peers.parse_shapes(None, kinds=[kind]))
    return {"found": found, "kind": kind, "about": about, "records": timed} if found else None


@table("results", "make peers")
def few_peers(results):
    """layer norm on a few of these: ours and the fastest peer, in eight rows"""
    pairs = [pair for pair in pairs_of_layer_norm(results) if problem_of(pair) in RESULTS]
    return {"pairs": pairs} if pairs else None


@table("against layer", "make peers", kind="layer")
@table("against rms", "make peers", kind="rms")
def against(results, kind):
    """our time over the best peer's, in a sentence for each direction"""
    found = {}
    for direction in DIRECTIONS:
        if pairs := shown_pairs(results, direction, kind):
            roofs = [pair["roof_us"] / pair["peer_us"] for pair in pairs if pair["roof_us"]]
            found[direction] = comparison(pandas.DataFrame(pairs)) | {"roof": geometric_mean(roofs) if roofs else None}
    return {"found": found, "kind": kind} if found else None


# --- Every width ---


def comparison(frame):
    """How rows of against_peers() compare with the fastest peer: the ratios in sum, and where they are at worst."""
    ratio, share = frame["ratio"], pandas.to_numeric(frame["of_roof"])
    ahead, behind = ((sign * (ratio - 1) > LEVEL).sum() for sign in (-1, 1))
    return {"widths": len(frame), "mean": geometric_mean(ratio), "least": ratio.min(), "most": ratio.max(),
            "fastest": (ratio < 1).sum(), "ahead": ahead, "behind": behind, "level": len(frame) - ahead - behind,
            "worst": frame.loc[ratio.idxmax()], "shares": (share.min(), share.max())}


def comparisons(rows, *keys):
    """[comparison() of the rows that share these fields, with the fields]"""
    groups = pandas.DataFrame(rows).groupby(list(keys), sort=False)
    return [dict(zip(keys, key)) | comparison(own) for key, own in groups]


def bf16_width_rows(results):
    """What the picture and the sentences of the widths are made from: bf16 at 128 MiB a tensor."""
    return [row for row in results.with_widths().width_rows() if row["dtype"] == "bf16"]


def measured_beside(rows):
    """'The peers are torch, liger (at 28 of 30).': a peer that is not everywhere has its number of problems."""
    found = Counter(name for row in rows for name in row["ratios"])
    names = [name + (f" (at {times} of {len(rows)})" if times < len(rows) else "") for name, times in found.items()]
    return f"The peers are {', '.join(names)}."


@table("widths sum", WIDTHS_COMMAND)
def widths_sum(results):
    """the widths in a sentence for each direction and kind: where ours are ahead, and where behind"""
    rows = bf16_width_rows(results)
    if not rows:
        return None
    return {"groups": comparisons(rows, "direction", "kind"), "peers": measured_beside(rows), "rows": rows}


@table("widths", WIDTHS_COMMAND)
def widths(results):
    """our time over the fastest peer's and our share of the roof: of each size, and, folded, width by width"""
    results = results.with_widths()
    listed = results.width_rows()
    if not listed:
        return None
    unusual = [problem for problem in SETS["widths"] if problem not in WIDTHS]
    everything = [{**row, "size": mib(problem_of(row)), "unusual": problem_of(row) in unusual}
                  for row in listed + results.width_rows(unusual) + results.width_rows(SETS["smaller"])]
    about = [results.about_peers(kind, {problem_of(row) for row in everything})
             for kind in dict.fromkeys(row["kind"] for row in everything)]
    return {"groups": comparisons(everything, "direction", "kind", "dtype", "size", "unusual"), "rows": everything,
            "folded": [width_by_width(dtype, listed) for dtype in dict.fromkeys(row["dtype"] for row in listed)],
            "peers": measured_beside(everything), "about": list(dict.fromkeys(about))}


def width_by_width(dtype, rows):
    """(type, [(direction, kind)], {columns: a row for each direction and kind, or None})"""
    own = {(row["cols"], row["direction"], row["kind"]): row for row in rows if row["dtype"] == dtype}
    passes = list(dict.fromkeys(key[1:] for key in own))
    return dtype, passes, {cols: [own.get((cols, *one)) for one in passes] for cols in sorted({key[0] for key in own})}
