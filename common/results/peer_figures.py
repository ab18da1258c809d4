"""The figures of ours beside others' kernels, of every width and of training; figures.py has the others."""

from math import ceil, log2

from common.results.chapters import KINDS
from common.results.device import provenance
from common.results.drawing import (
    ASIDE, BLACK, BLANK, COLOURS, DIRECTIONS, MARKS, RING, WIDTH, WORDS, by, capital, device_of, devices_of,
    draw_cells, drawing, name_marks, name_rows, new_figure, point_out, set_ticks, spread_out, styles_of)
from common.results.problems import problem_of, size_of
from common.results.records import geometric_mean

# --- Problem by problem ---

FARTHEST = 0.25  # of our time over a peer's: one that is farther stands at the edge, with its number


@drawing("problem that one run has of ours and of a peer")
def peers_map(ratios, share=False, beside=()):
    """Our time over each peer's, a row for each problem: what book.against_peers() returns; or, `share`, the per cent
    of the roof that ours and each peer reach, and `beside`, rows of a device without peers, hollow."""
    ratios = [row for row in ratios if row["ratios"] and (row["of_roof"] or not share)]
    if not ratios:
        return None
    names = dict.fromkeys(peer for row in ratios for peer in row["ratios"])
    styles = styles_of(names) if share else styles_of(names, [BLACK, *MARKS[1:]])  # the black line, and blue, are ours
    panels_of, (part, levels) = by(ratios, device_of, "direction"), room_for_names(names)
    for group in panels_of.values() if share else ():
        group.sort(key=lambda row: (row["operator_bytes"], str(problem_of(row))))
    sizes = [len(own) + 1.5 + 0.7 * levels for own in panels_of.values()]
    own, devices = list(panels_of.values())[-1], by(ratios, device_of)
    others = by([row for row in beside if row["of_roof"]], device_of)
    sentence = standing(own) if share else f"Our time over the fastest peer's:\n{', '.join(spans(ratios))}"
    figure, panels = new_figure(own, sentence, (WIDTH, 1.3 + 0.27 * sum(sizes)), words=peers_words(ratios),
                                problem=f"{run_of(own if share else ratios)},", beside=others, nrows=len(panels_of),
                                sharex=True, height_ratios=sizes)
    shown = [ratio for row in ratios for ratio, *_ in row["ratios"].values()]
    low, high = max(FARTHEST, 0.85 * min(shown)), min(1 / FARTHEST, 1.15 * max(1, *shown))
    for axes, ((device, direction), group) in zip(panels[:, 0], panels_of.items()):
        axes.set_xscale("linear" if share else "log")
        axes.set_xlim(*((0, 108) if share else (low, high)))
        axes.axvline(100 if share else 1, color="black", linewidth=1.6, zorder=2)
        name_rows(axes, [str(problem_of(row)) for row in group], above=1.3 + 0.7 * levels)
        draw_peers(axes, group, styles, share)
        for theirs in others.values():
            found = {(problem_of(row), row["direction"]): row["of_roof"] for row in theirs}
            shown = [(found[problem_of(row), direction], at) for at, row in enumerate(group)
                     if (problem_of(row), direction) in found]
            axes.plot([x for x, _ in shown], [at for _, at in shown], **{**RING, "linestyle": "--"}, color=ASIDE)
        axes.set_title(DIRECTIONS[direction][0] + f", {device}" * (len(devices) > 1))
        axes.annotate("ours /\nbest peer", (1.02, -1.2), xycoords=("axes fraction", "data"), va="center",
                      linespacing=1.0, annotation_clip=False)
        axes.annotate("the roof" if share else "ours", (100 if share else 1, -1.05 - 0.7 * levels), va="center",
                      ha="center", bbox=BLANK)
        name_peers(axes, group, styles, part, levels, share)
    if not share:
        set_ticks(panels[-1, 0].xaxis, (0.25, 0.35, 0.5, 0.7, 1, 1.4, 2, 3, 4))
    panels[-1, 0].set_xlabel("% of the roof of the same run\nblack: ours; thin lines: p10 to p90" if share else
                             "our time over the peer's (log scale): left of the line ours is faster\n"
                             "thin lines, and the grey band of ours: p10 to p90")
    return figure


