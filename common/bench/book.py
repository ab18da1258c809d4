"""The chapters, joined with what was measured of them: what the tables and the notebooks are made from.

    book = choose_book()                     # in a notebook: the reader's own data, or the committed
    print(book.about())                      # which data, and which chapters they lack
    rows = book.rows("fwd", [PROGRESSION])   # plain dicts, for figures.py or a pandas.DataFrame

A row is one chapter (or peer) on one problem:

    chapter, title, direction   "fwd02", "One warp per row", "fwd"
    group                       what the option group counts in this chapter: "rows a block"
    road                        "main line", or the side road that the chapter stands on
    kind, dtype, rows, cols, options            the problem, as in a record
    variant                     the kind and the options in words; empty for a plain layer norm
    median_us, p10_us, p90_us   as measurements.py says, of a cold L2: a book holds no other times
    cycles, gbps, roof_gbps, of_roof, roof_us   None where not measured, and where the time is emulated
    operator_bytes, predicted_bytes             what must move; what the chapter predicts
    device, emulated            emulated: the SIMT machine's time, which no GPU's stands beside

Of training, a row is one model with one norm and all seeds of a run: norm ("torch", "torch, reordered", "ours"),
order, kind, dtype, model (a phrase), seeds (how many), last and entropy (means over them), step_us, graph_us,
peak_bytes (None where nobody measured), and, as seeds.py explains,

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
from typing import NamedTuple

import measurements
import seeds
from catalogue import CATALOGUE, load_catalogue
from chapter_map import ChapterMap
from measurements import (MISSING, MODEL, PROGRESSION, ROOT, WIDTHS, DataError, Measurements, MissingData, gbps,
                          problem_of, roof_gbps)
from peers import is_ours, nearest, pairs, side_by_side
from profile_chapter import STALL, STALLS, load_profiles

DATA = Path("notebooks/data/h100.csv")
LOCAL = Path("notebooks/data/local.jsonl")
SOURCE = Path("notebooks/data/source_a100.jsonl")
PEERS = "notebooks/data/peers*.csv"
LOCAL_PEERS = "notebooks/data/local_peers.jsonl"
TRAINING = Path("notebooks/data/training_h100.jsonl")
LOCAL_TRAINING = Path("notebooks/data/local_training.jsonl")
VARIABLE = "LNC_DATA"  # names the file that the notebooks read; `make notebooks DATA=…` sets it

OWN = "my"  # what the reader's own chapters begin with, which `make new` makes; a book has none of them
DIRECTIONS = {"fwd": "forward", "bwd": "backward"}
SHORT = {name: short for short, name in DIRECTIONS.items()}

# What a record's `packages` are called in a sentence.
TOOLS = {"torch": "PyTorch", "triton": "Triton", "liger-kernel": "Liger", "quack-kernels": "QuACK",
         "flash-attn": "FlashAttention", "nvidia-cudnn-frontend": "cuDNN's front end", "cudnn": "cuDNN",
         "helion": "Helion", "apex": "Apex", "transformer-engine": "Transformer Engine"}

# What chapters.json says of a kernel, beside its id and file.
LISTED = ("title", "group", "teaches", "parent", "road", "before")
TIMES = ("median_us", "p10_us", "p90_us")

# In training: what the norms and their kinds are called.
NORMS = {"chapters": "ours", "chapters-memory-efficient": "ours, memory-efficient"}
REORDERED = "torch, reordered"
KINDS = {"layer": "layer norm", "rms": "RMS norm"}


class Chapter(NamedTuple):
    """A chapter, or a kernel of the library."""

    id: str  # "bwd02", "lib_bwd_ring"
    file: Path  # chapters/bwd02_warp_per_row/kernel.cu, common/library/kernels/bwd_ring.cu
    title: str  # "One warp per row"
    group: str  # what the option group counts, "rows a block"; empty where it has none
    teaches: str = ""  # the one idea, in a line
    parent: str = ""  # id of the chapter that it improves on; empty for the first
    road: str = ""  # "main line", or a side road's name; empty for a chapter that chapters.json lacks
    before: str = ""  # the later chapter of the main line before which a learner reads it; empty: after its parent

    @property
    def directory(self):
        return self.file.parent

    @property
    def in_library(self):
        return self.id.startswith("lib_")

    @property
    def direction(self):
        """"fwd", "bwd", or "copy" of chapter zero."""
        return self.id.split("_")[1] if self.in_library else self.id.rstrip("0123456789")


@dataclass
class Book:
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

    def find(self, chapter, problem):
        """The record of a chapter on a problem; None where there is none with a right result."""
        record = self.measured.find(chapter.id, problem)
        return record if record and is_right(record) else None

    def has_data_for(self, chapter):
        """False only for a chapter that is newer than the data: it joins with the next run."""
        records = self.measured.records
        return not records or any(record.get("chapter") == chapter.id for record in records)

    def rows(self, direction, problems):
        """The rows of a direction's chapters on some problems, in reading order."""
        return [make_row(chapter, record) for chapter in self.chapters.values()
                if chapter.direction == direction
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
        return [make_row(self.chapters[record["chapter"]], record) for record in self.measured.records
                if record.get("chapter") in self.chapters and record["chapter"].startswith(direction)
                and record["options"] and is_right(record)]

    def contenders(self, direction, kind="layer"):
        """(our rows, the peers' rows) to hold against each other, problem by problem.

        peers.side_by_side() says which: those of one run, or of calls whose roofs agree; a problem without
        such is not among them. A peer's row has its provider's name in place of a chapter; ours are the
        dispatch's and the chapters'.
        """
        ours, theirs = [], []
        for records in self.shared_runs(direction, kind).values():
            ours += [self.own_row(record) for record in records if is_ours(record["provider"])]
            theirs += [peer_row(record) for record in records if not is_ours(record["provider"])]
        return ours, theirs

    def against_peers(self, direction, kind="layer"):
        """One row for each problem of contenders(): our row, and `peer`, `peer_us` of the fastest peer,
        our time over its, `ratio`, and over the others' as well: `ratios` by name, at their median, p10 and p90.

        A ratio is of times of one run wherever the peer's run has ours; our row is that beside the fastest peer.
        """
        found = []
        for own in self.pairs(direction, kind).values():
            ours, best = nearest(own)
            found.append({**self.own_row(ours), "peer": best["provider"], "peer_us": best["median_us"],
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
        """This book where it has width_rows(); else that of the first other GPU whose committed peers have some, or
        this one where none has."""
        if self.emulated or self.width_rows():
            return self
        return next((book for book in self.other_gpus() if book.width_rows()), self)

    def other_gpus(self):
        """A book of each other GPU of the committed files of peers: of these alone, in the order of the files."""
        found = {}
        for path in sorted(self.root.glob(PEERS)):
            for record in measurements.load(path, backend="cuda").only().records:
                if "provider" in record and record.get("device") not in (self.device, None):
                    found.setdefault(record["device"], Measurements(path)).records.append(record)
        return [replace(self, measured=Measurements(peers.path), profiles={}, peers=peers) for peers in found.values()]

    def pairs(self, direction, kind):
        """{problem: peers.pairs() of the records that may be held against each other}."""
        right = self.right_records(direction, kind)
        return {problem: pairs(together, right[problem])
                for problem, together in self.shared_runs(direction, kind).items()}

    def shared_runs(self, direction, kind):
        """{problem: the right records of our kernels and of peers that may be held against each other}."""
        shared = {problem: side_by_side(records) for problem, records in self.right_records(direction, kind).items()}
        return {problem: records for problem, records in shared.items() if records}

    def right_records(self, direction, kind):
        """{problem: the right records of our kernels and of peers}."""
        found = {}
        for record in self.peers.records:
            if record["direction"] == DIRECTIONS[direction] and record["kind"] == kind and is_right(record):
                found.setdefault(problem_of(record), []).append(record)
        return found

    def own_row(self, record):
        """The row of a chapter, or of the dispatch's choice, that was measured with the peers."""
        identifier = record.get("chosen") or record["provider"]
        row = make_row(self.kernels.get(identifier), record)
        taken = {key: record[key] for key in ("driver", "cuda", "date", "commit", "run") if key in record}
        return {**taken, **row, "chapter": identifier, "provider": record["provider"]}

    def profile_rows(self, direction):
        """What Nsight Compute counted on the progression's problem, in bytes, one row a chapter.

        Traffic is that of all launches; the rest, of the one that took longest.
        """
        rows = []
        for chapter in self.chapters.values():
            launches = self.profiles.get((chapter.id, PROGRESSION))
            if launches and chapter.direction == direction:
                rows.append(profile_row(chapter, launches))
        return rows

    def training_rows(self, kind="layer"):
        """A model's training with each norm: of each type the newest whole run (seeds.is_whole), if it has
        the device and the model of the newest of all."""
        runs = [run for run in whole_runs(self.training.records) if run[0]["kind"] == kind]
        alike = {run[0]["dtype"]: run for run in runs if setting_of(run) == setting_of(runs[-1])}
        return [row for run in alike.values() for row in training_rows(run)]

    def missing(self, direction, problems=(PROGRESSION,)):
        """The ids of the chapters without a right record on any of these problems."""
        return [chapter.id for chapter in self.chapters.values() if chapter.direction == direction
                and not any(self.find(chapter, problem) for problem in problems)]

    def about(self):
        """Sentences: which data these are, and what they lack."""
        name = self.name_of(self.measured)
        text = [f"Data: {name}, {provenance(self.measured.records)}." if self.measured.records else
                f"Data: {name} holds no measurement; `make bench JSON={name}` writes some."]
        if self.emulated:
            text.append("Emulated times: the SIMT machine's, which rank nothing on a GPU. No roof, no profile "
                        "and no GPU's time stands beside them.")
        text += skipped_in(self.measured)
        if self.left_out:
            text.append(f"Left out: {self.left_out} {'record' if self.left_out == 1 else 'records'} of a warm L2 or "
                        "with the host's time, which stand beside no other.")
        lacking = [identifier for direction in DIRECTIONS for identifier in self.missing(direction)]
        if lacking:
            text.append(f"Without a time on {PROGRESSION}, so left out: {', '.join(lacking)}.")
        return "\n".join(text)

    def about_training(self):
        """Sentences: which data of gpt_training.py these are."""
        if self.emulated:
            return "A model trains on a GPU; none stands beside emulated times."
        name, shown = self.name_of(self.training), [row for kind in KINDS for row in self.training_rows(kind)]
        if not shown:
            return f"{name} holds no training with each norm."
        return "\n".join([f"Data: {name}, {provenance(shown)}.", *skipped_in(self.training)])

    def name_of(self, data):
        return data.path.relative_to(self.root) if data.path.is_relative_to(self.root) else data.path

    def about_peers(self, kind="layer", problems=None):
        """A sentence: when the peers were measured, on these problems where some are named, and which versions."""
        if self.emulated:
            return "A peer's time is a GPU's; none stands beside emulated times."
        if not self.peers.records:
            return f"No peer was measured on this device ({self.device})."
        shared = [records for direction in DIRECTIONS for problem, records in self.shared_runs(direction, kind).items()
                  if problems is None or problem in problems]
        shown = [record for records in shared for record in records]
        if not shown:
            return f"No run has peers and our kernels with {KINDS[kind]}; `make peers` measures one."
        each = "" if len({record["run"] for record in shown}) == 1 else "each problem "
        joined = any(len({record["run"] for record in records}) > 1 for records in shared)
        where = "in one run or in calls whose roofs agree within 1 %" if joined else "in one run"
        apart = joined and all(ours["run"] == theirs["run"] for direction in DIRECTIONS
                               for problem, found in self.pairs(direction, kind).items()
                               if problems is None or problem in problems for ours, theirs in found)
        where += " (each ratio is of times of one run)" if apart else ""
        return f"The peers were measured beside our kernels, {each}{where}, {tools_of(shown)}."


# --- Rows ---


def is_right(record):
    return record.get("passed", True) and "median_us" in record


def make_row(chapter, record):
    emulated, problem = record.get("backend") == "cpu", problem_of(record)
    median = record["median_us"]
    speed, roof = (None, None) if emulated else (gbps(record), roof_gbps(record))
    return {"chapter": chapter and chapter.id, "title": chapter and chapter.title,
            "group": chapter and chapter.group, "road": chapter and chapter.road,
            "direction": SHORT[record["direction"]],
            "kind": problem.kind, "dtype": problem.dtype, "rows": problem.rows, "cols": problem.cols,
            "options": dict(problem.options),
            "variant": ", ".join(filter(None, [problem.kind if problem.kind != "layer" else "", problem.words])),
            "median_us": median, "p10_us": record.get("p10_us", median), "p90_us": record.get("p90_us", median),
            "cycles": None if emulated else record.get("cycles"), "operator_bytes": record["operator_bytes"],
            "gbps": speed, "roof_gbps": roof, "of_roof": 100 * speed / roof if roof else None,
            "roof_us": record["roof_us"] if roof else None,
            "predicted_bytes": record.get("predicted_bytes"),
            "parts_us": record.get("parts_us"), "parts_bytes": record.get("parts_bytes"),
            "device": record.get("device", ""), "emulated": emulated}


def peer_row(record):
    return {**make_row(None, record), "provider": record["provider"]}


def tools_of(records):
    """'2026-11-20, PyTorch 2.11.0, Triton 3.6.0' of some records."""
    dates = sorted({record.get("date", "undated") for record in records})
    found = [f"{name} {' and '.join(versions)}" for key, name in TOOLS.items()
             if (versions := sorted({record["packages"][key] for record in records
                                     if key in record.get("packages", {})}))]
    return f"{' and '.join(dates)}, {', '.join(found) or 'versions unknown'}"


def whole_runs(records):
    """[the records of one run, of one kind and type] of gpt_training.py, the newest run last."""
    runs = {}
    for record in records:
        runs.setdefault((record["kind"], record["dtype"], record.get("run")), []).append(record)
    return [run for run in runs.values() if seeds.is_whole(run)]


def setting_of(records):
    """What trainings shown together share: device, model, steps."""
    return (records[0].get("device"), *(records[0][key] for key in MODEL))


def training_rows(run):
    """A row for each norm of a whole run."""
    lasts = seeds.last_losses(run)
    rounding = seeds.difference(lasts, seeds.REORDERED)
    return [training_row([record for record in run if (record["training"], record["order"]) == name],
                         lasts, seeds.difference(lasts, name), rounding) for name in lasts]


def training_row(records, lasts, away, rounding):
    """`records`: of one norm, the first seed's first; `away`: its Difference."""
    first = records[0]
    name = first["training"], first["order"]
    own = list(lasts[name].values())
    entropies = [record["entropy"] for record in records if record.get("entropy") is not None]
    phrase = "{steps} steps of {batch} × {context} symbols, {layers} layers of width {width}"
    told = {key: value for key, value in first.items() if key not in ("losses", "seed")}
    return {**told, "norm": REORDERED if name == seeds.REORDERED else NORMS.get(name[0], name[0]),
            "seeds": len(own), "last": None if None in own else sum(own) / len(own),
            "entropy": sum(entropies) / len(entropies) if entropies else None,
            "differences": away.seeds, "difference": away.mean, "margin": away.margin, "most": away.most,
            "rounding": rounding.most, "agrees": seeds.agrees(away, rounding) if name[0] != "torch" else None,
            **{key: first.get(key) for key in ("step_us", "graph_us", "peak_bytes")},
            "model": phrase.format(**first), "device": first.get("device", ""), "emulated": False}


def skipped_in(data):
    lines = "line" if data.skipped == 1 else "lines"
    return [f"Skipped in it: {data.skipped} {lines} that could not be read."] if data.skipped else []


def profile_row(chapter, launches):
    def total(*names):
        return sum(launch["metrics"].get(name, 0) for launch in launches for name in names)

    longest = max((launch["metrics"] for launch in launches),
                  key=lambda metrics: metrics.get("gpu__time_duration.sum", 0))
    return {"chapter": chapter.id, "title": chapter.title, "direction": chapter.direction,
            "dtype": launches[0]["dtype"], "rows": launches[0]["rows"], "cols": launches[0]["cols"],
            "device": launches[0].get("device", ""), "emulated": False,
            "predicted_bytes": launches[0].get("predicted_bytes"),
            "read_bytes": total("dram__bytes_read.sum"), "written_bytes": total("dram__bytes_write.sum"),
            "l2_bytes": 32 * total("lts__t_sectors_op_read.sum", "lts__t_sectors_op_write.sum",
                                   "lts__t_sectors_op_red.sum"),
            "l2_read_bytes": 32 * total("lts__t_sectors_op_read.sum"),
            "sectors_per_request": longest.get(
                "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio"),
            "registers": longest.get("launch__registers_per_thread"),
            "warps_active": longest.get("sm__warps_active.avg.per_cycle_active"),
            "waits": {words: longest.get(STALL.format(stall), 0) for stall, words in STALLS.items()}}


def provenance(records):
    """'NVIDIA H100 80GB HBM3, driver 580.159.04, CUDA 13.0, 2026-11-21, commit 1a2b3c4'"""
    parts = []
    told = [{**record, "torch": record.get("packages", {}).get("torch")} for record in records]
    for key, words in (("device", ""), ("driver", "driver "), ("cuda", "CUDA "), ("torch", "PyTorch "), ("date", ""),
                       ("commit", "commit ")):
        values = sorted({str(record[key]) for record in told if record.get(key)})
        if values:
            parts.append(words + " and ".join(values))
    return ", ".join(parts)


# --- Opening ---


def choose_book(root=ROOT):
    """The book for a notebook: of the file that LNC_DATA names, else of the reader's own
    measurements if they hold a GPU's times, else of the committed ones.

    Emulated times are taken from a named file only, and only if it holds no GPU's.
    """
    named, local = os.environ.get(VARIABLE), root / LOCAL
    if named:
        measured = measurements.load(root / named, backend="cuda")
        if not measured.records:
            measured = measurements.load(root / named, backend="cpu")
        return make_book(root, measured)
    if local.exists():
        measured = measurements.load(local, backend="cuda")
        if measured.records:
            return make_book(root, measured)
        print(f"{LOCAL} holds no GPU's times, so {DATA} is shown; `make notebooks DATA={LOCAL}` shows it",
              file=sys.stderr)
    return make_book(root, measurements.load(root / DATA))


def open_book(root=ROOT):
    """The book of the committed measurements, for the tables. Where there are none it is empty."""
    try:
        measured = measurements.load(root / DATA)
    except MissingData as error:
        print(f"{error}. Until then the tables show '{MISSING}'.", file=sys.stderr)
        return make_book(root, Measurements(root / DATA), local=False)
    book = make_book(root, measured, local=False)
    if book.emulated:
        raise DataError(f"{root / DATA} holds emulated times (backend cpu); the tables are of a GPU's")
    return book


def make_book(root, measured, local=True):
    """A book of one file's measurements and of what lies beside it: NAME_profile.jsonl, the peers'
    (`local`: the reader's own among them). Only of a cold L2, without the host's time: no other time
    stands beside these."""
    everything, measured = measured, measured.only()
    devices = sorted({record.get("device", "an unknown device") for record in measured.records})
    if len(devices) > 1:
        raise DataError(f"{measured.path} holds times of {' and '.join(devices)}; a table or a figure is of "
                        "one device")
    left_out = len(everything.records) - len(measured.records)
    book = Book(root, find_chapters(root), find_library(root), measured, {}, Measurements(root / SOURCE),
                Measurements(measured.path), Measurements(root / TRAINING), left_out)
    if not book.emulated:
        path = measured.path.with_name(f"{measured.path.stem}_profile.jsonl")
        profiles = load_if_there(load_profiles, path, {})
        book.profiles = {key: launches for key, launches in profiles.items()
                         if launches[0].get("device") in (book.device, None) or not measured.records}
        book.source = load_if_there(measurements.load, root / SOURCE, book.source)
        book.peers = find_peers(root, measured, book.device, local)
        book.training = find_training(root, local)
    return book


def find_peers(root, measured, device, local):
    """What was measured beside peers on this device: in the file itself, and in files of their own.
    `local`: among them the reader's own."""
    paths = [*sorted(root.glob(PEERS)), *(root.glob(LOCAL_PEERS) if local else ())]
    found = [measured, *(measurements.load(path) for path in paths if path != measured.path)]
    return Measurements(measured.path, [record for peers in found for record in peers.only().records
                                        if "provider" in record and record.get("device") == device])


def find_training(root, local):
    """`local`: the reader's own, if they hold a GPU's whole training; else the committed."""
    def load(path):
        return load_if_there(lambda path: measurements.load_training(path, backend="cuda"), path, Measurements(path))

    if local and (root / LOCAL_TRAINING).exists():
        found = load(root / LOCAL_TRAINING)
        if whole_runs(found.records):
            return found
        print(f"{LOCAL_TRAINING} holds no whole training on a GPU, so {TRAINING} is shown", file=sys.stderr)
    return load(root / TRAINING)


def load_if_there(load, path, otherwise):
    try:
        return load(path)
    except MissingData:
        return otherwise


def find_chapters(root):
    """{id: Chapter}, in reading order: what chapters.json says of each directory. One that is newer
    than that file comes last and is called by its id; that is said on stderr."""
    files = {kernel.parent.name.split("_")[0]: kernel.relative_to(root)
             for kernel in sorted(root.glob("chapters/*/kernel.cu")) if not kernel.parent.name.startswith(OWN)}
    chapters = listed_in(root, "chapters", files)
    new = {identifier: Chapter(identifier, file, identifier, "")
           for identifier, file in files.items() if identifier not in chapters}
    if new:
        print(f"{CATALOGUE} lacks {', '.join(new)}; `make tables` writes it anew", file=sys.stderr)
    return chapters | new


def find_library(root):
    """{id: Chapter} of the library's kernels."""
    return listed_in(root, "library", {f"lib_{kernel.stem}": kernel.relative_to(root)
                                       for kernel in root.glob("common/library/kernels/*.cu")})


def listed_in(root, room, files):
    """{id: Chapter} of those that chapters.json lists in a room and that have a file."""
    try:
        entries = load_catalogue(root)[room]
    except MissingData:
        return {}
    return {entry["id"]: Chapter(entry["id"], files[entry["id"]], *(entry[key] for key in LISTED))
            for entry in entries if entry["id"] in files}
