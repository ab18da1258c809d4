"""Made-up measurements for the tests, of as many chapters as a test wants."""

import json
import math
import random

DEVICE = "NVIDIA H100 80GB HBM3"
HEADER = {"device": DEVICE, "driver": "1", "cuda": "13.0", "backend": "cuda", "date": "2026-01-02", "commit": "c"}
EMULATED = {"device": "a CPU", "backend": "cpu", "date": "2026-01-02", "commit": "c"}
PROGRESSION = {"dtype": "f32", "rows": 1024, "cols": 2048}
SWEEP = [{"dtype": "f16", "rows": 4096, "cols": 512 * i} for i in (2, 3, 4, 8, 16, 31)]
LARGE = [{"dtype": "bf16", "rows": 131072, "cols": cols} for cols in (1024, 2048, 4096)]


def record(chapter, median, **fields):
    """One record; a record of the cpu backend has neither cycles nor GB/s."""
    backward = chapter.startswith("bwd")
    made = {"chapter": chapter, "direction": "backward" if backward else "forward", "kind": "layer", **PROGRESSION,
            "affine": True, "backend": "cuda", "passed": True, "median_us": median, "p10_us": 0.97 * median,
            "p90_us": 1.04 * median, "samples": 31, **fields}
    moved = made["rows"] * made["cols"] * (4 if made["dtype"] == "f32" else 2) * (3 if backward else 2)
    made["predicted_bytes"] = moved + 8 * made["cols"]
    if made["backend"] == "cuda":
        made = {"cycles": int(1800 * median), "gbps": moved / median / 1e3, "roof_gbps": 2000.0, **made}
    return made


def records(chapters, backend="cuda"):
    """Each chapter on a few problems, a third faster than the chapter before it; the last is fused."""
    made = []
    for place, chapter in enumerate(chapters):
        for problem in [PROGRESSION, *SWEEP, *LARGE]:
            time = problem["rows"] * problem["cols"] / 1e6 * (800 if place == 0 else 40 * 0.75**place)
            made.append(record(chapter, round(time, 2), backend=backend, **problem))
        if place > 1:
            made += [record(chapter, 30.0 + size, backend=backend, variant=f"group {size}") for size in (1, 16, 512)]
    fused = {"variant": "dropout 0.1, residual, prenorm", "parts_us": 1500.0, "parts_bytes": 2 * 10**9}
    return made + [record(chapters[-1], 1000.0, backend=backend, **LARGE[0], **fused)]


def profile(chapter):
    metrics = {"dram__bytes_read.sum": 9 * 10**6, "dram__bytes_write.sum": 10**5, "gpu__time_duration.sum": 9000,
               "lts__t_sectors_op_read.sum": 10**6, "lts__t_sectors_op_write.sum": 10**5,
               "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio": 21.5,
               "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio": 1.5}
    return {"chapter": chapter, "kernel": "k", "kind": "layer", **PROGRESSION, "affine": True,
            "predicted_bytes": 16801792, "metrics": metrics}


def peer(provider, direction, median, **fields):
    return {"provider": provider, "direction": direction, "kind": "layer", **PROGRESSION, "median_us": median, **fields}


def training(dtype, steps=60, norms=("torch.compile", "chapters", "chapters-memory-efficient"), **fields):
    """A run of gpt_training.py with one type: torch's in three orders, then the other norms'."""
    noise, made, torch = {"f32": 2e-5, "bf16": 3e-3}[dtype], [], []
    orders = [("torch", order) for order in ("as it is", "reversed", "in halves")]
    for seed, (norm, order) in enumerate(orders + [(norm, "as it is") for norm in norms]):
        draw, part = random.Random(seed), 0.0
        losses = []
        for step in range(steps):
            part = 0.9 * part + noise * draw.gauss(0, 0.4) * bool(seed)
            losses.append(round(1.9 + 2.2 * math.exp(-5 * step / steps) + part, 7))
        torch = torch or losses
        distance = (sum((a - b) ** 2 for a, b in zip(losses, torch)) / steps) ** 0.5
        told = {} if norm == "torch" else {"noise": noise, "agrees": True}
        made.append({"training": norm, "order": order, "dtype": dtype, "kind": "layer", "width": 768, "layers": 6,
                     "batch": 16, "context": 512, "entropy": 1.8017, "distance": float(f"{distance:.3g}"), **told,
                     "losses": losses, "step_us": 41234.0 - 1000 * seed,
                     "graph_us": 40123.0 - 900 * seed, "peak_bytes": 6_543_210_000 - 10**8 * seed,
                     **fields})
    return made


def jsonl(*entries):
    return "".join(json.dumps(entry) + "\n" for entry in entries)
