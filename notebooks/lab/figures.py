"""The figures of the notebooks about measurements.

A figure is drawn from rows (book.py) of one device or of several. A row's "of" names its device; the
last device is the reader's own, which the title is about, and the others stand beside it, hollow. What
there is to see in these very rows stands in the title. Nothing here knows a chapter or a device by
name. Without rows a figure is None: the Data that gave none have said why.
"""

import functools
import statistics
from math import log2

from measurements import count, number, problem_of
from plots import (COLOURS, DIRECTIONS, by, draw_roof_time, halo, label_ends, log_axis, new_figure, spread_of,
                   time_label, whiskers)
from style import STYLE

# Okabe and Ito's, of chapters or peers that a figure tells apart; each with a marker of its own.
TOLD_APART = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]
MARKERS = "osD^vP*X"
HOLLOW = {"linestyle": "none", "marker": "o", "markersize": 7, "markerfacecolor": "none", "zorder": 4}
OTHER = "#999999"
WHISKERS = {"ecolor": "black", "elinewidth": 1.0, "capsize": 2.5}
BESIDE = ["#D55E00", "#009E73", "#CC79A7"]  # the other devices' marks
AXES = {"median_us": "µs for one launch", "gbps": "GB/s of the operator's bytes", "of_roof": "% of the roof",
        "cycles": "SM cycles"}


def drawing(draw):
    """Runs a drawing function within the style; None where it has nothing to draw."""
    @functools.wraps(draw)
    def styled(rows, *arguments, **options):
        import matplotlib

        with matplotlib.rc_context(STYLE):
            return draw(rows, *arguments, **options) if rows else None
    return styled


def devices_of(rows):
    """(the reader's own rows, {name: rows} of the devices beside them)"""
    names = by(rows, lambda row: row["of"])
    own = list(names)[-1]
    return names[own], {name: rows for name, rows in names.items() if name != own}


def title_of(sentence, own, beside=(), problem=""):
    """What there is to see, then where. Emulated times allow no sentence."""
    if own[0]["emulated"]:
        return f"Emulated times rank nothing on a GPU\n{problem} emulated on {own[0]['of']}: no GPU's time".strip()
    others = f"; hollow: {' and '.join(beside)}" if beside else ""
    return f"{sentence}\n{f'{problem} ' if problem else ''}on {own[0]['of']}{others}"


def styles_of(names):
    """A colour and a marker for each name, by its place in the list."""
    return {name: {"color": TOLD_APART[i % len(TOLD_APART)], "marker": MARKERS[i % len(MARKERS)]}
            for i, name in enumerate(names)}


def name_rows(axes, rows, titles=True):
    """Chapters down the y axis, the first one on top."""
    names = [f"{row['title']}   {row['chapter']}" if titles else row["chapter"] for row in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", which="major")


def nearest_to_roof(rows):
    """'Nearest to the roof: forward fwd06 with 100 % at bf16, 131072 × 4096', of each direction."""
    texts, one = [], len({problem_of(row) for row in rows}) == 1
    for direction, own in by([row for row in rows if row["of_roof"]], lambda row: row["direction"]).items():
        best = max(own, key=lambda row: row["of_roof"])
        texts.append(f"{DIRECTIONS[direction][0]} {best['chapter']} with {best['of_roof']:.0f} %"
                     + ("" if one else f" at {problem_of(best)}"))
    return f"Nearest to the roof: {'; '.join(texts)}" if texts else "No roof was measured"


def merged_legend(*panels):
    entries = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels()):
            entries.setdefault(label, handle)
    return list(entries.values()), list(entries)


# --- One problem, chapter by chapter ---


