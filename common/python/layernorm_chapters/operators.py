"""layer_norm, rms_norm and the fused passes on PyTorch's tensors, by the library's kernels, with gradients.

The operators torch.ops.layernorm_chapters and their gradients are C++ (common/python/csrc). Here are the functions that
a reader calls, which fill in what was left out. A pass runs on the current stream, and a CUDA graph can capture it.
"""

import contextlib
import contextvars
import functools
import numbers
import operator
import sys
import threading
from collections.abc import Sequence

import torch
from torch import Tensor

from .library import Library, LibraryError, binding_path, library_path

_OPERATORS = None  # torch.ops.layernorm_chapters, once its file is loaded
_BATCH_INVARIANT = contextvars.ContextVar("layernorm_chapters.batch_invariant", default=False)
# Whether any thread is in batch_invariant(): what compiled code goes by, since Dynamo cannot guard on a ContextVar, and
# would compile anew for each number of threads.
_ANY_BATCH_INVARIANT = False
_LOCK, _THREADS_WITHIN = threading.Lock(), 0


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
    """Every kernel that `chapter=` may name: the chapters' and the library's."""
    return library().chapters()


# --- For a process, or a block of code -------------------------------------------------------------


def _not_traced(function):
    """What torch.compiler.disable() does, without importing Dynamo: a trace would do once what each run should."""
    function._torchdynamo_disable = True
    return function


@_not_traced
def enable():
    """Puts the kernels behind PyTorch's own layer_norm and rms_norm, for every model of this process.

    The tensors that the kernels take get them, forward and backward; the rest stays with PyTorch's kernels. No line of
    a model changes. torch.compile makes kernels of its own of these norms: in a compiled model take LayerNorm, RMSNorm
    or replace_norms. disable() undoes it; `with enabled():` does it for a block of code of one thread.
    """
    load().enable()


@_not_traced
def disable():
    """Undoes enable(). A thread inside of `with enabled():` keeps the kernels until it leaves the block."""
    load().disable()


class _Block(contextlib.ContextDecorator):
    """What holds for a block of code, or for a function that it decorates. A class, since Dynamo of PyTorch 2.15 enters
    a generator's block and does not leave it again."""

    def _recreate_cm(self):
        return type(self)()  # each call of a function that is decorated has its own

    def __init_subclass__(cls):
        _not_traced(cls.__enter__)
        _not_traced(cls.__exit__)


class _Enabled(_Block):
    def __enter__(self):
        load().enter_enabled()

    def __exit__(self, *error):
        load().leave_enabled()


@_not_traced
def enabled():
    """enable() for a block of code: `with layernorm_chapters.enabled(): y = model(x)`.

    It holds for the thread that is in the block and for no other. If the forward pass is in the block, the kernels run
    its backward pass, too, on any thread; not where torch.utils.checkpoint computes the forward pass again, unless its
    context_fn enters the block. Code that torch.compile traces breaks its graph where it enters the block.
    """
    return _Enabled()


class _BatchInvariant(_Block):
    def __enter__(self):
        load().enter_batch_invariant()
        self.token = _BATCH_INVARIANT.set(True)
        _count_batch_invariant(1)

    def __exit__(self, *error):
        _count_batch_invariant(-1)
        _BATCH_INVARIANT.reset(self.token)
        load().leave_batch_invariant()


@_not_traced
def batch_invariant():
    """Batch-invariant passes for a block of code: `with layernorm_chapters.batch_invariant(): y = model(x)`.

    In it a row's y, and in the backward pass its dx, depend on that row alone, bit for bit: not on how many rows there
    are, which of them it is, or where tensors start in memory. It holds for the thread that is in the block, for the
    functions, the modules and enabled(). Compiled code is batch-invariant while any thread is in such a block, and
    breaks its graph where it enters one itself. What torch.utils.checkpoint computes again is outside of the block,
    unless its context_fn enters it; batch_invariant=True of a function or module holds there, too. Gradients that have
    gradients (create_graph=True, torch.func.grad) are made of PyTorch's operations, for which nothing is promised.
    """
    return _BatchInvariant()


def _count_batch_invariant(change):
    global _ANY_BATCH_INVARIANT, _THREADS_WITHIN
    with _LOCK:
        _THREADS_WITHIN += change
        _ANY_BATCH_INVARIANT = _THREADS_WITHIN > 0


def _is_batch_invariant(asked):
    """What a call asks for, or where it says nothing, the block of code around it."""
    if asked is not None:
        return asked
    return _ANY_BATCH_INVARIANT if torch.compiler.is_compiling() else _BATCH_INVARIANT.get()


