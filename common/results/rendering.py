"""How a table is written: a Jinja2 template of templates/ for each, with the formats of its cells as filters."""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jinja2

from common.results.chapters import DIRECTIONS, KINDS, SHORT
from common.results.problems import problem_of
from common.results.records import MISSING, count, gbps, is_right, number, provenance, roof_gbps

ROOFS = {"copy": "a copy (one read, one write)", "fwd": "a copy (one read, one write)",
         "bwd": "a triad (two reads, one write)"}


def markdown(headers, rows, left=(0,)):
    """A table; the columns numbered in `left` are left-aligned, the others right."""
    rule = [":--" if i in left else "--:" for i in range(len(headers))]
    return "\n".join("| " + " | ".join(map(str, cells)) + " |" for cells in (headers, rule, *rows))


def link_to(results, file, chapter, words=None):
    """A link from a file to a chapter's lesson; its words are the id unless others are given."""
    page = chapter.file if chapter.in_library else chapter.directory / "notes.md"
    return f"[{words or chapter.id}]({relative(results.root / page, file)})"


def relative(path, file):
    return Path(os.path.relpath(path, file.parent)).as_posix()


# --- Cells: of a record, or of None ---


def right(records):
    return [record for record in records if record and is_right(record)]


def cell(of_record):
    """A cell's format, which shows '–' for no record and for a wrong result."""
    return lambda record, *more: of_record(record, *more) if right([record]) else MISSING


def megabytes(record, key="predicted_bytes"):
    """Also of a wrong result."""
    return number(record[key] / 1e6) if record and record.get(key) else MISSING


def of_roof(record):
    return f"{100 * gbps(record) / roof_gbps(record):.1f}" if record.get("roof_us") else MISSING


def speed_up(record, before):
    both = len(right([record, before])) == 2
    return f"× {number(before['median_us'] / record['median_us'], 3)}" if both else ""


def roof_us(record):
    """The roof's time for the bytes that the operator must move."""
    return number(record["operator_bytes"] / roof_gbps(record) / 1e3) if record.get("roof_us") else MISSING


def small(value):
    """0.00213 -> '2.1e-3'"""
    digits, _, exponent = f"{value:.1e}".partition("e") if value is not None else (MISSING, "", "")
    return f"{digits}e{int(exponent)}" if exponent else digits


def with_kind(problem):
    """'bf16, 8 × 64, RMS norm'; of layer norm, the usual kind, only the shape."""
    return f"{problem}, RMS norm" if problem.kind == "rms" else str(problem)


def roofs_of(records, with_speed=False):
    """'a copy (…) at 2 400 GB/s for the forward pass; …'. `with_speed`: where the records share a size."""
    found = []
    for direction, roof in ROOFS.items():
        own = [record for record in records if SHORT.get(record["direction"], "copy") == direction]
        speeds = sorted({round(roof_gbps(record)) for record in own if record.get("roof_us")})
        shown = "–".join(count(speed) for speed in dict.fromkeys((*speeds[:1], *speeds[-1:]))) or MISSING
        of_pass = f" for the {DIRECTIONS[direction]} pass" if direction in DIRECTIONS else ""
        found += [roof + (f" at {shown} GB/s" if with_speed else "") + of_pass] if own else []
    return "; ".join(found)


FILTERS = {
    "median": cell(lambda record: number(record["median_us"])), "of_roof": cell(of_roof),
    "roof_us": cell(roof_us),
    "spread": cell(lambda record: f"{number(record.get('p10_us'))}–{number(record.get('p90_us'))}"),
    "gbps": cell(lambda record: number(gbps(record), 3)), "cycles": cell(lambda record: count(record.get("cycles"))),
    "bold": lambda text, is_bold: f"**{text}**" if is_bold else text,
    "samples": cell(lambda record: count(record.get("samples")) + (" †" if record.get("cut_short") else "")),
    **{own.__name__: own for own in (right, megabytes, speed_up, small, with_kind, number, count, provenance,
                                       problem_of, roofs_of)}}

environment = jinja2.Environment(loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
                                 trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
environment.filters |= FILTERS
environment.globals |= {"table": markdown, "MISSING": MISSING, "KINDS": KINDS, "DIRECTIONS": DIRECTIONS, "ROOFS": ROOFS}


FIGURES = Path("notebooks/figures")
TABLES = {}  # by what a marker asks for: "progression", "measured <chapter>"


class Table(NamedTuple):
    values_for: Callable  # (results, *arguments) -> what its template, of the same name, shows; None without data
    fixed: dict  # arguments that the request stands for
    command: str  # what makes the data


def table(request, command="", **fixed):
    """Registers a function that finds what a table shows; its docstring says what that is."""
    def register(values_for):
        TABLES[request] = Table(values_for, fixed, command)
        return values_for
    return register


def render(results, file, asked, *arguments):
    """The lines of a table, as they stand in this file."""
    values = asked.values_for(results, *arguments, **asked.fixed)
    if values is None:
        return [f"Not measured yet; run `{asked.command.format(*(getattr(one, 'id', one) for one in arguments))}`."]
    template = environment.get_template(f"{values.pop('template', asked.values_for.__name__)}.md.j2")
    return template.render(link=functools.partial(link_to, results, file), **values,
                           figure=lambda name: relative(results.root / FIGURES / name, file)).strip("\n").split("\n")
