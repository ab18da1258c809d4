from common.results.pictures import GREEN, ORANGE, PALE, WHITE, Picture


def picture():
    """Above, the forward pass: x is scaled and dropped, R is added, and z goes through the norm to y, and on to the
    next layer. Below, the backward pass goes through the same parts from right to left in one kernel: dy through the
    norm, plus the gradient from the next layer, makes dz, which is dresidual, and through the mask dx. The mask is
    drawn again."""
    p = Picture(268)

    def chain(y, parts, back):
        for (x, width, words, fill), (after, *_) in zip(parts, [*parts[1:], (None,)]):
            p.box(x, y, width, 26, words, fill)
            if after:
                ends = ((x + width + 2, y + 13), (after - 2, y + 13))
                p.arrow(*(reversed(ends) if back else ends))

    p.text(8, 14, "forward, fwd07", bold=True)
    chain(36, ((8, 34, "x", WHITE), (62, 92, "× a · mask", ORANGE), (174, 30, "+", ORANGE), (224, 40, "z", GREEN),
               (288, 56, "norm", ORANGE), (368, 44, "· w", ORANGE), (436, 36, "y", WHITE)), back=False)
    p.box(172, 84, 34, 26, "R", WHITE)
    p.arrow((189, 82), (189, 64))
    p.arrow((244, 64), (244, 84))
    p.text(244, 94, "next layer", "middle")
    p.text(174, 138, "backward, bwd10: one kernel", bold=True)
    chain(160, ((8, 34, "dx", WHITE), (62, 92, "× a · mask", ORANGE), (174, 40, "dz", GREEN), (234, 30, "+", ORANGE),
                (288, 56, "norm", ORANGE), (368, 44, "· w", ORANGE), (436, 36, "dy", WHITE)), back=True)
    p.box(62, 202, 92, 26, "dresidual", WHITE)
    p.arrow((194, 188), (194, 215), (156, 215))
    p.text(254, 215, "from the next layer")
    p.arrow((249, 206), (249, 188))
    p.line((108, 64), (108, 158), dashed=True, colour=PALE)
    p.text(8, 252, "The mask is drawn again from its seed, not loaded.", bold=True)
    return p
