"""One device's records joined with the chapters: what the tables, the figures and the notebooks are made from.

    results = choose_results()                  # in a notebook: the reader's own data, or the committed
    print(results.about())                      # which data, and which chapters they lack
    rows = results.rows("fwd", [PROGRESSION])   # plain dicts, for a figure or a pandas.DataFrame

A row is one chapter (or peer) on one problem:

    chapter, title, direction   "fwd02", "One warp per row", "fwd"
    group                       what the option group counts in this chapter: "rows a block"
    road                        "main line", or the chapter's side road
    variant                     the kind and the options in words; empty for a plain layer norm
    gbps, roof_gbps, of_roof    as cycles and roof_us, None where not measured, and where the time is emulated
    emulated                    the SIMT machine's time, which is not comparable to a GPU's

and a record's problem, times (of a cold L2: there are no others here), bytes and device, as records.py says.

Of training, a row is one model with one norm and all seeds of a run: norm ("torch", "torch, reordered", "ours"),
order, kind, dtype, model (a phrase), seeds (how many), last and entropy (means over them), step_us, graph_us,
peak_bytes (None where not measured), and, as seeds.py explains,

    differences                 last losses less torch's of the same seed, one a seed
    difference, margin          their mean, and half its 95 % interval
    most                        the largest of them, without its sign
    rounding                    `most` of torch reordered: as far as a mean may be from torch's and agree
    agrees                      whether it does; None of torch itself
"""

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from common.results.peers import is_ours, nearest, pairs, side_by_side
from common.results.profiles import STALL, STALLS, load_profiles
from common.results import seeds
from common.results.chapters import DIRECTIONS, KINDS, SHORT, ChapterMap, find_chapters, find_library
from common.results.problems import PROGRESSION, ROOT, WIDTHS, problem_of
from common.results.records import (
    MISSING, MODEL, DataError, Measurements, MissingData, gbps, is_right, load, load_training, provenance, roof_gbps)

DATA = Path("notebooks/data/h100.csv")
LOCAL = Path("notebooks/data/local.jsonl")
SOURCE = Path("notebooks/data/source_a100.jsonl")
PEERS = "notebooks/data/peers*.csv"
LOCAL_PEERS = "notebooks/data/local_peers.jsonl"
TRAINING = Path("notebooks/data/training_h100.jsonl")
LOCAL_TRAINING = Path("notebooks/data/local_training.jsonl")
VARIABLE = "LNC_DATA"  # names the file that the notebooks read; `make notebooks DATA=…` sets it

# What a record's `packages` are called in a sentence.
TOOLS = {"torch": "PyTorch", "triton": "Triton", "liger-kernel": "Liger", "quack-kernels": "QuACK",
         "flash-attn": "FlashAttention", "nvidia-cudnn-frontend": "cuDNN's front end", "cudnn": "cuDNN",
         "helion": "Helion", "apex": "Apex", "transformer-engine": "Transformer Engine"}
TIMES = ("median_us", "p10_us", "p90_us")
NORMS = {"chapters": "ours", "chapters-memory-efficient": "ours, memory-efficient"}  # in training
REORDERED = "torch, reordered"
MODEL_WORDS = "{steps} steps of {batch} × {context} symbols, {layers} layers of width {width}"


