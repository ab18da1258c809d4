"""Writes the numbers of the book's chart of the progression: chart_data.js, a classic script, so that the page works
from file:// too.

    chart.py build/book/_static/chart_data.js

`window.lncChart` holds

    start      the key of the problem that every chapter was measured on, see static/chart_records.js
    types      {"f32": 4}: the bytes of an element
    options    what a problem may have beside its shape: [name, what is usual, the word for it], in the words' order
    chapters   id, title, direction, road, parent, href (relative to the book's root), in reading order
    gpus       id, name, device
    problems   [kind, dtype, rows, cols, options in words]
    made       [the gpu's place, date, commit, when the run of the peers began, their versions]: what made a row
    fields     what the places of a row mean
    rows       numbers; `problem` and `made` are places in the lists above

A row is a chapter, a peer, or the dispatch, on one problem: right results only, of a cold L2, without the host's time.
The peers and our kernels beside them are those of one run. Left out are the problems that ask for a `group`: it counts
another thing in each chapter, so chapters with the same number are not alike.
"""

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "common/bench"))

import measurements  # noqa: E402
from book import DIRECTIONS, KINDS, is_right, make_book, tools_of  # noqa: E402
from catalogue import load_catalogue  # noqa: E402
from measurements import OPTIONS, PROGRESSION, WORDS, MissingData, problem_of  # noqa: E402
from peers import CHAPTER, set_of  # noqa: E402

GPUS = {"h100": "H100", "h200": "H200"}  # notebooks/data/h100.csv, and its name on the page
LIBRARY = "dispatch"  # the provider that is our library's own choice of a chapter
FIELDS = ("who", "direction", "problem", "made", "median_us", "p10_us", "p90_us", "cycles", "operator_bytes", "roof_us",
          "roof_bytes", "clock", "chosen")


class Places:
    """A list in which each value stands once."""

    def __init__(self):
        self.of = {}

    def add(self, value):
        """The place of a value, which joins the list where it is new."""
        return self.of.setdefault(value, len(self.of))

    def values(self):
        return list(self.of)


def chart_data(root):
    """What the page gets as window.lncChart, as a dict."""
    books = {name: open_gpu(root, name) for name in GPUS}
    books = {name: book for name, book in books.items() if book and book.measured.records}
    problems, made, rows = Places(), Places(), []
    for at, book in enumerate(books.values()):
        rows += [make_row(record, at, problems, made) for record in chosen_records(book)]
    chapters = next(iter(books.values())).chapters.values() if books else ()
    return {"start": key_of(PROGRESSION),
            "types": {entry["name"]: entry["bytes"] for entry in load_catalogue(root)["types"]},
            "options": [[name, usual, WORDS.get(name, name)] for name, usual in OPTIONS.items()],
            "chapters": [chapter_entry(chapter) for chapter in chapters],
            "gpus": [{"id": name, "name": GPUS[name], "device": book.device} for name, book in books.items()],
            "problems": problems.values(), "made": made.values(), "fields": FIELDS, "rows": rows}


def open_gpu(root, name):
    """The book of one GPU's committed measurements; None where there are none."""
    try:
        return make_book(root, measurements.load(root / f"notebooks/data/{name}.csv", backend="cuda"), local=False)
    except MissingData:
        return None


def chosen_records(book):
    """The chapters' own records, then the runs that our kernels share with peers on the few problems that are made for
    that; the sets of widths have a picture of their own."""
    own = [record for record in book.measured.records
           if record.get("chapter") in book.chapters and is_right(record) and problem_of(record).group is None]
    shared = [record for direction in DIRECTIONS for kind in KINDS
              for problem, records in book.shared_runs(direction, kind).items() if set_of(problem) == "peers"
              for record in records if is_shown(record)]
    return own + shared


def is_shown(record):
    """Of a run with peers: not what the host's time is in, nor the dispatch of another operator (gradients from y)."""
    provider = record["provider"]
    return not record.get("late") and (provider == LIBRARY or CHAPTER.fullmatch(provider) is not None
                                       or not provider.startswith(LIBRARY))


def make_row(record, gpu, problems, made):
    """The numbers of a record in the order of FIELDS; None where it has none."""
    problem = problem_of(record)
    median = record["median_us"]
    is_peer_run = "provider" in record
    versions = tools_of([{**record, "date": ""}]).removeprefix(", ") if is_peer_run else ""
    row = {"who": record.get("chapter") or record["provider"], "direction": record["direction"],
           "problem": problems.add((problem.kind, problem.dtype, problem.rows, problem.cols, problem.words)),
           "made": made.add((gpu, record.get("date", ""), record.get("commit", ""), record.get("run", ""), versions)),
           "median_us": median, "p10_us": record.get("p10_us", median), "p90_us": record.get("p90_us", median),
           **{name: record.get(name) for name in FIELDS[7:]}}
    return [row[name] for name in FIELDS]


def key_of(problem):
    """'1024x2048', and behind a comma the options, as static/chart_records.js names a problem."""
    return ",".join(filter(None, [f"{problem.rows}x{problem.cols}", problem.words]))


def chapter_entry(chapter):
    """A chapter of the map. `direction` is 'forward', 'backward' or 'copy', as in a record."""
    return {"id": chapter.id, "title": chapter.title, "direction": DIRECTIONS.get(chapter.direction, chapter.direction),
            "road": chapter.road, "parent": chapter.parent, "href": f"{chapter.directory.as_posix()}/notes.html"}


def script(data):
    """The data as a script: one row a line, so that two versions can be compared."""
    def lines(values):
        return "[\n" + ",\n".join(compact(value) for value in values) + "\n]"

    parts = [f"{compact(name)}: {lines(value) if isinstance(value, list) else compact(value)}"
             for name, value in data.items()]
    return "// Made by common/book/chart.py from notebooks/data/.\nwindow.lncChart = {\n" + ",\n".join(parts) + "\n};\n"


def compact(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")


def write(root: Path, out: Path):
    """Writes the script to `out`, only where its content changes. True where it did."""
    text = script(chart_data(root))
    if out.exists() and out.read_text(encoding="utf-8") == text:
        return False
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("out", type=Path, metavar="OUT", help="the script to write")
    write(ROOT, parser.parse_args().out)


if __name__ == "__main__":
    main()
