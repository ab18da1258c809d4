"""The figures of README.md as SVG; the notebooks' own are in notebooks/lab/figures.py, which borrows from here.
matplotlib is imported only to draw.

A figure is drawn from a book's rows (book.py) and says in its title what there is to see in these
very rows. Nothing here knows a chapter or a device by name. Where a figure has nothing to draw, it
prints why and is None.
"""

import functools
import hashlib
import itertools
import json
import re
import textwrap
from math import ceil, log2

from book import KINDS, provenance
from chapter_map import MAIN
from measurements import NARROW_SPACE, geometric_mean, number, problem_of
from style import STYLE

# Okabe and Ito's blue and orange: told apart by colour-blind readers, and by their greys.
COLOURS = {"fwd": "#0072B2", "bwd": "#E69F00"}
ASIDE = "#666666"  # words and marks beside the story; dark enough to be read on white
DIRECTIONS = {"fwd": ("forward", "copy"), "bwd": ("backward", "triad")}
AXES = {"gbps": "GB/s of the operator's bytes",
        "of_roof": "% of the roof", "cycles": "SM cycles"}


# --- The style, and what figures share ---


def drawing(what):
    """Runs a drawing function within the style; where it has nothing to draw, says what is missing."""
    def decorate(draw):
        @functools.wraps(draw)
        def styled(rows, *arguments, **options):
            import matplotlib

            with matplotlib.rc_context({**STYLE, "path.simplify_threshold": 0.4}):  # of a point, which nobody sees
                figure = draw(rows, *arguments, **options) if rows else None
            if figure is None:
                print(f"Nothing to draw: these data hold no {what}.")
            return figure
        return styled
    return decorate


def new_figure(width, height, title, *, panels=(1, 1), **options):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=110, facecolor="white", layout="constrained")
    figure.suptitle(title, fontsize=10.5, x=0.01, ha="left")
    return figure, figure.subplots(*panels, squeeze=False, **options)


def where(rows, problem=""):
    """'f32, 1024 × 2048 on NVIDIA H100', and that the times are emulated where they are."""
    device = rows[0]["device"] or "an unknown device"
    place = f"emulated on {device}: no GPU's time" if rows[0]["emulated"] else f"on {device}"
    return f"{problem} {place}".strip()


def verdict(rows, sentence, problem=""):
    """A figure's title: what there is to see, then where. Emulated times allow no sentence."""
    if rows[0]["emulated"]:
        sentence = "Emulated times rank nothing on a GPU"
    return f"{sentence}\n{where(rows, problem)}"


def capital(sentence):
    return sentence[:1].upper() + sentence[1:]


def time_label(rows):
    return "emulated µs, no GPU's" if rows[0]["emulated"] else "µs for one launch, cold L2"


