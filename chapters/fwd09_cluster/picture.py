from common.results.pictures import LOAD, STORE, WAIT, Picture


def picture():
    """A row lies in the registers of four blocks of a cluster, a piece in each warp. Every warp sends mean and squares
    of its piece, 8 bytes, to every block, so that all have the same numbers."""
    p = Picture(160)
    p.exchange([[f"w{warp}" for warp in range(4)]] * 4, [""] * 4)
    p.text(8, 33, "the row")
    p.text(8, 68, "8 bytes\na piece")
    p.text(8, 103, "received")
    p.text(8, 142, "Each warp makes the row's mean and rstd from them.", bold=True)
    return p


def overlap(kResident=4):
    """Four blocks of one multiprocessor, of four clusters, over time. While one waits for its exchange, others load or
    store; where one has ended, a block of a further cluster loads."""
    p, unit = Picture(180), 11
    p.text(100, 12, "time →")
    for slot, (cluster, following) in enumerate(((3, 41), (9, 42), (17, 43), (22, 44))[:kResident]):
        at = 3.2 * slot
        p.bars(24 + 28 * slot, f"cluster {cluster}", [
            (at, at + 7, LOAD, "load"), (at + 7, at + 12, WAIT, "wait"), (at + 12, at + 15, STORE, "y"),
            (at + 15, 33, LOAD, f"{following}: load")], x=100, unit=unit)
    p.text(8, 154, "While a block waits for its cluster,", bold=True)
    p.text(8, 171, "its neighbours load.", bold=True)
    return p
