"""The drawn pictures of the lessons: a few words to draw with, and the SVG that they become.

A chapter's picture.py draws with a Picture. Each function in it is a picture, `picture` the lesson's first: its
docstring is the alternative text, which tells what there is to see, and its parameters are constants of the kernel,
which must say the same. `make tables` writes <function>.svg beside it; a marker `<!-- table: picture fwd01 -->` shows
it.

A picture is 480 wide, so that its words can be read at 370 pixels. Its words stay words, in a font that all systems
have or a narrower one; pictures_test.py measures that none touches another.
"""

import inspect
import runpy
import xml.etree.ElementTree as ET

WIDTH, SIZE, LINE = 480, 13, 16  # units; a line of words
INK, PALE, RED = "#222222", "#6b6b6b", "#B85000"


def tint(colour, share=0.55):
    """A colour, so much of it, on white: black words can be read on it."""
    return "#" + "".join(f"{round(255 - share * (255 - int(colour[at:at + 2], 16))):02x}" for at in (1, 3, 5))


# Okabe and Ito's, as in drawing.py. A cell has its owner's colour, a bar that of what is done; words say it too.
BLUE, ORANGE, GREEN, PURPLE = OWNERS = [tint(one) for one in ("#56B4E9", "#E69F00", "#009E73", "#A9528A")]
GREY, WHITE = "#e6e6e6", "#ffffff"
LOAD, COMPUTE, STORE, WAIT = BLUE, ORANGE, GREEN, GREY


class Picture:
    """Everything is placed by its left top corner, words by their middle line."""

    def __init__(self, height):
        self.height = height
        self.svg = ET.Element("svg", {
            "xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {WIDTH} {height}", "width": "640",
            "height": f"{height * 640 / WIDTH:.0f}", "font-family": "DejaVu Sans, Verdana, sans-serif",
            "font-size": str(SIZE), "fill": INK})
        self.add("rect", width=WIDTH, height=height, fill=WHITE)

    def add(self, tag, text=None, **attributes):
        shown = {name.replace("_", "-"): f"{round(one, 1):g}" if isinstance(one, (int, float)) else one
                 for name, one in attributes.items() if one is not None}
        ET.SubElement(self.svg, tag, shown).text = text

    def text(self, x, y, words, at="start", size=None, bold=False, colour=None):
        """Words at x: their "start", "middle" or "end". Several lines are centred about y."""
        lines = words.split("\n") if words else ()
        for i, line in enumerate(lines):
            middle = y + (i - (len(lines) - 1) / 2) * LINE
            self.add("text", line, x=x, y=middle + 0.36 * (size or SIZE), fill=colour, font_size=size,
                     text_anchor=None if at == "start" else at, font_weight="bold" if bold else None)

    def line(self, *points, arrow=False, dashed=False, colour=INK, width=1.2):
        """From point to point, (x, y) each; an arrow ends in a head."""
        path = "M" + " ".join(f"{x:.1f} {y:.1f}" for x, y in points)
        if arrow:
            (x0, y0), (x, y) = points[-2:]
            length = ((x - x0) ** 2 + (y - y0) ** 2) ** 0.5
            u, v = 5 * (x - x0) / length, 5 * (y - y0) / length
            path += "M" + " ".join(f"{a:.1f} {b:.1f}" for a, b in ((x - u - 0.6 * v, y - v + 0.6 * u), (x, y),
                                                                   (x - u + 0.6 * v, y - v - 0.6 * u)))
        self.add("path", d=path, fill="none", stroke=colour, stroke_width=width,
                 stroke_dasharray="4 3" if dashed else None)

    def arrow(self, *points, **look):
        self.line(*points, arrow=True, **look)

    def box(self, x, y, width, height=22, words="", fill=WHITE, edge=INK, dashed=False, **look):
        self.add("rect", x=x, y=y, width=width, height=height, fill=fill, stroke=edge, stroke_width=0.8,
                 stroke_dasharray="4 3" if dashed else None)
        self.text(x + width / 2, y + height / 2, words, "middle", **look)

    def cells(self, x, y, width, items, height=22, **look):
        """A row of cells: words, or (words, fill), or (words, fill, how many cells wide). None is a gap."""
        for item in items:
            item = (item,) if isinstance(item, str) else item or ("", None, 1)
            words, fill, span = (*item, *(WHITE, 1)[len(item) - 1:])
            if fill:
                self.box(x, y, width * span, height, words, fill, **look)
            x += width * span
        return x

    def bars(self, y, name, bars, x=88, unit=1.0, height=22, end=1e9):
        """A lane of a timeline: (start, end, fill, words) each, in units from x on. What is later than `end` is cut
        off; words that have no room are left out."""
        self.text(x - 8, y + height / 2, name, "end")
        for start, stop, fill, words in bars:
            width = unit * (min(stop, end) - start)
            if width > 0:
                self.box(x + unit * start, y, width, height, words if width > 8 * len(words) + 2 else "", fill)

    def barrier(self, x, top, bottom):
        """A line in time that all must reach before one goes on."""
        self.line((x, top), (x, bottom), width=3)

    def brace(self, x, y, width, words, below=False):
        """What belongs together: a bracket over it, or below, and words."""
        tip = -5 if below else 5
        self.line((x + 1, y + tip), (x + 1, y), (x + width - 1, y), (x + width - 1, y + tip))
        self.text(x + width / 2, y + (11 if below else -10), words, "middle")

    def tree(self, x, y, step, both=False, rise=36):
        """Shuffles between lanes that are 16, 8, 4, 2 and 1 apart, from y down: to lane 0, or `both` ways, with what
        does not end in lane 0 drawn pale."""
        for apart in (16, 8, 4, 2, 1):
            others = range(apart, 32 if both else apart)
            for lanes, colour, width in ((others, "#bbbbbb", 0.6), (range(apart), INK, 1.1)):
                ends = ((x + step * one, x + step * lane) for lane in lanes for one in (lane, lane ^ apart))
                self.add("path", d="".join(f"M{a:.1f} {y}L{b:.1f} {y + rise}" for a, b in ends), stroke=colour,
                         stroke_width=width)
            self.text(x - 20, y + rise / 2, str(apart), "end", size=12)
            y += rise

    def exchange(self, sent, received):
        """Four blocks of a cluster. `sent`: the cells of each; what they send goes to all, which receive the same."""
        for block, (cells, fill) in enumerate(zip(sent, OWNERS)):
            x = 80 + 98 * block
            self.text(x + 46, 12, f"block {block}", "middle")
            self.cells(x, 22, 92 / len(cells), [(words, fill) for words in cells], size=12)
            self.cells(x, 92, 23, list(zip(received, OWNERS)), size=12)
            for other in range(4):
                self.arrow((x + 46, 48), (126 + 98 * other, 90), width=0.8)

    def legend(self, y, *entries, x=8, gap=20):
        """(fill, words) each; fill None is a barrier."""
        for fill, words in entries:
            if fill:
                self.box(x, y - 6, 16, 12, fill=fill)
            else:
                self.barrier(x + 8, y - 8, y + 8)
            self.text(x + 21, y, words)
            x += 21 + 7.8 * len(words) + gap

    def __str__(self):
        ET.indent(self.svg, "")
        return ET.tostring(self.svg, encoding="unicode") + "\n"