def log_axis(axis):
    """Ticks in plain numbers, more of them where fewer decades show: 10, 20, 50 or 10, 30, 100."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = sorted(axis.get_view_interval())
    subs = (1, 2, 5) if high < 50 * low else (1, 3) if high < 2000 * low and high < 1e5 else (1,)
    axis.set_major_locator(LogLocator(subs=subs, numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.9g}".replace(",", NARROW_SPACE)))
    axis.set_minor_formatter(NullFormatter())


BLANK = {"facecolor": "white", "edgecolor": "none", "pad": 0}  # behind words: no line crosses them


def halo(width=3.0):
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=width, foreground="white")]


def whiskers(rows):
    """From p10 to p90, as matplotlib wants it: distances from the median."""
    return [[row["median_us"] - row["p10_us"] for row in rows], [row["p90_us"] - row["median_us"] for row in rows]]


def spread_out(positions, gap):
    """Moves sorted positions apart until neighbours are `gap` from each other, as little as it can."""
    groups = []  # [sum of wished starts, members]: a group stands at its mean, its members a gap apart
    for position in positions:
        groups.append([position, 1])
        while len(groups) > 1 and (groups[-2][0] / groups[-2][1] + groups[-2][1] * gap
                                   > groups[-1][0] / groups[-1][1]):
            total, members = groups.pop()
            before, count = groups[-1]
            groups[-1] = [before + total - members * count * gap, count + members]
    return [total / members + i * gap for total, members in groups for i in range(members)]


def label_ends(axes, ends, inches, size=8.5, lines=1):
    """Names lines at the right of an axes that is `inches` high. An end is (y, text, colour)."""
    transform, gap = axes.transAxes.inverted().transform, (lines * size + 2) / 72 / inches
    ends = sorted((transform(axes.transData.transform((axes.get_xlim()[1], y)))[1], text, colour)
                  for y, text, colour in ends)
    wished = [min(max(height, i * gap), 1 - (len(ends) - 1 - i) * gap) for i, (height, _, _) in enumerate(ends)]
    for (height, text, colour), place in zip(ends, spread_out(wished, gap)):
        axes.annotate(text, (1.0, height), (1.035, place), xycoords="axes fraction", textcoords="axes fraction",
                      va="center", fontsize=size, color=colour, linespacing=1.0, annotation_clip=False,
                      arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.8, "relpos": (0, 0.5),
                                  "shrinkA": 1, "shrinkB": 0})


def by(rows, key):
    """The rows in lists that share a key, in the order in which the keys appear."""
    lists = {}
    for row in rows:
        lists.setdefault(key(row), []).append(row)
    return lists


# --- README.md's figures: files that carry the name of their data ---

# A page shows them at most 948 pixels wide, and a telephone narrower: so they are narrow, and their words large.
WIDTH, WORDS, TITLE = 6.8, 10.5, 12  # inches, points, points


def readme_figure(height, rows, sentence, words, *, problem="", made="", panels=(1, 1), **options):
    """As new_figure(), with room above the panels for `sentence` and where it was measured; `made`: with what.

    `words` are the alternative text: what the figure shows to those who do not see it.
    """
    if rows[0]["emulated"]:
        sentence = "Emulated times rank nothing on a GPU"
    lines = [line for part in sentence.split("\n") for line in textwrap.wrap(part, 68)]
    height += 0.2 * (len(lines) + made.count(", ") // 3)
    place = ", ".join(filter(None, [where(rows, problem), made]))
    figure, axes = new_figure(WIDTH, height, "\n".join([*lines, *textwrap.wrap(place, 68)]),
                              panels=panels, **options)
    figure.suptitle(figure.get_suptitle(), fontsize=TITLE, x=0.01, ha="left")
    figure.set_label(words)
    for panel in axes.flat:
        panel.tick_params(labelsize=WORDS)
        panel.title.set_fontsize(TITLE)
    return figure, axes


def digest(data):
    """Names the data of a figure. The figure carries it, so that a check need not draw.

    A change of the style leaves the digest: delete the figure to have it drawn anew. Nine digits of a number count: the
    last ones of a sum differ between versions of Python.
    """
    rounded = json.loads(json.dumps(data), parse_float=lambda number: f"{float(number):.9g}")
    return hashlib.sha256(json.dumps(rounded, sort_keys=True).encode()).hexdigest()[:16]


def drawn_from(path):
    """The digest in a figure, or None."""
    if not path.exists():
        return None
    found = re.search(r"data ([0-9a-f]{16})", path.read_text(encoding="utf-8"))
    return found[1] if found else None


def write_figure(draw, data, path):
    """Writes draw(data) to `path` (.svg, or .png to look at it). False where matplotlib is missing.

    The same data give the same file.
    """
    try:
        import matplotlib
    except ImportError:
        return False
    figure = draw(data)
    path.parent.mkdir(parents=True, exist_ok=True)
    title = figure.get_suptitle().replace("\n", " ")
    metadata = {"Date": None, "Creator": None, "Title": title,
                "Description": " ".join(filter(None, [figure.get_label(), f"data {digest(data)}"]))}
    with matplotlib.rc_context(STYLE):
        figure.savefig(path, dpi=110, **({"metadata": metadata} if path.suffix == ".svg" else {}))
    if path.suffix == ".svg":
        path.write_text(shortened(path.read_text(encoding="utf-8")), encoding="utf-8")
    return True


def shortened(svg):
    """The same without indents, and with one digit behind the point in its curves, two in its places: nobody sees
    a tenth of a point. A clip is named by its number: matplotlib names it after all digits of its place, and the last
    ones of a layout differ from run to run."""
    def curve(found):
        short = re.sub(r"(\.\d)\d+", r"\1", found[0]).replace(" \n", " ")
        return short if re.search("[QC]", short) else short.replace(" L ", " ")  # points after points are lines

    clips = {name: f"clip{at}" for at, name in enumerate(dict.fromkeys(re.findall(r"url\(#(p[0-9a-f]{10})\)", svg)))}
    svg = re.sub(r"\bp[0-9a-f]{10}\b", lambda found: clips.get(found[0], found[0]), svg)
    svg = re.sub(r' d="[^"]*"', curve, re.sub(r"\n +", "\n", svg))
    return re.sub(r"translate\([^)]*\)", lambda found: re.sub(r"(\.\d\d)\d+", r"\1", found[0]), svg)


# --- One problem, chapter by chapter ---


@drawing("chapter on this problem")
def progression(rows):
    """Each chapter's time, p10 to p90, from the first one's down to the roof: the main line in colour,
    the side roads hollow."""
    groups = by(rows, lambda row: row["direction"])
    sizes = [len(group) + 1.6 for group in groups.values()]
    figure, panels = readme_figure(1.1 + 0.24 * sum(sizes), rows, capital(";\n".join(falls(rows))),
                                   progression_words(rows), problem=problem_of(rows[0]), panels=(len(groups), 1),
                                   sharex=True, gridspec_kw={"height_ratios": sizes})
    low = min(min(row["p10_us"], row["roof_us"] or row["p10_us"]) for row in rows) / 1.5
    high = max(row["p90_us"] for row in rows) * 1.8
    for axes, (direction, group) in zip(panels[:, 0], groups.items()):
        axes.set_xscale("log")
        axes.set_xlim(low, high)
        draw_fall(axes, group, COLOURS[direction], middle=(low * high) ** 0.5)
        axes.set_title(DIRECTIONS[direction][0])
        axes.set_yticks([])
        axes.set_ylim(len(group) - 0.4, -1.4)  # room for the roof's name
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x", which="major")
        draw_roof_time(axes, group, DIRECTIONS[direction][1], -0.95, fontsize=WORDS)
    if len(main_line(rows)) < len(rows):
        panels[0, 0].set_title("filled: the main line; hollow: side roads", loc="right", fontsize=WORDS, color=ASIDE,
                               fontweight="normal")
    log_axis(panels[-1, 0].xaxis)
    panels[-1, 0].set_xlabel(f"{time_label(rows)}: median, p10 to p90 (log scale)", fontsize=WORDS)
    return figure


def draw_fall(axes, rows, colour, middle):
    """A dot for each chapter, its name on the side of the `middle` that has room; a line along the main line."""
    main = main_line(rows)
    axes.plot([row["median_us"] for row in main], [rows.index(row) for row in main], color=colour, linewidth=1.6,
              zorder=1.5)
    for at, row in enumerate(rows):
        ours = row in main
        axes.errorbar(row["median_us"], at, xerr=whiskers([row]), fmt="o", markersize=7 if ours else 5.5,
                      color=colour if ours else ASIDE, markerfacecolor=colour if ours else "white",
                      markeredgecolor="black" if ours else ASIDE, markeredgewidth=0.8, ecolor="black", elinewidth=1.0,
                      zorder=3)
        words = [f"{number(row['median_us'], 3)} µs", row["chapter"], row["title"]]
        left = row["median_us"] > middle
        axes.annotate("  ".join(reversed(words) if left else words), (row["p10_us" if left else "p90_us"], at),
                      (-9 if left else 8, 0), textcoords="offset points", va="center", ha="right" if left else "left",
                      fontsize=WORDS, color="black" if ours else ASIDE, bbox=BLANK)


def main_line(rows):
    return [row for row in rows if row["road"] == MAIN] or rows


def ends_of_fall(rows):
    """[(the first chapter of the main line, its fastest)], of each direction."""
    lines = [main_line(own) for own in by(rows, lambda row: row["direction"]).values()]
    return [(main[0], min(main, key=lambda row: row["median_us"])) for main in lines]


def falls(rows):
    """['Forward falls from 1 328 to 10.2 µs, 99 % of the roof', 'backward …']"""
    return [f"{DIRECTIONS[first['direction']][0]} falls from {number(first['median_us'], 3)} to "
            f"{number(best['median_us'], 3)} µs" + (f", {best['of_roof']:.0f} % of the roof" if best["of_roof"] else "")
            for first, best in ends_of_fall(rows)]


def progression_words(rows):
    """The alternative text of progression()."""
    ends = " and ".join(f"{first['chapter']} to {best['chapter']}" for first, best in ends_of_fall(rows))
    return (f"The time of one launch of each chapter, as dots on a log scale above the roof's line. From {ends}: "
            f"{'; '.join(falls(rows))}.")


def draw_roof_time(axes, rows, name, at, **options):
    roofs = sorted(row["roof_us"] for row in rows if row["roof_us"])
    if roofs:
        roof = roofs[len(roofs) // 2]
        axes.axvline(roof, color="black", linewidth=1.2, path_effects=halo())
        axes.annotate(f"the roof: a {name}, {number(roof, 3)} µs", (roof, at), (4, 0),
                      textcoords="offset points", va="center", bbox=BLANK, **options)


# --- Many problems ---


@drawing("part of the roof at more than one width")
def sweep(rows):
    """% of the roof over N, a panel for each direction: a few chapters in colour, the others thin and grey."""
    rows = [row for row in rows if row["of_roof"] is not None]
    panels = panels_over_columns(rows)
    if not panels:
        return None
    height = 2.9
    figure, axes_column = readme_figure(0.6 + height * len(panels), rows, capital(";\n".join(kept(rows))),
                                        sweep_words(rows), panels=(len(panels), 1), sharey=True)
    for axes, ((direction, dtype, height_of_x), group) in zip(axes_column[:, 0], panels.items()):
        draw_over_columns(axes, group, "of_roof", story_styles(story(group)), log=False)
        axes.set_title(f"{DIRECTIONS[direction][0]}, {dtype}, {height_of_x} × N")
        axes.set_ylabel(AXES["of_roof"], fontsize=WORDS)
    for axes, group in zip(axes_column[:, 0], panels.values()):
        names = {row["chapter"]: textwrap.fill(f"{row['chapter']} {row['title']}", 24) for row in group}
        ends = ends_over_columns(group, "of_roof", story_styles(story(group)), names)
        label_ends(axes, ends, height - 0.8, WORDS, lines=2)
    axes_column[-1, 0].set_xlabel("N, columns (log scale)\nshade: p10 to p90; grey: the other chapters", fontsize=WORDS)
    return figure


def panels_over_columns(rows):
    """The rows by direction, dtype and M, where there is more than one N."""
    panels = by(rows, lambda row: (row["direction"], row["dtype"], row["rows"]))
    return {key: group for key, group in panels.items() if len({row["cols"] for row in group}) > 1}


def story(rows):
    """Up to four chapters of a direction that tell where it goes: the first, the best, and of the main line those
    nearest to a third and two thirds of the way from the one to the other."""
    least = {problem: min(row["median_us"] for row in own) for problem, own in by(rows, problem_of).items()}
    share = {}
    for chapter, own in by(rows, lambda row: row["chapter"]).items():
        share[chapter] = sum(least[problem_of(row)] / row["median_us"] for row in own) / len(own)
    main = list(dict.fromkeys(row["chapter"] for row in main_line(rows)))
    best = max(main, key=share.get)
    between = [share[main[0]] + part * (share[best] - share[main[0]]) for part in (1 / 3, 2 / 3)]
    nearest = [min(main, key=lambda chapter, at=at: abs(share[chapter] - at)) for at in between]
    return sorted({main[0], *nearest, best}, key=share.get)


# Okabe and Ito's colours, from those that words can be read in, the purple darker for that; each with a marker.
STORY = [("black", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#0072B2", "D"), ("#A9528A", "v"), ("#56B4E9", "P"),
         ("#E69F00", "X")]


def story_styles(chapters):
    """The last chapter of the story, its best, is blue whether there are two or four."""
    marks = STORY[:max(0, len(chapters) - 1)][:3] + STORY[3:] if len(chapters) <= 4 else STORY
    return {chapter: {"color": colour, "marker": marker}
            for chapter, (colour, marker) in zip(chapters, itertools.cycle(marks))}


def draw_over_columns(axes, rows, value, styles, log):
    axes.set_xscale("log", base=2)
    if log:
        axes.set_yscale("log")
    for chapter, own in by(sorted(rows, key=lambda row: row["cols"]), lambda row: row["chapter"]).items():
        cols, values = [row["cols"] for row in own], [row[value] for row in own]
        if chapter not in styles:
            axes.plot(cols, values, color="#bbbbbb", linewidth=0.8, zorder=1.5)
            continue
        axes.plot(cols, values, markersize=4.5, linewidth=1.8, markevery=max(1, len(own) // 8), zorder=3,
                  **styles[chapter])
        axes.fill_between(cols, *spread_of(own, value), color=styles[chapter]["color"], alpha=0.25, linewidth=0)
    roof = roof_over_columns(rows, value)
    if roof:
        axes.plot(*zip(*roof), color="black", linewidth=2.0, zorder=2)
    if not log:
        axes.set_ylim(0)
    widths = sorted({row["cols"] for row in rows})
    axes.set_xlim(widths[0], widths[-1])
    marked = [2**i for i in range(20) if widths[0] <= 2**i <= widths[-1]] or widths
    axes.set_xticks(marked, [str(width) for width in marked])
    axes.grid(which="major")


def ends_over_columns(rows, value, styles, names=None):
    """What label_ends() takes: the last values of the lines in colour, and the roof's. `names`: by chapter."""
    ends = []
    for chapter, own in by(sorted(rows, key=lambda row: row["cols"]), lambda row: row["chapter"]).items():
        if chapter in styles:
            ends.append((own[-1][value], (names or {}).get(chapter, chapter), styles[chapter]["color"]))
    roof = roof_over_columns(rows, value)
    return ends + ([(roof[-1][1], "the roof", "black")] if roof else [])


