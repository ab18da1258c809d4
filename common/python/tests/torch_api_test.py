"""What the functions and modules have beyond PyTorch's two norms: rows apart, weights of any type, gradients of gradients,
the fused passes. Against PyTorch, in double where that computes."""

import itertools
import math
from contextlib import nullcontext

import pytest

from common.python.tests.norms import EPS, KINDS, LIMITS, F, compare, error, fused, in_double, lnc, own_norm, random, torch, torch_norm

WITHOUT = "this Python has no {}; `bash common/setup/setup.sh --with-torch` installs one into .venv-torch"


# --- Rows that lie apart ---


def copies_in(call, elements):
    """What the call gives, and how many copies of a tensor of so many elements, or more, it makes."""
    with torch.profiler.profile(record_shapes=True) as profile:
        result = call()
    return result, sum(event.name == "aten::copy_" and math.prod(event.input_shapes[0]) >= elements for event in profile.events())


def parts_of_wider_tensors(device, dtype):
    """By name: x and dy with a dense last dimension of 64, and whether the kernels take them without a copy."""
    def new(*shape):
        return random(*shape, device=device, dtype=dtype, grad=False)

    q, k, _ = new(2, 9, 3, 5, 64).unbind(2)
    return {
        "q of a fused projection": (q, new(2, 9, 5, 64), True),
        "k of a fused projection": (k, new(2, 9, 3, 5, 64)[:, :, 1], True),
        "heads before tokens": (new(2, 9, 5, 64).transpose(1, 2), new(2, 5, 9, 64), False),  # three row dimensions
        "one sequence, heads before tokens": (new(1, 9, 5, 64).transpose(1, 2), new(1, 5, 9, 64), True),
        "the first columns": (new(7, 130)[:, :64], new(7, 64), True),
        "columns that start at no 16-byte boundary": (new(7, 131)[:, 3:67], new(7, 131)[:, 2:66], True),
        "every second row": (new(14, 64)[::2], new(7, 64), True),
        "one gradient for all rows": (new(7, 64), new(1, 64).expand(7, 64), True),
        "one row for all": (new(64).expand(3, 7, 64), new(3, 7, 64), True),
        "columns that lie apart": (new(64, 7).t(), new(7, 128)[:, ::2], False),
        "four row dimensions": (new(4, 4, 4, 4, 64)[::2, ::2, ::2, ::2], new(2, 2, 2, 2, 64), False),
    }


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("door", ("ours", "enabled"))
def test_parts_of_wider_tensors_are_taken_without_a_copy(device, dtype, kind, door):
    if door == "enabled" and kind == "rms" and device == "cpu":
        pytest.skip("PyTorch fuses its RMS norm on a GPU alone")
    call = own_norm if door == "ours" else torch_norm
    weight, bias = random(64, device=device, dtype=dtype), random(64, device=device, dtype=dtype)
    for name, (x, dy, without_a_copy) in parts_of_wider_tensors(device, dtype).items():
        x.requires_grad_()
        leaves = [x, weight, bias] if kind == "layer" else [x, weight]
        with lnc.enabled() if door == "enabled" else nullcontext():
            y, forward_copies = copies_in(lambda: call(kind, x, (64,), weight, bias), x.numel())
            found, backward_copies = copies_in(lambda: torch.autograd.grad(y, leaves, dy), x.numel())
        z, w, b = in_double(x), in_double(weight), in_double(bias)
        right = torch_norm(kind, z, (64,), w, b)
        assert y.is_contiguous() and error(y, right) < LIMITS[dtype], name
        expected = torch.autograd.grad(right, [z, w, b][:len(leaves)], dy.double())
        for gradient, of in zip(found, expected):
            assert error(gradient, of) < LIMITS[dtype], name
        assert (forward_copies + backward_copies == 0) == without_a_copy, name


def test_a_gradient_of_a_parameter_that_is_not_there_has_its_shape(device):
    x, dy, weight = (random(*shape, device=device, grad=False) for shape in ((4, 8), (4, 8), (8,)))
    norm_of, backward_of = torch.ops.layernorm_chapters.norm, torch.ops.layernorm_chapters.norm_backward
    _, statistics = norm_of(x, (8,), weight, None, EPS, False)
    for of in (x, x.to("meta")):
        on = [t.to(of.device) for t in (dy, of, weight, statistics)]
        _, dweight, dbias = backward_of(on[0], on[1], (8,), on[2], None, on[3], EPS, False, False, False, True, True, None)
        assert (dweight.shape, dbias.shape) == ((8,), (8,))
        if of is x:
            assert error(dbias, dy.double().sum(0)) < 1e-5


