"""compare_peers.py without PyTorch and without a GPU: requests, statistics, records, tables."""

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from common.bench import compare_peers, warm_caches
from common.results import peers
from common.bench.tests.made_up import MADE_BY
from common.results import records as measurements
from common.results.problems import ROOT, SETS, Problem

SMALL, WIDE = Problem("bf16", 8, 1024), Problem("f32", 4, 2048)


def provider(name, kinds=("layer", "rms"), directions=peers.DIRECTIONS):
    return SimpleNamespace(name=name, kinds=kinds, directions=directions, how=f"pip install {name}")


def record(name, direction, problem, *samples, made_by=MADE_BY, **more):
    return peers.make_record(name, direction, problem, made_by, samples, eps=1e-5, seed=1, passed=bool(samples),
                             operator_bytes=400, roof_us=10.0, roof_bytes=300, **more)


class Requests(unittest.TestCase):
    def test_a_shape_has_the_type_that_it_names_or_that_is_asked_for(self):
        self.assertEqual(peers.parse_shapes("8x1024, f32:4×2048,8x1024"), [SMALL, WIDE])
        self.assertEqual(peers.parse_shapes("4x2048", "f32"), [WIDE])
        self.assertEqual(peers.parse_shapes("8x1024", kinds=("rms", "layer")), [SMALL._replace(kind="rms"), SMALL])
        self.assertEqual(peers.parse_shapes(None), list(peers.SHAPES))
        self.assertEqual({shape.dtype for shape in peers.parse_shapes(None, "f16")}, {"f16"})

    def test_a_set_has_its_own_kinds_and_types(self):
        asked = compare_peers.problems_of(compare_peers.parse_arguments(["--set", "widths,smaller"]))
        self.assertEqual({(problem.kind, problem.dtype) for problem in asked},
                         {(kind, dtype) for kind in peers.KINDS for dtype in ("bf16", "f32")})
        some = compare_peers.problems_of(compare_peers.parse_arguments("--set widths --dtype f32 --kind rms".split()))
        self.assertEqual(set(some), {problem for problem in SETS["widths"]
                                     if (problem.dtype, problem.kind) == ("f32", "rms")})
        for words, said in (("--set nope", "nope is no set for peers; choose from progression, sweep"),
                            ("--set fused", "fused is no set for peers"), ("--set widths --shapes 8x8", "its own shapes"),
                            ("--set narrow --dtype f16", "has no problem"), ("--kind both", "both is no kind")):
            with self.subTest(words), self.assertRaisesRegex(peers.RequestError, said):
                compare_peers.problems_of(compare_peers.parse_arguments(words.split()))

    def test_small_tensors_take_turns_and_large_ones_need_not(self):
        self.assertEqual([peers.copies(size) for size in (16 << 10, 64 << 20, 256 << 20)], [32, 4, 1])

    def test_what_is_no_shape_and_no_provider_is_a_sentence(self):
        for text in ("", "8x", "0x5", "f64:8x8", "8x8,,8x8"):
            with self.subTest(text), self.assertRaisesRegex(peers.RequestError, "is no shape; write ROWSxCOLS"):
                peers.parse_shapes(text)
        known = ["torch", "liger"]
        self.assertEqual(peers.parse_names("liger, liger", known, "provider"), ["liger"])
        with self.assertRaisesRegex(peers.RequestError, "is no provider; choose from torch, liger"):
            peers.parse_names("aten", known, "provider")
        with contextlib.redirect_stderr(io.StringIO()) as err:  # found before a GPU is looked for
            self.assertEqual(compare_peers.main(["--shapes", "8"]), 2)
        self.assertIn("is no shape", err.getvalue())

    def test_without_pytorch_it_is_one_sentence(self):
        script = ("import sys; sys.modules['torch'] = None; from common.bench import compare_peers; "
                  "sys.exit(compare_peers.main(['--ready']))")
        result = subprocess.run([sys.executable, "-B", "-c", script], capture_output=True, text=True,
                                cwd=ROOT)
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertRegex(result.stderr, r"\Acompare_peers needs PyTorch, and \S+ has none \(.*\); PYTHON=.*\n\Z")


class Statistics(unittest.TestCase):
    def test_quantiles_are_linear_between_samples(self):
        self.assertEqual([peers.quantile([4, 1, 3, 2], q) for q in (0, 0.5, 0.9, 1)], [1, 2.5, 3.7, 4])
        self.assertEqual(peers.quantile([7.0], 0.9), 7)

    def test_slow_ones_get_fewer_samples_but_some(self):
        for each, samples in ((10, 25), (20e3, 12), (1e6, 5), (0, 25)):
            self.assertEqual(peers.affordable(0.25, each, 25), samples)
        self.assertEqual(peers.affordable(0.25, 1e6, 3), 3)


