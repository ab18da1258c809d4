from common.results.pictures import COMPUTE, LOAD, PALE, STORE, WAIT, WHITE, Picture, ring, slot_bars


def picture(kStages=3):
    """A ring of three slots over time. Thread 0 requests rows 0, B and 2B at the start. Once the block has summed up
    row 0 its slot is free, and row 3B is requested, while y of row 0 is stored. So two or three rows are on their way
    at any time, and the block waits little."""
    p, unit, end = Picture(244), 12.5, 30
    times, names = ring(8, kStages, latency=9, each=3, sums=1.6, rest=1.6), ["0", "B", *(f"{n}B" for n in range(2, 8))]
    for slot in range(kStages):
        p.bars(30 + 30 * slot, f"slot {slot}", slot_bars(times, kStages, slot, names), unit=unit, end=end)
    before, bars = 0, []
    for (_, _, start, free, done), name in zip(times, names):
        bars += [(before, start, WAIT, "waits"), (start, free, COMPUTE, name), (free, done, STORE, "y")]
        if free < end:
            p.line((88 + unit * free, 24), (88 + unit * free, 156), colour=PALE, dashed=True)
        before = done
    p.bars(130, "block", bars, unit=unit, end=end)
    p.text(8, 12, "block 0 of B: rows 0, B, 2B, …")
    p.text(464, 12, "time →", "end")
    p.legend(176, (LOAD, "on its way"), (WHITE, "there"), (COMPUTE, "summed up"), (STORE, "y"))
    p.text(8, 208, "Dashed: the slot is free, thread 0 requests again.")
    p.text(8, 230, "Rows are on their way while the block computes.", bold=True)
    return p
