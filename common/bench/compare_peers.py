#!/usr/bin/env python3
"""This project's kernels and those that people use, side by side on one GPU.

    make peers                                               # everything below, 2 minutes on an H100
    make peers ARGS="--shapes bf16:8192x4096 --kind rms"     # one problem, RMS norm
    make peers ARGS="--providers dispatch,torch,liger"       # some of them
    make peers ARGS="--with-launch"                          # with the time that the host needs
    make peers ARGS="--set widths --estimate"                # how long that would take

Every provider gets the same tensors and does one pass of a training step: forward with what the
backward pass needs, or dx, dweight and dbias. Its result is held against double precision first; a
provider that is wrong is shown as wrong and has no time. Then it is timed, by CUDA events:

    cold L2      256 MB are written before each sample, three to six times. Meanwhile the host puts
                 the call into the queue, so that a time is the device's alone. Where a host is too
                 slow for that, the writes are doubled; '+' marks a time for which that was not enough.
                 Copies of the inputs take turns, as many as make 256 MB of x, 32 at most: some kernels
                 mark what they load as the last to be evicted, and such lines outlive the writes.
    --with-launch  the device waits for the host instead: what a short kernel costs in a loop of
                 Python. The dispatch is then called as a model calls it, through layernorm_chapters;
                 single kernels are C calls.
    roof         a copy (forward) or a triad (backward) of the same size, timed in the same way: the
                 fastest of PyTorch's and three of Triton's.

The unit is a problem: all contenders one after another in one process, forward and then backward, the
roof before them. A problem that may not end within the budget is not started. Each record is written as
soon as it is measured (--json, one line each), so an interrupted run keeps what it has, and what --resume
finds in that file, of the same commit, device, problem, direction and provider, it does not measure again.

What is not installed is listed, with how to get it.

Helion takes what its heuristics choose for a shape. HELION_AUTOTUNE_EFFORT=quick, in the environment, lets it
search instead: minutes a shape, of which --estimate knows nothing. Its records say which it was.

Samples: their standard deviation is about 1 % of the median at 64 MiB a tensor and 4 % at 8 MiB, so that
64 samples tell a median to 0.2 % and 0.6 %, 160 to 0.1 % and 0.4 %. A multiple of 16 has every place in
the GPU's queue equally often.

--warm-caches N compiles what is to be measured in N processes beforehand, for half the budget at most:
torch.compile, Triton and QuACK find it on disk. --estimate says how long all that takes, and stops.

Exit status 1 where a result was wrong, 2 where the request was, or where there is no GPU or no
PyTorch.
"""

import argparse
import datetime
import itertools
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from common.results import peers
from common.bench import warm_caches as warming
from common.results.peers import DTYPES, KINDS, RequestError
from common.results import records as measurements
from common.results.problems import problem_of, size_of

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = Path("build/cuda/lib/liblnc.so")
JSON = Path("notebooks/data/local_peers.jsonl")
SECONDS_EACH = 0.25  # for the samples of one provider on one problem; slow ones get fewer


def not_ready():
    """Why nothing can be measured here, in a sentence; None where it can."""
    try:
        import torch
    except ImportError as error:
        return f"compare_peers needs PyTorch, and {sys.executable} has none ({error}); PYTHON=… names another Python"
    if not torch.cuda.is_available():
        return "compare_peers needs an NVIDIA GPU, and PyTorch sees none here"
    return None


