"""The Python package against PyTorch: functions, modules, gradients, compilation, threads, streams.

With the CPU backend's library, everything but CUDA graphs and streams is tested, on CPU tensors.
"""

import copy
import itertools
import re
import unittest.mock
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from common.python.tests.norms import EPS, KINDS, LIMITS, compare, error, lnc, own_norm, random, torch
from layernorm_chapters import operators

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def on_gpu(device):
    if device != "cuda":
        pytest.skip("needs a GPU")


def parameters(*shape, device, dtype=torch.float32):
    """A weight about 2 and a bias."""
    return random(*shape, device=device, dtype=dtype, mean=2.0), random(*shape, device=device, dtype=dtype)


def test_it_is_the_library_of_this_build(device, library):
    assert operators.library().path == library
    print(f"{library}, PyTorch {torch.__version__}, {device} tensors")


# --- Functions ---


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", LIMITS, ids=str)
def test_every_type_and_parameter(device, kind, dtype):
    for of, has_weight, has_bias, cols in itertools.product({dtype, torch.float32}, (False, True), (False, True), (31, 256, 1000)):
        weight, bias = parameters(cols, device=device, dtype=of)
        compare(kind, random(9, cols, device=device, dtype=dtype, mean=0.5), cols, weight if has_weight else None,
                bias if has_bias and kind == "layer" else None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", LIMITS, ids=str)
def test_memory_efficient(device, kind, dtype):
    weight = (1.0 + torch.rand(512, device=device)).to(dtype).requires_grad_()
    bias = random(512, device=device, dtype=dtype) if kind == "layer" else None
    # The rounding of y, which xhat is made of, comes on top.
    compare(kind, random(33, 512, device=device, dtype=dtype), 512, weight, bias, factor=4, memory_efficient=True)


def test_memory_efficient_keeps_y_and_not_x(device):
    for memory_efficient in (False, True):
        kept, x = [], random(4, 64, device=device)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.data_ptr()) or t, lambda t: t):
            y = lnc.layer_norm(x, 64, *parameters(64, device=device), memory_efficient=memory_efficient)
        assert (x.data_ptr() in kept, y.data_ptr() in kept) == (not memory_efficient, memory_efficient)


@pytest.mark.parametrize("kind", KINDS)
def test_several_dimensions(device, kind):
    for shape in ((7,), (5, 7), (3, 5, 7)):
        weight, bias = parameters(*shape, device=device)
        compare(kind, random(2, 3, 5, 7, device=device), shape, weight, bias if kind == "layer" else None)
    compare("layer", random(40, device=device), (40,), *parameters(40, device=device))  # none beside the normalised


def test_tensors_that_lie_in_memory_in_other_ways(device):
    base = random(24, 16, 33, device=device)
    weight, bias = parameters(24, device=device)
    for x in (base.transpose(0, 2), base[:, ::2, 1:25].reshape(-1, 24)[1:], base[:1, :, :24].expand(5, 16, 24)):
        for memory_efficient in (False, True):
            compare("layer", x.detach().requires_grad_(), (24,), weight, bias, memory_efficient=memory_efficient)
    strided = random(48, device=device)[::2].detach().requires_grad_()
    compare("layer", random(5, 24, device=device), 24, strided, bias)


def test_a_gradient_that_is_one_number_everywhere(device):
    x = random(8, 64, device=device)  # sum() hands down an expanded tensor
    weight, bias = parameters(64, device=device)
    lnc.layer_norm(x, 64, weight, bias).sum().backward()
    assert torch.allclose(bias.grad, torch.full_like(bias, 8.0))


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
def test_rows_that_start_at_no_16_byte_boundary(device, dtype):
    memory = random(1 + 6 * 128, device=device, dtype=dtype, grad=False)
    x = memory[1:].view(6, 128).requires_grad_()
    assert x.data_ptr() % 16 == memory.element_size()
    compare("layer", x, 128, *parameters(128, device=device, dtype=dtype))


