from common.results.pictures import BLUE, COMPUTE, PURPLE, STORE, WAIT, Picture

ROWS, SUMS, MESSAGE, ADD = (11.5, 13.2), 4, 4.5, 2  # times, of no GPU
LAUNCH, MEET, EXCHANGE = 4.5, 5, 5.8


def picture():
    """Two GPUs over time, each with two kernels. The kernel of the last sum is launched early and waits for the end of
    the first. Then it adds up its GPU's partial sums, sends the result to the other GPU, waits for the other's, and
    adds up both, GPU 0's first. With an all-reduce instead, a launch and a barrier between the GPUs come before the
    exchange."""
    p, unit, x = Picture(326), 12.2, 88
    p.text(x, 12, "each GPU has rows of its own")
    p.text(470, 12, "time →", "end")
    sent = [rows + SUMS for rows in ROWS]
    for gpu, rows in enumerate(ROWS):
        y = 26 + 88 * gpu
        known = max(sent[gpu], sent[1 - gpu] + MESSAGE)
        p.bars(y, f"GPU {gpu}", [(0, rows, COMPUTE, "dx, partial sums")], x, unit)
        p.bars(y + 28, "last sum", [(1, rows, WAIT, "starts, waits"), (rows, sent[gpu], PURPLE, "sums"),
                                    (sent[gpu], known, BLUE, "words"),
                                    (known, known + ADD, STORE, "+")], x, unit)
    for start, stop, one in ((76, 142, sent[0]), (142, 76, sent[1])):
        p.arrow((x + unit * one, start), (x + unit * (one + MESSAGE), stop))
    p.text(8, 212, "Instead, with an all-reduce afterwards:")
    at, bars = 0, []
    for time, fill, words in ((ROWS[0], COMPUTE, "dx, partial sums"), (SUMS, PURPLE, "sums"), (LAUNCH, WAIT, "launch"),
                              (MEET, WAIT, "barrier"), (EXCHANGE, BLUE, "exchange")):
        bars.append((at, at + time, fill, words))
        at += time
    p.bars(226, "GPU 0", bars, x, unit)
    p.legend(272, (PURPLE, "of this GPU"), (BLUE, "link"), (STORE, "GPU 0's, then GPU 1's"))
    p.text(8, 306, "No launch and no barrier before the words.", bold=True)
    return p
