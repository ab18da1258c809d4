"""What a training with several seeds tells: how far a norm's last loss is from torch's, and how far rounding takes it.

Two norms that train with the same seed have the same first weights and the same text, so their last losses are
subtracted seed by seed: what a lucky seed gives to both is gone from the difference. For gpt_training.py, whose
docstring has the rule, and for common/results/device.py; the records are those of measurements.load_training().
"""

import statistics
from typing import NamedTuple

TORCH, REORDERED = ("torch", "as it is"), ("torch", "reversed")  # a norm, and the order of each batch's sequences

# Student's t: a mean of n numbers lies within T95[n - 2] standard errors of what they scatter about, in 95 of 100
# cases. More numbers take the last, which makes their interval a little too wide.
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


class Difference(NamedTuple):
    """Of a norm's last losses less torch's."""

    seeds: list  # one number a seed, None where a loss is no number
    mean: float | None  # None where one of them is
    margin: float | None  # the mean's 95 % interval is the mean ± this
    most: float | None  # the largest of one seed, without its sign


def last_losses(records):
    """{(norm, order): {seed: last loss}}, of the seeds that all of them have: the others were cut short."""
    found = {}
    for record in records:
        found.setdefault((record["training"], record["order"]), {})[record["seed"]] = record["last"]
    whole = sorted(set.intersection(*map(set, found.values()))) if found else []
    return {name: {seed: lasts[seed] for seed in whole} for name, lasts in found.items()}


def is_whole(records):
    """Whether a run has torch, torch reordered and one norm more, each with the same two seeds or more."""
    lasts = last_losses(records)
    return {TORCH, REORDERED} < set(lasts) and len(lasts[TORCH]) > 1


def difference(lasts, name):
    """The Difference of one norm of last_losses()."""
    seeds = [None if None in pair else pair[0] - pair[1] for pair in zip(lasts[name].values(), lasts[TORCH].values())]
    if None in seeds:
        return Difference(seeds, None, None, None)
    margin = T95[min(len(seeds) - 2, len(T95) - 1)] * statistics.stdev(seeds) / len(seeds) ** 0.5
    return Difference(seeds, statistics.fmean(seeds), margin, max(map(abs, seeds)))


def agrees(norm, reordered):
    """The rule, of two Differences: the norm's mean is no farther from 0 than reordering takes torch with any seed."""
    return None not in (norm.mean, reordered.most) and abs(norm.mean) <= reordered.most