def test_only_the_gradients_that_are_needed(device):
    x, dy = random(6, 40, device=device), random(6, 40, device=device, grad=False)
    weight, bias = parameters(40, device=device)
    expected = torch.autograd.grad(lnc.layer_norm(x, 40, weight, bias), (x, weight, bias), dy)
    for needed in range(1, 8):
        leaves = [t.detach().requires_grad_(bool(needed >> i & 1)) for i, t in enumerate((x, weight, bias))]
        lnc.layer_norm(leaves[0], 40, *leaves[1:]).backward(dy)
        for leaf, right in zip(leaves, expected):
            assert torch.equal(leaf.grad, right) if leaf.requires_grad else leaf.grad is None
    with torch.no_grad():
        assert not lnc.layer_norm(x, 40, weight, bias).requires_grad


def test_no_rows(device):
    x = random(0, 3, 40, device=device)
    weight, bias = parameters(40, device=device)
    y = lnc.layer_norm(x, 40, weight, bias)
    y.sum().backward()
    assert y.shape == x.grad.shape == x.shape and not weight.grad.any() and not bias.grad.any()


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
def test_rms_norm_without_eps(device, dtype):
    x = random(4, 64, device=device, dtype=dtype, grad=False) * 1e-3  # whose squares are no larger than an epsilon
    assert error(lnc.rms_norm(x, 64), torch.nn.functional.rms_norm(x, (64,))) < LIMITS[dtype]


