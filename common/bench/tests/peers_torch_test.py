"""compare_peers.py with PyTorch: the reference, the C library, a whole run. On the library's device."""

import contextlib
import io
import os
import tempfile
import time
import unittest
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest import mock

import pytest

from common.tools.pytest_fixtures import import_torch

torch = import_torch()
from layernorm_chapters.library import Library, LibraryError  # noqa: E402

from common.bench import compare_peers, peer_checks, peer_providers, warm_caches  # noqa: E402
from common.bench.clock import Clock  # noqa: E402
from common.results import device, peers  # noqa: E402
from common.results import records as measurements  # noqa: E402
from common.results.problems import Problem  # noqa: E402

PROBLEMS = [Problem(dtype, 33, 264) for dtype in peers.DTYPES]
# Which refuse 264 columns, and a width that they take.
OF_NARROW_ROWS = {"fwd10": 64, "bwd14": 64, "fwd15": 65, "bwd19": 65, "lib_fwd_tiles": 65, "lib_bwd_tiles": 65}
LIBRARY, DEVICE = None, "cpu"  # those of --build


@pytest.fixture(scope="module", autouse=True)
def of_the_build(library, torch_device):
    global LIBRARY, DEVICE
    LIBRARY, DEVICE = library, torch_device


class Reference(unittest.TestCase):
    def test_it_is_autograd_s_in_double(self):
        for kind in peers.KINDS:
            inputs = peer_providers.make_inputs(kind, Problem("f32", 40, 96), DEVICE)
            leaves = [t.double().requires_grad_() for t in (inputs.x, inputs.weight, inputs.bias) if t is not None]
            y = peer_providers.torch_norm(inputs, *leaves, *([None] if kind == "rms" else []))
            dx, *sums = torch.autograd.grad(y, leaves, inputs.dy.double())
            everything = slice(0, 40)
            torch.testing.assert_close(peer_checks.forward_reference(inputs, everything), y.detach())
            reference = peer_checks.backward_reference(inputs, everything)
            for ours, theirs in zip(reference, (dx, *sums)):
                torch.testing.assert_close(ours, theirs)

    def test_from_y_it_is_that_from_x_but_for_y_s_rounding(self):
        inputs = peer_providers.make_inputs("layer", Problem("f32", 40, 96), DEVICE)
        everything = slice(0, 40)
        from_x = peer_checks.backward_reference(inputs, everything)
        from_y = peer_checks.backward_reference(inputs.from_y(), everything)
        for ours, theirs in zip(from_y, from_x):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)

    def test_slices_of_rows_add_up(self):
        inputs = peer_providers.make_inputs("layer", Problem("bf16", 40, 96), DEVICE)
        y = inputs.from_y().y
        with mock.patch.object(peer_checks, "chunks", lambda rows, cols: [slice(0, 7), slice(7, rows)]):
            self.assertTrue(torch.equal(inputs.from_y().y, y))
            self.assertTrue(peer_checks.check("forward", inputs, (y,)).passed)
        self.assertEqual([(s.start, s.stop) for s in peer_checks.chunks(5, 10, 20)], [(0, 2), (2, 4), (4, 5)])

    def test_the_roof_moves_all_but_the_last_half_word(self):
        for numbers, words in ((6, 3), (7, 3)):
            self.assertEqual(peer_checks.in_words(torch.zeros(1, numbers, dtype=torch.bfloat16)).numel(), words)
        self.assertEqual(peer_checks.in_words(torch.zeros(5, 1)).numel(), 5)

    def test_what_is_wrong_is_found(self):
        inputs = peer_providers.make_inputs("layer", Problem("bf16", 4000, 64), DEVICE)
        outputs = peer_providers.own_call(Library(LIBRARY), None, "backward", inputs)()
        self.assertTrue(peer_checks.check("backward", inputs, outputs).passed)
        for at, name, value in ((0, "dx", 0.0), (0, "dx", float("nan")), (1, "dweight", 0.0), (2, "dbias", 1e3)):
            with self.subTest(name, value=value):
                wrong = [output.clone() for output in outputs]
                wrong[at][3] = value  # a row of 4000, an element of 64
                result = peer_checks.check("backward", inputs, wrong)
                self.assertFalse(result.passed)
                self.assertRegex(result.why, f"^{name} is wrong")

    def test_one_wrong_row_of_many_is_found(self):
        inputs = peer_providers.make_inputs("layer", Problem("bf16", 80000, 16), DEVICE)
        y = inputs.from_y().y
        self.assertTrue(peer_checks.check("forward", inputs, (y,)).passed)
        y[3] = 0  # too little for the error of the whole
        self.assertRegex(peer_checks.check("forward", inputs, (y,)).why, "^y is wrong in a row: relative error 1.0e")


