#!/usr/bin/env python3
"""Writes the tables in the READMEs and the chapters' texts from the committed measurements.

    python3 common/bench/tables.py            # rewrites the tables in place, and draws the figures
    python3 common/bench/tables.py --check    # writes nothing; exit status 1 where something disagrees

A table stands between two markers, each alone on its line; nothing else is touched:

    <!-- table: head bwd02 -->             a lesson's first line: its road, what comes before and after
    <!-- table: steps bwd02 -->            a lesson's small table: its parent, itself, the roof; or a road's chapters
    <!-- table: map -->                    the main line and the side roads
    <!-- table: machine -->                how large, how slow and how fast each memory of the GPU is
    <!-- table: progression -->            every chapter on the progression's problem
    <!-- table: measured bwd02 -->         one chapter on the progression's, the sweep's, the large, the wide problems
    <!-- table: profile bwd02 -->          what the hardware counted while the chapter ran
    <!-- table: counted bwd02 -->          bytes that it asks for: predicted, counted without a GPU, measured on one
    <!-- table: agreement -->              all that was counted and measured, kernel by kernel; or: agreement sum
    <!-- table: variants fwd07 -->         a fused chapter with some of its parts
    <!-- table: groups bwd05 -->           a chapter with 1, 2, 4, … of what it counts, on two problems
    <!-- table: results -->                our time beside the fastest peer's, in eight rows
    <!-- table: peers -->                  our time beside those of others' kernels
    <!-- table: peers rms -->              the same for RMS norm
    <!-- table: against layer -->          our time over the best peer's, in sentences; or rms
    <!-- table: picture peers -->          our time over each peer's on the problems of `make peers`
    <!-- table: picture widths -->         our share of the roof and our time over the fastest peer's, over the width
    <!-- table: widths sum -->             the same in sentences: where ours are ahead, and where behind
    <!-- table: widths -->                 of both types and three sizes, and, folded, width by width
    <!-- table: targets -->                this project's targets: which are met, and where not
    <!-- table: misses -->                 what misses them, region by region
    <!-- table: training -->               a GPT's training with each norm, and its figure
    <!-- table: host calls -->             the host's time of a call of a norm, by each way to call it
    <!-- table: dispatch -->               the rules by which the library chooses a kernel
    <!-- table: source common/cuda/hopper.h bulk_load -->   a function of a source file
    <!-- table: host blocks -->            a transformer block's step, by each way to call its norms
    <!-- end table -->

The numbers are those of notebooks/data/: h100.csv (`make bench`, archive.py), h100_profile.jsonl
(common/bench/profile_chapter.py), peers_h100.csv (`make peers`, archive.py), training_h100.jsonl
(common/bench/gpt_training.py --json …), host_*.jsonl (common/bench/host_time.py --json …), source_a100.jsonl. The
widths are the H100's where its peers' file has them, else those of the first other peers_*.csv that has. What is
not measured yet is shown as '–'.
Exit status 2, with a sentence: an unknown table, a marker that is not closed, data that cannot be used.
"""

import argparse
import difflib
import json
import os
import re
import sys
from pathlib import Path

import agreement
import measurements
import peers
import targets
from book import DIRECTIONS, KINDS, SHORT, is_right, open_book, provenance
from chapter_map import MAIN
from measurements import (GROUPS, LARGE, MISSING, NARROW, ODD, PROGRESSION, ROOT, SETS, SMALL, SWEEP, WIDE, WIDTHS, DataError,
                          Problem, count, geometric_mean, mib, number, problem_of, roof_gbps)
from profile_chapter import profile_rows

sys.path.insert(0, str(ROOT / "common/results"))
import figures as plots  # noqa: E402

FIGURES = Path("notebooks/figures")
TEXTS = ("README.md", "chapters/README.md", "chapters/*/notes.md", "chapters/*/lab.md", "common/*/*.md",
         "common/*/*/README.md", "reference_cpu/README.md", "notebooks/README.md")

SHOWN_WIDTHS = (1024, 2048, 4096, 8192, 12288, 15872)  # of the sweep's thirty
ROOFS = {"copy": "a copy (one read, one write)", "fwd": "a copy (one read, one write)",
         "bwd": "a triad (two reads, one write)"}
MACHINE = Path("notebooks/data/machine_h100.jsonl")
STEPS = (PROGRESSION, Problem.of("bf16", 131072, 4096))  # of a lesson's small table: short rows of data, and long ones
# Of lessons whose idea shows on others.
OWN_STEPS = {
    "fwd08": (Problem.of("bf16", 128, 8192), Problem.of("f32", 4096, 2048)),
    "fwd18": (Problem.of("bf16", 4096, 2048), STEPS[1]),
    "bwd17": (Problem.of("f32", 256, 8192), Problem.of("bf16", 256, 16384)),
    "fwd09": (Problem.of("bf16", 128, 32768), Problem.of("bf16", 1024, 65536)),
    "bwd13": (Problem.of("bf16", 256, 16384), Problem.of("bf16", 4096, 65536)),
}
NARROW_ROAD = "narrow rows"  # its chapters take no others
NARROW_STEPS = tuple(Problem.of("bf16", rows, cols) for rows, cols in ((1048576, 64), (524288, 128)))
NARROW_UNALIGNED_STEPS = (Problem.of("bf16", 1032444, 65), Problem.of("bf16", 528416, 127))  # further on that road
FUSION_ROAD = "fusion"
FUSION_STEPS = tuple(Problem.of("bf16", rows, 4096, options={"prenorm": True, **options}) for rows, options in (
    (131072, {"residual": "same"}), (131072, {"residual": "same", "dropout": 0.1}), (16384, {"residual": "same"}),
    (16384, {"residual": "f32"})))
UNALIGNED_ROAD = "unaligned rows"  # its chapters take both
UNALIGNED_STEPS = tuple(Problem.of("bf16", 16384, cols) for cols in (4104, 4097))
RESULTS = (PROGRESSION, Problem.of("f16", 4096, 1024), Problem.of("bf16", 131072, 4096),
           Problem.of("bf16", 16384, 16384))  # of `make peers`: the least work, few columns, many rows, wide rows


class MarkerError(Exception):
    """A marker that means nothing; the message names file and line."""


# --- The tables ---


def markdown(headers, rows, left=(0,)):
    """A table's lines; the columns numbered in `left` are left-aligned, the others right."""
    rule = [":--" if i in left else "--:" for i in range(len(headers))]
    return ["| " + " | ".join(cells) + " |" for cells in (headers, rule, *rows)]


