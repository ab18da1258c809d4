from common.results.pictures import BLUE, COMPUTE, PURPLE, STORE, WAIT, Picture

ROWS, MOMENTS, OUTPUT = 5, 3.2, 1.8  # times, of no GPU
SEND, MESSAGE, RECEIVE, LATE = 0.9, 6, 0.9, 0.8  # LATE: no two GPUs start together


def picture(kAnswer=2):
    """Two GPUs over time, a block of each. Both compute the moments of a row, and a warp of each sends them to the
    other GPU, which receives them two rows later; then y of the row follows. So the messages cross while the block
    computes the moments of other rows. Only the last row has none after it: before its y, the block waits."""
    p, unit, x, behind = Picture(300), 13, 100, kAnswer + 1
    told = []  # when the moments of each row are there, on a GPU that starts at 0
    for n in range(ROWS):
        told.append((told[-1] if told else 0) + MOMENTS + (OUTPUT if n > behind else 0))
    p.text(8, 12, "GPU 0", bold=True)
    p.text(470, 12, "time →", "end")
    asked = {}  # (GPU, row): where its message starts and ends
    for gpu, (top, below) in enumerate(((26, 54), (172, 144))):
        late, other = LATE * gpu, LATE * (1 - gpu)
        words, known, free = [], [], 0
        for n in range(ROWS + kAnswer):
            if n < ROWS:
                begin = max(free, late + told[n])
                free = begin + SEND
                asked[gpu, n] = [free]
                words.append((begin, free, PURPLE, str(n)))
            if n >= kAnswer:
                begin = max(free, other + told[n - kAnswer] + SEND + MESSAGE)
                free = begin + RECEIVE
                known.append(free)
                words.append((begin, free, BLUE, str(n - kAnswer)))
                asked[1 - gpu, n - kAnswer, "read"] = begin
        compute, at = [], late
        for n in range(ROWS + behind):
            if n < ROWS:
                compute.append((at, at + MOMENTS, COMPUTE, str(n)))
                at += MOMENTS
            if n >= behind:
                if known[n - behind] > at:
                    compute.append((at, known[n - behind], WAIT, ""))
                    at = known[n - behind]
                compute.append((at, at + OUTPUT, STORE, f"y{n - behind}"))
                at += OUTPUT
        p.bars(top, "4 warps", compute, x, unit)
        p.bars(below, "exchange", words, x, unit)
    for gpu, start, stop in ((0, 77, 143), (1, 143, 77)):
        for n in (0, ROWS - 1):
            p.arrow((x + unit * asked[gpu, n][0], start), (x + unit * asked[gpu, n, "read"], stop))
    p.text(92, 110, "link", "end")
    p.text(8, 208, "GPU 1", bold=True)
    p.legend(234, (COMPUTE, "moments"), (STORE, "y"), (WAIT, "waits for the answer"), x=100)
    p.legend(256, (PURPLE, "sends"), (BLUE, "receives"), x=100)
    p.text(8, 284, "y follows three rows after the moments.", bold=True)
    return p