def draw_peers(axes, rows, styles, share):
    """A dot for each peer; ours at the line, or, as a share of the roof, a line of its own."""
    low, high = axes.get_xlim()
    if share:
        axes.plot([row["of_roof"] for row in rows], range(len(rows)), "o-", color="black", linewidth=1.8, zorder=2.5)
    for at, row in enumerate(rows):
        if not share:
            own = [row[key] / row["median_us"] for key in ("p10_us", "p90_us")]
            axes.fill_betweenx([at - 0.36, at + 0.36], *own, color="#dddddd", linewidth=0, zorder=1)
        for peer, found in row["ratios"].items():
            place, most, least = (ratio * (row["of_roof"] if share else 1) for ratio in found)
            style = {**styles[peer], "markeredgecolor": "black", "markeredgewidth": 0.5, "zorder": 3}
            if low <= place <= high:
                axes.errorbar(place, at, xerr=[[place - least], [most - place]], elinewidth=1.2, markersize=7, **style)
                continue
            left = place < low
            edge = low * 1.02 if left else high / 1.02
            axes.plot(edge, at, markersize=8, clip_on=False, **{**style, "marker": "<" if left else ">"})
            axes.annotate(f"{peer} {place:.2f}", (edge, at), (9 if left else -9, 0), textcoords="offset points",
                          va="center", ha="left" if left else "right", color=styles[peer]["color"])
        axes.annotate(f"{max(ratio for ratio, *_ in row['ratios'].values()):.2f}", (1.02, at),
                      xycoords=("axes fraction", "data"), va="center", annotation_clip=False)


def name_peers(axes, rows, styles, part, levels, share):
    """The peers' names above the rows, each with a line to its first dot, in the order of these, on so many levels."""
    low, high = axes.get_xlim()
    scale = (lambda x: x) if share else log2
    found = {}
    for at, row in enumerate(rows):
        for peer, (ratio, *_) in row["ratios"].items():
            place = ratio * (row["of_roof"] if share else 1)
            if low <= place <= high:
                found.setdefault(peer, (place, at))
    shown = sorted((place, at, peer) for peer, (place, at) in found.items())
    wished = spread_out([(scale(x) - scale(low)) / (scale(high) - scale(low)) for x, *_ in shown], part / levels,
                        part / 2, 1 - part / 2)
    for i, ((x, at, peer), place) in enumerate(zip(shown, wished)):
        point_out(axes, peer, styles[peer]["color"], (x, at), (place, -1.0 - 0.7 * (i % levels)), "data",
                  ("axes fraction", "data"), short=4, ha="center")


def room_for_names(names):
    """(the part of an axes' width that the longest name takes, on how many levels all of them have room)"""
    part = 0.64 * WORDS / 72 * max(map(len, names)) / (WIDTH - 2.6)
    return part, ceil(part * len(names))


def run_of(ratios):
    """'one run, 2026-11-21': when these were measured, and that only times of one run stand in a row."""
    runs = {row["run"] for row in ratios}
    dates = " and ".join(sorted({run[:10] for run in runs}))
    return f"one run{'' if len(runs) == 1 else ' a row'}, {dates}"


def standing(rows):
    """On how many problems ours is faster than every peer; within 1 % none is."""
    ratios = [max(ratio for ratio, *_ in row["ratios"].values()) for row in rows]
    faster, slower = sum(ratio < 0.99 for ratio in ratios), sum(ratio > 1.01 for ratio in ratios)
    return (f"{capital(DIRECTIONS[rows[0]['direction']][0])}: ours is faster than every peer on {faster} of "
            f"{len(ratios)} problems, slower than one on {slower}, else within 1 %")


def spans(ratios):
    """['forward 0.97 to 1.03', 'backward 0.53 to 0.98']: our time over the fastest peer's."""
    return [f"{DIRECTIONS[direction][0]} {min(row['ratio'] for row in own):.2f} to "
            f"{max(row['ratio'] for row in own):.2f}" for direction, own in by(ratios, "direction").items()]


def peers_words(ratios):
    """The alternative text of peers_map()."""
    names = dict.fromkeys(peer for row in ratios for peer in row["ratios"])
    return (f"Our time over that of {', '.join(names)}, a dot for each on a log scale with a line at 1, a row for each "
            f"of {len(ratios)} problems. Over the fastest of them it is {', '.join(spans(ratios))}.")


