"""layer_norm, rms_norm and the fused passes on PyTorch's tensors, by the chapters, with gradients.

The operators torch.ops.layernorm_chapters and their gradients are C++ (common/python/csrc). Here are the functions that
a reader calls, which fill in what was left out. A pass runs on the current stream, and a CUDA graph can capture it.
"""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from .library import Library, LibraryError, binding_path, library_path

_OPERATORS = None  # torch.ops.layernorm_chapters, once its file is loaded


@functools.cache
def library():
    """The library: the GPU's where PyTorch sees a GPU, else the CPU's. Raises LibraryError."""
    return Library(library_path("cuda" if torch.cuda.is_available() else "cpu"))


def load():
    """Loads the kernels and the operators that call them, once; a first call does so by itself. Raises LibraryError."""
    global _OPERATORS
    if _OPERATORS is None:
        path = library().path
        binding = binding_path(path)
        try:
            torch.ops.load_library(str(binding))
            torch.ops.layernorm_chapters.load(str(path))
        except (OSError, RuntimeError) as error:
            raise LibraryError(f"{binding} does not fit PyTorch {torch.__version__}, build it again: {error}") from None
        _OPERATORS = torch.ops.layernorm_chapters
    return _OPERATORS


def chapters():
    """Every chapter that `chapter=` may name."""
    return library().chapters()


def enable():
    """Puts the kernels behind PyTorch's own layer_norm and rms_norm, for every model of this process.

    The tensors that the kernels take get them, forward and backward; the rest stays with PyTorch's kernels. No line of
    a model changes. torch.compile makes kernels of its own of these norms: in a compiled model take LayerNorm, RMSNorm
    or replace_norms. disable() undoes it; `with enabled():` does both.
    """
    load().enable()


def disable():
    """Gives PyTorch its own kernels back."""
    load().disable()


class enabled:
    """enable() for a block of code: `with layernorm_chapters.enabled(): model(x)`."""

    def __enter__(self):
        self.was = load().is_enabled()
        enable()

    def __exit__(self, *error):
        if not self.was:
            disable()


# --- What the functions fill in -------------------------------------------------------------------


def _direction(name):
    """"fwd", "bwd", or what an unknown chapter begins with. A reader's own, my01, has to be looked up."""
    backward = {c.id: c.backward for c in chapters()} if name.startswith("my") else {}
    return ("bwd" if backward[name] else "fwd") if name in backward else name[:3]


def _chapter_pair(chapter):
    """(forward, backward) of what `chapter=` says: None, an id, or one of each direction."""
    forward = backward = None
    for name in () if chapter is None else (chapter,) if isinstance(chapter, str) else chapter:
        direction = _direction(name)
        if direction == "fwd" and forward is None:
            forward = name
        elif direction == "bwd" and backward is None:
            backward = name
        else:
            raise ValueError(f"chapter={chapter!r}: name a forward chapter (fwd06), a backward one "
                             "(bwd09), or one of each; layernorm_chapters.chapters() lists them")
    return forward, backward


def _shape(normalized_shape):
    return (normalized_shape,) if isinstance(normalized_shape, int) else normalized_shape


def _norm(x, normalized_shape, weight, bias, eps, rms, memory_efficient, zero_centred, chapter):
    norm = (load() if _OPERATORS is None else _OPERATORS).norm.default
    if not (memory_efficient or zero_centred or chapter):
        return norm(x, _shape(normalized_shape), weight, bias, eps, rms)[0]
    return norm(x, _shape(normalized_shape), weight, bias, eps, rms, memory_efficient, zero_centred,
                *_chapter_pair(chapter))[0]


# --- The functions --------------------------------------------------------------------------------


def layer_norm(x: Tensor, normalized_shape: int | Sequence[int], weight: Tensor | None = None,
               bias: Tensor | None = None, eps: float = 1e-5, *, memory_efficient: bool = False,
               zero_centred: bool = False, chapter: str | Sequence[str] | None = None) -> Tensor:
    """torch.nn.functional.layer_norm, by a chapter.

    x may be float32, float16 or bfloat16. Its rows may lie apart in one or two dimensions; any other layout is copied.
    The result is contiguous, of x's type. weight and bias may be of any floating type; each may be None.
    memory_efficient: the backward pass starts from the result in place of x, which is then free.
    zero_centred: the weight is what it differs from 1 by; 1 is added in float32.
    chapter: a forward chapter, a backward one, or one of each ("fwd06", ("fwd06", "bwd09")); for
    the rest, the library's dispatch chooses.
    """
    return _norm(x, normalized_shape, weight, bias, eps, False, memory_efficient, zero_centred, chapter)


_EPS = torch.finfo(torch.float32).eps


def rms_norm(x: Tensor, normalized_shape: int | Sequence[int], weight: Tensor | None = None,
             eps: float | None = None, *, memory_efficient: bool = False, zero_centred: bool = False,
             chapter: str | Sequence[str] | None = None) -> Tensor:
    """torch.nn.functional.rms_norm, by a chapter; else like layer_norm. Without eps it is float32's
    epsilon, whatever the type of x: as in PyTorch from 2.7 on, which computes in float32, too."""
    return _norm(x, normalized_shape, weight, None, _EPS if eps is None else eps, True, memory_efficient, zero_centred,
                 chapter)


