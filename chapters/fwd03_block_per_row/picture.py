from common.results.pictures import OWNERS, Picture


def picture(kThreadsPerBlock=256):
    """Eight warps of a block. Each adds up its columns by a butterfly and writes one number, S0 to S7, to shared
    memory. A barrier: all are written. Then every warp reads all eight and adds them up for itself. A second barrier:
    all are read, so that the next sum may overwrite them."""
    p, warps = Picture(286), kThreadsPerBlock // 32
    place = [90 + 47 * warp for warp in range(warps)]
    p.text(8, 25, "warp")
    p.text(8, 51, "butterfly")
    p.text(8, 97, "shared\nmemory")
    p.text(8, 209, "each warp\nadds eight")
    for warp, x in enumerate(place):
        fill = OWNERS[warp % 4]
        p.box(x, 14, 43, 22, str(warp), fill)
        p.text(x + 21, 51, "Σ 32", "middle", size=12)
        p.arrow((x + 21, 60), (x + 21, 84))
        p.box(x, 86, 43, 22, f"S{warp}", fill)
        for other in place:
            p.line((other + 21, 150), (x + 21, 196), width=0.5)
        p.box(x, 198, 43, 22, "Σ S", fill)
    for y, words in ((142, "barrier: all are written"), (254, "barrier: all are read")):
        p.text(90, y - 13, words)
        p.line((90, y), (462, y), width=3)
    p.text(90, 271, "then the next sum may overwrite them")
    return p
