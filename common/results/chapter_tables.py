"""The tables of a chapter, and of all of them: what each shows. How it is written is in templates/."""

from pathlib import Path

from common.results import agreement, store
from common.results.profiles import profile_rows
from common.results.chapters import DIRECTIONS
from common.results.problems import (
    GROUPS, LARGE, NARROW, ODD, PROGRESSION, SETS, SMALL, SWEEP, WIDE, Problem, problem_of)
from common.results.records import MISSING, load
from common.results.rendering import right, table

SHOWN_WIDTHS = (1024, 2048, 4096, 8192, 12288, 15872)  # of the sweep's thirty
STEPS = (PROGRESSION, Problem.of("bf16", 131072, 4096))  # of a lesson's small table: little data, and much
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
GPUS_ROAD = "several GPUs"
ON_GPUS = Path("notebooks/data/gpus_h200.csv")
WITH_NCCL = {"fwd17": "nccl_fwd", "bwd20": "nccl_columns", "bwd21": "nccl_rows"}  # common/bench/nccl_gpus.cu
BY_ROWS = ("bwd21",)  # each GPU has rows of its own; of the others' problems, columns


def records_of(results, chapter, problems):
    """{problem: the chapter's record, right or wrong, or None}"""
    return {problem: results.measured.find(chapter.id, problem) for problem in problems}


def failures(chapter, found):
    """The problems on which the check failed, in words."""
    return [", ".join(filter(None, (f"{chapter.id} on {problem}", problem.words)))
            for problem, record in found.items() if record and not record.get("passed", True)]


def rival(results, chapter):
    """The chapter that another's time is compared with, its parent; None for the first of a direction."""
    parent = results.map.parent(chapter)
    return parent if parent and parent.direction == chapter.direction else None


def parent_record(results, chapter, problem=PROGRESSION):
    parent = rival(results, chapter)
    return results.find(parent, problem) if parent else None


# --- The map ---


@table("head <chapter>")
def head(results, chapter):
    """a lesson's first line: its road, what comes before and after"""
    tree = results.map
    leaves_at = tree.leaves_at(chapter)
    return {"road": chapter.road, "parent": tree.parent(chapter), "after": tree.after(chapter),
            "branches": tree.side_roads(chapter), "back": leaves_at and tree.after(leaves_at),
            "questions": (results.root / chapter.directory / "questions.md").exists()}


@table("map")
def chapter_map(results):
    """the main line and the side roads; the times folded, since each lesson has the reader predict them"""
    tree, parts = results.map, {}
    for chapter in tree.main_line():
        parts.setdefault("backward" if chapter.direction == "bwd" else "forward", []).append(chapter)
    times = [(chapter, results.find(chapter, PROGRESSION), parent_record(results, chapter))
             for chapter in tree.chapters.values()]
    return {"drawing": drawing(tree), "parts": parts, "roads": tree.roads(), "times": times, "problem": PROGRESSION,
            "shown": right(record for _, record, _ in times)}


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


# --- Times ---


@table("progression", "make bench")
def progression(results):
    """every chapter on the progression's problem"""
    parts = {name: [(chapter, results.measured.find(chapter.id, PROGRESSION), parent_record(results, chapter),
                     results.source.find(chapter.id, PROGRESSION, l2=None) or {})
                    for chapter in results.of_direction(direction) if results.has_data_for(chapter)]
             for direction, name in DIRECTIONS.items()}
    return {"parts": {name: rows for name, rows in parts.items() if rows}, "problem": PROGRESSION,
            "records": [record for rows in parts.values() for _, record, *_ in rows],
            "sources": list(dict.fromkeys((one["source"], one.get("device")) for one in results.source.records
                                          if one.get("source"))),
            "failed": [words for rows in parts.values() for chapter, record, *_ in rows
                       for words in failures(chapter, {PROGRESSION: record})]}


@table("steps <chapter>", "make bench CH={}")
def steps(results, chapter):
    """a lesson's small table: its parent, itself, the roof; or the chapters of fusion side by side"""
    if chapter.road == FUSION_ROAD:
        return fusion_steps(results, chapter)
    parent = rival(results, chapter)
    further_on = parent is not None and parent.road == chapter.road
    of_road = {NARROW_ROAD: NARROW_UNALIGNED_STEPS if further_on else NARROW_STEPS, UNALIGNED_ROAD: UNALIGNED_STEPS}
    candidates = OWN_STEPS.get(chapter.id) or of_road.get(chapter.road, STEPS)
    measured = [problem for problem in candidates if results.find(chapter, problem)]
    problems = (measured if len(measured) > 1 else candidates)[:2]  # it may refuse one
    before = parent  # or the nearest before it that was measured on one of the problems: it may refuse them
    while before and not any(results.find(before, problem) for problem in problems):
        before = rival(results, before)
    parent = before or (parent if not measured else None)
    return {"problems": problems, "parent": parent, "chapter": chapter,
            "own": [results.find(chapter, problem) for problem in problems],
            "before": [parent and results.find(parent, problem) for problem in problems]}


@table("gpus <chapter>", "build/cuda/bin/{} --set gpus")
def gpus(results, chapter):
    """a lesson's table: its parent on one GPU's part, itself on one GPU and on two, NCCL's all-reduce on two"""
    measured = load(results.root / ON_GPUS)
    rows = []
    for part in SETS["slices"]:
        more = {"rows": 2 * part.rows} if chapter.id in BY_ROWS else {"cols": 2 * part.cols}
        whole = part._replace(**more).with_options(gpus=2)
        rows.append((part, measured.find(chapter.parent, part), measured.find(chapter.id, part),
                     measured.find(chapter.id, whole), measured.find(WITH_NCCL[chapter.id], whole)))
    shown = [record for row in rows for record in row[1:] if record]
    return {"rows": rows, "chapter": chapter, "parent": results.map.parent(chapter), "shown": shown,
            "failed": any(not record.get("passed", True) for record in shown)}


