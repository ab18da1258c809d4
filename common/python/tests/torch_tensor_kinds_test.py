"""Tensors of every kind: what the functions and modules take of them, and in which words they refuse the others."""

import numpy
import pytest

from common.python.tests.norms import EPS, F, lnc, random, torch


# --- Nested tensors ---


@pytest.mark.parametrize("kind", ("layer", "rms"))
def test_a_nested_tensor_of_ragged_rows(device, kind):
    parts = [random(rows, 8, device=device, grad=False) for rows in (3, 1, 5)]
    x = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
    module = (lnc.LayerNorm if kind == "layer" else lnc.RMSNorm)(8, device=device)
    y = module(x)
    assert y.is_nested and (y + x).shape == x.shape  # of the same raggedness
    for one, part in zip(y.unbind(), parts):
        assert torch.equal(one, module(part))
    y.values().square().sum().backward()
    dense = torch.cat(parts).requires_grad_()
    module(dense).square().sum().backward()
    assert torch.equal(x.grad.values(), dense.grad)


def test_nested_tensors_that_are_refused(device):
    parts = [torch.randn(rows, 8, device=device) for rows in (3, 1)]
    with pytest.raises(ValueError, match="dimension 1 of the nested tensor x is ragged"):
        lnc.layer_norm(torch.nested.nested_tensor(parts, layout=torch.jagged), (3, 8))
    for requires_grad in (False, True):
        strided = torch.nested.nested_tensor(parts, layout=torch.strided, requires_grad=requires_grad)
        with pytest.raises(TypeError, match="x is a nested tensor of layout torch.strided"):
            lnc.rms_norm(strided, 8)
    jagged = torch.nested.nested_tensor(parts, layout=torch.jagged)
    with pytest.raises(TypeError, match="x is a nested tensor, which a fused pass does not take"):
        lnc.fused_add_layer_norm(jagged, jagged, 8)


# --- Other kinds ---


def test_tensors_of_other_layouts_are_refused(device):
    x = torch.randn(3, 8, device=device)
    for other in (x.to_sparse(), x.to_sparse_csr()):
        with pytest.raises(TypeError, match="x is of layout torch.sparse_.*; it must be dense, torch.strided"):
            lnc.layer_norm(other, 8)
    with pytest.raises(TypeError, match="weight is of layout torch.sparse_coo"):
        lnc.layer_norm(x, 8, x[0].to_sparse())
    for inplace in (False, True):
        with pytest.raises(TypeError, match="residual is of layout torch.sparse_coo"):
            lnc.fused_add_layer_norm(x.clone(), x.to_sparse(), 8, inplace=inplace)
    jagged = torch.nested.nested_tensor([x[:2], x[:1]], layout=torch.jagged)
    for call in (lambda: lnc.layer_norm(x, 8, jagged), lambda: lnc.fused_add_layer_norm(x, jagged, 8)):
        with pytest.raises(TypeError, match="(weight|residual) is a nested tensor; it must be a dense one"):
            call()


def test_a_tensor_that_is_negated_lazily(device):
    x = torch.randn(3, 8, device=device)
    assert torch.equal(lnc.layer_norm(torch._neg_view(x), 8), lnc.layer_norm(-x, 8))
    for name, written in (("x", (torch._neg_view(x), x)), ("residual", (x, torch._neg_view(x)))):
        with pytest.raises(ValueError, match=f"{name} is negated lazily.*: give it as {name}.resolve_neg"):
            lnc.fused_add_layer_norm(*written, 8, inplace=True)
    weight = x[0].clone()
    y, _ = lnc.fused_add_layer_norm(x.clone(), x.clone(), 8, torch._neg_view(weight), inplace=True)
    assert torch.equal(y, lnc.fused_add_layer_norm(x, x, 8, -weight)[0])


def test_tensors_without_elements_on_the_meta_device(device):
    x, residual = torch.randn(3, 8, device="meta"), torch.randn(3, 8, device="meta", requires_grad=True)
    y, total = lnc.fused_add_layer_norm(x, residual, 8)
    assert (y.shape, y.device.type) == ((3, 8), "meta")
    lnc.layer_norm(residual, 8).sum().backward()
    assert residual.grad.is_meta


def test_integers_of_numpy(device):
    x = torch.randn(3, 4, 8, device=device)
    for shape in (numpy.int64(8), (numpy.int64(4), 8), [4, numpy.int32(8)], torch.Size([8])):
        own = (shape,) if isinstance(shape, numpy.integer) else shape
        assert torch.equal(lnc.layer_norm(x, shape), lnc.layer_norm(x, tuple(map(int, own))))
    assert torch.equal(lnc.layer_norm(x, 8, eps=numpy.float32(0.5)), lnc.layer_norm(x, 8, eps=0.5))