class TheLibrary(unittest.TestCase):
    def test_every_chapter_is_right_or_says_why_not(self):
        library = Library(LIBRARY)
        for provider in peer_providers.own_providers(LIBRARY, library.backend):
            prepare = provider.load()
            for kind in peers.KINDS:
                for problem in PROBLEMS:
                    problem = problem._replace(cols=OF_NARROW_ROWS.get(provider.name, problem.cols))
                    inputs = peer_providers.make_inputs(kind, problem, DEVICE)
                    for direction in provider.directions:
                        with self.subTest(provider.name, kind=kind, direction=direction, dtype=problem.dtype):
                            given = inputs.from_y() if provider.from_y else inputs
                            try:
                                run = prepare(direction, given)
                            except LibraryError as error:
                                self.assertRegex(str(error), f"^{provider.name} (takes layer norm only|needs)")
                                continue
                            result = peer_checks.check(direction, given, run())
                            self.assertTrue(result.passed, result.why)
                            self.assertIn(run.chapter.removeprefix("lib_")[:3], ("fwd", "bwd"))

    def test_a_model_s_way_to_the_dispatch(self):
        dispatch, from_y, *_ = peer_providers.own_providers(LIBRARY, DEVICE, with_launch=True)
        for kind in peers.KINDS:
            inputs = peer_providers.make_inputs(kind, PROBLEMS[0], DEVICE)
            for provider, given in ((dispatch, inputs), (from_y, inputs.from_y())):
                for direction in provider.directions:
                    result = peer_checks.check(direction, given, provider.load()(direction, given)())
                    self.assertTrue(result.passed, result.why)

    def test_another_backend_is_refused(self):
        with self.assertRaisesRegex(LibraryError, "is of the .* backend"):
            peer_providers.own_providers(LIBRARY, "another")


def broken(direction, inputs):
    return lambda: (torch.zeros_like(inputs.x), torch.zeros_like(inputs.weight), torch.zeros_like(inputs.weight))


def failing(direction, inputs):
    raise RuntimeError("no kernel image\nmore")


@contextlib.contextmanager
def comparison(prepares, samples=3):
    with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stderr(io.StringIO()), \
            mock.patch.object(peer_checks, "triton", peer_checks.triton if DEVICE == "cuda" else None):
        options = SimpleNamespace(budget=600, with_launch=False, samples=samples)
        journal = compare_peers.Journal(Path(directory) / "peers.jsonl")
        made_by = {"device": "a device", "run": "now"}
        yield compare_peers.Comparison(options, prepares, journal, made_by, Clock(LIBRARY), DEVICE)


