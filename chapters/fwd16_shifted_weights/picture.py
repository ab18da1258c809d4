from common.results.pictures import BLUE, GREEN, GREY, WHITE, Picture

COLS, START, V = 39, 3, 8  # halves; y's row starts 3 past a boundary


def picture():
    """A row of 39 halves whose y starts 3 past a 16-byte boundary: vectors lie on y's boundaries, so vector 0 has the
    columns 13 to 20. Weight's boundaries are elsewhere: those columns lie in two aligned vectors, low and high. A
    thread loads both, shifts them by 5 elements, and has its eight."""
    first = V - START + V
    p, width, left = Picture(286), 23.5, 88
    small = 9.8
    p.text(8, 47, "y's row")
    p.cells(left, 36, small, [("", GREY, V - START), ("edge", GREY, V), ("vector 0", BLUE, V), ("vector 1", GREEN, V),
                              ("edge", GREY, COLS - first - 2 * V)])
    for at in range(5):
        x = left + small * (V - START + V * at)
        p.line((x, 30), (x, 64), width=3)
    p.text(left, 14, "y's boundaries, every 8 halves")
    p.text(8, 115, "weight")
    p.cells(left, 104, width, [(str(col), BLUE if first <= col < first + V else WHITE) for col in range(V, 3 * V)],
            size=12)
    for at, words in enumerate(("low", "high")):
        p.brace(left + V * width * at, 96, V * width, words)
    for at in range(3):
        p.line((left + V * width * at, 98), (left + V * width * at, 132), width=3)
    x = left + 3 * width
    for col in range(V):
        p.line((left + width * (first - V + col + 0.5), 128), (x + width * (col + 0.5), 172), width=0.8)
    p.text(8, 185, "shifted\nby 5")
    p.cells(x, 174, width, [(str(first + col), BLUE) for col in range(V)], size=12)
    p.brace(x, 202, V * width, "with y's vector 0", below=True)
    p.text(8, 246, "Two aligned loads and a shift,", bold=True)
    p.text(8, 264, "instead of eight single-element loads.", bold=True)
    return p
