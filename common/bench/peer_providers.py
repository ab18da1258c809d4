"""Whose layer norm is compared, and how each is called. Needs PyTorch; the rest where it is there.

A provider's load() imports it and returns prepare(direction, inputs), which returns a function that
does one pass and returns (y,), or (dx, dweight, dbias) with None for a dbias that RMS norm lacks.
Passes are those of a training step: a forward pass stores what its backward pass needs.
"""

import functools
import importlib
import importlib.metadata
import os
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import NamedTuple

import layernorm_chapters
import torch
import torch.nn.functional as F
from layernorm_chapters.library import DTYPES as CODES
from layernorm_chapters.library import KINDS, BackwardArgs, ForwardArgs, Library, LibraryError, Problem

from common.bench.peer_checks import chunks, forward_reference, statistics
from common.results.peers import DIRECTIONS, DTYPES
from common.python import from_tree  # noqa: F401  finds layernorm_chapters

EPS = 1e-5


class Unavailable(Exception):
    """A provider that takes no such problem; the message is a sentence."""


@dataclass
class Inputs:
    kind: str  # "layer" or "rms"
    dtype: str  # "f32", "f16", "bf16"
    x: torch.Tensor  # [rows, cols]
    weight: torch.Tensor  # [cols]
    bias: torch.Tensor | None  # [cols]; None for rms
    dy: torch.Tensor  # [rows, cols]
    mean: torch.Tensor  # [rows], float, the reference's
    rstd: torch.Tensor
    y: torch.Tensor | None = None  # the reference's, rounded, where a backward pass starts from it
    eps: float = EPS
    seed: int = 1  # of these tensors

    def matrices(self, direction):
        """What a pass takes of M × N elements."""
        if direction == "forward":
            return [self.x]
        return [self.dy, self.x if self.y is None else self.y]

    def copy(self):
        """The same values in other memory."""
        return replace(self, **{name: value.clone() for name, value in vars(self).items()
                                if isinstance(value, torch.Tensor)})

    def from_y(self):
        y = torch.empty_like(self.x)
        for rows in chunks(*self.x.shape):
            y[rows] = forward_reference(self, rows).to(y.dtype)
        return replace(self, y=y)


def make_inputs(kind, problem, device="cuda", seed=1):
    """Random tensors: x about 0.5, weights about 1 and away from 0, where x̂ from y is not defined."""
    generator = torch.Generator(device).manual_seed(seed)
    dtype = getattr(torch, DTYPES[problem.dtype])

    def random(*shape):
        return torch.randn(*shape, generator=generator, device=device, dtype=dtype)

    x = random(problem.rows, problem.cols).add_(0.5)
    weight = random(problem.cols).mul_(0.1).clamp_(-0.5, 0.5).add_(1)
    bias = random(problem.cols).mul_(0.1) if kind == "layer" else None
    inputs = Inputs(kind, problem.dtype, x, weight, bias, random(problem.rows, problem.cols),
                    torch.empty(problem.rows, device=device), torch.empty(problem.rows, device=device), seed=seed)
    for rows in chunks(*x.shape):
        inputs.rstd[rows] = statistics(inputs, rows)[1][:, 0].float()
        inputs.mean[rows] = x[rows].double().mean(1).float()
    return inputs


def unchecked_inputs(problem, device="cuda"):
    """Tensors of a problem for a pass whose result nobody looks at."""
    dtype = getattr(torch, DTYPES[problem.dtype])

    def ones(*shape, dtype=dtype):
        return torch.ones(*shape, device=device, dtype=dtype)

    rows, cols = problem.rows, problem.cols
    bias = ones(cols) if problem.kind == "layer" else None
    mean, rstd = (ones(rows, dtype=torch.float32) for _ in range(2))
    return Inputs(problem.kind, problem.dtype, ones(rows, cols), ones(cols), bias, ones(rows, cols), mean, rstd)


