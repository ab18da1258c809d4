from common.results.pictures import COMPUTE, LOAD, PURPLE, STORE, Picture

SMS, ROWS = 132, 131072


def picture(kBlocks=2):
    """Two of 264 blocks, which stay for the whole launch, over time. While a block computes one row, the loads of its
    next, 264 rows further, are on their way. After its last row it writes one row of sums, and a second kernel adds up
    the 264 rows of sums."""
    p, unit, blocks = Picture(262), 11.5, SMS * kBlocks
    for at, block in enumerate((0, blocks - 1)):
        y, rows = 34 + 76 * at, [block + n * blocks for n in range(4)]
        p.text(8, y + 24, f"block\n{block}")
        p.bars(y, "loads", [(6 * n, 6 * n + 5.6, LOAD, str(row)) for n, row in enumerate(rows)], unit=unit, x=100)
        p.bars(y + 26, "dx", [(6 * n + 6, 6 * n + 11.6, COMPUTE, str(row)) for n, row in enumerate(rows[:3])],
               unit=unit, x=100)
        p.text(100 + unit * 24.4, y + 37, "…")
        p.box(100 + unit * 26, y, unit * 2.4, 48, "Σ", STORE)
    p.text(290, 97, "…", "middle")
    p.box(100 + unit * 30, 34, unit * 2.2, 124, "Σ", PURPLE)
    p.text(464, 16, "second kernel", "end")
    p.text(100, 16, "time →")
    p.legend(184, (LOAD, "next row"), (COMPUTE, "sums, dx"), (STORE, "2·N sums"))
    p.text(8, 216, "Weight and the sums stay in registers", bold=True)
    p.text(8, 236, f"over all {ROWS // blocks} rows of a block. No atomics.", bold=True)
    return p