class Run(unittest.TestCase):
    def test_no_two_samples_in_succession_have_the_same_memory(self):
        """What evict_last keeps in L2 would make the second one faster."""
        seen = []

        def spy(direction, inputs):
            norm = peer_providers.by_autograd(peer_providers.torch_norm)(direction, inputs)

            def run():
                seen.append((inputs.x.data_ptr(), inputs.dy.data_ptr(), inputs.weight.data_ptr()))
                return norm()
            return run

        provider = peer_providers.Provider("spy", lambda: spy, "", "", directions=("forward",))
        with comparison({"spy": spy}, samples=20) as compared:
            compared.run([(PROBLEMS[0], "forward", provider)])
            self.assertTrue(compared.journal.records[0]["passed"])
        self.assertGreater(len(seen), 20)
        for tensor in zip(*seen):
            self.assertEqual(len(set(tensor)), peers.copies(33 * 264 * 4))
            self.assertTrue(all(one != other for one, other in zip(tensor, tensor[1:])))

    def test_a_whole_run(self):
        """Ours, PyTorch, one that is wrong, one that fails: what is written, and what is said."""
        ours = [p for p in peer_providers.own_providers(LIBRARY, Library(LIBRARY).backend)
                if p.name in (*peers.DISPATCH, "fwd01", "bwd01")]
        theirs = [peer_providers.PEERS[0], *(peer_providers.Provider(name, lambda prepare=prepare: prepare, "", "")
                                             for name, prepare in (("broken", broken), ("failing", failing)))]
        prepares, missing = compare_peers.load_all(ours + theirs)
        self.assertEqual(missing, [])
        with comparison(prepares) as compared:
            compared.run(compare_peers.plan(ours + theirs, PROBLEMS, peers.DIRECTIONS))
            with contextlib.redirect_stdout(io.StringIO()) as out:
                compare_peers.report(compared, missing, interrupted=False)
            found = measurements.load(compared.journal.path)
        self.assertEqual(found.skipped, 0)
        for problem in PROBLEMS:
            for direction in peers.DIRECTIONS:
                for name in ("dispatch", "torch"):
                    if (name, DEVICE, direction) == ("torch", "cpu", "backward") and problem.dtype != "f32":
                        continue  # on a CPU PyTorch keeps means and sums in 16 bits, and may be wrong by our limit
                    record = found.find(name, problem, direction)
                    self.assertTrue(record["passed"] and record["median_us"] > 0 and record["roof_us"] > 0, record)
                    moved = 33 * 264 * {"f32": 4}.get(problem.dtype, 2) * {"forward": 2, "backward": 3}[direction]
                    self.assertEqual((record["operator_bytes"], record["roof_bytes"]), (moved, moved))
                self.assertFalse(found.find("broken", problem, direction)["passed"])
        self.assertEqual(found.find("dispatch", PROBLEMS[0], "forward")["chosen"][:8], "lib_fwd_")
        self.assertIsNone(found.find("failing", PROBLEMS[0]))
        text = out.getvalue()
        self.assertIn("wrong", text)
        self.assertIn("failing: no kernel image (forward, f32, 33 × 264; backward, f32, 33 × 264; and 4 more)", text)
        self.assertIn("broken: y is wrong: relative error 1.0e+00", text)


def norm_in_float(x, weight, bias, eps, kind):
    given = [None if tensor is None else tensor.float() for tensor in (x, weight, bias)]
    return peer_providers.torch_norm(SimpleNamespace(kind=kind, eps=eps), *given).to(x.dtype)


def cudnn_stub(seen):
    """The modules of cuDNN's front end, with the arguments and refusals of 1.32; `seen` gets the weights' types."""
    def layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5):
        if tuple(normalized_shape) != (input.shape[-1],) or weight.dtype not in (input.dtype, torch.float32):
            raise ValueError("weight must match normalized_shape")
        seen.append(("layer", weight.dtype))
        return norm_in_float(input, weight, bias, eps, "layer")

    def rms_norm(input, weight, bias=None, eps=1e-5):
        if weight.dtype != input.dtype:
            raise ValueError("weight must have the same device and dtype as input")
        seen.append(("rms", weight.dtype))
        return norm_in_float(input, weight, bias, eps, "rms")

    modules = {name: ModuleType(name) for name in ("cudnn", "cudnn.ops", "cudnn.ops.norm")}
    modules["cudnn"].backend_version_string = lambda: "9.19.0"
    modules["cudnn.ops.norm"].layer_norm, modules["cudnn.ops.norm"].rms_norm = layer_norm, rms_norm
    return modules


