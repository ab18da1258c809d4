"""The figures of our own measurements: of README.md, which `make tables` writes as SVG, and of the notebooks.

Those of ours beside others' kernels, of the widths and of training are in peer_figures.py.

A figure is drawn from the rows of device.py and says in its title what there is to see in these very rows. A
notebook's rows may be of several devices: a row's "of" names its own. The last device is the reader's, which the title
is about, and the others stand beside it, hollow. Nothing here knows a chapter or a device by name. Without rows, or
where they lack what is to be drawn, a figure is None.
"""

import statistics
import textwrap

from common.results.chapters import MAIN
from common.results.drawing import (
    ASIDE, AXES, BLACK, BLANK, COLOURS, DIRECTIONS, MARKS, WIDTH, WORDS, by, capital, device_of, devices_of,
    draw_beside, draw_cells, draw_lines, draw_roof_time, drawing, label_ends, log_axis, name_marks, name_rows,
    new_figure, set_ticks, styles_of, time_label, whiskers)
from common.results.problems import problem_of, size_of
from common.results.records import number

# --- One problem, chapter by chapter ---


@drawing("time or cycles of a chapter on this problem")
def progression(rows, value="median_us", source_rows=()):
    """Each chapter's time, p10 to p90, from the first one's down to the roof, or its SM cycles beside those that its
    source published: the main line in colour, side roads in grey. Rows that know their ancestors say what each step
    gained, and lines lead from parent to chapter."""
    rows = [row for row in rows if row[value]]
    if not rows:
        return None
    own, beside = devices_of(rows)
    groups, gains = by(own, "direction"), steps_of(own, value)
    published = [row for row in source_rows if row["chapter"] in by(own, "chapter")]
    time = value == "median_us"
    spans = {chapter: [row[key] for row in alike for key in (("p10_us", "p90_us") if time else (value,))]
             for chapter, alike in by([*rows, *published], "chapter").items()}
    shown = sum(spans.values(), [row["roof_us"] for row in own if time and row["roof_us"]])
    low, high = min(shown) / 1.5, max(shown) * 1.8
    sizes = [len(group) + 1.6 for group in groups.values()]
    sentence = capital(";\n".join([*falls(own, value), *largest_step(gains, value)]))
    figure, panels = new_figure(own, sentence, (9.5 if gains else WIDTH, 1.1 + 0.24 * sum(sizes)), beside=beside,
                                problem=problem_of(own[0]), words=progression_words(own) if time else "",
                                nrows=len(groups), sharex=True, height_ratios=sizes)
    for axes, (direction, group) in zip(panels[:, 0], groups.items()):
        axes.set_xscale("log")
        axes.set_xlim(low, high)
        draw_fall(axes, group, value, gains, spans, middle=(low * high) ** 0.5)
        draw_beside(axes, group, beside, lambda row: row[value])
        draw_beside(axes, group, {row["device"]: published for row in published[:1]}, lambda row: row[value],
                    "{}, as the source published it", color="black", marker="D", markersize=7,
                    markerfacecolor="black")
        axes.set_title(DIRECTIONS[direction][0])
        name_rows(axes, [""] * len(group), above=1.4)  # room for the roof's name
        axes.spines["left"].set_visible(False)
        if time:
            draw_roof_time(axes, group, -0.95)
    if len(main_line(own)) < len(own):
        panels[0, 0].set_title("in colour: the main line; in grey: side roads", loc="right", color=ASIDE,
                               fontsize=WORDS, fontweight="normal")
    log_axis(panels[-1, 0].xaxis)
    panels[-1, 0].set_xlabel(f"{time_label(own)}: median, p10 to p90 (log scale)" if time else
                             f"{AXES[value]} of one launch (log scale)")
    name_marks(figure, panels[0, 0])
    return figure