def fusion_steps(results, chapter):
    """The same where a norm is fused with other steps: the chapters that do, side by side, and its steps one by one."""
    beside = [other for other in results.of_direction(chapter.direction) if other.road == FUSION_ROAD]
    found = {problem: [results.find(other, problem) for other in beside] for problem in FUSION_STEPS}
    shown = [record for records in found.values() for record in right(records)]
    return {"template": "fusion_steps", "beside": beside, "found": found, "shown": shown, "chapter": chapter,
            "with_parts": any("parts_us" in record for record in shown)}


@table("measured <chapter>")
def measured(results, chapter):
    """one chapter on the progression's, the sweep's, the large, the wide problems; on several GPUs"""
    if chapter.road == GPUS_ROAD:
        of_gpus = load(results.root / ON_GPUS)
        found = {problem: of_gpus.find(chapter.id, problem) for problem in (*SETS["slices"], *SETS["gpus"])}
        return {"template": "measured_gpus", "found": found}
    problems = [*(p for p in SWEEP if p.cols in SHOWN_WIDTHS), *LARGE,
                *(p for p in WIDE if results.find(chapter, p))]  # the first chapters are not measured there
    problems = [PROGRESSION, *(problems if any(results.find(chapter, p) for p in problems) else ())]
    if chapter.road == NARROW_ROAD:
        problems = list(NARROW)
    if chapter.road == UNALIGNED_ROAD:
        problems += ODD
    problems += [p for p in SMALL if p not in problems and results.find(chapter, p)]
    found = records_of(results, chapter, problems)
    return {"found": found, "cut_short": any(record.get("cut_short") for record in right(found.values())),
            "failed": failures(chapter, found)}


@table("variants <chapter>", "make bench CH={}")
def variants(results, chapter):
    """a fused chapter with some of its parts"""
    records = [record for record in right(results.measured.records) if record.get("chapter") == chapter.id
               and record["options"] and problem_of(record).group is None]
    return {"records": sorted(records, key=lambda one: (one["dtype"], one["rows"], one["cols"]))} if records else None


@table("groups <chapter>", "make bench CH={}")
def groups(results, chapter):
    """a chapter with 1, 2, 4, … of what it counts, on two problems"""
    sizes = sorted({problem_of(record).group for record in results.measured.records
                    if record.get("chapter") == chapter.id} - {None})
    found = {problem: records_of(results, chapter, [problem.with_options(group=size) for size in sizes])
             for problem in GROUPS}
    rows = list(zip(sizes, zip(*(own.values() for own in found.values()))))
    return {"counts": chapter.group or "group", "problems": GROUPS, "rows": [row for row in rows if right(row[1])],
            "failed": [words for own in found.values() for words in failures(chapter, own)]} if sizes else None


# --- Counted ---


@table("profile <chapter>", "make profile CH={}")
def profile(results, chapter):
    """what the hardware counted while the chapter ran; of one that does not take the progression, its own problem"""
    problems = [problem for of, problem in results.profiles if of == chapter.id]
    if not problems:
        return None
    problem = PROGRESSION if PROGRESSION in problems else problems[0]
    launches = results.profiles[chapter.id, problem]
    measured = results.measured.find(chapter.id, problem) or {}
    return {"heads": ["", *(f"`{launch['kernel']}`" for launch in launches), ""], "launches": launches,
            "rows": profile_rows(launches, launches[0].get("predicted_bytes") or measured.get("predicted_bytes")),
            "problem": problem}


@table("counted <chapter>", "make count CH={}")
def counted(results, chapter):
    """bytes that it asks for: predicted, counted without a GPU, measured on one"""
    found = {}
    if (results.root / agreement.COUNTED).is_file():
        found = agreement.bytes_of(chapter.id, agreement.words(PROGRESSION._asdict()), results.root)
    if not found:
        return None

    def mb(value):
        return MISSING if value is None else f"{value / 1e6:.1f}"

    rows = [(what, "", mb(ours), mb(theirs)) for what, (ours, theirs) in found.items() if ours or theirs]
    moved = found["device memory gives"][0] + agreement.written_once(chapter.id, results.root)
    predicted = (results.measured.find(chapter.id, PROGRESSION) or {}).get("predicted_bytes")
    return {"rows": [*rows, ("device memory, read and written", mb(predicted), mb(moved), "")], "chapter": chapter,
            "problem": PROGRESSION}


@table("agreement")
def agreement_cells(results):
    """all that was counted and measured, kernel by kernel"""
    return {"problems": agreement.table_rows(agreement.cells(results.root)),
            "heads": ("chapter", "kernel", *(quantity.name for quantity in agreement.QUANTITIES))}


@table("agreement sum")
def agreement_sum(results):
    """the same in a sentence"""
    return {"summary": agreement.summary(agreement.cells(results.root))}


@table("agreement programs")
def agreement_programs(results):
    """the same of programs from elsewhere: a sentence, and the cells that differ"""
    found = agreement.cells_of_programs(results.root)
    return {"summary": agreement.summary(found), "rows": agreement.differing_rows(found),
            "measured": store.read(results.root / agreement.PROGRAMS_MEASURED)}
