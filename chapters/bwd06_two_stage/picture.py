from common.results.pictures import BLUE, GREEN, GREY, ORANGE, PURPLE, WHITE, Picture


def picture(kGroups=16, kLaneColumns=4):
    """Above, eight lanes share a row of 32 columns, four neighbouring columns each; the block's 16 rows of sums go to a
    tile in shared memory, and then lane l adds up column l. Below, 16 groups of rows become 16 rows of partial sums,
    and a last kernel adds these in a fixed order."""
    p = Picture(336)
    p.text(8, 12, "one block: 32 columns of one group", bold=True)
    lanes = 32 // kLaneColumns
    for row in range(4):
        p.text(54, 49 + 24 * row, f"row {row}", "end")
        p.cells(60, 38 + 24 * row, 24, [(str(row * lanes + lane), BLUE) for lane in range(lanes)], size=12)
    p.text(60, 28, f"lane: {kLaneColumns} columns each", size=12)
    p.text(60, 148, "… 16 rows a step", size=12)
    p.arrow((262, 88), (292, 88), width=2)
    for row in range(8):
        p.cells(304, 38 + 12 * row, 13, [("", ORANGE if col == 3 else WHITE) for col in range(12)], 12)
    p.text(304, 28, "tile of sums, shared", size=12)
    p.arrow((349, 40), (349, 144), width=2)
    p.text(360, 148, "lane 3: column 3", size=12)
    p.text(8, 176, "all blocks", bold=True)
    p.text(8, 201, "groups\nof rows")
    for group in range(kGroups):
        x = 88 + 24 * group
        p.box(x, 190, 20, 22, str(group), GREY, size=12)
        p.arrow((x + 10, 214), (x + 10, 232), width=0.8)
        p.box(x, 234, 20, 22, "Σ", GREEN, size=12)
        p.line((x + 10, 258), (278, 284), width=0.8)
    p.text(8, 245, "partial\nsums")
    p.box(88, 284, 380, 22, "dweight, dbias: the 16, always in one order", PURPLE)
    p.text(8, 324, "No atomics: the same bits in every run.", bold=True)
    return p
