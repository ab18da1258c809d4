#!/usr/bin/env python3
"""race.py [KERNEL] [--backend BACKEND] [--strict] [--json FILE] [what a chapter's program takes …]: `make race`.

Runs a chapter on the SIMT machine, and shows each pair of accesses to one byte that nothing orders, with their
lines. With `chapters` or `library_kernels` it runs all of these, a line each. Without --rows and --cols it takes a few
small problems that show most of a chapter: narrow and wide rows, aligned and not, and more rows than blocks.
Some pairs are ordered only by a convention that PTX does not guarantee: a block overwrites data in another block's
shared memory once it has a message which that block sent after reading the data. They are counted; --strict reports
them as races.
--json FILE writes all that was seen. Exit status: 0 no race; 1 a race or a fault; 2 the request was wrong.
"""

import json
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

from common.tools.find_chapter import find_chapter, is_own, kernel_sources, known_chapters, library_kernels, short
from common.watch.front import can_write
from common.watch.lines import Lines, WatchError

ROOT = Path(__file__).resolve().parents[2]

BUILD = "cpu-watch"
# Rows for every block of a chapter that has 132 of them, and rows that a cluster shares. What a chapter refuses is
# left out.
PROBLEMS = (
    "--rows 300 --cols 96",
    "--rows 290 --cols 101 --dtype bf16",
    "--rows 7 --cols 3000 --dtype f16 --kind rms",
    "--rows 9 --cols 9000 --dtype bf16",
    "--rows 5 --cols 33333",
    "--rows 5 --cols 33336 --dtype bf16",
)
# In these a kernel reuses its shared memory where it does not in the others: sets of moments of several warps, a shot,
# a ring that each of many blocks goes around.
MORE_PROBLEMS = {
    "bwd12": ["--rows 900 --cols 96"],
    "bwd14": ["--rows 52000 --cols 64 --dtype bf16"],
    "bwd15": ["--rows 15000 --cols 17"],
    "bwd17": ["--rows 450 --cols 16384 --dtype bf16"],
    "bwd19": ["--rows 140001 --cols 7"],
    "lib_fwd_cluster_ring": ["--rows 11 --cols 9000"],
    "lib_bwd_one_shot": ["--rows 220 --cols 16384"],
}
FUSED = "--residual same --prenorm --parallel --rowscale --dropout 0.1"
RESIDUAL = "--residual f32 --prenorm"  # all that a chapter takes which only adds a residual
# How many a chapter shall take of what its group counts, so that a block or a buffer has several rows.
GROUPS = {"blocks": 2, "clusters": 2, "buffers": 3, "rows a block": 5, "row groups": 3,
          "blocks a multiprocessor": 1, "blocks a cluster": 4}
LANES = 32
MACHINE = "common/simt/"  # its lines stand for CUDA's own functions, and are not shown


# --- Requests ---


class Request:
    """What the command line asks for."""

    def __init__(self, arguments):
        arguments = list(arguments)
        self.backend = taken(arguments, "--backend") or "auto"
        self.strict = "--strict" in arguments
        if self.strict:
            arguments.remove("--strict")
        self.json = taken(arguments, "--json")
        chapter = arguments.pop(0) if arguments and not arguments[0].startswith("-") else "chapters"
        self.arguments = arguments
        if self.json and not can_write(self.json):
            raise WatchError(f"cannot write '{self.json}': give --json a file in a directory that exists and is yours.")
        if self.backend == "cuda":
            raise WatchError("make race looks into the SIMT machine, which a GPU does not have: leave out "
                             "BACKEND=cuda; make sanitize has compute-sanitizer's racecheck.")
        if self.backend not in ("auto", "cpu"):
            raise WatchError(f"BACKEND={self.backend} is not a backend: make race takes cpu, or none.")
        programs = {"chapters": [each for each in known_chapters() if not is_own(each)],
                    "library_kernels": list(library_kernels())}
        self.one = chapter not in programs
        try:
            self.chapters = programs[chapter] if not self.one else [
                chapter if chapter in kernel_sources() else find_chapter(chapter, known_chapters())]
        except LookupError as error:
            raise WatchError(str(error)) from None

    def problems(self, kernel):
        """Lists of arguments for a kernel's program, of which `kernel` says what it takes (see registration_of); and
        whether it may refuse some of them."""
        if any(each.partition("=")[0] in ("--rows", "--cols") for each in self.arguments):
            return [self.arguments], False
        more = group_arguments(kernel["group"])
        if kernel["fused"]:
            more += (RESIDUAL if kernel["residual_only"] else FUSED).split()
        problems = [*PROBLEMS, *MORE_PROBLEMS.get(kernel["id"], ())]
        return [problem.split() + more + self.arguments for problem in problems], True


def taken(arguments, option):
    """Takes an option and its value out of a list; None where it is not in there."""
    for i, each in enumerate(arguments):
        name, equals, value = each.partition("=")
        if name != option:
            continue
        if not equals and i + 1 == len(arguments):
            raise WatchError(f"{option} needs a value.")
        if not equals:
            value = arguments.pop(i + 1)
        del arguments[i]
        return value
    return None