@dataclass
class DeviceResults:
    root: Path
    chapters: dict  # Chapter by id, in reading order
    library: dict  # the same of the library's kernels
    measured: Measurements
    profiles: dict  # as load_profiles returns them, of the same device
    source: Measurements  # what the chapters' source published, of another device
    peers: Measurements  # and our kernels beside them, of the same device
    training: Measurements  # of any GPU
    left_out: int = 0  # records of a warm L2, or with the host's time

    @property
    def kernels(self):
        """The chapters, then the library's kernels."""
        return self.chapters | self.library

    @property
    def map(self):
        return ChapterMap(self.chapters)

    @property
    def emulated(self):
        return any(record.get("backend") == "cpu" for record in self.measured.records)

    @property
    def device(self):
        return next((record.get("device", "") for record in (*self.measured.records, *self.peers.records)), "")

    def of_direction(self, direction):
        return [chapter for chapter in self.chapters.values() if chapter.direction == direction]

    def find(self, chapter, problem):
        """The record of a chapter on a problem; None where there is none with a right result."""
        record = self.measured.find(chapter.id, problem)
        return record if record and is_right(record) else None

    def has_data_for(self, chapter):
        """False only for a chapter that is newer than the data: the next run adds it."""
        records = self.measured.records
        return not records or any(record.get("chapter") == chapter.id for record in records)

    # --- Our chapters ---

    def rows(self, direction, problems):
        """The rows of a direction's chapters on some problems, in reading order."""
        return [self.row(record) for chapter in self.of_direction(direction)
                for problem in problems if (record := self.find(chapter, problem))]

    def problems(self):
        """Every plain problem that the data hold."""
        problems = dict.fromkeys(problem_of(record).shape for record in self.measured.records)
        return [problem for problem in problems if problem.kind == "layer"]

    def source_rows(self, direction):
        """What the chapters' source published: its device and its cycles."""
        return [record for record in self.source.records
                if record["chapter"] in self.chapters and record["chapter"].startswith(direction)]

    def variant_rows(self, direction):
        """The rows of problems that a chapter was measured on with an option of its own."""
        return [self.row(record) for record in self.measured.records if record.get("chapter") in self.chapters
                and record["chapter"].startswith(direction) and record["options"] and is_right(record)]

    def profile_rows(self, direction):
        """What Nsight Compute counted on the progression's problem, in bytes, one row a chapter.

        Traffic is that of all launches; the rest, of the one that took longest.
        """
        return [profile_row(chapter, launches) for chapter in self.of_direction(direction)
                if (launches := self.profiles.get((chapter.id, PROGRESSION)))]

    def missing(self, direction, problems=(PROGRESSION,)):
        """The ids of the chapters without a right record on any of these problems."""
        return [chapter.id for chapter in self.of_direction(direction)
                if not any(self.find(chapter, problem) for problem in problems)]

    # --- Beside peers ---

    def contenders(self, direction, kind="layer"):
        """(our rows, the peers' rows) to compare, problem by problem: those of compared().

        A peer's row has its provider's name in place of a chapter; ours are the dispatch's and the chapters'.
        """
        records = [record for together, _ in self.compared(direction, kind).values() for record in together]
        return ([self.row(record) for record in records if is_ours(record["provider"])],
                [self.row(record) for record in records if not is_ours(record["provider"])])

    def against_peers(self, direction, kind="layer", peers=None):
        """One row for each problem of contenders(): our row, and `peer`, `peer_us` of the fastest peer, or of the named
        ones, our time over its, `ratio`, and over the others' as well: `ratios` by name, at their median, p10 and p90.

        A ratio is of times of one run wherever the peer's run has ours; our row is that beside the fastest peer.
        """
        found = []
        for _, own in self.compared(direction, kind).values():
            if own := [pair for pair in own if peers is None or pair[1]["provider"] in peers]:
                ours, best = nearest(own)
                found.append({**self.row(ours), "peer": best["provider"], "peer_us": best["median_us"],
                              "ratio": ours["median_us"] / best["median_us"],
                              "ratios": {theirs["provider"]: [beside["median_us"] / theirs.get(key, theirs["median_us"])
                                                              for key in TIMES] for beside, theirs in own}})
        return found

    def width_rows(self, problems=WIDTHS):
        """The rows of against_peers() on the widths that models have, at 128 MiB a tensor, or on other problems: both
        directions and kinds."""
        return [row for direction in DIRECTIONS for kind in KINDS for row in self.against_peers(direction, kind)
                if problem_of(row) in problems]

    def with_widths(self):
        """This device's results where they have width_rows(); else those of the first other GPU whose committed peers
        have some, or this one's where none has."""
        if self.emulated or self.width_rows():
            return self
        return next((other for other in self.other_gpus() if other.width_rows()), self)

    def other_gpus(self):
        """The results of each other GPU of the committed files of peers: of these alone, in the order of the files."""
        found = {}
        for path in sorted(self.root.glob(PEERS)):
            for record in load(path, backend="cuda").only().records:
                if "provider" in record and record.get("device") not in (self.device, None):
                    found.setdefault(record["device"], Measurements(path)).records.append(record)
        return [replace(self, measured=Measurements(peers.path), profiles={}, peers=peers) for peers in found.values()]

    def compared(self, direction, kind="layer"):
        """{problem: (the right records of our kernels and of peers that may be compared, [(ours, a peer's)])}: of one
        run, or of calls whose roofs agree (peers.side_by_side, peers.pairs). A problem without such is left out."""
        found = {}
        for record in self.peers.records:
            if record["direction"] == DIRECTIONS[direction] and record["kind"] == kind and is_right(record):
                found.setdefault(problem_of(record), []).append(record)
        return {problem: (together, pairs(together, records)) for problem, records in found.items()
                if (together := side_by_side(records))}

    def row(self, record):
        """Of a chapter, of the dispatch's choice, or of a peer, which has no chapter."""
        provider, problem, emulated = record.get("provider"), problem_of(record), record.get("backend") == "cpu"
        own = provider is None or is_ours(provider)
        name = record.get("chapter") or record.get("chosen") or provider
        chapter, median = self.kernels.get(name) if own else None, record["median_us"]
        speed, roof = (None, None) if emulated else (gbps(record), roof_gbps(record))
        of_run = ("provider", "driver", "cuda", "date", "commit", "run") if provider else ()
        return {**{key: record[key] for key in of_run if key in record}, "chapter": name if own else None,
                **{key: chapter and getattr(chapter, key) for key in ("title", "group", "road")},
                "direction": SHORT[record["direction"]], **problem._asdict(), "options": dict(problem.options),
                "variant": ", ".join(filter(None, ["rms" * (problem.kind == "rms"), problem.words])),
                "median_us": median, "p10_us": record.get("p10_us", median), "p90_us": record.get("p90_us", median),
                "cycles": None if emulated else record.get("cycles"), "roof_us": record["roof_us"] if roof else None,
                "gbps": speed, "roof_gbps": roof, "of_roof": 100 * speed / roof if roof else None,
                **{key: record.get(key) for key in ("operator_bytes", "predicted_bytes", "parts_us", "parts_bytes")},
                "device": record.get("device", ""), "emulated": emulated}

    # --- In training ---

    def training_rows(self, kind="layer"):
        """A model's training with each norm: of each type the newest whole run (seeds.is_whole), if it has the device
        and the model of the newest of all."""
        runs = [run for run in whole_runs(self.training.records) if run[0]["kind"] == kind]
        settings = [[run[0].get(key) for key in ("device", *MODEL)] for run in runs]
        alike = {run[0]["dtype"]: run for run, setting in zip(runs, settings) if setting == settings[-1]}
        return [row for run in alike.values() for row in rows_of_training(run)]

    # --- In sentences ---

    def about(self):
        """Sentences: which data these are, and what they lack."""
        name, lacking = self.name_of(self.measured), [one for way in DIRECTIONS for one in self.missing(way)]
        return "\n".join(filter(None, [
            f"Data: {name}, {provenance(self.measured.records)}." if self.measured.records else
            f"Data: {name} holds no measurement; `make bench JSON={name}` writes some.",
            "Emulated times: the SIMT machine's, which rank nothing on a GPU. No roof, no profile and no GPU's time is "
            "shown beside them." if self.emulated else "",
            skipped_in(self.measured),
            f"Left out: {self.left_out} record{'s' * (self.left_out > 1)} of a warm L2 or with the host's time, which "
            "cannot be compared." if self.left_out else "",
            f"Without a time on {PROGRESSION}, so left out: {', '.join(lacking)}." if lacking else ""]))

    def about_training(self):
        """Sentences: which data of gpt_training.py these are."""
        if self.emulated:
            return "A model trains on a GPU; none is shown beside emulated times."
        name, shown = self.name_of(self.training), [row for kind in KINDS for row in self.training_rows(kind)]
        if not shown:
            return f"{name} holds no training with each norm."
        return "\n".join(filter(None, [f"Data: {name}, {provenance(shown)}.", skipped_in(self.training)]))

    def name_of(self, data):
        return data.path.relative_to(self.root) if data.path.is_relative_to(self.root) else data.path

    def about_peers(self, kind="layer", problems=None):
        """A sentence: when the peers were measured, on these problems where some are named, and which versions."""
        if self.emulated:
            return "A peer's time is a GPU's; none is shown beside emulated times."
        if not self.peers.records:
            return f"No peer was measured on this device ({self.device})."
        shared = [own for direction in DIRECTIONS for problem, own in self.compared(direction, kind).items()
                  if problems is None or problem in problems]
        shown = [record for records, _ in shared for record in records]
        if not shown:
            return f"No run has peers and our kernels with {KINDS[kind]}; `make peers` measures one."
        each = "" if len({record["run"] for record in shown}) == 1 else "each problem "
        where = "in one run"
        if any(len({record["run"] for record in records}) > 1 for records, _ in shared):
            where += " or in calls whose roofs agree within 1 %"
            if all(ours["run"] == theirs["run"] for _, own in shared for ours, theirs in own):
                where += " (each ratio is of times of one run)"
        return f"The peers were measured beside our kernels, {each}{where}, {tools_of(shown)}."


