from common.results.pictures import BLUE, ORANGE, PURPLE, WHITE, Picture, slot_bars

CONSUMERS, ROWS, WAY, READ = 2, 10, 5, 7  # times, of no GPU


def picture(kDepth=2):
    """A producer warp and two consumers over time, with four slots. The producer requests a row as soon as a slot is
    empty. Each slot is in turn on its way, full, and read by one consumer: even rows by the first, odd rows by the
    second. No consumer waits for the other."""
    p, unit, end, x = Picture(296), 11.2, 33, 100
    slots, times, readers = CONSUMERS * kDepth, [], (ORANGE, PURPLE)
    for n in range(ROWS):  # asked for, full, read from, empty
        asked = max(times[n - slots][3] if n >= slots else 0, times[-1][0] + 1 if n else 0)
        start = max(asked + WAY, times[n - CONSUMERS][3] if n >= CONSUMERS else 0)
        times.append((asked, asked + WAY, start, start + READ + n % 2))
    p.bars(28, "producer", [(asked, asked + 1, BLUE, str(n)) for n, (asked, *_) in enumerate(times)], x, unit, end=end)
    for slot in range(slots):
        bars = slot_bars(times, slots, slot, [str(n) for n in range(ROWS)], readers)
        p.bars(66 + 28 * slot, f"slot {slot}", bars, x, unit, end=end)
    for one in range(CONSUMERS):
        p.bars(190 + 28 * one, f"consumer {one}", [(times[n][2], times[n][3], readers[one], f"row {n}")
                                                   for n in range(one, ROWS, CONSUMERS)], x, unit, end=end)
    p.text(x, 12, "requests row n")
    p.text(470, 12, "time →", "end")
    p.legend(258, (BLUE, "on its way"), (WHITE, "full"), (ORANGE, "read by 0"), (PURPLE, "by 1"))
    p.text(8, 284, "No consumer waits for the other.", bold=True)
    return p