class Records(unittest.TestCase):
    def test_a_record_says_what_was_asked_what_made_it_and_what_came_out(self):
        made = record("torch", "backward", SMALL, 3.0, 1.0, 2.0, rel_err=1e-3, chosen=None)
        told = {"provider": "torch", "direction": "backward", "set": None, "host": "hidden", **MADE_BY, "passed": True,
                "median_us": 2.0, "p10_us": 1.2, "p90_us": 2.8, "samples": 3, "operator_bytes": 400, "roof_us": 10.0}
        self.assertEqual(made, made | told)
        self.assertNotIn("chosen", made)
        made = record("torch", "forward", peers.SHAPES[0]._replace(kind="rms"), 1.0, host="counted")
        self.assertEqual((made["set"], made["host"], made["problem"]["kind"]), ("peers", "counted", "rms"))
        self.assertEqual(peers.set_of(SETS["smaller"][3]), "smaller")

    def test_a_wrong_result_has_no_time(self):
        made = record("torch", "forward", SMALL, rel_err=peers.rounded(float("nan"), 3))
        self.assertEqual(made["passed"], False)
        self.assertFalse({"median_us", "rel_err"} & set(made))

    def test_a_table_is_refused_as_a_file_of_json_lines(self):
        with self.assertRaisesRegex(SystemExit, "is a table.*archive.py"):
            compare_peers.Journal(Path("nowhere/peers.csv"))

    def test_a_file_is_what_the_notebooks_read(self):
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "new" / "peers.jsonl"
            for run in ("one", "two"):
                journal, made_by = compare_peers.Journal(path), {**MADE_BY, "run": run}
                journal.add(record("torch", "forward", SMALL, 5.0, made_by=made_by))
                journal.add(record("dispatch", "forward", SMALL, 4.0, chosen="fwd06", made_by=made_by))
                self.assertEqual(json.loads(path.read_text().splitlines()[-1])["chosen"], "fwd06")
                with path.open("a") as file:
                    file.write('{"provider": "li')  # the run was killed there
            with contextlib.redirect_stderr(io.StringIO()):
                found = measurements.load(path)
            self.assertEqual((len(found.records), found.skipped), (4, 2))
            self.assertEqual(found.find("torch", SMALL, "forward")["run"], "two")


class Plan(unittest.TestCase):
    def test_a_problem_has_all_its_contenders_the_chapters_last_and_nobody_gets_what_it_does_not_take(self):
        providers = [provider("fwd01", directions=("forward",)), provider("bwd01", directions=("backward",)),
                     provider("dispatch"), provider("apex-fast", kinds=("layer",))]
        tasks = compare_peers.plan(providers, [SMALL._replace(kind="rms"), WIDE], peers.DIRECTIONS)
        self.assertEqual([(problem.cols, direction[:3], each.name) for problem, direction, each in tasks],
                         [(1024, "for", "dispatch"), (1024, "for", "fwd01"), (1024, "bac", "dispatch"),
                          (1024, "bac", "bwd01"), (2048, "for", "dispatch"), (2048, "for", "apex-fast"),
                          (2048, "for", "fwd01"), (2048, "bac", "dispatch"), (2048, "bac", "apex-fast"),
                          (2048, "bac", "bwd01")])

    def test_a_provider_that_does_not_load_is_listed(self):
        def fails(error):
            def load():
                raise error
            return load

        there, gone, broken = provider("torch"), provider("liger"), provider("quack")
        there.load, gone.load = lambda: "prepare", fails(ImportError("No module named 'liger'"))
        broken.load = fails(OSError("\nlibx.so: undefined symbol\nmore"))
        prepares, missing = compare_peers.load_all([there, gone, broken])
        self.assertEqual(prepares, {"torch": "prepare"})
        self.assertEqual(peers.missing_lines(missing),
                         ["Not compared:", "  liger: No module named 'liger'; pip install liger",
                          "  quack: libx.so: undefined symbol; pip install quack"])
        self.assertEqual(peers.missing_lines([]), [])


    def test_what_a_file_has_of_this_commit_and_device_is_not_measured_again(self):
        tasks = compare_peers.plan([provider("torch"), provider("liger")], [SMALL, WIDE], ["forward"])
        left = lambda path, host="hidden", **made: [  # noqa: E731
            (problem.cols, each.name)
            for problem, _, each in compare_peers.not_measured(tasks, path, {**MADE_BY, **made}, host)]
        everything = [(1024, "torch"), (1024, "liger"), (2048, "torch"), (2048, "liger")]
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "a.jsonl"
            self.assertEqual(left(path), everything)
            journal = compare_peers.Journal(path)
            journal.add(record("torch", "forward", SMALL, 5.0))
            journal.add(record("liger", "forward", WIDE))  # it was wrong, and would be again
            journal.add(record("liger", "backward", SMALL, 5.0))
            self.assertEqual(left(path), everything[1:3])
            self.assertEqual(left(path, commit="d"), everything)
            self.assertEqual(left(path, device="another"), everything)
            self.assertEqual(left(path, host="counted"), everything)

    def test_an_estimate_grows_with_the_problems_and_needs_neither_a_gpu_nor_a_peer(self):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            self.assertEqual(compare_peers.main("--set widths,smaller --estimate --warm-caches 4".split()), 0)
            self.assertEqual(compare_peers.main("--shapes 8x1024 --providers torch,fwd01 --estimate".split()), 0)
        lines = out.getvalue().splitlines()
        self.assertIn("228 problems, 456 comparisons, 2736 measurements", lines[0])
        self.assertIn(" minutes in 4 (assumed)", lines[2])
        self.assertIn("1 problems, 2 comparisons, 3 measurements", lines[3])