@drawing
def steps(rows):
    """What each chapter gained or lost over its parent, the nearest that is measured; other devices' times as rings."""
    own, beside = devices_of(rows)
    places = {row["chapter"]: at for at, row in enumerate(own)}
    parents = [next((own[places[name]] for name in row["ancestors"] if name in places), None) for row in own]
    pairs = [(parent, row) for parent, row in zip(parents, own) if parent]
    best = max(pairs, key=lambda pair: pair[0]["median_us"] / pair[1]["median_us"], default=None)
    sentence = f"{own[0]['chapter']} is measured, and no step from it"
    if best:
        gain = number(best[0]["median_us"] / best[1]["median_us"], 3)
        sentence = f"The largest step is {best[0]['chapter']} to {best[1]['chapter']}: × {gain}"
    figure, ((axes,),) = new_figure(8.8, 1.6 + 0.36 * len(own), title_of(sentence, own, beside, problem_of(own[0])))
    colour = COLOURS[own[0]["direction"]]
    others = {(name, row["chapter"]): row["median_us"] for name, other in beside.items() for row in other}
    for at, (parent, row) in enumerate(zip(parents, own)):
        start, end = (parent or row)["median_us"], row["median_us"]
        faster = end <= start
        axes.barh(at, end - start, left=start, height=0.62, color=colour if faster else "white",
                  edgecolor="black", linewidth=0.8, hatch=None if faster else "////")
        if parent:  # a line from the parent's bar to this one
            axes.plot([start, start], [places[parent["chapter"]], at], color="black", linewidth=0.9, zorder=0.5)
        axes.errorbar(end, at, xerr=whiskers([row]), fmt="none", **WHISKERS)
        text = f"{number(end)} µs"
        if parent and not row["emulated"]:
            text += f"   × {number(start / end, 3)} over {parent['chapter']}" + ("" if faster else " (slower)")
        theirs = [others[name, row["chapter"]] for name in beside if (name, row["chapter"]) in others]
        axes.annotate(text, (max(start, row["p90_us"], *theirs), at), (8, 0), textcoords="offset points",
                      va="center", path_effects=halo())
    draw_beside(axes, own, beside)
    axes.set_xscale("log")
    name_rows(axes, own)
    axes.set_ylim(len(own) + 0.3, -0.6)
    draw_roof_time(axes, own, DIRECTIONS[own[0]["direction"]][1], len(own) - 0.1)
    low = min(min(row["p10_us"], row["roof_us"] or row["p10_us"]) for row in rows)
    high = max(row["p90_us"] for row in rows)
    axes.set_xlim(low / 1.4, high * (high / low) ** 0.75)  # room for the words beside the longest
    log_axis(axes.xaxis)
    axes.set_xlabel(f"{time_label(own)}: each bar from the parent's to the chapter's (log scale)")
    if beside:
        figure.legend(*merged_legend(axes), loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def draw_beside(axes, own, beside, value="median_us"):
    """A ring for each chapter of each other device, in the rows of `own`'s chapters."""
    places = {row["chapter"]: at for at, row in enumerate(own)}
    for (name, rows), colour in zip(beside.items(), BESIDE):
        shown = [row for row in rows if row["chapter"] in places and row[value]]
        axes.plot([row[value] for row in shown], [places[row["chapter"]] for row in shown],
                  **HOLLOW, color=colour, label=name)


@drawing
def cycles(rows, source_rows=()):
    """Each chapter's elapsed SM cycles as dots, beside those that its source published."""
    own, beside = devices_of([row for row in rows if row["cycles"]] or rows)
    if not own[0]["cycles"]:
        print("Emulated times have no cycles of a GPU.")
        return None
    least = min(own, key=lambda row: row["cycles"])
    sentence = f"{least['chapter']} takes the fewest cycles"
    if least is not own[0]:
        sentence += f", {own[0]['chapter']} {number(own[0]['cycles'] / least['cycles'], 3)} times as many"
    figure, ((axes,),) = new_figure(8.8, 1.7 + 0.36 * len(own), title_of(sentence, own, beside, problem_of(own[0])))
    published = {row["chapter"]: row["cycles"] for row in source_rows}
    for at, row in enumerate(own):
        axes.plot(row["cycles"], at, marker="o", markersize=8, color=COLOURS[row["direction"]], linestyle="none",
                  label=row["of"])
        axes.annotate(count(row["cycles"]), (row["cycles"], at), (-9, 0), textcoords="offset points", va="center",
                      ha="right", fontsize=8.5)
        if row["chapter"] in published:
            axes.plot(published[row["chapter"]], at, marker="D", markersize=7, color="black", linestyle="none",
                      label=f"{source_rows[0]['device']}, as the source published it")
    draw_beside(axes, own, beside, "cycles")
    values = [*(row["cycles"] for row in rows if row["cycles"]), *published.values()]
    axes.set_xscale("log")
    axes.set_xlim(min(values) / 6, max(values) * 2)
    log_axis(axes.xaxis)
    name_rows(axes, own)
    axes.set_xlabel(f"{AXES['cycles']} of one launch (log scale)")
    figure.legend(*merged_legend(axes), loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


# --- Many problems ---


@drawing
def over_columns(rows, value="of_roof", chapters=()):
    """A value over N, a panel for each M and dtype: the named chapters in colour, the others grey."""
    rows = [row for row in rows if row[value] is not None]
    panels = by(rows, lambda row: (row["direction"], row["dtype"], row["rows"]))
    panels = {key: group for key, group in panels.items() if len({row["cols"] for row in group}) > 1}
    if not panels:
        print(f"Nothing to draw: no {AXES[value]} of more than one width.")
        return None
    own, beside = devices_of(rows)
    styles, height, log = styles_of(chapters), 4.2, value != "of_roof"
    figure, axes_row = new_figure(4.9 * len(panels) + 0.6, height, title_of(over_columns_title(own, value), own,
                                  beside), panels=(1, len(panels)), sharey="row")
    for axes, ((direction, dtype, rows_of_x), group) in zip(axes_row[0], panels.items()):
        axes.set_xscale("log", base=2)
        if log:
            axes.set_yscale("log")
        here = by(sorted(group, key=lambda row: row["cols"]), lambda row: (row["of"], row["chapter"]))
        for (name, chapter), line in here.items():
            draw_line(axes, line, value, styles.get(chapter), name == own[0]["of"])
        draw_roof_line(axes, [row for row in group if row["of"] == own[0]["of"]], value)
        axes.set_title(f"{DIRECTIONS[direction][0]}, {dtype}, {rows_of_x} × N")
        widths = sorted({row["cols"] for row in group})
        axes.set_xlim(widths[0], widths[-1])
        marked = [2**i for i in range(20) if widths[0] <= 2**i <= widths[-1]] or widths
        axes.set_xticks(marked, [str(width) for width in marked])
        axes.set_xlabel("N, columns (log scale)")
        axes.grid(which="major")
    for axes, group in zip(axes_row[0], panels.values()):
        if log:
            log_axis(axes.yaxis)
        else:
            axes.set_ylim(0, max(110, 1.03 * max(row[value] for row in rows)))
        mine = [row for row in group if row["of"] == own[0]["of"]]
        ends = [(line[-1][value], chapter, styles[chapter]["color"])
                for chapter, line in by(sorted(mine, key=lambda row: row["cols"]), lambda row: row["chapter"]).items()
                if chapter in styles]
        roof = roof_line(mine, value)
        label_ends(axes, ends + ([(roof[-1][1], "the roof", "black")] if roof else []), height - 1.35)
    label = time_label(own) if value == "median_us" else AXES[value]
    axes_row[0, 0].set_ylabel(label + (" (log scale)" if log else ""))
    return figure


def over_columns_title(rows, value):
    """What the value tells, of the problem with the most bytes."""
    if value == "of_roof":
        return nearest_to_roof(rows)
    if value == "gbps":
        best = max(rows, key=lambda row: row["gbps"])
        return f"Most bytes a second: {best['chapter']}, {count(best['gbps'])} GB/s at {problem_of(best)}"
    largest = problem_of(max(rows, key=lambda row: row["operator_bytes"]))
    own = sorted((row for row in rows if problem_of(row) == largest), key=lambda row: row["median_us"])
    return (f"At {largest} {own[0]['chapter']} takes {number(own[0]['median_us'], 3)} µs, "
            f"{own[-1]['chapter']} {number(own[-1]['median_us'] / own[0]['median_us'], 3)} times as long")


def draw_line(axes, line, value, style, own):
    """A chapter's line: grey where it is not told apart, dashed and hollow where it is another device's."""
    cols, values = [row["cols"] for row in line], [row[value] for row in line]
    if style is None:
        if own:
            axes.plot(cols, values, color="#cccccc", linewidth=0.9, zorder=1)
        return
    every = max(1, len(line) // 8)
    if own:
        axes.plot(cols, values, markersize=4.5, linewidth=1.4, markevery=every, zorder=3, **style)
        axes.fill_between(cols, *spread_of(line, value), color=style["color"], alpha=0.25, linewidth=0)
    else:
        axes.plot(cols, values, markersize=6, linewidth=0.9, linestyle="--", markevery=every, zorder=2,
                  markerfacecolor="white", **style)


def draw_roof_line(axes, rows, value):
    line = roof_line(rows, value)
    if line:
        axes.plot(*zip(*line), color="black", linewidth=2.0, zorder=2)


def roof_line(rows, value):
    """[(cols, the roof's value)], empty where there is none."""
    if value == "of_roof":
        return [(cols, 100.0) for cols in sorted({row["cols"] for row in rows if row["of_roof"]})]
    key = {"median_us": "roof_us", "gbps": "roof_gbps"}.get(value)
    return sorted({row["cols"]: row[key] for row in rows if key and row[key]}.items())


@drawing
def model(rows, launch_us, gbps, chapters):
    """Left, times over predicted bytes and what launch + bytes / bandwidth says; right, their ratio."""
    if rows[-1]["emulated"]:
        print("The model is of a GPU's time; none stands beside emulated times.")
        return None
    rows = [row for row in rows if row["chapter"] in chapters and row["predicted_bytes"]]
    if not rows:
        print(f"None of {', '.join(chapters)} is among these chapters.")
        return None
    own, beside = devices_of(rows)

    def modelled(row):
        return launch_us + row["predicted_bytes"] / gbps / 1e3

    ratios = {chapter: [row["median_us"] / modelled(row) for row in line]
              for chapter, line in by(own, lambda row: row["chapter"]).items()}
    told = ", ".join(f"{chapter} {number(statistics.median(values), 3)}" for chapter, values in ratios.items())
    figure, ((left, right),) = new_figure(9.8, 4.2, title_of(
        f"Measured over modelled time, the median of all sizes: {told}", own, beside), panels=(1, 2))
    styles = styles_of(chapters)
    for name, lines in (*beside.items(), (own[0]["of"], own)):
        for row in lines:
            hollow = {} if name == own[0]["of"] else {"markerfacecolor": "white"}
            look = {"linestyle": "none", "markersize": 4.5, **styles[row["chapter"]], **hollow}
            label = {"label": row["chapter"]} if name == own[0]["of"] else {}
            left.plot(row["predicted_bytes"] / 1e6, row["median_us"], **look, **label)
            right.plot(row["predicted_bytes"] / 1e6, row["median_us"] / modelled(row), **look)
    ends = sorted(row["predicted_bytes"] for row in own)
    sizes = [ends[0] * (ends[-1] / ends[0]) ** (i / 60) for i in range(61)]
    left.plot([size / 1e6 for size in sizes], [launch_us + size / gbps / 1e3 for size in sizes], color="black",
              linewidth=1.4, label=f"{launch_us:g} µs + bytes / ({gbps:g} GB/s)")
    right.axhline(1, color="black", linewidth=1.4)
    left.set_yscale("log")
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_xlabel("MB that the chapter predicts (log scale)")
        axes.grid(which="major")
        log_axis(axes.xaxis)
    log_axis(left.yaxis)
    right.set_yscale("log")
    shown = [row["median_us"] / modelled(row) for row in rows]
    right.set_ylim(0.9 * min(1, *shown), 1.1 * max(1, *shown))
    ticks = [tick for tick in (0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 20, 50, 100, 200)
             if right.get_ylim()[0] <= tick <= right.get_ylim()[1]]
    right.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    right.minorticks_off()
    left.set_ylabel(f"{time_label(own)} (log scale)")
    right.set_ylabel("measured over modelled (log scale)")
    left.legend(*merged_legend(left), loc="upper left", fontsize=8.5, frameon=False)
    return figure


@drawing
def groups(rows):
    """What --group changes: a column of panels for each thing that it counts, a row for each problem."""
    own, beside = devices_of(rows)
    best = max(own, key=lambda row: row["of_roof"])
    sentence = (f"Nearest to the roof: {best['chapter']} with {problem_of(best).group} {best['group']}, "
                f"{best['of_roof']:.0f} % at {problem_of(best)}")
    meanings = list(by(own, lambda row: row["group"] or "group"))
    problems = list(by(own, lambda row: problem_of(row).shape))
    size = (max(8.0, 2.5 * len(meanings)), 1.2 + 2.3 * len(problems))
    figure, panels = new_figure(*size, title_of(sentence, own, beside), panels=(len(problems), len(meanings)),
                                sharey="row", sharex="col")
    styles = {chapter: style for meaning in meanings for chapter, style in styles_of(
        sorted({row["chapter"] for row in own if (row["group"] or "group") == meaning})).items()}
    for line, shape in zip(panels, problems):
        for axes, meaning in zip(line, meanings):
            here = [row for row in rows if problem_of(row).shape == shape and (row["group"] or "group") == meaning]
            draw_groups(axes, here, own[0]["of"], styles)
        line[0].set_ylabel(f"{AXES['of_roof']}\n{shape}")
        line[0].set_ylim(0, max(105, 1.03 * max(row["of_roof"] for row in rows if problem_of(row).shape == shape)))
    for axes in panels[0]:
        axes.legend(*merged_legend(axes), fontsize=8.5, loc="best", frameon=False, handlelength=1.2)
    for axes, meaning in zip(panels[-1], meanings):
        axes.set_xlabel(meaning)
    return figure


def draw_groups(axes, rows, own, styles):
    lines = by(sorted(rows, key=lambda row: problem_of(row).group), lambda row: (row["of"], row["chapter"]))
    for (name, chapter), line in lines.items():
        values = [row["of_roof"] for row in line]
        low, high = spread_of(line, "of_roof")
        spread = [[value - end for value, end in zip(values, low)], [end - value for value, end in zip(values, high)]]
        look = ({"label": chapter} if name == own
                else {"linestyle": "--", "markerfacecolor": "white"})
        axes.errorbar([problem_of(row).group for row in line], values, yerr=spread, markersize=5, linewidth=1.2,
                      capsize=2, **styles.get(chapter, {"color": OTHER}), **look)
    axes.set_xscale("log", base=2)
    axes.set_xticks([1, 8, 64, 512], ["1", "8", "64", "512"])
    axes.grid(which="major")


@drawing
def fused(rows):
    """One kernel's time beside that of its parts, one after another: two dots and the way between."""
    own, beside = devices_of(rows)
    gains = [row["parts_us"] / row["median_us"] for row in own]
    sentence = f"In one kernel the same work is {number(min(gains), 3)} to {number(max(gains), 3)} times as fast"
    figure, ((axes,),) = new_figure(8.8, 1.9 + 0.46 * len(own), title_of(sentence, own, beside))
    colour = COLOURS[own[0]["direction"]]
    for at, (row, gain) in enumerate(zip(own, gains)):
        axes.plot([row["median_us"], row["parts_us"]], [at, at], color=OTHER, linewidth=2, zorder=1)
        axes.plot(row["median_us"], at, marker="o", markersize=8, color=colour, linestyle="none", label="one kernel")
        axes.plot(row["parts_us"], at, marker="D", markersize=7, color="black", linestyle="none",
                  label="its parts, one after another")
        predicted = row["parts_bytes"] / row["predicted_bytes"]
        axes.annotate(f"× {number(gain, 3)}, by bytes × {number(predicted, 3)}", (row["parts_us"], at), (9, 0),
                      textcoords="offset points", va="center", fontsize=8.5)
    places = {(row["chapter"], problem_of(row)): at for at, row in enumerate(own)}
    for (name, theirs), other in zip(beside.items(), BESIDE):
        shown = [row for row in theirs if (row["chapter"], problem_of(row)) in places]
        axes.plot([row["median_us"] for row in shown], [places[row["chapter"], problem_of(row)] for row in shown],
                  **HOLLOW, color=other, label=f"one kernel, {name}")
    name_rows(axes, own)
    names = [f"{row['chapter']}  {row['variant']}\n{problem_of(row)}" for row in own]
    axes.set_yticks(range(len(own)), names, fontsize=8.5)
    axes.set_xscale("log")
    axes.set_xlim(min(row["median_us"] for row in rows) / 1.5, max(row["parts_us"] for row in rows) * 3.2)
    log_axis(axes.xaxis)
    axes.set_xlabel(f"{time_label(own)} (log scale)")
    figure.legend(*merged_legend(axes), loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


# --- What Nsight Compute counted ---


@drawing
def traffic(rows):
    """Left, reads of device memory and what must be read; right, what passes L2 and what was predicted."""
    own, beside = devices_of([row for row in rows if row["predicted_bytes"]] or rows)
    most = max(own, key=lambda row: row["l2_bytes"] / row["predicted_bytes"])
    sentence = (f"{most['chapter']} moves {number(most['l2_bytes'] / most['predicted_bytes'], 3)} times its predicted "
                "bytes between the multiprocessors and L2")
    figure, ((left, right),) = new_figure(9.4, 2.0 + 0.34 * len(own), title_of(sentence, own, beside,
                                          problem_of(own[0])), panels=(1, 2), sharey=True)
    colour, at = COLOURS[own[0]["direction"]], list(range(len(own)))
    inputs = {"fwd": "x once", "bwd": "x and dy once"}[own[0]["direction"]]
    bar = {"height": 0.6, "edgecolor": "black", "linewidth": 0.8}
    left.barh(at, [row["read_bytes"] / 1e6 for row in own], color=colour, label="counted: read", **bar)
    read = [row["l2_read_bytes"] / 1e6 for row in own]
    rest = [(row["l2_bytes"] - row["l2_read_bytes"]) / 1e6 for row in own]
    right.barh(at, read, color=colour, label="counted: read", **bar)
    right.barh(at, rest, left=read, color="white", hatch="////", label="counted: written, or added by atomics", **bar)
    mark = {"linestyle": "none", "color": "black", "markersize": 7, "markeredgecolor": "white"}
    left.plot([read_once(row) / 1e6 for row in own], at, marker="d", label=f"must be read: {inputs}", **mark)
    right.plot([row["predicted_bytes"] / 1e6 for row in own], at, marker="o",
               label="predicted: read and written", **mark)
    places = {row["chapter"]: place for place, row in enumerate(own)}
    for (name, theirs), other in zip(beside.items(), BESIDE):
        shown = [row for row in theirs if row["chapter"] in places]
        for axes, value in ((left, "read_bytes"), (right, "l2_bytes")):
            axes.plot([row[value] / 1e6 for row in shown], [places[row["chapter"]] for row in shown],
                      **HOLLOW, color=other, label=f"counted on {name}")
    left.set_title("read from device memory")
    right.set_title("between the multiprocessors and L2")
    for axes in (left, right):
        axes.set_xlabel("MB")
        axes.set_xlim(0)
        name_rows(axes, own, titles=False)
    figure.legend(*merged_legend(left, right), loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def read_once(row):
    """The bytes of x, or of x and dy."""
    return tensor_bytes(row["dtype"], row["rows"], row["cols"]) * (2 if row["direction"] == "bwd" else 1)


def tensor_bytes(dtype, rows, cols):
    return rows * cols * (4 if dtype == "f32" else 2)


@drawing
def waits(rows):
    """What the warps of each chapter's longest kernel wait for, a panel for each device."""
    from matplotlib.colors import LogNorm

    own, beside = devices_of(rows)
    reasons = [reason for reason in own[0]["waits"] if any(row["waits"][reason] >= 0.05 for row in rows)]
    if not reasons:
        return None
    longest = max(own, key=lambda row: max(row["waits"].values()))
    reason = max(longest["waits"], key=longest["waits"].get)
    sentence = (f"The longest wait is {longest['chapter']}'s: {number(longest['waits'][reason], 3)} cycles an "
                f"instruction for {reason}")
    chapters = [row["chapter"] for row in own]
    shown = {own[0]["of"]: own} | {name: alike for name, theirs in beside.items()
                                   if (alike := [row for row in theirs if row["chapter"] in chapters])}
    figure, panels = new_figure(8.8 + 5 * len(beside), 2.3 + 0.32 * len(own), title_of(
        sentence, own, problem=problem_of(own[0])), panels=(1, len(shown)))
    top = max(max(row["waits"].values()) for row in rows)
    for axes, (name, lines) in zip(panels[0], shown.items()):
        values = [[row["waits"][reason] for reason in reasons] for row in lines]
        axes.imshow([[max(value, 0.2) for value in line] for line in values], norm=LogNorm(0.2, max(top, 1)),
                    cmap="Blues", aspect="auto")
        for i, line in enumerate(values):
            for j, value in enumerate(line):
                axes.annotate(f"{value:.1f}" if value >= 0.05 else "·", (j, i), ha="center", va="center",
                              fontsize=8.5, color="white" if value > 0.8 * top ** 0.7 else "black")
        axes.set_xticks(range(len(reasons)), reasons, rotation=25, ha="right")
        name_rows(axes, lines, titles=lines is own)
        axes.grid(False)
        axes.set_ylim(len(lines) - 0.5, -0.5)
        if beside:
            axes.set_title(name)
    panels[0, 0].set_xlabel("cycles that a warp waits for it, for each instruction that it issues (shade: log scale)")
    return figure


# --- Peers ---


@drawing
def beside_peers(rows, peers=(), ours=()):
    """% of the roof, problem by problem: our best as one line, the peers as marks.

    A device that has peers has a panel, drawn from `ours`, of the peers' run. The line of one without
    them, the fastest of its chapters' own measurements `rows`, joins each panel, hollow.
    """
    panels_of = [name for name in by(rows, lambda row: row["of"]) if any(row["of"] == name for row in peers)]
    best = [row for row in ours if row["provider"] == "dispatch" and row["of"] in panels_of] + [
        min(own, key=lambda row: row["median_us"]) for own in by(
            [row for row in rows if row["of"] not in panels_of and row["of_roof"]],
            lambda row: (row["of"], problem_of(row))).values()]
    if not best:
        print("Emulated times have no roof." if rows[0]["emulated"] else "These data have no roof on these problems.")
        return None
    best.sort(key=lambda row: (row["operator_bytes"], str(problem_of(row))))
    lines = {name: [row for row in best if row["of"] == name] for name in by(rows, lambda row: row["of"])}
    own = [line for line in lines.values() if line][-1]
    places = {problem: at for at, problem in enumerate(dict.fromkeys(problem_of(row) for row in best))}
    shown = panels_of or [own[0]["of"]]
    place = f"; peers: {' and '.join(panels_of)}" if panels_of and own[0]["of"] not in panels_of else ""
    figure, panels = new_figure(3.4 + 4.3 * len(shown), 2.2 + 0.42 * len(places),
                                title_of(ours_and_peers(own, peers), own) + place, panels=(1, len(shown)), sharex=True)
    styles = styles_of(sorted({row["provider"] for row in peers}))
    for axes, name in zip(panels[0], shown):
        axes.axvline(100, color="black", linewidth=1.2, zorder=1)
        draw_best(axes, lines[name], places, label="ours" if len(lines) == 1 else f"ours, {name}", color="black",
                  linewidth=2)
        for other, line in lines.items():
            if other not in shown:
                draw_best(axes, line, places, label=f"ours, {other}", color="#666666", linewidth=1.2, linestyle="--",
                          markerfacecolor="white")
        for provider, theirs in by([row for row in peers if row["of"] == name], lambda row: row["provider"]).items():
            marks = [row for row in theirs if problem_of(row) in places and row["of_roof"]]
            axes.plot([row["of_roof"] for row in marks], [places[problem_of(row)] for row in marks],
                      linestyle="none", markersize=7, zorder=4, label=provider, **styles[provider])
        axes.set_yticks(range(len(places)), [str(problem) for problem in places] if axes is panels[0, 0] else [])
        axes.set_ylim(len(places) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        axes.grid(which="major")
        axes.set_xlim(0)
        axes.set_title(f"{DIRECTIONS[own[0]['direction']][0]}, {name}")
        axes.set_xlabel("% of the roof of the same run")
    figure.legend(*merged_legend(*panels[0]), loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure


def draw_best(axes, line, places, **look):
    axes.plot([row["of_roof"] for row in line], [places[problem_of(row)] for row in line], marker="o", markersize=8,
              zorder=3, **look)


def ours_and_peers(own, peers):
    """On how many problems ours is faster than every peer; within 1 % nobody is."""
    theirs = by([row for row in peers if row["of"] == own[0]["of"]], problem_of)
    ratios = [row["median_us"] / min(peer["median_us"] for peer in theirs[problem_of(row)])
              for row in own if problem_of(row) in theirs]
    if not ratios:
        return nearest_to_roof(own)
    faster, slower = sum(ratio < 0.99 for ratio in ratios), sum(ratio > 1.01 for ratio in ratios)
    return (f"{DIRECTIONS[own[0]['direction']][0].capitalize()}: ours is faster than every peer on {faster} of "
            f"{len(ratios)} problems, slower than one on {slower}, else within 1 %")


@drawing
def standings(ours, peers):
    """Each chapter's time over the fastest peer's, problem by problem, of one run: white where they are equal."""
    from matplotlib.colors import Normalize

    ours, _ = devices_of(ours)
    peers = [row for row in peers if row["of"] == ours[0]["of"]]
    fastest = {problem: min(rows, key=lambda row: row["median_us"]) for problem, rows in by(peers, problem_of).items()}
    rows = [row for row in ours if row["provider"] == row["chapter"] and problem_of(row) in fastest]
    chapters = sorted({row["chapter"] for row in rows})
    problems = sorted({problem_of(row) for row in rows}, key=lambda problem: (tensor_bytes(*problem[:3]), problem))
    if not chapters:
        print("No chapter was measured beside a peer; `make peers` measures them.")
        return None
    times = {(row["chapter"], problem_of(row)): row["median_us"] / fastest[problem_of(row)]["median_us"]
             for row in rows}
    faster = [chapter for chapter in chapters if any(times.get((chapter, p), 2) < 0.99 for p in problems)]
    sentence = f"Faster than every peer somewhere, by more than 1 %: {', '.join(faster) or 'none'}"
    size = (max(7.5, 1.9 + 1.12 * len(problems)), 2.3 + 0.33 * len(chapters))
    figure, ((axes,),) = new_figure(*size, title_of(sentence, ours))
    cells = [[log2(times[chapter, p]) if (chapter, p) in times else float("nan") for p in problems]
             for chapter in chapters]
    axes.imshow(cells, norm=Normalize(-2, 2), cmap="PuOr_r", aspect="auto")
    for (chapter, p), ratio in times.items():
        place = problems.index(p), chapters.index(chapter)
        axes.annotate(f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}", place, ha="center", va="center", fontsize=8.5,
                      color="white" if abs(log2(ratio)) > 1.3 else "black",
                      fontweight="bold" if ratio < 0.99 else "normal")
    axes.set_yticks(range(len(chapters)), chapters)
    names = [f"{p.dtype}\n{p.rows} ×\n{p.cols}\nover {fastest[p]['provider']}"
             for p in problems]
    axes.set_xticks(range(len(problems)), names, fontsize=8.5)
    axes.tick_params(length=0)
    axes.grid(False)
    axes.set_xlabel("time over the fastest peer's in the same run; in bold: faster by more than 1 %")
    return figure
