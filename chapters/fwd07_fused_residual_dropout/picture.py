from common.results.pictures import COMPUTE, GREY, Picture


def picture():
    """Above, one kernel for each step: scale, dropout, adding the residual and the norm each load from device memory
    what the one before has stored. Below, all of them happen in registers: x and R are loaded once, z and y stored
    once."""
    p = Picture(286)

    def move(x, y, words, up):
        p.arrow(*((x, y + 46), (x, y + 2)) if up else ((x, y + 2), (x, y + 46)))
        p.text(x + 5, y + 26, words, size=12)

    p.text(8, 14, "one kernel for each step", bold=True)
    for at, (name, loads, stores) in enumerate((("× scale", "x", ""), ("dropout", "", "mask"), ("+", "R", "z"),
                                                ("norm", "", "y"))):
        x = 14 + 116 * at
        p.box(x, 28, 104, 24, name, COMPUTE)
        p.arrow((x + 14, 98), (x + 14, 54))
        if loads:
            move(x + 32, 52, loads, up=True)
        move(x + 64, 52, stores, up=False)
    p.box(8, 100, 464, 22, "device memory", GREY)
    p.text(8, 152, "fwd07", bold=True)
    p.box(14, 166, 452, 24, "× scale → dropout → + → norm, in registers", COMPUTE)
    for x, words, up in ((40, "x", True), (110, "R", True), (250, "z", False), (380, "y", False)):
        move(x, 190, words, up)
    p.box(8, 238, 464, 22, "device memory", GREY)
    p.text(8, 276, "Philox makes the mask: it is neither stored nor loaded.", size=12)
    return p
