"""The chapters, joined with what was measured of them: what the tables and the notebooks are made from.

    book = choose_book()                     # in a notebook: the reader's own data, or the committed
    print(book.about())                      # which data, and which chapters they lack
    rows = book.rows("fwd", [PROGRESSION])   # plain dicts, for plots.py or a pandas.DataFrame

A row is one chapter (or peer) on one problem:

    chapter, title, direction   "fwd02", "One warp per row", "fwd"
    group                       what the chapter's --group counts
    dtype, rows, cols, variant  the problem
    median_us, p10_us, p90_us   as measurements.py says
    cycles, gbps, roof_gbps, of_roof, roof_us   None where not measured, and where the time is emulated
    predicted_bytes             to and from device memory
    device, emulated            emulated: the SIMT machine's time, which no GPU's stands beside

Of training, a row is one model with one norm: norm ("torch", "ours"), order, kind, dtype, losses, last
(the mean loss of the last tenth of the steps), model (a phrase), and what measurements.py explains: entropy,
distance, noise, agrees, step_us, graph_us, peak_bytes.
"""

import os
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import measurements
from measurements import MISSING, MODEL, PROGRESSION, DataError, Measurements, MissingData, Problem
from peers import is_ours
from profile_chapter import STALL, STALLS, load_profiles

ROOT = Path(__file__).resolve().parents[2]
DATA = Path("notebooks/data/h100.jsonl")
LOCAL = Path("notebooks/data/local.jsonl")
SOURCE = Path("notebooks/data/source_a100.jsonl")
PEERS = "notebooks/data/peers*.jsonl"
LOCAL_PEERS = "notebooks/data/local_peers.jsonl"
TRAINING = Path("notebooks/data/training_h100.jsonl")
LOCAL_TRAINING = Path("notebooks/data/local_training.jsonl")
VARIABLE = "LNC_DATA"  # names the file that the notebooks read; `make notebooks DATA=…` sets it

DIRECTIONS = {"fwd": "forward", "bwd": "backward"}

# What a run's header says of the peers.
TOOLS = {"torch": "PyTorch", "triton": "Triton", "liger-kernel": "Liger", "quack-kernels": "QuACK",
         "flash-attn": "FlashAttention", "apex": "Apex", "transformer-engine": "Transformer Engine"}

# In training: what the norms and their kinds are called.
NORMS = {"chapters": "ours", "chapters-memory-efficient": "ours, memory-efficient"}
KINDS = {"layer": "layer norm", "rms": "RMS norm"}


class Chapter(NamedTuple):
    id: str  # "bwd02"
    directory: Path  # chapters/bwd02_warp_per_row
    title: str  # "One warp per row"
    group: str  # what --group counts, "rows a block"; empty where it has none

    @property
    def direction(self):
        return self.id[:3]  # "fwd" or "bwd"