def note_it(directory_and_number):
    directory, number = directory_and_number
    if number == 1:
        os._exit(3)  # as a process that lost its device
    (Path(directory) / str(number)).touch()
    if number == 9:
        time.sleep(600)


class Warming(unittest.TestCase):
    def test_a_process_that_dies_takes_one_problem_with_it_and_one_that_hangs_is_ended(self):
        with tempfile.TemporaryDirectory() as directory:
            done = warm_caches.warm([(directory, number) for number in range(6)], note_it, 1, 60)
            self.assertEqual((done, {path.name for path in Path(directory).iterdir()}), (5, {"0", "2", "3", "4", "5"}))
            start = time.monotonic()
            self.assertEqual(warm_caches.warm([(directory, 9)], note_it, 2, 3), 0)
            self.assertLess(time.monotonic() - start, 30)


class Tables(unittest.TestCase):
    RECORDS = [record("dispatch", "forward", SMALL, 11.0, chosen="fwd06"), record("torch", "forward", SMALL, 22.0),
               record("liger", "forward", SMALL, rel_err=0.5), record("fwd01", "forward", SMALL, 1234.5),
               record("torch", "forward", WIDE, 8.0, late=True), record("torch", "backward", SMALL, 33.0)]

    def test_ours_come_first_and_the_chapters_have_a_table(self):
        lines = [line.split() for line in peers.tables(self.RECORDS)]
        self.assertEqual(lines[1][4:8], ["roof", "dispatch", "torch", "liger"])
        self.assertEqual(lines[2], "bf16, 8 × 1024 10.00 11.00 22.00 wrong 0.50".split())
        self.assertEqual(lines[3], "f32, 4 × 2048 10.00 – 8.000 + – –".split())
        self.assertEqual(lines[7][-2:], ["1", "234"])
        self.assertTrue(any(line[:4] == ["+", "the", "host", "could"] for line in lines))


class Measuring(unittest.TestCase):
    def test_bytes_are_counted_from_the_tensors_that_a_pass_takes_and_returns(self):
        def tensor(rows, cols, size):
            return SimpleNamespace(numel=lambda: rows * cols, element_size=lambda: size)

        x, dy, dx = tensor(8, 1024, 2), tensor(8, 1024, 2), tensor(8, 1024, 4)
        inputs = SimpleNamespace(matrices=lambda direction: [dy, x], eps=1e-6, seed=7)
        clock = SimpleNamespace(median=lambda run, count, with_launch: 5.0,
                                samples=lambda run, count, with_launch: ([5.0] * count, True))
        stub = SimpleNamespace(roof=lambda *_: SimpleNamespace(us=4.0, bytes=99), synchronize=lambda: None,
                               check=lambda *_: SimpleNamespace(passed=True, rel_err=0.0, why=""))
        options = SimpleNamespace(samples=3, with_launch=True)
        with tempfile.TemporaryDirectory() as directory, mock.patch.dict(sys.modules, {"common.bench.peer_checks": stub}):
            journal = compare_peers.Journal(Path(directory) / "a")
            prepares = {"torch": lambda direction, one: lambda: (dx,)}
            comparison = compare_peers.Comparison(options, prepares, journal, MADE_BY, clock)
            comparison.inputs = [inputs, inputs]
            comparison.measure(SMALL._replace(kind="rms"), "backward", SimpleNamespace(name="torch", from_y=False, note=""))
            found = measurements.load(journal.path).find("torch", SMALL._replace(kind="rms"), "backward", host="counted")
        self.assertEqual((found["operator_bytes"], found["roof_bytes"], found["roof_us"]), (8 * 1024 * 8, 99, 4.0))
        self.assertEqual((found["eps"], found["seed"], found["rel_err"], found["late"]), (1e-6, 7, 0.0, True))
        self.assertNotIn("note", found)


