"""What stands in for QuACK while its tests run: its functions, by layernorm_chapters.

The references that its tests compare with are its own, taken from the source of its checkout.
"""

import ast

import layernorm_chapters as lnc
import torch
from layernorm_chapters import operators

REPOSITORY = "Dao-AILab/quack"
FILES = ("tests/test_layernorm.py", "tests/test_rmsnorm.py")
OTHER_FILES = {}
REFUSALS = "asks for QuACK's own words of refusal, also of CPU tensors and of weights that ours take"
LAUNCH = "sets QuACK's launch parameters"
LEFT_OUT = {
    "test_layernorm_input_validation": REFUSALS,
    "test_rmsnorm_input_validation": REFUSALS,
    "test_rmsnorm_compile_cache": "counts the kernels that QuACK has compiled; ours are compiled beforehand",
    "test_rmsnorm_degenerate_cluster_config_is_clamped": LAUNCH,
    "test_rmsnorm_fwd_tuned_config": LAUNCH,
    "test_rmsnorm_bwd_tuned_config": LAUNCH,
    "test_rmsnorm_fwd_tuned_dispatch": LAUNCH,
    "test_rmsnorm_bwd_tuned_dispatch": LAUNCH,
    "test_rmsnorm_fwd_tuned_requires_config": LAUNCH,
    "test_rmsnorm_bwd_tuned_requires_config": LAUNCH,
}
LARGE = ("test_amp_bf16_training", "test_rmsnorm_strided_tensor")
MOST_ELEMENTS = 1 << 18  # of a tensor on the CPU backend: a backward pass of it takes about half a second


def left_out_on_cpu(test, parameters):
    if test == "test_layernorm_forward_masks_oob_variance_lanes":
        return "there PyTorch's own result, which the test compares with, is 1e-4 from double precision; ours is 1e-7"
    elements = parameters.get("M", 0) * parameters.get("N", 0)
    return "too large for the CPU backend" if test in LARGE or elements > MOST_ELEMENTS else None


def is_zero_centred(offset):
    if offset not in (0.0, 1.0):
        raise NotImplementedError(f"a weight with an offset of {offset}; ours have 0 and 1")
    return offset == 1.0


def rms_and_sum(x, weight, bias, residual, residual_dtype, eps, offset):
    """(y, the sum of x and the residual, or x). Ours has no bias, so PyTorch adds it."""
    total = x
    if residual is None:
        y = lnc.rms_norm(x, x.shape[-1], weight, eps, zero_centred=is_zero_centred(offset))
    else:
        y, total = lnc.fused_add_rms_norm(x, residual, x.shape[-1], weight, eps, zero_centred=is_zero_centred(offset),
                                          residual_in_fp32=residual_dtype == torch.float32)
    if bias is not None:
        y = (y + bias).to(y.dtype)
    return y, total


def of_head(tensor, head, dimension):
    return None if tensor is None else tensor.select(dimension, head)


def each_head(x, weight, bias, residual, *more):
    """The same where each head has a weight of its own: a call a head, on rows that lie apart."""
    parts = [rms_and_sum(of_head(x, head, -2), weight[head], of_head(bias, head, 0), of_head(residual, head, -2), *more)
             for head in range(weight.shape[0])]
    return tuple(torch.stack(part, -2) for part in zip(*parts))


def rmsnorm(x, weight=None, bias=None, residual=None, out_dtype=None, residual_dtype=None, eps=1e-6, prenorm=False,
            weight_offset=0.0):
    norm = each_head if weight is not None and weight.dim() == 2 else rms_and_sum
    y, total = norm(x, weight, bias, residual, residual_dtype, eps, weight_offset)
    y = y if out_dtype is None else y.to(out_dtype)
    return (y, total) if prenorm else y


def rmsnorm_fwd(x, weight=None, bias=None, residual=None, out_dtype=None, residual_dtype=None, eps=1e-6,
                store_rstd=False, weight_offset=0.0):
    y, total = rmsnorm(x, weight, bias, residual, out_dtype, residual_dtype, eps, True, weight_offset)
    if not store_rstd:
        return y, total, None
    statistics = operators.load().norm.default(total, total.shape[-1:], None, None, eps, True)[1]
    return y, total, statistics[0].view(total.shape[:-1])


def backward(x, weight, bias, dout, statistics, rms, zero_centred=False):
    return operators.load().norm_backward.default(
        dout, x, x.shape[-1:], weight, bias, statistics, 1e-6, rms, False, zero_centred, True, bias is not None, None)


def rmsnorm_bwd(x, weight, dout, rstd, dresidual_out=None, has_bias=False, has_residual=False, weight_offset=0.0):
    if dresidual_out is not None or has_residual:
        raise NotImplementedError("the gradient of a residual without its forward pass")
    dx, dweight, _ = backward(x, weight, None, dout, rstd.unsqueeze(0), True, is_zero_centred(weight_offset))
    return dx, dweight, dout.float().sum(0).to(weight.dtype) if has_bias else None, None


def layernorm_fwd(x, weight, bias=None, eps=1e-6, return_rstd=False, return_mean=False):
    y, (mean, rstd) = operators.load().norm.default(x, x.shape[-1:], weight, bias, eps, False)
    results = (y, *((rstd,) if return_rstd else ()), *((mean,) if return_mean else ()))
    return results if len(results) > 1 else y


def layernorm_bwd(x, weight, dout, rstd, mean, has_bias=True):
    bias = torch.zeros_like(weight) if has_bias else None  # whose values the gradients do not depend on
    dx, dweight, dbias = backward(x, weight, bias, dout, torch.stack([mean, rstd]), False)
    return dx, dweight, dbias if has_bias else None


def references(file):
    """{name: function} of the functions of a file whose names end in _ref."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.endswith("_ref")]
    found = {"torch": torch, "Tensor": torch.Tensor}
    exec(compile(tree, file, "exec"), found)
    return {node.name: found[node.name] for node in tree.body}


def modules(checkout, backend):
    own = {"rmsnorm": rmsnorm, "rmsnorm_fwd": rmsnorm_fwd, "rmsnorm_bwd": rmsnorm_bwd, "layernorm_fwd": layernorm_fwd,
           "layernorm_bwd": layernorm_bwd}
    return {"quack": {}, "quack.rmsnorm": own | references(checkout / "quack/rmsnorm.py"),
            "quack.cute_dsl_utils": {}, "quack.rmsnorm_config": {}}


def prepare(backend):
    pass