def test_a_pinned_kernel_and_one_from_y_get_dense_rows(device):
    x, dy = random(4, 7, 64, device=device)[:, ::2], random(4, 4, 64, device=device, grad=False)
    for options in ({"chapter": ("lib_fwd_registers", "lib_bwd_any")}, {"memory_efficient": True}):
        y = lnc.layer_norm(x, 64, None, None, EPS, **options)
        dx, = torch.autograd.grad(y, x, dy)
        z = in_double(x)
        right = torch_norm("layer", z, (64,))
        assert error(y, right) < 1e-5
        assert error(dx, torch.autograd.grad(right, z, dy.double())[0]) < 4e-5


# --- Weights ---


@pytest.mark.parametrize("row", LIMITS, ids=str)
def test_any_type_of_weight_with_any_type_of_row(device, row):
    for of_weight, of_bias in itertools.product((*LIMITS, torch.float64), repeat=2):
        compare("layer", random(7, 48, device=device, dtype=row), 48, random(48, device=device, dtype=of_weight, mean=2.0),
                random(48, device=device, dtype=of_bias))


@pytest.mark.parametrize("kind", KINDS)
def test_a_weight_about_zero(device, kind):
    for dtype in LIMITS:
        x = random(7, 64, device=device, dtype=dtype)
        weight = (0.001 * torch.randn(64, device=device)).to(dtype).requires_grad_()
        compare(kind, x, 64, weight, zero_centred=True)
        y = own_norm(kind, x, 64, weight, zero_centred=True)
        second, = torch.autograd.grad(y.float().square().sum(), weight, create_graph=True)
        assert second.requires_grad


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_gradients(device, kind):
    x, weight = random(3, 2, 5, 16, device=device), random(5, 16, device=device)
    leaves, doubles = (x, weight), (in_double(x), in_double(weight))

    def twice(y, x, weight):
        first = torch.autograd.grad(y.pow(3).sum(), (x, weight), create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), (x, weight))

    for ours, right in zip(twice(own_norm(kind, x, (5, 16), weight), *leaves),
                           twice(torch_norm(kind, doubles[0], (5, 16), doubles[1]), *doubles)):
        assert error(ours, right) < 1e-4
    with pytest.raises(NotImplementedError, match="memory_efficient keeps y and not x"):
        twice(own_norm(kind, x, (5, 16), weight, memory_efficient=True), *leaves)
    y, _ = lnc.fused_add_rms_norm(x, x, (5, 16), weight)
    with pytest.raises(NotImplementedError, match="fused passes have no gradients of gradients"):
        twice(y, *leaves)


@pytest.mark.parametrize("kind", KINDS)
def test_forward_mode_derivatives_are_refused(device, kind):
    x, weight = random(4, 40, device=device, grad=False), random(40, device=device, grad=False)
    for run in (lambda x: own_norm(kind, x, 40, weight), lambda x: fused(kind)(x, weight.expand(4, 40), 40)[0]):
        with pytest.raises(NotImplementedError, match="no forward-mode derivatives"):
            torch.func.jvp(run, (x,), (torch.ones_like(x),))
        with pytest.raises(NotImplementedError, match="no forward-mode derivatives"):
            torch.func.hessian(lambda x: run(x).sum())(x)


def test_transforms_of_functions(device):
    x, weight = random(5, 32, device=device, grad=False), random(32, device=device, grad=False)
    found = torch.func.grad(lambda w: lnc.layer_norm(x, 32, w).pow(3).sum())(weight)
    right = torch.func.grad(lambda w: F.layer_norm(x, (32,), w).pow(3).sum())(weight)
    assert error(found, right) < 1e-5
    each = torch.vmap(torch.func.grad(lambda row: lnc.rms_norm(row, 32, weight).pow(3).sum()))(x)
    right = torch.vmap(torch.func.grad(lambda row: F.rms_norm(row, (32,), weight, torch.finfo(torch.float32).eps)
                                       .pow(3).sum()))(x)
    assert error(each, right) < 1e-5


# --- The fused passes ---


OPTIONS = ({}, {"residual": None, "rowscale": True}, {"rowscale": True}, {"x1": True}, {"x1": True, "rowscale": True},
           {"second": True}, {"x1": True, "rowscale": True, "second": True}, {"zero_centred": True},
           {"residual_in_fp32": True}, {"residual_in_fp32": True, "rowscale": True}, {"float_residual": True})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "+".join(options) or "residual")