def link_to(book, file, chapter, words=None):
    """A link from a file to a chapter's lesson; its words are the id where nothing else is said."""
    page = chapter.file if chapter.in_library else chapter.directory / "notes.md"
    return f"[{words or chapter.id}]({Path(os.path.relpath(book.root / page, file.parent)).as_posix()})"


# --- The dispatch ---

DISPATCH = Path("common/library/dispatch.json")


def dispatch_table(book, file):
    """The rules, in their order: what each takes, and the measurement behind it."""
    rules = json.loads((book.root / DISPATCH).read_text(encoding="utf-8"))["rules"]
    headers = ["pass", "rows", "columns", "size", "GPU", "batch-invariant", "kernel", "because"]
    return markdown(headers, [dispatch_row(book, file, rule) for rule in rules], left=range(len(headers)))


def dispatch_row(book, file, rule):
    def bounds(least, most, unit=""):
        if least and most:
            return f"{least} to {most}{unit}" if least != most else f"{least}{unit}"
        return f"from {least}{unit}" if least else f"to {most}{unit}" if most else ""

    passes = " ".join(filter(None, [rule["direction"], rule.get("pass"), rule.get("kind"), rule.get("types")]))
    columns = bounds(rule.get("cols_from"), rule.get("cols_to"))
    size = ", ".join(filter(None, [bounds(rule.get("rows_from"), None, " rows"), bounds(None, rule.get("mib_to"), " MiB"),
                                   bounds(None, rule.get("row_bytes_to"), " bytes a row")]))
    gpu = rule.get("gpu") or bounds(rule.get("architecture_from"), rule.get("architecture_to")) or "any"
    kernel = link_to(book, file, book.kernels[rule["kernel"]]) if rule["kernel"] in book.kernels else rule["kernel"]
    return [passes, rule.get("starts", "any"), columns, size, gpu, "yes" if rule.get("batch_invariant", True) else "no", kernel,
            rule["because"]]


# --- Source ---