@drawing("chapter measured beside a peer; `make peers` measures them")
def standings(ours, peers):
    """Each chapter's time over the fastest peer's, problem by problem, of one run: white where they are equal."""
    from matplotlib.colors import Normalize

    ours, _ = devices_of(ours)
    peers = [row for row in peers if device_of(row) == device_of(ours[0])]
    fastest = {problem: min(rows, key=lambda row: row["median_us"]) for problem, rows in by(peers, problem_of).items()}
    rows = [row for row in ours if row["provider"] == row["chapter"] and problem_of(row) in fastest]
    if not rows:
        return None
    chapters = sorted({row["chapter"] for row in rows})
    problems = sorted({problem_of(row) for row in rows}, key=lambda problem: (size_of(problem), problem))
    times = {(row["chapter"], problem_of(row)): row["median_us"] / fastest[problem_of(row)]["median_us"]
             for row in rows}
    faster = sorted({chapter for (chapter, _), ratio in times.items() if ratio < 0.99})
    sentence = f"Faster than every peer somewhere, by more than 1 %: {', '.join(faster) or 'none'}"
    figure, ((axes,),) = new_figure(ours, sentence, (max(7.5, 1.9 + 1.3 * len(problems)), 2.1 + 0.33 * len(chapters)))
    cells = [[times.get((chapter, problem)) for problem in problems] for chapter in chapters]
    texts = [["" if ratio is None else f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}" for ratio in line]
             for line in cells]
    draw_cells(axes, [[log2(ratio) if ratio else float("nan") for ratio in line] for line in cells], texts,
               Normalize(-2, 2), "PuOr_r", [f"{p.dtype}\n{p.rows} ×\n{p.cols}\nover {fastest[p]['provider']}"
                                            for p in problems])
    for text, ratio in zip(axes.texts, (ratio for line in cells for ratio in line)):
        text.set_fontweight("bold" if ratio and ratio < 0.99 else "normal")
    axes.set_yticks(range(len(chapters)), chapters)
    axes.set_xlabel("time over the fastest peer's in the same run; in bold: faster by more than 1 %")
    return figure


# --- Every width ---

KIND_COLOURS = {"layer": COLOURS["fwd"], "rms": "#D55E00"}


@drawing("width of the list with ours beside a peer")
def widths(rows):
    """Over the width, a column for each direction: above our share of the roof, below our time over the fastest
    peer's. rows: of book.against_peers(), of one size."""
    rows = [row for row in rows if row["of_roof"] is not None]
    directions = by(rows, "direction")
    if len({row["cols"] for row in rows}) < 2:
        return None
    sentence = "\n".join(["Our time over the fastest peer's, mean (least–most); below 1: ahead",
                          *(capital(text) for text in means(rows))])
    made = provenance(rows).removeprefix(rows[0]["device"]).removeprefix(", ")
    figure, panels = new_figure(rows, sentence, (WIDTH, 5.6), words=widths_words(rows), made=made, nrows=2,
                                ncols=len(directions), sharex=True, sharey="row",
                                problem=f"Tensors of 128 MiB, {' and '.join(by(rows, 'dtype'))}, cold L2,")
    for (above, below), (direction, own) in zip(panels.T, directions.items()):
        name, roof = DIRECTIONS[direction]
        draw_widths(above, own, "of_roof", 100)
        above.locator_params(axis="y", nbins=4)
        draw_widths(below, own, "ratio", 1)
        above.set_title(f"{name}: % of a {roof}")
        below.set_title(f"{name}: ours / fastest peer")
        below.set_xlabel("columns (log scale)")
        above.tick_params(labelleft=True)
        below.tick_params(labelleft=True)
    of_roof, ratios = ([row[value] for row in rows] for value in ("of_roof", "ratio"))
    panels[0, 0].set_ylim(min(90, *of_roof) - 1, max(101, *of_roof) + 1)
    panels[1, 0].set_ylim(min(0.9, *ratios) - 0.02, max(1.02, *ratios) + 0.02)
    cols = sorted({row["cols"] for row in rows})
    panels[0, 0].set_xlim(cols[0] / 1.15, cols[-1] * 1.15)
    set_ticks(panels[0, 0].xaxis, [4**i for i in range(20)] if cols[-1] >= 4 * cols[0] else cols)
    name_marks(figure, panels[0, 0], loc="outside lower left", ncols=4, columnspacing=1.2, handlelength=1.8,
               handletextpad=0.5)
    return figure


def draw_widths(axes, rows, value, line):
    """A curve for each kind and type; a black line where the roof or the peer is."""
    axes.set_xscale("log", base=2)
    axes.axhline(line, color="black", linewidth=1.6, zorder=2)
    for (kind, dtype), own in sorted(by(sorted(rows, key=lambda row: row["cols"]), "kind", "dtype").items()):
        light = dtype == "f32"
        axes.plot([row["cols"] for row in own], [row[value] for row in own], color=KIND_COLOURS[kind],
                  linewidth=1.0 if light else 1.8, linestyle=(0, (4, 2)) if light else "-",
                  marker="s" if kind == "rms" else "o", markersize=3.5, markerfacecolor="white" if light else None,
                  label=f"{KINDS[kind]}, {dtype}", zorder=3)
    axes.grid(which="major")