class Provider(NamedTuple):
    name: str
    load: Callable  # () -> prepare; raises ImportError
    package: str  # whose version a record names
    how: str  # to get it
    kinds: tuple = ("layer", "rms")
    directions: tuple = ("forward", "backward")
    from_y: bool = False  # its backward pass starts from y
    note: str = ""  # goes into its records


def by_autograd(function, own_dy=False):
    """prepare() of function(inputs, x, weight, bias) -> y, of which autograd knows the gradient.

    `own_dy`: it overwrites dy.
    """
    def prepare(direction, inputs):
        given = [tensor for tensor in (inputs.x, inputs.weight, inputs.bias) if tensor is not None]
        leaves = [tensor.detach().requires_grad_() for tensor in given]
        arguments = leaves if inputs.bias is not None else [*leaves, None]
        if direction == "forward":
            return lambda: (function(inputs, *arguments),)
        y = function(inputs, *arguments)
        dy = inputs.dy.clone() if own_dy else inputs.dy
        padding = () if inputs.bias is not None else (None,)
        return lambda: (*torch.autograd.grad(y, leaves, dy, retain_graph=True), *padding)
    return prepare


def in_functions(forward, backward):
    """prepare() of a package that has each pass as a function of the inputs."""
    return lambda direction, inputs: (lambda: (forward if direction == "forward" else backward)(inputs))


# --- PyTorch ---


def torch_norm(inputs, x, weight, bias):
    if inputs.kind == "layer":
        return F.layer_norm(x, weight.shape, weight, bias, inputs.eps)
    return F.rms_norm(x, weight.shape, weight, inputs.eps)


def load_torch():
    return by_autograd(torch_norm)  # native_layer_norm and native_layer_norm_backward


def load_compile():
    import torch._functorch.config
    import torch._inductor.config

    # A backward pass runs many times here, so that it may not reuse the memory of what is saved.
    torch._functorch.config.donated_buffer = False
    # What it chooses by timing, the process that measures chooses, on a GPU that does nothing else.
    if hasattr(torch._inductor.config, "autotune_local_cache"):
        torch._inductor.config.autotune_local_cache = False

    compiled, compiled_for = None, None

    def prepare(direction, inputs):
        nonlocal compiled, compiled_for
        problem = inputs.kind, inputs.dtype, inputs.x.shape
        if compiled_for != problem:
            torch._dynamo.reset()  # else it would go over to dynamic shapes
            options = SimpleNamespace(kind=inputs.kind, eps=inputs.eps)  # without tensors, which it would keep
            compiled = torch.compile(lambda x, weight, bias: torch_norm(options, x, weight, bias), dynamic=False)
            compiled_for = problem
        return by_autograd(lambda _, *arguments: compiled(*arguments))(direction, inputs)
    return prepare


# --- Triton ---


def load_liger():
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    def norm(inputs, x, weight, bias):
        if inputs.kind == "layer":
            return LigerLayerNormFunction.apply(x, weight, bias, inputs.eps)
        return LigerRMSNormFunction.apply(x, weight, inputs.eps)  # overwrites dy unless told otherwise

    return lambda direction, inputs: by_autograd(norm, own_dy=inputs.kind == "rms")(direction, inputs)


def load_flash_attention():
    module = importlib.import_module("flash_attn.ops.triton.layer_norm")

    # For every width and type it times six configurations anew; a quarter of Triton's 0.1 s for each still is
    # hundreds of launches of what takes 0.1 ms.
    choose_by(module, lambda call, quantiles: triton_testing().do_bench(call, warmup=5, rep=25, quantiles=quantiles))
    leave_out_spills(module)
    return by_autograd(lambda inputs, x, weight, bias: module.layer_norm_fn(
        x, weight, bias, eps=inputs.eps, is_rms_norm=inputs.kind == "rms"))


def triton_testing():
    return importlib.import_module("triton.testing")


def choose_by(module, bench):
    """Lets a module's autotuned Triton kernels choose their configuration by bench(call, quantiles)."""
    for kernel in vars(module).values():
        if hasattr(kernel, "configs") and hasattr(kernel, "_do_bench"):
            kernel._do_bench = bench