def draw_fall(axes, rows, value, gains, spans, middle):
    """A dot for each chapter, its name on the side of the `middle` that has room; lines along the main line, or,
    dashed where they lose time, from each parent."""
    main, colour = main_line(rows), COLOURS[rows[0]["direction"]]
    places = {row["chapter"]: at for at, row in enumerate(rows)}
    pairs = [gain[:2] for gain in gains.values() if gain[1] in rows] or list(zip(main, main[1:]))
    for parent, row in pairs:
        axes.plot([parent[value], row[value]], [places[parent["chapter"]], places[row["chapter"]]], zorder=1.5,
                  linestyle="--" if gains and row[value] > parent[value] else "-",
                  color=colour if row in main else ASIDE, linewidth=1.6 if row in main else 0.8)
    for at, row in enumerate(rows):
        ours = row in main
        look = {"markersize": 7 if ours else 5.5, "markeredgecolor": "black" if ours else ASIDE, "markeredgewidth": 0.8,
                "markerfacecolor": colour if ours else "white"}
        axes.errorbar(row[value], at, xerr=whiskers([row]) if value == "median_us" else None, fmt="o",
                      ecolor="black", elinewidth=1.0, zorder=3, **look)
        words = [f"{number(row[value], 3)}{' µs' * (value == 'median_us')}", row["chapter"], row["title"]]
        words += [gain[2] for gain in gains.values() if gain[1] is row and not row["emulated"]]
        left = row[value] > middle
        if value == "cycles" and not left:  # beside its own dot: the source's stands to the right
            axes.annotate(words.pop(0), (row[value], at), (-7, 0), textcoords="offset points", va="center", ha="right",
                          color="black" if ours else ASIDE, bbox=BLANK)
        axes.annotate("  ".join(reversed(words) if left else words),
                      ((min if left else max)(spans[row["chapter"]]), at), (-9 if left else 9, 0), va="center",
                      textcoords="offset points", ha="right" if left else "left", color="black" if ours else ASIDE,
                      bbox=BLANK)


def steps_of(rows, value):
    """{chapter: (its parent's row, or the nearest ancestor's that is measured, its own, '× 2.57 over fwd02')}"""
    found, steps = {row["chapter"]: row for row in rows}, {}
    for row in rows:
        parent = next((found[name] for name in row.get("ancestors", ()) if name in found), None)
        if parent:
            slower = " (slower)" if row[value] > parent[value] else ""
            steps[row["chapter"]] = parent, row, (f"× {number(parent[value] / row[value], 3)} over "
                                                  f"{parent['chapter']}{slower}")
    return steps


def largest_step(steps, value):
    best = max(steps.values(), key=lambda step: step[0][value] / step[1][value], default=None)
    return [f"the largest step is {best[1]['chapter']}: {best[2]}"] if best else []


def main_line(rows):
    return [row for row in rows if row["road"] == MAIN] or rows


def ends_of_fall(rows, value):
    """[(the first chapter of the main line, its fastest)], of each direction."""
    lines = [main_line(own) for own in by(rows, "direction").values()]
    return [(main[0], min(main, key=lambda row: row[value])) for main in lines]


def falls(rows, value="median_us"):
    """['Forward falls from 1 328 to 10.2 µs, 99 % of the roof', 'backward …']"""
    unit = "µs" if value == "median_us" else AXES[value]
    return [f"{DIRECTIONS[first['direction']][0]} falls from {number(first[value], 3)} to {number(best[value], 3)} "
            f"{unit}"
            + (f", {best['of_roof']:.0f} % of the roof" if best["of_roof"] and value == "median_us" else "")
            for first, best in ends_of_fall(rows, value)]


def progression_words(rows):
    """The alternative text of progression()."""
    ends = " and ".join(f"{first['chapter']} to {best['chapter']}" for first, best in ends_of_fall(rows, "median_us"))
    return (f"The time of one launch of each chapter, as dots on a log scale above the roof's line. From {ends}: "
            f"{'; '.join(falls(rows))}.")


# --- Many problems ---