# --- What the functions fill in -------------------------------------------------------------------


def _direction(name):
    """"fwd", "bwd", or what an unknown kernel begins with. A reader's own, my01, has to be looked up."""
    backward = {c.id: c.backward for c in chapters()} if name.startswith("my") else {}
    return ("bwd" if backward[name] else "fwd") if name in backward else name.removeprefix("lib_")[:3]


def _chapter_pair(chapter):
    """(forward, backward) of what `chapter=` says: None, an id, or one of each direction."""
    forward = backward = None
    names = () if chapter is None else chapter if isinstance(chapter, (tuple, list)) else (chapter,)
    for name in names:
        direction = _direction(name) if isinstance(name, str) else None
        if direction == "fwd" and forward is None:
            forward = name
        elif direction == "bwd" and backward is None:
            backward = name
        else:
            raise ValueError(f"chapter={chapter!r}: name a forward kernel (lib_fwd_ring), a backward one "
                             "(lib_bwd_ring), or one of each; layernorm_chapters.chapters() lists them")
    return forward, backward


def _shape(normalized_shape):
    if isinstance(normalized_shape, (tuple, list)):  # torch.Size is a tuple
        return normalized_shape
    return (normalized_shape if type(normalized_shape) in (int, torch.SymInt) else _integer(normalized_shape),)


def _integer(size):
    try:
        return operator.index(size)
    except TypeError:
        raise TypeError(f"normalized_shape is {size!r}; it must be an integer, or several") from None


def _check_types(normalized_shape, numbers_given, flags, **tensors):
    """Says which argument is of a wrong type, where one is. PyTorch would name the operator's declaration."""
    for name, given in tensors.items():
        if not isinstance(given, Tensor) and (given is not None or name == "x"):
            wanted = "a tensor" if name == "x" else "a tensor or None"
            raise TypeError(f"{name} is of type {type(given).__name__}; it must be {wanted}")
    for name, given in numbers_given.items():
        if not isinstance(given, (numbers.Real, Tensor)) or (isinstance(given, Tensor) and given.numel() != 1):
            raise TypeError(f"{name} is {given!r}; it must be a number")
        try:
            float(given)
        except OverflowError:
            raise ValueError(f"{name} is {given!r}, which is too large for a float") from None
    for size in _shape(normalized_shape):
        if _integer(size) >= 2 ** 63:
            raise ValueError(f"normalized_shape is {normalized_shape!r}, which is more than a tensor can have")
    for name, given in flags.items():
        if not isinstance(given, bool):
            raise TypeError(f"{name} is {given!r}; it must be True or False")


def _is_plain(x):
    return type(x) is Tensor or type(x) is torch.nn.Parameter


def _has_dtensor():
    """Whether something has imported DTensor: that takes half a second, so the package does not."""
    return "torch.distributed.tensor" in sys.modules


def _register_shardings_for(x):
    """Tells DTensor how the operators split over devices, once it is there."""
    if isinstance(x, Tensor) and _has_dtensor():
        from .sharding import register_shardings
        register_shardings()


def _jagged(x, normalized_shape, norm):
    """norm(its values) of a nested tensor of layout torch.jagged, in which these are one dense tensor."""
    shape = list(_shape(normalized_shape))
    if x._ragged_idx >= x.dim() - len(shape):
        raise ValueError(f"normalized_shape is {shape}, and dimension {x._ragged_idx} of the nested tensor x is "
                         "ragged: only the dimensions after that can be normalised over")
    return torch.nested.nested_tensor_from_jagged(norm(x.values()), x.offsets(), x.lengths(), x._ragged_idx)


def _norm(x, normalized_shape, weight, bias, eps, rms, memory_efficient, zero_centred, chapter, batch_invariant):
    norm = (load() if _OPERATORS is None else _OPERATORS).norm.default
    batch_invariant = _is_batch_invariant(batch_invariant)
    if not _is_plain(x):
        if getattr(x, "layout", None) is torch.jagged:
            return _jagged(x, normalized_shape, lambda values: _norm(
                values, normalized_shape, weight, bias, eps, rms, memory_efficient, zero_centred, chapter,
                batch_invariant))
        _register_shardings_for(x)
    try:
        if not (memory_efficient or zero_centred or chapter is not None or batch_invariant):
            return norm(x, _shape(normalized_shape), weight, bias, eps, rms)[0]
        return norm(x, _shape(normalized_shape), weight, bias, eps, rms, memory_efficient, zero_centred,
                    *_chapter_pair(chapter), batch_invariant)[0]
    except (RuntimeError, TypeError):
        flags = {"memory_efficient": memory_efficient, "zero_centred": zero_centred, "batch_invariant": batch_invariant}
        _check_types(normalized_shape, {"eps": eps}, flags, x=x, weight=weight, bias=bias)
        raise