MOST_ELEMENTS = 128  # of a row that a thread holds; its registers are 255, and a backward pass has three such arrays


def leave_out_spills(module):
    """Takes from a module's autotuned kernels the configurations with so few warps that a thread holds more of a row
    than it has registers. They cannot be the fastest, and ptxas needs 14 s for 8192 columns a warp, 70 for 16384."""
    def without_spills(configs, named, **more):
        block = {**named, **more}.get("BLOCK_N", 0)
        return [config for config in configs if block <= MOST_ELEMENTS * 32 * config.num_warps] or configs

    for kernel in vars(module).values():
        if hasattr(kernel, "configs") and hasattr(kernel, "early_config_prune"):
            kernel.early_config_prune = kernel.early_config_prune or without_spills


def choose_without_timing():
    """The same for those that are loaded, where they only need to be compiled: each runs once."""
    def once(call, quantiles):
        call()
        return [1.0] * len(quantiles)

    module = sys.modules.get("flash_attn.ops.triton.layer_norm")
    if module:
        choose_by(module, once)
    module = sys.modules.get("common.bench.helion_norms")
    for kernel in module.KERNELS if module else ():
        kernel.settings.autotune_effort = "none"


# --- Helion ---

HELION_EFFORT = os.environ.get("HELION_AUTOTUNE_EFFORT", "none")  # minutes a shape, where it is not "none"


def load_helion():
    os.environ["HELION_AUTOTUNE_EFFORT"] = HELION_EFFORT  # Helion's own default is "full"
    module = importlib.import_module("common.bench.helion_norms")

    def layer(direction, i):
        if direction == "backward":
            return module.ready(module.layer_backward, i.dy, i.x, i.weight, i.mean, i.rstd)
        forward = module.ready(module.layer_forward, i.x, i.weight, i.bias, i.eps)
        return lambda: forward()[:1]

    def rms(direction, i):
        if direction == "backward":
            backward = module.ready(module.rms_backward, i.dy, i.x, i.weight, i.rstd)
            return lambda: (*backward(), None)
        forward = module.ready(module.rms_forward, i.x, i.weight, i.eps)
        return lambda: forward()[:1]

    return lambda direction, inputs: (layer if inputs.kind == "layer" else rms)(direction, inputs)


# --- QuACK ---


def load_quack():
    module = importlib.import_module("quack.rmsnorm")

    def layer(direction, inputs):
        i = replace(inputs, weight=inputs.weight.float(), bias=inputs.bias.float())  # it takes no other
        if direction == "forward":
            return lambda: module.layernorm_fwd(i.x, i.weight, i.bias, i.eps, return_rstd=True, return_mean=True)[:1]
        if not hasattr(module, "layernorm_bwd"):
            raise Unavailable("this version has no layer norm backward; 0.5 and newer have")
        return lambda: module.layernorm_bwd(i.x, i.weight, i.dy, i.rstd, i.mean, has_bias=True)

    def rms_backward(i):
        dx, dweight, *_ = module.rmsnorm_bwd(i.x, i.weight, i.dy, i.rstd)
        return dx, dweight, None

    rms = in_functions(lambda i: module.rmsnorm_fwd(i.x, i.weight, eps=i.eps, store_rstd=True)[:1], rms_backward)
    return lambda direction, inputs: (layer if inputs.kind == "layer" else rms)(direction, inputs)


# --- cuDNN ---


def load_cudnn():
    module = importlib.import_module("cudnn.ops.norm")
    layer_norm, rms_norm = module.layer_norm, module.rms_norm  # imported here, not in the first pass

    def norm(i, x, weight, bias):
        if i.kind == "layer":
            return layer_norm(x, weight.shape, weight, bias, i.eps)
        return rms_norm(x, weight, eps=i.eps)

    def prepare(direction, i):
        if i.kind == "layer":  # its kernel takes no other parameters; the front end would convert them in each pass
            i = replace(i, weight=i.weight.float(), bias=i.bias.float())
        return by_autograd(norm)(direction, i)
    return prepare