@drawing("value of more than one width")
def sweep(rows, value="of_roof", chapters=()):
    """A value over N, a panel for each direction, M and dtype: the named chapters in colour, or else a few that tell
    where it goes, the others thin and grey."""
    panels = by([row for row in rows if row[value] is not None], "direction", "dtype", "rows")
    panels = {key: group for key, group in panels.items() if len({row["cols"] for row in group}) > 1}
    if not panels:
        return None
    own, beside = devices_of(sum(panels.values(), []))
    named = [row for row in own if row["chapter"] in chapters] or own
    figure, axes_of = new_figure(own, over_columns_title(named, value), (WIDTH, 0.6 + 2.9 * len(panels)), beside=beside,
                                 words=sweep_words(own) if value == "of_roof" else "", nrows=len(panels), sharey=True)
    most = max(row[value] for group in panels.values() for row in group)
    for axes, ((direction, dtype, rows_of_x), group) in zip(axes_of[:, 0], panels.items()):
        mine, _ = devices_of(group)
        styles = styles_of(chapters) if chapters else story_styles(story(mine))
        draw_lines(axes, group, lambda row: row["cols"], value, styles, device_of(own[0]))
        roof = roof_line(mine, value)
        axes.plot([cols for cols, _ in roof], [at for _, at in roof], color="black", linewidth=2.0, zorder=2)
        axes.set_title(f"{DIRECTIONS[direction][0]}, {dtype}, {rows_of_x} × N")
        widths = sorted({row["cols"] for row in group})
        axes.set_xlim(widths[0], widths[-1])
        set_ticks(axes.xaxis, [2**i for i in range(20)] if widths[-1] >= 2 * widths[0] else widths)
        if value == "of_roof":
            axes.set_ylim(0, max(105, 1.03 * most))
        else:
            axes.set_yscale("log")
        axes.set_ylabel(time_label(own) if value == "median_us" else AXES[value])
    for axes, group in zip(axes_of[:, 0], panels.values()):  # the axes are shared: places are known when all have drawn
        name_lines(axes, devices_of(group)[0], value, chapters)
    axes_of[-1, 0].set_xlabel("N, columns (log scale)\nshade: p10 to p90; grey: the other chapters")
    return figure


def name_lines(axes, rows, value, chapters):
    """The names of the lines in colour, and of the roof, at their ends."""
    styles = styles_of(chapters) if chapters else story_styles(story(rows))
    if value != "of_roof":
        log_axis(axes.yaxis)
    ends = [(line[-1][value], textwrap.fill(f"{chapter} {line[0]['title']}", 24), styles[chapter]["color"])
            for chapter, line in by(sorted(rows, key=lambda row: row["cols"]), "chapter").items() if chapter in styles]
    roof = roof_line(rows, value)[-1:]
    label_ends(axes, ends + [(at, "the roof", "black") for _, at in roof], inches=2.1, lines=2)


def roof_line(rows, value):
    """[(cols, the roof's value)], empty where there is none."""
    if value == "of_roof":
        return [(cols, 100.0) for cols in sorted({row["cols"] for row in rows})]
    key = {"median_us": "roof_us", "gbps": "roof_gbps"}.get(value)
    return sorted({row["cols"]: row[key] for row in rows if key and row[key]}.items())


def over_columns_title(rows, value):
    """What the value tells, of the problem with the most bytes."""
    if value == "of_roof":
        return capital(";\n".join(kept(rows)))
    largest = problem_of(max(rows, key=lambda row: row["operator_bytes"]))
    own = sorted((row for row in rows if problem_of(row) == largest), key=lambda row: row["median_us"])
    first, last = (f"{row['chapter']} {number(row[value], 3)} {'µs' if value == 'median_us' else 'GB/s'}"
                   for row in (own[0], own[-1]))
    return f"At {largest} {first}" + (f", {last}" if len(own) > 1 else "")


