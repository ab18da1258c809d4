from common.results.pictures import BLUE, GREY, PALE, Picture

COLS, BYTES = 2048, 4  # floats


def picture():
    """One step of a warp in fwd01: 32 lanes read the same column of 32 rows, which are 8192 bytes apart. Each lane's 4
    bytes lie in a sector of their own, so the request brings 32 sectors of 32 bytes and uses an eighth of them."""
    p = Picture(232)
    p.text(76, 12, "one sector: 32 bytes")
    p.text(264, 12, "the rest of the row", colour=PALE)
    for at, lane in enumerate((0, 1, 2, None, 31)):
        y = 26 + 30 * at
        if lane is None:
            p.text(38, y + 11, "…", "middle")
            p.text(152, y + 11, "…", "middle")
            continue
        p.text(8, y + 11, f"lane {lane}")
        p.cells(76, y, 22, [("x", BLUE)] + [("", GREY)] * 7)
        p.cells(252, y, 22, ["", "", "…", ""])
        p.text(348, y + 11, f"byte {lane * COLS * BYTES:,}".replace(",", " "))
    p.text(8, 196, "One request: 32 sectors, 1024 bytes, in 32 lines.", bold=True)
    p.text(8, 216, "It uses 32 · 4 = 128 bytes of them.")
    return p