# --- The functions --------------------------------------------------------------------------------


def layer_norm(x: Tensor, normalized_shape: int | Sequence[int], weight: Tensor | None = None,
               bias: Tensor | None = None, eps: float = 1e-5, *, memory_efficient: bool = False,
               zero_centred: bool = False, chapter: str | Sequence[str] | None = None,
               batch_invariant: bool | None = None) -> Tensor:
    """torch.nn.functional.layer_norm, by a kernel of the library.

    x may be float32, float16 or bfloat16. Its rows may lie apart in one or two dimensions; any other layout is copied.
    The result is contiguous, of x's type. weight and bias may be of any floating type; each may be None.
    memory_efficient: the backward pass starts from the result in place of x, which is then free. It divides by the
    weight, whose magnitude counts as eps where it is less, as in Apex: a weight of 0 gets no gradient and stays 0.
    zero_centred: the weight is what it differs from 1 by; 1 is added in float32.
    chapter: a forward kernel, a backward one, or one of each ("lib_fwd_ring", ("lib_fwd_ring", "lib_bwd_any")), of the
    library or of a chapter that takes the call; for the rest, the library's dispatch chooses.
    batch_invariant: a row's bits depend on that row alone; None: as a surrounding batch_invariant() says, if any.

    Raises TypeError and ValueError, which name the argument, and RuntimeError if x is on a device for which no kernels
    are built, or if a launch fails.
    """
    return _norm(x, normalized_shape, weight, bias, eps, False, memory_efficient, zero_centred, chapter,
                 batch_invariant)


_EPS = torch.finfo(torch.float32).eps


def rms_norm(x: Tensor, normalized_shape: int | Sequence[int], weight: Tensor | None = None,
             eps: float | None = None, *, memory_efficient: bool = False, zero_centred: bool = False,
             chapter: str | Sequence[str] | None = None, batch_invariant: bool | None = None) -> Tensor:
    """torch.nn.functional.rms_norm, by a kernel of the library; else like layer_norm. Without eps it is float32's
    epsilon, whatever the type of x: as in PyTorch from 2.7 on, which computes in float32, too."""
    return _norm(x, normalized_shape, weight, None, _EPS if eps is None else eps, True, memory_efficient, zero_centred,
                 chapter, batch_invariant)


def _check_in_place(residual, residual_in_fp32, parts):
    if residual is None:
        raise ValueError("inplace=True writes the sum into residual, which is None")
    if parts:
        raise ValueError(f"inplace=True adds a residual and normalises, and does nothing else: leave out {parts[0]}")
    if residual_in_fp32 and residual.dtype != torch.float32:
        raise ValueError(f"inplace=True writes the sum into residual, which is of {residual.dtype}, and "
                         "residual_in_fp32 asks for one of float32")


def _mixed(words):
    """The output mix of splitmix64 (Steele, Lea, Flood 2014), but of int64, whose right shifts extend the sign."""
    words = (words ^ (words >> 30)) * -0x40A7B892E31B1A47
    words = (words ^ (words >> 27)) * -0x6B2FB644ECCEEE15
    return words ^ (words >> 31)


def _row_seeds(rows, device, seed, branch):
    """A dropout's seed for each row, of the shape `rows`: drawn by PyTorch's generator, or made of `seed` and the row's
    number in operations that torch.compile and a CUDA graph take."""
    if seed is None:
        return torch.randint(-2 ** 31, 2 ** 31, rows, dtype=torch.int32, device=device)
    count = functools.reduce(operator.mul, rows, 1)
    key = _mixed(torch.full((), seed, dtype=torch.int64, device=device) * 2 + branch)
    return _mixed(torch.arange(count, dtype=torch.int64, device=device) ^ key).to(torch.int32).reshape(rows)


def _check_seed(seed):
    if not isinstance(seed, numbers.Integral) or not -2 ** 62 <= seed < 2 ** 62:
        raise ValueError(f"seed is {seed!r}; it must be None, or an integer from -2**62 to 2**62 - 1")


