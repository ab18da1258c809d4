"""replace_norms(model): runs an existing model's norms, of whatever class, on the library's kernels.

A module of torch.nn's LayerNorm or RMSNorm, or of any class whose name ends in Norm, is probed: a copy of it, on the
CPU, with random weights, normalises random rows. Only where its outputs and gradients are those of layer norm, of RMS
norm, or of RMS norm with 1 + weight, over the last dimensions, do the kernels stand in for it, and only for the types
and numbers of dimensions for which the probe has shown it. Everything else still goes to the module's own forward.
"""

import contextlib
import copy
import functools
import inspect
import io
import math
import operator
import pickle
import types
import warnings
from typing import NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import maybe_current_level
from torch.autograd import forward_ad
from torch.utils import _python_dispatch

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
    names: tuple  # of the attributes that its forward may go by,
    values: tuple  # and what they were when it was probed
    read: operator.attrgetter  # of these names
    shape: tuple | None  # over which it normalises, where an attribute says that; else the weight's

    def takes(self, module, x):
        if not isinstance(x, Tensor) or forward_ad._current_level >= 0 or not self._is_as_probed(module, x):
            return False
        weight, shape = module.weight, self.shape or _shape_of(module)
        of_weight = None if weight is None else weight.dtype
        return (x.layout is torch.strided and x.device.type == self.device
                and x.dim() - len(shape) in self.leading and (x.dtype, of_weight) in self.types
                and x.shape[x.dim() - len(shape):] == shape
                # Autocast has rules of its own for what the module's forward is made of.
                and not (x.dtype != torch.float32 and torch.is_autocast_enabled(x.device.type)))

    def _is_as_probed(self, module, x):
        """Whether its attributes are what they were, and vmap, where it is at work, runs over something."""
        if torch.compiler.is_compiling():  # Dynamo knows neither attrgetter nor maybe_current_level
            return all(getattr(module, name, None) == value for name, value in zip(self.names, self.values))
        try:
            return self.read(module) == self.values and (maybe_current_level() is None or
                                                         not _is_vmap_over_nothing(x, module.weight))
        except Exception:  # an attribute is gone, or has become a tensor
            return False

    def norm(self, module, x):
        eps, shape = getattr(module, self.eps), self.shape or _shape_of(module)
        if self.kind == "rms":
            return rms_norm(x, shape, module.weight, eps, zero_centred=self.zero_centred)
        return layer_norm(x, shape, module.weight, getattr(module, "bias", None), eps, zero_centred=self.zero_centred)


class _ByKernels:
    """The class of a replaced module is made of this and of its own class."""
    _by_layernorm_chapters = None  # a module's Recipe, which undo() takes away

    def __init_subclass__(cls, **named):
        if cls.__bases__[0] is not _ByKernels:  # a class that keeps a list of its subclasses need not know of ours
            super().__init_subclass__(**named)

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
        reduced, own = super().__reduce_ex__(max(protocol, 2)), _own_class(type(self))
        if own is None or isinstance(reduced, str):  # a subclass of ours that others made pickles as they say
            return reduced
        rebuild, arguments, *state = reduced
        call = tuple(own if part is type(self) else part for part in (rebuild, *arguments))
        return (_rebuilt, (own, *call), *state)


@functools.cache
def _class_by_kernels(own):
    """A class that pickle and copy know as its own class (_rebuilt), since no module has it by name."""
    names = {"__doc__": own.__doc__, "__module__": own.__module__, "__qualname__": own.__qualname__}
    return type(own.__name__, (_ByKernels, own), names)


def _own_class(by_kernels):
    """The class that a module of this class had before; None where this is none of ours."""
    own = by_kernels.__mro__[2] if by_kernels.__mro__[1] is _ByKernels else None
    return own if own is not None and _class_by_kernels(own) is by_kernels else None


def _rebuilt(own, rebuild, *arguments):
    module = rebuild(*arguments)
    if type(module) is own:  # what a __reduce__ of its own makes may be another
        module.__class__ = _class_by_kernels(own)
    return module


def _shape_of(module):
    """What it normalises over."""
    if not hasattr(module, "normalized_shape"):
        return module.weight.shape
    shape = module.normalized_shape
    return torch.Size((shape,) if isinstance(shape, int) else shape)


def _is_vmap_over_nothing(*tensors):
    """Whether vmap runs over 0 of one of these: PyTorch refuses that for an operator without a rule of its own."""
    return any(part is not None and torch.func.debug_unwrap(part).numel() == 0 for part in tensors)


