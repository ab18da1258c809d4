#!/usr/bin/env python3
"""How long the host needs to call a norm, and how long a transformer's block takes a step.

    make library && python3 common/bench/host_time.py                     # on the GPU; without one, on the CPU
    python3 common/bench/host_time.py --rows 64 --cols 256 --turns 3

A model in eager mode often waits for the host: it checks, allocates and launches, while the GPU has little to do. So a
faster kernel that is called in a slower way makes a model slower. Compared are PyTorch's own norms; the same with
layernorm_chapters.enable(); and this package's modules. The calls: a forward pass without gradients, one with, and both
passes. The GPU's queue is emptied before each batch of calls, and only the host's part is timed; contenders take turns,
and the median turn counts.

The blocks, forward and backward in bf16: a GPT's (layer norm, 768 wide) and a Llama's with QK-norm (RMS norm, 2048
wide, heads of 128). Their step is timed eager and as one CUDA graph, where the host no longer counts; `fused` adds the
residual in the norm's kernel. Prints a table and appends records to --json.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from compare_peers import Journal, made_by, positive
from measurements import SCHEMA
from peers import rounded
from torch import nn

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "common/python"))
import layernorm_chapters as lnc  # noqa: E402

JSON = ROOT / "notebooks/data/local_host.jsonl"
CALLS = 200  # in a batch: the GPU's queue takes a thousand launches before the host has to wait
GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"


def wait():
    if GPU:
        torch.cuda.synchronize()


def rotated(contenders, turn):
    """The contenders, another one first in each turn."""
    items = list(contenders.items())
    at = turn % len(items)
    return items[at:] + items[:at]


# --- A call ---


def norms(kind, cols, dtype):
    """{contender: (module, whether PyTorch's operators are ours)}"""
    theirs = (nn.LayerNorm if kind == "layer" else nn.RMSNorm)(cols, eps=1e-5, device=DEVICE, dtype=dtype)
    ours = (lnc.LayerNorm if kind == "layer" else lnc.RMSNorm)(cols, eps=1e-5, device=DEVICE, dtype=dtype)
    return {"torch": (theirs, False), "enable()": (theirs, True), "ours": (ours, False)}


def passes(module, x, dy):
    """{pass: a function that calls the module once}"""
    wanting = x.detach().requires_grad_()

    def without_gradients():
        with torch.no_grad():
            module(x)

    def both():
        module(wanting).backward(dy)
        module.weight.grad = wanting.grad = None

    return {"forward, no gradients": without_gradients, "forward": lambda: module(wanting), "forward + backward": both}


def batch_us(call):
    wait()
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    end = time.perf_counter()
    wait()
    return 1e6 * (end - start) / CALLS


def compare_calls(kind, options, dtype, journal, made):
    x, dy = torch.randn(2, options.rows, options.cols, device=DEVICE, dtype=dtype)
    contenders = norms(kind, options.cols, dtype)
    for what in passes(contenders["torch"][0], x, dy):
        turns = {name: [] for name in contenders}
        for turn in range(options.turns + 1):
            for name, (module, is_enabled) in rotated(contenders, turn):
                call = passes(module, x, dy)[what]
                (lnc.enable if is_enabled else lnc.disable)()
                took = batch_us(call)
                if turn > 0:  # the first warms up
                    turns[name].append(took)
        lnc.disable()
        torchs = statistics.median(turns["torch"])
        for name, took in turns.items():
            median = statistics.median(took)
            journal.add({"schema": SCHEMA, "host": "call", "contender": name, "pass": what, "kind": kind,
                         "dtype": str(dtype).removeprefix("torch."), "rows": options.rows, "cols": options.cols,
                         "host_us": rounded(median, 4), **made})
            print(f"{kind:6} {what:22} {name:10} {median:8.2f} us of the host   {median / torchs:.2f} x torch",
                  flush=True)


# --- A block ---


class Attention(nn.Module):
    def __init__(self, width, head, norm=None):
        super().__init__()
        self.heads, self.head = width // head, head
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.q_norm, self.k_norm = (norm(head), norm(head)) if norm else (nn.Identity(), nn.Identity())

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, self.head).unbind(2)
        q, k = self.q_norm(q), self.k_norm(k)
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """Two norms before two parts, whose results are added to the stream."""

    def __init__(self, width, head, norm, of_heads=None):
        super().__init__()
        self.norm1, self.norm2 = norm(width), norm(width)
        self.attention = Attention(width, head, of_heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class FusedBlock(Block):
    """The first of its additions happens in the second norm."""

    def forward(self, x):
        y, x = self.norm2(self.attention(self.norm1(x)), x)
        return x + self.mlp(y)


def blocks(model, dtype):
    """{contender: (block, whether PyTorch's operators are ours)}, all with the same weights."""
    width, head = {"gpt": (768, 64), "llama": (2048, 128)}[model]
    layer = model == "gpt"
    of_torch = nn.LayerNorm if layer else nn.RMSNorm
    of_heads = None if layer else of_torch
    made = Block(width, head, of_torch, of_heads).to(DEVICE, dtype)
    replaced = Block(width, head, of_torch, of_heads).to(DEVICE, dtype)
    lnc.replace_norms(replaced)
    fused = FusedBlock(width, head, of_torch, of_heads)
    fused.norm2 = (lnc.FusedAddLayerNorm if layer else lnc.FusedAddRMSNorm)(width)
    lnc.replace_norms(fused.to(DEVICE, dtype))
    for other in (replaced, fused):
        other.load_state_dict(made.state_dict())
    return {"torch": (made, False), "enable()": (made, True), "ours": (replaced, False), "fused": (fused, False)}


def step_of(block, x, dy):
    parameters = [x, *block.parameters()]

    def step():
        torch.autograd.grad(block(x), parameters, dy)

    return step


def step_us(step, calls):
    wait()
    start = time.perf_counter()
    for _ in range(calls):
        step()
    wait()
    return 1e6 * (time.perf_counter() - start) / calls


def as_graph(step):
    """The step as a CUDA graph, captured behind three warm runs on another stream."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def compare_blocks(model, options, dtype, journal, made):
    width = 768 if model == "gpt" else 2048
    contenders = blocks(model, dtype)
    for batch, length in options.blocks:
        x, dy = torch.randn(2, batch, length, width, device=DEVICE, dtype=dtype)
        x.requires_grad_()
        steps, graphs = {}, {}
        for name, (block, is_enabled) in contenders.items():
            (lnc.enable if is_enabled else lnc.disable)()
            steps[name] = step_of(block, x, dy)
            if GPU:
                graphs[name] = as_graph(steps[name])
        turns = {name: ([], []) for name in contenders}
        for turn in range(options.turns + 1):
            for name, (_, is_enabled) in rotated(contenders, turn):
                (lnc.enable if is_enabled else lnc.disable)()
                eager = step_us(steps[name], options.steps)
                graph = step_us(graphs[name], options.steps) if GPU else None
                if turn > 0:
                    turns[name][0].append(eager)
                    turns[name][1].append(graph)
        lnc.disable()
        torchs = statistics.median(turns["torch"][0])
        for name, (eager, graph) in turns.items():
            median, of_graph = statistics.median(eager), statistics.median(graph) if GPU else None
            record = {"schema": SCHEMA, "host": "block", "contender": name, "model": model,
                      "dtype": str(dtype).removeprefix("torch."), "batch": batch, "length": length, "width": width,
                      "step_us": rounded(median, 5), **made}
            journal.add(record | ({"graph_us": rounded(of_graph, 5)} if GPU else {}))
            shown = f"   {of_graph:9.1f} us as a graph" if GPU else ""
            print(f"{model:6} {batch:3} x {length:5} x {width:5} {name:10} {median:9.1f} us a step   "
                  f"{median / torchs:.3f} x torch{shown}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=positive(int), default=2048, help="of a call (default: %(default)s)")
    parser.add_argument("--cols", type=positive(int), default=768, help="of a call (default: %(default)s)")
    parser.add_argument("--turns", type=positive(int), default=15,
                        help="that count, of each contender (default: %(default)s)")
    parser.add_argument("--steps", type=positive(int), default=20 if GPU else 2,
                        help="of a block in a turn (default: %(default)s)")
    parser.add_argument("--json", type=Path, default=JSON, metavar="FILE",
                        help="where the records go (default: %(default)s)")
    options = parser.parse_args()
    options.blocks = [(1, 512), (8, 2048)] if GPU else [(1, 64)]
    try:
        lnc.operators.load()
    except lnc.LibraryError as error:
        sys.exit(f"host_time.py: {error}")
    journal, made = Journal(options.json), made_by(torch, {"torch": torch.__version__})
    dtype = torch.bfloat16
    for kind in ("layer", "rms"):
        compare_calls(kind, options, dtype, journal, made)
    for model in ("gpt", "llama"):
        compare_blocks(model, options, dtype, journal, made)


if __name__ == "__main__":
    main()
