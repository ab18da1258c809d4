"""The roof of a problem, and results checked against double precision, on a GPU. Needs PyTorch."""

import gc
import math
from typing import NamedTuple

import torch

from common.results.peers import LIMITS, bytes_of

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

def synchronize():
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def free_memory():
    gc.collect()  # a package's own cycles may hold tensors
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


# --- The roof ---

if triton:
    @triton.jit
    def stream_kernel(a, b, c, count, two: tl.constexpr, block: tl.constexpr):
        at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
        value = tl.load(a + at, mask=at < count)
        if two:
            value += tl.load(b + at, mask=at < count)
        tl.store(c + at, value, mask=at < count)


def triton_stream(block):
    def launch(a, b, c):
        words = [None if t is None else in_words(t) for t in (a, b, c)]
        count = words[0].numel()
        stream_kernel[(triton.cdiv(count, block),)](*words, count, two=b is not None, block=block)
    return launch


def in_words(tensor):
    """As floats; of an odd number of 16-bit numbers the last is left out."""
    flat = tensor.view(-1)
    return flat[:flat.numel() * flat.element_size() // 4 * 4 // flat.element_size()].view(torch.float32)


def torch_stream(a, b, c):
    if b is None:
        c.copy_(a)
    else:
        torch.add(a, b, out=c)


class Roof(NamedTuple):
    us: float
    bytes: int  # that it moves


def roof(clock, direction, inputs):
    """The fastest copy (forward) or triad (backward) of tensors of this size: PyTorch's, or Triton's
    in tiles of some size. None marks what it loads, so the same tensors serve each sample."""
    a, c = inputs.x, torch.empty_like(inputs.x)
    b = inputs.dy if direction == "backward" else None
    kernels = [torch_stream]
    if triton:
        kernels += [triton_stream(block) for block in (1024, 2048, 4096)]
    for kernel in kernels:
        kernel(a, b, c)
    us = min(clock.median(lambda kernel=kernel: kernel(a, b, c)) for kernel in kernels)
    return Roof(us, bytes_of(*(tensor for tensor in (a, b, c) if tensor is not None)))


# --- The reference ---


class Check(NamedTuple):
    rel_err: float  # in norm, of the worst output
    passed: bool
    why: str  # which output, and how wrong; empty where it passed


def chunks(rows, cols, elements=1 << 25):
    """Rows in slices, so that their doubles fit beside everything else."""
    step = max(1, elements // cols)
    return [slice(first, min(first + step, rows)) for first in range(0, rows, step)]


def statistics(inputs, rows):
    """xhat and rstd of some rows, in double. From y where the pass starts from it."""
    if inputs.y is not None:
        bias = 0 if inputs.bias is None else inputs.bias.double()
        return (inputs.y[rows].double() - bias) / inputs.weight.double(), inputs.rstd[rows].double()[:, None]
    x = inputs.x[rows].double()
    if inputs.kind == "layer":
        x = x - x.mean(1, keepdim=True)
    rstd = torch.rsqrt((x * x).mean(1, keepdim=True) + inputs.eps)
    return x * rstd, rstd


def forward_reference(inputs, rows):
    xhat, _ = statistics(inputs, rows)
    y = xhat * inputs.weight.double()
    return y if inputs.bias is None else y + inputs.bias.double()


def backward_reference(inputs, rows):
    """dx of some rows, and their share of dweight and dbias."""
    xhat, rstd = statistics(inputs, rows)
    dy = inputs.dy[rows].double()
    wdy = dy * inputs.weight.double()
    dx = wdy - xhat * (wdy * xhat).mean(1, keepdim=True)
    if inputs.kind == "layer":
        dx -= wdy.mean(1, keepdim=True)
    return dx * rstd, (dy * xhat).sum(0), dy.sum(0)


class Difference:
    """The relative error in norm of a tensor that comes row by row, and that of its worst row."""

    def __init__(self):
        self.error = self.size = 0.0
        self.worst_row = 0.0

    def add(self, ours, reference):
        error = (ours.double() - reference).square().sum(-1)
        size = reference.square().sum(-1)
        self.error += float(error.sum())
        self.size += float(size.sum())
        worst = float((error / size.clamp_min(1e-300)).max())
        self.worst_row = max(self.worst_row, worst) if worst == worst else math.nan

    @property
    def relative(self):
        return math.sqrt(self.error / self.size) if self.size else 0.0


ROW_FACTOR = 8  # a row of its own may be this much worse than all rows together


@torch.no_grad()
def check(direction, inputs, outputs):
    """Holds outputs, (y,) or (dx, dweight, dbias), against the reference."""
    limit = LIMITS[inputs.dtype]
    first = Difference()
    sums = [0.0, 0.0]
    for rows in chunks(*inputs.x.shape):
        if direction == "forward":
            reference = forward_reference(inputs, rows)
        else:
            reference, *shares = backward_reference(inputs, rows)
            sums = [total + share for total, share in zip(sums, shares)]
        first.add(outputs[0].reshape(inputs.x.shape)[rows], reference)
    found = {"y" if direction == "forward" else "dx": first}
    if direction == "backward":
        names = ["dweight"] + (["dbias"] if inputs.bias is not None else [])
        for name, output, total in zip(names, outputs[1:], sums):
            found[name] = Difference()
            found[name].add(output, total)
    for name, difference in found.items():
        # `not <=` is true of NaN, too.
        if not difference.relative <= limit:
            return Check(difference.relative, False, f"{name} is wrong: relative error {difference.relative:.1e}")
        if not difference.worst_row <= (ROW_FACTOR * limit) ** 2:
            return Check(difference.relative, False,
                         f"{name} is wrong in a row: relative error {math.sqrt(difference.worst_row):.1e}")
    return Check(max(difference.relative for difference in found.values()), True, "")
