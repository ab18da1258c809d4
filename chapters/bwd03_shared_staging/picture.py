from common.results.pictures import OWNERS, Picture


def picture():
    """Lanes store dy in shared memory and read it back. Every lane reads the slot that it wrote itself: all arrows go
    straight down and none crosses, so nothing is shared, and a register would have done."""
    p, width = Picture(236), 48
    names = [*range(7), 31]
    for y, name, word in ((14, "loads dy", "lane"), (84, "shared\nmemory", "slot"), (154, "uses it\n3 times", "lane")):
        p.text(8, y + 17, name)
        for at, number in enumerate(names):
            x = 88 + width * at
            p.box(x, y, width - 6, 34, f"{word}\n{number}", OWNERS[at % 4], size=12)
            if y < 154:
                p.arrow((x + 21, y + 36), (x + 21, y + 68))
    p.text(8, 214, "No arrow crosses: each lane reads what it wrote.", bold=True)
    return p
