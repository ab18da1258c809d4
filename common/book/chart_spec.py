"""The book's chart of the progression as Vega-Lite.

A specification draws one view of one measure. Its data, `rows`, come from the page, from marksOf() of
static/chart_drawing.js: `part` says what a row is ('chapter', 'behind', 'peer', 'library', 'roof'), `place` and `order`
where it stands, `accent` its rank among the best, `text` its value in words, `end` its name at the right, `tip` its
tooltip. The page's parameters are `top` (of an axis of percent), `direction`, and `isTurned` (the names below).
Colours are the style sheet's, so that they follow the theme.
"""

MEASURES = {  # label; the fields of a row for the median, p10 and p90; whether the axis is logarithmic
    "time": ("time, µs", ("median_us", "p10_us", "p90_us"), True),
    "cycles": ("SM cycles", ("cycles", "cycles", "cycles"), True),
    "share": ("% of the roof", ("share", "share_p10", "share_p90"), False),
}
VIEWS = {"progression": "chapter by chapter", "width": "by width"}
LINE = 15  # pixels from one name at the right to the next
INK, SOFT, PAPER, GRAY, MARKED = (f"var(--lnc-{name})" for name in ("ink", "soft", "paper", "gray", "purple"))
ACCENTS = [f"var(--lnc-{name})" for name in ("blue", "orange", "green")]  # of the best chapters over the columns
CONFIG = {
    "background": None, "view": {"stroke": None}, "mark": {"aria": False}, "point": {"opacity": 1, "filled": True},
    "axis": {"aria": False, "labelFontSize": 13, "titleFontSize": 13, "labelColor": SOFT, "titleColor": SOFT,
             "titleFontWeight": "normal", "gridColor": "var(--lnc-grid)", "domain": False, "ticks": False,
             "labelPadding": 6, "labelOverlap": "greedy"},
    "title": {"aria": False, "anchor": "start", "frame": "bounds", "fontSize": 13, "fontWeight": "normal",
              "color": SOFT, "offset": 14},
    "text": {"fontSize": 13, "fill": INK},
}

# Expressions of a row.
OF_CONTENDER = f"datum.part == 'peer' ? '{SOFT}' : '{INK}'"
DASHES = "datum.part == 'peer' ? [5, 4] : [1, 4]"
IS_MAIN = "(datum.road == 'main line' && datum.direction != 'copy')"
IS_LOUD = "(datum.marked || datum.accent >= 0)"


def specification(view, measure):
    """The Vega-Lite of a view in which a measure is the upright axis."""
    label, fields, is_log = MEASURES[measure]
    layers = {"progression": progression, "width": widths}[view](*fields)
    return {
        "title": label + (" (log)" if is_log else ""), "height": 460, "config": CONFIG,
        "autosize": {"type": "fit", "contains": "padding"}, "padding": {"left": 2, "right": 2, "top": 10, "bottom": 2},
        "encoding": {"y": upright(fields[0], is_log)},
        "layer": [*layers, names_at_the_right(fields[0], view == "width")],
    }


def upright(field, is_log):
    powers = "log(domain('y')[1] / domain('y')[0]) / LN10"  # with two or more the powers of ten are ticks enough
    if is_log:
        scale = {"type": "log", "nice": False, "padding": 24}
        axis = {"tickCount": {"expr": f"{powers} > 2 ? floor({powers}) : 6"}, "format": ",.3~r"}
    else:
        scale, axis = {"domain": [0, {"expr": "top"}], "nice": False}, {"tickCount": 6, "format": "d"}
    return {"field": field, "type": "quantitative", "scale": scale, "axis": {"title": None, **axis}}


def rows_of(*parts, also="true"):
    """A filter."""
    return {"filter": f"indexof({list(parts)}, datum.part) >= 0 && {also}"}


def layer(name, mark, rows, **encoding):
    """A layer of some rows; a channel that is a string is an expression of a row."""
    return {"name": name, "mark": mark, "transform": [rows] if rows else [],
            "encoding": {channel: {"value": {"expr": given}} if isinstance(given, str) else given
                         for channel, given in encoding.items()}}


def whiskers(low, high, rows, x):
    """Thin lines from p10 to p90."""
    return layer("whiskers", {"type": "rule", "strokeWidth": 1.2, "stroke": INK}, rows, x=x,
                 y={"field": low, "type": "quantitative"}, y2={"field": high})


def targets(x):
    """What the pointer and the focus reach of a dot: more than can be seen of it."""
    return layer("targets", {"type": "point", "size": 450, "fill": "transparent", "aria": True},
                 rows_of("peer", "library", "chapter"), x=x, tooltip={"field": "tip"})


# --- Chapter by chapter ---


