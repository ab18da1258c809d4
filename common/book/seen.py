"""What the pages are made from, beside the files themselves: the chapters' map, and what the SIMT machine saw."""

import functools
import json
from pathlib import Path
from typing import NamedTuple

from common.results.chapters import ChapterMap, find_chapters
from common.watch.count import each, number

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "build/book-data"
COUNTS = DATA / "counts.jsonl"
TRACES = DATA / "static/traces"
EXECUTED = DATA / "notebooks"


@functools.cache
def the_map():
    return ChapterMap(find_chapters(ROOT))


class Count(NamedTuple):
    """What a line of a kernel asks of memory, as the margin shows it."""

    requests: str
    sectors: str  # of a request to device memory
    conflicts: str  # passes of shared memory beyond those that are needed
    meetings: str  # "5 120 shuffles", of a line that asks nothing
    words: str  # all of it


def has_trace(identifier):
    return (TRACES / f"{identifier}.js").exists()


def counts_of(identifier):
    """{line of kernel.cu: Count} of a chapter; empty where nothing was counted."""
    return records().get(identifier, {})


@functools.cache
def records():
    if not COUNTS.exists():
        return {}
    found = {}
    for text in COUNTS.read_text(encoding="utf-8").splitlines():
        record = json.loads(text)
        lines = {}
        for launch in record["launches"]:
            for line in launch["lines"]:
                if line["file"] == record["source"]:
                    lines.setdefault(line["line"], []).append(line)
        found[record["chapter"]] = {line: count_of(parts) for line, parts in lines.items()}
    return found


def count_of(parts):
    """The Count of what count.py tells of one line, part by part.

    A line that asks no memory but makes lanes meet has the number of its shuffles or barriers in words.
    """
    asks = [part for part in parts if part["sectors"] or part["passes"] or part["bytes"]]
    words = "; ".join(f"{part['what']} {part.get('tensor', part['space'])}: {number(part['times'])}" for part in parts)
    if not asks:
        meetings = {}
        for part in parts:
            meetings[part["what"]] = meetings.get(part["what"], 0) + part["times"]
        return Count("", "", "", ", ".join(f"{number(times)} {what}s" for what, times in meetings.items()), words)
    to_device = [part for part in asks if part["sectors"]]
    device_requests = sum(part["times"] for part in to_device)
    sectors = sum(part["sectors"] for part in to_device) / device_requests if device_requests else None
    conflicts = sum(part["passes"] - part["passes_needed"] for part in asks if part["passes"])
    return Count(number(sum(part["times"] for part in asks)),
                 "" if sectors is None else each(sectors),
                 number(conflicts) if conflicts else "", "", words)