def parse_arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", metavar="SHAPE,…",
                        help="ROWSxCOLS or DTYPE:ROWSxCOLS; default: " + ",".join(
                            f"{shape.dtype}:{shape.rows}x{shape.cols}" for shape in peers.SHAPES))
    parser.add_argument("--set", metavar="NAME,…", help="in place of shapes: the problems of sets in "
                        "common/harness/problem_sets.json, as in widths,smaller")
    parser.add_argument("--dtype", choices=DTYPES,
                        help="of the shapes that name none (else bf16); of the default shapes and of a set, only these")
    parser.add_argument("--kind", metavar="NAME,…",
                        help=f"{','.join(KINDS)} or one of them; default: layer, of a set all that it has")
    parser.add_argument("--direction", choices=peers.DIRECTIONS, help="default: both")
    parser.add_argument("--providers", metavar="NAME,…", help="default: all; --list names them")
    parser.add_argument("--samples", type=positive(int), default=160, help="of each median, at most (160)")
    parser.add_argument("--budget", type=positive(float), default=240, metavar="SECONDS",
                        help="within which all should end: no problem is started that may last longer (240)")
    parser.add_argument("--resume", action="store_true", help="leave out what the --json file has already, of the "
                        "same commit, device, problem, direction and provider")
    parser.add_argument("--warm-caches", type=positive(int), default=0, metavar="N",
                        help="compile everything first, in so many processes, for half the budget at most")
    parser.add_argument("--estimate", action="store_true", help="say how long this takes on an H100, and stop")
    parser.add_argument("--with-launch", action="store_true", help="count the host's time, too")
    parser.add_argument("--json", type=Path, default=ROOT / JSON, metavar="FILE",
                        help=f"records are appended to it ({JSON})")
    parser.add_argument("--library", type=Path, default=ROOT / LIBRARY, metavar="FILE",
                        help=f"this project's kernels ({LIBRARY}; `make library`)")
    parser.add_argument("--list", action="store_true", help="name the providers and stop")
    parser.add_argument("--ready", action="store_true", help="say what is missing to run at all, and stop")
    return parser.parse_args(argv)


def positive(number):
    def parse(text):
        try:
            value = number(text)
        except ValueError:
            value = 0
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"'{text}' is no {'whole ' if number is int else ''}number above 0")
        return value
    return parse


def problems_of(options):
    """The Problems that are asked for."""
    if options.set is not None and options.shapes is not None:
        raise RequestError("--set has its own shapes: leave --shapes out, or --set")
    if options.set is not None:
        problems = peers.parse_sets(options.set, options.dtype, peers.parse_names(options.kind, KINDS, "kind"))
        if not problems:
            raise RequestError(f"--set {options.set} has no problem of this type and kind")
        return problems
    kinds = peers.parse_names(options.kind or "layer", KINDS, "kind")
    return peers.parse_shapes(options.shapes, options.dtype, kinds)


def host_of(options):
    """What a record says of the host's time."""
    return "counted" if options.with_launch else "hidden"


def directions_of(options):
    return [options.direction] if options.direction else peers.DIRECTIONS


# --- Who is there ---


def load_all(providers):
    """({name: prepare}, [(name, why, how to get it)]) of those that are there and those that are not."""
    prepares, missing = {}, []
    for provider in providers:
        try:
            prepares[provider.name] = provider.load()
        except Exception as error:  # whatever somebody's package raises when it cannot be used
            missing.append((provider.name, one_line(error), provider.how))
    return prepares, missing


def one_line(error):
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return text if len(text) < 160 else text[:157] + "…"


def made_by(torch, packages):
    """What each record says of its run; `packages`: the versions."""
    def said(*command):
        try:
            return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.split("\n")[0]
        except (OSError, subprocess.CalledProcessError):
            return ""

    now = datetime.datetime.now(datetime.timezone.utc)
    gpu = torch.cuda.is_available()
    fields = {"device": torch.cuda.get_device_name() if gpu else platform.processor() or platform.machine(),
              "driver": said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "-i", "0"),
              "cuda": torch.version.cuda, "backend": "cuda" if gpu else "cpu", "date": now.strftime("%Y-%m-%d"),
              "commit": os.environ.get("LNC_COMMIT") or said("git", "describe", "--always", "--dirty") or "unknown",
              "run": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
              "packages": {name: version for name, version in packages.items() if version}}
    return {key: value for key, value in fields.items() if value}


# --- How long it takes ---

# Seconds, on an H100 with 16 cores; those of compiling, of cuDNN and of Helion are assumed, not measured.
FLUSH_S = 4.5e-4  # before a sample: 3 to 6 writes of 0.1 ms
BYTES_A_SECOND = 2e12  # of a contender, the slow ones among them
INPUTS_S, FIRST_CALL_S = 0.3, 0.05  # of a problem; of a contender, with the check
# More in a contender's first call, though it was compiled before; and to compile for one direction:
FROM_DISK_S = {"torch.compile": 0.4, "flash-attention": 0.3, "cudnn": 1.0, "helion": 0.5}
COMPILE_S = {"torch.compile": 3.0, "liger": 0.5, "quack": 2.5, "flash-attention": 3.0, "helion": 1.0}
USUAL = ("dispatch", "torch", "torch.compile", "liger", "quack", "flash-attention")