# --- Rows ---


def tools_of(records):
    """'2026-11-20, PyTorch 2.11.0, Triton 3.6.0' of some records."""
    dates = sorted({record.get("date", "undated") for record in records})
    found = [f"{name} {' and '.join(versions)}" for key, name in TOOLS.items()
             if (versions := sorted({record["packages"][key] for record in records
                                     if key in record.get("packages", {})}))]
    return f"{' and '.join(dates)}, {', '.join(found) or 'versions unknown'}"


def skipped_in(data):
    s = "s" * (data.skipped > 1)
    return f"Skipped in it: {data.skipped} line{s} that could not be read." if data.skipped else ""


def whole_runs(records):
    """[the records of one run, of one kind and type] of gpt_training.py, the newest run last."""
    runs = {}
    for record in records:
        runs.setdefault((record["kind"], record["dtype"], record.get("run")), []).append(record)
    return [run for run in runs.values() if seeds.is_whole(run)]


def rows_of_training(run):
    """A row for each norm of a whole run."""
    lasts, rows = seeds.last_losses(run), []
    rounding = seeds.difference(lasts, seeds.REORDERED)
    for name, own in lasts.items():
        records = [record for record in run if (record["training"], record["order"]) == name]
        first, away, losses = records[0], seeds.difference(lasts, name), list(own.values())
        entropies = [record["entropy"] for record in records if record.get("entropy") is not None]
        times = {key: first.get(key) for key in ("step_us", "graph_us", "peak_bytes")}
        rows.append({**{key: value for key, value in first.items() if key not in ("losses", "seed")}, **times,
                     "norm": REORDERED if name == seeds.REORDERED else NORMS.get(name[0], name[0]),
                     "seeds": len(losses), "last": None if None in losses else sum(losses) / len(losses),
                     "entropy": sum(entropies) / len(entropies) if entropies else None,
                     "differences": away.seeds, "difference": away.mean, "margin": away.margin, "most": away.most,
                     "rounding": rounding.most, "agrees": seeds.agrees(away, rounding) if name[0] != "torch" else None,
                     "model": MODEL_WORDS.format(**first), "device": first.get("device", ""), "emulated": False})
    return rows


