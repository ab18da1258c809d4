from common.results.pictures import GREEN, RED, Picture, tint


def picture():
    """What waits in memory from the forward to the backward pass. For bwd09, x is kept for the norm alone, beside y,
    which the next layer keeps in any case. For bwd07, y is enough: xhat is made from y, weight and bias, so x and the
    means may go."""
    p, alone = Picture(248), tint(RED)
    for y, name, kept, formula in (
            (28, "bwd09", (("x", alone, 110), ("mean", alone, 56), ("rstd", alone, 56), ("y", GREEN, 110)),
             "xhat = (x − mean) · rstd"),
            (124, "bwd07", (("", None, 110), ("", None, 56), ("rstd", alone, 56), ("y", GREEN, 110)),
             "xhat = (y − bias) / weight")):
        x = 80
        p.text(8, y + 17, name, bold=True)
        for words, fill, width in kept:
            if fill:
                p.box(x, y, width, 34, words, fill)
            else:
                p.box(x, y, width, 34, edge="#aaaaaa", dashed=True)
            x += width + 8
        p.text(80, y + 52, formula)
    p.text(80, 14, "kept from the forward pass for the backward pass", size=12)
    p.legend(206, (alone, "for the norm alone"), (GREEN, "kept by the next layer"))
    p.text(8, 234, "A tensor less in memory.", bold=True)
    return p