def test_a_fused_pass_is_what_it_is_made_of(device, kind, options):
    for dtype in LIMITS:
        for cols in (24, 1000):
            compare_fused(device, kind, dict(options), dtype, cols)


def compare_fused(device, kind, options, dtype, cols):
    layer = kind == "layer"
    x = random(3, 4, cols, device=device, dtype=dtype)
    weight = random(cols, device=device, dtype=dtype, mean=2.0)
    leaves = {"x": x, "weight": weight}
    of_residual = torch.float32 if options.pop("float_residual", False) else dtype
    if options.pop("residual", True) is not None:
        leaves["residual"] = random(3, 4, cols, device=device, dtype=of_residual)
    if layer:
        leaves["bias"] = random(cols, device=device, dtype=dtype)
    if options.pop("x1", False):
        leaves["x1"] = random(3, 4, cols, device=device, dtype=dtype)
    if options.pop("second", False):
        leaves["weight1"] = random(cols, device=device, dtype=dtype, mean=2.0)
        if layer:
            leaves["bias1"] = random(cols, device=device, dtype=dtype)
    scales = {}
    if options.pop("rowscale", False):
        scales["rowscale"] = torch.rand(3, 4, device=device) + 0.5
        if "x1" in leaves:
            scales["rowscale1"] = torch.rand(3, 4, device=device) + 0.5
    given = {name: leaf for name, leaf in leaves.items() if name not in ("x", "residual")}
    results = fused(kind)(x, leaves.get("residual"), normalized_shape=cols, eps=EPS, **given, **scales, **options)
    z = {name: in_double(leaf) for name, leaf in leaves.items()}
    total = z["x"] * scales["rowscale"][..., None].double() if scales else z["x"]
    if "x1" in z:
        total = total + (z["x1"] * scales["rowscale1"][..., None].double() if scales else z["x1"])
    if "residual" in z:
        total = total + z["residual"]
    of_weight = 1.0 if options.get("zero_centred") else 0.0
    right = [torch_norm(kind, total, (cols,), z["weight"] + of_weight, z.get("bias"))]
    if "weight1" in z:
        right.append(torch_norm(kind, total, (cols,), z["weight1"] + of_weight, z.get("bias1")))
    right.append(total)
    assert len(results) == len(right)
    wide = options.get("residual_in_fp32") or of_residual == torch.float32
    assert results[-1].dtype == (torch.float32 if wide and "residual" in leaves else dtype)
    dys = [torch.randn_like(result) for result in results]
    for result, expected in zip(results, right):
        assert error(result, expected) < 2 * LIMITS[dtype]  # the sum is rounded, too
    found = torch.autograd.grad(results, list(leaves.values()), dys)
    expected = torch.autograd.grad(right, list(z.values()), [dy.double() for dy in dys])
    for (name, leaf), gradient, theirs in zip(leaves.items(), found, expected):
        assert (gradient.dtype, gradient.shape) == (leaf.dtype, leaf.shape), name
        assert error(gradient, theirs) < 3 * LIMITS[dtype], name


def nearly_constant(rows, cols, dtype, device):
    """x and residual whose sum is rounded in every row, and alike in a row but for its last column, a rounding away."""
    x, residual = (random(rows, 1, device=device, dtype=dtype, mean=1.0, grad=False).repeat(1, cols) for _ in range(2))
    x[:, 1:][:, -1:] *= 1.0 + 2.0 * torch.finfo(dtype).eps
    return x.requires_grad_(), residual.requires_grad_()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_fused_pass_is_an_addition_and_then_a_norm(device, kind, dtype):
    """Of nearly constant rows, too, where rstd magnifies what is taken off the sum by a rounding."""
    for cols in (1, 24, 1000, 1001):
        x, residual = nearly_constant(64, cols, dtype, device)
        weight = random(cols, device=device, dtype=dtype, mean=2.0)
        y, total = fused(kind)(x, residual, cols, weight, eps=EPS)
        stored = x.detach() + residual.detach()
        assert torch.equal(total, stored) and not torch.equal(total.double(), x.double() + residual.double())
        alone = own_norm(kind, stored, cols, weight)
        z, w = in_double(stored), in_double(weight)
        right = torch_norm(kind, z, (cols,), w)
        magnitude = right.detach().abs().clamp_min(1.0)
        for result in (y, alone, fused(kind)(x, residual, cols, weight, eps=EPS, prenorm=False)):
            assert float(((result.double() - right) / magnitude).abs().max()) < torch.finfo(dtype).eps
        dy = random(64, cols, device=device, dtype=dtype, grad=False)
        dx, dresidual, dweight = torch.autograd.grad(y, (x, residual, weight), dy)
        right_dz, right_dweight = torch.autograd.grad(right, (z, w), dy.double())
        terms = (weight * dy).double().abs().amax(1, keepdim=True) / EPS ** 0.5  # what a row's gradient is made of
        for ours, theirs, size in ((dx, right_dz, terms), (dweight, right_dweight, right_dweight.abs().clamp_min(1.0))):
            assert float(((ours.double() - theirs) / size).abs().max()) < 2 * torch.finfo(dtype).eps
        assert torch.equal(dresidual, dx)
        if cols == 1 and kind == "layer":
            assert not dx.any() and not dweight.any()


