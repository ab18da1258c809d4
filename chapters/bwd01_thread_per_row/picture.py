from common.results.pictures import BLUE, GREY, RED, Picture


def picture():
    """The 32 threads of a warp each walk their own row. In one step of the second walk all are in the same column,
    so 32 atomics hit one address of dweight, and 32 one of dbias: they are carried out one after the other. c1 and c2
    of a row stay within its thread."""
    p = Picture(262)
    p.text(96, 12, "columns →")
    for at, thread in enumerate((0, 1, 2, None, 31)):
        y = 24 + 28 * at
        p.text(8, y + 11, "…" if thread is None else f"thread {thread}")
        if thread is None:
            continue
        p.cells(96, y, 26, [("", GREY), ("", GREY), ("now", BLUE), "", "", "", "", ""], size=12)
        p.arrow((306, y + 11), (330, y + 11))
        p.text(336, y + 11, f"c1, c2 of row {thread}")
    for at in range(5):
        p.arrow((149 + 5 * at, 160), (149 + 5 * at, 186), colour=RED)
    p.text(184, 172, "32 atomics, one address", colour=RED)
    p.text(8, 199, "dweight")
    p.cells(96, 188, 26, ["", "", ("+", BLUE), "", "", "", "", ""])
    p.text(312, 199, "and the same for dbias")
    p.text(8, 230, "32 sectors a load; 32 additions in a queue.", bold=True)
    p.text(8, 250, "Over the kernel: 2 · M · N atomics.")
    return p