def ring(rows, stages, latency, each, sums, rest):
    """A ring's times, by row: (requested, there, read from, slot free, done). The engine brings a row in `latency`, one
    `each` so long after the other. Summing a row up frees its slot, and the row `stages` further is requested."""
    times = []
    for n in range(rows):
        asked = times[n - stages][3] if n >= stages else 0
        there = max(asked + latency, times[-1][1] + each if times else 0)
        start = max(there, times[-1][4] if times else 0)
        times.append((asked, there, start, start + sums, start + sums + rest))
    return times


def slot_bars(times, stages, slot, names, readers=(COMPUTE,)):
    """What a slot of the ring holds over time: a row on its way, there, and read."""
    return [bar for n in range(slot, len(times), stages) for asked, there, start, free, *_ in [times[n]]
            for bar in ((asked, there, LOAD, names[n]), (there, start, WHITE, ""),
                        (start, free, readers[n % len(readers)], names[n]))]


class PictureError(Exception):
    """A picture that says something else than its kernel, or nothing; the message is a sentence."""


def pictures_of(directory):
    """{name: (alternative text, SVG)} of a chapter's picture.py; none where it has none."""
    source = directory / "picture.py"
    if not source.exists():
        return {}
    kernel = (directory / "kernel.cu").read_text(encoding="utf-8")
    functions = {name: one for name, one in runpy.run_path(str(source), run_name="picture").items()
                 if inspect.isfunction(one) and one.__module__ == "picture" and not name.startswith("_")}
    for name, function in functions.items():
        if not function.__doc__:
            raise PictureError(f"{source}: {name} has no docstring, so its picture no alternative text")
        for constant, one in inspect.signature(function).parameters.items():
            if f" {constant} = {one.default};" not in kernel:
                raise PictureError(f"{source}: {name} draws {constant} = {one.default}, which is not in kernel.cu")
    return {name: (" ".join(one.__doc__.split()), str(one())) for name, one in functions.items()}
