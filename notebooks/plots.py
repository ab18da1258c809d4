"""The figures of README.md and notes.md, as SVG. matplotlib is imported only to draw."""

import hashlib
import json
import re

from measurements import number

# Okabe and Ito's blue and orange: told apart by colour-blind readers, and by their greys.
COLOURS = {"fwd": "#0072B2", "bwd": "#E69F00"}
DIRECTIONS = {"fwd": ("forward", "copy"), "bwd": ("backward", "triad")}


def digest(bars):
    """Names the data of a figure. The figure carries it, so that a check need not draw.

    A change of the style leaves the digest: delete the figure to have it drawn anew.
    """
    return hashlib.sha256(json.dumps(bars, sort_keys=True).encode()).hexdigest()[:16]


def drawn_from(path):
    """The digest in a figure, or None."""
    if not path.exists():
        return None
    found = re.search(r"data ([0-9a-f]{16})", path.read_text(encoding="utf-8"))
    return found[1] if found else None


def draw_progression(bars, problem, path):
    """Draws each chapter's time under its roof. Returns False where matplotlib is not installed.

    A bar is {chapter, title, median_us, p10_us, p90_us, roof_us, device}; `path` ends in .svg (or
    .png, to look at it). The same bars give the same file.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        return False
    groups = {d: [bar for bar in bars if bar["chapter"].startswith(d)] for d in DIRECTIONS}
    groups = {direction: group for direction, group in groups.items() if group}
    sizes = [len(group) + 0.9 for group in groups.values()]
    style = {"svg.hashsalt": "progression", "font.size": 9.5, "font.family": "DejaVu Sans",
             "axes.spines.top": False, "axes.spines.right": False}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(8.4, 0.9 + 0.34 * sum(sizes)), facecolor="white", layout="constrained")
        panels = figure.subplots(len(groups), 1, sharex=True, squeeze=False,
                                 gridspec_kw={"height_ratios": sizes})
        for axes, (direction, group) in zip(panels[:, 0], groups.items()):
            draw_panel(axes, direction, group)
        low = min(min(bar["p10_us"], bar["roof_us"] or bar["p10_us"]) for bar in bars)
        panels[0, 0].set_xlim(low / 2, max(bar["p90_us"] for bar in bars) * 2.6)
        panels[-1, 0].set_xlabel("µs for one launch, cold L2: median, p10 to p90 (log scale)")
        figure.suptitle(f"{problem} on {bars[0]['device']}", fontsize=10.5)
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata = {"Date": None, "Creator": None, "Description": f"data {digest(bars)}"}
        figure.savefig(path, dpi=110, **({"metadata": metadata} if path.suffix == ".svg" else {}))
    return True


def draw_panel(axes, direction, bars):
    from matplotlib.patheffects import withStroke
    from matplotlib.ticker import FuncFormatter, NullFormatter

    name, roof_name = DIRECTIONS[direction]
    medians = [bar["median_us"] for bar in bars]
    spread = [[bar["median_us"] - bar["p10_us"] for bar in bars],
              [bar["p90_us"] - bar["median_us"] for bar in bars]]
    axes.barh(range(len(bars)), medians, xerr=spread, height=0.66, color=COLOURS[direction],
              error_kw={"ecolor": "black", "elinewidth": 1.0, "capsize": 2.5})
    for row, bar in enumerate(bars):
        axes.annotate(number(bar["median_us"]), (bar["p90_us"], row), (5, 0),
                      textcoords="offset points", va="center")
    axes.set_xscale("log")
    axes.set_yticks(range(len(bars)), [f"{bar['title']}   {bar['chapter']}" for bar in bars])
    axes.set_ylim(len(bars) - 0.4, -1.1)  # the first chapter on top, room for the roof's name
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(axis="x", which="major", color="#cccccc", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.set_title(name, loc="left", fontsize=10, fontweight="bold")
    roofs = sorted(bar["roof_us"] for bar in bars if bar["roof_us"])
    if roofs:
        roof = roofs[len(roofs) // 2]
        axes.axvline(roof, color="black", linewidth=1.2,
                     path_effects=[withStroke(linewidth=3.2, foreground="white")])
        axes.annotate(f"the roof: a {roof_name}, {number(roof)}", (roof, -0.78), (4, 0),
                      textcoords="offset points", va="center")