def kept(rows):
    """['forward, fwd06 keeps 91 to 98 % of the roof', …]: the best chapter over all widths, of each direction."""
    texts = []
    for direction, own in by(rows, lambda row: row["direction"]).items():
        best = story(own)[-1]
        parts = [row["of_roof"] for row in own if row["chapter"] == best]
        texts.append(f"{DIRECTIONS[direction][0]}, {best} keeps {min(parts):.0f} to {max(parts):.0f} % of the roof")
    return texts


def sweep_words(rows):
    """The alternative text of sweep()."""
    widths = [row["cols"] for row in rows]
    first = [f"{chapters[0]} {min(parts):.1f} to {max(parts):.1f} %"
             for own in by(rows, lambda row: row["direction"]).values() if len(chapters := story(own)) > 1
             for parts in [[row["of_roof"] for row in own if row["chapter"] == chapters[0]]]]
    return (f"Percent of the roof over {min(widths)} to {max(widths)} columns, a line for each chapter: "
            f"{'; '.join(kept(rows))}" + (f". The first chapters stay at {', '.join(first)}." if first else "."))


def spread_of(rows, value):
    """The value at p10 and at p90 of the time; what is per second falls as the time grows."""
    if value == "median_us":
        return [[row[key] for row in rows] for key in ("p10_us", "p90_us")]
    return [[row[value] * (row["median_us"] / row[key]) for row in rows] for key in ("p90_us", "p10_us")]