def _add_norm(x, residual, normalized_shape, weight, bias, eps, rms, *, prenorm=True, residual_in_fp32=False,
              dropout=0.0, seed=None, rowscale=None, x1=None, rowscale1=None, weight1=None, bias1=None,
              zero_centred=False, inplace=False, chapter=None, batch_invariant=None, **unknown):
    if unknown:
        raise TypeError(f"fused_add_{'rms' if rms else 'layer'}_norm() takes no {next(iter(unknown))}; its docstring "
                        "lists its options")
    load()
    batch_invariant = _is_batch_invariant(batch_invariant)
    if not _is_plain(x):
        if getattr(x, "is_nested", False):
            raise TypeError("x is a nested tensor, which a fused pass does not take: add, and then normalise")
        if (dropout or inplace) and _has_dtensor() and isinstance(x, torch.distributed.tensor.DTensor):
            raise TypeError(f"x is a DTensor, for which fused passes support no {'inplace' if inplace else 'dropout'}: "
                            "call them on local tensors, as torch.distributed.tensor.experimental.local_map does")
        _register_shardings_for(x)
    tensors = {"x": x, "residual": residual, "weight": weight, "bias": bias, "rowscale": rowscale, "x1": x1,
               "rowscale1": rowscale1, "weight1": weight1, "bias1": bias1}
    try:
        return _run_add_norm(tensors, _shape(normalized_shape), eps, rms, prenorm, residual_in_fp32, dropout, seed,
                             zero_centred, inplace, _chapter_pair(chapter), batch_invariant)
    except (RuntimeError, TypeError, AttributeError):
        flags = {"zero_centred": zero_centred, "residual_in_fp32": residual_in_fp32, "batch_invariant": batch_invariant}
        _check_types(normalized_shape, {"eps": eps, "dropout": dropout}, flags, **tensors)
        raise


def _run_add_norm(tensors, shape, eps, rms, prenorm, residual_in_fp32, dropout, seed, zero_centred, inplace, pair,
                  batch_invariant):
    x, residual, weight, bias, rowscale, x1, rowscale1, weight1, bias1 = tensors.values()
    if inplace:
        parts = {"dropout": dropout or None, "rowscale": rowscale, "x1": x1, "rowscale1": rowscale1, "weight1": weight1,
                 "bias1": bias1}
        _check_in_place(residual, residual_in_fp32, [name for name, part in parts.items() if part is not None])
        if torch.compiler.is_exporting():  # a program has no decomposition of what writes into its arguments
            y, total = _run_add_norm(tensors, shape, eps, rms, True, False, 0.0, None, zero_centred, False, pair,
                                     batch_invariant)
            x.copy_(y)
            residual.copy_(total)
        else:
            _OPERATORS.add_norm_.default(x, residual, shape, weight, bias, eps, rms, zero_centred, pair[0],
                                         batch_invariant)
        return (x, residual) if prenorm else x
    second = weight1 is not None or bias1 is not None
    if residual is None and not (dropout or second or rowscale is not None or x1 is not None):
        y = _OPERATORS.norm.default(x, shape, weight, bias, eps, rms, False, zero_centred, *pair, batch_invariant)[0]
        return (y, x.float() if residual_in_fp32 else x) if prenorm else y
    float_sum = residual_in_fp32 or (residual is not None and residual.dtype == torch.float32 != x.dtype)
    if float_sum and residual is None and x.dtype != torch.float32:
        residual = torch.zeros_like(x, dtype=torch.float32)
    seeds = seeds1 = None
    if seed is not None:
        _check_seed(seed)
    if dropout:
        rows = x.shape[:x.dim() - len(shape)]
        seeds = _row_seeds(rows, x.device, seed, 0)
        seeds1 = None if x1 is None else _row_seeds(rows, x.device, seed, 1)
    y, total, _, y1 = _OPERATORS.add_norm.default(x, residual, shape, weight, bias, x1, weight1, bias1, rowscale,
                                                  rowscale1, seeds, seeds1, dropout, eps, rms, zero_centred, float_sum,
                                                  *pair, batch_invariant)
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
    zero_centred, chapter, batch_invariant: as layer_norm has them. Raises what layer_norm raises.
    """
    return _add_norm(x, residual, normalized_shape, weight, bias, eps, False, **options)


def fused_add_rms_norm(x: Tensor, residual: Tensor | None, normalized_shape: int | Sequence[int],
                       weight: Tensor | None = None, eps: float | None = None, **options):
    """(rms_norm(sum), sum) of sum = residual + x; else like fused_add_layer_norm."""
    return _add_norm(x, residual, normalized_shape, weight, None, _EPS if eps is None else eps, True, **options)


try:  # so that a model that is compiled at once finds them loaded
    load()
except LibraryError:
    pass  # a function that needs them raises it