def story(rows):
    """Up to four chapters of a direction that tell where it goes: the first, the best, and of the main line those
    nearest to a third and two thirds of the way from the one to the other."""
    least = {problem: min(row["median_us"] for row in own) for problem, own in by(rows, problem_of).items()}
    share = {chapter: statistics.mean(least[problem_of(row)] / row["median_us"] for row in own)
             for chapter, own in by(rows, "chapter").items()}
    main = list(by(main_line(rows), "chapter"))
    best = max(main, key=share.get)
    between = [share[main[0]] + part * (share[best] - share[main[0]]) for part in (1 / 3, 2 / 3)]
    nearest = [min(main, key=lambda chapter, at=at: abs(share[chapter] - at)) for at in between]
    return sorted({main[0], *nearest, best}, key=share.get)


def story_styles(chapters):
    """The last chapter of the story, its best, is blue whether there are two or four."""
    return styles_of(chapters, [BLACK, *MARKS[1:3]][:len(chapters) - 1] + MARKS[:1])


def kept(rows):
    """['forward, fwd06 keeps 91 to 98 % of the roof', …]: the best chapter over all widths, of each direction."""
    texts = []
    for direction, own in by(rows, "direction").items():
        best = story(own)[-1]
        parts = [row["of_roof"] for row in own if row["chapter"] == best]
        texts.append(f"{DIRECTIONS[direction][0]}, {best} keeps {min(parts):.0f} to {max(parts):.0f} % of the roof")
    return texts


def sweep_words(rows):
    """The alternative text of sweep()."""
    widths = [row["cols"] for row in rows]
    first = [f"{chapters[0]} {min(parts):.1f} to {max(parts):.1f} %"
             for own in by(rows, "direction").values() if len(chapters := story(own)) > 1
             for parts in [[row["of_roof"] for row in own if row["chapter"] == chapters[0]]]]
    return (f"Percent of the roof over {min(widths)} to {max(widths)} columns, a line for each chapter: "
            f"{'; '.join(kept(rows))}" + (f". The first chapters stay at {', '.join(first)}." if first else "."))


@drawing("GPU's time of these chapters beside predicted bytes")
def model(rows, launch_us, gbps, chapters):
    """Left, times over predicted bytes and what launch + bytes / bandwidth says; right, their ratio."""
    rows = [row for row in rows if row["chapter"] in chapters and row["predicted_bytes"] and not row["emulated"]]
    if not rows:
        return None
    own, beside = devices_of(rows)

    def modelled(row):
        return launch_us + row["predicted_bytes"] / gbps / 1e3

    told = ", ".join(f"{chapter} {number(statistics.median(row['median_us'] / modelled(row) for row in line), 3)}"
                     for chapter, line in by(own, "chapter").items())
    figure, ((left, right),) = new_figure(own, f"Measured over modelled time, the median of all sizes: {told}",
                                          (9.8, 4.0), beside=beside, ncols=2)
    styles = styles_of(chapters)
    for (device, chapter), line in by([*sum(beside.values(), []), *own], device_of, "chapter").items():
        mine = device == device_of(own[0])
        look = {"linestyle": "none", "markersize": 4.5, **styles[chapter],
                **({"label": chapter} if mine else {"markerfacecolor": "white"})}
        sizes = [row["predicted_bytes"] / 1e6 for row in line]
        left.plot(sizes, [row["median_us"] for row in line], **look)
        right.plot(sizes, [row["median_us"] / modelled(row) for row in line], **look)
    least, most = (pick(row["predicted_bytes"] for row in own) for pick in (min, max))
    sizes = [least * (most / least) ** (i / 60) for i in range(61)]
    left.plot([size / 1e6 for size in sizes], [launch_us + size / gbps / 1e3 for size in sizes], color="black",
              linewidth=1.4, label=f"{launch_us:g} µs + bytes / ({gbps:g} GB/s)")
    right.axhline(1, color="black", linewidth=1.4)
    for axes in (left, right):
        axes.set(xscale="log", yscale="log", xlabel="MB that the chapter predicts (log scale)")
        axes.grid(which="major")
        log_axis(axes.xaxis)
    log_axis(left.yaxis)
    ratios = [row["median_us"] / modelled(row) for row in rows]
    right.set_ylim(0.9 * min(1, *ratios), 1.1 * max(1, *ratios))
    set_ticks(right.yaxis, (0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 20, 50, 100, 200))
    left.set_ylabel(f"{time_label(own)} (log scale)")
    right.set_ylabel("measured over modelled (log scale)")
    left.legend(loc="upper left", fontsize=9)
    return figure


