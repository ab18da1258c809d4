"""enable() and enabled(): the kernels behind PyTorch's own operators, in which threads, and what stays with PyTorch."""

import contextlib
import threading

import pytest

from common.python.tests.norms import EPS, KINDS, LIMITS, F, error, in_double, lnc, own_norm, random, torch, torch_norm


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
def test_pytorchs_own_norms_use_the_kernels(device, dtype):
    kinds = KINDS if device == "cuda" else ("layer",)  # PyTorch fuses its RMS norm on a GPU alone
    for kind in kinds:
        x, dy = random(6, 40, device=device, dtype=dtype), random(6, 40, device=device, dtype=dtype, grad=False)
        weight, bias = random(40, device=device, dtype=dtype), random(40, device=device, dtype=dtype)
        leaves = [x, weight, bias] if kind == "layer" else [x, weight]
        with lnc.enabled():
            y = torch_norm(kind, x, (40,), weight, bias)
            gradients = torch.autograd.grad(y, leaves, dy)
        ours = own_norm(kind, x, 40, weight, bias)
        assert torch.equal(y, ours)
        for found, right in zip(gradients, torch.autograd.grad(ours, leaves, dy)):
            if device == "cuda" or dtype == torch.float32:
                assert torch.equal(found, right)
            else:  # on a CPU PyTorch's statistics are of x's type
                assert error(found, right) < LIMITS[dtype]


def test_what_the_kernels_do_not_take_stays_with_pytorch(device):
    double = random(3, 8, device=device, dtype=torch.float64, grad=False)
    mixed = random(3, 8, device=device, dtype=torch.bfloat16, grad=False)
    empty = torch.zeros(0, 8, device=device)
    expected = F.layer_norm(double, (8,)), F.layer_norm(empty, (8,))
    with lnc.enabled():
        assert torch.equal(F.layer_norm(double, (8,)), expected[0])
        assert bool(F.layer_norm(double.float(), (8,), eps=-100.0).isnan().all())
        assert F.layer_norm(empty, (8,)).shape == expected[1].shape
        if device == "cpu":
            weight = torch.ones(8)
            assert F.layer_norm(mixed, (8,), weight).shape == mixed.shape  # a float weight with bfloat16 rows
        with pytest.raises(RuntimeError, match="normalized_shape"):
            F.layer_norm(double.float(), (7,))


def test_enabling_twice_and_disabling(device):
    x = random(6, 1000, device=device, grad=False)
    before = F.layer_norm(x, (1000,))
    lnc.enable()
    lnc.enable()
    with lnc.enabled():
        pass
    assert torch.equal(F.layer_norm(x, (1000,)), lnc.layer_norm(x, 1000))  # still, after the block
    lnc.disable()
    lnc.disable()
    assert torch.equal(F.layer_norm(x, (1000,)), before)


def test_an_enabled_gradient_of_a_gradient(device):
    x = random(4, 24, device=device)
    with lnc.enabled():
        dx, = torch.autograd.grad(F.layer_norm(x, (24,)).pow(3).sum(), x, create_graph=True)
        ours, = torch.autograd.grad(dx.square().sum(), x)
    z = in_double(x)
    dz, = torch.autograd.grad(F.layer_norm(z, (24,)).pow(3).sum(), z, create_graph=True)
    assert error(ours, torch.autograd.grad(dz.square().sum(), z)[0]) < 1e-4


# --- Forward and backward passes that are not both enabled ---


