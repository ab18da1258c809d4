from common.results.pictures import BLUE, ORANGE, OWNERS, Picture

ROWS, COLS = 6, 7  # of a tile's 64 and 65


def picture():
    """A tile in shared memory is walked over three times. By rows: two threads share a row, one its even columns, one
    its odd columns, for c1 and c2. By columns: a thread has a column, from the first row to the last, for dweight and
    dbias. By rows again, for dx, in place of x. Barriers separate the walks."""
    p, size = Picture(226), 18.5
    for walk, (title, words) in enumerate((("by rows", "c1, c2"), ("by columns", "dweight, dbias"), ("by rows", "dx"))):
        x = 12 + 160 * walk
        p.text(x + 65, 14, title, "middle", bold=True)
        p.text(x + 65, 32, words, "middle")
        for row in range(ROWS):
            fills = [OWNERS[col % 4] if walk == 1 else (BLUE, ORANGE)[col % 2] for col in range(COLS)]
            p.cells(x, 44 + size * row, size, [("", fill) for fill in fills], size)
            if walk != 1:
                p.arrow((x + 4, 44 + size * (row + 0.5)), (x + size * COLS - 4, 44 + size * (row + 0.5)))
        for col in range(COLS) if walk == 1 else ():
            p.arrow((x + size * (col + 0.5), 48), (x + size * (col + 0.5), 40 + size * ROWS))
        if walk:
            p.barrier(x - 15, 40, 160)
    p.text(8, 178, "two threads per row: even and odd columns")
    p.text(8, 196, "a thread per column: its sums stay in registers")
    p.text(8, 216, "One tile, both ways: no shuffle is needed.", bold=True)
    return p
