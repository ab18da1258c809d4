"""replace_norms(model): the norms of a model that exists, of whatever class, by the chapters.

torch.nn's LayerNorm and RMSNorm are known. Of other classes whose name ends in Norm (a Llama's, Gemma's, T5's) a
module is tried: where layer norm, RMS norm, or RMS norm with 1 + weight gives what its own forward gives, that
replaces it.
"""

import torch

from .modules import LayerNorm, RMSNorm
from .operators import layer_norm, rms_norm


def _layer(module, x):
    return layer_norm(x, module.weight.shape, module.weight, getattr(module, "bias", None), _eps(module))


def _rms(module, x):
    return rms_norm(x, module.weight.shape, module.weight, _eps(module))


def _zero_centred_rms(module, x):
    return rms_norm(x, module.weight.shape, module.weight, _eps(module), zero_centred=True)


def _torchs_layer(module, x):
    return layer_norm(x, module.normalized_shape, module.weight, module.bias, module.eps)


def _torchs_rms(module, x):
    return rms_norm(x, module.normalized_shape, module.weight, module.eps)


def _eps(module):
    """Of a class that is not torch.nn's: the names that are in use."""
    for name in ("variance_epsilon", "eps", "epsilon", "norm_eps"):
        if isinstance(value := getattr(module, name, None), float):
            return value
    return None


def _agrees(module, norm):
    """Whether `norm` gives what the module's forward gives, on rows that are neither centred nor of deviation 1."""
    weight = module.weight
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        x = (3.0 * torch.randn(4, weight.shape[-1]) + 1.0).to(weight.device, weight.dtype)
        try:
            theirs, ours = type(module).forward(module, x), norm(module, x)
        except Exception:  # it takes something else, or needs more
            return False
    if not isinstance(theirs, torch.Tensor) or theirs.shape != ours.shape:
        return False
    noise = 1e-5 if weight.dtype == torch.float32 else 2e-2
    difference = (theirs.float() - ours.float()).norm()
    return bool(difference <= noise * theirs.float().norm()) and bool(theirs.float().norm() > 0)


def _replacement(module):
    """The norm for a module, or None."""
    if isinstance(module, (LayerNorm, RMSNorm)):
        return None
    if type(module) is torch.nn.LayerNorm:
        return _torchs_layer
    if type(module) is torch.nn.RMSNorm:
        return _torchs_rms
    weight = getattr(module, "weight", None)
    if not type(module).__name__.endswith("Norm") or not isinstance(weight, torch.Tensor) or weight.dim() != 1:
        return None
    if isinstance(module, torch.nn.modules.batchnorm._NormBase):
        return None
    return next((norm for norm in (_rms, _zero_centred_rms, _layer) if _agrees(module, norm)), None)


class Replaced:
    """What replace_norms did: `names` of the modules. undo() gives them their own forward back."""

    def __init__(self):
        self.names = []
        self._undo = []

    def __repr__(self):
        return f"{len(self.names)} norms by layernorm_chapters"

    def undo(self):
        for module, own in self._undo:
            module.__class__ = own
        self._undo, self.names = [], []


def replace_norms(model):
    """Has every norm of the model that the kernels can stand in for use them. Parameters, hooks and state_dict stay.
    Returns a Replaced, whose undo() takes it back."""
    done = Replaced()
    classes = {}
    for name, module in model.named_modules():
        norm = _replacement(module)
        if norm is None:
            continue
        own = type(module)
        if (own, norm) not in classes:
            classes[own, norm] = type(own.__name__, (own,), {"forward": norm, "__doc__": own.__doc__})
        module.__class__ = classes[own, norm]
        done.names.append(name)
        done._undo.append((module, own))
    return done
