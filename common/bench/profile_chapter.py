#!/usr/bin/env python3
"""What the hardware counted while a chapter ran, read by Nsight Compute.

    python3 -m common.bench.profile_chapter build/cuda/bin/bwd02
    python3 -m common.bench.profile_chapter build/cuda/bin/chapters --json mine.jsonl
    python3 -m common.bench.profile_chapter build/cuda/bin/fwd06 -- --dtype f16 --rows 4096 --cols 8192
    python3 -m common.bench.profile_chapter --csv FILE        # what `ncu --csv --page raw` printed before

Prints a table for each chapter and appends JSON records, one for each launch of a kernel: its problem
and what made it, as records.py says, Nsight Compute's metrics under its own names, and the `run`
in which they were counted. Nsight Compute empties the caches before each kernel, as the chapters' own
timing does. Exit status 2: the request or the profiler was wrong.

(It is not called profile.py, because `import cProfile` would find that instead of Python's own.)
"""

import argparse
import csv
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from common.tools import kernel_names
from common.results import records as measurements
from common.results.chapters import direction_of
from common.results.profiles import METRICS, STALL, STALLS, profile_rows
from common.results.problems import ROOT, DataError, problem_of
from common.results.records import SCHEMA


NAMES = tuple(metric.name for metric in METRICS) + tuple(STALL.format(stall) for stall in STALLS)

# What `make count` says without a GPU, as the hardware has it (--counts).
GLOBAL = "l1tex__t_{}_pipe_lsu_mem_global_op_{}.sum"
COUNTED = (
    *(GLOBAL.format(what, op) for what in ("requests", "sectors") for op in ("ld", "st", "red", "atom")),
    *(f"lts__t_sectors_srcunit_tex_op_{op}.sum" for op in ("read", "write", "red", "atom")),
    "memory_l1_wavefronts_shared",
    "memory_l1_wavefronts_shared_ideal",
    "dram__bytes_read.sum",
)


# --- From Nsight Compute's CSV to records ---


class Kernel(NamedTuple):
    namespace: str
    name: str  # with its template arguments
    grid: str
    block: str
    metrics: dict
    device: str


