"""Figures to move: a lesson's line `<!-- to move: sectors -->` becomes a figure with sliders (static/explore.js).

The constants are chapter zero's, so a figure and a lesson never differ. Without scripts, and on paper before the reader
has moved anything, the figure is its caption, which says what it shows.
"""

import html
import json
import re

from docutils import nodes
from sphinx.util import logging

from common.book.seen import ROOT
from common.results import machine_tables

logger = logging.getLogger(__name__)

MARK = re.compile(r"<!-- to move: (\S+) -->")
CAPTIONS = {
    "sectors": "One load by the 32 lanes of a warp. Neighbouring lanes on neighbouring elements share sectors of 32 "
               "bytes; with a stride, each lane needs a sector of its own and uses little of it.",
    "flight": "Little's law. What all threads of a multiprocessor have in flight sets the bandwidth, until memory "
              "itself is the limit.",
    "model": "The time model: a launch, the bytes, and waits that nothing hides, beside a measured copy of as many "
             "bytes.",
    "waves": "Threads, registers and shared memory limit how many blocks a multiprocessor holds. The last wave of "
             "blocks may leave most of the GPU idle.",
    "groups": "More rows per block mean fewer atomics, but also fewer blocks; with fewer than 132 blocks, "
              "multiprocessors idle.",
    "ring": "A ring of slots. Each load is requested as soon as its slot is free; red marks the time for which the "
            "block waits.",
}


def data():
    """What static/explore.js reads: the constants, in µs, TB/s and KB, and the measured copies, [MB, µs]."""
    figures = machine_tables.read_figures(ROOT)
    taken = machine_tables.TAKEN
    copies = [[2 * mib * machine_tables.MIB / 1e6, figures[f"copy of {mib} MiB"]["value"]]
              for mib in machine_tables.SIZES if f"copy of {mib} MiB" in figures]
    return {"launch": taken["events around a launch"], "bandwidth": taken["bandwidth: copy of 1024 MiB"],
            "wait": taken["latency: device memory"], "copies": copies,
            "flight": [[kb, taken[f"{kb} KB on the way a multiprocessor"]] for kb in (2, 4, 8, 16, 32, 64)],
            "atomics": taken["4 194 304 atomics, 1024 warps in step"] / 4.194304}  # µs per million


def on_doctree(app, doctree):
    for node in list(doctree.findall(nodes.comment)) + list(doctree.findall(nodes.raw)):
        found = MARK.search(node.astext() if isinstance(node, nodes.raw) else f"<!-- {node.astext().strip()} -->")
        if not found:
            continue
        if found[1] not in CAPTIONS:
            logger.warning("there is no figure to move '%s'; there are %s", found[1], ", ".join(CAPTIONS),
                           location=node)
            continue
        figure = f'<figure class="explore" data-figure="{found[1]}">' \
                 f"<figcaption>{html.escape(CAPTIONS[found[1]])}</figcaption></figure>"
        node.replace_self(nodes.raw("", figure, format="html"))
        app.env.metadata[app.env.docname]["explore"] = True


def on_page(app, document, template, context, doctree):
    if app.env.metadata[document].get("explore"):
        app.add_js_file(None, body=f"window.lncMachine = {json.dumps(data())};")
        app.add_js_file("explore.js", defer="defer")
        app.add_css_file("explore.css")


def setup(app):
    app.connect("doctree-read", on_doctree)
    app.connect("html-page-context", on_page, priority=900)
    return {"parallel_read_safe": True}