def test_some_gradients_of_a_fused_pass(device):
    x, residual, weight = (random(*shape, device=device) for shape in ((6, 40), (6, 40), (40,)))
    y, total = lnc.fused_add_rms_norm(x, residual, 40, weight, EPS)
    z = in_double(x)
    right = z + residual.double()
    for ours, theirs in ((y, torch_norm("rms", right, (40,), weight.double())), (total, right)):
        found, = torch.autograd.grad(ours.sum(), x, retain_graph=True)
        assert error(found, torch.autograd.grad(theirs.sum(), z, retain_graph=True)[0]) < 1e-5
    frozen = lnc.fused_add_rms_norm(x.detach(), residual, 40, weight.detach(), EPS)[0]
    frozen.sum().backward()
    assert residual.grad is not None and weight.grad is None and x.grad is None


def test_a_gradient_of_rowscale_is_refused(device):
    x, rowscale = random(6, 40, device=device), torch.rand(6, device=device)
    for name in ("rowscale", "rowscale1"):
        def run(scale, name=name):
            scales = {"rowscale": rowscale, "rowscale1": rowscale, "x1": x} | {name: scale}
            return lnc.fused_add_layer_norm(x, x, 40, **scales)[0].sum()
        with pytest.raises(NotImplementedError, match=f"{name} requires a gradient"):
            run(rowscale.clone().requires_grad_())
        with pytest.raises(NotImplementedError, match=f"{name} requires a gradient"):
            torch.func.grad(run)(rowscale)
        with pytest.raises(NotImplementedError, match="no forward-mode derivatives"):
            torch.func.jvp(run, (rowscale,), (rowscale,))
        with torch.no_grad():
            run(rowscale.clone().requires_grad_())


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", LIMITS, ids=str)
def test_in_place_has_the_same_bits(device, kind, dtype):
    for cols in (7, 1000, 1003, 16384, 20001):  # the last are rows that are read again: a copy
        for of_residual in {dtype, torch.float32}:
            x = random(2, 3, cols, device=device, dtype=dtype, grad=False)
            residual = random(2, 3, cols, device=device, dtype=of_residual, grad=False)
            weight = random(cols, device=device, dtype=dtype, mean=2.0, grad=False)
            y, total = fused(kind)(x, residual, cols, weight)
            places, versions = (x.data_ptr(), residual.data_ptr()), (x._version, residual._version)
            found = fused(kind)(x, residual, cols, weight, inplace=True)
            assert found[0] is x and found[1] is residual
            assert (x.data_ptr(), residual.data_ptr()) == places
            assert x._version > versions[0] and residual._version > versions[1]
            assert torch.equal(x, y) and torch.equal(residual, total)


@torch.no_grad()
def test_in_place_of_any_layout_and_of_nothing(device):
    for shape, order in (((4, 6, 40), (1, 0, 2)), ((40, 6), (1, 0))):
        x, residual = (random(*shape, device=device, grad=False).permute(order) for _ in range(2))
        y, total = lnc.fused_add_layer_norm(x, residual, 40)
        assert lnc.fused_add_layer_norm(x, residual, 40, prenorm=False, inplace=True) is x
        assert torch.equal(x, y) and torch.equal(residual, total)
    empty = torch.empty(0, 40, device=device)
    assert lnc.fused_add_layer_norm(empty, torch.empty_like(empty), 40, inplace=True)[0] is empty