@drawing("times with a group option")
def groups(rows):
    """What a group option changes: a column of panels for each thing that it counts, a row for each problem."""
    own, beside = devices_of(rows)
    best = max(own, key=lambda row: row["of_roof"])
    sentence = (f"Nearest to the roof: {best['chapter']} with {problem_of(best).group} {best['group']}, "
                f"{best['of_roof']:.0f} % at {problem_of(best)}")
    meanings = list(by(own, lambda row: row["group"] or "group"))
    problems = list(by(own, lambda row: problem_of(row).shape))
    figure, panels = new_figure(own, sentence, (max(8.0, 2.5 * len(meanings)), 1.0 + 2.3 * len(problems)),
                                beside=beside, nrows=len(problems), ncols=len(meanings), sharey="row", sharex="col")
    for line, shape in zip(panels, problems):
        for axes, meaning in zip(line, meanings):
            alike = [row for row in rows if (row["group"] or "group") == meaning]
            here = [row for row in alike if problem_of(row).shape == shape]
            draw_lines(axes, here, lambda row: problem_of(row).group, "of_roof",
                       styles_of(sorted({row["chapter"] for row in alike})), device_of(own[0]))
            axes.set_xticks([1, 8, 64, 512], ["1", "8", "64", "512"])
        line[0].set_ylabel(f"{AXES['of_roof']}\n{shape}")
        line[0].set_ylim(0, max(105, 1.03 * max(row["of_roof"] for row in rows if problem_of(row).shape == shape)))
    for above, below, meaning in zip(panels[0], panels[-1], meanings):
        above.legend(loc="best", handlelength=1.2)
        below.set_xlabel(meaning)
    return figure


@drawing("fused kernel beside its parts")
def fused(rows):
    """One kernel's time beside that of its parts, one after another: two dots and the way between."""
    own, beside = devices_of(rows)
    gains = [row["parts_us"] / row["median_us"] for row in own]
    sentence = f"In one kernel the same work is {number(min(gains), 3)} to {number(max(gains), 3)} times as fast"
    figure, ((axes,),) = new_figure(own, sentence, (8.8, 1.7 + 0.46 * len(own)), beside=beside)
    look = {"markersize": 8, "linestyle": "none"}
    places, one, parts = range(len(own)), [row["median_us"] for row in own], [row["parts_us"] for row in own]
    axes.hlines(places, one, parts, color="#999999", linewidth=2, zorder=1)
    axes.plot(one, places, "o", color=COLOURS[own[0]["direction"]], label="one kernel", **look)
    axes.plot(parts, places, "D", color="black", label="its parts, one after another", **look)
    for at, (row, gain) in enumerate(zip(own, gains)):
        predicted = row["parts_bytes"] / row["predicted_bytes"]
        axes.annotate(f"× {number(gain, 3)}, by bytes × {number(predicted, 3)}", (row["parts_us"], at), (9, 0),
                      textcoords="offset points", va="center")
    draw_beside(axes, own, beside, lambda row: row["median_us"], "one kernel, {}")
    name_rows(axes, [f"{row['chapter']}  {row['variant']}\n{problem_of(row)}" for row in own])
    axes.set_xscale("log")
    axes.set_xlim(min(row["median_us"] for row in rows) / 1.5, max(row["parts_us"] for row in rows) * 3.2)
    log_axis(axes.xaxis)
    axes.set_xlabel(f"{time_label(own)} (log scale)")
    name_marks(figure, axes)
    return figure


