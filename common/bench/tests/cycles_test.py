"""The cycles that a chapter reports agree with Nsight Compute's, within 10 %.

Chapters whose launch is several kernels of their own are shown and not judged: Nsight Compute empties
the caches before each kernel and does not count the time between them, so its sum is another quantity.
"""

import json
import os
import shutil
import statistics
import subprocess

import pytest

from common.bench.profile_chapter import by_chapter, parse_csv
from common.results.problems import DataError

RUNS = 3
LAUNCHES = "4"  # in a run of the profiler; the first finds its instructions in no cache
TOLERANCE = 0.10
METRIC = "sm__cycles_elapsed.max"


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
               "--kernel-name", "regex:[fb]wd[0-9]+|copy[0-9]+|gradients_kernel|partial_sums|row_means",
               "--metrics", METRIC, chapters, "--warm", "--samples", LAUNCHES]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600)
    output = result.stdout + result.stderr
    if "ERR_NVGPUCTRPERM" in output:
        pytest.skip("the driver keeps its performance counters from this user (ERR_NVGPUCTRPERM)")
    if result.returncode != 0:
        raise RuntimeError(f"ncu ended with status {result.returncode}:\n{output}")
    return kernels_by_chapter(result.stdout)


def reported_cycles(chapters, path):
    path.unlink(missing_ok=True)
    result = subprocess.run([chapters, "--json", path], capture_output=True, text=True, timeout=600)
    if "no usable NVIDIA GPU" in result.stderr:
        pytest.skip(result.stderr)
    if result.returncode != 0:
        raise RuntimeError(f"chapters ended with status {result.returncode}:\n" + result.stdout + result.stderr)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    if records[0]["backend"] != "cuda":
        pytest.skip("these programs run on the CPU, which counts no cycles")
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


def test_the_reported_cycles_are_nsight_compute_s(programs, tmp_path):
    if subprocess.run("nvidia-smi -L", shell=True, capture_output=True).returncode != 0:
        pytest.skip("there is no NVIDIA GPU")
    ncu = shutil.which("ncu", path=os.environ.get("PATH", "") + os.pathsep + "/usr/local/cuda/bin")
    if ncu is None:
        pytest.skip("there is no ncu, Nsight Compute's command line")
    chapters = programs["chapters"]
    reported = medians([reported_cycles(chapters, tmp_path / "results.jsonl") for _ in range(RUNS)])
    runs = [profiled_kernels(ncu, chapters) for _ in range(RUNS)]
    profiled = medians([{chapter: sum(kernels.values()) for chapter, kernels in run.items()} for run in runs])
    unjudged = [chapter for chapter, kernels in runs[0].items() if several(kernels)]
    assert compare(reported, profiled, unjudged)


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


def test_each_chapter_has_the_cycles_of_its_kernels():
    kernels = kernels_by_chapter(FIXTURE)
    assert ({chapter: sum(own.values()) for chapter, own in kernels.items()}
            == {"fwd01": 2622769, "bwd01": 5070625, "bwd02": 81328})
    assert [chapter for chapter, own in kernels.items() if several(own)] == ["bwd02"]
    with pytest.raises(DataError):
        kernels_by_chapter("==ERROR== no kernels were profiled\n")


def test_the_median_run_counts():
    assert medians([{"fwd01": 3}, {"fwd01": 100}, {"fwd01": 1}]) == {"fwd01": 3}


def test_10_percent_apart_agree_and_a_chapter_of_one_side_does_not():
    for cycles, agree in [(89, False), (91, True), (109, True), (111, False)]:
        assert compare({"fwd01": cycles}, {"fwd01": 100}) == agree
    assert compare({"fwd01": 200}, {"fwd01": 100}, unjudged=["fwd01"])
    assert not compare({}, {"fwd01": 100})
    assert not compare({"fwd01": 100, "fwd02": 1}, {"fwd01": 100})