def test_in_place_is_seen_by_a_graph_that_kept_what_was_there(device):
    x, residual = (random(4, 40, device=device, grad=False) for _ in range(2))
    for without_gradients in (torch.no_grad, torch.inference_mode):
        leaf = random(4, 40, device=device)
        loss = (leaf * x).sum() + (leaf * residual).sum()
        with without_gradients():
            lnc.fused_add_rms_norm(x, residual, 40, inplace=True)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_in_place_on_parts_of_one_tensor(device):
    whole = random(6, 80, device=device, grad=False)
    x, residual = whole[:, :40], whole[:, 40:]  # neither dense, nor do they share an element
    y, total = lnc.fused_add_layer_norm(x, residual, 40)
    lnc.fused_add_layer_norm(x, residual, 40, inplace=True)
    assert torch.equal(x, y) and torch.equal(residual, total)


@torch.no_grad()
def test_in_place_in_a_compiled_block(device):
    def block(x, residual):
        lnc.fused_add_rms_norm(x, residual, 48, inplace=True)
        return 2 * x, residual + 1

    torch.compiler.reset()
    x, residual = (random(6, 48, device=device, grad=False) for _ in range(2))
    other_x, other_residual = x.clone(), residual.clone()
    right = block(x, residual)
    found = torch.compile(block, fullgraph=True)(other_x, other_residual)
    for ours, theirs in zip((*found, other_x, other_residual), (*right, x, residual)):
        assert torch.equal(ours, theirs)


def test_what_in_place_does_not_do_is_said(device):
    x, residual = (random(6, 40, device=device, grad=False) for _ in range(2))
    before = x.clone(), residual.clone()
    weight = random(40, device=device)
    refused = [
        (RuntimeError, "inplace=True is for inference", {"weight": weight}),
        (ValueError, "residual, which is None", {"residual": None}),
        (ValueError, "leave out dropout", {"dropout": 0.5}),
        (ValueError, "leave out x1", {"x1": x}),
        (ValueError, "residual_in_fp32 asks", {"residual": residual.bfloat16(), "residual_in_fp32": True}),
        (ValueError, "residual has shape", {"residual": residual[:3]}),
        (TypeError, "residual is of torch.float16", {"residual": residual.half()}),
        (ValueError, "leave out rowscale1", {"rowscale1": torch.ones(6, device=device)}),
        (ValueError, "x and residual share memory", {"residual": x}),
        (ValueError, "x and weight share memory", {"weight": x[1]}),
        (ValueError, "residual and weight share memory", {"weight": residual[5]}),
        (ValueError, "x has elements that share memory", {"x": x[:1].expand(6, 40)}),
        (ValueError, "residual has elements that share", {"residual": residual.flatten().unfold(0, 40, 30)[:6]}),
    ]
    for error_type, words, options in refused:
        given = {"x": x, "residual": residual, **options}
        with pytest.raises(error_type, match=words):
            lnc.fused_add_rms_norm(given.pop("x"), given.pop("residual"), 40, inplace=True, **given)
    assert torch.equal(x, before[0]) and torch.equal(residual, before[1])
    assert lnc.fused_add_rms_norm(x, residual, 40, weight.detach(), inplace=True)[0] is x


@pytest.mark.parametrize("kind", KINDS)
def test_frozen_parameters_take_no_memory(device, kind):
    """dx has the same bits, and a backward pass allocates dx alone."""
    from torch.profiler import ProfilerActivity, profile
    x, residual = random(64, 1000, device=device), random(64, 1000, device=device)
    weight = random(1000, device=device, mean=2.0)
    frozen = weight.detach()
    passes = {"own": lambda w: own_norm(kind, x, 1000, w), "fused": lambda w: sum(fused(kind)(x, residual, 1000, w)),
              "two norms": lambda w: sum(fused(kind)(x, residual, 1000, w, weight1=w))}
    for name, run in passes.items():
        found, right = run(frozen), run(weight)
        dy = torch.randn_like(right)
        wanted, _ = torch.autograd.grad(right, (x, weight), dy)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            ours, = torch.autograd.grad(found, x, dy)
        assert torch.equal(ours, wanted)
        device_memory = "self_device_memory_usage" if device == "cuda" else "self_cpu_memory_usage"
        largest = max(getattr(event, device_memory) for event in profiled.events())
        assert largest <= x.numel() * 4 + 512, name


