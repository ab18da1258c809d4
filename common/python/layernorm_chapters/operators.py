"""layer_norm and rms_norm on PyTorch's tensors, by the chapters, with gradients.

Two operators, torch.ops.layernorm_chapters.forward and .backward, call the library. PyTorch knows
their shapes (fake implementations) and their gradients (register_autograd), so torch.compile puts
them into a graph whole. A pass runs on the current stream, and a CUDA graph can capture it.
"""

import contextlib
import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .library import (DTYPES, KINDS, BackwardArgs, ForwardArgs, Library, LibraryError, Problem,
                      library_path)

_DTYPES = {getattr(torch, name): number for name, number in DTYPES.items()}


@functools.cache
def library():
    """The library, loaded at first use: the GPU's where PyTorch sees a GPU, else the CPU's."""
    return Library(library_path("cuda" if torch.cuda.is_available() else "cpu"))


def chapters():
    """Every chapter that `chapter=` may name."""
    return library().chapters()


# --- What the operators take ----------------------------------------------------------------------


def _check_dtypes(x, weight, bias):
    if x.dtype not in _DTYPES:
        raise TypeError(f"x is of {x.dtype}; the chapters take float32, float16 and bfloat16")
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None and tensor.dtype not in (x.dtype, torch.float32):
            raise TypeError(f"{name} is of {tensor.dtype} and x of {x.dtype}: parameters have the "
                            "type of x, or float32")
    if weight is not None and bias is not None and weight.dtype != bias.dtype:
        raise TypeError(f"weight is of {weight.dtype} and bias of {bias.dtype}: give both one type")


def _check_devices(tensors):
    loaded = library()
    for tensor in tensors:
        device = tensor.device
        if device.type != loaded.backend:
            raise LibraryError(
                f"a tensor is on {device}, and {loaded.path} works on {loaded.backend} tensors: "
                + ("move the tensor to the GPU" if loaded.backend == "cuda" else
                   "run 'make library BACKEND=cuda' on a machine with a GPU and nvcc"
                   if device.type == "cuda" else "move the tensor to the CPU"))
        if device != tensors[0].device:
            raise LibraryError(f"tensors are on {tensors[0].device} and on {device}; "
                               "they must be on one device")