def registration_of(program):
    """What a kernel's program says of it, as notebooks/data/chapters.json has it: {"id", "group", "fused", …}."""
    done = subprocess.run([program, "race", "", "0", "--list", "--json"], check=True, stdout=subprocess.PIPE,
                          encoding="utf-8")
    listed = json.loads(done.stdout)
    kernel, = listed["chapters"] + listed["library"]
    return kernel


def group_arguments(group):
    """Few blocks, buffers or whatever the kernel lets the reader choose the number of."""
    option = "--" + group.replace(" a ", " per ").replace(" ", "-")
    return [option, str(GROUPS[group])] if group in GROUPS else []


# --- Runs ---


def prepare(chapters):
    """Builds the programs."""
    subprocess.run(["bash", "common/setup/setup.sh", "cpu"], cwd=ROOT, check=True)
    if len(chapters) > 1:  # all kernels at once; what follows is quick, and has nothing to say
        build("library_kernels" if chapters[0] in library_kernels() else "chapters")
    for chapter in chapters:
        build(chapter, capture_output=len(chapters) > 1)


def build(target, **options):
    subprocess.run(["bash", "common/setup/build.sh", BUILD, target], cwd=ROOT, check=True, **options)


def watch(program, arguments):
    """What a program of the build that watches has seen."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "seen.json")
        start = time.monotonic()
        done = subprocess.run([program, "race", path, "0", *arguments], cwd=ROOT, check=False, capture_output=True,
                              encoding="utf-8")
        seconds = time.monotonic() - start
        if done.returncode != 0:
            raise WatchError(done.stderr.strip() or f"{program} ended with status {done.returncode}")
        result = json.loads(path.read_text(encoding="utf-8"))
    return {"arguments": " ".join(arguments), "seconds": round(seconds, 2), **result}


def watch_all(program, problems, may_refuse):
    """What the program has seen on each of the problems, without those that it refuses."""
    results, refusal = [], None
    for problem in problems:
        try:
            results.append(watch(program, problem))
        except WatchError as error:
            refusal = error
    if refusal is not None and not (may_refuse and results):
        raise refusal
    return results


class Runs:
    """The runs of a chapter. `races` has each pair of places once, with all lines; `passed_over` those that a
    convention orders, unless `strict` makes them races."""

    def __init__(self, chapter, program, results, strict=False):
        self.chapter, self.results = chapter, results
        self.faults = [result["fault"] for result in self.results if result["fault"]]
        pairs = merged(race for result in self.results for race in shown(result, program))
        self.races = [pair for pair in pairs if strict or not pair["by_convention"]]
        self.passed_over = [pair for pair in pairs if not strict and pair["by_convention"]]

    @property
    def is_clean(self):
        return not self.races and not self.faults

    def total(self, key):
        return sum(result["seen"][key] for result in self.results)

    def summary(self):
        seconds = sum(result["seconds"] for result in self.results)
        seen = f"{words(self.total('accesses'), 'access', 'accesses')} of {count_of_kernels(self.results)}"
        if copies := self.total("copies"):
            seen += f", {words(copies, 'asynchronous copy', 'asynchronous copies')}"
        what = "no races" if not self.races else words(len(self.races), "race")
        if self.faults:
            what += ", and a fault"
        for result in self.results:
            if result.get("ended"):  # a program from elsewhere, before its end or at it
                what += f" until the program ended {result['ended']}"
        if self.passed_over:
            what += f", {words(len(self.passed_over), 'pair')} ordered only by a convention"
        return f"{what}: {seen} in {seconds:.1f} s"

    def as_json(self):
        return {"chapter": self.chapter, "races": self.races, "passed_over": self.passed_over,
                "runs": [{**result, "seen": without(result["seen"], "races")} for result in self.results]}


def count_of_kernels(results):
    return words(len({kernel for result in results for kernel in result["seen"]["kernels"]}), "kernel")


def without(dictionary, key):
    return {name: value for name, value in dictionary.items() if name != key}


def words(number, one, many=None):
    return f"{number:,} {one if number == 1 else many or one + 's'}"


# --- What a race looks like ---


def shown(result, program):
    """The races of a run, with lines and names."""
    races = result["seen"]["races"]
    places = [race[side]["place"] for race in races for side in ("first", "second")]
    places += [race["missing_at"] for race in races if race["missing_at"]]
    lines = Lines(program, result["load_address"], places)
    for race in races:
        yield {"where": where(race["where"], program),
               "first": party(race["first"], lines, result["source"]),
               "second": party(race["second"], lines, result["source"]),
               "missing": race["missing"],
               "missing_at": lines_of(race["missing_at"], lines, result["source"])[:1],
               "by_convention": race["by_convention"],
               "problem": result["arguments"],
               "count": race["count"]}


def party(seen, lines, source):
    return {**without(seen, "place"), "lines": lines_of(seen["place"], lines, source)}


def lines_of(place, lines, source):
    """The line that does it, as {"file", "line", "text"}, and the kernel's line that leads there if that is another."""
    frames = [frame for frame in lines.frames(place) if frame.line > 0 and (ROOT / frame.file).is_file()]
    frames = [frame for frame in frames if frame.file == source or
              not Path(frame.file).is_absolute() and not frame.file.startswith(MACHINE)]
    chosen = frames[:1]
    if chosen and chosen[0].file != source:
        chosen += [frame for frame in frames if frame.file == source][:1]
    return [{"file": frame.file, "line": frame.line, "text": text_of(frame.file, frame.line)} for frame in chosen]


