from common.results.pictures import BLUE, ORANGE, RED, Picture

ROWS = 2


def picture():
    """One step of the second walk: each warp reads 32 neighbouring columns of its row, four sectors each of x and dy.
    Its 32 atomics go to 32 neighbouring columns of dweight, four sectors. All warps add to the same four."""
    p, step = Picture(250), 11
    p.text(96, 12, "columns →")
    for row in range(ROWS):
        y = 24 + 46 * row
        p.text(8, y + 11, f"warp {row}")
        for sector in range(4):
            p.cells(96 + 8 * step * sector, y, step, [("", ORANGE if sector % 2 else BLUE)] * 8)
        p.text(466, y + 11, "…", "end")
    for lane in range(32):
        p.arrow((101.5 + step * lane, 116), (101.5 + step * lane, 142), colour=RED, width=0.8)
    for sector in range(4):
        x = 96 + 8 * step * sector
        p.cells(x, 144, step, [("", ORANGE if sector % 2 else BLUE)] * 8)
        p.brace(x, 174, 8 * step, "a sector", below=True)
    p.text(8, 155, "dweight")
    p.text(8, 130, "atomics", colour=RED)
    p.text(8, 214, "4 sectors a load, 4 sectors of atomics.", bold=True)
    p.text(8, 234, "All rows add to the same columns: still 2 · M · N atomics.")
    return p
