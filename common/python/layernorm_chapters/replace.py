"""replace_norms(model): runs an existing model's norms, of whatever class, on the chapters' kernels.

A module of torch.nn's LayerNorm or RMSNorm, or of any class whose name ends in Norm, is probed: a copy of it, on the
CPU, with random weights, normalises random rows. Only where its outputs and gradients are those of layer norm, of RMS
norm, or of RMS norm with 1 + weight, over the last dimensions, do the kernels stand in for it, and only for the types
and numbers of dimensions for which the probe has shown it. Everything else still goes to the module's own forward.
"""

import contextlib
import copy
import functools
import inspect
import math
import warnings
from typing import NamedTuple

import torch
from torch import Tensor

from .modules import LayerNorm, RMSNorm
from .operators import layer_norm, library, rms_norm

ROW_TYPES = (torch.float32, torch.float16, torch.bfloat16)
WEIGHT_TYPES = (*ROW_TYPES, torch.float64)
KINDS = (("rms", False), ("rms", True), ("layer", False), ("layer", True))  # and whether the weight is about zero


class Recipe(NamedTuple):
    """How the kernels stand in for a module, and for which calls."""
    kind: str  # "layer" or "rms"
    zero_centred: bool
    eps: str  # the attribute that holds it
    argument: str | None  # the name of its forward's only argument, if it may be given by name
    leading: tuple  # numbers of dimensions before those that are normalised over
    types: tuple  # pairs: of x, of the weight; None where there is none
    device: str  # the kernels'

    def takes(self, module, x):
        weight, shape = module.weight, _shape_of(module)
        of_weight = None if weight is None else weight.dtype
        return (isinstance(x, Tensor) and x.layout is torch.strided and x.device.type == self.device
                and x.dim() - len(shape) in self.leading and (x.dtype, of_weight) in self.types
                and x.shape[x.dim() - len(shape):] == shape
                # Autocast has rules of its own for what the module's forward is made of.
                and not (x.dtype != torch.float32 and torch.is_autocast_enabled(x.device.type)))

    def norm(self, module, x):
        eps = getattr(module, self.eps)
        if self.kind == "rms":
            return rms_norm(x, _shape_of(module), module.weight, eps, zero_centred=self.zero_centred)
        return layer_norm(x, _shape_of(module), module.weight, getattr(module, "bias", None), eps,
                          zero_centred=self.zero_centred)


class _ByKernels:
    """The class of a replaced module is made of this and of its own class."""
    _by_layernorm_chapters = None  # a module's Recipe, which undo() takes away

    def forward(self, *arguments, **named):
        recipe = self._by_layernorm_chapters
        if recipe is not None:
            x = None
            if len(arguments) == 1 and not named:
                x, = arguments
            elif not arguments and len(named) == 1:
                x = named.get(recipe.argument)
            if x is not None and recipe.takes(self, x):
                return recipe.norm(self, x)
        return super().forward(*arguments, **named)

    def __reduce_ex__(self, protocol):
        rebuild, arguments, *state = super().__reduce_ex__(max(protocol, 2))
        own = _own_class(type(self))
        if own is None:  # somebody has made a further class of it, whose business this is
            return (rebuild, arguments, *state)
        return (_rebuilt, (own, *arguments[1:]), *state)


@functools.cache
def _class_by_kernels(own):
    """A class that pickle and copy know as its own class (_rebuilt), since no module has it by name."""
    names = {"__doc__": own.__doc__, "__module__": own.__module__, "__qualname__": own.__qualname__}
    return type(own.__name__, (_ByKernels, own), names)


def _own_class(by_kernels):
    """The class that a module of this class had before; None where this is none of ours."""
    own = by_kernels.__mro__[2] if by_kernels.__mro__[1] is _ByKernels else None
    return own if own is not None and _class_by_kernels(own) is by_kernels else None


def _rebuilt(own, *arguments):
    by_kernels = _class_by_kernels(own)
    return by_kernels.__new__(by_kernels, *arguments)


def _shape_of(module):
    """What it normalises over."""
    return module.weight.shape if not hasattr(module, "normalized_shape") else torch.Size(module.normalized_shape)


# --- Probing --------------------------------------------------------------------------------------