def parse_csv(text):
    """The kernels in the order of their launches. Raises DataError where there is no CSV."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID",')), None)
    if start is None:
        raise DataError(no_csv(text))
    rows = [row for row in csv.DictReader(lines[start:]) if row["ID"].isdigit()]  # that of units has none
    names = demangle([row["Kernel Name"] for row in rows])
    return [parse_kernel(name, row) for name, row in zip(names, rows)]


def demangle(names):
    """Names as the source spells them. run_ncu asks for the linker's, since Nsight Compute's own
    reading of these leaves out some namespaces, and with them the chapter."""
    try:
        return kernel_names.demangle(names)
    except (OSError, subprocess.CalledProcessError) as error:
        raise DataError(f"c++filt, which comes with g++, cannot spell the kernels' names: {error}") from error


def parse_kernel(name, row):
    namespace, name = split_name(name)
    metrics = {metric: number for metric in (*NAMES, *COUNTED)
               if (number := parse_number(row.get(metric))) is not None}
    return Kernel(namespace, name, row["Grid Size"], row["Block Size"], metrics,
                  row.get("device__attribute_display_name") or "")


def split_name(text):
    """'void fwd02::layer_norm_forward<float>(…)' -> ('fwd02', 'layer_norm_forward<float>')"""
    name, angle, template = kernel_names.without_parameters(text).partition("<")
    *namespaces, name = name.strip().split("::")
    return (namespaces[0] if namespaces else ""), name + angle + template


def parse_number(text):
    """'1,324,672.50' -> 1324672.5; None for a metric that this GPU does not have."""
    try:
        number = float((text or "").replace(",", ""))
    except ValueError:
        return None
    return int(number) if number.is_integer() else number


def no_csv(output):
    """Why Nsight Compute printed no table, and what to do about it."""
    if "ERR_NVGPUCTRPERM" in output:
        return ("Nsight Compute may not read this GPU's counters. Run as root (sudo), or load the "
                "driver with the module option NVreg_RestrictProfilingToAdminUsers=0: write "
                "'options nvidia NVreg_RestrictProfilingToAdminUsers=0' to "
                "/etc/modprobe.d/nvidia-profiling.conf and restart. In a container, add "
                "--cap-add=SYS_ADMIN")
    if "No kernels were profiled" in output:
        return "Nsight Compute saw no kernel: is the program a BACKEND=cuda build?"
    last = "; ".join(line.strip() for line in output.splitlines()[-5:] if line.strip())
    return f"Nsight Compute printed no table: {last or 'it printed nothing at all'}"


def by_chapter(kernels):
    """[(chapter, kernel), …]: the kernels in common/kernel belong to the chapter, or the kernel of the library, that
    launched them.

    zero_gradients runs before a chapter's own kernels, everything else in common/ after them.
    """
    is_own = [re.fullmatch(r"[a-z]+\d\d|lib_\w+", kernel.namespace) is not None for kernel in kernels]
    owned = []
    for i, kernel in enumerate(kernels):
        before = [k.namespace for k, own in zip(kernels[: i + 1], is_own) if own]
        after = [k.namespace for k, own in zip(kernels[i:], is_own[i:]) if own]
        if is_own[i]:
            owned.append((kernel.namespace, kernel))
        elif after and (kernel.name.startswith("zero_") or not before):
            owned.append((after[0], kernel))
        elif before:
            owned.append((before[-1], kernel))
    return owned


MADE_BY = ("problem", "l2", "device", "driver", "cuda", "backend", "date", "commit", "run")
DIRECTIONS = {"copy": "copy", "fwd": "forward", "bwd": "backward"}


def make_records(kernels, results):
    """One record a launch. `results` holds the program's own records of the same run, or none."""
    for chapter, kernel in by_chapter(kernels):
        result = next((r for r in results if r["chapter"] == chapter), results[-1])
        # A reader's own chapter, my01, has no direction in its id.
        direction = DIRECTIONS.get(direction_of(chapter), result.get("direction"))
        record = {"schema": SCHEMA, "chapter": chapter, "direction": direction,
                  **{key: result[key] for key in MADE_BY if key in result},
                  "kernel": kernel.name, "grid": kernel.grid, "block": kernel.block}
        if result["chapter"] == chapter and "predicted_bytes" in result:
            record["predicted_bytes"] = result["predicted_bytes"]
        yield {**record, "metrics": kernel.metrics}


# --- The page ---


def print_page(launches):
    first = launches[0]
    print(f"\n{first['chapter']} · {first['problem']['kind']} {problem_of(first['problem'])}")
    rows = [["", *(launch["kernel"] for launch in launches), ""]]
    rows += profile_rows(launches, first.get("predicted_bytes"))
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        label, *values, words = row
        cells = [label.ljust(widths[0]), *(v.rjust(w) for v, w in zip(values, widths[1:]))]
        print("  " + "  ".join([*cells, words]).rstrip())


# --- The program ---


def find_ncu():
    ncu = shutil.which("ncu") or shutil.which("ncu", path="/usr/local/cuda/bin")
    if ncu is None:
        raise DataError("Profiling needs an NVIDIA GPU and Nsight Compute, and ncu is neither in PATH nor in "
                        "/usr/local/cuda/bin. It comes with the CUDA Toolkit, as the package nsight-compute of "
                        "NVIDIA's repository, or from https://developer.nvidia.com/nsight-compute")
    return ncu


def run_ncu(program, arguments, names=NAMES):
    """Profiles the program for metrics of these names: (what ncu printed, the program's own records)."""
    if not os.access(program, os.X_OK) or not Path(program).is_file():
        raise DataError(f"{program} is no program; `make run CH=bwd02 BACKEND=cuda` builds "
                        "build/cuda/bin/bwd02")
    ncu = find_ncu()
    with tempfile.TemporaryDirectory() as directory:
        own = Path(directory) / "own.jsonl"
        # --samples 0: check once, time nothing, so that only the chapter's kernels run.
        command = [ncu, "--clock-control", "none", "--csv", "--page", "raw", "--print-units", "base",
                   "--print-kernel-base", "mangled",
                   "--metrics", ",".join(names), str(Path(program).resolve()),
                   "--samples", "0", "--json", str(own), *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              encoding="utf-8", errors="replace", check=False)
        if "ERR_NVGPUCTRPERM" in done.stdout:
            raise DataError(no_csv(done.stdout))
        if done.returncode != 0:
            last = "\n".join(line for line in done.stdout.splitlines()[-20:] if line[:1] not in ('"', "="))
            raise DataError(f"{program} ended with status {done.returncode}:\n{last}")
        return done.stdout, own_results(own)