def roof_over_columns(rows, value):
    """[(cols, the roof's value)], empty where there is none."""
    key = {"median_us": "roof_us", "gbps": "roof_gbps"}.get(value)
    if value == "of_roof":
        return [(cols, 100.0) for cols in sorted({row["cols"] for row in rows})]
    return sorted({row["cols"]: row[key] for row in rows if row[key]}.items())


# --- Peers ---


@drawing("problem that one run has of ours and of a peer")
def peers_map(ratios):
    """Our time over each peer's, a row for each problem: what book.against_peers() returns."""
    directions = by(ratios, lambda row: row["direction"])
    styles, part, levels = peer_styles(ratios), *room_for_names(ratios)
    sizes = [len(own) + 1.5 + 0.7 * levels for own in directions.values()]
    sentence = f"Our time over the fastest peer's:\n{', '.join(spans(ratios))}"
    figure, panels = readme_figure(1.3 + 0.27 * sum(sizes), ratios, sentence, peers_words(ratios),
                                   problem=f"{run_of(ratios)},", panels=(len(directions), 1), sharex=True,
                                   gridspec_kw={"height_ratios": sizes})
    shown = [ratio for row in ratios for ratio, *_ in row["ratios"].values()]
    low, high = max(FARTHEST, 0.85 * min(shown)), min(1 / FARTHEST, 1.15 * max(1, *shown))
    for axes, (direction, own) in zip(panels[:, 0], directions.items()):
        axes.set_xscale("log")
        axes.set_xlim(low, high)
        axes.axvline(1, color="black", linewidth=1.6, zorder=2)
        for at, row in enumerate(own):
            draw_peers(axes, row, at, styles)
        axes.set_yticks(range(len(own)), [str(problem_of(row)) for row in own])
        axes.set_ylim(len(own) - 0.4, -1.3 - 0.7 * levels)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x", which="major")
        axes.set_title(DIRECTIONS[direction][0])
        axes.annotate("ours /\nbest peer", (1.02, -1.2), xycoords=("axes fraction", "data"), va="center",
                      fontsize=WORDS, linespacing=1.0, annotation_clip=False)
        axes.annotate("ours", (1, -1.05 - 0.7 * levels), va="center", ha="center", fontsize=WORDS, bbox=BLANK)
        name_peers(axes, own[0], styles, part, levels)
    ticks = [tick for tick in (0.25, 0.35, 0.5, 0.7, 1, 1.4, 2, 3, 4) if low <= tick <= high]
    panels[-1, 0].set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    panels[-1, 0].xaxis.minorticks_off()
    panels[-1, 0].set_xlabel("our time over the peer's (log scale): left of the line ours is faster\n"
                             "thin lines, and the grey band of ours: p10 to p90", fontsize=WORDS)
    return figure


