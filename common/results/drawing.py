"""What the figures share: style, titles, axes, labels that keep apart, and files that carry the name of their data.

matplotlib is imported only to draw.
"""

import functools
import hashlib
import json
import re
import textwrap
from pathlib import Path

from common.results.problems import problem_of
from common.results.records import NARROW_SPACE, number

STYLE = Path(__file__).with_name("progression.mplstyle")
# A page shows a figure at most 948 pixels wide, and a telephone narrower: so it is narrow, and its words large.
WIDTH, WORDS = 6.8, 10.5  # inches, points
LARGE = {"font.size": WORDS, "figure.titlesize": 12, "path.simplify_threshold": 0.4}
# Okabe and Ito's colours, told apart by colour-blind readers, the purple darker so that words can be read in it.
COLOURS = {"fwd": "#0072B2", "bwd": "#E69F00"}
MARKS = [("#0072B2", "D"), ("#D55E00", "s"), ("#009E73", "^"), ("#A9528A", "v"), ("#56B4E9", "P"), ("#E69F00", "X")]
BLACK = ("black", "o")
ASIDE = "#666666"  # words and marks beside the story; dark enough to be read on white
RING = {"linestyle": "none", "marker": "o", "markersize": 9, "markerfacecolor": "none", "zorder": 4}
BLANK = {"facecolor": "white", "edgecolor": "none", "pad": 0}  # behind words: no line crosses them


DIRECTIONS = {"fwd": ("forward", "copy"), "bwd": ("backward", "triad")}
AXES = {"gbps": "GB/s of the operator's bytes", "of_roof": "% of the roof", "cycles": "SM cycles"}


def drawing(what):
    """Runs a drawing function within the style. Where there is nothing to draw, says what the rows lack; without rows,
    their source has said it."""
    def decorate(draw):
        @functools.wraps(draw)
        def styled(rows, *arguments, **options):
            if not rows:
                return None
            import matplotlib.style

            with matplotlib.style.context([str(STYLE), LARGE]):
                figure = draw(rows, *arguments, **options)
            if figure is None:
                print(f"Nothing to draw: these data hold no {what}.")
            return figure
        return styled
    return decorate


def by(rows, *keys):
    """The rows in lists that share the keys, names or functions, in the order in which these appear."""
    lists = {}
    for row in rows:
        key = tuple(key(row) if callable(key) else row[key] for key in keys)
        lists.setdefault(key if len(keys) > 1 else key[0], []).append(row)
    return lists


def device_of(row):
    return row.get("of") or row["device"] or "an unknown device"


def new_figure(rows, sentence, size, *, problem="", beside=(), made="", words="", **options):
    """A figure and its panels. Its title is what there is to see, then where, and `made`: with what. Emulated times
    allow no sentence. `words` are the alternative text: what the figure shows to those who do not see it."""
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    place = f"{problem} on {device_of(rows[0])}"
    if rows[0]["emulated"]:
        sentence, place = "Emulated times rank nothing on a GPU", f"{problem} emulated{place[len(str(problem)):]}"
        place += ": no GPU's time"
    elif beside:
        place += f"; hollow: {' and '.join(beside)}"
    place = ", ".join(filter(None, [place.strip(), made]))
    width, height = size
    letters = int(135 * width / rcParams["figure.titlesize"]) - 8  # of a line
    lines = [line for part in [*sentence.split("\n"), place] for line in textwrap.wrap(part, letters)]
    figure = Figure(figsize=(width, height + 0.2 * (len(lines) - 1)))
    figure.suptitle("\n".join(lines), x=0.01, ha="left")
    figure.set_label(words)
    return figure, figure.subplots(squeeze=False, **options)


