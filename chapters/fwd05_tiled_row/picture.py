from common.results.pictures import LOAD, OWNERS, STORE, WAIT, Picture


def picture(kTile=1024, kThreads=128):
    """A row of 2048 columns in two tiles; a thread has eight places in each. Below, one thread in the last walk: in
    fwd03 it loads, waits and stores eight times, one after the other. In fwd05 it issues eight loads, waits once for
    all of them, and stores eight, so it waits twice."""
    p, places = Picture(268), kTile // kThreads
    p.text(80, 32, "place", "end")
    for tile in range(2):
        x = 88 + tile * 192
        p.brace(x, 14 + 6, 190, "")
        p.text(x + 95, 8, f"tile {tile}: columns {tile * kTile}–{(tile + 1) * kTile - 1}", "middle", size=12)
        p.cells(x, 30, 23.7, [(str(k), OWNERS[0]) for k in range(places)])
    p.text(88, 66, f"each place: {kThreads} neighbouring columns, one for each thread")
    steps = [bar for n in range(8) for bar in ((8 * n, 8 * n + 1, LOAD, ""), (8 * n + 1, 8 * n + 7, WAIT, ""),
                                               (8 * n + 7, 8 * n + 8, STORE, ""))]
    p.bars(112, "fwd03", steps, unit=6)
    tiles = [bar for first in (0, 8 + 8 + 8)
             for bar in [(first + k, first + k + 1, LOAD, "") for k in range(places)]
             + [(first + 8, first + 16, WAIT, "wait")]
             + [(first + 16 + k, first + 17 + k, STORE, "") for k in range(places)]]
    p.bars(166, "fwd05", tiles, unit=6)
    p.text(88, 98, "the last walk of one thread: 8 waits")
    p.text(88, 152, "2 waits")
    p.legend(218, (LOAD, "load x"), (WAIT, "wait"), (STORE, "y: compute, store"), x=88)
    p.text(88, 244, "time →", size=12)
    return p