@dataclass
class Book:
    root: Path
    chapters: dict  # Chapter by id, in reading order
    measured: Measurements
    profiles: dict  # as load_profiles returns them, of the same device
    source: Measurements  # what the chapters' source published, of another device
    peers: Measurements  # of the same device
    training: Measurements  # of any GPU

    @property
    def emulated(self):
        return any(record.get("backend") == "cpu" for record in self.measured.records)

    @property
    def device(self):
        return next((record.get("device", "") for record in self.measured.records), "")

    def find(self, chapter, problem, variant=""):
        """The record of a chapter on a problem; None where there is none with a right result."""
        record = self.measured.find(chapter.id, *problem, variant=variant)
        return record if record and is_right(record) else None

    def has_data_for(self, chapter):
        """False only for a chapter that is newer than the data: it joins with the next run."""
        records = self.measured.records
        return not records or any(record.get("chapter") == chapter.id for record in records)

    def rows(self, direction, problems, variants=("",)):
        """The rows of a direction's chapters on some problems, in reading order."""
        return [make_row(chapter, record) for chapter in self.chapters.values()
                if chapter.direction == direction
                for problem in problems for variant in variants
                if (record := self.find(chapter, problem, variant))]

    def problems(self):
        """Every problem that the data hold."""
        return list(dict.fromkeys(Problem(record["dtype"], record["rows"], record["cols"])
                                  for record in self.measured.records))

    def source_rows(self, direction):
        """What the chapters' source published: its device and its cycles."""
        return [record for record in self.source.records
                if record["chapter"] in self.chapters and record["chapter"].startswith(direction)]

    def variant_rows(self, direction):
        """The rows of problems that a chapter was measured on with an option of its own."""
        return [make_row(self.chapters[record["chapter"]], record) for record in self.measured.records
                if record.get("chapter") in self.chapters and record["chapter"].startswith(direction)
                and record.get("variant") and is_right(record)]

    def contenders(self, direction, kind="layer", everyone=False):
        """(our rows, the peers' rows) to hold against each other, problem by problem.

        Where one run has both of a problem (`make peers`), both are of the newest such run: our rows
        are then the dispatch's and the chapters'. Else ours are the measured chapters' and the
        peers' are of another run. A peer's row has `provider` in place of `chapter`, and `run`,
        empty where it was measured with ours. everyone: the peers that only another run has, too.
        """
        ours = {} if kind != "layer" else {problem: self.rows(direction, [problem]) for problem in self.problems()}
        theirs = {}
        for problem, records in self.peer_records(direction, kind).items():
            together = newest_together(records)
            if together:
                ours[problem] = [self.own_row(record) for record in together if is_ours(record["provider"])]
            shown = ([] if together and not everyone else records) + together  # the last of a name counts
            peers = {record["provider"]: record for record in shown if not is_ours(record["provider"])}
            theirs[problem] = [peer_row(direction, record, "" if record in together else self.apart())
                               for record in peers.values()]
        return [row for rows in ours.values() for row in rows], [row for rows in theirs.values() for row in rows]

    def peer_rows(self, direction, kind="layer"):
        """What others' kernels need, as contenders() says."""
        return self.contenders(direction, kind)[1]

    def peer_records(self, direction, kind):
        """{problem: [record]} of what was measured with the peers and is right."""
        problems = {}
        for record in self.peers.records:
            if (record.get("direction") == DIRECTIONS[direction] and record.get("kind", "layer") == kind
                    and is_right(record) and not record.get("variant")):
                key = Problem(record["dtype"], record["rows"], record["cols"])
                problems.setdefault(key, []).append(record)
        return problems

    def own_row(self, record):
        """The row of a chapter, or of the dispatch's choice, that was measured with the peers."""
        identifier = record.get("chosen") or record["provider"]
        row = make_row(self.chapters.get(identifier), {**record, "chapter": identifier})
        taken = {key: record[key] for key in ("driver", "cuda", "date", "commit") if key in record}
        return {**taken, **row, "chapter": identifier, "provider": record["provider"], "run": ""}

    def apart(self):
        """', measured in another run (date)', of the newest run without our kernels; empty where the
        peers are in the chapters' file."""
        if self.peers.path == self.measured.path:
            return ""
        dates = [record.get("date", "undated") for record in self.peers.records if not is_ours(record["provider"])]
        alone = [record.get("date", "undated") for record in self.peers.records if not record.get("run")]
        return f", measured in another run ({(alone or dates or ['undated'])[-1]})"

    def profile_rows(self, direction):
        """What Nsight Compute counted on the progression's problem, in bytes, one row a chapter.

        Traffic is that of all launches; the rest, of the one that took longest.
        """
        rows = []
        for chapter in self.chapters.values():
            launches = self.profiles.get((None, chapter.id, "layer", *PROGRESSION, True, ""))
            if launches and chapter.direction == direction:
                rows.append(profile_row(chapter, launches))
        return rows

    def training_rows(self, kind="layer"):
        """A model's training with each norm: of each type the newest run that has torch's three
        orders and one more, if it has the device and the model of the newest of all."""
        runs = {}
        for record in self.training.records:
            if record["kind"] == kind:
                runs.setdefault((record["dtype"], record.get("run")), []).append(record)
        runs = {key: own for key, own in runs.items() if is_whole(own)}
        alike = {dtype: own for (dtype, _), own in runs.items()
                 if setting_of(own) == setting_of([*runs.values()][-1])}
        return [training_row(record, own) for own in alike.values() for record in own]

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

    def about_peers(self, kind="layer"):
        """Sentences: when the peers were measured, and whether together with the chapters."""
        if self.emulated:
            return "A peer's time is a GPU's; none stands beside emulated times."
        if not self.peers.records:
            return f"No peer was measured on this device ({self.device})."
        if self.peers.path == self.measured.path:
            return "The peers were measured with the chapters, in one file."
        groups = {True: [], False: []}  # of the problems that have both in one run, and of the others
        for direction in DIRECTIONS:
            for records in self.peer_records(direction, kind).values():
                together = newest_together(records)
                groups[bool(together)] += together or records
        texts = []
        if groups[True]:
            texts.append(f"The peers were measured beside our kernels, in one run, {tools_of(groups[True])}.")
        if groups[False]:
            which = "What that run lacks was" if groups[True] else "The peers were"
            texts.append(f"{which} measured in another run than the chapters, {tools_of(groups[False])}: differences "
                         "of a few per cent mean nothing.")
        return " ".join(texts)


