#!/usr/bin/env python3
"""Trains a small GPT with PyTorch's norms, and with this project's in their place.

    make library && python3 common/bench/gpt_training.py           # bf16 and f32
    python3 common/bench/gpt_training.py --kind rms --dtype bf16
    python3 common/bench/gpt_training.py --steps 20 --width 64 --heads 4 --layers 2 --batch 4 --context 32

Seed, data and everything but the norms are the same in all runs. The text is a Markov chain of order
two, made from a fixed seed; its entropy is the least loss that a model can reach. Weights are of one
type, bf16 or f32, without autocast; of bf16 ones the optimizer keeps float copies.

Rounding alone makes two runs part, so equal curves cannot be asked for. How far apart is estimated by
PyTorch itself: it trains three times on the same batches, but with their sequences in reverse order,
and in two halves whose gradients are added. The mathematics is the same, the order of every sum over
the batch is not. The noise is the largest root mean square, over the steps, of the difference of two
of these three loss curves; a run agrees if its own difference from PyTorch's is at most three times
that. Prints, and appends to --json: losses, the median step, peak memory; and the median step as one
CUDA graph, in which the host, which has every kernel to launch, no longer counts. Exit status 1: no
agreement.
"""

import argparse
import functools
import gc
import itertools
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from compare_peers import Journal, made_by, positive
from measurements import AGREES, SCHEMA
from peers import DTYPES, KINDS, quantile, rounded
from torch import nn

ROOT = Path(__file__).resolve().parents[2]
JSON = ROOT / "notebooks/data/local_training.jsonl"
sys.path.insert(0, str(ROOT / "common/python"))  # layernorm_chapters
VOCABULARY = 64
UNTIMED = 10  # first steps, which compile kernels and find memory
REPLAYS = 50  # of the step as a CUDA graph


def markov_text(sequences, length, seed=0):
    """[sequences, length] symbols, each drawn by the two before it, and the entropy of a symbol."""
    generator = torch.Generator().manual_seed(seed)
    one, two = 2 * torch.randn(2, VOCABULARY, VOCABULARY, generator=generator)
    odds = torch.softmax(two[:, None] + one, -1)  # [symbol before that before, symbol before, symbol]
    upper = odds.cumsum(-1)
    text = torch.randint(VOCABULARY, (sequences, length), generator=generator)
    for at in range(2, length):
        draw = torch.rand(sequences, 1, generator=generator)
        text[:, at] = (draw > upper[text[:, at - 2], text[:, at - 1]]).sum(-1).clamp_max(VOCABULARY - 1)
    seen = odds[text[:, :-2], text[:, 1:-1]]
    return text, float(-(seen * seen.clamp_min(1e-12).log()).sum(-1).mean())