@cache
def source_lines(file):
    return (ROOT / file).read_text(encoding="utf-8").splitlines()


def text_of(file, line):
    lines = source_lines(file)
    return " ".join(lines[line - 1].split()) if line <= len(lines) else ""


def where(place, program):
    """The element of a tensor; or what lies there in shared memory."""
    if "element" in place:
        return place["element"]
    block = f"in shared memory of block {place['block']}"
    if place["shared"] == "dynamic":
        return f"dynamic_shared + {words(place['offset'], 'byte')}, {block}"
    variables = shared_variables(program)
    at = place["offset"] + next((begin for name, begin, _ in variables if name == "threadIdx"), 0)
    for name, begin, size in variables:
        if begin <= at < begin + size:
            return f"{name} + {words(at - begin, 'byte')}, {block}"
    return block


@cache
def shared_variables(program):
    """(name, offset, bytes) of the program's thread-local variables: each __shared__ is one."""
    done = subprocess.run(["readelf", "--symbols", "--wide", "--demangle", program], check=True, capture_output=True,
                          encoding="utf-8")
    rows = (line.split(maxsplit=7) for line in done.stdout.splitlines())
    return [(row[7].rpartition("::")[2].partition("[abi")[0], int(row[1], 16), int(row[2], 0))
            for row in rows if len(row) == 8 and row[3] == "TLS"]


def merged(races):
    """One for each pair of lines, with those that a convention orders apart: a template's kernels each have places of
    their own."""
    by_lines = {}
    for race in races:
        sides = frozenset(json.dumps(race[side]["lines"]) + race[side]["does"] for side in ("first", "second"))
        key = sides, race["by_convention"]
        known = by_lines.setdefault(key, race)
        if known is not race:
            known["count"] += race["count"]
    return list(by_lines.values())


def print_race(number, race):
    print(f"\nrace {number}: {race['where']}" + f", {race['count']:,} times" * (race["count"] > 1))
    kernels = {race[side]["kernel"] for side in ("first", "second")}
    for side in ("first", "second"):
        access = race[side]
        print(f"  {access['does']} {who(access)}" + f" in {access['kernel']}" * (len(kernels) > 1))
        for i, line in enumerate(access["lines"]):
            print(f"      {'from ' * (i > 0)}{line['file']}:{line['line']}: {line['text']}")
    print(f"  missing: {race['missing']}")
    for line in race["missing_at"]:
        print(f"      {line['file']}:{line['line']}: {line['text']}")
    if len(kernels) == 1:
        print(f"  kernel: {kernels.pop()}, {'with ' + race['problem'] if race['problem'] else 'run without arguments'}")


def who(access):
    thread = access["thread"]
    name = f"thread {thread} (warp {thread // LANES}, lane {thread % LANES}) of block {access['block']}"
    if "gpu" in access:
        name += f" of GPU {access['gpu']}"
    own = ("load", "store", "atomic", "load_word", "store_word")
    return f"by {name}" if access["does"] in own else f"begun by {name}"


# --- The command ---


def show_one(runs):
    print(f"{runs.chapter}: {runs.summary()}")
    for number, race in enumerate(runs.races, 1):
        print_race(number, race)
    for fault in runs.faults:
        print(f"\nfault: {fault}")
    if runs.passed_over:
        print("\nPTX does not guarantee that convention: a block overwrites data in another block's shared memory"
              "\nonce it has a message that was sent after the data was read (hopper.h). --strict shows the pairs.")
    if forgotten := runs.total("forgotten"):
        print(f"\n{words(forgotten, 'old access', 'old accesses')} to much-used bytes were forgotten: a smaller "
              "problem has fewer")


def show_line(runs):
    asked = f"CH={runs.chapter}" if short(runs.chapter) == runs.chapter else f"LIB={short(runs.chapter)}"
    hint = "" if runs.is_clean else f"; make race {asked} shows more"
    print(f"{runs.chapter}  {runs.summary()}{hint}", flush=True)


def main(arguments):
    try:
        request = Request(arguments)
        prepare(request.chapters)
        all_runs = []
        for chapter in request.chapters:
            program = ROOT / f"build/{BUILD}/bin/{chapter}"
            results = watch_all(program, *request.problems(registration_of(program)))
            all_runs.append(Runs(chapter, program, results, request.strict))
            (show_one if request.one else show_line)(all_runs[-1])
        if request.json:
            Path(request.json).write_text(json.dumps([runs.as_json() for runs in all_runs], indent=1) + "\n",
                                          encoding="utf-8")
    except (WatchError, OSError) as error:
        print(f"race: {error}", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:  # it has said why
        return error.returncode
    return 0 if all(runs.is_clean for runs in all_runs) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