def progression(value, low, high):
    turned = {"labelAngle": "isTurned ? -55 : 0", "labelAlign": "isTurned ? 'right' : 'center'",
              "labelBaseline": "isTurned ? 'middle' : 'top'"}
    x = {"field": "place", "type": "nominal", "sort": {"field": "order", "op": "min"}, "scale": {"type": "band"},
         "axis": {"title": None, "grid": False, **{name: {"expr": words} for name, words in turned.items()}}}
    color = "'var(--lnc-' + direction + ')'"
    chapters, contenders, roof = rows_of("chapter"), rows_of("peer", "library"), rows_of("roof")
    text = {"field": "text"}
    return [
        layer("roof", {"type": "rule", "strokeWidth": 1.5, "stroke": INK}, roof),
        layer("roof_name", {"type": "text", "align": "left", "dx": 4, "dy": -9 if value == "share" else 11}, roof,
              x={"value": 0}, text=text),
        layer("dashes", {"type": "rule", "strokeWidth": 1, "opacity": 0.45}, contenders, stroke=OF_CONTENDER,
              strokeDash=DASHES),
        layer("main", {"type": "line", "strokeWidth": 2}, rows_of("chapter", also=IS_MAIN), x=x,
              order={"field": "order"}, stroke=color),
        layer("behind", {"type": "point", "size": 150, "filled": False, "stroke": SOFT, "strokeWidth": 1.3},
              rows_of("behind"), x=x),
        whiskers(low, high, rows_of("chapter", "peer", "library"), x),
        layer("peers", {"type": "point", "fill": INK}, contenders, x=x, stroke=OF_CONTENDER,
              shape="datum.part == 'peer' ? 'stroke' : 'diamond'", size="datum.part == 'peer' ? 140 : 70",
              strokeWidth="datum.part == 'peer' ? 3 : 1"),
        layer("dots", {"type": "point"}, chapters, x=x, shape="datum.direction == 'copy' ? 'square' : 'circle'",
              size=f"{IS_MAIN} ? 130 : 75", fill=f"{IS_MAIN} ? {color} : datum.own ? '{GRAY}' : '{PAPER}'",
              stroke=f"datum.marked ? '{INK}' : {IS_MAIN} ? '{PAPER}' : '{GRAY}'",
              strokeWidth=f"datum.marked ? 2.5 : {IS_MAIN} ? 1 : 2"),
        layer("values", {"type": "text", "dy": {"expr": "datum.below ? 18 : -17"}}, chapters, x=x, text=text,
              opacity="bandwidth('x') > 30 ? 1 : 0"),
        targets(x),
    ]


# --- Over the columns ---


def widths(value, low, high):
    x = {"field": "cols", "type": "quantitative", "scale": {"type": "log", "base": 2, "nice": False, "padding": 12},
         "axis": {"title": "N, the columns of a row (log)", "titleAnchor": "start", "format": "d", "tickCount": 4,
                  "labelSeparation": 12}}
    each = {"x": x, "detail": {"field": "who"}}
    color = color_of_line(GRAY)
    return [
        layer("roof", {"type": "line", "strokeWidth": 1.5, "stroke": INK}, rows_of("roof"), x=x),
        layer("behind", {"type": "line", "strokeWidth": 1.3, "stroke": SOFT,
                         "point": {"filled": False, "stroke": SOFT, "size": 50}}, rows_of("behind"), **each),
        layer("dashes", {"type": "line", "strokeWidth": 1.2}, rows_of("peer", "library"), **each, stroke=OF_CONTENDER,
              strokeDash=DASHES),
        layer("peers", {"type": "point", "shape": "diamond", "size": 35}, rows_of("peer", "library"), x=x,
              fill=OF_CONTENDER),
        layer("lines", {"type": "line"}, rows_of("chapter"), **each, stroke=color,
              strokeWidth=f"datum.marked ? 3.5 : {IS_LOUD} ? 2 : 1"),
        whiskers(low, high, rows_of("chapter", also=IS_LOUD), x),
        layer("dots", {"type": "point"}, rows_of("chapter"), x=x, fill=color, size=f"{IS_LOUD} ? 45 : 14",
              stroke=f"{IS_LOUD} ? '{PAPER}' : 'transparent'", strokeWidth="1",
              shape="['circle', 'square', 'triangle-up'][datum.accent] || 'circle'"),
        targets(x),
    ]


def color_of_line(other):
    """Of a chapter, as an expression of a row."""
    return f"(datum.marked ? '{MARKED}' : {ACCENTS}[datum.accent] || '{other}')"


# --- The names at the right ---


def names_at_the_right(value, is_width):
    """Each row's `end` beside its height, moved until no two stand on each other, with a thin line to its place."""
    def pushed(how, gap, order):
        """Moves names on from one side: the first stands, each other is at least a line behind the one before it."""
        in_order = [{"field": "level", "order": order}]
        return [{"window": [{"op": "row_number", "as": "rank"}], "sort": in_order},
                {"calculate": f"datum.at - {gap} * datum.rank", "as": "free"},
                {"window": [{"op": how, "field": "free", "as": "free"}], "frame": [None, 0], "sort": in_order},
                {"calculate": f"datum.free + {gap} * datum.rank", "as": "at"}]

    # scale() is Vega's: its domain is that of the other layers, which these heights take no part in.
    moved = [{"filter": "isValid(datum.end)"}, {"calculate": f"scale('y', datum['{value}'])", "as": "level"},
             {"calculate": "datum.level", "as": "at"}, *pushed("max", LINE, "ascending"),
             {"calculate": "min(datum.at, height)", "as": "at"}, *pushed("min", -LINE, "descending")]
    level, at = ({"field": name, "type": "quantitative", "scale": None} for name in ("level", "at"))
    color = f"(indexof(['library', 'roof'], datum.part) >= 0 ? '{INK}' : {color_of_line(SOFT)})"
    weight = {"expr": f"{color} == '{SOFT}' ? 400 : 600"}
    thin = {"type": "rule", "strokeWidth": 0.7, "stroke": SOFT}
    layers = [
        layer("leaders", thin, None, x="width + 3", x2="width + 14", y=level, y2={"field": "at"}),
        layer("ends", {"type": "text", "align": "left", "fontWeight": weight}, None, x="width + 17", y=at,
              text={"field": "end"}, fill=color)]
    if is_width:  # a line may end before the plot does
        layers.append(layer("gaps", {**thin, "opacity": 0.6, "strokeDash": [1, 4]}, None, x="scale('x', datum.cols)",
                            x2="width + 3", y=level))
    return {"transform": moved, "layer": layers}