class Interruption(unittest.TestCase):
    def comparison(self, directory, budget=100.0):
        options = SimpleNamespace(budget=budget, with_launch=False, samples=3, json=Path(directory) / "a")
        clock = SimpleNamespace(warm_up=lambda: None)
        return compare_peers.Comparison(options, {}, compare_peers.Journal(options.json), MADE_BY, clock)

    def test_what_was_measured_is_kept_and_shown(self):
        with tempfile.TemporaryDirectory() as directory:
            comparison = self.comparison(directory)

            def attempt(problem, direction, provider):
                if comparison.journal.records:
                    raise KeyboardInterrupt
                comparison.journal.add(record(provider.name, direction, problem, 5.0))

            tasks = compare_peers.plan([provider("torch")], [SMALL], peers.DIRECTIONS)
            with mock.patch.object(comparison, "attempt", attempt), contextlib.redirect_stderr(io.StringIO()):
                with self.assertRaises(KeyboardInterrupt):
                    comparison.run(tasks)
            with contextlib.redirect_stdout(io.StringIO()) as out:
                compare_peers.report(comparison, [], interrupted=True)
            self.assertIn("Interrupted; what was measured is kept.\nRecords written: 1, to", out.getvalue())
            self.assertEqual(len(measurements.load(comparison.options.json).records), 1)

    def test_where_the_device_is_lost_a_record_keeps_the_next_call_from_losing_it_again(self):
        def lost():
            raise RuntimeError("an illegal memory access was encountered")

        tasks = compare_peers.plan([provider("torch"), provider("liger")], [SMALL], ["forward"])
        with tempfile.TemporaryDirectory() as directory:
            comparison = self.comparison(directory)
            with mock.patch.dict(sys.modules, {"common.bench.peer_checks": SimpleNamespace(synchronize=lost)}), \
                    mock.patch.object(comparison, "prepare_inputs", mock.Mock(side_effect=RuntimeError("misaligned"))), \
                    contextlib.redirect_stderr(io.StringIO()), self.assertRaisesRegex(RuntimeError, "illegal memory"):
                comparison.run(tasks)
            found = measurements.load(comparison.journal.path).records
            self.assertEqual([(one["provider"], one["passed"], one["error"]) for one in found],
                             [("torch", False, "misaligned")])
            self.assertEqual([task[2].name for task in
                              compare_peers.not_measured(tasks, comparison.journal.path, MADE_BY, "hidden")], ["liger"])

    def test_a_spent_budget_starts_nothing_new(self):
        with tempfile.TemporaryDirectory() as directory:
            comparison = self.comparison(directory, budget=-1.0)
            tasks = compare_peers.plan([provider("torch"), provider("liger")], [SMALL, WIDE], ["forward"])
            comparison.run(tasks)
            with contextlib.redirect_stdout(io.StringIO()) as out:
                compare_peers.report(comparison, [], interrupted=False)
            self.assertIn("Not started, because --budget -1 was spent: torch forward, bf16, 8 × 1024; liger forward, "
                          "bf16, 8 × 1024; and 2 more.", out.getvalue())

    def test_a_problem_that_may_outlast_the_budget_is_not_started_and_one_that_is_started_has_all_its_contenders(self):
        now, attempted = [0.0], []

        def attempt(problem, direction, provider):
            attempted.append((problem.cols, provider.name))
            now[0] += 20.0

        problems = [SMALL._replace(cols=cols) for cols in (1, 2, 3)]
        tasks = compare_peers.plan([provider("torch"), provider("liger")], problems, ["forward"])
        with tempfile.TemporaryDirectory() as directory, mock.patch.object(compare_peers.time, "monotonic", lambda: now[0]):
            comparison = self.comparison(directory, budget=110.0)
            with mock.patch.object(comparison, "attempt", attempt), contextlib.redirect_stderr(io.StringIO()):
                comparison.run(tasks)
                self.assertEqual(attempted, [(1, "torch"), (1, "liger"), (2, "torch"), (2, "liger")])
                self.assertEqual([(problem.cols, each.name) for problem, _, each in comparison.unstarted],
                                 [(3, "torch"), (3, "liger")])
                attempted.clear()
                comparison.run(tasks, start=now[0] - 35)  # as much went to compiling
                self.assertEqual(attempted, [(1, "torch"), (1, "liger")])