def estimate(tasks, samples, workers):
    """Sentences: how long the tasks take, without this project's time to compile or another peer's to install."""
    def kernel_s(problem, direction):
        return (2 if direction == "forward" else 3) * size_of(problem) / BYTES_A_SECOND

    problems = dict.fromkeys(problem for problem, *_ in tasks)
    comparisons = dict.fromkeys((problem, direction) for problem, direction, _ in tasks)
    shapes = dict.fromkeys((problem._replace(kind="layer"), direction) for problem, direction in comparisons)
    sampled = sum(peers.affordable(SECONDS_EACH, 1e6 * kernel, samples) * (FLUSH_S + kernel)
                  for problem, direction, _ in tasks for kernel in [kernel_s(problem, direction)])
    roofs = sum(4 * 80 * (FLUSH_S + kernel_s(*shape)) for shape in shapes)
    first = INPUTS_S * len(problems) + sum(FIRST_CALL_S + FROM_DISK_S.get(provider.name, 0) for *_, provider in tasks)
    compiled = sum(COMPILE_S.get(provider.name, 0) for *_, provider in tasks)
    return [f"{len(problems)} problems, {len(comparisons)} comparisons, {len(tasks)} measurements of at most "
            f"{samples} samples",
            f"  samples {sampled:.0f} s, roofs {roofs:.0f} s, inputs, first calls and checks {first:.0f} s: "
            f"{(sampled + roofs + first) / 60:.1f} minutes with all compiled",
            f"  compiling {compiled:.0f} s in one process"
            + (f", {compiled / workers / 60:.1f} minutes in {workers}" if workers else "") + " (assumed)"]


def named_providers(text):
    """Providers of these names, to plan with where none is there."""
    names = list(USUAL) if text is None else [name.strip() for name in text.split(",")]

    def has(name, direction):
        return not peers.CHAPTER.fullmatch(name) or direction[0] == name.removeprefix("lib_")[0]

    return [SimpleNamespace(name=name, kinds=KINDS,
                            directions=[direction for direction in peers.DIRECTIONS if has(name, direction)])
            for name in names]


# --- Measuring ---


class Journal:
    """Keeps the records, and appends each to the file as it comes."""

    def __init__(self, path):
        if path.suffix == ".csv":
            sys.exit(f"'{path}' is a table, and --json writes JSON lines; give it a file '….jsonl', which "
                     "common/results/archive.py adds to a table")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        self.path, self.records = path, []

    def add(self, record):
        cut_short = not self.records and self.path.read_bytes()[-1:] not in (b"", b"\n")
        with self.path.open("a", encoding="utf-8") as file:
            file.write("\n" * cut_short + json.dumps(record) + "\n")
        self.records.append(record)


class Progress:
    """One line on stderr that says what runs; where that is no terminal, one line a problem."""

    def __init__(self, total):
        self.total, self.done, self.last = total, 0, ""
        self.terminal = sys.stderr.isatty()

    def step(self, where, what):
        self.done += 1
        if self.terminal:
            line = f"[{self.done}/{self.total}] {where} · {what}"
            print(f"\r{line:<79}"[:110], end="", file=sys.stderr, flush=True)
        elif where != self.last:
            print(f"[{self.done}/{self.total}] {where}", file=sys.stderr, flush=True)
        self.last = where

    def end(self):
        if self.terminal and self.done:
            print(f"\r{'':<110}\r", end="", file=sys.stderr, flush=True)


def plan(providers, problems, directions):
    """[(problem, direction, provider)] in the order in which they are measured: problem by problem, so that all
    contenders stand close together, and of those our single kernels last."""
    order = sorted(providers, key=lambda provider: peers.CHAPTER.fullmatch(provider.name) is not None)
    return [(problem, direction, provider) for problem in problems for direction in directions
            for provider in order if problem.kind in provider.kinds and direction in provider.directions]


