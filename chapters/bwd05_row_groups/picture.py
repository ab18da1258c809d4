from common.results.pictures import OWNERS, RED, Picture

ROWS, BLOCKS = 3, 2


def picture():
    """Two blocks, three rows each. A thread has the same columns in every row of its block, so it adds up their dweight
    and dbias in registers, row after row. Only when the block ends does it send one atomic per column to device
    memory."""
    p, width = Picture(306), 32
    threads = [(str(thread), OWNERS[thread]) for thread in range(4)]
    p.text(8, 14, "thread")
    p.cells(136, 3, width, threads * 2)
    p.text(400, 14, "…")
    for block in range(BLOCKS):
        y = 36 + 110 * block
        p.text(8, y + 38, f"block {block}")
        for row in range(ROWS):
            p.text(128, y + 10 + 22 * row, f"row {block * ROWS + row}", "end")
            p.cells(136, y + 22 * row, width, [("", fill) for _, fill in threads] * 2, 20)
        for column in range(8):
            p.line((152 + width * column, y + 4), (152 + width * column, y + 72), arrow=True)
        p.text(128, y + 86, "registers", "end")
        p.cells(136, y + 75, width, [("Σ", fill) for _, fill in threads] * 2, 20)
        p.arrow((396, y + 85), (430 + 16 * block, y + 85), (430 + 16 * block, 256), colour=RED)
    p.text(400, 66, "G rows\na block")
    p.text(128, 269, "dweight", "end")
    p.cells(136, 258, width, [("+", fill) for _, fill in threads] * 2)
    p.arrow((462, 269), (398, 269), colour=RED)
    p.text(400, 290, "atomics", colour=RED)
    p.text(8, 296, "Atomics: a G-th of bwd04's.", bold=True)
    return p