class _LeftAlone(Exception):
    """Why the kernels do not stand in for a module, in a sentence."""


def _obstacle(module):
    """Why a module cannot be replaced, as far as that is known without running it; else None."""
    if isinstance(module, (LayerNorm, RMSNorm)):
        return "it is one of this package's modules"
    if getattr(module, "_by_layernorm_chapters", None) is not None:
        return "it is replaced already"
    if "forward" in vars(module):
        return "its forward was set on the module itself, as accelerate does"
    if hasattr(module, "parametrizations"):
        return "its parameters are parametrised, as by weight_norm; call replace_norms before that"
    for kind, found in (("parameters", module._parameters), ("buffers", module._buffers), ("modules", module._modules)):
        others = [name for name, part in found.items() if part is not None and not (kind == "parameters" and
                                                                                  name in ("weight", "bias"))]
        if others:
            return f"it has {kind} other than weight and bias: {', '.join(others)}"
    tensors = [name for name, value in vars(module).items() if isinstance(value, Tensor)]
    if tensors:
        return f"it has tensors that are neither parameters nor buffers: {', '.join(tensors)}"
    if not hasattr(module, "normalized_shape"):
        if not isinstance(module._parameters.get("weight"), Tensor):
            return "it has no weight"
        if module.weight.dim() != 1:
            return f"its weight has {module.weight.dim()} dimensions"
    for name, parameter in module._parameters.items():
        if parameter is not None and parameter.shape != _shape_of(module):
            return f"its {name} is of shape {list(parameter.shape)}, and it normalises over {list(_shape_of(module))}"
    return None


def _is_simple(value):
    """Whether a copy of it is cheap, and of it alone."""
    if isinstance(value, (tuple, list, set)):
        return all(map(_is_simple, value))
    if isinstance(value, dict):
        return all(map(_is_simple, value.values()))
    return isinstance(value, (int, float, str, bytes, type(None), torch.dtype, torch.device))


def _probe_of(module, dtype, training=False):
    """A module like it on the CPU, without its hooks, and with random parameters of a type in place of its own."""
    probe = object.__new__(type(module))
    torch.nn.Module.__init__(probe)
    hooks_and_parts = set(vars(probe)) - {"training"}
    for name, value in vars(module).items():
        if name not in hooks_and_parts:
            probe.__dict__[name] = copy.deepcopy(value) if _is_simple(value) else value
    probe.__dict__["training"] = training
    for name, own in module._parameters.items():
        fresh = None
        if own is not None:
            fresh = torch.randn(own.shape, device="cpu") * 0.5 + (1.0 if name == "weight" else 0.0)
            fresh = torch.nn.Parameter(fresh.to(dtype), requires_grad=dtype.is_floating_point)
        probe._parameters[name] = fresh
    return probe


def _rows(leading, shape, magnitude, dtype=torch.float32):
    """Rows of a mean and a deviation of `magnitude`, and the first of them zeros."""
    x = magnitude * (torch.randn(*leading, *shape, device="cpu") + 1.0)
    if leading:
        x.view(-1, *shape)[0] = 0.0
    return x.to(dtype)


def _leading_sizes(count, shape):
    """Sizes that none of the dimensions that are normalised over has, so that no two can be mistaken."""
    return tuple([size for size in (3, 2, 5, 7, 11, 13) if size not in shape][:count])


def _reference(kind, zero_centred, x, shape, weight, bias, eps):
    """The norm in double."""
    over = tuple(range(-len(shape), 0))
    z = x.double()
    centred = z if kind == "rms" else z - z.mean(over, keepdim=True)
    y = centred / (centred.square().mean(over, keepdim=True) + eps).sqrt()
    if weight is not None:
        y = y * (weight.double() + (1.0 if zero_centred else 0.0))
    return y if bias is None else y + bias.double()


def _close(found, right, limit):
    """Whether each row is right within `limit` of its norm."""
    found, right = found.detach().double().flatten(1), right.detach().double().flatten(1)
    return bool(((found - right).norm(dim=1) <= limit * right.norm(dim=1)).all())


def _as_rows(x, shape):
    return x.reshape(-1, math.prod(shape))


_MAGNITUDES = (1e-6, 1e-4, 1e-2, 1.0, 1e3)  # of x; among them those beside which an eps from 1e-12 up shows


