"""The Python package against PyTorch: functions, modules, gradients, compilation, threads, streams.

With the CPU backend's library, everything but CUDA graphs and streams is tested, on CPU tensors.
"""

import copy
import os
import re
import threading
import unittest
import unittest.mock
from pathlib import Path

import pytest

from common.tools.pytest_fixtures import import_torch

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # PyTorch's threads and the CPU library's
torch = import_torch()
import layernorm_chapters as lnc  # noqa: E402
from layernorm_chapters import operators  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
LIMITS = {torch.float32: 1e-5, torch.float16: 6e-4, torch.bfloat16: 4e-3}
KINDS = ("layer", "rms")
EPS = 1e-5
DEVICE = "cpu"  # or "cuda", where the library's tensors are


@pytest.fixture(scope="module", autouse=True)
def with_the_library(library, torch_device):
    global DEVICE
    DEVICE = torch_device
    operators.load()
    assert operators.library().path == library
    print(f"{library}, PyTorch {torch.__version__}, {DEVICE} tensors")


@pytest.fixture
def on_gpu():
    if DEVICE != "cuda":
        pytest.skip("needs a GPU")


def random(*shape, dtype=torch.float32, mean=0.0, requires_grad=False):
    values = torch.randn(*shape, device=DEVICE, dtype=torch.float32) + mean
    return values.to(dtype).requires_grad_(requires_grad)


def parameters(shape, dtype, weight=True, bias=True):
    """A weight about 2 and a bias, or None for either."""
    return (random(*shape, dtype=dtype, mean=2.0, requires_grad=True) if weight else None,
            random(*shape, dtype=dtype, requires_grad=True) if bias else None)


def ours(kind, x, shape, weight, bias, eps=EPS, **options):
    if kind == "layer":
        return lnc.layer_norm(x, shape, weight, bias, eps, **options)
    return lnc.rms_norm(x, shape, weight, eps, **options)


def theirs(kind, x, shape, weight, bias, eps=EPS):
    shape = (shape,) if isinstance(shape, int) else shape
    if kind == "layer":
        return torch.nn.functional.layer_norm(x, shape, weight, bias, eps)
    return torch.nn.functional.rms_norm(x, shape, weight, eps)


def in_double(tensor):
    return None if tensor is None else tensor.detach().double().requires_grad_()


def error(tensor, reference):
    tensor, reference = tensor.detach().double(), reference.detach().double()
    return float((tensor - reference).norm()) / (float(reference.norm()) or 1.0)


