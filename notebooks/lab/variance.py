#!/usr/bin/env python3
"""How three ways to a row's variance err as its mean grows against its deviation.

    bash common/setup/python.sh notebooks/lab/variance.py [--cols N]

x is that of the chapters' programs: random, of deviation 1, about an offset, rounded to f32, f16 or
bf16. Everything after that is float, and adds up in the order of a kernel's threads: two passes are
fwd03's, Welford's is fwd04's of x as it is, and E[x²] − E[x]² adds up as fwd03 does. The table shows
by how much the reciprocal deviation errs against double precision from the same rounded x: the norm
of the error over the norm of the right values, of 1024 rows. fwd04 itself takes the row's first
element off before: welford_first_off.
"""

import argparse

import numpy as np

ROWS, COLS, EPS = 1024, 2000, np.float32(1e-5)
OFFSETS = ("0.5", "1e2", "1e3", "1e4", "1e5")
LANES = 32  # of a warp


# --- x ---


def splitmix64(state):
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def random_x(rows, cols):
    """common/harness/tensors.cpp's x of seed 1, less the offset."""
    stream = splitmix64(np.array([16], np.uint64))
    bits = splitmix64(stream ^ np.arange(rows * cols, dtype=np.uint64))
    parts = [((bits >> np.uint64(16 * i)) & np.uint64(0xFFFF)).astype(np.float32) for i in range(4)]
    total = ((parts[0] + parts[1]) + parts[2]) + parts[3]
    z = (total * np.float32(1 / 65536) - np.float32(2)) * np.float32(1.7320508)
    return z.reshape(rows, cols)


def round_to(dtype, x):
    """x as floats that the type has: the nearest, of two the even one."""
    if dtype == "f16":
        with np.errstate(over="ignore"):  # infinite from 65 520 on
            return x.astype(np.float16).astype(np.float32)
    if dtype == "bf16":
        bits = x.view(np.uint32)
        bits = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        return (bits & np.uint32(0xFFFF0000)).view(np.float32)
    return x


# --- Threads ---


def trips(x, threads):
    """What the threads of a row read at a time: [rows, threads], or fewer columns the last time."""
    return [x[:, first:first + threads] for first in range(0, x.shape[1], threads)]


def warp_sum(values):
    """[…, 32] -> […]: lane 0 of the kernel header's warp_sum."""
    while values.shape[-1] > 1:
        half = values.shape[-1] // 2
        values = values[..., :half] + values[..., half:]
    return values[..., 0]


def block_sum(values):
    """[rows, threads] -> [rows], as the kernel header's block_sum."""
    of_warps = warp_sum(values.reshape(len(values), -1, LANES))
    padded = np.zeros((len(values), LANES), np.float32)
    padded[:, :of_warps.shape[1]] = of_warps
    return warp_sum(padded)


def sum_over_row(x, threads, term):
    totals = np.zeros((len(x), threads), np.float32)
    for part in trips(x, threads):
        totals[:, :part.shape[1]] += term(part)
    return block_sum(totals)


# --- The methods: [rows, cols] of float -> the reciprocal deviations, [rows] of float ---


def reciprocal_root(variance):
    return np.float32(1) / np.sqrt(variance + EPS)


def two_passes(x, threads=256):
    inverse_cols = np.float32(1) / np.float32(x.shape[1])
    mean = (sum_over_row(x, threads, lambda part: part) * inverse_cols)[:, None]
    squares = sum_over_row(x, threads, lambda part: (part - mean) * (part - mean))
    return reciprocal_root(squares * inverse_cols)


def mean_of_squares(x, threads=256):
    """E[x²] − E[x]², in one pass."""
    inverse_cols = np.float32(1) / np.float32(x.shape[1])
    mean = sum_over_row(x, threads, lambda part: part) * inverse_cols
    squares = sum_over_row(x, threads, lambda part: part * part)
    return reciprocal_root(squares * inverse_cols - mean * mean)


def welford(x, threads=128):
    count, mean, squares = (np.zeros((len(x), threads), np.float32) for _ in range(3))
    for number, part in enumerate(trips(x, threads), start=1):
        some = np.s_[:, :part.shape[1]]
        before = part - mean[some]
        mean[some] += before * (np.float32(1) / np.float32(number))
        squares[some] += before * (part - mean[some])
        count[some] += np.float32(1)
    moments = [values.reshape(len(x), -1, LANES) for values in (count, mean, squares)]
    while moments[0].shape[2] > 1:  # lanes, two by two
        half = moments[0].shape[2] // 2
        moments = merge([m[:, :, :half] for m in moments], [m[:, :, half:] for m in moments])
    row = [m[:, 0, 0] for m in moments]
    for warp in range(1, threads // LANES):
        row = merge(row, [m[:, warp, 0] for m in moments])
    return reciprocal_root(row[2] / np.float32(x.shape[1]))


def welford_first_off(x):
    return welford(x - x[:, :1])


def merge(a, b):
    """Chan's. Where a set is empty it is b, and the result is a."""
    count = a[0] + b[0]
    share = b[0] / np.maximum(count, np.float32(1))
    delta = b[1] - a[1]
    return [count, a[1] + delta * share, a[2] + b[2] + delta * delta * a[0] * share]


METHODS = {"two passes": two_passes, "Welford": welford, "E[x²] − E[x]²": mean_of_squares}


# --- The table ---


def exact(x):
    """Deviations and reciprocal deviations, in double precision."""
    variance = x.astype(np.float64).var(axis=1)
    return np.sqrt(variance), 1 / np.sqrt(variance + np.float64(EPS))


def relative_error(values, right):
    return np.linalg.norm(values - right) / np.linalg.norm(right)


def table(rows, cols):
    z = random_x(rows, cols)
    yield "| x | offset | deviation | " + " | ".join(METHODS) + " |"
    yield "| :-- | --: | --: |" + " --: |" * len(METHODS)
    for dtype in ("f32", "f16", "bf16"):
        for offset in OFFSETS:
            x = round_to(dtype, np.float32(offset) + z)
            with np.errstate(invalid="ignore"):  # inf − inf, and roots of what is below 0
                deviation, right = exact(x)
                errors = [relative_error(method(x), right) for method in METHODS.values()]
            cells = [f"{np.sqrt(np.mean(deviation**2)):.2f}", *(f"{error:.1e}" for error in errors)]
            yield f"| {dtype} | {offset} | " + " | ".join(cells).replace("nan", "NaN") + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--cols", type=int, default=COLS, help="of a row (default: %(default)s)")
    cols = parser.parse_args().cols
    if cols < 1:
        parser.error("--cols must be at least 1")
    print("\n".join(table(ROWS, cols)))


if __name__ == "__main__":
    main()
