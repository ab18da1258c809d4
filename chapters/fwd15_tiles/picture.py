from common.results.pictures import OWNERS, Picture

ROWS, COLS, VECTOR = 4, 5, 4  # floats


def picture():
    """Four rows of five floats lie one after the other in global memory. Only the first starts at a 16-byte boundary,
    and the tile as a whole does too. One bulk load brings all 80 bytes to shared memory, where a row may start
    anywhere: each thread walks over its own."""
    p, width = Picture(232), 18
    for name, y in (("global\nmemory", 34), ("shared\nmemory", 120)):
        p.text(8, y + 11, name)
        for row in range(ROWS):
            p.cells(92 + row * COLS * width, y, width, [(str(row), OWNERS[row])] * COLS)
    for at in range(ROWS * COLS // VECTOR + 1):
        p.line((92 + width * VECTOR * at, 28), (92 + width * VECTOR * at, 62), width=3)
    p.text(92, 14, "boundaries, every 16 bytes")
    p.brace(92, 70, ROWS * COLS * width, "", below=True)
    p.arrow((272, 70), (272, 116), width=2.5)
    p.text(282, 94, "one bulk load, 80 bytes")
    for row in range(ROWS):
        x = 92 + row * COLS * width
        p.arrow((x + 3, 154), (x + COLS * width - 5, 154))
        p.text(x + COLS * width / 2, 169, f"thread {row}", "middle")
    p.text(8, 200, "The engine sees a tile, a thread sees its row:", bold=True)
    p.text(8, 218, "no row has to start at a boundary.", bold=True)
    return p
