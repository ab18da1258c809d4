"""The operators in PyTorch's own operations, for a program that runs where the kernels are not."""

import torch

from .operators import load


def decompositions():
    """{operator: the same in PyTorch's own operations}, of every operator of the package, backward passes too:
    torch.export.export(model, …).run_decompositions(layernorm_chapters.decompositions()), torch.onnx.export.

    The results agree within rounding, and elements that dropout drops are the same.
    """
    operators = load()
    return {operators.norm.default: _norm, operators.norm_backward.default: _norm_backward,
            operators.add_norm.default: _add_norm, operators.add_norm_backward.default: _add_norm_backward,
            operators.add_norm_.default: _add_norm_in_place}


# Each takes what its operator takes (common/python/csrc/operators.cpp); chapter and batch_invariant mean nothing here.

def _over(shape):
    """The dimensions that are normalised over."""
    return [-1 - i for i in range(len(shape))]


def _weight(weight, zero_centred):
    return None if weight is None else weight.float() + 1.0 if zero_centred else weight.float()


def _affine(xhat, weight, bias, zero_centred, dtype):
    y = xhat if weight is None else xhat * _weight(weight, zero_centred)
    return (y if bias is None else y + bias.float()).to(dtype)


def _normalised(x, shape, eps, rms):
    """xhat, and the statistics as the operators have them."""
    z = x.float()
    mean = None if rms else z.mean(_over(shape), keepdim=True)
    centred = z if rms else z - mean
    rstd = (centred.square().mean(_over(shape), keepdim=True) + eps).rsqrt()
    rows = x.shape[:x.dim() - len(shape)]
    statistics = torch.stack([part.reshape(rows) for part in ([rstd] if rms else [mean, rstd])])
    return centred * rstd, statistics


def _norm(x, shape, weight, bias, eps, rms, memory_efficient=False, zero_centred=False, chapter=None,
          backward_chapter=None, batch_invariant=False):
    xhat, statistics = _normalised(x, shape, eps, rms)
    return _affine(xhat, weight, bias, zero_centred, x.dtype), statistics


def _each_row(numbers, shape):
    """A number for each row, beside the dimensions that are normalised over."""
    return numbers.reshape(*numbers.shape, *(1 for _ in shape))


def _over_rows(terms, shape, like):
    """Sums over the rows; of a gradient that is not wanted, a tensor without elements."""
    rows = list(range(terms.dim() - len(shape)))
    return (terms.sum(rows) if rows else terms).to(like)


def _gradient_of_xhat(wdy, xhat, rstd, shape, rms):
    dx = wdy - xhat * (wdy * xhat).mean(_over(shape), keepdim=True)
    if not rms:
        dx = dx - wdy.mean(_over(shape), keepdim=True)
    return dx * rstd


def _norm_backward(dy, saved, shape, weight, bias, statistics, eps, rms, memory_efficient, zero_centred, wants_dweight,
                   wants_dbias, chapter, batch_invariant=False):
    rstd = _each_row(statistics[-1], shape)
    w, g = _weight(weight, zero_centred), dy.float()
    if memory_efficient:
        centred = saved.float() if bias is None else saved.float() - bias.float()
        clamped = None if w is None else torch.where(w.abs() < eps, torch.copysign(torch.full_like(w, eps), w), w)
        xhat = centred if w is None else torch.where(clamped == 0.0, 0.0, centred / clamped)
    else:
        xhat = (saved.float() if rms else saved.float() - _each_row(statistics[0], shape)) * rstd
    wdy = g if w is None else g * w
    # As the kernel has it, c1 holds no division by the weight: that of a small one would cost digits.
    c1 = ((g * centred) if memory_efficient else wdy * xhat).mean(_over(shape), keepdim=True)
    dx = wdy - xhat * c1
    if not rms:
        dx = dx - wdy.mean(_over(shape), keepdim=True)
    none = dy.new_empty(0)
    dweight = _over_rows(g * xhat, shape, dy.dtype if weight is None else weight.dtype) if wants_dweight else none
    dbias = _over_rows(g, shape, dy.dtype if bias is None else bias.dtype) if wants_dbias else none
    return (dx * rstd).to(saved.dtype), dweight, dbias


# --- The fused passes ---


def _high_and_low(word, factor):
    """The words of word · factor, of unsigned words of 32 bits in int64."""
    low, high = word & 0xFFFF, word >> 16
    of_low = low * factor
    of_high = high * factor + (of_low >> 16)
    return of_high >> 16, (of_high << 16 | of_low & 0xFFFF) & 0xFFFFFFFF


