#!/usr/bin/env python3
"""Trains a small GPT with PyTorch's norms, and with this project's in their place.

    make library && python3 -m common.campaign.gpt_training           # bf16 and f32, five seeds
    python3 -m common.campaign.gpt_training --kind rms --dtype bf16 --seeds 3
    python3 -m common.campaign.gpt_training --steps 20 --width 64 --heads 4 --layers 2 --batch 4 --context 32 --seeds 2

The text is a Markov chain of order two, always the same one; its entropy is the least loss that a model can
reach. A seed makes the model's first weights and draws the text. With each seed every norm trains from these
weights on this text: PyTorch's, torch.compile's of it (on a GPU), PyTorch's own modules with this project's
kernels behind them (enable()), this project's modules, and these memory-efficient. Weights are of one type,
bf16 or f32, without autocast; of bf16 ones the optimizer keeps float copies.

Rounding alone makes two trainings part, so equal losses cannot be asked for. How far it takes them PyTorch
itself shows: with each seed it trains once more, the sequences of each batch in reverse order. The mathematics
is the same, the order of every sum over the batch is not. What is compared is the last loss, the mean over the
last tenth of the steps, less that of torch with the same seed.

The rule: a norm agrees if the mean of its differences, over the seeds, is no farther from zero than reordering
takes torch with any one seed. A norm that only rounds in another way has differences like those of the
reordered torch, now up, now down; their mean is smaller than a single one, so it passes: of a hundred
such norms two fail, with five seeds (with two seeds twenty, so take five). A norm that pulls all seeds one
way, and farther than the order of a sum does, fails. What is smaller passes unseen; how much that may be, the
95 % interval of the mean says, which is printed beside it. A loss that is no number never agrees.

On a GPU a training begins with eager steps and goes on as a CUDA graph of the step, in which the host, which
has every kernel to launch, no longer counts. The first seed takes 100 eager steps and tells the median step of
each kind and the peak memory of the eager ones. Each training is appended to --json as it ends, seed by seed:
of a run that is cut short the seeds count that all norms have. Exit status 1: a norm does not agree.
"""

import argparse
import contextlib
import functools
import gc
import itertools
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from common.bench.compare_peers import Journal, Progress, made_by, positive
from common.results.peers import DTYPES, KINDS, quantile, rounded
from common.results import seeds
from common.results.problems import ROOT
from common.results.records import MISSING, SCHEMA

JSON = ROOT / "notebooks/data/local_training.jsonl"
VOCABULARY = 64
ENABLE = "enable()"
UNTIMED = 10  # first steps, which compile kernels and find memory
EAGER = 100  # steps before the graph where the eager step is timed; elsewhere UNTIMED


@functools.lru_cache(maxsize=8)  # of all seeds, for the second type
def markov_text(sequences, length, seed):
    """[sequences, length] symbols, each drawn by the two before it, and the entropy of a symbol. The chain is always
    the same; `seed` draws from it."""
    chain, generator = torch.Generator().manual_seed(0), torch.Generator().manual_seed(seed)
    one, two = 2 * torch.randn(2, VOCABULARY, VOCABULARY, generator=chain)
    odds = torch.softmax(two[:, None] + one, -1)  # [symbol before that before, symbol before, symbol]
    upper = odds.cumsum(-1)
    text = torch.randint(VOCABULARY, (sequences, length), generator=generator)
    for at in range(2, length):
        draw = torch.rand(sequences, 1, generator=generator)
        text[:, at] = (draw > upper[text[:, at - 2], text[:, at - 1]]).sum(-1).clamp_max(VOCABULARY - 1)
    entropies = -(odds * odds.clamp_min(1e-12).log()).sum(-1)
    return text, float(entropies[text[:, :-2], text[:, 1:-1]].mean())


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
    return found | {ENABLE: plain, "chapters": own,
                    "chapters-memory-efficient": functools.partial(own, memory_efficient=True)}