def source(book, words, where):
    """A function or a type of a source file, from the comment above it to its end, as code. `words`: the file, from the
    repository's root, and the name."""
    path, _, name = words.partition(" ")
    try:
        lines = (book.root / path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise MarkerError(f"{where}: cannot read {path}: {error.strerror}") from error
    declares = re.compile(rf"( *)(?:template |__device__ |struct |class |inline |constexpr ).*\b{re.escape(name)}\s*[({{]")
    begins = [at for at, line in enumerate(lines) if declares.match(line)]
    if not begins:
        raise MarkerError(f"{where}: {path} does not declare {name}")
    begin = end = begins[0]  # of overloads the first
    indent = declares.match(lines[begin])[1]
    while begin and re.match(rf"{indent}(///|template\b)", lines[begin - 1]):
        begin -= 1
    while not re.match(rf"{indent}}}", lines[end]) and not (end == begins[0] and lines[end].endswith("}")):
        end += 1
    return ["```cpp", *(line.removeprefix(indent) for line in lines[begin : end + 1]), "```", "", f"From {path}."]


# --- The map ---


def head(book, file, chapter):
    """A lesson's first line: which road it is on, and what comes before and after."""
    if chapter not in book.map:
        return ["*Not on the map yet.*"]

    def named(other):
        return link_to(book, file, other, f"{other.id} · {other.title}")

    parent, after = book.map.parent(chapter), book.map.after(chapter)
    branches = book.map.side_roads(chapter)
    if chapter.road == MAIN:
        roads = [f"{child.road}, {named(child)}" for child in branches]
        words = ["Main line.", parent and f"Before: {named(parent)}.", after and f"After: {named(after)}.",
                 roads and f"Side {'road' if len(roads) == 1 else 'roads'} from here: {'; '.join(roads)}."]
    else:
        leaves_at = book.map.leaves_at(chapter)
        back = leaves_at and book.map.after(leaves_at)
        further = ", ".join(map(named, branches))
        words = [f"Side road: {chapter.road}.", parent and f"Before: {named(parent)}.",
                 further and f"Further on this road: {further}.", back and f"Back to the main line: {named(back)}."]
    if (book.root / chapter.directory / "questions.md").exists():
        words.append("At the end: [check yourself](questions.md).")
    return [f"*{' '.join(filter(None, words))}*"]


def chapter_map(book, file):
    """A drawing, the chapters road by road, and, folded since each lesson has the reader predict them, the times."""
    tree = book.map
    lines = ["The main line runs down; a side road leaves it to the right.", "", "```text", *drawing(tree), "```", ""]
    for name, part in main_parts(tree):
        rows = [[link_to(book, file, chapter), chapter.teaches] for chapter in part]
        lines += [*markdown([f"main line, {name}", "the one idea"], rows, left=(0, 1)), ""]
    rows = [[road, link_to(book, file, chapter), chapter.teaches]
            for road, chapters in tree.roads().items() for chapter in chapters]
    if rows:
        lines += [*markdown(["side road", "chapter", "the one idea"], rows, left=(0, 1, 2)), ""]
    shown = [record for chapter in tree.chapters.values() if (record := book.find(chapter, PROGRESSION))]
    rows = [[chapter.id, *time_and_gain(book, chapter), chapter.parent or MISSING]
            for chapter in tree.chapters.values()]
    times = f" {provenance(shown)}." if shown else ""
    return [*lines, "<details><summary>Times, and what each step gains: first predict, then look</summary>", "",
            *markdown(["chapter", "µs", "over its parent", "parent"], rows, left=(0, 3)), "",
            f"{PROGRESSION}, layer norm, the median of launches with a cold L2. A speed-up is over the "
            f"parent, the chapter that is improved on; less than × 1 is slower.{times}", "", "</details>"]


def main_parts(tree):
    """[(the direction's name, its chapters of the main line)]; what is of neither direction comes first."""
    parts = {}
    for chapter in tree.main_line():
        part = "backward" if chapter.direction == "bwd" else "forward"
        parts.setdefault(part, []).append(chapter)
    return parts.items()


def drawing(tree):
    """The tree in lines of text, one chapter of the main line below the other."""
    lines, before = [], None
    for chapter in tree.main_line():
        roads = [f"{' ── '.join(one.id for one in tree.along(child))}  {child.road}"
                 for child in tree.side_roads(chapter)]
        begins_anew = before and chapter.parent != before.id
        lines += [""] if begins_anew else []
        lines += [f"{chapter.id} ── {road}" if at == 0 else f"{' ' * len(chapter.id)} └─ {road}"
                  for at, road in enumerate(roads)] or [chapter.id]
        lines[-1] += f"  after {chapter.parent}" if begins_anew else ""
        before = chapter
    return lines


def time_and_gain(book, chapter):
    """A chapter's time on the progression's problem, and what that gains over its parent."""
    record = book.find(chapter, PROGRESSION)
    return [median(record), speed_up(parent_record(book, chapter, PROGRESSION), record) or MISSING]


def rival(book, chapter):
    """The chapter that another's time is held against, its parent; None for the first of a direction."""
    parent = book.map.parent(chapter)
    return parent if parent and parent.direction == chapter.direction else None


def parent_record(book, chapter, problem):
    parent = rival(book, chapter)
    return book.find(parent, problem) if parent else None


def progression(book, file):
    """Both directions on the progression's problem; the links are relative to `file`."""
    lines, shown = [], []
    for direction, name in DIRECTIONS.items():
        headers = [f"{name} chapter", "the idea", "median µs", "parent", "speed-up", "SM cycles", "GB/s",
                   "% of roof", "predicted MB"]
        if direction == "bwd":
            headers.append("A100 cycles (source)")
        rows = []
        for chapter in book.chapters.values():
            if chapter.direction != direction or not book.has_data_for(chapter):
                continue
            record = book.find(chapter, PROGRESSION)
            row = [link_to(book, file, chapter), chapter.title, median(record), chapter.parent,
                   speed_up(parent_record(book, chapter, PROGRESSION), record),
                   count(record.get("cycles")) if record else MISSING,
                   gbps(record), of_roof(record), predicted_mb(book, chapter, PROGRESSION)]
            if direction == "bwd":
                row.append(count((book.source.find(chapter.id, PROGRESSION, l2=None) or {}).get("cycles")))
            rows.append(row)
            shown += [record] if record else []
        if rows:
            lines += [*markdown(headers, rows, left=(0, 1, 3)), ""]
    lines += [f"{PROGRESSION} (M × N), layer norm with weight and bias. Speed-up is over the parent, the chapter that "
              f"is improved on. {caption(shown, with_speed=True)}"]
    for source, device in dict.fromkeys((r.get("source"), r.get("device")) for r in book.source.records):
        if source:
            lines += ["", f"A100 cycles: {source} ({device})."]
    return lines + failures(book, book.chapters.values(), [PROGRESSION])


def steps(book, file, chapter):
    """A lesson's one small table: its parent's times and its own on two problems, what that gains, the roof."""
    if chapter.road == FUSION_ROAD:
        return fusion_steps(book, file, chapter)
    parent = rival(book, chapter)
    further_on = parent is not None and parent.road == chapter.road
    of_road = {NARROW_ROAD: NARROW_UNALIGNED_STEPS if further_on else NARROW_STEPS, UNALIGNED_ROAD: UNALIGNED_STEPS}
    candidates = OWN_STEPS.get(chapter.id) or of_road.get(chapter.road, STEPS)
    measured = [problem for problem in candidates if book.find(chapter, problem)]
    problems = (measured if len(measured) > 1 else candidates)[:2]  # it may refuse one
    parent = nearest_with(book, parent, problems) or (parent if not measured else None)  # it may refuse both
    own, before = ([book.find(one, problem) if one else None for problem in problems] for one in (chapter, parent))
    headers = ["", *(head for problem in problems for head in (f"{with_kind(problem)}: µs", "% of the roof"))]

    def row(name, records):
        return [name, *(cell for record in records for cell in (median(record), of_roof(record)))]

    rows = [row(link_to(book, file, parent), before)] if parent else []
    rows += [row(f"**{chapter.id}**", own)]
    if parent:
        rows += [[f"speed-up over {parent.id}", *(cell for pair in zip(before, own)
                                                  for cell in (speed_up(*pair) or MISSING, ""))]]
    roof = "a triad" if chapter.direction == "bwd" else "a copy"
    rows += [[roof, *(cell for record in own for cell in roof_cells(record))]]
    shown = [record for record in (*before, *own) if record]
    return [*markdown(headers, rows), "",
            f"Median of launches with a cold L2. {provenance(shown)}." if shown else "Not measured yet."]


def nearest_with(book, chapter, problems):
    """A chapter, or the nearest before it, that has been measured on one of the problems: its parent may refuse them."""
    while chapter and not any(book.find(chapter, problem) for problem in problems):
        chapter = rival(book, chapter)
    return chapter


def fusion_steps(book, file, chapter):
    """The same where a norm is fused with other steps: the chapters that do, side by side, and its steps one by one."""
    beside = [other for other in book.chapters.values()
              if other.road == FUSION_ROAD and other.direction == chapter.direction]
    found = {problem: {other.id: book.find(other, problem) for other in beside} for problem in FUSION_STEPS}
    shown = [record for of_problem in found.values() for record in of_problem.values() if record]
    with_parts = any("parts_us" in record for record in shown)
    headers = ["bf16, M × N", "with", *(["one by one: µs"] if with_parts else [])]
    for other in beside:
        headers += [f"{other.id}: µs", "% of the roof"]
    rows = []
    for problem, of_problem in found.items():
        row = [f"{problem.rows} × {problem.cols}", problem.words]
        own = of_problem[chapter.id] or {}
        row += [number(own["parts_us"]) if "parts_us" in own else MISSING] if with_parts else []
        for other in beside:
            time = median(of_problem[other.id])
            row += [f"**{time}**" if other is chapter and time != MISSING else time, of_roof(of_problem[other.id])]
        rows.append(row)
    return [*markdown(headers, rows, left=(0, 1)), "", caption(shown)]


def with_kind(problem):
    """'bf16, 8 × 64, RMS norm'; of layer norm, the usual kind, only the shape."""
    return f"{problem}, RMS norm" if problem.kind == "rms" else str(problem)


def roof_cells(record):
    """The roof's time for the bytes that the operator must move, and that it is all of itself."""
    if not record or not record.get("roof_us"):
        return [MISSING, MISSING]
    return [number(record["operator_bytes"] / roof_gbps(record) / 1e3), "100.0"]


def machine(book):
    """The memories of a GPU, as common/bench/machine.cu measured them."""
    try:
        records = [json.loads(line) for line in (book.root / MACHINE).read_text(encoding="utf-8").splitlines()]
    except FileNotFoundError:
        return ["Not measured yet."]
    value = {record["figure"]: record["value"] for record in records}
    clock = value["SM clock"]  # GHz, so cycles a nanosecond
    rows = []
    for name, where, size, latency, bandwidth in (
            ("registers", "a multiprocessor", "256 KB", None, None),
            ("shared memory", "a multiprocessor", "up to 227 KB of the 256 beside it", "latency: shared memory", None),
            ("L1", "a multiprocessor", "256 KB, less shared memory", "latency: L1", "bandwidth: L1, read"),
            ("L2", "the GPU", "50 MB", "latency: L2", "bandwidth: L2, read"),
            ("device memory", "the GPU", "80 GB", "latency: device memory", "bandwidth: copy of 1024 MiB")):
        cycles = value.get(latency)
        rows.append([name, where, size, count(cycles), number(cycles and cycles / clock, 2),
                     number(value.get(bandwidth), 2)])
    headers = ["memory", "one for", "size", "a load waits, cycles", "ns", "all together, TB/s"]
    return [*markdown(headers, rows, left=(0, 1, 2)), "",
            f"Sizes: NVIDIA. Waits and speeds: {number(clock, 3)} GHz, {provenance(records)}."]


def measured(book, chapter):
    problems = [PROGRESSION, *(p for p in SWEEP if p.cols in SHOWN_WIDTHS), *LARGE]
    problems += [p for p in WIDE if book.find(chapter, p)]  # the first chapters are not measured there
    if not any(book.find(chapter, p) for p in problems[1:]):
        problems = [PROGRESSION]  # measured on none of the large ones
    if chapter.road == NARROW_ROAD:
        problems = list(NARROW)
    if chapter.road == UNALIGNED_ROAD:
        problems += ODD
    problems += [p for p in SMALL if p not in problems and book.find(chapter, p)]
    records = {problem: book.find(chapter, problem) for problem in problems}
    headers = ["problem, M × N", "median µs", "p10–p90", "GB/s", "% of roof", "predicted MB", "samples"]
    rows = [[with_kind(problem), median(record), spread(record), gbps(record), of_roof(record),
             predicted_mb(book, chapter, problem), samples(record)] for problem, record in records.items()]
    shown = [record for record in records.values() if record]
    lines = [*markdown(headers, rows), "", caption(shown)]
    if any(record.get("cut_short") for record in shown):
        lines += ["", "† cut short: the time budget ended the sampling before the median was stable."]
    return lines + failures(book, [chapter], problems)


def variants(book, chapter):
    """The problems that a fused chapter was measured on with some of its parts."""
    records = [record for record in book.measured.records
               if record.get("chapter") == chapter.id and record["options"]
               and problem_of(record).group is None and is_right(record)]
    if not records:
        return ["Not measured yet."]
    records.sort(key=lambda record: (record["dtype"], record["rows"], record["cols"]))
    headers = ["problem, M × N", "with", "median µs", "p10–p90", "GB/s", "% of roof", "predicted MB"]
    rows = [[with_kind(problem_of(r)), problem_of(r).words, median(r), spread(r), gbps(r), of_roof(r),
             number(r["predicted_bytes"] / 1e6)] for r in records]
    text = "GB/s are of the bytes that the fused operator must move. "
    if any("parts_us" in r for r in records):
        headers += ["parts µs", "parts / fused", "predicted"]
        rows = [row + parts(r) for row, r in zip(rows, records)]
        text += ("Parts: the same work by a kernel for each, one after another, from a cold L2 as well; "
                 "predicted is the ratio of their bytes. ")
    return [*markdown(headers, rows, left=(0, 1)), "", text + caption(records)]


def parts(record):
    """The time of a fusion's parts, and that and their bytes against the fused chapter's."""
    if "parts_us" not in record:
        return [MISSING] * 3
    return [number(record["parts_us"]), f"× {number(record['parts_us'] / record['median_us'], 3)}",
            f"× {number(record['parts_bytes'] / record['predicted_bytes'], 3)}"]


def groups(book, chapter):
    """The problems of --set groups, by how much they ask for of what the chapter counts."""
    sizes = sorted({problem_of(record).group for record in book.measured.records
                    if record.get("chapter") == chapter.id} - {None})
    asked = {size: [problem.with_options(group=size) for problem in GROUPS] for size in sizes}
    found = {size: [book.find(chapter, problem) for problem in problems] for size, problems in asked.items()}
    shown = [record for records in found.values() for record in records if record]
    failed = failures(book, [chapter], [problem for problems in zip(*asked.values()) for problem in problems])
    if not shown:
        return ["Not measured yet.", *failed]
    headers = [chapter.group or "group", *(head for problem in GROUPS
                                           for head in (f"{problem}: median µs", "% of roof"))]
    rows = [[str(size), *(cell for record in records for cell in (median(record), of_roof(record)))]
            for size, records in found.items() if any(records)]
    return [*markdown(headers, rows, left=()), "", caption(shown), *failed]


def median(record):
    return number(record["median_us"]) if record else MISSING


def speed_up(before, record):
    return f"× {number(before['median_us'] / record['median_us'], 3)}" if before and record else ""


def spread(record):
    return f"{number(record.get('p10_us'))}–{number(record.get('p90_us'))}" if record else MISSING


def predicted_mb(book, chapter, problem):
    record = book.measured.find(chapter.id, problem) or {}
    return number(record["predicted_bytes"] / 1e6) if "predicted_bytes" in record else MISSING


def gbps(record):
    return number(measurements.gbps(record), 3) if record else MISSING


def of_roof(record):
    if not record or not record.get("roof_us"):
        return MISSING
    return f"{100 * measurements.gbps(record) / roof_gbps(record):.1f}"


def samples(record):
    return count(record.get("samples")) + (" †" if record.get("cut_short") else "") if record else MISSING


def caption(records, with_speed=False):
    """Where the numbers come from. `with_speed`: they share a size, so the roof is one number."""
    if not records:
        return "Not measured yet."
    roofs = []
    for direction, roof in ROOFS.items():
        own = [record for record in records if SHORT.get(record["direction"], "copy") == direction]
        speed = f" at {roof_speed(own)} GB/s" if with_speed else ""
        name = f"{DIRECTIONS[direction]} " if direction in DIRECTIONS else ""
        roofs += [f"{name}{roof}{speed}"] if own else []
    return ("Times are the median of launches with a cold L2. The roof is measured in the same run, at the "
            f"same size, also cold: {'; '.join(roofs)}. {provenance(records)}.")


def roof_speed(records):
    roofs = sorted({round(roof_gbps(record)) for record in records if record.get("roof_us")})
    return "–".join(count(roof) for roof in dict.fromkeys((roofs[0], roofs[-1]))) if roofs else MISSING


def failures(book, chapters, problems):
    """A line that names what is not shown because its result was wrong."""
    failed = [", ".join(filter(None, (f"{chapter.id} on {problem}", problem.words)))
              for chapter in chapters for problem in problems
              if not (book.measured.find(chapter.id, problem) or {}).get("passed", True)]
    return ["", f"Without times, because the check failed: {'; '.join(failed)}."] if failed else []


def profile(book, chapter):
    """Of the progression's problem; of a chapter that does not take it, of another that was profiled."""
    problems = [problem for of, problem in book.profiles if of == chapter.id]
    if not problems:
        return ["Not profiled yet."]
    problem = PROGRESSION if PROGRESSION in problems else problems[0]
    launches = book.profiles[chapter.id, problem]
    predicted = launches[0].get("predicted_bytes") or (
        book.measured.find(chapter.id, problem) or {}).get("predicted_bytes")
    headers = ["", *(f"`{launch['kernel']}`" for launch in launches), ""]
    lines = markdown(headers, profile_rows(launches, predicted), left=(0, len(headers) - 1))
    return [*lines, "", f"{problem}. Nsight Compute, with the caches emptied before each kernel. "
            f"{provenance(launches)}."]


# --- Counted without a GPU ---


def counted(book, chapter):
    """What its kernels ask each memory for on the progression's problem: predicted, counted, measured."""
    if not (book.root / agreement.COUNTED).is_file():
        return ["Not counted yet."]
    bytes_of = agreement.bytes_of(chapter.id, agreement.words(PROGRESSION._asdict()), book.root)
    if not bytes_of:
        return [f"Only {PROGRESSION} is counted for all, which this chapter does not take. `make count CH={chapter.id}` "
                "counts its own problem, or another one."]

    def mb(value):
        return MISSING if value is None else f"{value / 1e6:.1f}"

    rows = [(what, "", mb(ours), mb(theirs)) for what, (ours, theirs) in bytes_of.items() if ours or theirs]
    moved = bytes_of["device memory gives"][0] + agreement.written_once(chapter.id, book.root)
    predicted = (book.measured.find(chapter.id, PROGRESSION) or {}).get("predicted_bytes")
    rows.append(("device memory, read and written", mb(predicted), mb(moved), ""))
    lines = markdown(("MB", "predicted", "counted", "measured"), rows)
    return [*lines, "", f"{PROGRESSION}. Counted by `make count CH={chapter.id}`, with its small model of L1 and L2; "
            "measured by Nsight Compute on an H100. Both have each kernel begin with empty caches."]


def agreement_table(book):
    lines = []
    for problem, rows in agreement.table_rows(agreement.cells(book.root)).items():
        heads = ("chapter", "kernel", *(quantity.name for quantity in agreement.QUANTITIES))
        lines += ["", f"### {problem}", "", *markdown(heads, rows, left=(0, 1))]
    return lines[1:]


# --- Ours beside others' ---


def peers_table(book, kind):
    """Both directions on the problems of `make peers`: our time, the roof, and each peer's time."""
    lines, timed = [], []
    for direction, name in DIRECTIONS.items():
        ours, theirs = (plots.by(rows, problem_of) for rows in book.contenders(direction, kind))
        pairs = shown_pairs(book, direction, kind)
        names = list(dict.fromkeys(row["provider"] for pair in pairs for row in theirs[problem_of(pair)]))
        rows = [peers_line(pair, theirs[problem_of(pair)], names) for pair in pairs]
        timed += [row for pair in pairs for row in ours[problem_of(pair)]]
        headers = [f"{name}, M × N", "roof", "ours", "by", *names, "ours / best peer"]
        if rows:
            lines += [*markdown(headers, rows, left=(0, 3)), ""]
    if not lines:
        return ["Not measured yet."]
    affine = "weight and bias" if kind == "layer" else "weight"
    return [*lines, f"Microseconds, {KINDS[kind]} with {affine}, cold L2; the fastest in bold. Ours is what the "
            "dispatch chooses, or the fastest chapter where the dispatch was not measured. The roof: forward "
            f"{ROOFS['fwd']}, backward {ROOFS['bwd']}. {book.about_peers(kind, shapes_of(kind))} {provenance(timed)}."]


def shown_pairs(book, direction, kind):
    """The rows of book.against_peers() on the problems of `make peers`, in their order."""
    of_problem = {problem_of(row): row for row in book.against_peers(direction, kind)}
    return [of_problem[problem] for problem in shapes_of(kind) if problem in of_problem]


def shapes_of(kind):
    """The problems of `make peers`."""
    return [shape._replace(kind=kind) for shape in peers.SHAPES]


def peers_line(pair, theirs, names):
    least = min(pair["median_us"], pair["peer_us"])
    times = {row["provider"]: row["median_us"] for row in theirs}

    def cell(time):
        return f"**{number(time)}**" if time == least else number(time)

    return [str(problem_of(pair)), number(pair["roof_us"]), cell(pair["median_us"]), pair["chapter"],
            *(cell(times.get(name)) for name in names), f"{pair['ratio']:.2f}"]


def results(book):
    """Layer norm on a few of the problems of `make peers`, in both directions: ours and the fastest peer."""
    pairs = [(name, pair) for direction, name in DIRECTIONS.items() for pair in shown_pairs(book, direction, "layer")
             if problem_of(pair) in RESULTS]
    if not pairs:
        return ["Not measured yet."]
    rows = [[name, str(problem_of(pair)), number(pair["median_us"]), number(pair["peer_us"]), pair["peer"],
             f"{pair['ratio']:.2f}"] for name, pair in pairs]
    return [*markdown(["layer norm", "M × N", "ours, µs", "fastest peer, µs", "which", "ours / peer"], rows,
                      left=(0, 1, 4)), "",
            "Median of launches with a cold L2, ours and the peers in one run. Two runs differ by a few per cent. "
            f"{provenance([p for _, p in pairs])}."]


def picture(book, file, name, words, rows):
    if not rows:
        return ["Not measured yet."]
    figure = Path(os.path.relpath(book.root / FIGURES / name, file.parent)).as_posix()
    return [f"![{words(rows)}]({figure})"]


def peers_rows(book):
    """What the picture of the peers is drawn from."""
    return [row for direction in DIRECTIONS for row in shown_pairs(book, direction, "layer")]


# --- Every width ---

LEVEL = 0.01  # of a peer's time: nearer than this, nobody is ahead


def picture_rows(book):
    """What the picture and the sentences of the widths are made from: bf16 at 128 MiB a tensor."""
    return [row for row in book.with_widths().width_rows() if row["dtype"] == "bf16"]


def standing(rows):
    """(how often ours are ahead, behind; the row where they are farthest behind, or the least ahead)"""
    ahead, behind = (sum(sign * (row["ratio"] - 1) > LEVEL for row in rows) for sign in (-1, 1))
    return ahead, behind, max(rows, key=lambda row: row["ratio"])


def widths_sum(book):
    """Of bf16 a sentence for each direction and kind, and who was measured where."""
    rows = picture_rows(book)
    if not rows:
        return ["Not measured yet."]
    lines = []
    for (direction, kind), own in plots.by(rows, lambda row: (row["direction"], row["kind"])).items():
        ratios, (ahead, behind, worst) = [row["ratio"] for row in own], standing(own)
        level = f", level within 1 % at {len(own) - ahead - behind}" if ahead + behind < len(own) else ""
        lines.append(
            f"- {DIRECTIONS[direction].capitalize()}, {KINDS[kind]}: our time is {geometric_mean(ratios):.2f} of the "
            f"fastest peer's in the geometric mean of {len(own)} widths. Ahead at {ahead}, behind at {behind}{level}; "
            f"at worst {worst['ratio']:.2f} of {worst['peer']}'s, at {worst['cols']} "
            "columns.")
    return [*lines, "", f"bf16, tensors of 128 MiB, cold L2. {measured_beside(rows)} {provenance(rows)}."]


def measured_beside(rows):
    """'The peers are torch, liger (at 28 of 30).': a peer that is not everywhere has its number of problems."""
    found = {}
    for row in rows:
        for name in row["ratios"]:
            found[name] = found.get(name, 0) + 1
    names = [name + (f" (at {times} of {len(rows)})" if times < len(rows) else "") for name, times in found.items()]
    return f"The peers are {', '.join(names)}."


def widths_table(book):
    """Each size, direction, kind and type in a row; and every width: our share of the roof and our time over the
    fastest peer's."""
    book = book.with_widths()
    pairs = book.width_rows()
    if not pairs:
        return ["Not measured yet."]
    others = [problem for problem in SETS["widths"] if problem not in WIDTHS]
    everything = pairs + book.width_rows(others) + book.width_rows(SETS["smaller"])
    groups = plots.by(everything, lambda row: (row["direction"], row["kind"], row["dtype"], mib(problem_of(row)),
                                               " that no model has" * (problem_of(row) in others)))
    rows = []
    for (direction, kind, dtype, size, which), own in groups.items():
        ratios, shares = ([row[value] for row in own] for value in ("ratio", "of_roof"))
        ahead, behind, worst = standing(own)
        rows.append([f"{DIRECTIONS[direction]}, {KINDS[kind]}, {dtype}", str(size), f"{len(own)}{which}",
                     f"{geometric_mean(ratios):.2f}", f"{min(ratios):.2f}", f"{max(ratios):.2f}",
                     f"{worst['cols']}, {worst['peer']}", f"{ahead}", f"{behind}",
                     f"{min(shares):.1f}–{max(shares):.1f}"])
    headers = ["", "MiB a tensor", "widths", "ours / fastest peer: mean", "least", "most", "there", "ahead", "behind",
               "% of the roof"]
    lines = markdown(headers, rows, left=(0, 6))
    groups = plots.by(pairs, lambda row: (row["direction"], row["kind"], row["dtype"]))
    for dtype in dict.fromkeys(row["dtype"] for row in pairs):
        shown = {key[:2]: {row["cols"]: row for row in own} for key, own in groups.items() if key[2] == dtype}
        heads = [head for direction, kind in shown for name in [f"{DIRECTIONS[direction]}, {kind}"]
                 for head in (f"{name}: % of the roof", "ours / fastest peer", "which")]
        rows = [[str(cols), *(cell for own in shown.values() for cell in width_cells(own.get(cols)))]
                for cols in sorted({cols for own in shown.values() for cols in own})]
        lines += ["", f"<details><summary>{dtype}, 128 MiB a tensor, width by width</summary>", "",
                  *markdown(["columns", *heads], rows, left=()), "", "</details>"]
    about = dict.fromkeys(book.about_peers(kind, {problem_of(row) for row in everything})
                          for kind in dict.fromkeys(row["kind"] for row in everything))
    return [*lines, "", f"Mean: the geometric one. Ahead and behind: by more than 1 %. {measured_beside(everything)} "
            f"The roof: forward {ROOFS['fwd']}, backward {ROOFS['bwd']}. {' '.join(about)} {provenance(everything)}."]


def targets_table(book):
    """A row a target: at how many problems it is missed, and where most."""
    records = book.with_widths().peers.records
    found = targets.standings(records)
    judged = targets.target_rows(found)
    if not any(total for _, _, total, _ in judged):
        return ["Not measured yet."]
    rows = []
    for target, missed, total, worst in judged:
        if not total:
            cells = [MISSING, "not measured"]
        elif missed is None:
            mean, of_roof = worst
            cells = ["met" if mean <= target.limit else "missed",
                     f"{mean:.3f}" + (f"; the triad itself {of_roof:.3f}" if of_roof else "")]
        else:
            cells = [f"{missed} of {total}" if missed else f"met at {total}", worst or MISSING]
        rows.append([f"{target.direction}, {target.words}", f"at {targets.bound(target)}", *cells])
    return [*markdown(["target", "limit", "missed at", "the worst"], rows, left=(0, 1, 3)), "",
            f"{provenance(targets.judged_records(records, found))}."]


def misses_table(book):
    """What misses a target, region by region."""
    rows, last = [], None
    found = targets.standings(book.with_widths().peers.records)
    for region, target, missed, total, worst in targets.region_rows(found):
        rows.append([region if region != last else "", f"{target.direction}, {target.words}, at {targets.bound(target)}",
                     f"{missed} of {total}", worst])
        last = region
    return markdown(["region", "target", "missed at", "the worst"], rows, left=(0, 1, 3)) if rows else ["Nothing is missed."]


def width_cells(row):
    return [f"{row['of_roof']:.1f}", f"{row['ratio']:.2f}", row["peer"]] if row else [MISSING] * 3


def against(book, kind):
    """The same in a sentence for each direction."""
    lines = []
    for direction, name in DIRECTIONS.items():
        pairs = shown_pairs(book, direction, kind)
        if pairs:
            ratios = [pair["ratio"] for pair in pairs]
            roofs = [pair["roof_us"] / pair["peer_us"] for pair in pairs if pair["roof_us"]]
            lines.append(
                f"- {name.capitalize()}, {KINDS[kind]}: ours are the fastest at "
                f"{sum(ratio < 1 for ratio in ratios)} of {len(ratios)} problems. Our time over the best peer's is "
                f"{min(ratios):.2f} to {max(ratios):.2f}, {geometric_mean(ratios):.2f} in the geometric mean"
                + (f"; the roof's own would be {geometric_mean(roofs):.2f}." if roofs else "."))
    return lines or ["Not measured yet."]


# --- Training ---


def training(book, file):
    """A GPT's training with each norm, of each type and kind, and the figure of layer norm's."""
    shown = [row for kind in KINDS for row in book.training_rows(kind)]
    if not shown:
        return ["Not measured yet."]
    headers = ["type", "norm", "seeds", "last loss", "less torch's, 95 %", "most of a seed", "step, ms", "in a graph, ms",
               "peak, MB"]
    types = [row["dtype"] + ("" if row["kind"] == "layer" else f", {KINDS[row['kind']]}") for row in shown]
    rows = [[name, row["norm"], str(row["seeds"]), number(row["last"], 5), *away_cells(row),
             *(number(row[time] and row[time] / 1e3) for time in ("step_us", "graph_us")),
             number(row["peak_bytes"] and row["peak_bytes"] / 1e6)] for name, row in zip(types, shown)]
    beyond = "; ".join(f"{row['norm']}, {name}" for name, row in zip(types, shown) if row["agrees"] is False)
    models = "; ".join(dict.fromkeys(row["model"] for row in shown))
    text = (f"A GPT, with layer norm where nothing else is said: {models}. A seed makes its first weights and draws its "
            "text. Last loss: the mean over the last tenth of the steps, and over the seeds; the text's entropy, the "
            f"least that a model can reach, is {number(shown[0]['entropy'])}. Less torch's: the mean over the seeds of "
            "the difference from torch with the same seed, and its 95 % interval. Most of a seed: the largest such "
            "difference. Torch, reordered: torch with the sequences of each batch in reverse order, which changes "
            "nothing but the order of its sums. A norm agrees with torch if its mean is no farther from zero than the "
            f"most of torch, reordered. {f'These do not: {beyond}' if beyond else 'All do'}. A step is the median one of "
            "the first seed: in eager mode, and in a CUDA graph, for which the host launches nothing else; the peak is "
            f"the eager step's. {provenance(shown)}.")
    figure = Path(os.path.relpath(book.root / FIGURES / "training.svg", file.parent)).as_posix()
    drawn = [row for row in shown if row["kind"] == "layer"]
    image = ["", f"![{plots.training_words(drawn)}]({figure})"] if drawn else []
    return [*markdown(headers, rows, left=(0, 1)), "", text, *image]


def away_cells(row):
    """A norm's mean difference from torch with its interval, and the largest of a seed."""
    if row["norm"] == "torch" or row["difference"] is None:
        return [MISSING, MISSING]
    sign = "+" if row["difference"] > 0 else "−" if row["difference"] < 0 else ""
    return [f"{sign}{small(abs(row['difference']))} ± {small(row['margin'])}", small(row["most"])]


def host_records(root, what):
    """The calls, or the blocks, of the file that has the most contenders; of equals the first, by name: the H100's."""
    runs = []
    for path in sorted((root / "notebooks/data").glob("host_*.jsonl")):
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        runs.append([record for record in records if record["host"] == what])
    return max(runs, key=lambda records: len({record["contender"] for record in records}), default=[])


def host_calls(book):
    """The host's time of a call of a norm, by each way to call it (common/bench/host_time.py)."""
    records = host_records(book.root, "call")
    if not records:
        return ["Not measured yet."]
    found = {(r["kind"], r["pass"], r["contender"]): r["host_us"] for r in records}
    contenders = list(dict.fromkeys(r["contender"] for r in records))
    rows = []
    for kind, what in dict.fromkeys((r["kind"], r["pass"]) for r in records):
        times = [found[kind, what, name] for name in contenders]
        rows.append([KINDS[kind], what, *(number(time) for time in times),
                     *(f"{time / times[0]:.2f}" for time in times[1:])])
    headers = ["norm", "pass", *(f"{name}, µs" for name in contenders), *(f"{name} / torch" for name in contenders[1:])]
    one = records[0]
    return [*markdown(headers, rows, left=(0, 1)), "",
            f"The host's part of a call, {one['dtype']}, {one['rows']} × {one['cols']}, eager: {provenance(records)}."]


def host_blocks(book):
    """A transformer block's step, by each way to call its norms (common/bench/host_time.py)."""
    records = host_records(book.root, "block")
    if not records:
        return ["Not measured yet."]
    names = {"gpt": "GPT, layer norm", "llama": "Llama with QK-norm, RMS norm"}
    torchs = {(r["model"], r["batch"]): r for r in records if r["contender"] == "torch"}
    rows = []
    for r in records:
        base = torchs[r["model"], r["batch"]]
        graph, of_torch, peak = r.get("graph_us"), base.get("graph_us"), r.get("peak_bytes")
        rows.append([names[r["model"]], f"{r['batch']} × {r['length']} × {r['width']}", r["contender"],
                     number(r["step_us"]), f"{r['step_us'] / base['step_us']:.2f}", number(graph),
                     f"{graph / of_torch:.2f}" if graph and of_torch else MISSING, number(peak and peak / 1e6)])
    headers = ["block", "tokens × width", "norms", "eager step, µs", "/ torch", "in a CUDA graph, µs", "/ torch",
               "peak, MB"]
    return [*markdown(headers, rows, left=(0, 1, 2)), "",
            f"Forward and backward of one block in {records[0]['dtype']}: {provenance(records)}."]


def small(value):
    """0.00213 -> '2.1e-3'"""
    digits, _, exponent = f"{value:.1e}".partition("e") if value is not None else (MISSING, "", "")
    return f"{digits}e{int(exponent)}" if exponent else digits


# --- Markers ---

BEGIN = re.compile(r"<!--\s*table:\s*(.*?)\s*-->")
END = re.compile(r"<!--\s*end table\s*-->")


def find_tables(text, name):
    """[(line, request, begin, end)] of a text: what is asked for and which lines it may replace."""
    tables, opened, fenced = [], None, False
    for at, line in enumerate(text.split("\n")):
        stripped = line.strip()
        if stripped.startswith("```"):
            fenced = not fenced
        begin, end = BEGIN.fullmatch(stripped), END.fullmatch(stripped)
        if fenced or not (begin or end):
            continue
        if begin and opened:
            break  # the table before it is not closed
        if begin:
            opened = (at, begin[1])
        elif opened:
            tables.append((opened[0] + 1, opened[1], opened[0] + 1, at))
            opened = None
        else:
            raise MarkerError(f"{name}:{at + 1}: <!-- end table --> ends no table")
    if opened:
        raise MarkerError(f"{name}:{opened[0] + 1}: the table '{opened[1]}' is not closed; "
                          "put <!-- end table --> below it")
    return tables


def make_table(book, file, request, where):
    """The lines of the table that a marker asks for."""
    table, _, identifier = request.partition(" ")
    of_all = {"map": lambda: chapter_map(book, file), "machine": lambda: machine(book),
              "progression": lambda: progression(book, file), "results": lambda: results(book),
              "training": lambda: training(book, file), "host calls": lambda: host_calls(book),
              "host blocks": lambda: host_blocks(book), "dispatch": lambda: dispatch_table(book, file), "agreement": lambda: agreement_table(book),
              "picture peers": lambda: picture(book, file, "peers.svg", plots.peers_words, peers_rows(book)),
              "picture widths": lambda: picture(book, file, "widths.svg", plots.widths_words, picture_rows(book)),
              "widths sum": lambda: widths_sum(book), "widths": lambda: widths_table(book),
              "targets": lambda: targets_table(book), "misses": lambda: misses_table(book),
              "agreement sum": lambda: [f"**{agreement.summary(agreement.cells(book.root))}.**"]}
    if request in of_all:
        return of_all[request]()
    if table == "peers" and identifier in ("", "rms"):
        return peers_table(book, identifier or "layer")
    if table == "against" and identifier in KINDS:
        return against(book, identifier)
    if table == "source":
        return source(book, identifier, where)
    makers = {"head": lambda book, chapter: head(book, file, chapter),
              "steps": lambda book, chapter: steps(book, file, chapter),
              "measured": measured, "profile": profile, "counted": counted,
              "variants": variants, "groups": groups}
    if table not in makers:
        raise MarkerError(f"{where}: there is no table '{request}'; choose from {', '.join(of_all)}, peers, "
                          "peers rms, against layer, against rms, source <file> <name>, "
                          + ", ".join(f"{maker} <chapter>" for maker in makers))
    if identifier not in book.kernels:
        raise MarkerError(f"{where}: the table '{request}' names no kernel; the kernels are "
                          f"{' '.join(book.kernels) or 'none yet'}")
    return makers[table](book, book.kernels[identifier])


def rewrite(book, file):
    """A file's text with its tables made anew, and [(line, request, old, new)] where they differ."""
    text = file.read_text(encoding="utf-8")
    name = file.relative_to(book.root).as_posix()
    lines, changes = text.split("\n"), []
    for line, request, begin, end in reversed(find_tables(text, name)):
        # Empty lines around it: without them GitHub takes a table for part of the comment.
        table = ["", *make_table(book, file, request, f"{name}:{line}"), ""]
        chapter = book.kernels.get(request.partition(" ")[2])
        new = chapter is not None and not book.has_data_for(chapter) and not request.startswith("head ")
        if new and not any(line.strip() for line in lines[begin:end]):
            continue  # a new chapter's tables wait for its first measurement
        if lines[begin:end] != table:
            changes.insert(0, (line, request, lines[begin:end], table))
            lines[begin:end] = table
    return "\n".join(lines), changes


def show_change(name, change, most=8):
    line, request, old, new = change
    print(f"{name}:{line}: the table '{request}' disagrees with the data; `make tables` rewrites it")
    difference = list(difflib.unified_diff(old, new, lineterm="", n=0))[2:]
    difference = [text for text in difference if not text.startswith("@@")]
    for text in difference[:most]:
        print(f"    {text}")
    if len(difference) > most:
        print(f"    … and {len(difference) - most} lines more")


# --- The program ---


def figures(book):
    """[(path, what it shows, how it is drawn)]: plain rows, so that a check need not draw them."""
    chapters = [row for direction in DIRECTIONS for row in book.rows(direction, [PROGRESSION])]
    sweep = [row for direction in DIRECTIONS for row in book.rows(direction, SWEEP)]
    return [(FIGURES / "progression.svg", chapters, plots.progression),
            (FIGURES / "sweep.svg", sweep, plots.sweep),
            (FIGURES / "peers.svg", peers_rows(book), plots.peers_map),
            (FIGURES / "widths.svg", picture_rows(book), plots.widths),
            (FIGURES / "training.svg", book.training_rows(), plots.training)]


def refresh(path, rows, draw, root, check):
    """Draws a figure whose data changed. True unless it should only be checked and disagrees."""
    if not rows or plots.drawn_from(root / path) == plots.digest(rows):
        return True
    if check:
        print(f"{path} was not drawn from these data; `make tables` draws it")
        return False
    if plots.write_figure(draw, rows, root / path):
        print(f"{path}: drawn")
    else:
        print(f"matplotlib is not installed, so {path} stays as it is; "
              "`bash common/setup/setup.sh --with-tables` installs it")
    return True


def main(argv, root=ROOT):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--check", action="store_true", help="write nothing; say what disagrees")
    check = parser.parse_args(argv).check
    try:
        book = open_book(root)
        files = sorted({file for pattern in TEXTS for file in root.glob(pattern)})
        rewritten = [(file, *rewrite(book, file)) for file in files]
    except (MarkerError, DataError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    agrees = True
    for file, text, changes in rewritten:
        name = file.relative_to(root).as_posix()
        for change in changes:
            agrees = False
            if check:
                show_change(name, change)
        if changes and not check:
            file.write_text(text, encoding="utf-8")
            print(f"{name}: wrote {', '.join(request for _, request, _, _ in changes)}")
    for figure in figures(book):
        agrees &= refresh(*figure, root, check)
    return 1 if check and not agrees else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
