"""Predict as a form: what a lesson's 'Predict' asks, and the values that predictions.js compares the reader's with.

The page stays as it is: only an empty element is added before the folded answers, and predictions.js puts the form in
it. Measured times, and the bytes that a kernel predicts, are the records from which the lesson's table is made. The
model's times are the bold ones of the lesson's answers, in their order:

    4. Small: … which gives **11.7 µs**. Large: … = **720 µs**.

    window.lncPredictions = {version, chapters: [{id, title, href, problems: [
        {name, bytes (MB), model, measured (µs), parent, before (the parent's µs)}]}]}

A problem has only what its lesson asks. `version` changes with any of the values except the model's.
"""

import functools
import hashlib
import json
import re
from pathlib import Path

from docutils import nodes
from sphinx.util import logging

from common.book.pages import document_of, in_reading_order, place_of
from common.book.seen import ROOT
from common.results import chapter_tables
from common.results.chapter_tables import FUSION_STEPS, NARROW_UNALIGNED_STEPS, OWN_STEPS, STEPS, UNALIGNED_STEPS
from common.results.device import DATA, open_results
from common.results.problems import PROGRESSION, problem_of
from common.results.records import load

logger = logging.getLogger(__name__)

# Whose times the bold ones of the answers are, where these are not the problems of the lesson's table in their order.
# Empty: the lesson asks no time.
OTHER = None  # a time on the way to another, or of a problem that is not in the data
FUSED = (FUSION_STEPS[2], FUSION_STEPS[0], FUSION_STEPS[1])
ANSWERED = {
    "fwd02": (STEPS[0], OTHER, STEPS[1]),
    "fwd07": FUSED,
    "fwd09": (OTHER, *OWN_STEPS["fwd09"]),
    "fwd16": (UNALIGNED_STEPS[1], PROGRESSION),
    "bwd03": (),
    "bwd10": FUSED,
    "bwd13": (*OWN_STEPS["bwd13"], OTHER),
    "bwd19": (*NARROW_UNALIGNED_STEPS, OTHER),
}
ONE_FOR_ALL = ("bwd15",)  # its one bold time is that of all problems
TIME = re.compile(r"(?:about )?(\d[\d .]*) (µs|ms)")
ASKS_BYTES = re.compile(r"\b(bytes|MB|tensors)\b[^.?]*\bmove")
ASKS_SPEED = re.compile(r"\b(faster|slower|longer)\b")


@functools.cache
def results():
    return open_results()


def time_of(text):
    """µs of 'about 1 070 µs' or '9.9 ms'; None of any other text."""
    found = TIME.fullmatch(" ".join(text.split()))
    return float(found[1].replace(" ", "")) * {"µs": 1, "ms": 1000}[found[2]] if found else None


def on_doctree(app, doctree):
    chapter, page = place_of(app.env.docname)
    sections = doctree.findall(nodes.section) if page == "notes" else ()
    section = next((one for one in sections if one["ids"][0].startswith("predict")), None)
    if section is None:
        return
    app.env.note_dependency(str(ROOT / DATA))
    raw = (at for at, node in enumerate(section) if isinstance(node, nodes.raw) and "<details" in node.astext())
    at = next(raw, None)
    if at is None:
        logger.warning("'Predict' has no folded answers", location=section)
        return
    times = [time for node in section[at:] for bold in node.findall(nodes.strong) if (time := time_of(bold.astext()))]
    asked = " ".join(" ".join(node.astext() for node in section[:at]).split())
    try:
        app.env.metadata[app.env.docname]["predict"] = problems_of(chapter.id, asked, times)
    except ValueError as error:
        logger.warning("%s", error, location=section[at + 1])
        return
    section.insert(at, nodes.raw("", f'<div class="predict" data-chapter="{chapter.id}"></div>', format="html"))


def problems_of(identifier, asked, times):
    """The problems of a lesson with these questions, and these bold times in its answers. Raises ValueError."""
    chapter = results().chapters[identifier]
    usual = (on_two_gpus(chapter) if chapter.road == chapter_tables.GPUS_ROAD
             else chapter_tables.steps(results(), chapter).get("problems", ()))
    answered = ANSWERED.get(identifier, usual)
    if identifier in ONE_FOR_ALL:
        times = times * len(answered)
    if len(times) != len(answered):
        raise ValueError(f"bold times such as **11.7 µs** in the answers of 'Predict': {len(times)}, where "
                         f"prediction_page.py expects {len(answered)}")
    models = dict(zip(answered, times))
    return [problem_entry(chapter, problem, asked, models.get(problem))
            for problem in answered or usual if problem is not OTHER]


def on_two_gpus(chapter):
    """The smallest and the largest problem of the table of a lesson for several GPUs, on two."""
    rows = chapter_tables.gpus(results(), chapter)["rows"]
    return tuple(problem_of(rows[at][3]) for at in (0, -1))


def record_of(chapter, problem):
    if chapter.road == chapter_tables.GPUS_ROAD:
        return load(ROOT / chapter_tables.ON_GPUS).find(chapter.id, problem)
    return results().find(chapter, problem)


def problem_entry(chapter, problem, asked, model):
    record = record_of(chapter, problem)
    name = ", ".join(filter(None, [str(problem), problem.words]))
    asks_bytes = ASKS_BYTES.search(asked)
    if not record or (asks_bytes and not record.get("predicted_bytes")):
        what = "bytes" if record else "time"
        raise ValueError(f"{DATA} has no {what} of {chapter.id} on {name}, which 'Predict' asks")
    entry = {"name": name, "measured": record["median_us"]}
    if asks_bytes:
        entry["bytes"] = record["predicted_bytes"] / 1e6
    if model:
        entry["model"] = model
    parent = chapter_tables.rival(results(), chapter)
    while parent and not (parent.id in asked and results().find(parent, problem)):
        parent = chapter_tables.rival(results(), parent)
    if parent and ASKS_SPEED.search(asked):
        entry |= {"parent": parent.id, "before": results().find(parent, problem)["median_us"]}
    return entry


def on_end(app, problem):
    """Writes the values of all lessons as a script."""
    if problem or app.builder.format != "html":
        return
    chapters = []
    for chapter in (chapter for _, part in in_reading_order() for chapter in part):
        document = document_of(chapter, "notes")
        if asked := app.env.metadata[document].get("predict"):
            chapters.append({"id": chapter.id, "title": chapter.title, "href": f"{document}.html", "problems": asked})
    values = [[one["id"], {**asked, "model": None}] for one in chapters for asked in one["problems"]]
    version = hashlib.sha256(json.dumps(values).encode()).hexdigest()[:12]
    text = json.dumps({"version": version, "chapters": chapters}, ensure_ascii=False, indent=0).replace("</", "<\\/")
    file = Path(app.outdir) / "_static/predictions_data.js"
    file.write_text(f"window.lncPredictions = {text};\n", encoding="utf-8")


def setup(app):
    app.connect("doctree-read", on_doctree)
    app.connect("build-finished", on_end)
    return {"parallel_read_safe": True}