def not_measured(tasks, path, made_by, host):
    """The tasks of which a file of records has none, made by the same commit on the same device."""
    try:
        records = measurements.load(path).records
    except measurements.MissingData:
        return tasks
    there = {(problem_of(record), record["direction"], record["provider"]) for record in records
             if "provider" in record and measurements.condition(record) == ("cold", host)
             and all(record.get(key) == made_by.get(key) for key in ("commit", "device"))}
    return [task for task in tasks if (*task[:2], task[2].name) not in there]


class Comparison:
    """Measures tasks of a plan; `clock` is a clock.Clock; `made_by` is what each record says of the run."""

    def __init__(self, options, prepares, journal, made_by, clock, device="cuda"):
        self.options, self.prepares, self.journal, self.device = options, prepares, journal, device
        self.made_by = made_by
        self.clock = clock
        self.roofs, self.notes, self.unstarted = {}, {}, []
        self.problem, self.inputs, self.inputs_from_y = None, [], []
        self.host = host_of(options)

    def run(self, tasks, start=None):
        """`start`: of the budget, by time.monotonic(); now if it is not given."""
        start, progress, lasted = start or time.monotonic(), Progress(len(tasks)), []
        try:
            for problem, unit in itertools.groupby(tasks, lambda task: task[0]):
                began = time.monotonic()
                if began - start + max(lasted[-5:], default=0) > self.options.budget:
                    self.unstarted += unit
                    continue
                for _, direction, provider in unit:
                    progress.step(f"{direction}, {problem.kind}, {problem}", provider.name)
                    self.attempt(problem, direction, provider)
                lasted.append(time.monotonic() - began)
        finally:
            progress.end()

    def attempt(self, problem, direction, provider):
        """Measures one provider on one problem; what it cannot do becomes a note."""
        try:
            self.prepare_inputs(problem)
            self.measure(problem, direction, provider)
        except Exception as error:  # a peer's failure must not end the others'
            said = one_line(error)
            self.note(provider.name, said, problem, direction)
            del error
            self.find_device(problem, direction, provider, said)

    def find_device(self, problem, direction, provider, said):
        """Raises where the device is lost, so that nothing more can run here; a record of that keeps --resume from
        losing it there again."""
        from common.bench import peer_checks

        try:
            peer_checks.synchronize()
        except Exception:
            self.journal.add(peers.make_record(provider.name, direction, problem, self.made_by, eps=None, seed=None,
                                               passed=False, host=self.host, error=said))
            raise

    def prepare_inputs(self, problem):
        from common.bench import peer_checks, peer_providers

        if self.problem != problem:
            self.problem, self.inputs, self.inputs_from_y = None, [], []
            peer_checks.free_memory()
            first = peer_providers.make_inputs(problem.kind, problem, self.device)
            count = peers.copies(peers.bytes_of(first.x))
            self.inputs = [first, *(first.copy() for _ in range(count - 1))]
            self.problem = problem

    def measure(self, problem, direction, provider):
        from common.bench import peer_checks

        shape = problem._replace(kind="layer"), direction  # a copy knows no kind
        if shape not in self.roofs:
            self.roofs[shape] = peer_checks.roof(self.clock, direction, self.inputs[0])
        inputs = self.inputs
        if provider.from_y and direction == "backward":
            self.inputs_from_y = self.inputs_from_y or [one.from_y() for one in inputs]
            inputs = self.inputs_from_y
        runs = [self.prepares[provider.name](direction, one) for one in inputs]
        outputs = runs[0]()
        peer_checks.synchronize()
        result = peer_checks.check(direction, inputs[0], outputs)
        operator_bytes = peers.bytes_of(*inputs[0].matrices(direction), outputs[0])
        del outputs
        turns = itertools.cycle(runs)

        def run():
            return next(turns)()

        roof = self.roofs[shape]
        more = {"chosen": getattr(runs[0], "chapter", None) if provider.name in peers.DISPATCH else None,
                "rel_err": peers.rounded(result.rel_err, 3), "note": provider.note, "operator_bytes": operator_bytes,
                "roof_us": peers.rounded(roof.us, 5), "roof_bytes": roof.bytes}
        samples, late = (), False
        if result.passed:
            for each in runs[1:]:
                each()
            with_launch = self.options.with_launch
            each_us = self.clock.median(run, 3, with_launch)
            samples, late = self.clock.samples(
                run, peers.affordable(SECONDS_EACH, each_us, self.options.samples), with_launch)
        else:
            self.note(provider.name, result.why, problem, direction)
        self.journal.add(peers.make_record(
            provider.name, direction, problem, self.made_by, samples,
            eps=inputs[0].eps, seed=inputs[0].seed, passed=result.passed,
            host=self.host, late=late, **more))

    def note(self, name, sentence, problem, direction):
        self.notes.setdefault((name, sentence), []).append(f"{direction}, {problem}")