def wrong_types():
    x = torch.randn(3, 8)
    return [(lambda d: lnc.layer_norm([1.0], 8), "x is of type list; it must be a tensor$"),
            (lambda d: lnc.layer_norm(None, 8), "x is of type NoneType; it must be a tensor$"),
            (lambda d: lnc.layer_norm(x.to(d), 8, [1.0]), "weight is of type list; it must be a tensor or None"),
            (lambda d: lnc.layer_norm(x.to(d), 8.0), "normalized_shape is 8.0; it must be an integer, or several"),
            (lambda d: lnc.layer_norm(x.to(d), (8.0,)), "normalized_shape is 8.0; it must be an integer, or several"),
            (lambda d: lnc.layer_norm(x.to(d), "8"), "normalized_shape is '8'; it must be an integer, or several"),
            (lambda d: lnc.layer_norm(x.to(d), 8, eps=None), "eps is None; it must be a number"),
            (lambda d: lnc.rms_norm(x.to(d), 8, eps="small"), "eps is 'small'; it must be a number"),
            (lambda d: lnc.fused_add_rms_norm(x.to(d), [1.0], 8), "residual is of type list; it must be a tensor or None"),
            (lambda d: lnc.fused_add_rms_norm(x.to(d), None, 8, x1=1.0), "x1 is of type float; it must be a tensor or None"),
            (lambda d: lnc.fused_add_rms_norm(x.to(d), x.to(d), 8, dropout="half"), "dropout is 'half'; it must be a number"),
            (lambda d: lnc.fused_add_rms_norm(1.0, 2.0, 8, inplace=True), "x is of type float; it must be a tensor$"),
            (lambda d: lnc.layer_norm(x.to(d), 8, eps=torch.ones(2)), "eps is tensor.*; it must be a number"),
            (lambda d: lnc.fused_add_rms_norm(x.to(d), x.to(d), 8, dropout=torch.ones(2)), "dropout is tensor.*; it must be a n"),
            (lambda d: lnc.layer_norm(x.to(d), 8, zero_centred="no"), "zero_centred is 'no'; it must be True or False"),
            (lambda d: lnc.fused_add_rms_norm(x.to(d), x.to(d), 8, residual_in_fp32="no"),
             "residual_in_fp32 is 'no'; it must be True or False"),
            (lambda d: lnc.fused_add_rms_norm(x.to(d), x.to(d), 8, memory_efficient=True),
             r"fused_add_rms_norm\(\) takes no memory_efficient")]


@pytest.mark.parametrize("call, words", wrong_types(), ids=[words for _, words in wrong_types()])
def test_an_argument_of_a_wrong_type_is_named(device, call, words):
    with pytest.raises(TypeError, match=words):
        call(device)


def test_numbers_that_are_too_large_or_too_small_are_named(device):
    x = torch.randn(3, 8, device=device)
    for call, words in ((lambda: lnc.layer_norm(x, 2 ** 63), "normalized_shape is 9223372036854775808"),
                        (lambda: lnc.layer_norm(x, 8, eps=10 ** 400), "eps is 1000*, which is too large"),
                        (lambda: lnc.fused_add_rms_norm(x, x, 8, dropout=1e-50), "dropout is 1e-50, which float32 rounds to 0"),
                        (lambda: lnc.fused_add_rms_norm(x, x, 8, seed=2 ** 80), "seed is .*; it must be None, or an integer"),
                        (lambda: lnc.layer_norm(x, 8, chapter=""), "chapter=''")):
        with pytest.raises(ValueError, match=words):
            call()


@pytest.mark.parametrize("eps", (1e39, float("inf"), float("nan"), -1e-5))
def test_an_eps_that_is_no_float_is_named(device, eps):
    with pytest.raises(ValueError, match="eps is .*; it must be finite in float32, and 0 or more"):
        lnc.layer_norm(torch.randn(3, 8, device=device), 8, eps=eps)