class Package(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(7)

    def same(self, tensor, other):
        self.assertEqual(tensor.dtype, other.dtype)
        self.assertTrue(torch.equal(tensor, other))

    def compare(self, kind, x, shape, weight, bias, factor=1.0, **options):
        """y and the gradients, against PyTorch's in double."""
        y = ours(kind, x, shape, weight, bias, **options)
        self.assertEqual((y.shape, y.dtype), (x.shape, x.dtype))
        self.assertTrue(y.is_contiguous())
        dy = torch.randn_like(y)
        leaves = [t for t in (x, weight, bias) if t is not None]
        gradients = torch.autograd.grad(y, leaves, dy)
        references = [in_double(t) for t in (x, weight, bias)]
        reference = theirs(kind, references[0], shape, references[1], references[2])
        expected = torch.autograd.grad(reference, [t for t in references if t is not None],
                                       dy.double())
        self.assertLess(error(y, reference), LIMITS[x.dtype])
        for leaf, gradient, right in zip(leaves, gradients, expected):
            self.assertEqual((gradient.shape, gradient.dtype), (leaf.shape, leaf.dtype))
            self.assertLess(error(gradient, right), factor * LIMITS[leaf.dtype])


class Functions(Package):
    def test_every_type_kind_and_parameter(self):
        for dtype in LIMITS:
            for mixed in (False, True) if dtype != torch.float32 else (False,):
                for kind in KINDS:
                    for weight in (False, True):
                        for bias in (False, True) if kind == "layer" else (False,):
                            for cols in (31, 256, 1000):
                                with self.subTest(dtype=dtype, mixed=mixed, kind=kind,
                                                  weight=weight, bias=bias, cols=cols):
                                    x = random(9, cols, dtype=dtype, mean=0.5, requires_grad=True)
                                    of = torch.float32 if mixed else dtype
                                    w, b = parameters((cols,), of, weight, bias)
                                    self.compare(kind, x, (cols,), w, b)

    def test_memory_efficient(self):
        for dtype in LIMITS:
            for kind in KINDS:
                with self.subTest(dtype=dtype, kind=kind):
                    x = random(33, 512, dtype=dtype, requires_grad=True)
                    weight = (1.0 + torch.rand(512, device=DEVICE)).to(dtype).requires_grad_()
                    bias = random(512, dtype=dtype, requires_grad=True) if kind == "layer" else None
                    # The rounding of y, which xhat is made of, comes on top.
                    self.compare(kind, x, 512, weight, bias, factor=4, memory_efficient=True)

    def test_memory_efficient_keeps_y_and_not_x(self):
        for memory_efficient in (False, True):
            kept = []
            x = random(4, 64, requires_grad=True)
            with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.data_ptr()) or t,
                                                          lambda t: t):
                y = lnc.layer_norm(x, 64, *parameters((64,), torch.float32),
                                   memory_efficient=memory_efficient)
            self.assertEqual(x.data_ptr() in kept, not memory_efficient)
            self.assertEqual(y.data_ptr() in kept, memory_efficient)

    def test_several_dimensions(self):
        for shape in ((7,), (5, 7), (3, 5, 7)):
            for kind in KINDS:
                x = random(2, 3, 5, 7, requires_grad=True)
                weight, bias = parameters(shape, torch.float32, bias=kind == "layer")
                self.compare(kind, x, shape, weight, bias)
        x = random(40, requires_grad=True)  # no dimension beside those that are normalised
        self.compare("layer", x, (40,), *parameters((40,), torch.float32))

    def test_tensors_that_lie_in_memory_in_other_ways(self):
        base = random(24, 16, 33, requires_grad=True)
        weight, bias = parameters((24,), torch.float32)
        for x in (base.transpose(0, 2), base[:, ::2, 1:25].reshape(-1, 24)[1:],
                  base[:1, :, :24].expand(5, 16, 24)):
            x = x.detach().requires_grad_()
            for memory_efficient in (False, True):
                self.compare("layer", x, (24,), weight, bias, memory_efficient=memory_efficient)
        strided = random(48, requires_grad=True)[::2].detach().requires_grad_()
        self.compare("layer", random(5, 24, requires_grad=True), 24, strided, bias)

    def test_a_gradient_that_is_one_number_everywhere(self):
        x = random(8, 64, requires_grad=True)  # sum() hands down an expanded tensor
        weight, bias = parameters((64,), torch.float32)
        lnc.layer_norm(x, 64, weight, bias).sum().backward()
        self.assertTrue(torch.allclose(bias.grad, torch.full_like(bias, 8.0)))

    def test_rows_that_start_at_no_16_byte_boundary(self):
        for dtype in LIMITS:
            memory = random(1 + 6 * 128, dtype=dtype)
            x = memory[1:].view(6, 128).requires_grad_()
            self.assertEqual(x.data_ptr() % 16, memory.element_size())
            self.compare("layer", x, 128, *parameters((128,), dtype))

    def test_only_the_gradients_that_are_needed(self):
        x, dy = random(6, 40), random(6, 40)
        weight, bias = parameters((40,), torch.float32)
        expected = torch.autograd.grad(lnc.layer_norm(x.requires_grad_(), 40, weight, bias),
                                       (x, weight, bias), dy)
        for needed in range(1, 8):
            leaves = [t.detach().requires_grad_(bool(needed >> i & 1))
                      for i, t in enumerate((x, weight, bias))]
            lnc.layer_norm(leaves[0], 40, *leaves[1:]).backward(dy)
            for leaf, right in zip(leaves, expected):
                if leaf.requires_grad:
                    self.same(leaf.grad, right)
                else:
                    self.assertIsNone(leaf.grad)
        with torch.no_grad():
            self.assertFalse(lnc.layer_norm(x, 40, weight, bias).requires_grad)

    def test_no_rows(self):
        x = random(0, 3, 40, requires_grad=True)
        weight, bias = parameters((40,), torch.float32)
        y = lnc.layer_norm(x, 40, weight, bias)
        self.assertEqual(y.shape, x.shape)
        y.sum().backward()
        self.assertEqual((x.grad.shape, float(weight.grad.abs().max()), float(bias.grad.abs().max())),
                         (x.shape, 0.0, 0.0))

    def test_rms_norm_without_eps(self):
        for dtype in LIMITS:
            x = random(4, 64, dtype=dtype) * 1e-3  # whose squares are no larger than an epsilon
            self.assertLess(error(lnc.rms_norm(x, 64), torch.nn.functional.rms_norm(x, (64,))),
                            LIMITS[dtype])

    def test_every_chapter_by_its_name(self):
        x = random(21, 72, requires_grad=True)
        weight, bias = parameters((72,), torch.float32)
        self.assertGreater(len(lnc.chapters()), 10)
        for chapter in lnc.chapters():
            if chapter.id.startswith("my"):  # the reader's own may be unfinished
                continue
            with self.subTest(chapter.id):
                self.compare("layer", x, 72, weight, bias, chapter=chapter.id,
                             memory_efficient=chapter.from_y)
        self.compare("layer", x, 72, weight, bias, chapter=("fwd03", "bwd05"))

    def test_twenty_runs_give_the_same_bits(self):
        for kind in KINDS:
            for memory_efficient in (False, True):
                x = random(130, 1024, dtype=torch.float16, requires_grad=True)
                weight, bias = parameters((1024,), torch.float16, bias=kind == "layer")
                leaves = [t for t in (x, weight, bias) if t is not None]
                dy, first = random(130, 1024, dtype=torch.float16), None
                for _ in range(20):
                    y = ours(kind, x, 1024, weight, bias, memory_efficient=memory_efficient)
                    results = [y.detach(), *torch.autograd.grad(y, leaves, dy)]
                    first = first or results
                    for result, expected in zip(results, first):
                        self.same(result, expected)

    def test_eight_threads_at_once(self):
        def work(seed):
            generator = torch.Generator().manual_seed(seed)
            x = torch.randn(20 + seed, 200, generator=generator).to(DEVICE).requires_grad_()
            weight = torch.randn(200, generator=generator).to(DEVICE).requires_grad_()
            results = []
            for turn in range(5):
                y = ours(KINDS[seed % 2], x, 200, weight, None, memory_efficient=turn % 2 == 1)
                results += [y.detach(), *torch.autograd.grad(y.square().sum(), (x, weight))]
                try:
                    lnc.layer_norm(x, 200, chapter=f"fwd9{seed}")
                except ValueError as problem:  # its own, and no other thread's
                    assert f"'fwd9{seed}'" in str(problem), problem
            return results

        found, failures = {}, []

        def thread(seed):
            try:
                found[seed] = work(seed)
            except BaseException as problem:
                failures.append(problem)

        threads = [threading.Thread(target=thread, args=(seed,)) for seed in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        self.assertEqual(failures, [])
        for seed, results in found.items():
            for result, expected in zip(results, work(seed)):
                self.same(result, expected)


class Modules(Package):
    def test_they_stand_in_for_torchs(self):
        variants = [dict(), dict(eps=1e-3), dict(elementwise_affine=False),
                    dict(dtype=torch.bfloat16)]
        for name in ("LayerNorm", "RMSNorm"):
            bias = [dict(bias=False)] if name == "LayerNorm" else []
            for options in variants + bias:
                for shape in (40, (4, 40)):
                    with self.subTest(name, shape=shape, **options):
                        mine = getattr(lnc, name)(shape, device=DEVICE, **options)
                        torchs = getattr(torch.nn, name)(shape, device=DEVICE, **options)
                        self.assertIsInstance(mine, type(torchs))
                        self.assertEqual(repr(mine), repr(torchs))
                        for parameter in torchs.parameters():
                            torch.nn.init.normal_(parameter, mean=1.0)
                        self.assertEqual(mine.state_dict().keys(), torchs.state_dict().keys())
                        mine.load_state_dict(torchs.state_dict())
                        torchs.load_state_dict(mine.state_dict())
                        x = random(3, 4, 40, dtype=options.get("dtype", torch.float32))
                        self.assertLess(error(mine(x), torchs(x)), 2 * LIMITS[x.dtype])

    def test_the_example_of_the_readme(self):
        readme = (ROOT / "common/python/README.md").read_text(encoding="utf-8")
        example, = re.findall(r"^```python\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
        names = {}
        try:
            exec(example.replace('"cuda"', repr(DEVICE)), names)
        finally:
            lnc.disable()
        self.assertIsNotNone(names["norm"].weight.grad)

    def test_their_own_arguments(self):
        module = lnc.LayerNorm(8, memory_efficient=True, chapter=("lib_fwd_registers", "lib_bwd_from_y"))
        self.assertTrue(repr(module).endswith(
            "memory_efficient=True, chapter=('lib_fwd_registers', 'lib_bwd_from_y'))"), repr(module))
        module = copy.deepcopy(module).to(DEVICE)
        module(random(3, 8)).sum().backward()
        self.assertIsNotNone(module.weight.grad)

    def test_they_learn_what_torchs_learn(self):
        def losses(name, namespace):
            torch.manual_seed(3)
            model = torch.nn.Sequential(torch.nn.Linear(16, 32), getattr(namespace, name)(32),
                                        torch.nn.Tanh(), torch.nn.Linear(32, 1)).to(DEVICE)
            x = torch.randn(64, 16, device=DEVICE)
            optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(10):
                loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                yield float(loss.detach())

        for name in ("LayerNorm", "RMSNorm"):
            for mine, torchs in zip(losses(name, lnc), losses(name, torch.nn)):
                self.assertAlmostEqual(mine / torchs, 1.0, places=3)


class Errors(Package):
    def refused(self, kind, words, *arguments, **options):
        with self.assertRaises(kind) as caught:
            lnc.layer_norm(*arguments, **options)
        self.assertIn(words, str(caught.exception))

    def test_types(self):
        x = random(3, 8)
        self.refused(TypeError, "x is of torch.float64", x.double(), 8)
        self.refused(TypeError, "x is of torch.int32", x.int(), 8)
        self.refused(TypeError, "weight is of torch.int32; it must be of a floating type", x, 8, x[0].int())
        self.refused(TypeError, "bias is of torch.bool", x, 8, None, x[0] > 0)

    def test_shapes(self):
        x = random(3, 8)
        self.refused(ValueError, "normalized_shape is [7]", x, 7)
        self.refused(ValueError, "normalized_shape is [2, 3, 8]", x, (2, 3, 8))
        self.refused(ValueError, "normalized_shape is []", x, ())
        self.refused(ValueError, "weight has shape [7]", x, 8, random(7))
        self.refused(ValueError, "bias has shape [3, 8]", x, 8, None, x)
        self.refused(ValueError, "nothing to normalise", random(3, 0), 0)

    def test_the_direction_of_a_chapter_of_the_reader_s_own(self):
        own = [unittest.mock.Mock(id="my01", backward=False), unittest.mock.Mock(id="my02", backward=True)]
        with unittest.mock.patch.object(operators, "chapters", lambda: own):
            self.assertEqual(operators._chapter_pair(("my02", "my01")), ("my01", "my02"))
            self.assertEqual(operators._chapter_pair("my02"), (None, "my02"))
            with self.assertRaisesRegex(ValueError, "name a forward kernel"):
                operators._chapter_pair("my03")

    def test_chapters(self):
        x = random(3, 8, requires_grad=True)
        self.refused(ValueError, "'fwd99' is no forward kernel", x, 8, chapter="fwd99")
        self.refused(ValueError, "name a forward kernel", x, 8, chapter="welford")
        self.refused(ValueError, "name a forward kernel", x, 8, chapter=("fwd01", "fwd02"))
        with self.assertRaisesRegex(ValueError, "fwd01 takes layer norm only, not RMS norm"):
            lnc.rms_norm(x, 8, chapter="fwd01")
        for chapter, memory_efficient in (("bwd07", False), ("bwd09", True)):
            y = lnc.layer_norm(x, 8, chapter=chapter, memory_efficient=memory_efficient)
            with self.assertRaisesRegex(ValueError, f"{chapter} starts from .* is given"):
                y.sum().backward()

    def test_devices(self):
        other = "meta" if DEVICE == "cpu" else "cpu"
        self.refused(ValueError, f"weight is on {other} and x on {DEVICE}", random(3, 8), 8,
                     torch.ones(8, device=other))
        if DEVICE == "cuda":
            self.refused(RuntimeError, "move it to the GPU", torch.ones(3, 8), 8)

    def test_what_is_fused(self):
        x, weight = random(3, 8), random(8)
        for words, options in (("residual has shape [2, 8]; it must be that of x, [3, 8]", {"residual": x[:2]}),
                               ("x1 has shape [8]", {"x1": weight}), ("rowscale has shape [8]", {"rowscale": weight}),
                               ("dropout is 1; it must be a probability", {"dropout": 1.0}),
                               ("bias1 has shape [3, 8]", {"bias1": x})):
            with self.assertRaisesRegex(ValueError, re.escape(words)):
                lnc.fused_add_layer_norm(x, **{"residual": x, "normalized_shape": 8, **options})
        with self.assertRaisesRegex(TypeError, "residual is of torch.float16 and x of torch.float32"):
            lnc.fused_add_layer_norm(x, x.half(), 8)
        with self.assertRaisesRegex(ValueError, "fwd06 is not a fused chapter"):
            lnc.fused_add_layer_norm(x, x, 8, chapter="fwd06")

    def test_the_library_is_not_there(self):
        from layernorm_chapters.library import Library, library_path

        asked = os.environ.pop("LNC_LIBRARY")
        try:
            with unittest.mock.patch("layernorm_chapters.library.ROOT", Path("/nowhere")):
                with self.assertRaisesRegex(lnc.LibraryError, "'make library BACKEND=cuda' in"):
                    library_path("cuda")
            os.environ["LNC_LIBRARY"] = "/nowhere/liblnc.so"
            with self.assertRaisesRegex(lnc.LibraryError, "LNC_LIBRARY is /nowhere"):
                library_path("cuda")
        finally:
            os.environ["LNC_LIBRARY"] = asked
        with self.assertRaisesRegex(lnc.LibraryError, "cannot be loaded"):
            Library(__file__)


def small_model(**options):
    return torch.nn.Sequential(torch.nn.Linear(64, 48), lnc.LayerNorm(48, **options),
                               torch.nn.GELU(), lnc.RMSNorm((48,), **options)).to(DEVICE)


class Compilation(Package):
    def test_the_operators_are_what_pytorch_wants(self):
        x, dy, residual = (random(6, 40, requires_grad=grad) for grad in (True, False, True))
        weight, bias = parameters((40,), torch.float32)
        statistics, ops = random(2, 6).abs(), torch.ops.layernorm_chapters
        for memory_efficient in (False, True):
            torch.library.opcheck(ops.norm.default, (x, [40], weight, bias, EPS, False, memory_efficient, False, None,
                                                     None))
            torch.library.opcheck(ops.norm_backward.default,
                                  (dy, x.detach(), [40], weight.detach(), bias.detach(), statistics, EPS, False,
                                   memory_efficient, False, True, False, None))
        torch.library.opcheck(ops.norm.default, (x, [40], weight, None, EPS, True, False, True, "lib_fwd_registers",
                                                "lib_bwd_any"))
        nothing = [None] * 7
        torch.library.opcheck(ops.add_norm.default,
                              (x, residual, [40], weight, bias, *nothing, 0.0, EPS, False, False, False, None, None))
        for trains in (True, False):
            torch.library.opcheck(ops.add_norm_backward.default,
                                  (dy, dy, None, x.detach(), [40], weight.detach(), bias.detach(), None, None,
                                   statistics, *nothing[:4], 0.0, EPS, False, False, True, False, None, trains))
        torch.library.opcheck(ops.add_norm_.default,
                              (dy, residual.detach(), [40], weight.detach(), bias.detach(), EPS, False))

    def test_whoever_traces_or_overrides_a_call_sees_an_operator(self):
        from torch.fx.experimental.proxy_tensor import make_fx

        x, weight = random(3, 8, requires_grad=True), torch.ones(8, device=DEVICE)
        self.assertIn("NormBackward", lnc.layer_norm(x, 8).grad_fn.name())

        class Twice(torch.Tensor):
            pass

        def norm(x):
            return lnc.layer_norm(x, 8, weight)

        right = norm(x).detach()
        for traced in (make_fx(norm)(x.detach()), torch.jit.trace(norm, x.detach())):
            self.assertIn("layernorm_chapters", str(getattr(traced, "graph", traced)))
            self.same(traced(x.detach()), right)
        self.assertIsInstance(norm(x.detach().as_subclass(Twice)), Twice)
        with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
            self.assertEqual(norm(mode.from_tensor(torch.zeros(3, 8, device=DEVICE))).shape, x.shape)
        self.same(torch.vmap(norm)(x.detach()[None])[0], right)

    def test_one_whole_graph(self):
        for options in ({}, {"memory_efficient": True}, {"chapter": "lib_fwd_registers"}):
            for dynamic in (False, True):
                with self.subTest(dynamic=dynamic, **options):
                    torch.compiler.reset()
                    model = small_model(**options)
                    compiled = torch.compile(model, fullgraph=True, dynamic=dynamic)
                    for rows in (5, 17) if dynamic else (5,):
                        x = random(rows, 64, requires_grad=True)
                        leaves = [x, *model.parameters()]
                        y, expected = compiled(x), model(x)
                        self.assertLess(error(y, expected), 1e-5)
                        dy = torch.randn_like(y)
                        for mine, eager in zip(torch.autograd.grad(y, leaves, dy),
                                               torch.autograd.grad(expected, leaves, dy)):
                            self.assertLess(error(mine, eager), 1e-4)

    @pytest.mark.usefixtures("on_gpu")
    def test_compiled_into_a_cuda_graph(self):
        torch.compiler.reset()
        model = small_model()
        compiled = torch.compile(model, fullgraph=True, mode="reduce-overhead")
        with torch.no_grad():
            for _ in range(5):
                x = random(32, 64)
                self.assertLess(error(compiled(x).clone(), model(x)), 1e-5)


@pytest.mark.usefixtures("on_gpu")
class Streams(Package):
    def test_a_cuda_graph_replays_with_new_inputs(self):
        for memory_efficient in (False, True):
            for dtype in LIMITS:
                module = lnc.LayerNorm(1024, device=DEVICE, dtype=dtype,
                                       memory_efficient=memory_efficient)
                x = random(64, 1024, dtype=dtype, requires_grad=True)
                dy = random(64, 1024, dtype=dtype)
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
                        x.copy_(random(64, 1024, dtype=dtype))
                        dy.copy_(random(64, 1024, dtype=dtype))
                    graph.replay()
                    eager = module(x)
                    for captured, expected in zip((y, *gradients),
                                                  (eager, *torch.autograd.grad(eager, leaves, dy))):
                        self.same(captured.detach(), expected.detach())

    def test_the_current_stream_is_the_one(self):
        right = random(256, 2048)
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
        self.same(y.detach(), expected)
        self.assertTrue(bool(dx.isfinite().all()))

    def test_two_streams_at_once(self):
        streams = [torch.cuda.Stream(), torch.cuda.Stream()]
        inputs = [random(4096, 1024 * (i + 1), requires_grad=True) for i in range(2)]

        def turn(i):
            y = lnc.layer_norm(inputs[i], inputs[i].shape[1:])
            return [y.detach(), *torch.autograd.grad(y.square().sum(), inputs[i])]

        expected = [turn(0), turn(1)]
        torch.cuda.synchronize()
        results = [[], []]
        for _ in range(20):
            for i in range(2):
                with torch.cuda.stream(streams[i]):
                    results[i].append(turn(i))
        torch.cuda.synchronize()
        for i in range(2):
            for result in results[i]:
                for mine, right in zip(result, expected[i]):
                    self.same(mine, right)

    @unittest.skipUnless(torch.cuda.device_count() > 1, "needs two GPUs")
    def test_a_tensor_on_another_gpu(self):
        x = random(64, 512).to("cuda:1").requires_grad_()
        self.assertEqual(torch.cuda.current_device(), 0)
        y = lnc.layer_norm(x, 512)
        y.square().sum().backward()
        self.assertEqual((str(y.device), str(x.grad.device)), ("cuda:1", "cuda:1"))
        self.assertLess(error(y, torch.nn.functional.layer_norm(x, (512,))), 1e-5)