def test_a_first_block_without_a_residual(device):
    x = random(5, 24, device=device, dtype=torch.bfloat16)
    y, total = lnc.fused_add_layer_norm(x, None, 24)
    assert total is x and torch.equal(y, lnc.layer_norm(x, 24))
    assert lnc.fused_add_layer_norm(x, None, 24, residual_in_fp32=True)[1].dtype == torch.float32
    assert torch.equal(lnc.fused_add_layer_norm(x, None, 24, prenorm=False), y)
    assert lnc.fused_add_rms_norm(x, None, 24, dropout=0.5, residual_in_fp32=True)[1].dtype == torch.float32


def test_dropout_drops_the_same_elements_again(device):
    x, residual = random(64, 256, device=device), random(64, 256, device=device)
    run = lambda seed: lnc.fused_add_layer_norm(x, residual, 256, dropout=0.25, seed=seed)  # noqa: E731
    (y, total), (again, _), (other, _) = run(3), run(3), run(4)
    assert torch.equal(y, again) and not torch.equal(y, other)
    dropped = (total == residual)
    assert 0.22 < float(dropped.double().mean()) < 0.28
    assert error(total[~dropped], (x / 0.75 + residual)[~dropped]) < 1e-6
    dx, = torch.autograd.grad(total.sum(), x)
    assert torch.equal(dx == 0, dropped)


def test_the_fused_modules(device):
    for name, kind in (("FusedAddLayerNorm", "LayerNorm"), ("FusedAddRMSNorm", "RMSNorm")):
        module = getattr(lnc, name)(48, device=device, dropout=0.5)
        assert module.state_dict().keys() == getattr(torch.nn, kind)(48).state_dict().keys()
        x, residual = random(4, 48, device=device), random(4, 48, device=device)
        y, total = module.eval()(x, residual)
        assert torch.equal(total, x + residual) and y.shape == x.shape
        assert not torch.equal(module.train()(x, residual)[1], total)


@pytest.mark.parametrize("name", ["LayerNorm", "RMSNorm", "FusedAddLayerNorm", "FusedAddRMSNorm"])
def test_a_module_whose_weight_is_about_zero_begins_as_others_do(device, name):
    centred, other = getattr(lnc, name)(48, zero_centred=True, device=device), getattr(lnc, name)(48, device=device)
    assert not centred.weight.any() and "zero_centred=True" in repr(centred) and "zero_centred" not in repr(other)
    x = random(4, 48, device=device, grad=False)
    given = (x, x.flip(0)) if name.startswith("Fused") else (x,)
    for weight in (0.0, 0.25):
        with torch.no_grad():
            centred.weight.fill_(weight)
            other.weight.fill_(1.0 + weight)
            ours, theirs = centred(*given), other(*given)
        for one, right in zip(*((each if isinstance(each, tuple) else (each,)) for each in (ours, theirs))):
            assert torch.equal(one, right)


def test_a_compiled_prenorm_block(device):
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.linear = lnc.FusedAddRMSNorm(48, device=device), torch.nn.Linear(48, 48, device=device)

        def forward(self, x, residual):
            y, residual = self.norm(x, residual)
            return self.linear(y), residual

    torch.compiler.reset()
    block = Block()
    x, residual = random(6, 48, device=device), random(6, 48, device=device)
    leaves = [x, residual, *block.parameters()]
    found, right = torch.compile(block, fullgraph=True)(x, residual), block(x, residual)
    for ours, theirs in zip(torch.autograd.grad([part.square().sum() for part in found], leaves),
                            torch.autograd.grad([part.square().sum() for part in right], leaves)):
        assert error(ours, theirs) < 1e-4


# --- PyTorch's own tests ---


def test_pytorchs_own_samples(device):
    pytest.importorskip("expecttest", reason=WITHOUT.format("expecttest"))
    from torch.testing._internal.common_methods_invocations import op_db

    tried = 0
    for info in op_db:
        if info.name not in ("nn.functional.layer_norm", "nn.functional.rms_norm"):
            continue
        ours = lnc.layer_norm if "layer" in info.name else lnc.rms_norm
        for sample in info.sample_inputs(device, torch.float32, requires_grad=True):
            if (sample.kwargs.get("eps") or 0.0) < 0.0:  # PyTorch takes that
                with pytest.raises(ValueError, match=f"eps is {sample.kwargs['eps']}; it must be finite in float32, and 0 or more"):
                    ours(sample.input, *sample.args, **sample.kwargs)
                continue
            y, right = (run(sample.input, *sample.args, **sample.kwargs) for run in (ours, info.op))
            assert (y.shape, error(y, right) < 1e-5 or right.numel() == 0) == (right.shape, True)
            tried += 1
    assert tried > 5
