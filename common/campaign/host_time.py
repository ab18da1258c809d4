#!/usr/bin/env python3
"""How long the host needs to call a norm, and how long a transformer's block takes a step.

    make library && python3 -m common.campaign.host_time                     # on the GPU; without one, on the CPU
    python3 -m common.campaign.host_time --rows 64 --cols 256 --turns 3
    python3 -m common.campaign.host_time --only blocks

A model in eager mode often waits for the host: it checks, allocates and launches, while the GPU has little to do. So a
faster kernel that is called in a slower way makes a model slower. Compared are PyTorch's own norms; the same with
layernorm_chapters.enable(); and this package's modules. The calls: a forward pass without gradients, one with, and both
passes. The GPU's queue is emptied before each batch of calls, and only the host's part is timed; contenders take turns,
and the median turn counts.

The blocks, forward and backward in bf16: a GPT's (layer norm, 768 wide) and a Llama's with QK-norm (RMS norm, 2048
wide, heads of 128). All but the norms is alike and eager, also where torch.compile or Liger or QuACK makes the norms;
`fused` adds the residual in our norm's kernel. Who is not installed is left out. Who has an output or a gradient that
is farther from float32's than bf16's noise is refused: twice PyTorch's own distance, or twice the type's epsilon. The
step is timed eager and as one CUDA graph, where the host no longer counts; its peak memory is that of a process with
this block alone.

Prints a table and appends records to --json.
"""

import argparse
import copy
import functools
import importlib
import statistics
import sys
import time
from pathlib import Path

import layernorm_chapters as lnc
import torch
import torch.nn.functional as F
from torch import nn

from common.bench.compare_peers import Journal, made_by, positive
from common.bench.peer_providers import PEERS, Unavailable, version
from common.results.peers import bytes_of, rounded
from common.python import from_tree  # noqa: F401  finds layernorm_chapters
from common.results.problems import ROOT
from common.results.records import SCHEMA

JSON = ROOT / "notebooks/data/local_host.jsonl"
CALLS = 200  # in a batch: the GPU's queue takes a thousand launches before the host has to wait
EPS = 1e-5
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
    theirs = (nn.LayerNorm if kind == "layer" else nn.RMSNorm)(cols, eps=EPS, device=DEVICE, dtype=dtype)
    ours = (lnc.LayerNorm if kind == "layer" else lnc.RMSNorm)(cols, eps=EPS, device=DEVICE, dtype=dtype)
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


MODELS = {"gpt": ("layer", 768, 64), "llama": ("rms", 2048, 128)}  # norm, width, and a head's; Llama's have norms, too


def torch_norm(kind):
    return functools.partial(nn.LayerNorm if kind == "layer" else nn.RMSNorm, eps=EPS)


def compiled_norm(kind):
    needs_gpu()
    torch.compiler.reset()  # what it compiled for another model counts towards its limit

    def norm(width):
        made = torch_norm(kind)(width)
        made.compile(dynamic=False)
        return made
    return norm


def liger_norm(kind):
    layer = importlib.import_module("liger_kernel.transformers.layer_norm").LigerLayerNorm
    rms = importlib.import_module("liger_kernel.transformers.rms_norm").LigerRMSNorm
    needs_gpu()
    return functools.partial(layer if kind == "layer" else rms, eps=EPS)


def quack_norm(kind):
    rms = importlib.import_module("quack.rmsnorm").QuackRMSNorm
    needs_gpu()
    if kind == "layer":
        raise Unavailable("its layer norm has no gradients for PyTorch")
    return functools.partial(rms, eps=EPS)


def own_norm(kind):
    return functools.partial(lnc.LayerNorm if kind == "layer" else lnc.RMSNorm, eps=EPS)


def needs_gpu():
    if not GPU:
        raise Unavailable("it needs a GPU")


OTHERS = {"torch.compile": compiled_norm, "liger": liger_norm, "quack": quack_norm}


def other_norms(kind):
    """{contender: norm(width) -> module} of the other packages that are there. Says who is not."""
    found = {}
    for name, load in OTHERS.items():
        try:
            found[name] = load(kind)
        except ImportError as error:
            how = next(provider.how for provider in PEERS if provider.name == name)
            print(f"{name} is left out: {error}; {how}")
        except Unavailable as why:
            print(f"{name} is left out, {kind} norm: {why}")
    return found


def blocks(model, dtype):
    """{contender: (block, whether PyTorch's operators are ours)}, all with the same weights."""
    kind, width, head = MODELS[model]

    def block(norm, of=Block):
        return of(width, head, norm, norm if model == "llama" else None)

    made = block(torch_norm(kind))
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "norm" in name:  # else a norm that forgets its weight gives the same
                parameter += 0.1 * torch.randn_like(parameter)
    others = {name: block(norm) for name, norm in other_norms(kind).items()}
    ours = block(own_norm(kind))
    fused = block(own_norm(kind), FusedBlock)
    fused.norm2 = (lnc.FusedAddLayerNorm if kind == "layer" else lnc.FusedAddRMSNorm)(width, eps=EPS)
    for one in (made, *others.values(), ours, fused):
        one.load_state_dict(made.state_dict())
        one.to(DEVICE, dtype)
    return {"torch": (made, False), **{name: (one, False) for name, one in others.items()},
            "enable()": (made, True), "ours": (ours, False), "fused": (fused, False)}


# --- Whether it is right ---


def results_of(block, x, dy):
    """{name: tensor}: the output, and the gradients of x and of the parameters."""
    y = block(x)
    names = ["x", *(name for name, _ in block.named_parameters())]
    gradients = torch.autograd.grad(y, [x, *block.parameters()], dy)
    return {"its output": y.detach(), **{f"its gradient of {name}": one for name, one in zip(names, gradients)}}