def means(rows):
    """['forward: layer norm 1.03 (0.95–1.28), RMS norm …', …]: our time over the fastest peer's, of each direction;
    the mean is the geometric one."""
    ratios = {key: [row["ratio"] for row in own] for key, own in by(rows, "direction", "kind").items()}
    return [f"{DIRECTIONS[direction][0]}: " + ", ".join(
        f"{KINDS[kind]} {geometric_mean(those):.2f} ({min(those):.2f}–{max(those):.2f})"
        for (of, kind), those in ratios.items() if of == direction) for direction in by(rows, "direction")]


def widths_words(rows):
    """The alternative text of widths()."""
    cols, names = sorted({row["cols"] for row in rows}), dict.fromkeys(peer for row in rows for peer in row["ratios"])
    parts = {direction: [row["of_roof"] for row in own]
             for direction, own in by([row for row in rows if row["of_roof"]], "direction").items()}
    shares = ", ".join(f"{DIRECTIONS[direction][0]} {min(own):.0f} to {max(own):.0f} % of a {DIRECTIONS[direction][1]}"
                       for direction, own in parts.items())
    return (f"Our share of the roof, and our time over that of the fastest of {', '.join(names)}, at {len(cols)} "
            f"widths from {cols[0]} to {cols[-1]} columns, {' and '.join(by(rows, 'dtype'))}, on {rows[0]['device']}. "
            f"The geometric mean of our time over the fastest peer's, and its least to most: {'; '.join(means(rows))}. "
            f"{capital(shares)}.")


# --- Training ---

TRAINED = {"torch, reordered": ASIDE, "torch.compile": "black", "enable()": "#56B4E9", "ours": COLOURS["fwd"],
           "ours, memory-efficient": "#D55E00"}  # the colour of a norm's dots


@drawing("training with several seeds (`make library && python3 -m common.campaign.gpt_training` writes one)")
def training(rows):
    """Of each type and norm a dot for each seed: the last loss less torch's of the same seed; their mean and its 95 %
    interval; and a band as wide as what the order of its sums does to torch."""
    types = by([row for row in rows if row["norm"] != "torch"], "dtype")
    sizes = [len(own) + 1 for own in types.values()]
    figure, panels = new_figure(rows, agreement(rows), (WIDTH, 1.4 + 0.42 * sum(sizes)), words=training_words(rows),
                                problem=f"{rows[0]['model']}, {KINDS[rows[0]['kind']]},", nrows=len(types),
                                sharex=True, height_ratios=sizes)
    for axes, (dtype, own) in zip(panels[:, 0], types.items()):
        draw_differences(axes, own)
        axes.set_title(f"{dtype}, {own[0]['seeds']} seeds")
    panels[-1, 0].locator_params(axis="x", nbins=6)
    panels[-1, 0].set_xlabel("last loss less torch's of the same seed\n"
                             "dot: a seed; bar: their mean and its 95 % interval\n"
                             "grey: as far as another order of its sums takes torch")
    return figure


def draw_differences(axes, rows):
    if rows[0]["rounding"] is not None:
        axes.axvspan(-rows[0]["rounding"], rows[0]["rounding"], color="#dddddd", linewidth=0)
    axes.axvline(0, color="black", linewidth=0.8)
    for at, row in enumerate(rows):
        dots = [value for value in row["differences"] if value is not None]
        axes.plot(dots, [at - 0.14] * len(dots), "o", markersize=5.5, markeredgecolor="white", markeredgewidth=0.6,
                  color=TRAINED.get(row["norm"], "black"), label=row["norm"])
        if row["difference"] is not None:
            axes.errorbar(row["difference"], at + 0.2, xerr=row["margin"], fmt="|", markersize=9, capsize=2.5,
                          color="black", elinewidth=1.2, markeredgewidth=1.6)
    name_rows(axes, [row["norm"] for row in rows])


def agreement(rows):
    """Of each type how far the norms' means are from torch, and how far rounding takes it; then whose are farther,
    and which have no losses."""
    texts = []
    for dtype, own in by(rows, "dtype").items():
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
    norms = dict.fromkeys(row["norm"] for row in rows if row["norm"] != "torch")
    return (f"The last loss of a model with {'; '.join(norms)}, less torch's of the same seed, as a dot for each seed, "
            f"with {' and '.join(by(rows, 'dtype'))}. {'. '.join(agreement(rows).splitlines())}.")