def profile_row(chapter, launches):
    def total(*names):
        return sum(launch["metrics"].get(name, 0) for launch in launches for name in names)

    longest = max((launch["metrics"] for launch in launches),
                  key=lambda metrics: metrics.get("gpu__time_duration.sum", 0))
    return {"chapter": chapter.id, "title": chapter.title, "direction": chapter.direction,
            "device": launches[0].get("device", ""), "emulated": False,
            **{key: launches[0].get(key) for key in ("dtype", "rows", "cols", "predicted_bytes")},
            "read_bytes": total("dram__bytes_read.sum"), "written_bytes": total("dram__bytes_write.sum"),
            "l2_bytes": 32 * total(*(f"lts__t_sectors_op_{op}.sum" for op in ("read", "write", "red"))),
            "l2_read_bytes": 32 * total("lts__t_sectors_op_read.sum"),
            "sectors_per_request": longest.get("l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio"),
            "registers": longest.get("launch__registers_per_thread"),
            "warps_active": longest.get("sm__warps_active.avg.per_cycle_active"),
            "waits": {words: longest.get(STALL.format(stall), 0) for stall, words in STALLS.items()}}


# --- Opening ---


def choose_results(root=ROOT):
    """The results for a notebook: of the file that LNC_DATA names, else of the reader's own measurements if they hold
    a GPU's times, else of the committed ones.

    Emulated times are taken from a named file only, and only if it holds no GPU's.
    """
    named, local = os.environ.get(VARIABLE), root / LOCAL
    if named:
        measured = load(root / named, backend="cuda")
        return make_results(root, measured if measured.records else load(root / named, backend="cpu"))
    if local.exists():
        measured = load(local, backend="cuda")
        if measured.records:
            return make_results(root, measured)
        print(f"{LOCAL} holds no GPU's times, so {DATA} is shown; `make notebooks DATA={LOCAL}` shows it",
              file=sys.stderr)
    return make_results(root, load(root / DATA))