# --- Probing --------------------------------------------------------------------------------------


class _LeftAlone(Exception):
    """Why the kernels do not stand in for a module, in a sentence."""


def _obstacle(module):
    """Why a module cannot be replaced, as far as that is known without running it; else None."""
    if isinstance(module, (LayerNorm, RMSNorm)):
        return "it is one of this package's modules"
    if isinstance(module, _ByKernels) and module._by_layernorm_chapters is not None:
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
    """Whether a value tells by == that it has changed, whatever it is made of."""
    if isinstance(value, (tuple, list, set)):
        return all(map(_is_simple, value))
    if isinstance(value, dict):
        return all(map(_is_simple, value.values()))
    return isinstance(value, (int, float, str, bytes, type(None), torch.dtype, torch.device))


class _Pickler(pickle.Pickler):
    """Writes what a module's attribute holds. For functions and classes, and for the module itself and its parameters,
    it writes which one it is."""

    NAMED = (type, types.FunctionType, types.ModuleType)

    def __init__(self, file, module):
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.own = {id(part) for part in (module, *module._parameters.values()) if part is not None}

    def persistent_id(self, part):
        is_function = isinstance(part, types.BuiltinFunctionType) and isinstance(part.__self__, self.NAMED)
        if id(part) in self.own or is_function or isinstance(part, self.NAMED):
            return id(part)
        if isinstance(part, (Tensor, torch.nn.Module, torch.Generator)):  # which could be large, and the model's
            raise TypeError(f"it holds a {type(part).__name__}")
        return None


def _written(value, module):
    """An attribute's value as bytes, which differ from those of another value."""
    file = io.BytesIO()
    _Pickler(file, module).dump(value)
    return file.getvalue()


# nn.Module's own attributes, among them what compile() sets, and ours.
_OF_EVERY_MODULE = frozenset({*vars(torch.nn.Module()), "_compiled_call_impl", "_by_layernorm_chapters"})


def _settings_of(module):
    """A module's attributes but for those of every module, and for those that no forward reads: FSDP keeps its state
    under a name that is not an identifier."""
    return {name: value for name, value in vars(module).items() if name not in _OF_EVERY_MODULE and name.isidentifier()}


def _kind_of(module):
    """What two modules share that one probe does for. Raises _LeftAlone."""
    written = []
    for name, value in sorted(_settings_of(module).items()):
        try:
            written.append((name, _written(value, module)))
        except Exception as error:
            raise _LeftAlone(f"its attribute {name!r} cannot be copied: {_first_line(error)}") from None
    given = tuple((name, part is not None) for name, part in module._parameters.items())
    return type(module), _shape_of(module), given, tuple(written)


def _probe_of(module, dtype, training=False):
    """A module like it on the CPU, without its hooks, and with random parameters of a type in place of its own."""
    probe = object.__new__(type(module))
    torch.nn.Module.__init__(probe)
    copies = {id(module): probe}
    for name, own in module._parameters.items():
        fresh = None
        if own is not None:
            fresh = torch.randn(own.shape, device="cpu") * 2.0 + (1.0 if name == "weight" else 0.0)
            fresh = torch.nn.Parameter(fresh.to(dtype), requires_grad=dtype.is_floating_point)
            copies[id(own)] = fresh
        probe._parameters[name] = fresh
    vars(probe).update(copy.deepcopy(_settings_of(module), copies), training=training)
    return probe


def _rows(leading, shape, magnitude, dtype=torch.float32):
    """Rows of a mean and a deviation of `magnitude`, and the first of them zeros."""
    x = magnitude * (torch.randn(*leading, *shape, device="cpu") + 1.0)
    if leading:
        x.view(-1, *shape)[0] = 0.0
    return x.to(dtype)


def _odd_rows(shape, dtype=torch.float32):
    """Ordinary rows, and before them some with an infinity, with a NaN, and with a single element that is not 0."""
    x = _rows(_leading_sizes(2, shape), shape, 1.0, dtype)
    rows = _as_rows(x, shape)
    rows[3] = 0.0
    rows[:4, 0] = torch.tensor([math.inf, -math.inf, math.nan, 1.0], device="cpu")
    return x


def _leading_sizes(count, shape):
    """Sizes that none of the dimensions that are normalised over has, so that no two can be mistaken."""
    return tuple([size for size in (3, 2, 5, 7, 11, 13) if size not in shape][:count])


