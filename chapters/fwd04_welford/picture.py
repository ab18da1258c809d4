from common.results.pictures import OWNERS, Picture


def picture(kWarps=4):
    """One walk. Each lane has how many columns it saw, their mean and their squares. Shuffles from lanes 16, 8, 4, 2
    and 1 above merge these triples two by two, until lane 0 has its warp's. After one barrier every thread merges the
    four warps' triples, in the same order."""
    p, step = Picture(304), 12.2
    p.text(8, 14, "each lane: n, mean, squares of its own columns")
    p.text(8, 39, "warp 0")
    p.cells(80, 28, step, [("", OWNERS[0])] * 32)
    p.tree(86, 52, step, rise=24)
    p.text(470, 150, "lane 0 has its warp's", "end")
    for warp in range(kWarps):
        p.box(80 + 98 * warp, 186, 92, 22, f"triple {warp}", OWNERS[warp])
        p.line((80 + 98 * warp + 46, 224), (275, 252), width=0.8)
    p.text(8, 197, "shared")
    p.line((80, 218), (470, 218), width=3)
    p.box(80, 252, 390, 22, "every thread merges the four")
    p.text(8, 218, "barrier")
    p.text(8, 292, "One walk and one barrier for mean and variance.", bold=True)
    return p