def _problem(x, weight, bias, cols, eps, rms):
    parameter = weight if weight is not None else bias
    dtype = _DTYPES[x.dtype]
    return Problem(KINDS["rms" if rms else "layer"], dtype,
                   dtype if parameter is None else _DTYPES[parameter.dtype], eps,
                   x.numel() // cols, cols)


def _pointer(tensor):
    return None if tensor is None or tensor.numel() == 0 else tensor.data_ptr()


def _contiguous(tensor):
    return None if tensor is None else tensor.contiguous()


def _run(args, x):
    """Asks how much workspace a pass needs, and runs it on x's device and the current stream."""
    loaded = library()
    with torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext():
        if x.is_cuda:
            args.stream = torch.cuda.current_stream().cuda_stream
        args.workspace_bytes = loaded.plan(args).workspace_bytes
        workspace = x.new_empty(args.workspace_bytes, dtype=torch.uint8)
        args.workspace = _pointer(workspace)
        loaded.run(args)


# --- The operators --------------------------------------------------------------------------------

torch.library.define(
    "layernorm_chapters::forward",
    "(Tensor x, Tensor? weight, Tensor? bias, SymInt cols, float eps, bool rms, "
    "bool memory_efficient, str? chapter, str? backward_chapter) -> (Tensor, Tensor, Tensor)")
torch.library.define(
    "layernorm_chapters::backward",
    "(Tensor dy, Tensor saved, Tensor? weight, Tensor? bias, Tensor mean, Tensor rstd, "
    "SymInt cols, float eps, bool rms, bool memory_efficient, bool wants_dweight, "
    "bool wants_dbias, str? chapter) -> (Tensor, Tensor, Tensor)")


def _forward_outputs(x, cols, rms):
    """y, mean and rstd, uninitialised."""
    rows = x.numel() // cols
    return (torch.empty_like(x, memory_format=torch.contiguous_format),
            x.new_empty(0 if rms else rows, dtype=torch.float32),
            x.new_empty(rows, dtype=torch.float32))


def _backward_outputs(dy, weight, bias, wants_dweight, wants_dbias):
    """dx, dweight and dbias, uninitialised; of no elements where they are not wanted."""
    return tuple(torch.empty_like(tensor, memory_format=torch.contiguous_format) if wanted else
                 dy.new_empty(0)
                 for tensor, wanted in ((dy, True), (weight, wants_dweight), (bias, wants_dbias)))


@torch.library.impl("layernorm_chapters::forward", "default")
def _forward(x, weight, bias, cols, eps, rms, memory_efficient, chapter, backward_chapter):
    _check_dtypes(x, weight, bias)
    _check_devices([t for t in (x, weight, bias) if t is not None])
    x, weight, bias = x.contiguous(), _contiguous(weight), _contiguous(bias)
    y, mean, rstd = _forward_outputs(x, cols, rms)
    _run(ForwardArgs(chapter and chapter.encode(), _problem(x, weight, bias, cols, eps, rms),
                     _pointer(x), _pointer(weight), _pointer(bias), _pointer(y), _pointer(mean),
                     _pointer(rstd)), x)
    return y, mean, rstd


@torch.library.register_fake("layernorm_chapters::forward")
def _(x, weight, bias, cols, eps, rms, memory_efficient, chapter, backward_chapter):
    _check_dtypes(x, weight, bias)
    return _forward_outputs(x, cols, rms)


@torch.library.impl("layernorm_chapters::backward", "default")
def _backward(dy, saved, weight, bias, mean, rstd, cols, eps, rms, memory_efficient, wants_dweight,
              wants_dbias, chapter):
    dy, saved = dy.contiguous(), saved.contiguous()
    weight, bias = _contiguous(weight), _contiguous(bias)
    dx, dweight, dbias = _backward_outputs(dy, weight, bias, wants_dweight, wants_dbias)
    x, y = (None, saved) if memory_efficient else (saved, None)
    _run(BackwardArgs(chapter and chapter.encode(), _problem(dy, weight, bias, cols, eps, rms),
                      _pointer(dy), _pointer(x), _pointer(y), _pointer(weight), _pointer(bias),
                      _pointer(mean), _pointer(rstd), _pointer(dx), _pointer(dweight),
                      _pointer(dbias)), dy)
    return dx, dweight, dbias


@torch.library.register_fake("layernorm_chapters::backward")
def _(dy, saved, weight, bias, mean, rstd, cols, eps, rms, memory_efficient, wants_dweight,
      wants_dbias, chapter):
    return _backward_outputs(dy, weight, bias, wants_dweight, wants_dbias)


def _save(ctx, inputs, output):
    x, weight, bias, *ctx.rest, _, ctx.chapter = inputs
    y, mean, rstd = output
    ctx.mark_non_differentiable(mean, rstd)
    ctx.set_materialize_grads(False)
    *_, memory_efficient = ctx.rest
    ctx.save_for_backward(y if memory_efficient else x, weight, bias, mean, rstd)


def _gradients(ctx, dy, *_):
    if dy is None:
        return (None,) * 9
    saved, weight, bias, mean, rstd = ctx.saved_tensors
    _, wants_dweight, wants_dbias, *_ = ctx.needs_input_grad
    dx, dweight, dbias = torch.ops.layernorm_chapters.backward.default(
        dy, saved, weight, bias, mean, rstd, *ctx.rest, wants_dweight, wants_dbias, ctx.chapter)
    return (dx, dweight if wants_dweight else None, dbias if wants_dbias else None,
            *(None,) * 6)


def _no_second_gradients(ctx, *_):
    raise NotImplementedError("layernorm_chapters has no gradients of gradients: use "
                              "torch.nn.functional.layer_norm where you need them")


torch.library.register_autograd("layernorm_chapters::forward", _gradients, setup_context=_save)
torch.library.register_autograd("layernorm_chapters::backward", _no_second_gradients)


# --- The functions --------------------------------------------------------------------------------


def _chapter_pair(chapter):
    """(forward, backward) of what `chapter=` says: None, an id, or one of each direction."""
    forward = backward = None
    for name in () if chapter is None else (chapter,) if isinstance(chapter, str) else chapter:
        if name.startswith("fwd") and forward is None:
            forward = name
        elif name.startswith("bwd") and backward is None:
            backward = name
        else:
            raise ValueError(f"chapter={chapter!r}: name a forward chapter (fwd06), a backward one "
                             "(bwd09), or one of each; layernorm_chapters.chapters() lists them")
    return forward, backward


def _norm(x, normalized_shape, weight, bias, eps, rms, memory_efficient, chapter):
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if not shape or tuple(x.shape[-len(shape):]) != shape:
        raise ValueError(f"normalized_shape is {list(shape)}, and the last dimensions of x, whose "
                         f"shape is {list(x.shape)}, are not these")
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None and tuple(tensor.shape) != shape:
            raise ValueError(f"{name} has shape {list(tensor.shape)}; it must be normalized_shape, "
                             f"{list(shape)}")
    cols = math.prod(shape)
    if cols == 0:
        raise ValueError(f"normalized_shape is {list(shape)}: there is nothing to normalise over")
    return torch.ops.layernorm_chapters.forward.default(
        x.contiguous(), weight, bias, cols, eps, rms, memory_efficient, *_chapter_pair(chapter))[0]


def layer_norm(x: Tensor, normalized_shape: int | Sequence[int], weight: Tensor | None = None,
               bias: Tensor | None = None, eps: float = 1e-5, *, memory_efficient: bool = False,
               chapter: str | Sequence[str] | None = None) -> Tensor:
    """torch.nn.functional.layer_norm, by a chapter.

    x may be float32, float16 or bfloat16, and lie in memory in any way; the result is contiguous, of
    x's type. weight and bias have x's type or are both float32; each may be None.
    memory_efficient: the backward pass starts from the result in place of x, which is then free.
    chapter: a forward chapter, a backward one, or one of each ("fwd06", ("fwd06", "bwd09")); for
    the rest, the library's dispatch chooses.
    """
    return _norm(x, normalized_shape, weight, bias, eps, False, memory_efficient, chapter)


def rms_norm(x: Tensor, normalized_shape: int | Sequence[int], weight: Tensor | None = None,
             eps: float | None = None, *, memory_efficient: bool = False,
             chapter: str | Sequence[str] | None = None) -> Tensor:
    """torch.nn.functional.rms_norm, by a chapter; else like layer_norm. Without eps it is float32's
    epsilon, whatever the type of x: as in PyTorch from 2.7 on, which computes in float32, too."""
    if eps is None:
        eps = torch.finfo(torch.float32).eps
    return _norm(x, normalized_shape, weight, None, eps, True, memory_efficient, chapter)