FARTHEST = 0.25  # of our time over a peer's: one that is farther stands at the edge, with its number


def draw_peers(axes, row, at, styles):
    """A dot for each peer, and ours at the line."""
    low, high = axes.get_xlim()
    own = [row[key] / row["median_us"] for key in ("p10_us", "p90_us")]
    axes.fill_betweenx([at - 0.36, at + 0.36], *own, color="#dddddd", linewidth=0, zorder=1)
    for peer, (ratio, most, least) in row["ratios"].items():
        style = {"color": styles[peer]["color"], "markeredgecolor": "black", "markeredgewidth": 0.5, "zorder": 3}
        if low <= ratio <= high:
            axes.errorbar(ratio, at, xerr=[[ratio - least], [most - ratio]], elinewidth=1.2, markersize=7,
                          marker=styles[peer]["marker"], **style)
            continue
        left = ratio < low
        edge = low * 1.02 if left else high / 1.02
        axes.plot(edge, at, marker="<" if left else ">", markersize=8, clip_on=False, **style)
        axes.annotate(f"{peer} {ratio:.2f}", (edge, at), (9 if left else -9, 0), textcoords="offset points",
                      va="center", ha="left" if left else "right", fontsize=WORDS, color=styles[peer]["color"])
    axes.annotate(f"{row['ratio']:.2f}", (1.02, at), xycoords=("axes fraction", "data"), va="center", fontsize=WORDS,
                  annotation_clip=False)


