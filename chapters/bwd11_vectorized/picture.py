from common.results.pictures import COMPUTE, LOAD, PALE, STORE, WHITE, Picture, ring, slot_bars


def picture(kStages=2):
    """Above, each thread copies its own vectors to its own part of a slot and reads them itself, so no arrow crosses
    and no barrier is needed. Below, the two slots over time: when row 0 is in registers, row 2B is requested in its
    slot, and while sums and dx of row 0 are made, rows B and 2B are on their way."""
    p, unit, end = Picture(292), 12.5, 30
    for name, y in (("global", 23), ("slot", 63), ("thread", 103)):
        p.text(80, y, name, "end")
        p.cells(88, y - 11, 46, [(f"{'t' * (y > 100)}{n}", LOAD if y < 100 else COMPUTE) for n in range(8)])
    for thread in range(8):
        for y in (36, 76):
            p.arrow((111 + 46 * thread, y), (111 + 46 * thread, y + 14))
    times, names = ring(8, kStages, latency=9, each=3, sums=1, rest=3.4), ["0", "B", *(f"{n}B" for n in range(2, 8))]
    for slot in range(kStages):
        p.bars(144 + 28 * slot, f"slot {slot}", slot_bars(times, kStages, slot, names), unit=unit, end=end)
    p.bars(204, "thread", [bar for (_, _, start, free, done), name in zip(times, names)
                           for bar in ((start, free, COMPUTE, ""), (free, done, STORE, name))], unit=unit, end=end)
    for *_, free, _ in times:
        if free < end:
            p.line((88 + unit * free, 140), (88 + unit * free, 228), colour=PALE, dashed=True)
    p.legend(246, (LOAD, "on its way"), (WHITE, "there"), (COMPUTE, "read"), (STORE, "sums, dx"))
    p.text(8, 276, "A thread waits for its own copies only.", bold=True)
    return p