class _Formula(NamedTuple):
    kind: str
    zero_centred: bool
    eps: str

    def of(self, probe, x, shape):
        eps = getattr(probe, self.eps)
        return _reference(self.kind, self.zero_centred, x, shape, probe.weight, getattr(probe, "bias", None),
                          torch.finfo(torch.float32).eps if eps is None else eps)

    def agrees(self, probe, x, shape, y, limit=1e-5):
        right = self.of(probe, x, shape)
        return y.shape == right.shape and _close(_as_rows(y, shape), _as_rows(right, shape), limit)


def _forward(probe, x):
    y = type(probe).forward(probe, x)
    if not isinstance(y, Tensor):
        raise _LeftAlone(f"its forward returns {type(y).__name__}, not a tensor")
    return y


def _leading_of(probe, shape):
    """The numbers of leading dimensions for which it works. Others than two, [batch, tokens, …], it may refuse."""
    works = []
    for count in (2, 0, 1, 3):
        try:
            _forward(probe, _rows(_leading_sizes(count, shape), shape, 1.0))
            works.append(count)
        except _LeftAlone:
            raise
        except Exception as error:
            if count == 2:
                sizes = [*_leading_sizes(2, shape), *shape]
                raise _LeftAlone(f"its forward fails on rows of shape {sizes}: {_first_line(error)}") from None
    return tuple(sorted(works))


def _first_line(error):
    return f"{type(error).__name__}: {error}".split("\n")[0][:200]


def _formula_of(module, shape, leading):
    """The formula that gives what the module gives, of rows of every magnitude and number of dimensions."""
    probe = _probe_of(module, torch.float32)
    samples = [_rows(_leading_sizes(count, shape), shape, magnitude) for count in leading for magnitude in _MAGNITUDES]
    if len(shape) == 1 and shape[0] <= 64:  # where every dimension could be the one
        samples.append(_rows((shape[0], shape[0]), shape, 1.0))
    outputs = [_forward(probe, x) for x in samples]
    if any(y.dtype != torch.float32 for y in outputs):
        raise _LeftAlone("given float32, it returns another type")
    attributes = [name for name, value in (*vars(module).items(), *vars(type(module)).items())
                  if isinstance(value, float) or (value is None and name in ("eps", "epsilon"))]
    for kind, zero_centred in KINDS:
        if kind == "rms" and getattr(module, "bias", None) is not None:
            continue
        for eps in attributes:
            formula = _Formula(kind, zero_centred, eps)
            if all(formula.agrees(probe, x, shape, y) for x, y in zip(samples, outputs)):
                return formula
    raise _LeftAlone("it gives neither layer norm nor RMS norm over the last dimensions, with one of its attributes as "
                     "eps in the root")


def _check_gradients(module, formula, shape):
    for magnitude in (1e-3, 1.0, 1e3):
        probe = _probe_of(module, torch.float32, training=True)
        x = _rows(_leading_sizes(2, shape), shape, magnitude)[1:].requires_grad_()
        leaves = [x, *(p for p in probe._parameters.values() if p is not None)]
        y, right = _forward(probe, x), formula.of(probe, x, shape)
        dy = torch.randn_like(y)
        if not y.requires_grad:
            raise _LeftAlone("its result has no gradient")
        found = torch.autograd.grad(y, leaves, dy, allow_unused=True)
        expected = torch.autograd.grad(right, leaves, dy.double())
        for ours, theirs in zip(found, expected):
            if ours is None or not _close(_as_rows(ours, shape), _as_rows(theirs, shape), 1e-4):
                raise _LeftAlone("its gradients differ")


def _types_of(module, formula, shape):
    """The types of x and weight of which it makes x's type again, within a few roundings."""
    types = []
    for of_x in ROW_TYPES:
        for of_weight in WEIGHT_TYPES if module._parameters.get("weight") is not None else (None,):
            probe = _probe_of(module, of_weight or torch.float32)
            try:
                agrees = all(_agrees_in(probe, formula, shape, _rows(_leading_sizes(2, shape), shape, magnitude, of_x))
                             for magnitude in (1e-2, 1.0, 300.0))
            except Exception:  # it does not take these types: then the kernels do not, either
                continue
            if agrees:
                types.append((of_x, of_weight))
    return tuple(types)