# --- Rows ---


def is_right(record):
    return record.get("passed", True) and "median_us" in record


def make_row(chapter, record):
    emulated, kind = record.get("backend") == "cpu", record.get("kind", "layer")
    median, moved = record["median_us"], operator_bytes(record)
    if record.get("variant") and "gbps" in record:
        moved = record["gbps"] * median * 1e3  # a fused operator's, which only its program counts
    roof = None if emulated else record.get("roof_gbps")
    gbps = None if emulated else moved / median / 1e3
    return {"chapter": chapter and chapter.id, "title": chapter and chapter.title,
            "group": chapter and chapter.group,
            "direction": record["chapter"][:3],
            "dtype": record["dtype"], "rows": record["rows"], "cols": record["cols"],
            "variant": ", ".join(filter(None, [kind if kind != "layer" else "", record.get("variant", "")])),
            "median_us": median, "p10_us": record.get("p10_us", median), "p90_us": record.get("p90_us", median),
            "cycles": None if emulated else record.get("cycles"), "operator_bytes": moved,
            "gbps": gbps, "roof_gbps": roof, "of_roof": 100 * gbps / roof if roof else None,
            "roof_us": moved / roof / 1e3 if roof else None,
            "predicted_bytes": record.get("predicted_bytes"),
            "parts_us": record.get("parts_us"), "parts_bytes": record.get("parts_bytes"),
            "device": record.get("device", ""), "emulated": emulated}


def peer_row(direction, record, run):
    return {**make_row(None, {**record, "chapter": direction}), "provider": record["provider"], "run": run}


def newest_together(records):
    """The records of the newest run that has our kernels and peers; empty where none has."""
    runs = {}
    for record in records:
        runs.setdefault(record.get("run"), []).append(record)
    both = [run for run, own in runs.items() if run and len({is_ours(record["provider"]) for record in own}) == 2]
    return runs[max(both)] if both else []


def tools_of(records):
    """'2026-11-20, PyTorch 2.11.0, Triton 3.6.0' of the last of some records."""
    run = records[-1]
    tools = ", ".join(f"{name} {run[key]}" for key, name in TOOLS.items() if key in run)
    return f"{run.get('date', 'undated')}, {tools or 'versions unknown'}"


def operator_bytes(record):
    """The bytes that any implementation must move: forward 2·M·N elements, backward 3·M·N."""
    tensor = Problem(record["dtype"], record["rows"], record["cols"]).tensor_bytes
    return tensor * (2 if record["chapter"].startswith("fwd") else 3)


def group_of(record):
    """N of a record whose variant is "group N" and nothing else; None of any other."""
    size = re.fullmatch(r"group (\d+)", record.get("variant", ""))
    return int(size[1]) if size else None


def is_whole(run):
    """What tells torch's noise, and a norm to hold against it, of one type."""
    return len([record for record in run if record["training"] == "torch"]) > 2 and any("noise" in r for r in run)


def setting_of(records):
    """What trainings shown together share: device, model, steps."""
    return (records[0].get("device"), len(records[0]["losses"]), *(records[0][key] for key in MODEL))