def helion_stub(rows, launched):
    """Helion's modules, which run a kernel as Python: a tile is `rows` indices of rows, a block's share 2 tiles and a
    row. `launched` gets (the kernel's name, whether a configuration was set)."""
    class Kernel:
        def __init__(self, function):
            self.function, self.config, self.__name__ = function, None, function.__name__
            self.settings = SimpleNamespace(autotune_effort=os.environ["HELION_AUTOTUNE_EFFORT"])
            self.config_spec = SimpleNamespace(default_config=lambda: "its own")

        def bind(self, arguments):
            assert isinstance(arguments, tuple)
            return self

        def set_config(self, config):
            self.config = config

        def __call__(self, *arguments):
            launched.append((self.__name__, self.config))
            return self.function(*arguments)

    def tile(begin, end=None, block_size=None):
        begin, end = (begin, end) if end is not None else (0, begin)
        for id, first in enumerate(range(begin, end, block_size or rows)):
            one = torch.arange(first, min(first + (block_size or rows), end))
            one.begin, one.end, one.id = first, int(one[-1]) + 1, id
            yield one

    modules = {name: ModuleType(name) for name in ("helion", "helion.language")}
    modules["helion"].language = modules["helion.language"]
    modules["helion"].kernel = lambda **options: Kernel
    modules["helion"].exc = SimpleNamespace(TensorOperationInWrapper=None)
    vars(modules["helion.language"]).update(tile=tile, specialize=lambda size: size,
                                            register_block_size=lambda size: 2 * rows + 1)
    return modules