def test_operators_that_are_called_directly_read_nothing_beyond_their_arguments(device):
    """As a program may that saved their names: a statistic too few would be read from behind the tensor."""
    ops = torch.ops.layernorm_chapters
    x, dy = torch.randn(6, 8, device=device), torch.randn(6, 8, device=device)
    _, statistics = ops.norm(x, [8], None, None, EPS, False)

    def norm_backward(**changes):
        given = {"dy": dy, "saved": x, "shape": [8], "weight": None, "bias": None, "statistics": statistics, **changes}
        return ops.norm_backward(*given.values(), EPS, False, False, False, True, True, None)

    def add_norm_backward(**changes):
        given = {"dy": dy, "dsum": None, "dy1": None, "sum": x, "shape": [8], "weight": None, "bias": None, "weight1": None,
                 "bias1": None, "statistics": statistics, "rowscale": None, "rowscale1": None, "seeds": None, "seeds1": None, **changes}
        return ops.add_norm_backward(*given.values(), 0.0, EPS, False, False, True, False, None)

    for run, changes, words in (
            (norm_backward, {"statistics": statistics[:1]}, r"statistics has shape \[1, 6\]; it must have a number for each"),
            (norm_backward, {"statistics": statistics.double()}, "statistics is of torch.float64; it must be of torch.float32"),
            (norm_backward, {"saved": x[:5]}, r"saved has shape \[5, 8\]; it must be that of"),
            (norm_backward, {"weight": x[0, :7]}, r"weight has shape \[7\]; it must be normalized_shape"),
            (norm_backward, {"dy": dy[:, :7]}, "the last dimensions of dy"),
            (add_norm_backward, {"statistics": statistics[:, :5]}, r"statistics has shape \[2, 5\]"),
            (add_norm_backward, {"dsum": dy[:5]}, r"dsum has shape \[5, 8\]"),
            (add_norm_backward, {"dy1": dy.half()}, "dy1 is of torch.float16"),
            (add_norm_backward, {"sum": x.half()}, "sum is of torch.float16"),
            (add_norm_backward, {"rowscale": torch.ones(5, device=device)}, r"rowscale has shape \[5\]"),
            (add_norm_backward, {"seeds": torch.zeros(6, device=device, dtype=torch.int32)}, "seeds is given; give it exactly where"),
            (add_norm_backward, {"weight1": x[0, :7]}, r"weight1 has shape \[7\]")):
        assert run() is not None
        with pytest.raises((TypeError, ValueError), match=words):
            run(**changes)
        with pytest.raises((TypeError, ValueError, RuntimeError), match=words):  # without elements, too
            run(**{name: t.to("meta") if isinstance(t, torch.Tensor) else t for name, t in
                   {"dy": dy, ("saved" if run is norm_backward else "sum"): x, "statistics": statistics, **changes}.items()})


def test_what_a_fused_module_does_not_do_is_said(device):
    for module in (lnc.FusedAddLayerNorm, lnc.FusedAddRMSNorm):
        with pytest.raises(ValueError, match="memory_efficient=True keeps the result"):
            module(8, memory_efficient=True)
        assert "memory_efficient" not in repr(module(8)) and "dropout=0.5" in repr(module(8, dropout=0.5))
    with pytest.raises(ValueError, match="chapter=5: name a forward kernel"):
        lnc.layer_norm(torch.randn(3, 8, device=device), 8, chapter=5)
    with pytest.raises(ValueError, match="seed is 2.5; it must be None, or an integer"):
        lnc.fused_add_layer_norm(torch.randn(3, 8, device=device), None, 8, dropout=0.5, seed=2.5)


# --- In place, on tensors that share memory ---


def layouts_of_one_tensor():
    """Two views of one tensor, and whether an element of the one is an element of the other."""
    def views(of_x, of_residual, shares):
        def make(device):
            whole = torch.randn(12, 96, device=device)
            return of_x(whole), of_residual(whole)
        return make, shares

    return {
        "the same columns": views(lambda t: t[:, :40], lambda t: t[:, :40], True),
        "columns side by side": views(lambda t: t[:, :40], lambda t: t[:, 40:80], False),
        "columns that overlap by one": views(lambda t: t[:, :40], lambda t: t[:, 39:79], True),
        "rows in turn": views(lambda t: t[::2, :40], lambda t: t[1::2, :40], False),
        "rows in turn and one of the same": views(lambda t: t[::2, :40], lambda t: t[2:8, :40], True),
        "columns in turn": views(lambda t: t[:, :80:2], lambda t: t[:, 1:81:2], False),
        "columns in turn, and dense ones": views(lambda t: t[:, :80:2], lambda t: t[:, 40:80], True),
        "a dense half, and rows of the other": views(lambda t: t[:6], lambda t: t[6:12], False),
        "transposed": views(lambda t: t[:, :12], lambda t: t[:, :12].t(), True),
        "every third column, from here and from there": views(lambda t: t[:, :24:3], lambda t: t[:, 1:25:3], False),
        "strides of 2 and 3": views(lambda t: t.flatten()[:96:2].view(6, 8), lambda t: t.flatten()[:144:3].view(6, 8), True),
        "strides that never meet": views(lambda t: t.flatten()[:96:2].view(6, 8), lambda t: t.flatten()[1:193:4].view(6, 8), False),
    }


