from common.results.pictures import BLUE, COMPUTE, LOAD, PURPLE, STORE, Picture

ROWS, MOMENTS, MESSAGE, OUTPUT = 5, 3.2, 5.6, 2.6  # times, of no GPU


def picture(kAnswer=2):
    """Two GPUs over time, a block of each. Both compute the moments of row n, and a warp of each sends them to the
    other GPU. The message is on its way while the block computes the moments of two more rows; then y of row n
    follows. The other GPU does the same with its slice of the same rows."""
    p, unit, end, x = Picture(316), 10.6, 35, 100
    p.text(470, 12, "time →", "end")
    for gpu, top in ((0, 34), (1, 160)):
        late = 1.2 * gpu  # no two GPUs start together
        compute, words = [], []
        at = late
        for n in range(ROWS + kAnswer + 1):
            if n < ROWS:
                compute.append((at, at + MOMENTS, COMPUTE, str(n)))
                words.append((at + MOMENTS, at + MOMENTS + 0.9, PURPLE, ""))
                at += MOMENTS
            if n > kAnswer:
                compute.append((at, at + OUTPUT, STORE, f"y{n - kAnswer - 1}"))
                at += OUTPUT
            elif n >= ROWS:
                at += OUTPUT
        p.text(8, top - 12, f"GPU {gpu}", bold=True)
        p.bars(top, "4 warps", [one for one in compute if one[1] <= end], x, unit, end=end)
        p.bars(top + 28, "exchange", [one for one in words if one[1] <= end], x, unit, end=end)
        sent = [(begin, begin + MESSAGE, BLUE, f"row {n}") for n, (begin, *_) in enumerate(words) if n % 2 == 0]
        p.bars(top + 56, "on its way", [one for one in sent if one[1] <= end], x, unit, end=end)
    p.legend(262, (COMPUTE, "moments of row n"), (PURPLE, "sends"), (STORE, "y"), x=100)
    p.legend(282, (LOAD, "the word, to the other GPU"), x=100)
    p.text(8, 304, "Two rows lie between a message and its answer.", bold=True)
    return p