class Stubs(unittest.TestCase):
    """Peers that run on no CPU, with stand-ins for their packages: what they are asked, and what becomes of the results."""

    def peer(self, name, modules):
        """The provider of PEERS, and its prepare() where these modules are installed."""
        for patched in (mock.patch.dict(peer_providers.sys.modules, modules), mock.patch.dict(os.environ)):
            patched.start()
            self.addCleanup(patched.stop)
        peer_providers.sys.modules.pop("common.bench.helion_norms", None)  # of another stub
        provider = next(peer for peer in peer_providers.PEERS if peer.name == name)
        prepares, missing = compare_peers.load_all([provider])
        self.assertEqual(missing, [])
        return provider, prepares[name]

    def assert_right(self, provider, prepare):
        """In every kind, direction and type; twice, for a pass runs many times."""
        for kind in peers.KINDS:
            for problem in [Problem(dtype, 33, 264) for dtype in peers.DTYPES] + [Problem("f32", 7, 5)]:
                inputs = peer_providers.make_inputs(kind, problem, "cpu")
                inputs.eps = 0.5  # not what a package takes unless told
                inputs.rstd[:] = peer_checks.statistics(inputs, slice(None))[1][:, 0]
                for direction in provider.directions:
                    with self.subTest(kind=kind, direction=direction, problem=str(problem)):
                        run = prepare(direction, inputs)
                        for outputs in (run(), run()):
                            self.assertEqual(len(outputs), 1 if direction == "forward" else 3)
                            self.assertEqual(outputs[0].dtype, inputs.x.dtype)
                            result = peer_checks.check(direction, inputs, outputs)
                            self.assertTrue(result.passed, result.why)
                        if direction == "backward":
                            self.assertEqual(outputs[2] is None, kind == "rms")

    def test_cudnn_gets_parameters_that_its_kernels_take_as_they_are(self):
        seen = []
        provider, prepare = self.peer("cudnn", cudnn_stub(seen))
        self.assert_right(provider, prepare)
        self.assertEqual({weight for kind, weight in seen if kind == "layer"}, {torch.float32})
        self.assertEqual({weight for kind, weight in seen if kind == "rms"},
                         {getattr(torch, dtype) for dtype in peers.DTYPES.values()})

    def test_cudnn_s_gradients_of_float_parameters_are_float(self):
        """Else each pass would have two more kernels, which convert them."""
        _, prepare = self.peer("cudnn", cudnn_stub([]))
        outputs = prepare("backward", peer_providers.make_inputs("layer", Problem("bf16", 7, 8), "cpu"))()
        self.assertEqual([output.dtype for output in outputs], [torch.bfloat16, torch.float32, torch.float32])

    def test_a_type_that_cudnn_refuses_becomes_a_note(self):
        modules = cudnn_stub([])

        def refuses(*arguments, **named):
            raise RuntimeError("no engine proposed a plan for this graph\nmore")

        modules["cudnn.ops.norm"].rms_norm = refuses
        provider, prepare = self.peer("cudnn", modules)
        with comparison({"cudnn": prepare}) as compared:
            compared.run([(Problem("bf16", 7, 8, kind), "backward", provider) for kind in peers.KINDS])
            records = compared.journal.records
        self.assertEqual([(record["problem"]["kind"], record["passed"], record["note"]) for record in records],
                         [("layer", True, "layer norm with float parameters")])
        self.assertEqual(list(compared.notes), [("cudnn", "no engine proposed a plan for this graph")])

    def test_a_front_end_without_norms_is_not_compared(self):
        modules = cudnn_stub([])
        del modules["cudnn.ops.norm"].rms_norm
        for old in (modules, {"cudnn": None, "cudnn.ops": None, "cudnn.ops.norm": None}):
            with mock.patch.dict(peer_providers.sys.modules, old):
                prepares, missing = compare_peers.load_all(
                    [peer for peer in peer_providers.PEERS if peer.name == "cudnn"])
            self.assertEqual(prepares, {})
            self.assertRegex(peers.missing_lines(missing)[1], "cudnn: .*norm.*; pip install 'nvidia-cudnn-frontend>=")

    def test_helion_s_kernels_are_right_whatever_the_tile(self):
        for rows in (1, 2, 5, 64):
            launched = []
            provider, prepare = self.peer("helion", helion_stub(rows, launched))
            self.assert_right(provider, prepare)
            self.assertEqual(set(launched), {(f"{kind}_{direction}", "its own")
                                             for kind in peers.KINDS for direction in peers.DIRECTIONS})

    def test_helion_searches_only_where_that_is_asked_for_and_never_in_a_worker(self):
        inputs = peer_providers.make_inputs("rms", Problem("f32", 7, 8, "rms"), "cpu")
        for effort, in_worker, config in (("none", False, "its own"), ("quick", False, None), ("quick", True, "its own")):
            with self.subTest(effort, in_worker=in_worker), mock.patch.object(peer_providers, "HELION_EFFORT", effort):
                launched = []
                _, prepare = self.peer("helion", helion_stub(2, launched))
                if in_worker:
                    peer_providers.choose_without_timing()
                prepare("forward", inputs)()
                self.assertEqual(launched, [("rms_forward", config)])

    def test_without_helion_it_is_listed(self):
        with mock.patch.dict(peer_providers.sys.modules, {"helion": None}):
            peer_providers.sys.modules.pop("common.bench.helion_norms", None)
            prepares, missing = compare_peers.load_all([peer for peer in peer_providers.PEERS if peer.name == "helion"])
        self.assertEqual(prepares, {})
        self.assertRegex(peers.missing_lines(missing)[1], "helion: .*helion.*; pip install helion==")

    def test_records_name_cudnn_s_own_version_beside_its_front_end_s(self):
        installed = {"nvidia-cudnn-frontend": "1.32.0", "helion": "1.5.0"}
        with mock.patch.dict(peer_providers.sys.modules, cudnn_stub([])), \
                mock.patch.object(peer_providers, "version", installed.get):
            found = peer_providers.versions(["cudnn", "torch"])
            made = compare_peers.made_by(torch, found)
            self.assertEqual(made["packages"]["cudnn"], "9.19.0")
            self.assertEqual(made["packages"]["nvidia-cudnn-frontend"], "1.32.0")
            self.assertNotIn("helion", found)
            self.assertIsNone(peer_providers.versions(["helion"])["cudnn"])

    def test_a_table_has_a_name_for_each_peer_s_package(self):
        self.assertEqual({peer.package for peer in peer_providers.PEERS} - set(device.TOOLS), set())


