"""The cycles that a chapter reports agree with Nsight Compute's, within 10 %.

Chapters whose launch is several kernels of their own are shown and not judged: Nsight Compute empties
the caches before each kernel and does not count the time between them, so its sum is another quantity.

Usage: cycles_test.py BIN_DIR      exit status 77: skipped, and why
       cycles_test.py --self-test  only how the profiler's table is read; needs no GPU
"""

import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from measurements import DataError
from profile_chapter import by_chapter, parse_csv

RUNS = 3
LAUNCHES = "4"  # in a run of the profiler; the first finds its instructions in no cache
TOLERANCE = 0.10
SKIPPED = 77
METRIC = "sm__cycles_elapsed.max"


class Skip(Exception):
    """There is nothing to compare with here."""


def kernels_by_chapter(table):
    """{chapter: {kernel: median cycles}}, from the output of `ncu --csv --page raw`."""
    launches = {}
    for chapter, kernel in by_chapter(parse_csv(table)):
        own = launches.setdefault(chapter, {})
        own.setdefault(kernel.name, []).append(kernel.metrics[METRIC])
    return {chapter: {name: statistics.median(cycles[1:] or cycles) for name, cycles in own.items()}
            for chapter, own in launches.items()}


def several(kernels):
    """Whether a chapter has more than one kernel beside those that zero and round the gradients."""
    return sum("gradients_kernel" not in name for name in kernels) > 1


def profiled_kernels(ncu, chapters):
    command = [ncu, "--clock-control", "none", "--csv", "--page", "raw", "--print-units", "base",
               "--kernel-name-base", "mangled", "--print-kernel-base", "mangled",
               "--kernel-name", "regex:[fb]wd[0-9]+|gradients_kernel|partial_sums|row_means",
               "--metrics", METRIC, chapters, "--warm", "--samples", LAUNCHES]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600)
    output = result.stdout + result.stderr
    if "ERR_NVGPUCTRPERM" in output:
        raise Skip("the driver keeps its performance counters from this user (ERR_NVGPUCTRPERM)")
    if result.returncode != 0:
        raise RuntimeError(f"ncu ended with status {result.returncode}:\n{output}")
    return kernels_by_chapter(result.stdout)


def reported_cycles(chapters):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "results.jsonl")
        result = subprocess.run([chapters, "--json", path], capture_output=True, text=True,
                                timeout=600)
        if "no usable NVIDIA GPU" in result.stderr:
            raise Skip(result.stderr.strip())
        if result.returncode != 0:
            raise RuntimeError(f"chapters ended with status {result.returncode}:\n"
                               + result.stdout + result.stderr)
        records = [json.loads(line) for line in path.read_text().splitlines()]
    if records[0]["backend"] != "cuda":
        raise Skip("these programs run on the CPU, which counts no cycles")
    return {record["chapter"]: record["cycles"] for record in records}


def medians(runs):
    return {chapter: statistics.median(run[chapter] for run in runs) for chapter in runs[0]}


def compare(reported, profiled, unjudged=()):
    """Prints both. True where they agree on every chapter that is judged."""
    print(f"{'chapter':8} {'reported':>12} {'ncu':>12} {'difference':>11}")
    agree = True
    for chapter in sorted(reported.keys() | profiled.keys()):
        ours, theirs = reported.get(chapter), profiled.get(chapter)
        if ours is None or theirs is None:
            print(f"{chapter:8} {ours or '-':>12} {theirs or '-':>12}              FAIL")
            agree = False
            continue
        difference = ours / theirs - 1
        passed = abs(difference) <= TOLERANCE
        verdict = ("not judged: several kernels" if chapter in unjudged else
                   "pass" if passed else "FAIL")
        print(f"{chapter:8} {ours:12.0f} {theirs:12.0f} {difference:+11.1%}  {verdict}")
        agree = agree and verdict != "FAIL"
    return agree and bool(reported)