def _check_in_place(residual, residual_in_fp32, parts):
    if residual is None:
        raise ValueError("inplace=True writes the sum into residual, which is None")
    if parts:
        raise ValueError(f"inplace=True adds a residual and normalises, and does nothing else: leave out {parts[0]}")
    if residual_in_fp32 and residual.dtype != torch.float32:
        raise ValueError(f"inplace=True writes the sum into residual, which is of {residual.dtype}, and "
                         "residual_in_fp32 asks for one of float32")


def _add_norm(x, residual, normalized_shape, weight, bias, eps, rms, *, prenorm=True, residual_in_fp32=False,
              dropout=0.0, seed=None, rowscale=None, x1=None, rowscale1=None, weight1=None, bias1=None,
              zero_centred=False, inplace=False, chapter=None):
    operators = load() if _OPERATORS is None else _OPERATORS
    shape = _shape(normalized_shape)
    pair = (None, None) if chapter is None else _chapter_pair(chapter)
    if inplace:
        parts = {"dropout": dropout or None, "rowscale": rowscale, "x1": x1, "rowscale1": rowscale1, "weight1": weight1,
                 "bias1": bias1}
        _check_in_place(residual, residual_in_fp32, [name for name, part in parts.items() if part is not None])
        operators.add_norm_.default(x, residual, shape, weight, bias, eps, rms, zero_centred, pair[0])
        return (x, residual) if prenorm else x
    second = weight1 is not None or bias1 is not None
    if residual is None and not (dropout or second or rowscale is not None or x1 is not None):
        y = operators.norm.default(x, shape, weight, bias, eps, rms, False, zero_centred, *pair)[0]
        return (y, x.float() if residual_in_fp32 else x) if prenorm else y
    float_sum = residual_in_fp32 or (residual is not None and residual.dtype == torch.float32 != x.dtype)
    if float_sum and residual is None and x.dtype != torch.float32:
        residual = torch.zeros_like(x, dtype=torch.float32)
    seeds = seeds1 = None
    if dropout:
        generator = None if seed is None else torch.Generator(x.device).manual_seed(seed)
        rows = x.shape[:x.dim() - len(shape)]
        seeds, seeds1 = (torch.randint(-2 ** 31, 2 ** 31, rows, dtype=torch.int32, device=x.device, generator=generator)
                         if there else None for there in (True, x1 is not None))
    y, total, _, y1 = operators.add_norm.default(x, residual, shape, weight, bias, x1, weight1, bias1, rowscale,
                                                 rowscale1, seeds, seeds1, dropout, eps, rms, zero_centred, float_sum,
                                                 *pair)
    results = (y, *((y1,) if second else ()), *((total,) if prenorm else ()))
    return results if len(results) > 1 else y


def fused_add_layer_norm(x: Tensor, residual: Tensor | None, normalized_shape: int | Sequence[int],
                         weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5, **options):
    """(layer_norm(sum), sum) of sum = residual + x, in one kernel; backward in one kernel too.

    What is normalised is the sum as it is returned, rounded to its type; with prenorm=False, too.
    residual: of x's type or float32, which the sum then has too; None: the sum is x.
    prenorm=False: the norm alone. residual_in_fp32=True: the sum is float32.
    dropout, seed: elements of x dropped before the sum; without a seed, PyTorch's generator draws one for each row.
    rowscale: a float32 for each row of x, [rows]. x1, rowscale1: a second input, treated as x is, added too.
    weight1, bias1: a second norm of the same sum, which comes after the first in the results.
    inplace=True: for inference, of a residual alone. y is written into x and the sum into residual, which are returned;
    rows of more than 16376 columns, and tensors that are not contiguous, take a copy.
    zero_centred, chapter: as layer_norm has them.
    """
    return _add_norm(x, residual, normalized_shape, weight, bias, eps, False, **options)


def fused_add_rms_norm(x: Tensor, residual: Tensor | None, normalized_shape: int | Sequence[int],
                       weight: Tensor | None = None, eps: float | None = None, **options):
    """(rms_norm(sum), sum) of sum = residual + x; else like fused_add_layer_norm."""
    return _add_norm(x, residual, normalized_shape, weight, None, _EPS if eps is None else eps, True, **options)


# --- For whoever has no kernels -------------------------------------------------------------------


def _normalised(x, shape, weight, bias, eps, rms, zero_centred):
    """y of x, and the statistics, in PyTorch's own operations."""
    dims = [-1 - i for i in range(len(shape))]
    z = x.float()
    mean = None if rms else z.mean(dims, keepdim=True)
    centred = z if rms else z - mean
    rstd = (centred.square().mean(dims, keepdim=True) + eps).rsqrt()
    y = centred * rstd
    if weight is not None:
        y = y * (weight.float() + 1.0 if zero_centred else weight.float())
    if bias is not None:
        y = y + bias.float()
    statistics = torch.stack([part.flatten() for part in ([rstd] if rms else [mean, rstd])])
    return y.to(x.dtype), statistics


def decompositions():
    """{operator: the same in PyTorch's own operations}, for a program that runs where the kernels are not:
    torch.export.export(model, …).run_decompositions(layernorm_chapters.decompositions()), torch.onnx.export."""
    operators = load()

    def norm(x, shape, weight, bias, eps, rms, memory_efficient=False, zero_centred=False, chapter=None,
             backward_chapter=None):
        return _normalised(x, shape, weight, bias, eps, rms, zero_centred)

    return {operators.norm.default: norm}


try:  # so that a model that is compiled at once finds them loaded
    load()
except LibraryError:
    pass  # whoever calls a function is told
