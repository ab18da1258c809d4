from common.results.pictures import BLUE, ORANGE, Picture


def picture():
    """Above, the 32 lanes of a warp read 32 neighbouring columns of one row: four full sectors. Below, a butterfly: in
    five shuffles, with lanes 16, 8, 4, 2 and 1 apart, every lane gets the sum of all 32; lane 0's part is drawn
    dark."""
    p, step = Picture(330), 12.4
    place = [76 + step * lane for lane in range(33)]
    p.text(8, 40, "row")
    for sector in range(4):
        p.brace(place[8 * sector], 22, 8 * step, "a sector")
        p.cells(place[8 * sector], 30, step, [("", ORANGE if sector % 2 else BLUE)] * 8)
    p.text(8, 66, "lane")
    for lane in (0, 7, 15, 23, 31):
        p.text(place[lane] + step / 2, 66, str(lane), "middle", size=12)
    p.tree(place[0] + step / 2, 84, step, both=True)
    p.text(8, 288, "sum")
    p.cells(place[0], 278, step, [("", BLUE)] * 32)
    p.text(8, 316, "One request, 4 sectors. Five shuffles, no barrier.", bold=True)
    return p
