from common.results.pictures import COMPUTE, LOAD, PURPLE, STORE, WAIT, WHITE, Picture, ring, slot_bars


def picture(kStages=3):
    """A ring of three slots, x and dy of a row each, over time. The block has one barrier per row, after its sums:
    then the slot is free and thread 0 requests the row three further on, while all threads make dx. The kernel of
    the last sum starts early and waits until the blocks have ended."""
    p, unit, end = Picture(284), 12.2, 31
    times, names = ring(5, kStages, latency=8, each=3, sums=2, rest=1.8), ["0", "B", *(f"{n}B" for n in range(2, 5))]
    p.text(88, 12, "three rows requested")
    p.text(470, 12, "time →", "end")
    for slot in range(kStages):
        p.bars(26 + 28 * slot, f"slot {slot}", slot_bars(times, kStages, slot, names), unit=unit, end=end)
    p.bars(118, "block", [bar for (_, _, start, free, done), name in zip(times, names)
                          for bar in ((start, free, COMPUTE, name), (free, done, STORE, "dx"))], unit=unit)
    for *_, free, _ in times:
        p.barrier(88 + unit * free, 112, 146)
    last = times[-1][4]
    p.bars(160, "last sum", [(2, last, WAIT, "launched early: waits"), (last, end, PURPLE, "Σ")], unit=unit)
    p.legend(206, (LOAD, "on its way"), (WHITE, "there"), (COMPUTE, "sums"), x=88)
    p.legend(228, (None, "barrier: slot free, request again"), (STORE, "dx"), x=88)
    p.text(8, 264, "One barrier per row; one thread requests rows.", bold=True)
    return p
