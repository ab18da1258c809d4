from common.results.pictures import COMPUTE, RED, WAIT, Picture, tint


def picture():
    """Two buffers of sums and the rows that share them, over time. All blocks make dx at once. Then the rows of a
    buffer wait for its lock: one holds it and adds its row while the others of that buffer wait. Rows of different
    buffers do not wait for each other."""
    p, unit, held = Picture(252), 12, tint(RED)
    for buffer, count in ((0, 3), (1, 3)):
        for turn in range(count):
            y, late = 26 + 84 * buffer + 26 * turn, buffer * 1.5
            row = ("F" if turn == 1 else f"{turn}F") + ("+1" if buffer else "") if turn else str(buffer)
            at = 7 + late + 6.5 * turn
            p.bars(y, f"row {row}", [(late + 0.4 * turn, 7 + late, COMPUTE, "dx"), (7 + late, at, WAIT, "waits"),
                                     (at, at + 6.5, held, "add")], unit=unit, x=132)
        p.text(8, y - 15, f"buffer\n{buffer}")
    p.text(132, 12, "time →")
    p.legend(206, (COMPUTE, "dx of its row"), (WAIT, "wait for the lock"), (held, "hold it"))
    p.text(8, 236, "A buffer's rows are added one after another.", bold=True)
    return p