# --- What Nsight Compute counted ---


@drawing("profile")
def traffic(rows):
    """Left, reads of device memory and what must be read; right, what passes L2 and what was predicted."""
    own, beside = devices_of([row for row in rows if row["predicted_bytes"]] or rows)
    most = max(own, key=lambda row: row["l2_bytes"] / row["predicted_bytes"])
    sentence = (f"{most['chapter']} moves {number(most['l2_bytes'] / most['predicted_bytes'], 3)} times its predicted "
                "bytes between the multiprocessors and L2")
    figure, ((left, right),) = new_figure(own, sentence, (9.4, 1.8 + 0.34 * len(own)), beside=beside,
                                          problem=problem_of(own[0]), ncols=2, sharey=True)
    colour, places = COLOURS[own[0]["direction"]], list(range(len(own)))
    bar = {"height": 0.6, "edgecolor": "black", "linewidth": 0.8}
    left.barh(places, [row["read_bytes"] / 1e6 for row in own], color=colour, label="counted: read", **bar)
    read = [row["l2_read_bytes"] / 1e6 for row in own]
    rest = [(row["l2_bytes"] - row["l2_read_bytes"]) / 1e6 for row in own]
    right.barh(places, read, color=colour, label="counted: read", **bar)
    right.barh(places, rest, left=read, color="white", hatch="////", label="counted: written, or added by atomics",
               **bar)
    mark = {"linestyle": "none", "color": "black", "markersize": 7, "markeredgecolor": "white"}
    inputs = {"fwd": "x once", "bwd": "x and dy once"}[own[0]["direction"]]
    left.plot([read_once(row) / 1e6 for row in own], places, marker="d", label=f"must be read: {inputs}", **mark)
    right.plot([row["predicted_bytes"] / 1e6 for row in own], places, marker="o",
               label="predicted: read and written", **mark)
    draw_beside(left, own, beside, lambda row: row["read_bytes"] / 1e6, "counted on {}")
    draw_beside(right, own, beside, lambda row: row["l2_bytes"] / 1e6, "counted on {}")
    left.set_title("read from device memory")
    right.set_title("between the multiprocessors and L2")
    for axes in (left, right):
        axes.set_xlabel("MB")
        axes.set_xlim(0)
        name_rows(axes, [row["chapter"] for row in own])
    name_marks(figure, left, right)
    return figure


def read_once(row):
    """The bytes of x, or of x and dy."""
    return size_of(problem_of(row)) * (2 if row["direction"] == "bwd" else 1)


@drawing("wait of a warp")
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
    shown = {device_of(own[0]): own, **{device: alike for device, theirs in beside.items()
                                        if (alike := [row for row in theirs if row["chapter"] in by(own, "chapter")])}}
    figure, panels = new_figure(own, sentence, (9.5 + 5 * (len(shown) - 1), 2.1 + 0.32 * len(own)),
                                problem=problem_of(own[0]), ncols=len(shown))
    norm = LogNorm(0.2, max(1, *(max(row["waits"].values()) for row in rows)), clip=True)
    for axes, (device, lines) in zip(panels[0], shown.items()):
        values = [[max(row["waits"][reason], 0.2) for reason in reasons] for row in lines]
        texts = [[f"{row['waits'][reason]:.1f}" if row["waits"][reason] >= 0.05 else "·" for reason in reasons]
                 for row in lines]
        draw_cells(axes, values, texts, norm, "Blues", reasons)
        axes.set_xticks(range(len(reasons)), reasons, rotation=25, ha="right")
        axes.set_yticks(range(len(lines)), [f"{row['title']}   {row['chapter']}" if lines is own else row["chapter"]
                                            for row in lines])
        axes.set_title(device if len(shown) > 1 else "")
    panels[0, 0].set_xlabel("cycles that a warp waits for it, for each instruction that it issues (shade: log scale)")
    return figure