def main(bin_dir):
    chapters = pathlib.Path(bin_dir, "chapters").resolve()
    path = os.environ.get("PATH", "") + os.pathsep + "/usr/local/cuda/bin"
    try:
        if subprocess.run("nvidia-smi -L", shell=True, capture_output=True).returncode != 0:
            raise Skip("there is no NVIDIA GPU")
        ncu = shutil.which("ncu", path=path)
        if ncu is None:
            raise Skip("there is no ncu, Nsight Compute's command line")
        reported = medians([reported_cycles(chapters) for _ in range(RUNS)])
        runs = [profiled_kernels(ncu, chapters) for _ in range(RUNS)]
        profiled = medians([{chapter: sum(kernels.values()) for chapter, kernels in run.items()}
                            for run in runs])
    except Skip as why:
        print(f"skipped: {why}")
        return SKIPPED
    unjudged = [chapter for chapter, kernels in runs[0].items() if several(kernels)]
    return 0 if compare(reported, profiled, unjudged) else 1


FIXTURE = """\
==PROF== Connected to process 996 (/home/you/chapters)
fwd01 · One thread per row
==PROF== Disconnected from process 996
"ID","Process ID","Kernel Name","Block Size","Grid Size","sm__cycles_elapsed.max"
"","","","","","cycle"
"0","996","void fwd01::layer_norm_forward<float>(ForwardArgs<T1>)","(256, 1, 1)","(4, 1, 1)","2,622,769"
"1","996","zero_gradients_kernel(GradientSums, long)","(256, 1, 1)","(4, 1, 1)","1,000"
"2","996","void bwd01::layer_norm_backward<float>(BackwardArgs<T1>)","(256, 1, 1)","(4, 1, 1)","5,069,605"
"3","996","void lnc::round_gradients_kernel<__half>(GradientSums, T1 *)","(256, 1, 1)","(4, 1, 1)","20"
"4","996","lnc::zero_gradients_kernel(GradientSums, long)","(256, 1, 1)","(4, 1, 1)","300"
"5","996","void bwd02::layer_norm_backward<float>(BackwardArgs<T1>)","(128, 1, 1)","(4, 1, 1)","81,024"
"6","996","void bwd02::layer_norm_backward_sum<float>(BackwardArgs<T1>)","(128, 1, 1)","(4, 1, 1)","4"
"""


class SelfTest(unittest.TestCase):
    def test_gives_each_chapter_its_kernels(self):
        kernels = kernels_by_chapter(FIXTURE)
        self.assertEqual({chapter: sum(own.values()) for chapter, own in kernels.items()},
                         {"fwd01": 2622769, "bwd01": 5070625, "bwd02": 81328})
        self.assertEqual([chapter for chapter, own in kernels.items() if several(own)], ["bwd02"])

    def test_refuses_output_without_a_table(self):
        with self.assertRaises(DataError):
            kernels_by_chapter("==ERROR== no kernels were profiled\n")

    def test_takes_the_median_of_the_runs(self):
        self.assertEqual(medians([{"fwd01": 3}, {"fwd01": 100}, {"fwd01": 1}]), {"fwd01": 3})

    def test_compares(self):
        for cycles, agree in [(89, False), (91, True), (109, True), (111, False)]:
            self.assertEqual(compare({"fwd01": cycles}, {"fwd01": 100}), agree)
        self.assertTrue(compare({"fwd01": 200}, {"fwd01": 100}, unjudged=["fwd01"]))
        self.assertFalse(compare({}, {"fwd01": 100}))
        self.assertFalse(compare({"fwd01": 100, "fwd02": 1}, {"fwd01": 100}))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    self_test = unittest.main(argv=sys.argv[:1], exit=False, buffer=True).result
    if not self_test.wasSuccessful():
        sys.exit(1)
    sys.exit(0 if sys.argv[1] == "--self-test" else main(sys.argv[1]))