def _kept(seeds, shape, probability):
    """Which elements a dropout keeps: Philox with seven rounds of seed and column, as Triton's tl.rand has it."""
    cols = 1
    for size in shape:
        cols = cols * size
    key = (seeds.to(torch.int64) & 0xFFFFFFFF).unsqueeze(-1)
    column = torch.arange(cols, dtype=torch.int64, device=seeds.device)
    c0, c1, c2, c3, other_key = column + torch.zeros_like(key), 0, torch.zeros_like(key), 0, 0
    for _ in range(7):
        high0, low0 = _high_and_low(c0, 0xD2511F53)
        high1, low1 = _high_and_low(c2, 0xCD9E8D57)
        c0, c1, c2, c3 = high1 ^ c1 ^ key, low1, high0 ^ c3 ^ other_key, low0
        key, other_key = (key + 0x9E3779B9) & 0xFFFFFFFF, (other_key + 0xBB67AE85) & 0xFFFFFFFF
    folded = torch.where(c0 >= 2 ** 31, 0xFFFFFFFF - c0, c0)
    uniform = folded.float() * 4.6566127342e-10
    return (uniform > probability).reshape(*seeds.shape, *shape)


def _branch(shape, rowscale, seeds, dropout, rows):
    """What a branch is multiplied by on its way into the sum, and the sum's gradient on its way back."""
    scale = torch.ones((), device=rows.device)
    if seeds is not None:
        scale = _kept(seeds, shape, dropout) / (1.0 - dropout)
    if rowscale is not None:
        scale = scale * _each_row(rowscale.reshape(rows.shape[:rows.dim() - len(shape)]), shape)
    return scale


def _add_norm(x, residual, shape, weight, bias, x1, weight1, bias1, rowscale, rowscale1, seeds, seeds1, dropout, eps,
              rms, zero_centred=False, float_sum=False, chapter=None, backward_chapter=None, batch_invariant=False):
    total = x.float() * _branch(shape, rowscale, seeds, dropout, x)
    if x1 is not None:
        total = total + x1.float() * _branch(shape, rowscale1, seeds1, dropout, x)
    if residual is not None:
        total = total + residual.float()
    total = total.to(torch.float32 if float_sum else x.dtype)
    xhat, statistics = _normalised(total, shape, eps, rms)
    y = _affine(xhat, weight, bias, zero_centred, x.dtype)
    second = weight1 is not None or bias1 is not None
    y1 = _affine(xhat, weight1, bias1, zero_centred, x.dtype) if second else x.new_empty(0)
    return y, total, statistics, y1


def _add_norm_backward(dy, dsum, dy1, total, shape, weight, bias, weight1, bias1, statistics, rowscale, rowscale1,
                       seeds, seeds1, dropout, eps, rms, zero_centred, has_residual, has_x1, chapter, trains=True,
                       batch_invariant=False):
    rstd = _each_row(statistics[-1], shape)
    xhat = (total.float() if rms else total.float() - _each_row(statistics[0], shape)) * rstd
    pairs = [(dy, weight, bias)] + ([] if dy1 is None else [(dy1, weight1, bias1)])
    wdy = sum(g.float() if w is None else g.float() * _weight(w, zero_centred) for g, w, _ in pairs)
    gradient = _gradient_of_xhat(wdy, xhat, rstd, shape, rms)
    if dsum is not None:
        gradient = gradient + dsum.float()
    none = dy.new_empty(0)
    changes = rowscale is not None or seeds is not None
    dx = gradient * _branch(shape, rowscale, seeds, dropout, dy)
    dx1 = gradient * _branch(shape, rowscale1, seeds1, dropout, dy) if has_x1 and changes else none
    own_dresidual = has_residual and (changes or total.dtype != dy.dtype)
    of_pairs = []
    for g, w, b in pairs:
        has_dbias = trains and not rms
        of_pairs.append(_over_rows(g.float() * xhat, shape, dy.dtype if w is None else w.dtype) if trains else none)
        of_pairs.append(_over_rows(g.float(), shape, dy.dtype if b is None else b.dtype) if has_dbias else none)
    return (dx.to(dy.dtype), dx1.to(dy.dtype), gradient.to(total.dtype) if own_dresidual else none,
            *of_pairs, *(none for _ in range(4 - len(of_pairs))))


def _add_norm_in_place(x, residual, shape, weight, bias, eps, rms, zero_centred=False, chapter=None,
                       batch_invariant=False):
    y, total, *_ = _add_norm(x, residual, shape, weight, bias, None, None, None, None, None, None, None, 0.0, eps, rms,
                             zero_centred, residual.dtype == torch.float32)
    x.copy_(y)
    residual.copy_(total)
