"""What the tests of the package share: PyTorch's norms and ours, random tensors, errors against double precision."""

import os

from common.tools.pytest_fixtures import import_torch

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # PyTorch's threads and the CPU library's
torch = import_torch()
import layernorm_chapters as lnc  # noqa: E402

F = torch.nn.functional
EPS = 1e-5
LIMITS = {torch.float32: 1e-5, torch.float16: 6e-4, torch.bfloat16: 4e-3}
KINDS = ("layer", "rms")


def random(*shape, device, dtype=torch.float32, mean=0.0, grad=True):
    return (torch.randn(*shape, device=device) + mean).to(dtype).requires_grad_(grad)


def in_double(tensor):
    return None if tensor is None else tensor.detach().double().requires_grad_()


def error(ours, right):
    ours, right = ours.detach().double(), right.detach().double()
    return float((ours - right).norm() / right.norm().clamp_min(1e-30))


def torch_norm(kind, x, shape, weight=None, bias=None):
    """PyTorch's."""
    return F.layer_norm(x, shape, weight, bias, EPS) if kind == "layer" else F.rms_norm(x, shape, weight, EPS)


def own_norm(kind, x, shape, weight=None, bias=None, **options):
    """Ours of the same."""
    if kind == "layer":
        return lnc.layer_norm(x, shape, weight, bias, EPS, **options)
    return lnc.rms_norm(x, shape, weight, EPS, **options)


def fused(kind):
    return lnc.fused_add_layer_norm if kind == "layer" else lnc.fused_add_rms_norm


def compare(kind, x, shape, weight, bias=None, factor=1.0, **options):
    """Our y and its gradients, against PyTorch's in double."""
    y = own_norm(kind, x, shape, weight, bias, **options)
    assert (y.shape, y.dtype, y.is_contiguous()) == (x.shape, x.dtype, True)
    z, w, b = (in_double(tensor) for tensor in (x, weight, bias))
    right = torch_norm(kind, z, (shape,) if isinstance(shape, int) else shape, w + 1.0 if options.get("zero_centred") else w, b)
    assert error(y, right) < LIMITS[x.dtype]
    dy = torch.randn_like(y)
    leaves, doubles = ([tensor for tensor in tensors if tensor is not None] for tensors in ((x, weight, bias), (z, w, b)))
    for leaf, ours, theirs in zip(leaves, torch.autograd.grad(y, leaves, dy), torch.autograd.grad(right, doubles, dy.double())):
        assert (ours.shape, ours.dtype) == (leaf.shape, leaf.dtype)
        assert error(ours, theirs) < factor * LIMITS.get(leaf.dtype, 1e-5)
