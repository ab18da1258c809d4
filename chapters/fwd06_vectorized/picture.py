from common.results.pictures import OWNERS, Picture

WARPS, COLS = 4, 2048  # floats


def picture(kVectors=4):
    """A row of 2048 floats: four times four warps, each with 32 neighbouring vectors of 16 bytes. Thread 0 has the
    first vector of each of the four parts, all of them in registers. One warp's load covers 512 neighbouring bytes: 16
    full sectors of two lanes each."""
    p, width = Picture(238), 24
    p.text(8, 43, "warp")
    p.text(8, 80, "thread 0:\ncolumns")
    for i in range(kVectors):
        x, first = 80 + i * WARPS * width, i * COLS // kVectors
        p.brace(x, 22, WARPS * width, f"vector {i}")
        p.cells(x, 32, width, [(str(warp), OWNERS[warp]) for warp in range(WARPS)])
        p.arrow((x + 2, 84), (x + 2, 56))
        p.text(x + (8 if i else 30), 74, f"{first}–{first + 3}", size=12)
    p.line((80, 54), (80, 130), width=0.7, dashed=True)
    p.line((104, 54), (104, 90), (464, 130), width=0.7, dashed=True)
    p.text(8, 142, "one load\nof warp 0")
    p.cells(80, 131, 12, [("", OWNERS[0])] * 32)
    for sector in range(17):
        p.line((80 + 24 * sector, 126), (80 + 24 * sector, 158), width=2)
    p.text(80, 170, "lane 0")
    p.text(464, 170, "lane 31", "end")
    p.text(272, 170, "16 sectors, 512 bytes", "middle")
    p.text(8, 204, "One instruction loads 16 bytes per lane.", bold=True)
    p.text(8, 224, "Four of them hold the whole row in registers.")
    return p