def training_row(record, run):
    losses = record["losses"]
    last = losses[-len(losses) // 10:]
    phrase = "{steps} steps of {batch} × {context} symbols, {layers} layers of width {width}"
    return {**record, "norm": NORMS.get(record["training"], record["training"]),
            "last": None if None in last else sum(last) / len(last),
            "noise": next(other["noise"] for other in run if "noise" in other),
            "agrees": record.get("agrees", True), "step_us": record.get("step_us"),
            "graph_us": record.get("graph_us"), "peak_bytes": record.get("peak_bytes"),
            "model": phrase.format(steps=len(losses), **record),
            "device": record.get("device", ""), "emulated": False}


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
            "sectors_per_request": longest.get(
                "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio"),
            "registers": longest.get("launch__registers_per_thread"),
            "warps_active": longest.get("sm__warps_active.avg.per_cycle_active"),
            "waits": {words: longest.get(STALL.format(stall), 0) for stall, words in STALLS.items()}}


def provenance(records):
    """'NVIDIA H100 80GB HBM3, driver 580.159.04, CUDA 13.0, 2026-11-21, commit 1a2b3c4'"""
    parts = []
    for key, words in (("device", ""), ("driver", "driver "), ("cuda", "CUDA "), ("torch", "PyTorch "), ("date", ""),
                       ("commit", "commit ")):
        values = sorted({str(record[key]) for record in records if record.get(key)})
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
        return make_book(root, nothing(root / DATA), local=False)
    book = make_book(root, measured, local=False)
    if book.emulated:
        raise DataError(f"{root / DATA} holds emulated times (backend cpu); the tables are of a GPU's")
    return book


def make_book(root, measured, local=True):
    """A book of one file's measurements and of what lies beside it: NAME_profile.jsonl, the peers'
    (`local`: the reader's own among them)."""
    devices = sorted({record.get("device", "an unknown device") for record in measured.records})
    if len(devices) > 1:
        raise DataError(f"{measured.path} holds times of {' and '.join(devices)}; a table or a figure is of "
                        "one device")
    book = Book(root, find_chapters(root), measured, {}, nothing(root / SOURCE), nothing(measured.path),
                nothing(root / TRAINING))
    if not book.emulated:
        path = measured.path.with_name(f"{measured.path.stem}_profile.jsonl")
        profiles = load_if_there(load_profiles, path, {})
        book.profiles = {key: launches for key, launches in profiles.items()
                         if launches[0].get("device") in (book.device, None) or not measured.records}
        book.source = load_if_there(measurements.load, root / SOURCE, book.source)
        book.peers = find_peers(root, measured, book.device, local)
        book.training = find_training(root, local)
    return book


def nothing(path):
    return Measurements(path, [], [], 0)


def find_peers(root, measured, device, local):
    """The peers in the file itself, else in files of their own that were measured on this device.
    `local`: among them the reader's own."""
    own = [record for record in measured.records if "provider" in record]
    if own:
        return replace(measured, records=own)
    paths = [*sorted(root.glob(PEERS)), *(root.glob(LOCAL_PEERS) if local else ())]
    found = [measurements.load(path) for path in paths]
    records = [record for peers in found for record in peers.records
               if "provider" in record and record.get("device") == device]
    path = next((peers.path for peers in found if peers.records), measured.path)
    return replace(nothing(path), records=records) if records else nothing(measured.path)


def find_training(root, local):
    """`local`: the reader's own, if they hold a GPU's training with torch's noise; else the committed."""
    def load(path):
        return load_if_there(lambda path: measurements.load_training(path, backend="cuda"), path, nothing(path))

    if local and (root / LOCAL_TRAINING).exists():
        found = load(root / LOCAL_TRAINING)
        if any("noise" in record for record in found.records):
            return found
        print(f"{LOCAL_TRAINING} holds no whole training on a GPU, so {TRAINING} is shown", file=sys.stderr)
    return load(root / TRAINING)


def load_if_there(load, path, otherwise):
    try:
        return load(path)
    except MissingData:
        return otherwise


def find_chapters(root):
    chapters = {}
    for kernel in sorted(root.glob("chapters/*/kernel.cu"),
                         key=lambda path: (not path.parent.name.startswith("fwd"), path.parent.name)):
        identifier = kernel.parent.name.split("_")[0]
        text = kernel.read_text(encoding="utf-8")
        title = re.search(r'\.title\s*=\s*"([^"]*)"', text) or re.match(r"// \w+ · (.*)", text)
        group = re.search(r'\.group\s*=\s*"([^"]*)"', text)
        chapters[identifier] = Chapter(identifier, kernel.parent.relative_to(root),
                                       title[1] if title else identifier, group[1] if group else "")
    return chapters
