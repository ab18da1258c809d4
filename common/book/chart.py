"""Writes the data of the book's chart of the progression, chart_data.js, and the library that draws it, vega.js.

Both are classic scripts, so that the page works from file:// too.

    chart.py build/book-data/static

`window.lncChart` holds

    start       the key of the problem that every chapter was measured on, see static/chart_rows.js
    schema      the records that static/chart_file.js reads
    types       {"f32": 4}: the bytes of an element
    norm        {"kind": {"layer": "layer norm"}}: what can be chosen, and its words; so are `views`, `measures`
    measured    {"time": "median_us"}: the field of a row that has a measure
    options     what a problem may have beside its shape: [name, what is usual, the word for it], in the words' order
    chapters    id, title, direction, road, href (relative to the book's root), in reading order
    gpus        id, name, device
    charts      {view: {measure: specification}} of Vega-Lite, see chart_spec.py
    fields      what the places of a row mean
    rows        one for each chapter, peer, or the dispatch, on one problem: right results only, of a cold L2, without
                the host's time

The peers and our kernels beside them are those of one run. Left out are the problems that ask for a `group`: it counts
another thing in each chapter, so chapters with the same number are not alike.
"""

import argparse
import json
from pathlib import Path

import pandas
import vl_convert

from common.results.peers import CHAPTER, set_of
from common.book import chart_spec
from common.results.chapters import DIRECTIONS, KINDS, load_catalogue
from common.results.device import make_results, tools_of
from common.results.problems import OPTIONS, PROGRESSION, WORDS, problem_of
from common.results.records import SCHEMA, MissingData, is_right, load

ROOT = Path(__file__).resolve().parents[2]

GPUS = {"h100": "H100", "h200": "H200"}  # notebooks/data/h100.csv, and its name on the page
LIBRARY = "dispatch"  # the provider that is our library's own choice of a chapter
NUMBERS = ["median_us", "p10_us", "p90_us", "cycles", "operator_bytes", "roof_us", "roof_bytes", "clock", "chosen"]
LICENSES = Path(__file__).with_name("vega_licenses.txt")


def chart_data(root):
    """What the page gets as window.lncChart, as a dict."""
    books = {name: open_gpu(root, name) for name in GPUS}
    books = {name: book for name, book in books.items() if book and book.measured.records}
    rows = pandas.DataFrame([make_row(record, name) for name, book in books.items() for record in chosen_records(book)],
                            dtype=object)
    rows = rows.where(rows.notna(), None).to_dict("split")
    chapters = next(iter(books.values())).chapters.values() if books else ()
    types = {entry["name"]: entry["bytes"] for entry in load_catalogue(root)["types"]}
    measures = chart_spec.MEASURES
    return {"start": key_of(PROGRESSION), "schema": SCHEMA, "types": types,
            "norm": {"direction": {"forward": "forward", "backward": "backward"}, "kind": KINDS,
                     "dtype": {name: name for name in types}},
            "views": chart_spec.VIEWS, "measures": {name: label for name, (label, _, _) in measures.items()},
            "measured": {name: fields[0] for name, (_, fields, _) in measures.items()},
            "options": [[name, usual, WORDS.get(name, name)] for name, usual in OPTIONS.items()],
            "chapters": [chapter_entry(chapter) for chapter in chapters],
            "gpus": [{"id": name, "name": GPUS[name], "device": book.device} for name, book in books.items()],
            "charts": {view: {measure: chart_spec.specification(view, measure) for measure in measures}
                       for view in chart_spec.VIEWS},
            "fields": rows["columns"], "rows": rows["data"]}


def open_gpu(root, name):
    """The book of one GPU's committed measurements; None where there are none."""
    try:
        return make_results(root, load(root / f"notebooks/data/{name}.csv", backend="cuda"), local=False)
    except MissingData:
        return None


def chosen_records(book):
    """The chapters' own records, then the runs that our kernels share with peers on the few problems that are made for
    that; the sets of widths have a picture of their own."""
    own = [record for record in book.measured.records
           if record.get("chapter") in book.chapters and is_right(record) and problem_of(record).group is None]
    shared = [record for direction in DIRECTIONS for kind in KINDS
              for problem, (records, _) in book.compared(direction, kind).items() if set_of(problem) == "peers"
              for record in records if is_shown(record)]
    return own + shared


def is_shown(record):
    """Of a run with peers: not what the host's time is in, nor the dispatch of another operator (gradients from y)."""
    provider = record["provider"]
    return not record.get("late") and (provider == LIBRARY or CHAPTER.fullmatch(provider) is not None
                                       or not provider.startswith(LIBRARY))


def make_row(record, gpu):
    """A record as a row of the page."""
    problem = problem_of(record)
    median = record["median_us"]
    versions = tools_of([{**record, "date": ""}]).removeprefix(", ") if "provider" in record else ""
    return {"who": record.get("chapter") or record["provider"], "direction": record["direction"], "gpu": gpu,
            "kind": problem.kind, "dtype": problem.dtype, "rows": problem.rows, "cols": problem.cols,
            "words": problem.words, **{name: record.get(name, "") for name in ("date", "commit", "run")},
            "versions": versions, "p10_us": median, "p90_us": median,
            **{name: record[name] for name in NUMBERS if record.get(name) is not None}}


def key_of(problem):
    """'1024x2048', and behind a comma the options, as static/chart_rows.js names a problem."""
    return ",".join(filter(None, [f"{problem.rows}x{problem.cols}", problem.words]))


def chapter_entry(chapter):
    """A chapter of the map. `direction` is 'forward', 'backward' or 'copy', as in a record."""
    return {"id": chapter.id, "title": chapter.title, "direction": DIRECTIONS.get(chapter.direction, chapter.direction),
            "road": chapter.road, "href": f"{chapter.directory.as_posix()}/notes.html"}


def script(data):
    """The data as a script: one row a line, so that two versions can be compared."""
    def lines(values):
        return "[\n" + ",\n".join(compact(value) for value in values) + "\n]"

    parts = [f"{compact(name)}: {lines(value) if isinstance(value, list) else compact(value)}"
             for name, value in data.items()]
    return "// Made by common/book/chart.py from notebooks/data/.\nwindow.lncChart = {\n" + ",\n".join(parts) + "\n};\n"


def compact(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")


def library():
    """Vega, Vega-Lite and Vega-Embed as one script, behind their licences. Its own names stay its own."""
    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return f"/*!\n{LICENSES.read_text(encoding='utf-8')}*/\n(() => {{\n{bundle}\n}})();\n"


def write(root: Path, directory: Path):
    """Writes the two scripts into a directory, each only where its content changes."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in {"chart_data.js": script(chart_data(root)), "vega.js": library()}.items():
        out = directory / name
        if not out.exists() or out.read_text(encoding="utf-8") != text:
            out.write_text(text, encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("directory", type=Path, help="where the scripts go")
    write(ROOT, parser.parse_args().directory)


if __name__ == "__main__":
    main()
