"""Layer norm and RMS norm in Helion's language, forward and backward, for compare_peers.py. Needs Helion.

They follow examples/layer_norm.py and examples/rms_norm.py of Helion's repository. Forward, a program normalizes a few
rows. Backward, each program takes a share of the rows and holds its sums for dweight and dbias; PyTorch adds up the
programs' sums.

Helion chooses the launch parameters, and HELION_AUTOTUNE_EFFORT says how. With `none`, its heuristics for reductions do
and nothing is timed. `quick` and `full` search for minutes a shape; Helion keeps what they find in its own cache.
"""

import functools

import helion
import helion.language as hl
import torch

kernel = helion.kernel(ignore_warnings=[helion.exc.TensorOperationInWrapper])


@kernel
def layer_forward(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float):
    rows, cols = x.size()
    y = torch.empty_like(x)
    mean = torch.empty([rows], dtype=torch.float32, device=x.device)
    rstd = torch.empty([rows], dtype=torch.float32, device=x.device)
    for tile in hl.tile(rows):
        value = x[tile, :].to(torch.float32)
        average = value.sum(-1) / cols
        centered = value - average[:, None]
        inverse = torch.rsqrt((centered * centered).sum(-1) / cols + eps)
        xhat = centered * inverse[:, None]
        y[tile, :] = (xhat * weight[:].to(torch.float32) + bias[:].to(torch.float32)).to(x.dtype)
        mean[tile] = average
        rstd[tile] = inverse
    return y, mean, rstd


@kernel
def rms_forward(x: torch.Tensor, weight: torch.Tensor, eps: float):
    rows, cols = x.size()
    y = torch.empty_like(x)
    rstd = torch.empty([rows], dtype=torch.float32, device=x.device)
    for tile in hl.tile(rows):
        value = x[tile, :].to(torch.float32)
        inverse = torch.rsqrt((value * value).sum(-1) / cols + eps)
        y[tile, :] = (value * inverse[:, None] * weight[:].to(torch.float32)).to(x.dtype)
        rstd[tile] = inverse
    return y, rstd


@kernel
def layer_backward(dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor):
    rows, cols = x.size(0), hl.specialize(x.size(1))
    share = hl.register_block_size(rows)
    shares = (rows + share - 1) // share
    dx = torch.empty_like(x)
    dweight = x.new_empty([shares, cols], dtype=torch.float32)
    dbias = x.new_empty([shares, cols], dtype=torch.float32)
    for block in hl.tile(rows, block_size=share):
        weight_sum = weight.new_zeros(cols, dtype=torch.float32)
        bias_sum = weight.new_zeros(cols, dtype=torch.float32)
        factor = weight[None, :].to(torch.float32)
        for tile in hl.tile(block.begin, block.end):
            gradient = dy[tile, :].to(torch.float32)
            inverse = rstd[tile][:, None]
            xhat = (x[tile, :].to(torch.float32) - mean[tile][:, None]) * inverse
            weight_sum += (gradient * xhat).sum(0)
            bias_sum += gradient.sum(0)
            weighted = gradient * factor
            along = (weighted * xhat).sum(-1) / cols
            average = weighted.sum(-1) / cols
            dx[tile, :] = ((weighted - xhat * along[:, None] - average[:, None]) * inverse).to(x.dtype)
        dweight[block.id, :] = weight_sum
        dbias[block.id, :] = bias_sum
    return dx, dweight.sum(0).to(weight.dtype), dbias.sum(0).to(weight.dtype)


@kernel
def rms_backward(dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, rstd: torch.Tensor):
    rows, cols = x.size(0), hl.specialize(x.size(1))
    share = hl.register_block_size(rows)
    shares = (rows + share - 1) // share
    dx = torch.empty_like(x)
    dweight = x.new_empty([shares, cols], dtype=torch.float32)
    for block in hl.tile(rows, block_size=share):
        weight_sum = weight.new_zeros(cols, dtype=torch.float32)
        factor = weight[None, :].to(torch.float32)
        for tile in hl.tile(block.begin, block.end):
            gradient = dy[tile, :].to(torch.float32)
            inverse = rstd[tile][:, None]
            xhat = x[tile, :].to(torch.float32) * inverse
            weight_sum += (gradient * xhat).sum(0)
            weighted = gradient * factor
            along = (weighted * xhat).sum(-1) / cols
            dx[tile, :] = ((weighted - xhat * along[:, None]) * inverse).to(x.dtype)
        dweight[block.id, :] = weight_sum
    return dx, dweight.sum(0).to(weight.dtype)


KERNELS = (layer_forward, rms_forward, layer_backward, rms_backward)


def ready(function, *arguments):
    """A call of a kernel. Without a search its configuration is set here: it is the one that Helion would take, but
    Helion would print it for each shape."""
    if function.settings.autotune_effort == "none":
        bound = function.bind(arguments)
        bound.set_config(bound.config_spec.default_config())
    return functools.partial(function, *arguments)