def warm_caches(options, tasks, directions):
    """Compiles what the tasks need."""
    problems = list(dict.fromkeys(problem for problem, _, provider in tasks if not peers.is_ours(provider.name)))
    names = {provider.name for _, _, provider in tasks}
    start = time.monotonic()
    done = warming.warm(problems, warming.Compile(names, directions), options.warm_caches, options.budget / 2)
    print(f"Compiled for {done} of {len(problems)} problems in {time.monotonic() - start:.0f} s", flush=True)


def compare(options):
    start = time.monotonic()
    import torch

    from common.bench.clock import Clock
    from common.bench.peer_providers import PEERS, own_providers, versions

    problems = problems_of(options)
    providers, missing = list(PEERS), []
    try:
        ours = own_providers(options.library, "cuda", options.with_launch)
        dispatch = [provider for provider in ours if provider.name in peers.DISPATCH]
        providers = dispatch + providers + ours[len(dispatch):]
    except Exception as error:
        missing.append(("this project's kernels", one_line(error), "make library"))
    if options.list:
        print("\n".join(provider.name for provider in providers))
        return 0
    try:
        names = peers.parse_names(options.providers, [provider.name for provider in providers], "provider here")
    except RequestError as error:
        raise RequestError("\n".join([str(error), *peers.missing_lines(missing)])) from None
    prepares, absent = load_all([provider for provider in providers if provider.name in names])
    missing += absent
    directions = directions_of(options)
    tasks = plan([provider for provider in providers if provider.name in prepares], problems, directions)
    made = made_by(torch, versions(prepares))
    if options.resume:
        planned = len(tasks)
        tasks = not_measured(tasks, options.json, made, host_of(options))
        print(f"Of {planned} measurements {planned - len(tasks)} are in {options.json} already")
    print(", ".join([made["device"], *(f"{name} {number}" for name, number in made["packages"].items())]))
    if options.warm_caches:
        warm_caches(options, tasks, directions)
    clock = Clock(options.library)
    comparison = Comparison(options, prepares, Journal(options.json), made, clock)
    interrupted = False
    try:
        comparison.run(tasks, start)
    except KeyboardInterrupt:
        interrupted = True
    except RuntimeError as error:  # the device is lost
        missing.append(("what came after", f"the device failed: {one_line(error)}", "leave that provider out"))
    report(comparison, missing, interrupted)
    return 130 if interrupted else int(not all(record["passed"] for record in comparison.journal.records))


def report(comparison, missing, interrupted):
    records = comparison.journal.records
    unstarted = dict.fromkeys(f"{provider.name} {direction}, {problem}"
                              for problem, direction, provider in comparison.unstarted)
    lines = peers.tables(records) + peers.note_lines(comparison.notes) + peers.missing_lines(missing)
    if unstarted:
        lines.append(f"Not started, because --budget {comparison.options.budget:g} was spent: "
                     f"{peers.shortened(list(unstarted))}.")
    if interrupted:
        lines.append("Interrupted; what was measured is kept.")
    if records:
        lines.append(f"Records written: {len(records)}, to {comparison.journal.path}")
    print("\n".join(lines))


def main(argv):
    options = parse_arguments(argv)
    try:
        problems = problems_of(options)  # a slip needs no GPU to be found
        if options.estimate:
            tasks = plan(named_providers(options.providers), problems, directions_of(options))
            print("\n".join(estimate(tasks, options.samples, options.warm_caches)))
            return 0
        why = not_ready()
        if why:
            raise RequestError(why)
        return 0 if options.ready else compare(options)
    except (RequestError, OSError) as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