@pytest.mark.parametrize("name", layouts_of_one_tensor())
@torch.no_grad()
def test_in_place_on_views_of_one_tensor(device, name):
    make, shares = layouts_of_one_tensor()[name]
    x, residual = make(device)
    cols = x.shape[-1]
    before = x.clone(), residual.clone()
    if shares:
        with pytest.raises(ValueError, match="x and residual share memory"):
            lnc.fused_add_rms_norm(x, residual, cols, inplace=True)
        assert torch.equal(x, before[0]) and torch.equal(residual, before[1])
        return
    y, total = lnc.fused_add_rms_norm(*before, cols)
    lnc.fused_add_rms_norm(x, residual, cols, inplace=True)
    assert torch.equal(x, y) and torch.equal(residual, total)


# --- Tensors on several devices ---


def test_a_sharded_tensor_behind_pytorchs_norm(device, mesh):
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    x, weight = random(6, 40, device=device, grad=False), random(40, device=device, grad=False)
    rows, whole = distribute_tensor(x, mesh, [Shard(0)]), distribute_tensor(weight, mesh, [Replicate()])
    with lnc.enabled():
        y = F.layer_norm(rows, (40,), whole, None, EPS)
    assert isinstance(y, DTensor) and y.placements == (Shard(0),)
    assert torch.equal(y.to_local(), lnc.layer_norm(x, 40, weight, None, EPS))


@pytest.mark.parametrize("dim", (0, 1, None))
@pytest.mark.parametrize("what", ("module", "memory-efficient", "fused", "fused float residual", "fused second"))
def test_a_sharded_tensor(device, mesh, dim, what):
    """The rows stay where they are, and the gradients of the weights are sums that are still to be made."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    placement = Replicate() if dim is None else Shard(dim)
    options = {"memory_efficient": True} if what == "memory-efficient" else {}

    def run(x, residual, weight, other):
        if not what.startswith("fused"):
            return (lnc.layer_norm(x, 40, weight, None, EPS, **options),)
        second = {"weight1": other} if "second" in what else {}
        return lnc.fused_add_layer_norm(x, residual, 40, weight, None, EPS, residual_in_fp32="float" in what, **second)

    dtype = torch.bfloat16 if "float" in what else torch.float32
    plain = [random(4, 6, 40, device=device, dtype=dtype), random(4, 6, 40, device=device, dtype=dtype),
             random(40, device=device, dtype=dtype, mean=2.0), random(40, device=device, dtype=dtype, mean=2.0)]
    sharded = [distribute_tensor(t.detach(), mesh, [placement if t.dim() > 1 else Replicate()]).requires_grad_() for t in plain]
    results, right = run(*sharded), run(*plain)
    for y, expected in zip(results, right):
        assert isinstance(y, DTensor) and y.placements == (placement,) and torch.equal(y.full_tensor(), expected)
    sum(y.float().sum() * (i + 1) for i, y in enumerate(results)).backward()
    sum(y.float().sum() * (i + 1) for i, y in enumerate(right)).backward()
    for ours, theirs in zip(sharded, plain):
        assert (ours.grad is None) == (theirs.grad is None)
        if ours.grad is not None:
            assert torch.equal(ours.grad.full_tensor(), theirs.grad)
            assert ours.grad.placements in ((placement,), (Partial(),) if dim is not None else (Replicate(),))


def test_what_a_fused_pass_does_not_do_with_a_sharded_tensor_is_said(device, mesh):
    from torch.distributed.tensor import Shard, distribute_tensor

    x = distribute_tensor(torch.randn(6, 40, device=device), mesh, [Shard(0)])
    for options, what in (({"dropout": 0.1, "seed": 3}, "dropout"), ({"inplace": True}, "inplace")):
        with pytest.raises(TypeError, match=f"x is a DTensor, for which fused passes support no {what}"):
            lnc.fused_add_layer_norm(x, x, 40, **options)


def test_norms_over_other_dimensions_of_one_sharded_tensor(device, mesh):
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    x = random(4, 6, 40, device=device, grad=False)
    sharded = distribute_tensor(x, mesh, [Shard(1)])
    for run in (lnc.layer_norm, lnc.rms_norm):
        for shape, placement in ((40, Shard(1)), ((6, 40), Replicate()), (40, Shard(1))):
            y = run(sharded, shape)
            assert y.placements == (placement,) and torch.equal(y.full_tensor(), run(x, shape))


def test_a_sharded_module_compiles_whole(device, mesh):
    from torch.distributed.tensor import Replicate, Shard, distribute_module, distribute_tensor

    module = lnc.RMSNorm(40, device=device)
    torch.nn.init.normal_(module.weight)
    x = random(4, 6, 40, device=device, grad=False)
    right = module(x)
    distribute_module(module, mesh)
    torch.compiler.reset()
    y = torch.compile(module, fullgraph=True)(distribute_tensor(x, mesh, [Shard(0)]))
    assert y.placements == (Shard(0),) and torch.allclose(y.full_tensor(), right, atol=1e-6)
    assert module.weight.placements == (Replicate(),)
