from common.results.pictures import COMPUTE, LOAD, OWNERS, PURPLE, Picture

BLOCKS, TEAMS = 396, 32  # of a launch, of a block: rows of 64 halves


def picture(kAhead=4):
    """A warp has four teams of eight lanes, and each team a row at a time: next comes one 12 672 rows further. A lane
    keeps dweight and dbias of its columns in registers over all of these rows. Only at the end the sums of the block's
    32 teams meet in shared memory. Each lane has a ring for the rows ahead."""
    p, width = Picture(300), 92
    p.text(8, 14, "lanes")
    for team in range(4):
        x = 96 + width * team
        p.text(x + width / 2, 14, f"{8 * team}–{8 * team + 7}", "middle")
        p.arrow((x + width / 2, 106), (x + width / 2, 126))
        p.box(x, 128, width, 22, "Σ", OWNERS[team])
        p.line((x + width / 2, 152), (280, 178), width=0.8)
    for turn in range(3):
        y, rows = 26 + 26 * turn, [turn * BLOCKS * TEAMS + team for team in range(4)]
        p.text(8, y + 11, f"turn {turn}")
        p.cells(96, y, width, [(f"{row:,}".replace(",", " "), fill) for row, fill in zip(rows, OWNERS)])
    p.text(8, 139, "registers")
    p.box(96, 178, 4 * width, 22, "shared memory: sums of all 32 teams, once", PURPLE)
    p.text(8, 231, "a ring")
    p.cells(96, 220, width, [("at work", COMPUTE), *[("on its way", LOAD)] * (kAhead - 1)])
    p.text(8, 266, "A team needs no other lanes for its row,", bold=True)
    p.text(8, 284, "and no barrier until the end.", bold=True)
    return p