def _reference(kind, zero_centred, x, shape, weight, bias, eps):
    """The norm in double, but for a mean square that float, in which the kernels compute, does not hold."""
    over = tuple(range(-len(shape), 0))
    z = x.double()
    centred = z if kind == "rms" else z - z.mean(over, keepdim=True)
    square = centred.square().mean(over, keepdim=True)
    y = centred / (square.masked_fill(square > torch.finfo(torch.float32).max, math.inf) + eps).sqrt()
    if weight is not None:
        y = y * (weight.double() + (1.0 if zero_centred else 0.0))
    return y if bias is None else y + bias.double()


def _same(found, right):
    return (found == right) | (found.isnan() & right.isnan())


def _close(found, right, limit):
    """Whether each row is right within `limit` of its norm, and has infinities and NaN where they are right."""
    found, right = found.detach().double().flatten(1), right.detach().double().flatten(1)
    odd = ~right.isfinite()
    if not _same(found, right)[odd].all():
        return False
    found, right = found.masked_fill(odd, 0.0), right.masked_fill(odd, 0.0)
    return bool(((found - right).norm(dim=1) <= limit * right.norm(dim=1)).all())


def _as_rows(x, shape):
    return x.reshape(-1, math.prod(shape))


# Of x. Beside the least of them an eps from 1e-12 up shows; the squares of the greatest are beyond float.
_HUGE = 1e25
_MAGNITUDES = (1e-6, 1e-4, 1e-2, 1.0, 1e3, 1e6, _HUGE)


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
        if y.shape == right.shape and x.isfinite().all() and x.abs().max() > 1e-3 * _HUGE:
            y = torch.where(y.isnan(), right, y)  # there PyTorch's own layer_norm gives NaN, and the kernels the bias
        return y.shape == right.shape and _close(_as_rows(y, shape), _as_rows(right, shape), limit)


def _state_of(probe):
    """What its forward could change, in a form that can be compared."""
    state = {}
    of_module = {name: getattr(probe, name) for name in ("training", "_parameters", "_buffers", "_modules")}
    for name, value in (_settings_of(probe) | of_module).items():
        try:
            state[name] = _written(value, probe)
        except Exception:
            state[name] = object()  # which equals nothing: it is new, since the module could be copied
    return state


def _forward(probe, x):
    """What its forward returns. Raises _LeftAlone where that is not all that it does."""
    tensors = (x, *(part for part in probe._parameters.values() if part is not None))
    before, copies = _state_of(probe), [part.detach().clone() for part in tensors]
    y = type(probe).forward(probe, x)
    after = _state_of(probe)
    for name in sorted({*before, *after}):
        if before.get(name) != after.get(name):
            raise _LeftAlone(f"its forward changes its attribute {name!r}")
    if not all(_same(part, was).all() for part, was in zip(tensors, copies)):
        raise _LeftAlone("its forward writes into its argument or its parameters")
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
    samples.append(_odd_rows(shape))
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
        if not formula.agrees(probe, x, shape, y):
            raise _LeftAlone("where x requires a gradient it computes something else")
        found = torch.autograd.grad(y, leaves, dy, allow_unused=True)
        expected = torch.autograd.grad(right, leaves, dy.double())
        for ours, theirs in zip(found, expected):
            if ours is None or not _close(_as_rows(ours, shape), _as_rows(theirs, shape), 1e-4):
                raise _LeftAlone("its gradients differ")


def _types_of(module, formula, shape):
    """The types of x and weight of which it makes x's type again, within a few roundings."""
    found = []
    for of_x in ROW_TYPES:
        samples = [_rows(_leading_sizes(2, shape), shape, magnitude, of_x) for magnitude in (1e-2, 1.0, 300.0, _HUGE)]
        samples.append(_odd_rows(shape, of_x))
        for of_weight in WEIGHT_TYPES if module._parameters.get("weight") is not None else (None,):
            probe = _probe_of(module, of_weight or torch.float32)
            try:
                agrees = all(_agrees_in(probe, formula, shape, x) for x in samples)
            except Exception:  # it does not take these types: then the kernels do not, either
                continue
            if agrees:
                found.append((of_x, of_weight))
    return tuple(found)


def _agrees_in(probe, formula, shape, x):
    y = _forward(probe, x)
    return y.dtype == x.dtype and formula.agrees(probe, x, shape, y, max(1e-5, torch.finfo(x.dtype).eps))


_MODES = (("", torch.enable_grad), (" under no_grad()", torch.no_grad), (" in inference_mode()", torch.inference_mode))