def name_peers(axes, row, styles, part, levels):
    """The peers' names above the first row, in the order of their dots, on so many levels."""
    low, high = (log2(end) for end in axes.get_xlim())
    shown = sorted((log2(ratio), peer) for peer, (ratio, *_) in row["ratios"].items() if low <= log2(ratio) <= high)
    gap = part * (high - low) / levels
    wished = [min(max(at, low + part / 2 * (high - low) + i * gap),
                  high - part / 2 * (high - low) - (len(shown) - 1 - i) * gap) for i, (at, _) in enumerate(shown)]
    for i, ((at, peer), place) in enumerate(zip(shown, spread_out(wished, gap))):
        axes.annotate(peer, (2**at, 0), (2**place, -1.0 - 0.7 * (i % levels)), va="center", ha="center",
                      fontsize=WORDS, color=styles[peer]["color"], annotation_clip=False, bbox=BLANK,
                      arrowprops={"arrowstyle": "-", "color": styles[peer]["color"], "linewidth": 0.8, "shrinkA": 0,
                                  "shrinkB": 4})


def room_for_names(ratios):
    """(the part of an axes' width that the longest peer's name takes, on how many levels all of them have room)"""
    names = {peer for row in ratios for peer in row["ratios"]}
    part = 0.64 * WORDS / 72 * max(map(len, names)) / (WIDTH - 2.6)
    return part, ceil(part * len(names))


def peer_styles(ratios):
    """A colour and a marker for each peer; blue is ours."""
    names = dict.fromkeys(peer for row in ratios for peer in row["ratios"])
    marks = [(colour, marker) for colour, marker in STORY if colour != COLOURS["fwd"]]
    return {name: {"color": colour, "marker": marker} for name, (colour, marker) in zip(names, itertools.cycle(marks))}


def run_of(ratios):
    """'one run, 2026-11-21': when these were measured, and that only times of one run stand in a row."""
    runs = {row["run"] for row in ratios}
    dates = " and ".join(sorted({run[:10] for run in runs}))
    return f"one run{'' if len(runs) == 1 else ' a row'}, {dates}"


def spans(ratios):
    """['forward 0.97 to 1.03', 'backward 0.53 to 0.98']: our time over the fastest peer's."""
    directions = by(ratios, lambda row: row["direction"])
    return [f"{DIRECTIONS[direction][0]} {min(row['ratio'] for row in own):.2f} to "
            f"{max(row['ratio'] for row in own):.2f}" for direction, own in directions.items()]


def peers_words(ratios):
    """The alternative text of peers_map()."""
    names = list(dict.fromkeys(peer for row in ratios for peer in row["ratios"]))
    return (f"Our time over that of {', '.join(names)}, a dot for each on a log scale with a line at 1, a row for each "
            f"of {len(ratios)} problems. Over the fastest of them it is {', '.join(spans(ratios))}.")