def distances(results, exact):
    """{name: how far a result is from the exact one, relative to its norm}"""
    return {name: float((one.float() - exact[name]).norm() / exact[name].norm().clamp_min(1e-30))
            for name, one in results.items()}


def disagreement(found, noise, dtype):
    """A clause that says which distance is beyond twice the noise, or None. `noise`: torch's own distances."""
    for name, distance in found.items():
        if not distance <= 2 * max(noise[name], torch.finfo(dtype).eps):  # not of NaN either
            return f"{name} is {distance:.1e} from float32's, PyTorch's own {noise[name]:.1e}"
    return None


def first_line(error):
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def right_ones(contenders, x, dy, dtype):
    """The contenders whose results agree with PyTorch's in float32. Says who is refused."""
    def distances_of(block, is_enabled):
        (lnc.enable if is_enabled else lnc.disable)()
        return distances(results_of(block, x, dy), exact)

    own = contenders["torch"][0]
    lnc.disable()
    exact = results_of(copy.deepcopy(own).float(), x.detach().float().requires_grad_(), dy.float())
    noise = distances_of(own, False)
    right = {}
    for name, contender in contenders.items():
        try:
            wrong = disagreement(distances_of(*contender), noise, dtype)
        except Exception as error:  # of whatever package
            wrong = first_line(error)
        if wrong:
            print(f"{name} is refused: {wrong}")
        else:
            right[name] = contender
    lnc.disable()
    return right


# --- Its step ---


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


def graph_of(name, step):
    """The step as a CUDA graph, or None; says why there is none."""
    try:
        return as_graph(step)
    except RuntimeError as error:
        print(f"{name} has no CUDA graph: {first_line(error)}")
        return None


def peak_bytes(step, kept):
    """The most memory that a process with these tensors alone has during a step."""
    step()  # which finds what stays, of cuBLAS for one
    wait()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    wait()
    return torch.cuda.max_memory_allocated() - before + bytes_of(*kept)


def compare_blocks(model, options, dtype, journal, made):
    width = MODELS[model][1]
    everyone = blocks(model, dtype)
    for batch, length in options.blocks:
        x, dy = torch.randn(2, batch, length, width, device=DEVICE, dtype=dtype)
        x.requires_grad_()
        contenders = right_ones(everyone, x, dy, dtype)
        steps, graphs, peaks = {}, {}, {}
        for name, (block, is_enabled) in contenders.items():
            (lnc.enable if is_enabled else lnc.disable)()
            steps[name] = step_of(block, x, dy)
            if GPU:
                peaks[name] = peak_bytes(steps[name], [x, dy, *block.parameters()])
                graphs[name] = graph_of(name, steps[name])
        turns = {name: ([], []) for name in contenders}
        for turn in range(options.turns + 1):
            for name, (_, is_enabled) in rotated(contenders, turn):
                (lnc.enable if is_enabled else lnc.disable)()
                eager = step_us(steps[name], options.steps)
                graph = step_us(graphs[name], options.steps) if graphs.get(name) else None
                if turn > 0:
                    turns[name][0].append(eager)
                    turns[name][1].append(graph)
        lnc.disable()
        torchs = statistics.median(turns["torch"][0])
        for name, (eager, graph) in turns.items():
            median = statistics.median(eager)
            more = {"graph_us": rounded(statistics.median(graph), 5)} if graphs.get(name) else {}
            more |= {"peak_bytes": peaks[name]} if GPU else {}
            journal.add({"schema": SCHEMA, "host": "block", "contender": name, "model": model,
                         "dtype": str(dtype).removeprefix("torch."), "batch": batch, "length": length, "width": width,
                         "step_us": rounded(median, 5), **made, **more})
            shown = f"   {more['graph_us']:9.1f} us as a graph" if "graph_us" in more else ""
            shown += f"   {peaks[name] / 1e6:6.0f} MB" if GPU else ""
            print(f"{model:6} {batch:3} x {length:5} x {width:5} {name:13} {median:9.1f} us a step   "
                  f"{median / torchs:.3f} x torch{shown}", flush=True)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=positive(int), default=2048, help="of a call (default: %(default)s)")
    parser.add_argument("--cols", type=positive(int), default=768, help="of a call (default: %(default)s)")
    parser.add_argument("--turns", type=positive(int), default=15,
                        help="that count, of each contender (default: %(default)s)")
    parser.add_argument("--steps", type=positive(int), default=20 if GPU else 2,
                        help="of a block in a turn (default: %(default)s)")
    parser.add_argument("--json", type=Path, default=JSON, metavar="FILE",
                        help="where the records go (default: %(default)s)")
    parser.add_argument("--only", choices=("calls", "blocks"), help="of the two parts (default: both)")
    options = parser.parse_args(arguments)
    options.blocks = [(1, 512), (8, 2048)] if GPU else [(1, 64)]
    try:
        lnc.operators.load()
    except lnc.LibraryError as error:
        sys.exit(f"host_time.py: {error}")
    packages = {name: version(name) for name in ("triton", "liger-kernel", "quack-kernels")}
    journal, made = Journal(options.json), made_by(torch, {"torch": torch.__version__, **packages})
    dtype = torch.bfloat16
    if options.only != "blocks":
        for kind in ("layer", "rms"):
            compare_calls(kind, options, dtype, journal, made)
    if options.only != "calls":
        for model in MODELS:
            compare_blocks(model, options, dtype, journal, made)


if __name__ == "__main__":
    main()
