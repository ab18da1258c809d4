from common.results.pictures import COMPUTE, PURPLE, STORE, Picture


def picture():
    """A row of 32 768 columns in four blocks of a cluster. Each block sends its two sums, 8 bytes, to every block, so
    that all four have the four pairs s0 to s3."""
    p = Picture(126)
    p.exchange([["0 – 8191"], ["– 16 383"], ["– 24 575"], ["– 32 767"]], [f"s{n}" for n in range(4)])
    p.text(8, 33, "columns")
    p.text(8, 68, "s: 8 bytes")
    p.text(8, 103, "received")
    return p


def steps(kSlots=4):
    """One block over time. After the sums of row 0 it does not wait for the exchange but sums up row 1. Then it makes
    dx of row 0, whose sums have come meanwhile, and so on."""
    p, unit, sums, dx = Picture(158), 12, [], []
    for n in range(5):  # step n: the sums of row n, then dx of row n - 1
        start = 7 * n - 3 * (n > 0)
        sums.append((start, start + 4, COMPUTE, f"Σ {n}"))
        dx += [(start + 4, start + 7, STORE, f"dx {n - 1}")] * (n > 0)
    p.text(88, 12, "rows of the cluster, over time →")
    p.bars(24, "block", sorted(sums + dx), unit=unit)
    for y, name, first in ((54, "exchange", 0), (78, "", 1)):
        p.bars(y, name, [(sums[n][1], dx[n][0], PURPLE, f"row {n}") for n in (first, first + 2)], unit=unit)
    p.text(8, 128, "A row's exchange takes place while the next is", bold=True)
    p.text(8, 145, f"summed up. The ring has {kSlots} slots for rows ahead.", bold=True)
    return p
