"""layer_norm and rms_norm on PyTorch's tensors, by the chapters, with gradients.

Two operators, torch.ops.layernorm_chapters.forward and .backward, call the library. PyTorch knows
their shapes (fake implementations) and their gradients (register_autograd), so torch.compile puts
them into a graph whole. Eager code calls the same functions past PyTorch's dispatcher, in which an
operator written in Python takes longer than a small kernel. A pass runs on the current stream, and
a CUDA graph can capture it.
"""

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


def _check_device(x):
    loaded = library()
    if x.device.type == loaded.backend:
        return
    if loaded.backend == "cuda":
        remedy = "move it to the GPU"
    elif x.device.type == "cuda":
        remedy = "run 'make library BACKEND=cuda', which needs nvcc"
    else:
        remedy = "move it to the CPU"
    raise LibraryError(f"x is on {x.device}, and {loaded.path} works on {loaded.backend} tensors: "
                       + remedy)


def _problem(x, weight, bias, cols, eps, rms):
    parameter = weight if weight is not None else bias
    dtype = _DTYPES[x.dtype]
    return Problem(KINDS["rms" if rms else "layer"], dtype,
                   dtype if parameter is None else _DTYPES[parameter.dtype], eps,
                   x.numel() // cols, cols)


def _contiguous(tensor):
    return None if tensor is None else tensor.contiguous()


@functools.lru_cache(maxsize=4096)
def _workspace_bytes(args_type, chapter, problem, places, gpu):
    """What a plan says, by all that it depends on. problem: its bytes. places: for each pointer 0, or
    16 and how far it is from a 16-byte boundary; a plan reads nothing there."""
    return library().plan(args_type(chapter, Problem.from_buffer_copy(problem), *places)).workspace_bytes


def _pointers(*tensors):
    return [0 if tensor is None else tensor.data_ptr() for tensor in tensors]


def _run(args_type, chapter, problem, pointers, x):
    """Runs a pass on x's device and the current stream. pointers: the tensors' of args_type."""
    gpu = x.get_device()
    if gpu >= 0 and gpu != torch.cuda.current_device():
        with torch.cuda.device(gpu):
            return _run(args_type, chapter, problem, pointers, x)
    chapter = chapter and chapter.encode()
    places = tuple([p and 16 + p % 16 for p in pointers])
    args = args_type(chapter, problem, *pointers)
    args.workspace_bytes = _workspace_bytes(args_type, chapter, bytes(problem), places, gpu)
    if args.workspace_bytes > 0:
        workspace = x.new_empty(args.workspace_bytes, dtype=torch.uint8)
        args.workspace = workspace.data_ptr()
    if gpu >= 0:
        args.stream = torch._C._cuda_getCurrentRawStream(gpu)
    library().run(args)


# --- The operators --------------------------------------------------------------------------------

torch.library.define(
    "layernorm_chapters::forward",
    "(Tensor x, Tensor? weight, Tensor? bias, SymInt cols, float eps, bool rms, "
    "bool memory_efficient, str? chapter, str? backward_chapter) -> (Tensor, Tensor)")
torch.library.define(
    "layernorm_chapters::backward",
    "(Tensor dy, Tensor saved, Tensor? weight, Tensor? bias, Tensor statistics, SymInt cols, "
    "float eps, bool rms, bool memory_efficient, bool wants_dweight, bool wants_dbias, "
    "str? chapter) -> (Tensor, Tensor, Tensor)")


def _forward_outputs(x, cols, rms):
    """y and the statistics, uninitialised: [mean, rstd] of each row, [rstd] for RMS norm."""
    return (torch.empty_like(x, memory_format=torch.contiguous_format),
            x.new_empty((1 if rms else 2, x.numel() // cols), dtype=torch.float32))


def _mean_and_rstd(statistics):
    """Their pointers."""
    kinds, rows = statistics.shape
    first = statistics.data_ptr()
    return (0, first) if kinds == 1 else (first, first + 4 * rows)


def _backward_outputs(dy, weight, bias, wants_dweight, wants_dbias):
    """dx, dweight and dbias, uninitialised; of no elements where they are not wanted."""
    return tuple(torch.empty_like(tensor, memory_format=torch.contiguous_format) if wanted else
                 dy.new_empty(0)
                 for tensor, wanted in ((dy, True), (weight, wants_dweight), (bias, wants_dbias)))


def _forward(x, weight, bias, cols, eps, rms, memory_efficient, chapter, backward_chapter):
    _check_dtypes(x, weight, bias)
    _check_device(x)
    x, weight, bias = x.contiguous(), _contiguous(weight), _contiguous(bias)
    y, statistics = _forward_outputs(x, cols, rms)
    _run(ForwardArgs, chapter, _problem(x, weight, bias, cols, eps, rms),
         (*_pointers(x, weight, bias, y), *_mean_and_rstd(statistics)), x)
    return y, statistics


torch.library.impl("layernorm_chapters::forward", "default", _forward)


@torch.library.register_fake("layernorm_chapters::forward")
def _(x, weight, bias, cols, eps, rms, memory_efficient, chapter, backward_chapter):
    _check_dtypes(x, weight, bias)
    return _forward_outputs(x, cols, rms)


def _backward(dy, saved, weight, bias, statistics, cols, eps, rms, memory_efficient, wants_dweight,
              wants_dbias, chapter):
    dy, saved, statistics = dy.contiguous(), saved.contiguous(), statistics.contiguous()
    weight, bias = _contiguous(weight), _contiguous(bias)
    dx, dweight, dbias = _backward_outputs(dy, weight, bias, wants_dweight, wants_dbias)
    x, y = (None, saved) if memory_efficient else (saved, None)
    _run(BackwardArgs, chapter, _problem(dy, weight, bias, cols, eps, rms),
         (*_pointers(dy, x, y, weight, bias), *_mean_and_rstd(statistics),
          *_pointers(dx, dweight, dbias)), dy)
    return dx, dweight, dbias


torch.library.impl("layernorm_chapters::backward", "default", _backward)


@torch.library.register_fake("layernorm_chapters::backward")
def _(dy, saved, weight, bias, statistics, cols, eps, rms, memory_efficient, wants_dweight,
      wants_dbias, chapter):
    return _backward_outputs(dy, weight, bias, wants_dweight, wants_dbias)


def _keep(ctx, x, weight, bias, options, output):
    """Keeps in ctx what _wanted() takes from it."""
    y, statistics = output
    _, _, _, memory_efficient, *_ = ctx.options = options
    ctx.save_for_backward(y if memory_efficient else x, weight, bias, statistics)


def _save(ctx, inputs, output):
    x, weight, bias, *options = inputs
    _keep(ctx, x, weight, bias, options, output)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _gradients(ctx, dy, *_):
    return (None,) * 9 if dy is None else (*_wanted(ctx, dy), *(None,) * 6)


def _wanted(ctx, dy):
    """The gradients of x, weight and bias, or None for those that nobody wants."""
    saved, weight, bias, statistics = ctx.saved_tensors
    *options, _, chapter = ctx.options
    _, wants_dweight, wants_dbias, *_ = ctx.needs_input_grad
    direct = _is_eager(dy, saved) and not torch.is_grad_enabled()
    backward = _backward if direct else torch.ops.layernorm_chapters.backward.default
    dx, dweight, dbias = backward(dy, saved, weight, bias, statistics, *options, wants_dweight,
                                  wants_dbias, chapter)
    return dx, dweight if wants_dweight else None, dbias if wants_dbias else None


def _no_second_gradients(ctx, *_):
    raise NotImplementedError("layernorm_chapters has no gradients of gradients: use "
                              "torch.nn.functional.layer_norm where you need them")


torch.library.register_autograd("layernorm_chapters::forward", _gradients, setup_context=_save)
torch.library.register_autograd("layernorm_chapters::backward", _no_second_gradients)


_PLAIN = (Tensor, torch.nn.Parameter, type(None))


def _is_eager(*tensors):
    """Whether the dispatcher has nothing to do: nobody traces, transforms or overrides the call."""
    return not (torch.compiler.is_compiling() or torch.jit.is_tracing()
                or torch._C._are_functorch_transforms_active() or torch._C._len_torch_dispatch_stack()
                ) and all(type(tensor) in _PLAIN for tensor in tensors)


class _Direct(torch.autograd.Function):
    """The forward pass and its gradients without the operators. It is written for few objects: each
    argument, each output and a setup_context cost microseconds of the host's time."""

    @staticmethod
    def forward(ctx, x, weight, bias, options):
        output = _forward(x, weight, bias, *options)
        _keep(ctx, x, weight, bias, options, output)
        return output[0]

    @staticmethod
    def backward(ctx, dy):
        return *_wanted(ctx, dy), None


# --- The functions --------------------------------------------------------------------------------


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


def _norm(x, normalized_shape, weight, bias, eps, rms, memory_efficient, chapter):
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if not shape or tuple(x.shape[-len(shape):]) != shape:
        raise ValueError(f"normalized_shape is {list(shape)}, and the last dimensions of x, whose "
                         f"shape is {list(x.shape)}, are not these")
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is None:
            continue
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name} has shape {list(tensor.shape)}; it must be normalized_shape, "
                             f"{list(shape)}")
        if tensor.device != x.device:
            raise ValueError(f"{name} is on {tensor.device} and x on {x.device}: they must be on one "
                             "device")
    cols = math.prod(shape)
    if cols == 0:
        raise ValueError(f"normalized_shape is {list(shape)}: there is nothing to normalise over")
    x, options = x.contiguous(), (cols, eps, rms, memory_efficient, *_chapter_pair(chapter))
    if not _is_eager(x, weight, bias):
        return torch.ops.layernorm_chapters.forward.default(x, weight, bias, *options)[0]
    if torch.is_grad_enabled():
        return _Direct.apply(x, weight, bias, options)
    return _forward(x, weight, bias, *options)[0]


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