class Block(nn.Module):
    def __init__(self, width, heads, norm):
        super().__init__()
        self.heads, self.norms = heads, nn.ModuleList([norm(width), norm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        heads = self.qkv(self.norms[0](x)).view(batch, length, 3 * self.heads, -1).transpose(1, 2).chunk(3, 1)
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class GPT(nn.Module):
    def __init__(self, options, norm):
        super().__init__()
        self.symbols = nn.Embedding(VOCABULARY, options.width)
        self.places = nn.Embedding(options.context, options.width)
        self.blocks = nn.ModuleList(Block(options.width, options.heads, norm) for _ in range(options.layers))
        self.last, self.head = norm(options.width), nn.Linear(options.width, VOCABULARY, bias=False)
        for name, parameter in self.named_parameters():  # GPT-2's: small weights, norms as they are
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, text):
        x = self.symbols(text) + self.places.weight[:text.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.last(x))


def norms(kind):
    """{name: norm(width) -> module}: PyTorch's, compiled, and this project's."""
    plain = nn.LayerNorm if kind == "layer" else lambda width: nn.RMSNorm(width, eps=1e-5)
    found = {"torch": plain}
    if torch.cuda.is_available():
        found["torch.compile"] = lambda width: torch.compile(plain(width), dynamic=False)
    try:
        import layernorm_chapters as ours
        ours.chapters()  # loads the library
    except (ImportError, RuntimeError) as error:
        print(f"Without this project's norms: {error}")
        return found
    own = functools.partial(ours.LayerNorm if kind == "layer" else ours.RMSNorm, eps=1e-5)
    return found | {"chapters": own, "chapters-memory-efficient": functools.partial(own, memory_efficient=True)}


def train(options, dtype, norm, batches, order="as it is"):
    """Losses of all steps; on a GPU the median step in µs, the same in a CUDA graph, and peak bytes.
    `order`: of a batch's sums."""
    device = batches.device
    gc.collect()  # the model before this one
    torch.manual_seed(1)
    model = GPT(options, norm).to(device, dtype)
    parameters = list(model.parameters())
    masters = parameters if dtype == torch.float32 else [p.detach().float() for p in parameters]
    losses, gpu = torch.zeros(options.steps, device=device), device.type == "cuda"
    optimizer = torch.optim.AdamW(masters, lr=options.rate, betas=(0.9, 0.95), weight_decay=0.1, capturable=gpu)

    def step(batch, loss_of_batch):
        parts = {"as it is": [batch], "reversed": [batch.flip(0)], "in halves": batch.chunk(2)}[order]
        for parameter in parameters:
            parameter.grad = None
        for part in parts:
            loss = F.cross_entropy(model(part[:, :-1]).float().flatten(0, 1), part[:, 1:].flatten()) / len(parts)
            loss.backward()
            loss_of_batch += loss.detach()
        for master, parameter in zip(masters, parameters):
            master.grad = parameter.grad.float()
        nn.utils.clip_grad_norm_(masters, 1.0)
        optimizer.step()
        if masters is not parameters:
            torch._foreach_copy_([parameter.detach() for parameter in parameters], masters)

    if not gpu:
        for batch, loss in zip(batches, losses):
            step(batch, loss)
        return {"losses": curve_of(losses)}
    torch.compiler.reset()
    torch.cuda.reset_peak_memory_stats()
    eager = median_us([functools.partial(step, batch, loss) for batch, loss in zip(batches, losses)])
    run = {"losses": curve_of(losses), "step_us": eager, "peak_bytes": torch.cuda.max_memory_allocated()}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(batches[0], torch.zeros((), device=device))
    return run | {"graph_us": median_us([graph.replay] * REPLAYS)}


def curve_of(losses):
    return [rounded(loss, 7) for loss in losses.tolist()]  # waits for the device


def median_us(calls):
    """The median time from one call's end to the next's, by events: the host waits for none of them."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(len(calls) + 1)]
    marks[0].record()
    for call, mark in zip(calls, marks[1:]):
        call()
        mark.record()
    torch.cuda.synchronize()
    times = [1e3 * before.elapsed_time(after) for before, after in itertools.pairwise(marks)]
    return rounded(quantile(times[UNTIMED:] or times, 0.5), 5)


def apart(a, b):
    """The root mean square of the difference of two curves."""
    return (sum((x - y) ** 2 for x, y in zip(a, b)) / len(a)) ** 0.5


def noise_of(curves):
    return max(apart(a, b) for a, b in itertools.combinations(curves, 2))


def compare(options, dtype, device, journal, made):
    """All runs of one type. Returns the names of those that do not agree."""
    text, entropy = markov_text(options.steps * options.batch, options.context + 1)
    batches = text.view(options.steps, options.batch, -1).to(device)
    models, curves, failed = norms(options.kind), [], []
    print(f"{dtype}, {options.kind} norm, {options.steps} steps; the text's entropy is {entropy:.3f}")
    print(f"{'norms':34}{'last loss':>10}{'from torch':>12}{'step, ms':>10}{'in a graph':>12}{'peak, MB':>10}")
    if device.type == "cuda":  # what cuBLAS keeps from its first use on would count for the first run only
        train(options, getattr(torch, DTYPES[dtype]), models["torch"], batches[:2])
    runs = [("torch", order) for order in ("as it is", "reversed", "in halves")]
    for name, order in runs + [(name, "as it is") for name in models if name != "torch"]:
        run = train(options, getattr(torch, DTYPES[dtype]), models[name], batches, order)
        if name == "torch":
            curves.append(run["losses"])
        distance, noise = apart(run["losses"], curves[0]), noise_of(curves) if len(curves) > 2 else None
        agrees = None if name == "torch" else distance <= AGREES * noise
        failed += [f"{name}, {dtype}"] if agrees is False else []
        model = {key: getattr(options, key) for key in ("kind", "width", "layers", "batch", "context")}
        more = {} if agrees is None else {"noise": rounded(noise, 3), "agrees": agrees}
        journal.add({"schema": SCHEMA, "training": name, "order": order, "dtype": dtype, **made, **model,
                     "entropy": rounded(entropy, 5), "distance": rounded(distance, 3), **more, **run})
        last = run["losses"][-options.steps // 10:]
        print(f"{name + ('' if order == 'as it is' else ', ' + order):34}{sum(last) / len(last):10.4f}{distance:12.2e}"
              + (f"{run['step_us'] / 1e3:10.2f}{run['graph_us'] / 1e3:12.2f}{run['peak_bytes'] / 1e6:10.0f}"
                 if "step_us" in run else "")
              + ("   does not agree" if agrees is False else ""), flush=True)
    print(f"The noise is {noise_of(curves):.2e}; a run agrees up to {AGREES} times that.\n")
    return failed


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=DTYPES, help="default: bf16, then f32")
    parser.add_argument("--kind", choices=KINDS, default="layer")
    for name, value in (("steps", 300), ("width", 768), ("layers", 6), ("heads", 12), ("batch", 16), ("context", 512)):
        parser.add_argument(f"--{name}", type=positive(int), default=value, help=f"({value})")
    parser.add_argument("--rate", type=positive(float), default=6e-4, help="of learning (0.0006)")
    parser.add_argument("--json", type=Path, default=JSON, help="losses, times and memory are appended to it")
    options = parser.parse_args(argv)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    journal, made = Journal(options.json), made_by(torch, {"torch": torch.__version__.split("+")[0]})
    failed = [name for dtype in ([options.dtype] if options.dtype else ("bf16", "f32"))
              for name in compare(options, dtype, device, journal, made)]
    print(f"Further from PyTorch than its noise allows: {'; '.join(failed) or 'none'}.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