def cudnn_version():
    """The library's, whose kernels run: the front end's is another."""
    return importlib.import_module("cudnn").backend_version_string()


# --- Apex and Transformer Engine ---


def load_apex(memory_efficient):
    importlib.import_module("fused_layer_norm_cuda")
    module = importlib.import_module("apex.normalization.fused_layer_norm")

    def norm(inputs, x, weight, bias):
        if inputs.kind == "layer":
            return module.fused_layer_norm_affine(x, weight, bias, weight.shape, inputs.eps, memory_efficient)
        return module.fused_rms_norm_affine(x, weight, weight.shape, inputs.eps, memory_efficient)

    return by_autograd(norm)


def load_apex_fast():
    from apex.contrib.layer_norm.layer_norm import FastLayerNormFN

    return by_autograd(lambda inputs, x, weight, bias: FastLayerNormFN.apply(x, weight, bias, inputs.eps))


def load_transformer_engine():
    from transformer_engine.pytorch.constants import TE_DType
    tex = importlib.import_module("transformer_engine_torch")

    def forward(i):
        options = (i.eps, None, None, TE_DType[i.x.dtype], 0, False)
        if i.kind == "layer":
            return tex.layernorm_fwd(i.x, i.weight, i.bias, *options)[:1]
        return tex.rmsnorm_fwd(i.x, i.weight, *options)[:1]

    def backward(i):
        if i.kind == "layer":
            return tuple(tex.layernorm_bwd(i.dy, i.x, i.mean, i.rstd, i.weight, 0, False))
        return (*tex.rmsnorm_bwd(i.dy, i.x, i.rstd, i.weight, 0, False), None)

    return in_functions(forward, backward)


APEX = "github.com/NVIDIA/apex, built from source with its CUDA extensions"
PEERS = (
    Provider("torch", load_torch, "torch", "pytorch.org"),
    Provider("torch.compile", load_compile, "triton", "pip install triton"),
    Provider("liger", load_liger, "liger-kernel", "pip install liger-kernel"),
    Provider("quack", load_quack, "quack-kernels", "pip install quack-kernels",
             note="layer norm with float parameters"),
    Provider("flash-attention", load_flash_attention, "flash-attn", "pip install flash-attn --no-build-isolation"),
    Provider("cudnn", load_cudnn, "nvidia-cudnn-frontend", "pip install 'nvidia-cudnn-frontend>=1.32'",
             note="layer norm with float parameters"),
    Provider("helion", load_helion, "helion", "pip install helion==1.5.0, the newest for PyTorch 2.11",
             note=f"autotune effort {HELION_EFFORT}"),
    Provider("apex", lambda: load_apex(False), "apex", APEX),
    Provider("apex-memory-efficient", lambda: load_apex(True), "apex", APEX, directions=("backward",), from_y=True),
    Provider("apex-fast", load_apex_fast, "apex", f"{APEX}, --fast_layer_norm among them", kinds=("layer",)),
    Provider("transformer-engine", load_transformer_engine, "transformer-engine",
             "pip install --no-build-isolation transformer-engine[pytorch]"),
)


# --- This project's ---


class SharedOutputs:
    """What our passes write to: the same for each copy of the inputs, as a peer gets the same from
    PyTorch's allocator each time. It lives as long as one of the calls."""

    def __init__(self):
        self.tensors = weakref.WeakValueDictionary()

    def take(self, name, shape, dtype, device):
        """Floats are NaN, so that nothing stale passes for a result."""
        kept = self.tensors.get(name)
        if kept is None or (kept.shape, kept.dtype, kept.device) != (shape, dtype, device):
            kept = self.tensors[name] = torch.empty(shape, dtype=dtype, device=device)
        return kept.fill_(float("nan")) if dtype.is_floating_point else kept


