"""Made-up measurements for the tests, of as many chapters as a test wants."""

import json
import math
import random

DEVICE = "NVIDIA H100 80GB HBM3"
MADE_BY = {"device": DEVICE, "driver": "1", "cuda": "13.0", "backend": "cuda", "date": "2026-01-02", "commit": "c"}
EMULATED = {"device": "a CPU", "backend": "cpu", "date": "2026-01-02", "commit": "c"}
PROGRESSION = {"dtype": "f32", "rows": 1024, "cols": 2048}
SWEEP = [{"dtype": "f16", "rows": 4096, "cols": 512 * i} for i in (2, 3, 4, 8, 16, 31)]
LARGE = [{"dtype": "bf16", "rows": 131072, "cols": cols} for cols in (1024, 2048, 4096)]
RUN = "2026-01-02T10:00:00Z"


def record(name, median, direction=None, problem=(), options=(), roof=2000.0, **fields):
    """One line of a chapter (or, with a direction, of a provider) that needs `median` µs; the roof has
    `roof` GB/s. One of the cpu backend has neither cycles nor a roof. None takes a field away."""
    backward = name.startswith("bwd") or direction == "backward"
    asked = {"kind": "layer", **PROGRESSION, "eps": 1e-5, "seed": 1, "options": dict(options), **dict(problem)}
    moved = asked["rows"] * asked["cols"] * (4 if asked["dtype"] == "f32" else 2) * (3 if backward else 2)
    own = {"provider": name, "run": RUN} if direction else {
        "chapter": name, "predicted_bytes": moved + 8 * asked["cols"], "cycles": int(1800 * median)}
    made = {"schema": 2, **own, "direction": "backward" if backward else "forward", "problem": asked, "l2": "cold",
            "clock": 2, **MADE_BY, "passed": True, "median_us": median, "p10_us": 0.97 * median,
            "p90_us": 1.04 * median, "samples": 31, "operator_bytes": moved, "roof_us": moved / roof / 1e3,
            "roof_bytes": moved, **fields}
    if made["backend"] == "cpu":
        made |= {"cycles": None, "roof_us": None, "roof_bytes": None}
    return {key: value for key, value in made.items() if value is not None}


def records(chapters, **fields):
    """Each chapter on a few problems, a third faster than the chapter before it; the last is fused."""
    made = []
    for place, chapter in enumerate(chapters):
        for problem in [PROGRESSION, *SWEEP, *LARGE]:
            time = problem["rows"] * problem["cols"] / 1e6 * (800 if place == 0 else 40 * 0.75**place)
            made.append(record(chapter, round(time, 2), problem=problem, **fields))
        if place > 1:
            made += [record(chapter, 30.0 + size, options={"group": size}, **fields) for size in (1, 16, 512)]
    options = {"dropout": 0.1, "residual": "same", "prenorm": True}
    return made + [record(chapters[-1], 1000.0, problem=LARGE[0], options=options, parts_us=1500.0,
                          parts_bytes=2 * 10**9, **fields)]


def profile(chapter, **fields):
    metrics = {"dram__bytes_read.sum": 9 * 10**6, "dram__bytes_write.sum": 10**5, "gpu__time_duration.sum": 9000,
               "lts__t_sectors_op_read.sum": 10**6, "lts__t_sectors_op_write.sum": 10**5,
               "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio": 21.5,
               "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio": 1.5}
    problem = {"kind": "layer", **PROGRESSION, "options": {}}
    return {"schema": 2, "chapter": chapter, "direction": "backward" if chapter.startswith("bwd") else "forward",
            "problem": problem, "l2": "cold", **MADE_BY, "run": RUN, "kernel": "k", "predicted_bytes": 16801792,
            "metrics": metrics, **fields}


def peer(provider, direction, median, **fields):
    """A line of compare_peers.py."""
    return record(provider, median, direction, **fields)


def training(dtype, seeds=3, norms=("torch.compile", "enable()", "chapters", "chapters-memory-efficient"), **fields):
    """A run of gpt_training.py with one type: with each seed torch, torch reordered, then the other norms."""
    noise, made = {"f32": 2e-3, "bf16": 2e-2}[dtype], []
    orders = [("torch", "as it is"), ("torch", "reversed"), *((norm, "as it is") for norm in norms)]
    for seed in range(1, seeds + 1):
        for place, (norm, order) in enumerate(orders):
            last = 2.4 + 0.1 * seed + noise * random.Random(10 * seed + place).uniform(0.1, 1) * (-1) ** seed * bool(place)
            times = {"step_us": 41234.0 - 1000 * place, "graph_us": 40123.0 - 900 * place,
                     "peak_bytes": 6_543_210_000 - 10**8 * place} if seed == 1 and order == "as it is" else {}
            curve = {"losses": [round(last + math.exp(-step), 4) for step in range(60)]} if seed == 1 else {}
            made.append({"schema": 2, **MADE_BY, "run": RUN, "training": norm, "order": order, "seed": seed, "dtype": dtype,
                         "kind": "layer", "steps": 60, "width": 768, "layers": 6, "batch": 16, "context": 512,
                         "entropy": 1.8 + 0.01 * seed, "last": round(last, 6), **times, **curve, **fields})
    return made


def catalogue(roads=(), **chapters):
    """The text of chapters.json with these: id=(directory, title) or id=(directory, title, group); `roads`:
    {id: (parent, road)} of those that are not the first of a main line."""
    listed = [{"id": identifier, "file": f"chapters/{directory}/kernel.cu", "title": title, "group": "".join(group),
               "teaches": f"what {identifier} teaches", "before": "",
               **dict(zip(("parent", "road"), dict(roads).get(identifier, ("", "main line"))))}
              for identifier, (directory, title, *group) in chapters.items()]
    return json.dumps({"version": "0", "chapters": listed, "library": [], "types": [], "dispatch": []})


def jsonl(*entries):
    return "".join(json.dumps(entry) + "\n" for entry in entries)


class Repository:
    """A small repository of made-up chapters and records, in a directory of a test's own."""

    def __init__(self, root):
        self.root = root

    def write(self, name, *entries):
        """A file of these records, or of a text."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(entries[0] if entries and isinstance(entries[0], str) else jsonl(*entries), encoding="utf-8")
        return path

    def text(self, name="README.md"):
        return (self.root / name).read_text(encoding="utf-8").replace("\u202f", " ")

    def list_chapters(self, roads=(), **chapters):
        """chapters.json with these, as of catalogue(), and their files."""
        for directory, *_ in chapters.values():
            self.write(f"chapters/{directory}/kernel.cu", "")
        self.write("notebooks/data/chapters.json", catalogue(roads, **chapters))