def _agrees_in(probe, formula, shape, x):
    y = _forward(probe, x)
    return y.dtype == x.dtype and formula.agrees(probe, x, shape, y, max(1e-5, torch.finfo(x.dtype).eps))


def _check_training(module, formula, shape):
    x = _rows(_leading_sizes(2, shape), shape, 1.0)
    for training in (True, False):
        probe = _probe_of(module, torch.float32, training)
        if not formula.agrees(probe, x, shape, _forward(probe, x)):
            raise _LeftAlone(f"{'in training' if training else 'in eval()'} it computes something else")


def _argument_of(module):
    """The name of the first argument of its forward, where it has one."""
    parameters = list(inspect.signature(type(module).forward).parameters.values())
    first = parameters[1] if len(parameters) > 1 else None
    return first.name if first is not None and first.kind is first.POSITIONAL_OR_KEYWORD else None


@contextlib.contextmanager
def _apart():
    """Runs the block under PyTorch's own defaults (device, type, autocast) and restores what was set before."""
    default = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]), torch.device("cpu"), torch.enable_grad(), \
            torch.autocast("cpu", enabled=False), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of types that it does not take gladly
        torch.set_default_dtype(torch.float32)
        torch.manual_seed(1)
        try:
            yield
        finally:
            torch.set_default_dtype(default)


def _recipe_of(module):
    """The Recipe for a module. Raises _LeftAlone."""
    shape = _shape_of(module)
    with _apart():
        leading = _leading_of(_probe_of(module, torch.float32), shape)
        formula = _formula_of(module, shape, leading)
        _check_training(module, formula, shape)
        _check_gradients(module, formula, shape)
        types = _types_of(module, formula, shape)
    return Recipe(*formula, _argument_of(module), leading, types, library().backend)


def _kind_of(module):
    """What two modules share that one probe does for; None where that cannot be told."""
    settings = {name: value for name, value in vars(module).items()
                if name != "training" and not name.startswith("_")}
    if not _is_simple(settings):
        return None
    given = tuple((name, part is not None) for name, part in module._parameters.items())
    return type(module), _shape_of(module), given, repr(sorted(settings.items()))


# --- Replacing ------------------------------------------------------------------------------------


class Replaced:
    """What replace_norms did: `names` of the modules that the kernels stand in for, and `left_alone`, {name: why} of
    the other norms. undo() gives the modules their own forward back."""

    def __init__(self):
        self.names, self.left_alone = [], {}
        self._modules = []

    def __repr__(self):
        return f"{len(self.names)} norms by layernorm_chapters, {len(self.left_alone)} left alone"

    def undo(self):
        """Undoes this replacement and nothing else: what others have made of the modules since stays."""
        for module in self._modules:
            vars(module).pop("_by_layernorm_chapters", None)  # now forward() is its own
            own = _own_class(type(module))
            if own is not None and "forward" not in vars(module):  # which may call the one that was found here
                module.__class__ = own
        self._modules, self.names = [], []


def _is_norm(module):
    return type(module).__name__.endswith("Norm") or isinstance(module, (torch.nn.LayerNorm, torch.nn.RMSNorm))


def replace_norms(model):
    """Replaces the forward of every norm in the model that computes what the kernels compute.

    Parameters, hooks and state_dict stay. A call that the kernels do not take goes to the module's own forward.
    Returns a Replaced, which says what was left alone and why; its undo() restores the originals.
    """
    done = Replaced()
    known = {}  # what was probed: a Recipe, or why not
    for name, module in model.named_modules():
        if not _is_norm(module):
            continue
        found = _obstacle(module)
        if found is None:
            kind = _kind_of(module)
            found = known.get(kind) if kind is not None else None
        if found is None:
            try:
                found = _recipe_of(module)
            except _LeftAlone as why:
                found = str(why)
            except Exception as error:  # of its own forward, under conditions that it did not expect
                found = f"it cannot be tried on the CPU: {_first_line(error)}"
            if kind is not None:
                known[kind] = found
        if isinstance(found, str):
            done.left_alone[name] = found
            continue
        module.__class__ = _class_by_kernels(type(module))
        module._by_layernorm_chapters = found
        done.names.append(name)
        done._modules.append(module)
    return done
