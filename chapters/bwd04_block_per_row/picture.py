from common.results.pictures import COMPUTE, LOAD, STORE, WHITE, Picture

ROWS, PLACES = 1024, 132 * 2


def picture(kThreadsPerBlock=1024):
    """A multiprocessor over time: two blocks of 1024 threads, a row each, load, add up with four barriers, and store dx
    with their atomics. When they end, the next wave's blocks start, and only then are their loads issued. Below, 1024
    rows make 3.9 waves of 264 blocks."""
    p, unit, length = Picture(270), 11.6, 16.4
    for block in range(2):
        y = 34 + 32 * block
        p.bars(y, f"block {block}", [(start + at, end + at, *look) for at in (0, length) for start, end, *look in (
            (0, 5, LOAD, "load"), (5, 9, COMPUTE, "add"), (9, 11.6, WHITE, ""), (11.6, 16, STORE, "dx, +"))], unit=unit)
        for at in (9.3, 9.95, 10.6, 11.25):
            for wave in range(2):
                p.barrier(88 + unit * (at + wave * length), y - 4, y + 26)
    for wave in range(2):
        p.brace(88 + wave * unit * length, 20, unit * (length - 0.5), f"wave {wave}")
    p.legend(118, (LOAD, "load"), (COMPUTE, "add up"), (None, "barrier"), (STORE, "dx, atomics"))
    p.text(88, 144, f"{2 * kThreadsPerBlock} threads: the multiprocessor is full")
    p.text(80, 181, "rows", "end")
    for wave in range(4):
        rows = min(ROWS - wave * PLACES, PLACES)
        p.box(88 + 94 * wave, 170, 94 * rows / PLACES, 22, str(rows), LOAD)
    p.text(88, 206, f"{ROWS} rows, room for {PLACES}: {ROWS / PLACES:.1f} waves")
    p.text(8, 238, "Where a wave begins, nothing is stored;", bold=True)
    p.text(8, 256, "where it ends, nothing is loaded.", bold=True)
    return p