class Caches(unittest.TestCase):
    def test_a_worker_runs_each_peer_once_in_each_direction_and_a_failure_ends_nothing(self):
        calls = []

        def prepare(name):
            def of_inputs(direction, inputs):
                calls.append((name, direction, inputs.kind, tuple(inputs.x.shape)))
                return failing(direction, inputs) if name == "failing" else lambda: None
            return of_inputs

        there = [peer_providers.Provider(name, lambda name=name: prepare(name), "", "", **more)
                 for name, more in (("failing", {}), ("liger", {}), ("not asked for", {}), ("fast", {"kinds": ("layer",)}))]
        there.append(peer_providers.Provider("gone", peer_providers.load_apex_fast, "", ""))
        with mock.patch.object(peer_providers, "PEERS", there), mock.patch.object(warm_caches, "KEPT", {}):
            warm_caches.Compile(["gone", "failing", "liger", "fast", "dispatch"], peers.DIRECTIONS, DEVICE)(
                Problem("bf16", 3, 8, "rms"))
        self.assertEqual(calls, [(name, direction, "rms", (3, 8)) for name in ("failing", "liger")
                                 for direction in peers.DIRECTIONS])

    def test_whatever_is_chosen_by_timing_can_be_chosen_without(self):
        kernel, ran = SimpleNamespace(configs=[1, 2], _do_bench=None), []
        module = SimpleNamespace(kernel=kernel, other=3)
        with mock.patch.dict(peer_providers.sys.modules, {"flash_attn.ops.triton.layer_norm": module}):
            peer_providers.choose_without_timing()
        self.assertEqual(len(kernel._do_bench(lambda: ran.append(1), quantiles=(0.5, 0.2, 0.8))), 3)
        self.assertEqual(ran, [1])

    def test_configurations_that_must_spill_are_not_compiled(self):
        configs = [SimpleNamespace(num_warps=warps) for warps in (1, 2, 4, 8, 16, 32)]
        kernel = SimpleNamespace(configs=configs, early_config_prune=None)
        peer_providers.leave_out_spills(SimpleNamespace(kernel=kernel, other=3))
        for block, least in ((1024, 1), (4096, 1), (8192, 2), (32768, 8), (1 << 20, 1)):  # of the last, all would
            left = kernel.early_config_prune(configs, {"BLOCK_N": block, "N": block})
            self.assertEqual(left[0].num_warps, least)
            self.assertEqual(left[-1].num_warps, 32)
        self.assertEqual(kernel.early_config_prune(configs, {}), configs)

    def test_tensors_that_nobody_checks_are_those_of_the_problem(self):
        for kind in peers.KINDS:
            problem = Problem("bf16", 5, 8, kind)
            ours, theirs = peer_providers.unchecked_inputs(problem, DEVICE), peer_providers.make_inputs(
                kind, problem, DEVICE)
            for name, value in vars(theirs).items():
                other = getattr(ours, name)
                if isinstance(value, torch.Tensor):
                    self.assertEqual((value.shape, value.dtype), (other.shape, other.dtype), name)
                elif name != "seed":
                    self.assertEqual(value, other, name)


class Clocks(unittest.TestCase):
    def test_a_call_s_own_exception_ends_the_sampling(self):
        calls = []

        def run():
            calls.append(1)
            if len(calls) == 5:
                raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            Clock(LIBRARY).samples(run, 20)
        self.assertEqual(len(calls), 5)

    def test_without_a_library_it_says_how_to_make_one(self):
        with self.assertRaisesRegex(OSError, "make peers"):
            Clock(Path("none/liblnc.so"))

    def test_the_host_s_time_counts_only_where_it_should(self):
        """A call that keeps the host busy for 300 µs and the device for none."""
        if DEVICE != "cuda":
            self.skipTest("events need a GPU")
        x = torch.zeros(1, device=DEVICE)

        def run():
            end = time.perf_counter() + 300e-6
            while time.perf_counter() < end:
                pass
            x.zero_()

        without, late = Clock(LIBRARY).samples(run, 15)
        self.assertFalse(late)
        self.assertLess(peers.quantile(without, 0.5), 30)
        self.assertGreater(peers.quantile(Clock(LIBRARY).samples(run, 15, with_launch=True)[0], 0.5), 300)