def gradients(x, weight, bias, dy, forward_in, backward_in):
    with lnc.enabled() if forward_in else contextlib.nullcontext():
        y = F.layer_norm(x, x.shape[-1:], weight, bias, EPS)
    with lnc.enabled() if backward_in else contextlib.nullcontext():
        return y, torch.autograd.grad(y, (x, weight, bias), dy)


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("forward_in", (True, False))
@pytest.mark.parametrize("backward_in", (True, False))
def test_a_block_around_one_of_the_passes(device, dtype, forward_in, backward_in):
    x, dy = random(6, 40, device=device, dtype=dtype), random(6, 40, device=device, dtype=dtype, grad=False)
    weight, bias = random(40, device=device, dtype=dtype), random(40, device=device, dtype=dtype)
    y, found = gradients(x, weight, bias, dy, forward_in, backward_in)
    doubles = [in_double(t) for t in (x, weight, bias)]
    right = F.layer_norm(doubles[0], (40,), *doubles[1:], EPS)
    assert error(y, right) < LIMITS[dtype]
    for ours, theirs in zip(found, torch.autograd.grad(right, doubles, dy.double())):
        assert ours.dtype == dtype and error(ours, theirs) < 3 * LIMITS[dtype]
    if forward_in and (device == "cuda" or dtype == torch.float32):  # and the kernels did both
        right = lnc.layer_norm(x, 40, weight, bias, EPS)
        for ours, theirs in zip(found, torch.autograd.grad(right, (x, weight, bias), dy)):
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
def test_saved_tensor_hooks_that_copy(device, dtype):
    x, weight = random(6, 40, device=device, dtype=dtype), random(40, device=device, dtype=dtype)
    dy = random(6, 40, device=device, dtype=dtype, grad=False)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t), lnc.enabled():
        y = F.layer_norm(x, (40,), weight, None, EPS)
    found, right = (torch.autograd.grad(of, (x, weight), dy) for of in (y, lnc.layer_norm(x, 40, weight, None, EPS)))
    for ours, theirs in zip(found, right):
        assert error(ours, theirs) < 3 * LIMITS[dtype]


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
def test_forward_mode_derivatives_are_pytorchs(device, dtype):
    x, tangent = (random(4, 40, device=device, dtype=dtype, grad=False) for _ in range(2))
    weight = random(40, device=device, dtype=dtype, grad=False)

    def run():
        return torch.func.jvp(lambda x: F.layer_norm(x, (40,), weight), (x,), (tangent,))

    right = run()
    with lnc.enabled():
        found = run()
    for ours, theirs in zip(found, right):
        assert ours.dtype == theirs.dtype and error(ours, theirs) < 3 * LIMITS[dtype]


# --- What the kernels refuse ---


@pytest.mark.parametrize("eps", (1e39, float("inf"), float("nan"), -0.5, 1e-320))
def test_an_eps_that_is_no_float_stays_with_pytorch(device, eps):
    x = random(3, 8, device=device)
    right = F.layer_norm(x, (8,), eps=eps)
    with lnc.enabled():
        y = F.layer_norm(x, (8,), eps=eps)
        dx, = torch.autograd.grad(y.sum(), x)
    assert torch.allclose(y, right, equal_nan=True) and dx.shape == x.shape


def test_more_rows_than_a_launch_has_stay_with_pytorch(device):
    if device != "cuda":
        pytest.skip("2^31 rows are too many for a CPU")
    x = torch.zeros(2 ** 31, 1, device=device, dtype=torch.bfloat16)
    x[-1] = 1.0
    weight = torch.ones(1, device=device, dtype=torch.bfloat16)

    def outcome(norm):
        try:
            return norm()[-4:].tolist()
        except RuntimeError as error:
            return str(error)

    for call in (lambda: F.layer_norm(x, (1,), weight, None, EPS), lambda: F.rms_norm(x, (1,), weight, EPS)):
        right = outcome(call)
        with lnc.enabled():
            assert outcome(call) == right


# --- Threads ---


def is_ours(x):
    """Whether PyTorch's layer norm runs the kernels in this thread. Of some x both give the same bits."""
    return torch.equal(F.layer_norm(x, x.shape[-1:]), lnc.layer_norm(x, x.shape[-1]))


def test_a_block_is_for_its_own_thread(device):
    x = next(x for x in (random(6, 1000, device=device, grad=False) for _ in range(100)) if not is_ours(x))
    seen, inside, left = {}, threading.Event(), threading.Event()

    def other():
        seen["before"] = is_ours(x)
        with lnc.enabled():
            seen["in its own block"] = is_ours(x)
            inside.set()
            left.wait(60)
            seen["after the first thread has left"] = is_ours(x)
        seen["after its own block"] = is_ours(x)

    thread = threading.Thread(target=other)
    with lnc.enabled():
        thread.start()
        assert inside.wait(60) and is_ours(x)
        with lnc.enabled():
            pass
        assert is_ours(x)
    assert not is_ours(x)
    left.set()
    thread.join()
    assert seen == {"before": False, "in its own block": True, "after the first thread has left": True, "after its own block": False}
    with pytest.raises(KeyError), lnc.enabled():
        raise KeyError
    assert not is_ours(x)


def test_a_backward_pass_in_another_thread(device):
    x, dy = random(6, 1000, device=device), random(6, 1000, device=device, grad=False)
    with lnc.enabled():
        y = F.layer_norm(x, (1000,))
    right, = torch.autograd.grad(lnc.layer_norm(x, 1000), x, dy)
    found = []
    thread = threading.Thread(target=lambda: found.extend(torch.autograd.grad(y, x, dy)))
    thread.start()
    thread.join()
    assert torch.equal(found[0], right)


def test_a_tensor_of_another_gpu(device):
    if device != "cuda" or torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    double = torch.randn(3, 8, device="cuda:1", dtype=torch.float64)  # which stays with PyTorch's kernels
    with lnc.enabled():
        assert F.layer_norm(double, (8,)).device == double.device
