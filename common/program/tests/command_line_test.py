"""The command line of the chapter programs: what it takes, what it refuses, what it leaves behind."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from common.tools.find_chapter import is_own

ROOT = Path(__file__).resolve().parents[3]
CHAPTERS = sorted(path.parent.name.split("_")[0] for path in ROOT.glob("chapters/*/kernel.cu")
                  if not is_own(path.parent.name))
SMALL = ["--rows", "37", "--cols", "104", "--samples", "1"]

# What the programs refuse, and the words that their sentence must have: the option, and what will do.
REFUSED = {
    "--dtype f64": ["--dtype", "'f64'", "f32", "f16", "bf16"],
    "--cols 0": ["--cols", "'0'", "at least 1"],
    "--cols 1e3": ["--cols", "'1e3'"],
    "--rows -1": ["--rows", "'-1'"],
    "--eps nan": ["--eps", "'nan'"],
    "--eps 1e-60": ["--eps", "'1e-60'"],  # 0 as a float
    "--samples 3000000000": ["--samples", "'3000000000'", "at most"],
    "--budget-ms inf": ["--budget-ms", "'inf'"],
    "--dropout 1": ["--dropout", "below 1", "'1'"],
    "--set progression,nope": ["--set", "'nope'", "sweep", "large", "groups"],
    "--set mine --set-file /nowhere.json": ["/nowhere.json"],
    "--set progression --rows 5": ["--set", "--rows"],  # a set has its own shapes
    "--kind rms": ["fwd01", "--kind"],  # what this chapter does not take
    "--no-affine": ["fwd01", "--no-affine"],
    "--dropout 0.5": ["fwd01", "--dropout"],
    "--dtype f16 --mixed": ["fwd01", "--mixed"],
}

# Larger than any device. All but the first wrap in 64 bits, the last one to zero.
TOO_LARGE = [
    "--rows 1000000000 --cols 8000",
    "--rows 9000000000000000000 --cols 2",
    "--rows 2 --cols 9000000000000000000",
    "--rows 3 --cols 4611686018427387904",
    "--rows 1073741824 --cols 17179869184",
]

# What kernels count, where one may choose how they cut their work, and the option that asks for a number of it.
CUTS = {
    "rows a block": "--rows-per-block",
    "row groups": "--row-groups",
    "buffers": "--buffers",
    "blocks": "--blocks",
    "blocks a multiprocessor": "--blocks-per-multiprocessor",
    "blocks a cluster": "--blocks-per-cluster",
    "clusters": "--clusters",
}

ALWAYS = {"schema", "chapter", "direction", "problem", "set", "l2", "clock", "device", "driver", "cuda",
          "backend", "date", "commit", "passed", "max_abs_err", "rel_err", "operator_bytes",
          "predicted_bytes", "roof_bytes"}
TIMED = {"median_us", "p10_us", "p90_us", "samples", "cut_short"}
GPU_ONLY = {"cycles", "roof_us"}  # never beside an emulated time


@pytest.fixture
def run(programs):
    def run(program, *arguments, **environment):
        return subprocess.run([programs[program], *arguments], capture_output=True, text=True, timeout=300,
                              env={**os.environ, **environment})
    return run


@pytest.fixture(scope="module", autouse=True)
def backend(programs, tmp_path_factory):
    """Where the programs compute. Without a GPU for them, nothing here can be tested."""
    path = tmp_path_factory.mktemp("backend") / "results.jsonl"
    result = subprocess.run([programs["chapters"], "--rows", "1", "--cols", "1", "--samples", "0", "--json", path],
                            capture_output=True, text=True)
    if "no usable NVIDIA GPU" in result.stderr:
        pytest.skip(result.stderr)
    return records_of(path)[0]["backend"]


@pytest.fixture
def results(tmp_path):
    """A file that is not there yet, alone in its folder."""
    return tmp_path / "results.jsonl"


def records_of(path):
    """The lines of a JSON-lines file, each of which must be whole."""
    text = path.read_text()
    assert text.endswith("\n"), f"the last line is cut short: {text[-80:]!r}"
    return [json.loads(line) for line in text.splitlines()]


def passes(result):
    assert (result.returncode, result.stderr) == (0, ""), result.stdout
    return result.stdout


def refuses(result, *words):
    """Exit 2, one sentence on stderr that has the words, no results on stdout."""
    assert result.returncode == 2, result.stdout + result.stderr
    assert re.fullmatch(r"\S.*\w{2,}.* .*\w{2,}.*\n", result.stderr), result.stderr
    assert not re.search(r"terminate called|what\(\)|std::|bad_alloc|Assertion|\[json", result.stderr), result.stderr
    assert [word for word in words if word not in result.stderr] == [], result.stderr
    assert not re.search(r"\b(pass|FAIL\w*|median|predicted|Usage)\b", result.stdout), result.stdout
    return result.stderr


# --- What it lists ---


def test_each_program_has_its_chapter_alone(run):
    for chapter in CHAPTERS:
        assert [line.split()[0] for line in passes(run(chapter, "--list")).splitlines()] == [chapter]


def test_the_committed_list_of_chapters_is_the_programs_own(run):
    listed = json.loads(passes(run("chapters", "--list", "--json")))
    listed["library"] = json.loads(passes(run("library_kernels", "--list", "--json")))["library"]
    assert sorted(chapter["id"] for chapter in listed["chapters"]) == CHAPTERS
    committed = json.loads((ROOT / "notebooks/data/chapters.json").read_text())
    assert committed == listed, "run `make tables`: it writes notebooks/data/chapters.json"


@pytest.mark.parametrize("gpu, about, rule", [
    ("h100", "(tuned on this kind of GPU)", r"lib_bwd_unaligned, by a rule tuned on an NVIDIA H100"),
    ("h200", "(tuned on this kind of GPU)", r"lib_bwd_unaligned, by a rule tuned on an NVIDIA H200"),
    ("b200", "(not tuned on this kind of GPU: defaults", r"lib_bwd_ring, by a rule .*: the fastest, or")])
def test_the_list_says_what_the_dispatch_takes_and_where_that_was_measured(run, backend, gpu, about, rule):
    if backend != "cpu":
        pytest.skip("LNC_GPU is for the CPU backend")
    problem = ["--rows", "8192", "--cols", "2304", "--dtype", "bf16"]
    said = passes(run("library_kernels", "--list", *problem, LNC_GPU=gpu)).split("\n\n")[1]
    assert "bf16, 8192 x 2304" in said and about in said
    assert re.search(r"\n  backward +" + rule, said)
    assert re.search(r"\n  forward +lib_fwd_registers, by a rule .*\n  backward from y lib_bwd_from_y, by a rule ", "\n".join(
        line for line in said.splitlines() if not line.startswith("  backward  ")))


@pytest.mark.parametrize("chapter, place", [("bwd02", "main line; its parent is bwd01"),
                                            ("fwd04", "side road: numerics; its parent is fwd03")])
def test_a_page_says_where_its_chapter_stands_on_the_map(run, chapter, place):
    assert f"\n  {place}\n" in passes(run(chapter, *SMALL[:4], "--samples", "0"))


def test_the_version_is_that_of_cmake(run):
    version = re.search(r"project\(\w+ VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
    assert passes(run("chapters", "--version")).split()[-1] == version


# --- What it refuses ---


@pytest.mark.parametrize("arguments", REFUSED)
def test_a_refusal_is_one_sentence_and_leaves_no_file(run, results, arguments):
    refuses(run("fwd01", "--json", results, *arguments.split()), *REFUSED[arguments])
    assert not results.exists()


@pytest.mark.parametrize("arguments", TOO_LARGE)
def test_no_chapter_takes_a_problem_larger_than_the_device(run, results, arguments):
    refuses(run("chapters", "--json", results, *arguments.split()))
    assert not results.exists()


def test_many_chapters_that_refuse_say_one_sentence(run):
    refuses(run("chapters", *TOO_LARGE[0].split()), "copy00", "the other chapters")


@pytest.mark.parametrize("program, tensors", [("fwd01", 2), ("bwd02", 3)])
def test_says_how_much_memory_is_needed(run, program, tensors):
    sentence = refuses(run(program, *TOO_LARGE[0].split()))
    needed, = re.findall(r"needs ([\d.]+) GB .*1000000000 x 8000.* [\d.]+ GB", sentence)
    assert float(needed) == pytest.approx(tensors * 8e12 * 4 / 1e9, rel=0.01)


def test_a_path_that_cannot_be_written_is_found_before_anything_runs(run, tmp_path):
    for path in (tmp_path / "missing" / "results.jsonl", tmp_path / "table.csv", tmp_path, ""):
        result = run("chapters", *SMALL, "--json", path)
        refuses(result, str(path))
        assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_schedule_is_refused(run, backend):
    if backend != "cpu":
        pytest.skip("SIMT_SCHEDULE is the CPU backend's; a GPU schedules by itself")
    refuses(run("fwd01", *SMALL, SIMT_SCHEDULE="sideways"), "SIMT_SCHEDULE is 'sideways'; it must be")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_full_disk_under_the_output_is_said(programs):
    with open("/dev/full", "w") as full:
        result = subprocess.run([programs["fwd01"], *SMALL], stdout=full, stderr=subprocess.PIPE, text=True)
    assert result.returncode == 1
    assert "disk full" in result.stderr


# --- How a chapter cuts its work ---


@pytest.fixture
def cuts(run):
    """The option of each chapter and each kernel of the library; None where it cuts its work in one way only."""
    listed = [kernel for program, room in (("chapters", "chapters"), ("library_kernels", "library"))
              for kernel in json.loads(passes(run(program, "--list", "--json")))[room]]
    assert {kernel["group"] for kernel in listed} == {"", *CUTS}
    return {kernel["id"]: CUTS.get(kernel["group"]) for kernel in listed}


def test_a_chapter_lists_its_own_cut_alone(run, cuts):
    for chapter, own in cuts.items():
        options = set(re.findall(r"(?m)^ *(--[a-z-]+)", passes(run(chapter, "--help"))))
        assert options & {*CUTS.values(), "--group"} == ({own} if own else set()), chapter


def test_a_chapter_refuses_the_cuts_of_others_and_names_its_own(run, cuts):
    for chapter, own in cuts.items():
        for other in {*CUTS.values(), "--group"} - {own}:
            sentence = refuses(run(chapter, *SMALL, other, "3"), f"{chapter} does not take {other}")
            assert set(re.findall(r"--[a-z-]+", sentence)) == {other, "--help", *([own] if own else [])}


def test_a_chapter_takes_its_own_cut_and_records_it(run, results, cuts):
    for chapter, own in cuts.items():
        if own:
            passes(run(chapter, *SMALL, own, "3", "--json", results))
    assert [(r["chapter"], r["problem"]["options"]) for r in records_of(results)] == [
        (chapter, {"group": 3}) for chapter, own in cuts.items() if own]


def test_of_all_chapters_those_run_that_have_the_cut(run, results, cuts):
    out = passes(run("chapters", *SMALL, "--rows-per-block", "3", "--json", results))
    assert {r["chapter"] for r in records_of(results)} == {
        chapter for chapter, own in cuts.items() if own == "--rows-per-block" and not chapter.startswith("lib_")}
    assert "rows a block 3" in out
    assert "not run: bwd08 takes --buffers, not --rows-per-block\n" in out
    assert "not run: fwd01 does not take --rows-per-block\n" in out


def test_what_a_cut_counts_must_be_said_and_once(run):
    refuses(run("library_kernels", *SMALL, "--group", "3"), "--group", "--blocks", "--clusters", "--row-groups")
    refuses(run("chapters", *SMALL, "--buffers", "3", "--row-groups", "3"), "--buffers", "--row-groups")
    refuses(run("bwd08", *SMALL, "--buffers", "x"), "--buffers", "'x'")


def test_the_set_of_cuts_asks_each_chapter_for_its_own(run, results, tmp_path):
    path = tmp_path / "sets.json"
    path.write_text('{"mine": {"problems": [{"rows": 9, "cols": 40, "group": [1, 2]}]}}')
    for chapter in ("bwd05", "bwd08"):
        passes(run(chapter, "--set", "mine", "--set-file", path, "--samples", "0", "--json", results))
    assert [r["problem"]["options"]["group"] for r in records_of(results)] == [1, 2, 1, 2]
    refuses(run("fwd02", "--set", "mine", "--set-file", path), "fwd02", "one way only")


# --- What it leaves behind ---


def test_every_chapter_passes_and_runs_are_appended(run, results, backend):
    types = ("f32", "f16", "bf16")
    for dtype in types:
        out = passes(run("chapters", *SMALL, "--dtype", dtype, "--json", results))
        assert sorted(re.findall(r"(?m)^([a-z]+\d\d) .* pass$", out)) == CHAPTERS
    records = records_of(results)
    assert [r["chapter"] for r in records] == len(types) * [r["chapter"] for r in records[:len(CHAPTERS)]]
    for i, r in enumerate(records):
        assert ALWAYS | TIMED <= set(r)
        assert GPU_ONLY & set(r) == (GPU_ONLY if backend == "cuda" else set())
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", r["date"])
        assert (r["schema"], r["l2"], r["set"], r["samples"]) == (2, "cold", None, 1)
        problem = {"kind": "layer", "dtype": types[i // len(CHAPTERS)], "rows": 37, "cols": 104, "options": {}}
        assert {name: r["problem"][name] for name in problem} == problem
        tensors = {"copy": 2, "forward": 2, "backward": 3}[r["direction"]]
        assert r["operator_bytes"] == tensors * 3848 * (4 if problem["dtype"] == "f32" else 2)
        assert r["direction"][0] == r["chapter"][0]  # copy, forward or backward
        assert r["p10_us"] <= r["median_us"] <= r["p90_us"]
        assert r["rel_err"] >= 0


def test_a_copy_says_nothing_of_a_norm_and_takes_what_it_need_not_know(run, results, tmp_path):
    out = passes(run("copy00", *SMALL, "--dtype", "bf16", "--kind", "rms", "--no-affine", "--misalign", "1",
                     "--json", results, "--dump", tmp_path))
    assert "\nbf16, 37 x 104, seed 1" in out
    record, = records_of(results)
    assert (record["chapter"], record["direction"], record["predicted_bytes"]) == ("copy00", "copy", 2 * 7696)
    assert (record["max_abs_err"], record["rel_err"]) == (0, 0)
    assert {path.stem for path in tmp_path.glob("*.npy")} == {"x", "y"}
    assert (tmp_path / "x.npy").read_bytes() == (tmp_path / "y.npy").read_bytes()
    for option in ("--mixed", "--group 4", "--prenorm", "--recompute-output"):
        refuses(run("copy00", "--dtype", "f16", *option.split()), "copy00", option.split()[0])
    out = passes(run("chapters", *SMALL))
    assert [out.count(words) for words in ("\nf32, 37 x 104,", "\nlayer f32, 37 x 104,")] == [1, 1]


def test_what_was_not_timed_has_no_times(run, results):
    for rows in ("37", "0"):
        passes(run("chapters", "--rows", rows, "--cols", "100", "--samples", "0", "--json", results))
    for record in records_of(results):
        assert ALWAYS <= set(record)
        assert not (TIMED | GPU_ONLY) & set(record)


def test_a_set_file_of_ones_own(run, results, tmp_path):
    path = tmp_path / "sets.json"
    path.write_text('{"mine": {"problems": [{"rows": 3, "cols": [5, 6]}]}}')
    passes(run("fwd02", "--set", "mine", "--set-file", path, "--samples", "0", "--json", results))
    assert [(r["set"], r["problem"]["cols"]) for r in records_of(results)] == [("mine", 5), ("mine", 6)]
    path.write_text('{"mine": {"problems": [{"colour": 3}]}}')
    refuses(run("fwd02", "--set", "mine", "--set-file", path), str(path), "'mine'", "'colour'")


def test_a_fusion_stands_beside_its_parts(run, results, backend):
    for program in ("fwd07", "bwd10"):
        out = passes(run(program, *SMALL, "--dropout", "0.1", "--residual", "same", "--prenorm", "--json", results))
        record, forward = records_of(results)[-1], program == "fwd07"
        assert ("parts one after another: " in out) == forward
        assert ("parts_bytes" in record) == forward
        assert ("parts_us" in record) == (forward and backend == "cuda")
        assert record.get("parts_bytes", 1e9) > record["predicted_bytes"]
    passes(run("fwd07", *SMALL, "--json", results))
    assert "parts_bytes" not in records_of(results)[-1]


@pytest.mark.parametrize("program, given, others", [("bwd06", {"x", "mean"}, {"y"}), ("bwd07", {"y"}, {"x", "mean"})])
def test_a_gradient_from_y_says_how_far_it_is_from_the_one_from_x(run, results, tmp_path, program, given, others):
    out = passes(run(program, *SMALL, "--dtype", "bf16", "--weight-scale", "1e-4", "--json", results,
                     "--dump", tmp_path))
    record, = records_of(results)
    assert set(record.get("distances", {})) == ({"dx_from_x", "dweight_from_x"} if given == {"y"} else set())
    assert ("no limit" in out) == (given == {"y"})
    assert record["rel_err"] < 0.01  # of what is judged
    dumped = {path.stem for path in tmp_path.glob("*.npy")}
    assert given | {"dy", "rstd", "weight", "bias", "dx"} <= dumped
    assert not others & dumped


@pytest.mark.parametrize("before, end", [("", ""), ("a note\n", ""), ("a line without its end", "\n")])
def test_what_a_file_held_stays(run, results, before, end):
    results.write_text(before)
    for arguments in ("--colour", "--kind rms", TOO_LARGE[0]):  # found by the parser, the chapter, the device
        refuses(run("fwd01", "--json", results, *arguments.split()))
        assert results.read_text() == before
    passes(run("fwd01", *SMALL, "--json", results))
    text = results.read_text()
    assert text.startswith(before + end)
    record, = map(json.loads, text[len(before + end):].splitlines())
    assert record["chapter"] == "fwd01"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_run_leaves_what_it_reported(programs, results, how):
    sweep = [programs["chapters"], "--set", "sweep", "--samples", "1", "--json", results]
    # What runs in the background may have been told to ignore SIGINT.
    heed = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(sweep, stdout=subprocess.PIPE, text=True, preexec_fn=heed) as process:
        seen = [process.stdout.readline() for _ in range(3)]  # the device, two results
        process.send_signal(how)
        assert process.wait(timeout=60) != 0, "it was not interrupted"
    records = records_of(results)
    assert [record["chapter"] for record in records[:2]] == [line.split()[0] for line in seen[1:]]
    for record in records:
        assert ALWAYS | TIMED <= set(record)
        assert (record["problem"]["dtype"], record["problem"]["rows"], record["set"]) == ("f16", 4096, "sweep")
