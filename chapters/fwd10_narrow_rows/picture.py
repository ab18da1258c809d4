from common.results.pictures import GREY, OWNERS, Picture

TEAMS = 4  # rows of 64 halves: 8 vectors, so 8 lanes


def picture(kRows=4):
    """Rows of 64 halves, eight vectors each. In fwd06 a warp has one row, and 24 of its 32 lanes have nothing to load:
    128 bytes are on their way. In fwd10 a warp has four teams of eight lanes, and each requests four rows before it
    uses one: 2 KB are on their way."""
    p, width = Picture(236), 84
    for team in range(TEAMS):
        p.text(88 + width * (team + 0.5), 14, f"{8 * team}–{8 * team + 7}", "middle")
    p.text(8, 14, "lanes")
    p.text(8, 39, "fwd06", bold=True)
    p.cells(88, 28, width, [("row 0", OWNERS[0])] + [("–", GREY)] * 3)
    p.text(472, 39, "128 B", "end")
    p.text(8, 64, "fwd10", bold=True)
    for i in range(kRows):
        y = 76 + 27 * i
        p.text(80, y + 11, f"i = {i}", "end")
        p.cells(88, y, width, [(f"row {TEAMS * i + team}", OWNERS[team]) for team in range(TEAMS)])
        p.text(472, y + 11, "512 B", "end")
    p.text(88, 197, "each i: one request, 16 full sectors")
    p.text(8, 220, "2 KB a warp are on their way, not 128 bytes.", bold=True)
    return p
