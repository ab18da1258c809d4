from common.results.pictures import COMPUTE, GREY, LOAD, STORE, Picture

ROWS = 18  # of a cluster: 256 rows of 16 384 halves


def picture(kCluster=8):
    """A row is cut into eight slices, one for each block of the cluster. Block 0 requests its slice of all 18 rows at
    the start, before it uses one. Its eight teams of two warps take the rows in turn: first the sums of all their rows,
    each sent at once, then dx of all of them. No barrier holds them up in between."""
    p, unit = Picture(282), 12
    p.text(8, 25, "a row")
    p.cells(88, 14, 47.5, [(f"block {n}"[-1:], LOAD if n == 0 else GREY) for n in range(kCluster)])
    p.text(88, 48, "block 0 of 8 has 2048 of 16 384 columns", size=12)
    p.text(470, 72, "time →", "end")
    there = [8 + 0.7 * (row + 1) for row in range(ROWS)]
    p.bars(84, "x, dy", [(0, 8, LOAD, "requested"), *((one - 0.7, one, LOAD, "") for one in there)], unit=unit)
    for team in range(2):
        rows = range(team, ROWS, 8)
        p.bars(122 + 28 * team, f"team {team}",
               [bar for n, row in enumerate(rows) for bar in ((there[row], there[row] + 2.8, COMPUTE, str(row)),
                                                              (there[-1] + 2.8 + 3 * n, there[-1] + 5.6 + 3 * n, STORE,
                                                               str(row)))], unit=unit)
    p.text(80, 186, "… team 7", "end")
    p.legend(212, (LOAD, "on its way"), (COMPUTE, "sums, sent at once"), (STORE, "dx"))
    p.text(8, 246, "All is requested before the first row is used;", bold=True)
    p.text(8, 264, "one barrier, at the end, for the column sums.", bold=True)
    return p