def open_results(root=ROOT):
    """The results of the committed measurements, for the tables. Where there are none it is empty."""
    try:
        measured = load(root / DATA)
    except MissingData as error:
        print(f"{error}. Until then the tables show '{MISSING}'.", file=sys.stderr)
        measured = Measurements(root / DATA)
    if any(record.get("backend") == "cpu" for record in measured.records):
        raise DataError(f"{measured.path} holds emulated times (backend cpu); the tables are of a GPU's")
    return make_results(root, measured, local=False)


def make_results(root, measured, local=True):
    """The results of one file's measurements and of what lies beside it: NAME_profile, the peers' (`local`: the
    reader's own among them). Only of a cold L2, without the host's time: no other time is comparable."""
    everything, measured = measured, measured.only()
    devices = sorted({record.get("device", "an unknown device") for record in measured.records})
    if len(devices) > 1:
        raise DataError(f"{measured.path} holds times of {' and '.join(devices)}; a table or a figure is of one device")
    results = DeviceResults(root, find_chapters(root), find_library(root), measured, {}, Measurements(root / SOURCE),
                            Measurements(measured.path), Measurements(root / TRAINING),
                            len(everything.records) - len(measured.records))
    if results.emulated:
        return results
    profile = measured.path.with_stem(f"{measured.path.stem}_profile")
    results.profiles = {key: launches for key, launches in (load_profiles(profile) if profile.exists() else {}).items()
                        if launches[0].get("device") in (results.device, None) or not measured.records}
    results.source = load(root / SOURCE) if (root / SOURCE).exists() else results.source
    results.peers = find_peers(root, measured, results.device, local)
    results.training = find_training(root, local)
    return results


def find_peers(root, measured, device, local):
    """What was measured beside peers on this device: in the file itself, and in files of their own.
    `local`: among them the reader's own."""
    paths = [*sorted(root.glob(PEERS)), *(root.glob(LOCAL_PEERS) if local else ())]
    found = [measured, *(load(path) for path in paths if path != measured.path)]
    return Measurements(measured.path, [record for peers in found for record in peers.only().records
                                        if "provider" in record and record.get("device") == device])


def find_training(root, local):
    """`local`: the reader's own, if they hold a GPU's whole training; else the committed."""
    if local and (root / LOCAL_TRAINING).exists():
        found = load_training(root / LOCAL_TRAINING, backend="cuda")
        if whole_runs(found.records):
            return found
        print(f"{LOCAL_TRAINING} holds no whole training on a GPU, so {TRAINING} is shown", file=sys.stderr)
    path = root / TRAINING
    return load_training(path, backend="cuda") if path.exists() else Measurements(path)
