"""The command line of the chapter programs: what it takes, what it refuses, what it leaves behind.

Usage: command_line_test.py BIN_DIR [unittest options]
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
SMALL = ["--rows", "37", "--cols", "100", "--samples", "1"]

# Arguments that every program refuses, and what the sentence about them must say.
BAD_INPUT = [
    ("--dtype f64", ["dtype", "'f64'", "f32", "f16", "bf16"]),
    ("--dtype 1", ["dtype", "'1'"]),
    ("--kind batch", ["kind", "'batch'", "layer", "rms"]),
    ("--cols 0", ["--cols", "'0'"]),
    ("--cols -3", ["--cols", "'-3'"]),
    ("--cols wide", ["--cols", "'wide'"]),
    ("--cols 1.5", ["--cols", "'1.5'"]),
    ("--cols 1e3", ["--cols", "1e3"]),
    ("--cols", ["--cols"]),
    ("--rows -1", ["--rows", "'-1'"]),
    ("--rows many", ["--rows", "'many'"]),
    ("--rows nan", ["--rows", "'nan'"]),
    ("--rows 3 --rows 4", ["--rows"]),
    ("--eps 0", ["--eps", "'0'"]),
    ("--eps -1e-5", ["--eps", "'-1e-5'"]),
    ("--eps nan", ["--eps", "'nan'"]),
    ("--eps inf", ["--eps", "'inf'"]),
    ("--eps 1e-60", ["--eps", "'1e-60'"]),  # 0 as a float
    ("--seed -1", ["--seed", "'-1'"]),
    ("--samples -1", ["--samples", "'-1'"]),
    ("--samples 3000000000", ["--samples", "3000000000"]),
    ("--budget-ms -1", ["--budget-ms", "'-1'"]),
    ("--budget-ms nan", ["--budget-ms", "'nan'"]),
    ("--set nope", ["--set", "'nope'", "progression", "sweep", "large", "groups"]),
    ("--set progression,nope", ["'nope'"]),
    ("--group -1", ["--group", "'-1'"]),
    ("--weight-scale nan", ["--weight-scale", "'nan'"]),
    ("--dropout 1", ["--dropout", "below 1", "'1'"]),
    ("--residual f16", ["--residual", "'f16'", "same", "f32"]),
    ("--set mine --set-file /nowhere.json", ["/nowhere.json"]),
    ("--set-file /nowhere.json", ["--set-file", "--set"]),
    ("--colour", ["--colour"]),
    ("bwd02", ["bwd02"]),
]

# Larger than any device. All but the first wrap in 64 bits, the last one to zero.
TOO_LARGE = [
    "--rows 1000000000 --cols 8000",
    "--rows 9000000000000000000 --cols 2",
    "--rows 2 --cols 9000000000000000000",
    "--rows 3 --cols 4611686018427387904",
    "--rows 1073741824 --cols 17179869184",
]

ALWAYS = {"schema", "chapter", "direction", "problem", "set", "l2", "clock", "device", "driver", "cuda",
          "backend", "date", "commit", "passed", "max_abs_err", "rel_err", "operator_bytes",
          "predicted_bytes", "roof_bytes"}
TIMED = {"median_us", "p10_us", "p90_us", "samples", "cut_short"}
GPU_ONLY = {"cycles", "roof_us"}  # never beside an emulated time


def run(program, *args, **environment):
    return subprocess.run([BIN / program, *args], capture_output=True, text=True, timeout=300,
                          env={**os.environ, **environment})


def records_of(path):
    """The lines of a JSON-lines file, each of which must be whole."""
    text = path.read_text()
    assert text.endswith("\n"), f"the last line is cut short: {text[-80:]!r}"
    return [json.loads(line) for line in text.splitlines()]


def setUpModule():
    global PROGRAMS, BACKEND
    PROGRAMS = sorted(p.name for p in BIN.iterdir() if re.fullmatch(r"(fwd|bwd)\d\d", p.name))
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "header.jsonl")
        probe = run("chapters", "--rows", "1", "--cols", "1", "--samples", "0", "--json", path)
        if "no usable NVIDIA GPU" in probe.stderr:
            raise unittest.SkipTest(probe.stderr.strip())
        BACKEND = records_of(path)[0]["backend"]


class CommandLineTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.json = self.folder / "results.jsonl"

    def assert_passes(self, result):
        self.assertEqual((result.returncode, result.stderr), (0, ""), result.stdout)

    def assert_sentence(self, line, words=()):
        self.assertRegex(line, r"^\S.*\w{2,}.* .*\w{2,}")
        self.assertNotRegex(line, r"terminate called|what\(\)|std::|bad_alloc|Assertion|\[json")
        for word in words:
            self.assertIn(word, line)

    def assert_refused(self, result, words=()):
        """Exit 2, one sentence on stderr, no results on stdout."""
        self.assertEqual(result.returncode, 2, result.stdout + result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assert_sentence(result.stderr.rstrip("\n"), words)
        self.assertNotRegex(result.stdout, r"\b(pass|FAIL\w*|median|predicted|Usage)\b")


class Accepts(CommandLineTest):
    @unittest.skipUnless(os.path.exists("/dev/full"), "this system has no /dev/full")
    def test_a_full_disk_under_the_output_is_said(self):
        with open("/dev/full", "w") as full:
            result = subprocess.run([BIN / "fwd01", *SMALL], stdout=full, stderr=subprocess.PIPE, text=True)
        self.assertEqual(result.returncode, 1)
        self.assertIn("disk full", result.stderr)

    def test_help_says_what_each_option_does(self):
        result = run("chapters", "--help")
        self.assert_passes(result)
        options = re.findall(r"(?m)^  (?:-\w,)?--[a-z-]+.*\n?(?: {20,}.*)?", result.stdout)
        self.assertGreater(len(options), 20)
        for option in options:
            self.assertRegex(option, r"\s\w+ .*\w+ \w+")

    def test_version(self):
        version = re.search(r"project\(\w+ VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
        result = run("chapters", "--version")
        self.assert_passes(result)
        self.assertEqual(result.stdout.split()[-1], version)

    def test_list_as_json_is_what_is_committed(self):
        result = run("chapters", "--list", "--json")
        self.assert_passes(result)
        listed = json.loads(result.stdout)
        self.assertEqual([chapter["id"] for chapter in listed["chapters"]],
                         sorted(PROGRAMS, key=lambda name: (name[0] != "f", name)))
        for chapter in listed["chapters"]:
            self.assertTrue((ROOT / chapter["directory"] / "kernel.cu").exists())
        committed = json.loads((ROOT / "notebooks/data/chapters.json").read_text())
        self.assertEqual(committed, listed, "run `make tables`: it writes notebooks/data/chapters.json")

    def test_a_set_file_of_ones_own(self):
        path = self.folder / "sets.json"
        path.write_text('{"mine": {"problems": [{"rows": 3, "cols": [5, 6]}]}}')
        result = run("fwd02", "--set", "mine", "--set-file", str(path), "--samples", "0",
                     "--json", str(self.json))
        self.assert_passes(result)
        records = records_of(self.json)
        self.assertEqual([(r["set"], r["problem"]["cols"]) for r in records], [("mine", 5), ("mine", 6)])
        path.write_text('{"mine": {"problems": [{"colour": 3}]}}')
        result = run("fwd02", "--set", "mine", "--set-file", str(path))
        self.assert_refused(result, [str(path), "'mine'", "'colour'"])

    def test_list_names_the_chapters_and_stops(self):
        result = run("chapters", "--list")
        self.assert_passes(result)
        ids = [line.split()[0] for line in result.stdout.splitlines()]
        self.assertEqual(sorted(ids), PROGRAMS)
        directories = [path.name for path in (ROOT / "chapters").iterdir() if path.is_dir()]
        self.assertEqual(sorted(name.split("_")[0] for name in directories), PROGRAMS)
        for program in PROGRAMS:
            alone = run(program, "--list")
            self.assert_passes(alone)
            self.assertEqual([line.split()[0] for line in alone.stdout.splitlines()], [program])

    def test_every_chapter_passes_a_small_problem(self):
        for dtype in ("f32", "f16", "bf16"):
            result = run("chapters", *SMALL, "--dtype", dtype)
            self.assert_passes(result)
            for program in PROGRAMS:
                self.assertRegex(result.stdout, rf"(?m)^{program} .* pass$")

    def test_a_program_runs_its_chapter_alone(self):
        for program in PROGRAMS:
            with self.subTest(program):
                result = run(program, *SMALL)
                self.assert_passes(result)
                self.assertEqual(re.findall(r"(?m)^(\w+) · ", result.stdout), [program])
                self.assertIn("pass", result.stdout)

    def test_no_rows(self):
        result = run("chapters", "--rows", "0")
        self.assert_passes(result)
        self.assertNotIn("FAIL", result.stdout)


class Refuses(CommandLineTest):
    def test_bad_input(self):
        for arguments, words in BAD_INPUT:
            for program in ("chapters", PROGRAMS[0]):
                with self.subTest(f"{program} {arguments}"):
                    result = run(program, "--json", str(self.json), *arguments.split())
                    self.assert_refused(result, words)
                    self.assertEqual(list(self.folder.iterdir()), [])

    def test_json_paths_that_cannot_be_written(self):
        for path in (self.folder / "missing" / "results.jsonl", self.folder, ""):
            with self.subTest(str(path)):
                result = run("chapters", *SMALL, "--json", str(path))
                self.assert_refused(result, [str(path)])
                self.assertEqual(result.stdout, "")  # found out before anything runs
                self.assertEqual(list(self.folder.iterdir()), [])

    def test_a_problem_larger_than_the_device(self):
        for arguments in TOO_LARGE:
            for program in PROGRAMS:
                with self.subTest(f"{program} {arguments}"):
                    self.assert_refused(run(program, "--json", str(self.json), *arguments.split()))
                    self.assertEqual(list(self.folder.iterdir()), [])

    def test_says_how_much_memory_is_needed(self):
        for program in PROGRAMS:
            sentence = run(program, *TOO_LARGE[0].split()).stderr
            self.assertRegex(sentence, r"needs [\d.]+ GB .*1000000000 x 8000.* [\d.]+ GB")
            needed = float(re.search(r"needs ([\d.]+) GB", sentence)[1])
            tensors = 2 if program.startswith("fwd") else 3
            self.assertAlmostEqual(needed, tensors * 1e9 * 8e3 * 4 / 1e9, delta=0.01 * needed)

    def test_the_sentence_about_an_absurd_size_is_true(self):
        for option in ("--rows", "--cols"):
            sentence = run(PROGRAMS[0], option, "9000000000000000000").stderr
            self.assertRegex(sentence, "9000000000000000000")
            self.assertRegex(sentence, r"needs|at most|below|less than|larger|too ")

    def test_all_chapters_refusing_say_one_sentence(self):
        result = run("chapters", *TOO_LARGE[0].split())
        self.assert_refused(result, ["fwd01", "the other chapters"])

    def test_a_set_has_its_own_shapes(self):
        result = run("chapters", "--set", "progression", "--rows", "5")
        self.assert_refused(result, ["--set", "--rows"])

    def test_what_a_chapter_does_not_take(self):
        for arguments in (["--kind", "rms"], ["--no-affine"], ["--group", "3"], ["--recompute-output"],
                          ["--dropout", "0.5"], ["--dtype", "f16", "--mixed"], ["--second-input"]):
            with self.subTest(arguments):
                result = run("fwd01", *SMALL, *arguments, "--json", str(self.json))
                self.assert_refused(result, ["fwd01", arguments[-1] if arguments[-1].startswith("--") else arguments[0]])
                self.assertFalse(self.json.exists())

    def test_bad_schedule(self):
        if BACKEND != "cpu":
            self.skipTest("SIMT_SCHEDULE is the CPU backend's; a GPU schedules by itself")
        result = run("chapters", *SMALL, "--json", str(self.json), SIMT_SCHEDULE="sideways")
        self.assert_refused(result, ["SIMT_SCHEDULE is 'sideways'; it must be"])
        self.assertFalse(self.json.exists())


class Json(CommandLineTest):
    def assert_run(self, records, dtype):
        """One run: a record for each chapter."""
        self.assertEqual(sorted(r["chapter"] for r in records), PROGRAMS)
        for r in records:
            self.assertLessEqual(ALWAYS | TIMED, set(r))
            self.assertEqual(GPU_ONLY & set(r), GPU_ONLY if BACKEND == "cuda" else set())
            self.assertRegex(r["date"], r"^\d{4}-\d\d-\d\d$")
            self.assertEqual((r["schema"], r["l2"], r["set"]), (2, "cold", None))
            problem = r["problem"]
            self.assertEqual((problem["kind"], problem["dtype"]), ("layer", dtype))
            self.assertEqual((problem["rows"], problem["cols"], problem["options"]), (37, 100, {}))
            element = 4 if dtype == "f32" else 2
            tensors = 2 if r["direction"] == "forward" else 3
            self.assertEqual(r["operator_bytes"], tensors * 3700 * element)
            self.assertEqual(r["direction"][0], r["chapter"][0])  # forward or backward
            self.assertLessEqual(r["p10_us"], r["median_us"])
            self.assertLessEqual(r["median_us"], r["p90_us"])
            self.assertEqual(r["samples"], 1)
            self.assertGreaterEqual(r["rel_err"], 0)

    def test_runs_are_appended(self):
        for dtype in ("f32", "bf16"):
            self.assert_passes(run("chapters", *SMALL, "--dtype", dtype, "--json", str(self.json)))
        records = records_of(self.json)
        half = len(PROGRAMS)
        self.assertEqual(len(records), 2 * half)
        self.assert_run(records[:half], "f32")
        self.assert_run(records[half:], "bf16")

    def test_a_fusion_stands_beside_its_parts(self):
        fusion = ["--dropout", "0.1", "--residual", "same", "--prenorm"]
        for program in PROGRAMS:
            result = run(program, *SMALL, *fusion, "--json", str(self.json))
            if result.returncode == 2:  # not a fused chapter
                continue
            with self.subTest(program):
                self.assert_passes(result)
                record = records_of(self.json)[-1]
                forward = record["direction"] == "forward"
                self.assertEqual("parts one after another: " in result.stdout, forward)
                self.assertEqual("parts_bytes" in record, forward)
                self.assertEqual("parts_us" in record, forward and BACKEND == "cuda")
                if forward:
                    self.assertGreater(record["parts_bytes"], record["predicted_bytes"])
        self.assert_passes(run("fwd07", *SMALL, "--json", str(self.json)))
        self.assertNotIn("parts_bytes", records_of(self.json)[-1])

    def test_a_gradient_from_y_says_how_far_it_is_from_the_one_from_x(self):
        told = {"dx_from_x", "dweight_from_x"}
        for program, given, others in (("bwd06", {"x", "mean"}, {"y"}),
                                       ("bwd07", {"y"}, {"x", "mean"})):
            with self.subTest(program):
                result = run(program, *SMALL, "--dtype", "bf16", "--weight-scale", "1e-4",
                             "--json", str(self.json), "--dump", str(self.folder))
                self.assert_passes(result)
                record = records_of(self.json)[-1]
                self.assertEqual(set(record.get("distances", {})), told if given == {"y"} else set())
                self.assertEqual("no limit" in result.stdout, given == {"y"})
                self.assertLess(record["rel_err"], 0.01)  # of what is judged
                dumped = {path.stem for path in self.folder.glob("*.npy")}
                self.assertLessEqual(given | {"dy", "rstd", "weight", "bias", "dx"}, dumped)
                self.assertEqual(others & dumped, set())
                for path in self.folder.glob("*.npy"):
                    path.unlink()

    def test_what_was_not_timed_has_no_times(self):
        self.assert_passes(run("chapters", *SMALL[:-1], "0", "--json", str(self.json)))
        for record in records_of(self.json):
            self.assertLessEqual(ALWAYS, set(record))
            self.assertEqual((TIMED | GPU_ONLY) & set(record), set())

    def test_what_a_file_held_stays(self):
        for before, end in (("", ""), ("a note\n", ""), ("a line without its end", "\n")):
            with self.subTest(before):
                self.json.write_text(before)
                for arguments, _ in BAD_INPUT + [("--kind rms", ()), (TOO_LARGE[0], ())]:
                    run("fwd01", "--json", str(self.json), *arguments.split())
                    self.assertEqual(self.json.read_text(), before)
                self.assert_passes(run("fwd01", *SMALL, "--json", str(self.json)))
                text = self.json.read_text()
                self.assertEqual(text[: len(before + end)], before + end)
                new = [json.loads(line) for line in text[len(before + end) :].splitlines()]
                self.assertEqual(len(new), 1)

    def test_an_interrupted_run_leaves_what_it_reported(self):
        for how in (signal.SIGINT, signal.SIGKILL):
            with self.subTest(how.name):
                path = self.folder / how.name
                sweep = [BIN / "chapters", "--set", "sweep", "--samples", "1", "--json", path]
                # What runs in the background may have been told to ignore SIGINT.
                heed = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
                with subprocess.Popen(sweep, stdout=subprocess.PIPE, text=True,
                                      preexec_fn=heed) as process:
                    seen = [process.stdout.readline() for _ in range(4)]  # the device, 3 results
                    process.send_signal(how)
                    self.assertNotEqual(process.wait(timeout=60), 0, "it was not interrupted")
                records = records_of(path)
                self.assertGreaterEqual(len(records), 3)
                for record, line in zip(records, seen[1:]):
                    self.assertEqual(record["chapter"], line.split()[0])
                for record in records:
                    self.assertLessEqual(ALWAYS | TIMED, set(record))
                    self.assertEqual((record["problem"]["dtype"], record["problem"]["rows"]), ("f16", 4096))
                    self.assertEqual(record["set"], "sweep")


if __name__ == "__main__":
    if len(sys.argv) < 2 or not pathlib.Path(sys.argv[1], "chapters").exists():
        sys.exit("usage: command_line_test.py BIN_DIR, the folder of the built programs")
    BIN = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