def test_every_chapter_by_its_name(device, subtests):
    x, parameters_of = random(21, 72, device=device), parameters(72, device=device)
    assert len(lnc.chapters()) > 10
    for chapter in lnc.chapters():
        if chapter.id.startswith("my"):  # the reader's own may be unfinished
            continue
        with subtests.test(chapter.id):
            compare("layer", x, 72, *parameters_of, chapter=chapter.id, memory_efficient=chapter.from_y)
    compare("layer", x, 72, *parameters_of, chapter=("fwd03", "bwd05"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("memory_efficient", (False, True))
def test_twenty_runs_give_the_same_bits(device, kind, memory_efficient):
    x, weight, bias, dy = (random(*shape, device=device, dtype=torch.float16) for shape in ((130, 1024), (1024,), (1024,), (130, 1024)))
    leaves, first = (x, weight, bias) if kind == "layer" else (x, weight), None
    for _ in range(20):
        y = own_norm(kind, x, 1024, weight, bias, memory_efficient=memory_efficient)
        results = [y, *torch.autograd.grad(y, leaves, dy)]
        first = first or results
        assert all(map(torch.equal, results, first))


def test_eight_threads_at_once(device):
    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(20 + seed, 200, generator=generator).to(device).requires_grad_()
        weight = torch.randn(200, generator=generator).to(device).requires_grad_()
        results = []
        for turn in range(5):
            y = own_norm(KINDS[seed % 2], x, 200, weight, memory_efficient=turn % 2 == 1)
            results += [y, *torch.autograd.grad(y.square().sum(), (x, weight))]
            with pytest.raises(ValueError, match=f"'fwd9{seed}'"):  # its own, and no other thread's
                lnc.layer_norm(x, 200, chapter=f"fwd9{seed}")
        return results

    with ThreadPoolExecutor(8) as pool:
        for seed, results in enumerate(pool.map(work, range(8))):
            assert all(map(torch.equal, results, work(seed)))


# --- Modules ---


@pytest.mark.parametrize("name, options", [
    (name, options) for name in ("LayerNorm", "RMSNorm")
    for options in ({}, {"eps": 1e-3}, {"elementwise_affine": False}, {"dtype": torch.bfloat16}, {"bias": False})
    if name == "LayerNorm" or "bias" not in options], ids=str)
def test_they_stand_in_for_torchs(device, name, options):
    for shape in (40, (4, 40)):
        mine, torchs = (getattr(of, name)(shape, device=device, **options) for of in (lnc, torch.nn))
        assert isinstance(mine, type(torchs)) and repr(mine) == repr(torchs)
        for parameter in torchs.parameters():
            torch.nn.init.normal_(parameter, mean=1.0)
        assert mine.state_dict().keys() == torchs.state_dict().keys()
        mine.load_state_dict(torchs.state_dict())
        torchs.load_state_dict(mine.state_dict())
        x = random(3, 4, 40, device=device, dtype=options.get("dtype", torch.float32))
        assert error(mine(x), torchs(x)) < 2 * LIMITS[x.dtype]


def test_the_example_of_the_readme(device):
    readme = (ROOT / "common/python/README.md").read_text(encoding="utf-8")
    example, = re.findall(r"^```python\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    names = {}
    try:
        exec(example.replace('"cuda"', repr(device)), names)
    finally:
        lnc.disable()
    assert names["norm"].weight.grad is not None


def test_their_own_arguments(device):
    module = lnc.LayerNorm(8, memory_efficient=True, chapter=("lib_fwd_registers", "lib_bwd_from_y"))
    assert repr(module).endswith("memory_efficient=True, chapter=('lib_fwd_registers', 'lib_bwd_from_y'))")
    module = copy.deepcopy(module).to(device)
    module(random(3, 8, device=device)).sum().backward()
    assert module.weight.grad is not None


@pytest.mark.parametrize("name", ("LayerNorm", "RMSNorm"))
def test_they_learn_what_torchs_learn(device, name):
    def losses(namespace):
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(16, 32), getattr(namespace, name)(32), torch.nn.Tanh(),
                                    torch.nn.Linear(32, 1)).to(device)
        x = torch.randn(64, 16, device=device)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(10):
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            yield float(loss.detach())

    assert [*losses(lnc)] == pytest.approx([*losses(torch.nn)], rel=5e-4)


# --- Errors ---


def wrong_arguments(device):
    """(the error, its words, the arguments of layer_norm, its options)"""
    x = random(3, 8, device=device)
    other = "meta" if device == "cpu" else "cpu"
    yield from ((TypeError, "x is of torch.float64", (x.double(), 8), {}),
                (TypeError, "x is of torch.int32", (x.int(), 8), {}),
                (TypeError, "weight is of torch.int32; it must be of a floating type", (x, 8, x[0].int()), {}),
                (TypeError, "bias is of torch.bool", (x, 8, None, x[0] > 0), {}),
                (ValueError, "normalized_shape is [7]", (x, 7), {}),
                (ValueError, "normalized_shape is [2, 3, 8]", (x, (2, 3, 8)), {}),
                (ValueError, "normalized_shape is []", (x, ()), {}),
                (ValueError, "weight has shape [7]", (x, 8, random(7, device=device)), {}),
                (ValueError, "bias has shape [3, 8]", (x, 8, None, x), {}),
                (ValueError, "nothing to normalise", (random(3, 0, device=device), 0), {}),
                (ValueError, "'fwd99' is no forward kernel", (x, 8), {"chapter": "fwd99"}),
                (ValueError, "name a forward kernel", (x, 8), {"chapter": "welford"}),
                (ValueError, "name a forward kernel", (x, 8), {"chapter": ("fwd01", "fwd02")}),
                (ValueError, f"weight is on {other} and x on {device}", (x, 8, torch.ones(8, device=other)), {}))
    if device == "cuda":
        yield RuntimeError, "move it to the GPU", (torch.ones(3, 8), 8), {}


def test_wrong_arguments_are_refused(device, subtests):
    for error_type, words, arguments, options in wrong_arguments(device):
        with subtests.test(words), pytest.raises(error_type, match=re.escape(words)):
            lnc.layer_norm(*arguments, **options)


def test_a_wrong_direction_of_a_chapter_of_the_reader_s_own(device):
    own = [unittest.mock.Mock(id="my01", backward=False), unittest.mock.Mock(id="my02", backward=True)]
    with unittest.mock.patch.object(operators, "chapters", lambda: own):
        assert operators._chapter_pair(("my02", "my01")) == ("my01", "my02")
        assert operators._chapter_pair("my02") == (None, "my02")
        with pytest.raises(ValueError, match="name a forward kernel"):
            operators._chapter_pair("my03")


def test_chapters_that_are_refused(device):
    x = random(3, 8, device=device)
    with pytest.raises(ValueError, match="fwd01 takes layer norm only, not RMS norm"):
        lnc.rms_norm(x, 8, chapter="fwd01")
    for chapter, memory_efficient in (("bwd07", False), ("bwd09", True)):
        y = lnc.layer_norm(x, 8, chapter=chapter, memory_efficient=memory_efficient)
        with pytest.raises(ValueError, match=f"{chapter} starts from .* is given"):
            y.sum().backward()


def test_what_is_fused_and_refused(device):
    x, weight = random(3, 8, device=device, grad=False), random(8, device=device, grad=False)
    for error_type, words, options in ((ValueError, "residual has shape [2, 8]; it must be that of x, [3, 8]", {"residual": x[:2]}),
                                       (ValueError, "x1 has shape [8]", {"x1": weight}),
                                       (ValueError, "rowscale has shape [8]", {"rowscale": weight}),
                                       (ValueError, "dropout is 1; it must be a probability", {"dropout": 1.0}),
                                       (ValueError, "bias1 has shape [3, 8]", {"bias1": x}),
                                       (TypeError, "residual is of torch.float16 and x of torch.float32", {"residual": x.half()}),
                                       (ValueError, "fwd06 is not a fused chapter", {"chapter": "fwd06"})):
        with pytest.raises(error_type, match=re.escape(words)):
            lnc.fused_add_layer_norm(x, **{"residual": x, "normalized_shape": 8, **options})


def test_the_errors_where_the_library_is_not_there_or_wrong(device, monkeypatch):
    from layernorm_chapters.library import Library, library_path

    monkeypatch.delenv("LNC_LIBRARY")
    monkeypatch.setattr("layernorm_chapters.library.ROOT", Path("/nowhere"))
    with pytest.raises(lnc.LibraryError, match="'make library BACKEND=cuda' in"):
        library_path("cuda")
    monkeypatch.setenv("LNC_LIBRARY", "/nowhere/liblnc.so")
    with pytest.raises(lnc.LibraryError, match="LNC_LIBRARY is /nowhere"):
        library_path("cuda")
    with pytest.raises(lnc.LibraryError, match="cannot be loaded"):
        Library(__file__)


# --- Compilation ---


def small_model(device, **options):
    return torch.nn.Sequential(torch.nn.Linear(64, 48), lnc.LayerNorm(48, **options), torch.nn.GELU(),
                               lnc.RMSNorm((48,), **options)).to(device)


def test_the_operators_are_what_pytorch_wants(device):
    x, dy, residual = (random(6, 40, device=device, grad=grad) for grad in (True, False, True))
    weight, bias = parameters(40, device=device)
    statistics, ops, opcheck = random(2, 6, device=device, grad=False).abs(), torch.ops.layernorm_chapters, torch.library.opcheck
    for memory_efficient in (False, True):
        opcheck(ops.norm.default, (x, [40], weight, bias, EPS, False, memory_efficient, False, None, None))
        opcheck(ops.norm_backward.default, (dy, x.detach(), [40], weight.detach(), bias.detach(), statistics, EPS, False,
                                            memory_efficient, False, True, False, None))
    opcheck(ops.norm.default, (x, [40], weight, None, EPS, True, False, True, "lib_fwd_registers", "lib_bwd_any"))
    nothing = [None] * 7
    opcheck(ops.add_norm.default, (x, residual, [40], weight, bias, *nothing, 0.0, EPS, False, False, False, None, None))
    for trains in (True, False):
        opcheck(ops.add_norm_backward.default, (dy, dy, None, x.detach(), [40], weight.detach(), bias.detach(), None, None, statistics,
                                                *nothing[:4], 0.0, EPS, False, False, True, False, None, trains))
    opcheck(ops.add_norm_.default, (dy, residual.detach(), [40], weight.detach(), bias.detach(), EPS, False))


def test_whoever_traces_or_overrides_a_call_sees_an_operator(device):
    from torch.fx.experimental.proxy_tensor import make_fx

    x, weight = random(3, 8, device=device), torch.ones(8, device=device)
    assert "NormBackward" in lnc.layer_norm(x, 8).grad_fn.name()

    class Twice(torch.Tensor):
        pass

    def norm(x):
        return lnc.layer_norm(x, 8, weight)

    right = norm(x).detach()
    for traced in (make_fx(norm)(x.detach()), torch.jit.trace(norm, x.detach())):
        assert "layernorm_chapters" in str(getattr(traced, "graph", traced))
        assert torch.equal(traced(x.detach()), right)
    assert isinstance(norm(x.detach().as_subclass(Twice)), Twice)
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert norm(mode.from_tensor(torch.zeros(3, 8, device=device))).shape == x.shape
    assert torch.equal(torch.vmap(norm)(x.detach()[None])[0], right)


@pytest.mark.parametrize("options", ({}, {"memory_efficient": True}, {"chapter": "lib_fwd_registers"}), ids=str)
@pytest.mark.parametrize("dynamic", (False, True))
def test_one_whole_graph(device, options, dynamic):
    torch.compiler.reset()
    model = small_model(device, **options)
    compiled = torch.compile(model, fullgraph=True, dynamic=dynamic)
    for rows in (5, 17) if dynamic else (5,):
        x = random(rows, 64, device=device)
        leaves = [x, *model.parameters()]
        y, expected = compiled(x), model(x)
        assert error(y, expected) < 1e-5
        dy = torch.randn_like(y)
        for mine, eager in zip(torch.autograd.grad(y, leaves, dy), torch.autograd.grad(expected, leaves, dy)):
            assert error(mine, eager) < 1e-4


@torch.no_grad()
def test_compiled_into_a_cuda_graph(device, on_gpu):
    torch.compiler.reset()
    model = small_model(device)
    compiled = torch.compile(model, fullgraph=True, mode="reduce-overhead")
    for _ in range(5):
        x = random(32, 64, device=device)
        assert error(compiled(x).clone(), model(x)) < 1e-5


# --- Streams ---


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("memory_efficient", (False, True))
def test_a_cuda_graph_replays_with_new_inputs(device, on_gpu, dtype, memory_efficient):
    module = lnc.LayerNorm(1024, device=device, dtype=dtype, memory_efficient=memory_efficient)
    x, dy = random(64, 1024, device=device, dtype=dtype), random(64, 1024, device=device, dtype=dtype, grad=False)
    leaves = [x, module.weight, module.bias]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.autograd.grad(module(x), leaves, dy)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = module(x)
        gradients = torch.autograd.grad(y, leaves, dy)
    for _ in range(3):
        with torch.no_grad():
            x.copy_(random(64, 1024, device=device, dtype=dtype))
            dy.copy_(random(64, 1024, device=device, dtype=dtype))
        graph.replay()
        eager = module(x)
        assert all(map(torch.equal, (y, *gradients), (eager, *torch.autograd.grad(eager, leaves, dy))))


def test_the_current_stream_is_the_one(device, on_gpu):
    right = random(256, 2048, device=device)
    expected = lnc.layer_norm(right, 2048)
    side = torch.cuda.Stream()
    x = torch.zeros_like(right, requires_grad=True)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)  # about 0.1 s; a kernel on another stream would see zeros
        with torch.no_grad():
            x.copy_(right)
        y = lnc.layer_norm(x, 2048)
        dx, = torch.autograd.grad(y.square().sum(), x)
    side.synchronize()
    assert torch.equal(y, expected) and bool(dx.isfinite().all())


def test_two_streams_at_once(device, on_gpu):
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    inputs = [random(4096, 1024 * (i + 1), device=device) for i in range(2)]

    def turn(i):
        y = lnc.layer_norm(inputs[i], inputs[i].shape[1:])
        return [y, *torch.autograd.grad(y.square().sum(), inputs[i])]

    expected = [turn(0), turn(1)]
    torch.cuda.synchronize()
    results = [[], []]
    for _ in range(20):
        for i in range(2):
            with torch.cuda.stream(streams[i]):
                results[i].append(turn(i))
    torch.cuda.synchronize()
    for of_stream, right in zip(results, expected):
        assert all(all(map(torch.equal, result, right)) for result in of_stream)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_tensor_on_another_gpu(device, on_gpu):
    x = random(64, 512, device="cuda:1")
    assert torch.cuda.current_device() == 0
    y = lnc.layer_norm(x, 512)
    y.square().sum().backward()
    assert (str(y.device), str(x.grad.device)) == ("cuda:1", "cuda:1")
    assert error(y, torch.nn.functional.layer_norm(x, (512,))) < 1e-5