class OwnCall:
    """One pass of the C library, ready: calling it is one C call and nothing else."""

    def __init__(self, loaded, args, tensors, outputs, shared):
        plan = loaded.plan(args)
        self.chapter = plan.chapter.decode()
        device = outputs[0].device
        workspace = shared.take("workspace", (plan.workspace_bytes,), torch.uint8, device)
        args.workspace, args.workspace_bytes = workspace.data_ptr(), plan.workspace_bytes
        if device.type == "cuda":
            args.stream = torch.cuda.current_stream(device).cuda_stream
        self.loaded, self.args, self.outputs, self.kept = loaded, args, outputs, (tensors, workspace)

    def __call__(self):
        self.loaded.run(self.args)
        return self.outputs


def own_call(loaded, chapter, direction, i, shared=None, batch_invariant=False):
    """An OwnCall of a chapter, or of the dispatch's choice (None)."""
    shared = shared or SharedOutputs()
    given = {name: getattr(i, name) for name in ("x", "weight", "bias", "mean", "rstd", "dy", "y")}
    likes = {"y": i.x, "mean": i.mean, "rstd": i.rstd} if direction == "forward" else {
        "dx": i.dy, "dweight": i.weight, "dbias": i.bias}
    empty = {name: None if like is None else shared.take(name, like.shape, like.dtype, like.device)
             for name, like in likes.items()}
    tensors = {**given, **empty, "x": None if direction == "backward" and i.y is not None else i.x}
    args = ForwardArgs() if direction == "forward" else BackwardArgs()
    outputs = (empty["y"],) if direction == "forward" else tuple(empty.values())
    args.chapter = chapter and chapter.encode()
    args.problem = Problem(KINDS[i.kind], CODES[DTYPES[i.dtype]], CODES[str(i.weight.dtype).removeprefix("torch.")],
                           i.eps, *i.x.shape, batch_invariant)
    for name, _ in args._fields_:
        if tensors.get(name) is not None:
            setattr(args, name, tensors[name].data_ptr())
    return OwnCall(loaded, args, tensors, outputs, shared)


def by_package(from_y, batch_invariant):
    """The dispatch as a model calls it: layernorm_chapters' functions, by autograd."""
    def norm(inputs, x, weight, bias):
        options = {"eps": inputs.eps, "memory_efficient": from_y, "batch_invariant": batch_invariant}
        if inputs.kind == "layer":
            return layernorm_chapters.layer_norm(x, weight.shape, weight, bias, **options)
        return layernorm_chapters.rms_norm(x, weight.shape, weight, **options)
    return by_autograd(norm)


def own_providers(path, backend, with_launch=False):
    """The dispatch as it is, batch-invariant and from y, and each kernel, of the library at `path`.
    `with_launch`: the dispatch is called as a model calls it."""
    os.environ["LNC_LIBRARY"] = str(path)
    loaded = Library(path)
    if loaded.backend != backend:
        raise LibraryError(f"{path} is of the {loaded.backend} backend")
    shared = SharedOutputs()

    def own(name, chapter, directions, from_y):
        as_model = with_launch and chapter is None
        batch_invariant = name == "dispatch-invariant"
        prepare = by_package(from_y, batch_invariant) if as_model else functools.partial(
            own_call, loaded, chapter, shared=shared, batch_invariant=batch_invariant)
        return Provider(name, lambda: prepare, "", "make library", directions=directions, from_y=from_y)

    chapters = loaded.chapters()
    found = [own(name, None, DIRECTIONS, False) for name in ("dispatch", "dispatch-invariant")]
    if any(chapter.from_y for chapter in chapters):
        found.append(own("dispatch-from-y", None, ("backward",), True))
    return found + [own(chapter.id, chapter.id, DIRECTIONS[chapter.backward:][:1], chapter.from_y)
                    for chapter in chapters]


def versions(names):
    """{package: its version, or None} of the peers of these names."""
    found = {provider.package: version(provider.package) for provider in PEERS if provider.name in names}
    return {**found, "torch": torch.__version__.split("+")[0], "cudnn": cudnn_version() if "cudnn" in names else None}


def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