def kernels_of(name):
    """In which a norm trains: for ENABLE this project's kernels are behind PyTorch's own norms, and gone afterwards."""
    if name != ENABLE:
        return contextlib.nullcontext()
    import layernorm_chapters as ours
    return ours.enabled()


def train(options, dtype, norm, batches, seed, timed=False):
    """Losses of all steps; on a GPU, if `timed`, the median eager step in µs, that in a CUDA graph, and the peak bytes
    of the eager ones."""
    device, steps = batches.device, len(batches)
    gc.collect()  # the model before this one
    torch.manual_seed(seed)
    model = GPT(options, norm).to(device, dtype)
    parameters = list(model.parameters())
    masters = parameters if dtype == torch.float32 else [p.detach().float() for p in parameters]
    gpu, losses = device.type == "cuda", torch.zeros(steps, device=device)
    optimizer = torch.optim.AdamW(masters, lr=options.rate, betas=(0.9, 0.95), weight_decay=0.1, capturable=gpu)
    batch, loss_of_batch = torch.zeros_like(batches[0]), torch.zeros((), device=device)  # where a graph looks for them

    def step():
        for parameter in parameters:
            parameter.grad = None
        loss = F.cross_entropy(model(batch[:, :-1]).float().flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        loss_of_batch.copy_(loss.detach())
        for master, parameter in zip(masters, parameters):
            master.grad = parameter.grad.float()
        nn.utils.clip_grad_norm_(masters, 1.0)
        optimizer.step()
        if masters is not parameters:
            torch._foreach_copy_([parameter.detach() for parameter in parameters], masters)

    def train_on(at, run):
        batch.copy_(batches[at])
        run()
        losses[at].copy_(loss_of_batch)

    if not gpu:
        for at in range(steps):
            train_on(at, step)
        return {"losses": losses.tolist()}
    torch.compiler.reset()
    torch.cuda.reset_peak_memory_stats()
    eager = min(EAGER if timed else UNTIMED, -(-steps // 2))
    step_us = median_us([functools.partial(train_on, at, step) for at in range(eager)])
    peak, graph = torch.cuda.max_memory_allocated(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # records the step, and takes none
        step()
    graph_us = median_us([functools.partial(train_on, at, graph.replay) for at in range(eager, steps)])
    times = {"step_us": step_us, "graph_us": graph_us, "peak_bytes": peak} if timed else {}
    return {"losses": losses.tolist(), **times}


def median_us(calls):
    """The median time from one call's end to the next's, by events: the host waits for none of them. None of none."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(len(calls) + 1)]
    marks[0].record()
    for call, mark in zip(calls, marks[1:]):
        call()
        mark.record()
    torch.cuda.synchronize()
    times = [1e3 * before.elapsed_time(after) for before, after in itertools.pairwise(marks)]
    return rounded(quantile(times[UNTIMED:] or times, 0.5), 5) if times else None


def last_of(losses):
    """Their mean over the last tenth of the steps."""
    own = losses[-max(1, len(losses) // 10):]
    return sum(own) / len(own)


def train_all(options, dtype, device, models, journal, made, progress):
    """Each norm, and torch reordered, with each seed; each training becomes a record."""
    runs = [seeds.TORCH, seeds.REORDERED, *((name, "as it is") for name in models if name != "torch")]
    asked = {key: getattr(options, key) for key in ("kind", "steps", "width", "layers", "batch", "context")}
    for seed in range(1, options.seeds + 1):
        text, entropy = markov_text(options.steps * options.batch, options.context + 1, seed)
        batches = text.view(options.steps, options.batch, -1).to(device)
        if seed == 1 and device.type == "cuda":  # what cuBLAS keeps from its first use on would count for the first run
            train(options, getattr(torch, DTYPES[dtype]), models["torch"], batches[:2], seed)
        for name, order in runs:
            progress.step(f"{dtype}, seed {seed} of {options.seeds}", f"{name}, {order}")
            first, given = seed == 1, batches if order == "as it is" else batches.flip(1)
            with kernels_of(name):
                run = train(options, getattr(torch, DTYPES[dtype]), models[name], given, seed,
                            timed=first and order == "as it is")
            losses = run.pop("losses")
            curve = {"losses": [rounded(loss, 5) for loss in losses]} if first else {}
            journal.add({"schema": SCHEMA, "training": name, "order": order, "seed": seed, "dtype": dtype, **made,
                         **asked, "entropy": rounded(entropy, 5), "last": rounded(last_of(losses), 9), **run, **curve})


def report(records, options):
    """Prints what each norm did, of one type. Returns the names of those that do not agree."""
    lasts, failed = seeds.last_losses(records), []
    away = {name: seeds.difference(lasts, name) for name in lasts}
    dtype, entropy = records[0]["dtype"], records[0]["entropy"]
    widths = {"last loss": 10, "less torch, 95 %": 24, "most": 10, "step, ms": 10, "in a graph": 12, "peak, MB": 10}
    print(f"{dtype}, {options.kind} norm, {options.steps} steps, {options.seeds} seeds; "
          f"the text's entropy is {entropy:.3f}")
    print(f"{'norms':28}" + "".join(f"{head:>{width}}" for head, width in widths.items()))
    for name, own in away.items():
        first = next(record for record in records if (record["training"], record["order"]) == name)
        last, far = list(lasts[name].values()), name[0] != "torch" and not seeds.agrees(own, away[seeds.REORDERED])
        cells = ["no number" if None in last else f"{sum(last) / len(last):.4f}", MISSING, MISSING]
        if name != seeds.TORCH and own.mean is not None:
            cells[1:] = [f"{own.mean:+.2e} ± {own.margin:.2e}", f"{own.most:.2e}"]
        cells += [f"{first[key] / unit:.{digits}f}" if first.get(key) else MISSING
                  for key, unit, digits in (("step_us", 1e3, 2), ("graph_us", 1e3, 2), ("peak_bytes", 1e6, 0))]
        words = name[0] + ("" if name[1] == "as it is" else f", {name[1]}")
        print(f"{words:28}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths.values()))
              + "   does not agree" * far)
        failed += [f"{words}, {dtype}"] if far else []
    print("most: of one seed. A norm agrees if its mean is no farther from 0 than the reordered torch's most.\n",
          flush=True)
    return failed


def more_than_one(text):
    number = positive(int)(text)
    if number < 2:
        raise argparse.ArgumentTypeError("one training does not tell a norm from its rounding: at least 2")
    return number


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=DTYPES, help="default: bf16, then f32")
    parser.add_argument("--kind", choices=KINDS, default="layer")
    for name, value in (("steps", 300), ("width", 768), ("layers", 6), ("heads", 12), ("batch", 16), ("context", 512)):
        parser.add_argument(f"--{name}", type=positive(int), default=value, help=f"({value})")
    parser.add_argument("--seeds", type=more_than_one, default=5, help="(5) at least 2; every norm trains with each")
    parser.add_argument("--rate", type=positive(float), default=6e-4, help="of learning (0.0006)")
    parser.add_argument("--json", type=Path, default=JSON, help="losses, times and memory are appended to it")
    options = parser.parse_args(argv)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    journal, made = Journal(options.json), made_by(torch, {"torch": torch.__version__.split("+")[0]})
    models, dtypes, failed = norms(options.kind), [options.dtype] if options.dtype else ["bf16", "f32"], []
    progress = Progress(len(dtypes) * options.seeds * (len(models) + 1))
    for dtype in dtypes:
        train_all(options, dtype, device, models, journal, made, progress)
        progress.end()
        failed += report([record for record in journal.records if record["dtype"] == dtype], options)
    print(f"Farther from PyTorch than another order of its sums takes it: {'; '.join(failed) or 'none'}.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
