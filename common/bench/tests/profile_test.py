"""Tests of the profiler's reader. They need no GPU."""

import contextlib
import io
import json
import os
import shutil
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from common.bench import profile_chapter
from common.results import profiles
from common.bench.tests.made_up import jsonl, record

NCU = Path(__file__).with_name("ncu.csv")  # fwd01 and bwd02, cut to the columns that are read


def silently(function, *arguments, **options):
    """(what the function returns, its stdout, its stderr)"""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        result = function(*arguments, **options)
    return result, out.getvalue(), err.getvalue()


def csv_of(*names):
    lines = ['"ID","Kernel Name","Grid Size","Block Size","gpu__time_duration.sum"', '"","","","","ns"']
    lines += [f'"{i}","{name}","(1, 1, 1)","(32, 1, 1)","1,0{i}0"' for i, name in enumerate(names)]
    return "==PROF== Connected\nwhat the program says\n" + "\n".join(lines) + "\n"


class Profile(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = Path(directory.name)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def test_reads_nsight_computes_csv(self):
        first, second = profile_chapter.parse_csv(NCU.read_text(encoding="utf-8"))
        self.assertEqual((first.namespace, first.name), ("fwd01", "layer_norm_forward<float>"))
        self.assertEqual(first.metrics["gpu__time_duration.sum"], 1324672)
        self.assertEqual(second.metrics["l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio"], 3.98)
        self.assertEqual((second.grid, second.block), ("(256, 1, 1)", "(128, 1, 1)"))
        self.assertEqual(second.device, "NVIDIA H100 80GB HBM3")

    def test_names_of_kernels(self):
        for text, names in (
            ("void fwd02::layer_norm_forward<float>(ForwardArgs<T1>)", ("fwd02", "layer_norm_forward<float>")),
            ("lnc::zero_gradients_kernel(lnc::GradientSums, long)", ("lnc", "zero_gradients_kernel")),
            ("void fwd06::(anonymous namespace)::walk<fwd06::Tile<4>>(int)", ("fwd06", "walk<fwd06::Tile<4>>")),
            ("void fwd06::walk<(fwd06::Mode)1, (int)4>(int)", ("fwd06", "walk<(fwd06::Mode)1, (int)4>")),
            ("plain(int)", ("", "plain")),
        ):
            self.assertEqual(profile_chapter.split_name(text), names)
        self.assertEqual([(k.namespace, k.name) for k in profile_chapter.parse_csv(csv_of("_ZN5bwd114walkIfLb0EEEvi"))],
                         [("bwd11", "walk<float, false>")])

    def test_shared_kernels_belong_to_the_chapter_that_launched_them(self):
        zero, done = "lnc::zero_gradients_kernel(int)", "void lnc::round_gradients_kernel<__half>(int)"
        kernels = profile_chapter.parse_csv(csv_of(
            "void fwd03::run<int>(int)", zero, "void bwd01::run<int>(int)", done,
            zero, "void bwd02::run<int>(int)", "void bwd02::sum<int>(int)", done))
        self.assertEqual([chapter for chapter, _ in profile_chapter.by_chapter(kernels)],
                         ["fwd03", "bwd01", "bwd01", "bwd01", "bwd02", "bwd02", "bwd02", "bwd02"])

    def test_a_chapter_of_the_reader_s_own_has_its_direction_from_the_program_s_record(self):
        kernels = profile_chapter.parse_csv(csv_of("void my01::run<int>(int)", "void lnc::round_gradients_kernel<__half>(int)"))
        results = [{"chapter": "my01", "direction": "backward", "problem": {}}]
        self.assertEqual([(record["chapter"], record["direction"]) for record in
                          profile_chapter.make_records(kernels, results)], 2 * [("my01", "backward")])

    def test_records_are_appended_and_the_newest_run_counts(self):
        path = self.root / "profile.jsonl"
        for names in (("void bwd01::a<int>(int)", "void bwd01::b<int>(int)", "void fwd01::c<int>(int)"),
                      ("void bwd01::d<int>(int)",)):
            source = self.write("ncu.csv", csv_of(*names))
            status, out, _ = silently(profile_chapter.main, ["--csv", str(source), "--json", str(path),
                                                             "--problem", "rms f16 8x16"])
            self.assertEqual(status, 0)
            self.assertIn("· rms f16, 8 × 16", out)
        with path.open("a", encoding="utf-8") as file:
            file.write('{"schema":1,"chapter":"bwd01"}\n{"chapter":"bwd01","ker')
        found, _, err = silently(profiles.load_profiles, path)
        self.assertEqual({key[0]: [r["kernel"] for r in launches] for key, launches in found.items()},
                         {"bwd01": ["d<int>"], "fwd01": ["c<int>"]})
        self.assertIn("skipped 1 line", err)
        self.assertRegex(err, r"skipped 1 line of schema 1; this reads schema 2: line \d")

    def sentence(self, *arguments):
        status, _, err = silently(profile_chapter.main, [*arguments, "--json", str(self.root / "x.jsonl")])
        self.assertEqual(status, 2)
        self.assertNotIn("Traceback", err)
        self.assertFalse((self.root / "x.jsonl").exists())
        return err

    def test_says_what_is_missing(self):
        for output, why in (
            ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "NVreg_RestrictProfilingToAdminUsers=0"),
            ("==WARNING== No kernels were profiled.", "BACKEND=cuda"),
            ("bwd02: something else", "something else"),
        ):
            self.assertIn(why, self.sentence("--csv", str(self.write("out", output))))
        self.assertIn("'f64 8x8' is no problem", self.sentence("--csv", str(NCU), "--problem", "f64 8x8"))
        self.assertIn("nowhere is no program", self.sentence(str(self.root / "nowhere")))
        with mock.patch.object(shutil, "which", lambda *_, **__: None):
            self.assertIn("nsight-compute", self.sentence("--ready"))

    def program(self, name, script):
        path = self.write(f"bin/{name}", "#!/bin/sh\n" + script)
        path.chmod(0o755)
        return str(path)

    def test_runs_the_program_under_ncu(self):
        # A pretended ncu: runs the program that follows its options, then prints a table.
        self.write("table", csv_of("void bwd02::layer_norm_backward<__half>(int)"))
        problem = {"dtype": "f16", "rows": 4, "cols": 8}
        self.write("own", jsonl(record("bwd02", 20.0, problem=problem, predicted_bytes=200)))
        program = self.program("bwd02", f'echo "$@" > {self.root}/arguments\ncat {self.root}/own > "$4"\n')
        self.program("ncu", 'while [ "${1##*/}" != bwd02 ]; do shift; done\n"$@" || exit\n'
                            f"cat {self.root}/table\n")
        path = self.root / "profile.jsonl"
        with_ncu = mock.patch.dict(os.environ, {"PATH": f"{self.root / 'bin'}:{os.environ['PATH']}"})
        with_ncu.start()
        self.addCleanup(with_ncu.stop)
        status, out, err = silently(profile_chapter.main, [program, "--json", str(path), "--", "--dtype", "f16"])
        self.assertEqual((status, err), (0, ""))
        self.assertRegex((self.root / "arguments").read_text(), r"^--samples 0 --json \S+ --dtype f16\n$")
        self.assertIn("layer_norm_backward<__half>", out)
        line, = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        self.assertEqual((line["schema"], line["commit"], line["direction"], line["l2"], line["predicted_bytes"]),
                         (2, "c", "backward", "cold", 200))
        self.assertEqual(line["problem"], {"kind": "layer", **problem, "eps": 1e-5, "seed": 1, "options": {}})
        self.assertEqual(silently(profiles.load_profiles, path)[2], "")

        self.program("bwd02", "echo bwd02 takes no f16 >&2; exit 2\n")
        self.assertIn("bwd02 takes no f16", self.sentence(program))