# --- Every width ---

KIND_COLOURS = {"layer": COLOURS["fwd"], "rms": "#D55E00"}


@drawing("width of the list with ours beside a peer")
def widths(rows):
    """Over the width, a column for each direction: above our share of the roof, below our time over the fastest
    peer's. rows: of book.against_peers(), of one size."""
    rows = [row for row in rows if row["of_roof"] is not None]
    directions = by(rows, lambda row: row["direction"])
    if len({row["cols"] for row in rows}) < 2:
        return None
    sentence = "\n".join(["Our time over the fastest peer's, mean (least–most); below 1: ahead",
                          *(capital(text) for text in means(rows))])
    dtypes = " and ".join(dict.fromkeys(row["dtype"] for row in rows))
    made = provenance(rows).removeprefix(rows[0]["device"]).removeprefix(", ")
    figure, panels = readme_figure(5.6, rows, sentence, widths_words(rows), made=made, panels=(2, len(directions)),
                                   problem=f"Tensors of 128 MiB, {dtypes}, cold L2,", sharex=True)
    for (above, below), (direction, own) in zip(panels.T, directions.items()):
        name, roof = DIRECTIONS[direction]
        draw_widths(above, own, "of_roof", 100)
        draw_widths(below, own, "ratio", 1)
        above.set_title(f"{name}: % of a {roof}")
        below.set_title(f"{name}: ours / fastest peer")
    of_roof, ratios = ([row[value] for row in rows] for value in ("of_roof", "ratio"))
    for above, below in panels.T:  # the same for both directions
        above.set_ylim(min(90, *of_roof) - 1, max(101, *of_roof) + 1)
        below.set_ylim(min(0.9, *ratios) - 0.02, max(1.02, *ratios) + 0.02)
    cols = sorted({row["cols"] for row in rows})
    panels[0, 0].set_xlim(cols[0] / 1.15, cols[-1] * 1.15)
    marked = [4**i for i in range(20) if cols[0] <= 4**i <= cols[-1]] or cols
    panels[0, 0].set_xticks(marked, [str(width) for width in marked])
    panels[0, 0].xaxis.minorticks_off()
    for axes in panels[1]:
        axes.set_xlabel("columns (log scale)", fontsize=WORDS)
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower left", ncols=4, fontsize=WORDS,
                  frameon=False, columnspacing=1.2, handlelength=1.8, handletextpad=0.5)
    return figure


def draw_widths(axes, rows, value, line):
    """A curve for each kind and type; a black line where the roof or the peer is."""
    axes.set_xscale("log", base=2)
    axes.axhline(line, color="black", linewidth=1.6, zorder=2)
    curves = by(sorted(rows, key=lambda row: row["cols"]), lambda row: (row["kind"], row["dtype"]))
    for (kind, dtype), own in sorted(curves.items()):
        light = dtype == "f32"
        axes.plot([row["cols"] for row in own], [row[value] for row in own], color=KIND_COLOURS[kind],
                  linewidth=1.0 if light else 1.8, linestyle=(0, (4, 2)) if light else "-",
                  marker="s" if kind == "rms" else "o", markersize=3.5, markerfacecolor="white" if light else None,
                  label=f"{KINDS[kind]}, {dtype}", zorder=3)
    axes.grid(which="major")


def means(rows):
    """['forward: layer norm 1.03 (0.95–1.28), RMS norm …', …]: our time over the fastest peer's, of each direction;
    the mean is the geometric one."""
    texts = []
    for direction, own in by(rows, lambda row: row["direction"]).items():
        ratios = {kind: [row["ratio"] for row in those] for kind, those in by(own, lambda row: row["kind"]).items()}
        texts.append(f"{DIRECTIONS[direction][0]}: " + ", ".join(
            f"{KINDS[kind]} {geometric_mean(those):.2f} ({min(those):.2f}–{max(those):.2f})"
            for kind, those in ratios.items()))
    return texts


def widths_words(rows):
    """The alternative text of widths()."""
    cols, names = sorted({row["cols"] for row in rows}), dict.fromkeys(peer for row in rows for peer in row["ratios"])
    dtypes, shares = " and ".join(dict.fromkeys(row["dtype"] for row in rows)), []
    for direction, own in by([row for row in rows if row["of_roof"]], lambda row: row["direction"]).items():
        parts = [row["of_roof"] for row in own]
        shares.append(f"{DIRECTIONS[direction][0]} {min(parts):.0f} to {max(parts):.0f} % of a "
                      f"{DIRECTIONS[direction][1]}")
    return (f"Our share of the roof, and our time over that of the fastest of {', '.join(names)}, at {len(cols)} "
            f"widths from {cols[0]} to {cols[-1]} columns, {dtypes}, on {rows[0]['device']}. The geometric mean of our "
            f"time over the fastest peer's, and its least to most: {'; '.join(means(rows))}. "
            f"{capital(', '.join(shares))}.")


