#!/usr/bin/env python3
"""The data of the book's players: a trace of one block of each chapter, small enough to be stepped through.

    common/book/traces.py build/cpu-watch/bin OUT          OUT/fwd02.js, …, a classic script each

`make trace` makes them, each on the problem of PROBLEMS. A file is written anew only where its content changes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
KEPT = ("chapter", "problem", "words", "block", "order", "ended", "fault", "memory", "source", "launches")


class Problem(NamedTuple):
    """What a chapter is traced on. Of a block with many warps only the first may be told whole."""

    arguments: str
    shuffles_of: int = 32  # the first warps, whose shuffles are told
    warps: int = 32  # the first warps, of which anything is told


PROBLEMS = {
    "copy00": Problem("--rows 4 --cols 128"),
    "fwd01": Problem("--rows 32 --cols 16"),  # a warp full of rows
    "fwd02": Problem("--rows 4 --cols 128"),  # a row for each of four warps, in four steps
    "fwd03": Problem("--rows 2 --cols 512"),  # two steps a thread, two barriers a sum
    "fwd04": Problem("--rows 2 --cols 256"),
    "fwd05": Problem("--rows 1 --cols 1024"),  # one tile of eight loads a thread
    "fwd06": Problem("--rows 4 --cols 256"),  # two accesses of 16 bytes a lane
    "fwd07": Problem("--rows 2 --cols 512 --residual same --prenorm"),
    "fwd08": Problem("--rows 6 --cols 520 --blocks 1", shuffles_of=1),  # one ring of three slots, twice around
    "fwd09": Problem("--rows 2 --cols 1024", shuffles_of=1),  # a cluster of two blocks a row, four pieces each
    "fwd10": Problem("--rows 64 --cols 32 --dtype f16", shuffles_of=1),  # teams of four lanes, eight rows a step
    "fwd15": Problem("--rows 128 --cols 9", warps=4),
    "fwd16": Problem("--rows 8 --cols 261 --dtype bf16", shuffles_of=1),  # a warp a row, each with another head
    "fwd17": Problem("--rows 40 --cols 256 --gpus 1", shuffles_of=1),  # alone: two GPUs vary in their order
    "fwd18": Problem("--rows 20 --cols 128 --blocks 1", shuffles_of=1),  # eight consumers, a ring of 16 slots
    "bwd01": Problem("--rows 32 --cols 16"),
    "bwd02": Problem("--rows 4 --cols 64"),
    "bwd03": Problem("--rows 4 --cols 64"),
    "bwd04": Problem("--rows 2 --cols 1024", shuffles_of=1),  # 32 warps at four barriers
    "bwd05": Problem("--rows 2 --cols 512 --rows-per-block 2"),  # eight columns a thread, two rows, one atomic a column
    "bwd06": Problem("--rows 8 --cols 64 --row-groups 2"),
    "bwd07": Problem("--rows 4 --cols 64", shuffles_of=1),
    "bwd08": Problem("--rows 4 --cols 64 --buffers 1"),
    "bwd09": Problem("--rows 265 --cols 256", shuffles_of=1, warps=2),  # two rows a block
    "bwd10": Problem("--rows 265 --cols 256 --residual same", shuffles_of=1, warps=4),  # two rows a block
    "bwd11": Problem("--rows 800 --cols 512"),
    "bwd12": Problem("--rows 1057 --cols 256"),  # a ring of three slots, and five rows a block
    "bwd13": Problem("--rows 200 --cols 256", shuffles_of=1, warps=4),  # clusters of two blocks, four rows each
    "bwd14": Problem("--rows 72 --cols 64 --dtype f16", shuffles_of=1, warps=2),  # teams of eight lanes
    "bwd15": Problem("--rows 4760 --cols 257 --dtype bf16", warps=2),  # three rows that start alike
    "bwd17": Problem("--rows 250 --cols 512", shuffles_of=1, warps=4),
    "bwd20": Problem("--rows 12 --cols 256 --gpus 1", shuffles_of=1),
    "bwd21": Problem("--rows 8 --cols 128 --gpus 1", shuffles_of=1),
    "bwd19": Problem("--rows 64 --cols 9 --dtype bf16", warps=4),  # a tile, walked over three times
}


def shortened(launch, problem):
    """A launch with what is told of it. Events point to earlier ones by their numbers, which change."""
    def is_told(event):
        warp = event.get("warp", 0)
        return warp < problem.warps and (warp < problem.shuffles_of or event["do"] != "shuffle")

    told = [i for i, event in enumerate(launch["events"]) if is_told(event)]
    number = {old: new for new, old in enumerate(told)}
    events = []
    for i in told:
        event = launch["events"][i]
        since = event.get("since")
        if isinstance(since, list):
            event = {**event, "since": [number[old] for old in since if old in number]}
        elif since is not None:
            event = {**event, "since": number[since]}
        events.append(event)
    return {**launch, "events": events, "warps": min(launch["warps"], problem.warps), "warps_in_all": launch["warps"]}


def what_is_left_out(launches, problem):
    """A sentence, or nothing."""
    if problem.shuffles_of == 1 and any(launch["warps"] > 1 for launch in launches):
        return "The shuffles of warp 0 are shown; those of the other warps are like them."
    return ""


def text_of(trace, problem):
    """The classic script that holds a trace, an event a line."""
    kept = {key: trace[key] for key in KEPT}
    kept["left_out"] = what_is_left_out(trace["launches"], problem)
    kept["launches"] = [shortened(launch, problem) for launch in trace["launches"]]
    slot = '"events of launch {}"'
    without = [{**launch, "events": slot.format(i)[1:-1]} for i, launch in enumerate(kept["launches"])]
    text = compact({**kept, "launches": without})
    for i, launch in enumerate(kept["launches"]):
        text = text.replace(slot.format(i), "[\n" + ",\n".join(map(compact, launch["events"])) + "]", 1)
    return f'(window.lncTraces ??= {{}})["{trace["chapter"]}"] = {text};\n'


def compact(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def trace_of(program, problem):
    """(trace, ''), or (None, why there is none)."""
    if not program.is_file():
        return None, f"{program} is not built"
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "trace.json"
        command = [sys.executable, "-m", "common.watch.trace", program, "--json", file, *problem.arguments.split()]
        done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, encoding="utf-8")
        if done.returncode != 0 or not file.is_file():
            said = done.stderr.strip() or f"trace.py ended with status {done.returncode}"
            return None, said.splitlines()[-1]
        return json.loads(file.read_text(encoding="utf-8")), ""


def write_one(chapter, problem, programs, out):
    """Writes a chapter's trace. Returns why there is none, or nothing."""
    trace, why = trace_of(programs / chapter, problem)
    file = out / f"{chapter}.js"
    if trace is None:
        file.unlink(missing_ok=True)
        return why
    text = text_of(trace, problem)
    if not file.is_file() or file.read_text(encoding="utf-8") != text:
        file.write_text(text, encoding="utf-8")
    return ""


def write(programs, out):
    """Writes OUT/<chapter>.js for each chapter that has a program, and says on stderr which has no trace.

    Returns the chapters that have one.
    """
    programs, out = Path(programs).resolve(), Path(out)
    out.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        reasons = dict(zip(PROBLEMS, pool.map(lambda item: write_one(*item, programs, out), PROBLEMS.items())))
    for chapter, why in reasons.items():
        if why:
            print(f"no trace of {chapter}: {why}", file=sys.stderr)
    return [chapter for chapter, why in reasons.items() if not why]


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("programs", type=Path, help="where the programs of the build that watches are")
    parser.add_argument("out", type=Path, help="where the traces go")
    options = parser.parse_args(argv)
    written = write(options.programs, options.out)
    print(f"{len(written)} traces in {options.out}")
    return 0 if written else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