def own_results(path):
    """The program's own records as they stand in its file: problem, bytes, and what made them."""
    objects = measurements.read_objects(path) if path.exists() else []
    results = [line for _, line in objects if line and line.get("schema") == SCHEMA]
    if not results:
        raise DataError(f"the program wrote no record of schema {SCHEMA}; `make run BACKEND=cuda` builds it anew")
    return results


def parse_problem(text):
    match = re.fullmatch(r"(?:(layer|rms) )?(f32|f16|bf16),? (\d+) ?[x×] ?(\d+)", text)
    if match is None:
        raise DataError(f"--problem '{text}' is no problem; write it as 'f32 1024x2048' or "
                        "'rms bf16 4096x8192'")
    kind, dtype, rows, cols = match.groups()
    problem = {"kind": kind or "layer", "dtype": dtype, "rows": int(rows), "cols": int(cols), "options": {}}
    return {"chapter": None, "problem": problem, "l2": "cold"}


def complete(results, kernels):
    """The results with what else a record says of its run."""
    now = datetime.datetime.now(datetime.timezone.utc)
    made_by = {"device": kernels[-1].device or "unknown", "backend": "cuda", "date": now.date().isoformat(),
               "run": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")}
    return [{**made_by, **result} for result in results]


def profile(options, arguments):
    if options.csv:
        text = "\n".join(line for _, line in measurements.read_lines(Path(options.csv)))
        results = [parse_problem(options.problem)]
    else:
        text, results = run_ncu(options.program, arguments, COUNTED if options.counts else NAMES)
    kernels = parse_csv(text)
    if len({json.dumps(result["problem"], sort_keys=True) for result in results}) != 1:
        raise DataError("profile one problem at a time: a sweep's kernels cannot be told apart")
    records = list(make_records(kernels, complete(results, kernels)))
    if not records:
        raise DataError("none of the kernels that Nsight Compute saw is a chapter's or the library's")
    print(records[0]["device"])
    for chapter in dict.fromkeys(record["chapter"] for record in records if not options.counts):
        print_page([record for record in records if record["chapter"] == chapter])
    with open(options.json, "a", encoding="utf-8") as out:
        out.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in records)
    print(f"\n{len(records)} records appended to {options.json}")


def main(argv):
    argv, arguments = (argv[: argv.index("--")], argv[argv.index("--") + 1 :]) if "--" in argv else (argv, [])
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0],
                                     epilog="What follows -- goes to the program.")
    parser.add_argument("program", nargs="?", help="build/cuda/bin/<chapter>, or .../chapters for all")
    parser.add_argument("--json", metavar="FILE", help="where the records go (default: %(default)s)",
                        default=ROOT / "notebooks/data/local_profile.jsonl")
    parser.add_argument("--csv", metavar="FILE", help="read what ncu printed before, run nothing")
    parser.add_argument("--problem", metavar="TEXT", default="f32 1024x2048",
                        help="what --csv was measured on (default: %(default)s)")
    parser.add_argument("--counts", action="store_true",
                        help="requests, sectors and passes alone, to compare with those of make count")
    parser.add_argument("--ready", action="store_true", help="only say whether Nsight Compute is there")
    options = parser.parse_args(argv)
    if sum(map(bool, (options.program, options.csv, options.ready))) != 1:
        parser.error("give either a program to profile, or --csv FILE, or --ready")
    try:
        if options.ready:
            find_ncu()
        else:
            profile(options, arguments)
    except (DataError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
