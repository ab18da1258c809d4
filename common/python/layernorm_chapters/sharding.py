"""How the operators split over devices, for DTensor: a norm's rows are its own, whichever device has them."""

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._op_schema import RuntimeSchemaInfo
from torch.distributed.tensor.experimental import register_sharding

from .operators import load

# Each function below gives the strategies for one dimension of the mesh, a pair each: the placements of the outputs,
# and of the arguments, in which None stands for what is no tensor. Rows may be replicated, or sharded in any of their
# dimensions, in which statistics, [2, *rows], are sharded along.


def _strategies(x, shape, placements, sharded=True):
    """placements(of rows, of statistics, of sums over rows) for rows that are replicated, and that are sharded."""
    replicated = placements(Replicate(), Replicate(), Replicate())
    dims = range(x.ndim - len(shape)) if sharded else ()
    return [replicated, *(placements(Shard(dim), Shard(1 + dim), Partial()) for dim in dims)]


def _each(placement, *tensors):
    return [None if tensor is None else placement for tensor in tensors]


def _nones(others):
    return [None] * len(others)


def _norm(x, shape, weight, bias, *others):
    return _strategies(x, shape, lambda rows, statistics, sums: (
        [rows, statistics], [rows, None, *_each(Replicate(), weight, bias), *_nones(others)]))


def _norm_backward(dy, saved, shape, weight, bias, statistics_of_rows, *others):
    return _strategies(dy, shape, lambda rows, statistics, sums: (
        [rows, sums, sums], [rows, rows, None, *_each(Replicate(), weight, bias), statistics, *_nones(others)]))


def _one_for_each_row(x, shape, tensors):
    """Whether rowscales and seeds have the shape of x's rows, and can be sharded as these are."""
    return all(tensor is None or tensor.ndim == x.ndim - len(shape) for tensor in tensors)


def _add_norm(x, residual, shape, weight, bias, x1, weight1, bias1, *others):
    of_rows, others = others[:4], others[4:]  # rowscale, rowscale1, seeds, seeds1; the numbers
    second = weight1 is not None or bias1 is not None
    return _strategies(x, shape, lambda rows, statistics, sums: (
        [rows, rows, statistics, rows if second else Replicate()],
        [rows, *_each(rows, residual), None, *_each(Replicate(), weight, bias), *_each(rows, x1),
         *_each(Replicate(), weight1, bias1), *_each(rows, *of_rows), *_nones(others)]),
        _one_for_each_row(x, shape, of_rows))


def _add_norm_backward(dy, dsum, dy1, total, shape, weight, bias, weight1, bias1, statistics_of_rows, *others):
    of_rows, others = others[:4], others[4:]
    dropout, _, _, _, has_residual, has_x1, *_ = others
    changes = of_rows[0] is not None or dropout > 0.0
    own_dx1 = has_x1 and changes
    own_dresidual = has_residual and (changes or total.tensor_meta.dtype != dy.tensor_meta.dtype)
    return _strategies(dy, shape, lambda rows, statistics, sums: (
        [rows, rows if own_dx1 else Replicate(), rows if own_dresidual else Replicate(), sums, sums,
         *([sums, sums] if dy1 is not None else [Replicate(), Replicate()])],
        [rows, *_each(rows, dsum, dy1), rows, None, *_each(Replicate(), weight, bias, weight1, bias1), statistics,
         *_each(rows, *of_rows), *_nones(others)]), _one_for_each_row(dy, shape, of_rows))


_registered = False


@torch.compiler.assume_constant_result  # a trace runs it and records nothing
def register_shardings():
    """Tells DTensor, once."""
    global _registered
    if _registered:
        return True
    _registered = True
    operators = load()
    for name, strategies in (("norm", _norm), ("norm_backward", _norm_backward), ("add_norm", _add_norm),
                             ("add_norm_backward", _add_norm_backward)):
        operator = getattr(operators, name).default
        register_sharding(operator)(strategies)
        # DTensor remembers what it was told by the arguments from the first integer on, and these operators have lists
        # of integers and booleans alone: by default a norm over other dimensions would get the shardings of this one.
        DTensor._op_dispatcher.sharding_propagator.op_to_schema_info[operator] = RuntimeSchemaInfo(1, needs_pytree=True)
    return True