# --- Training ---

TRAINED = {"torch, reordered": ASIDE, "torch.compile": "black", "enable()": "#56B4E9", "ours": COLOURS["fwd"],
           "ours, memory-efficient": "#D55E00"}  # the colour of a norm's dots
ROUNDED = "#dddddd"  # as far as another order of its sums takes torch


@drawing("training with several seeds (`make library && python3 common/bench/gpt_training.py` writes one)")
def training(rows):
    """Of each type and norm a dot for each seed: the last loss less torch's of the same seed; their mean and its 95 %
    interval; and a band as wide as what the order of its sums does to torch."""
    types = by([row for row in rows if row["norm"] != "torch"], lambda row: row["dtype"])
    sizes = [len(own) + 1 for own in types.values()]
    figure, panels = readme_figure(1.5 + 0.42 * sum(sizes), rows, agreement(rows), training_words(rows),
                                   problem=f"{rows[0]['model']}, {KINDS[rows[0]['kind']]},", panels=(len(types), 1),
                                   sharex=True, gridspec_kw={"height_ratios": sizes})
    for axes, (dtype, own) in zip(panels[:, 0], types.items()):
        draw_differences(axes, own)
        axes.set_title(f"{dtype}, {own[0]['seeds']} seeds")
    panels[-1, 0].locator_params(axis="x", nbins=6)
    panels[-1, 0].set_xlabel("last loss less torch's of the same seed\n"
                             "dot: a seed; bar: their mean and its 95 % interval\n"
                             "grey: as far as another order of its sums takes torch", fontsize=WORDS)
    return figure


def draw_differences(axes, rows):
    if rows[0]["rounding"] is not None:
        axes.axvspan(-rows[0]["rounding"], rows[0]["rounding"], color=ROUNDED, linewidth=0)
    axes.axvline(0, color="black", linewidth=0.8)
    for at, row in enumerate(rows):
        dots = [value for value in row["differences"] if value is not None]
        axes.plot(dots, [at - 0.14] * len(dots), "o", markersize=5.5, markeredgecolor="white", markeredgewidth=0.6,
                  color=TRAINED.get(row["norm"], "black"), label=row["norm"])
        if row["difference"] is not None:
            axes.errorbar(row["difference"], at + 0.2, xerr=row["margin"], fmt="|", markersize=9, capsize=2.5,
                          color="black", elinewidth=1.2, markeredgewidth=1.6)
    axes.set_yticks(range(len(rows)), [row["norm"] for row in rows], fontsize=WORDS)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", which="major")


def agreement(rows):
    """Of each type how far the norms' means are from torch, and how far rounding takes it; then whose are farther,
    and which have no losses."""
    texts = []
    for dtype, own in by(rows, lambda row: row["dtype"]).items():
        means = [row for row in own if row["agrees"] is not None and row["difference"] is not None]
        if means and own[0]["rounding"] is not None:
            most = max(means, key=lambda row: abs(row["difference"]))
            texts.append(f"With {dtype} a norm moves the mean last loss of {most['seeds']} seeds by at most "
                         f"{abs(most['difference']):.2g} ({most['norm']}); another order of torch's sums moves one "
                         f"seed's by up to {most['rounding']:.2g}")
    beyond = [f"{row['norm']} ({row['dtype']})" for row in rows
              if row["agrees"] is False and row["difference"] is not None]
    lost = [f"{row['norm']} ({row['dtype']})" for row in rows if row["last"] is None]
    texts += [f"Farther than that: {'; '.join(beyond)}"] if beyond else []
    texts += [f"Losses that are no numbers: {'; '.join(lost)}"] if lost else []
    return "\n".join(texts)


def training_words(rows):
    """The alternative text of training()."""
    norms = list(dict.fromkeys(row["norm"] for row in rows if row["norm"] != "torch"))
    return (f"The last loss of a model with {'; '.join(norms)}, less torch's of the same seed, as a dot for each seed, "
            f"with {' and '.join(dict.fromkeys(row['dtype'] for row in rows))}. "
            f"{'. '.join(agreement(rows).splitlines())}.")
