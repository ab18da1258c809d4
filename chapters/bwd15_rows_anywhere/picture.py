from common.results.pictures import GREY, OWNERS, WHITE, Picture

COLS, START, WIDE, V = 5, 3, 23, 8  # halves


def picture():
    """Rows of five halves, and boundaries every eight: the rows start 0, 5, 2, 7, 4, 1, 6 and 3 past a boundary, and
    row 8 starts as row 0 did."""
    p, width, x = Picture(124), 9.2, 60
    p.text(x, 12, "boundaries, every 8 halves")
    p.text(8, 68, "row")
    p.text(8, 88, "starts")
    for row in range(9):
        at = x + COLS * width * row
        p.box(at, 28, COLS * width, 22, fill=OWNERS[0] if row % 8 == 0 else GREY)
        for y, number in ((68, row), (88, row * COLS % V)):
            p.text(at + COLS * width / 2, y, str(number), "middle", bold=row % 8 == 0)
    for at in range(6):
        p.line((x + V * width * at, 22), (x + V * width * at, 56), width=3)
    p.text(x, 111, "A block takes every 8th row.", bold=True)
    return p


def row():
    """A row of 23 halves that starts 3 past a boundary. Threads 0 to 3 have the vectors between the boundaries. The
    outer two reach beyond the row and load their elements singly; the inner two come by the copy engine."""
    p, left, width = Picture(160), 60, 12.8
    p.text(8, 35, "a row")
    p.text(8, 86, "x, dy")
    for thread in range(4):
        x = left + V * width * thread
        p.cells(x, 24, width, [("", OWNERS[thread] if 0 <= V * thread + k - START < WIDE else WHITE) for k in range(V)])
        p.text(x + V * width / 2, 66, f"thread {thread}", "middle")
        p.text(x + V * width / 2, 86, "singly" if thread in (0, 3) else "engine", "middle")
    for at in range(5):
        p.line((left + V * width * at, 18), (left + V * width * at, 52), width=3)
    p.text(left + START * width, 10, "0", size=12)
    p.text(left + (START + WIDE) * width, 10, str(WIDE - 1), "end", size=12)
    p.text(8, 114, "White: the rows before and after.")
    p.text(8, 144, "Same columns in all its rows: sums in registers.", bold=True)
    return p