def _check_modes(module, formula, shape):
    samples = (_rows(_leading_sizes(2, shape), shape, 1.0), _odd_rows(shape))
    for training in (True, False):
        probe = _probe_of(module, torch.float32, training)
        for name, mode in _MODES:
            with mode():
                if not all(formula.agrees(probe, x, shape, _forward(probe, x)) for x in samples):
                    raise _LeftAlone(f"{'in training' if training else 'in eval()'}{name} it computes something else")


def _argument_of(module):
    """The name of the first argument of its forward, where it has one."""
    parameters = list(inspect.signature(type(module).forward).parameters.values())
    first = parameters[1] if len(parameters) > 1 else None
    return first.name if first is not None and first.kind is first.POSITIONAL_OR_KEYWORD else None


@contextlib.contextmanager
def _apart():
    """Runs the block under PyTorch's own defaults (device, type, autocast, no fake tensors, no inference_mode) and
    restores what was set before."""
    default = torch.get_default_dtype()
    with _python_dispatch._disable_current_modes(), torch.inference_mode(False), torch.enable_grad(), \
            torch.random.fork_rng(devices=[]), torch.device("cpu"), torch.autocast("cpu", enabled=False), \
            warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of types that it does not take gladly
        torch.set_default_dtype(torch.float32)
        torch.manual_seed(1)
        try:
            yield
        finally:
            torch.set_default_dtype(default)


def _names_of(module):
    """The names of the attributes, its own and its class's, by which its forward may go and that can be compared."""
    names = {name for name, value in _settings_of(module).items() if _is_simple(value)}
    for of in type(module).__mro__:
        if of not in torch.nn.Module.__mro__:
            names |= {name for name, value in vars(of).items() if _is_simple(value) and not name.startswith("__")}
    return tuple(sorted(names - _OF_EVERY_MODULE))


def _recipe_of(module):
    """The Recipe for a module. Raises _LeftAlone."""
    shape = _shape_of(module)
    with _apart():
        leading = _leading_of(_probe_of(module, torch.float32), shape)
        formula = _formula_of(module, shape, leading)
        _check_modes(module, formula, shape)
        _check_gradients(module, formula, shape)
        of_x_and_weight = _types_of(module, formula, shape)
        names = _names_of(module)
        names = names if len(names) > 1 else names * 2  # of which attrgetter makes a tuple
        read = operator.attrgetter(*names)
        values = read(_probe_of(module, torch.float32))  # of a copy, since a list may change
    return Recipe(*formula, _argument_of(module), leading, of_x_and_weight, library().backend, names, values, read,
                  tuple(shape) if "normalized_shape" in names else None)


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


def _known_recipe(module, known):
    """The Recipe for a module. Raises _LeftAlone. `known`: {kind: a Recipe, or why there is none}."""
    if why := _obstacle(module):
        raise _LeftAlone(why)
    kind = _kind_of(module)
    if kind not in known:
        try:
            known[kind] = _recipe_of(module)
        except _LeftAlone as why:
            known[kind] = str(why)
        except Exception as error:  # of its own forward, under conditions that it did not expect
            known[kind] = f"it cannot be tried on the CPU: {_first_line(error)}"
    if isinstance(known[kind], str):
        raise _LeftAlone(known[kind])
    return known[kind]


def replace_norms(model):
    """Replaces the forward of every norm in the model that computes what the kernels compute.

    Parameters, hooks and state_dict stay. A call that the kernels do not take goes to the module's own forward; so does
    every call after a change of a number, text or list among its attributes, eps included. A change within an object
    that is such an attribute, as a configuration is, is not noticed. torch.jit.script refuses a replaced module.
    Returns a Replaced, which says what was left alone and why; its undo() restores the originals.
    """
    done = Replaced()
    known = {}
    for name, module in model.named_modules():
        if not _is_norm(module):
            continue
        try:
            recipe = _known_recipe(module, known)
            if type(module).forward is not _ByKernels.forward:  # others may have kept our class when undo() was called
                module.__class__ = _class_by_kernels(type(module))
        except _LeftAlone as why:
            done.left_alone[name] = str(why)
        except Exception as error:  # whatever is odd about one module, the others are replaced
            done.left_alone[name] = f"it cannot be replaced: {_first_line(error)}"
        else:
            vars(module)["_by_layernorm_chapters"] = recipe
            done.names.append(name)
            done._modules.append(module)
    return done