def log_axis(axis):
    """Ticks in plain numbers, more of them where fewer decades show: 10, 20, 50 or 10, 30, 100."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = sorted(axis.get_view_interval())
    subs = (1, 2, 5) if high < 50 * low else (1, 3) if high < 2000 * low and high < 1e5 else (1,)
    axis.set_major_locator(LogLocator(subs=subs, numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.9g}".replace(",", NARROW_SPACE)))
    axis.set_minor_formatter(NullFormatter())


def set_ticks(axis, ticks):
    """Those of the ticks that the axis shows, in plain numbers."""
    from matplotlib.ticker import NullLocator

    low, high = sorted(axis.get_view_interval())
    shown = [tick for tick in ticks if low <= tick <= high]
    axis.set_ticks(shown, [f"{tick:g}" for tick in shown])
    axis.set_minor_locator(NullLocator())


def whiskers(rows):
    """From p10 to p90, as matplotlib wants it: distances from the median."""
    return [[row["median_us"] - row["p10_us"] for row in rows], [row["p90_us"] - row["median_us"] for row in rows]]


def spread_of(rows, value):
    """The value at p10 and at p90 of the time; what is per second falls as the time grows."""
    if value == "median_us":
        return [[row[key] for row in rows] for key in ("p10_us", "p90_us")]
    return [[row[value] * (row["median_us"] / row[key]) for row in rows] for key in ("p90_us", "p10_us")]


# --- Labels that keep apart ---


def halo(width=3.0):
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=width, foreground="white")]


def spread_out(wished, gap, low=float("-inf"), high=float("inf")):
    """Moves sorted positions between low and high, neighbours `gap` from each other, as little as it can."""
    last = len(wished) - 1
    groups = []  # [sum of wished starts, members]: a group stands at its mean, its members a gap apart
    for at, position in enumerate(wished):
        groups.append([min(max(position, low + at * gap), high - (last - at) * gap), 1])
        while len(groups) > 1 and (groups[-2][0] / groups[-2][1] + groups[-2][1] * gap
                                   > groups[-1][0] / groups[-1][1]):
            total, members = groups.pop()
            before, count = groups[-1]
            groups[-1] = [before + total - members * count * gap, count + members]
    return [total / members + i * gap for total, members in groups for i in range(members)]


def label_ends(axes, ends, inches, lines=1):
    """Names lines at the right of an axes that is `inches` high. An end is (y, text, colour)."""
    from matplotlib import rcParams

    transform, gap = axes.transAxes.inverted().transform, (lines * rcParams["font.size"] + 2) / 72 / inches
    ends = sorted((transform(axes.transData.transform((axes.get_xlim()[1], y)))[1], text, colour)
                  for y, text, colour in ends)
    for (height, text, colour), place in zip(ends, spread_out([height for height, *_ in ends], gap, 0, 1)):
        point_out(axes, text, colour, (1.0, height), (1.04, place), "axes fraction", "axes fraction", ha="left",
                  linespacing=1.0)


def point_out(axes, text, colour, point, place, point_in, place_in, *, short=0, **options):
    """Words at a place, and a line from there to `short` of the point that they name; no line crosses words."""
    axes.annotate("", point, place, xycoords=point_in, textcoords=place_in, annotation_clip=False, zorder=2.5,
                  arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.8, "shrinkA": 3, "shrinkB": short})
    axes.annotate(text, place, xycoords=place_in, va="center", color=colour, annotation_clip=False, zorder=4,
                  bbox=BLANK, **options)


# --- What several figures draw or say ---


def capital(sentence):
    return sentence[:1].upper() + sentence[1:]


def time_label(rows):
    return "emulated µs, no GPU's" if rows[0]["emulated"] else "µs for one launch, cold L2"


def devices_of(rows):
    """(the reader's own rows, {name: rows} of the devices beside them)"""
    devices = by(rows, device_of)
    return devices.pop(list(devices)[-1]), devices


def styles_of(names, marks=(*MARKS, BLACK)):
    """A colour and a marker for each name, by its place in the list."""
    return {name: {"color": marks[i % len(marks)][0], "marker": marks[(i + i // len(marks)) % len(marks)][1]}
            for i, name in enumerate(names)}


def name_rows(axes, names, above=0.6):
    """Names down the y axis, the first one on top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -above)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", which="major")


def draw_roof_time(axes, rows, at):
    roofs = sorted(row["roof_us"] for row in rows if row["roof_us"])
    if roofs:
        roof, name = roofs[len(roofs) // 2], DIRECTIONS[rows[0]["direction"]][1]
        axes.axvline(roof, color="black", linewidth=1.2, path_effects=halo())
        axes.annotate(f"the roof: a {name}, {number(roof, 3)} µs", (roof, at), (4, 0), textcoords="offset points",
                      va="center", bbox=BLANK)


def draw_beside(axes, own, beside, value, name="{}", **look):
    """A ring for each other device in the rows of `own`, where it has the same chapter and problem."""
    places = {(row["chapter"], problem_of(row)): at for at, row in enumerate(own)}
    for (device, rows), (colour, _) in zip(beside.items(), MARKS[1:4]):
        shown = [(value(row), place) for row in rows
                 if (place := places.get((row["chapter"], problem_of(row)))) is not None and value(row)]
        axes.plot([x for x, _ in shown], [y for _, y in shown], label=name.format(device),
                  **{**RING, "color": colour, **look})


def draw_lines(axes, rows, x, value, styles, own):
    """A line of each chapter, its band from p10 to p90: thin and grey where it is not told apart, dashed and hollow
    where it is another device's than `own`."""
    for (device, chapter), line in by(sorted(rows, key=x), device_of, "chapter").items():
        xs, ys = [x(row) for row in line], [row[value] for row in line]
        if chapter in styles and device == own:
            axes.plot(xs, ys, markersize=4.5, linewidth=1.8, markevery=max(1, len(line) // 8), zorder=3, label=chapter,
                      **styles[chapter])
            axes.fill_between(xs, *spread_of(line, value), color=styles[chapter]["color"], alpha=0.25, linewidth=0)
        elif chapter in styles:
            axes.plot(xs, ys, markersize=6, linewidth=0.9, linestyle="--", markevery=max(1, len(line) // 8), zorder=2,
                      markerfacecolor="white", **styles[chapter])
        elif device == own:
            axes.plot(xs, ys, color="#bbbbbb", linewidth=0.8, zorder=1.5)
    axes.set_xscale("log", base=2)
    axes.grid(which="major")


def readable_on(colour):
    """Black or white: what is read better on a colour."""
    red, green, blue, _ = colour
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"


def draw_cells(axes, values, texts, norm, colours, columns):
    """A table of numbers, shaded. `texts`: rows of strings."""
    image = axes.imshow(values, norm=norm, cmap=colours, aspect="auto")
    for i, line in enumerate(texts):
        for j, text in enumerate(line):
            axes.annotate(text, (j, i), ha="center", va="center", fontsize=8.5,
                          color=readable_on(image.cmap(image.norm(values[i][j]))))
    axes.set_xticks(range(len(columns)), columns)
    axes.tick_params(length=0)
    axes.grid(False)


def name_marks(figure, *panels, **options):
    """A legend of all panels below them, each name once."""
    entries = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels()):
            entries.setdefault(label, handle)
    if entries:
        figure.legend(entries.values(), entries, **{"loc": "outside lower center", "ncols": 3, **options})


# --- Files that carry the name of their data ---


def digest(data):
    """Names the data of a figure. The figure carries it, so that a check need not draw.

    A change of the style leaves the digest: delete the figure to have it drawn anew. Nine digits of a number count: the
    last ones of a sum differ between versions of Python.
    """
    rounded = json.loads(json.dumps(data), parse_float=lambda number: f"{float(number):.9g}")
    return hashlib.sha256(json.dumps(rounded, sort_keys=True).encode()).hexdigest()[:16]


def drawn_from(path):
    """The digest in a figure, or None."""
    found = re.search(r"data ([0-9a-f]{16})", path.read_text(encoding="utf-8")) if path.exists() else None
    return found[1] if found else None


def write_figure(draw, data, path):
    """Writes draw(data) to `path` (.svg, or .png to look at it). False where matplotlib is missing.

    The same data give the same file.
    """
    try:
        import matplotlib.style
    except ImportError:
        return False
    figure = draw(data)
    path.parent.mkdir(parents=True, exist_ok=True)
    words = " ".join(filter(None, [figure.get_label(), f"data {digest(data)}"]))
    metadata = {"Date": None, "Creator": None, "Title": figure.get_suptitle().replace("\n", " "), "Description": words}
    with matplotlib.style.context(str(STYLE)):
        figure.savefig(path, **({"metadata": metadata} if path.suffix == ".svg" else {}))
    if path.suffix == ".svg":
        path.write_text(shortened(path.read_text(encoding="utf-8")), encoding="utf-8")
    return True


def shortened(svg):
    """The same without indents, and with one digit behind the point in its curves, two in its places: a tenth of a
    point cannot be seen. A clip is named by its number: matplotlib names it after all digits of its place, and the
    last ones of a layout differ from run to run."""
    def curve(found):
        short = re.sub(r"(\.\d)\d+", r"\1", found[0]).replace(" \n", " ")
        return short if re.search("[QC]", short) else short.replace(" L ", " ")  # points after points are lines

    clips = {name: f"clip{at}" for at, name in enumerate(dict.fromkeys(re.findall(r"url\(#(p[0-9a-f]{10})\)", svg)))}
    svg = re.sub(r"\bp[0-9a-f]{10}\b", lambda found: clips.get(found[0], found[0]), svg)
    svg = re.sub(r' d="[^"]*"', curve, re.sub(r"\n +", "\n", svg))
    return re.sub(r"translate\([^)]*\)", lambda found: re.sub(r"(\.\d\d)\d+", r"\1", found[0]), svg)
