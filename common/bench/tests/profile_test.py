"""Tests of the profiler's reader. They need no GPU."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from common.bench import profile_chapter
from common.results import profiles
from common.bench.tests.made_up import jsonl, record

NCU = Path(__file__).with_name("ncu.csv")  # fwd01 and bwd02, cut to the columns that are read


def csv_of(*names):
    lines = ['"ID","Kernel Name","Grid Size","Block Size","gpu__time_duration.sum"', '"","","","","ns"']
    lines += [f'"{i}","{name}","(1, 1, 1)","(32, 1, 1)","1,0{i}0"' for i, name in enumerate(names)]
    return "==PROF== Connected\nwhat the program says\n" + "\n".join(lines) + "\n"


def test_reads_nsight_computes_csv():
    first, second = profile_chapter.parse_csv(NCU.read_text(encoding="utf-8"))
    assert (first.namespace, first.name) == ("fwd01", "layer_norm_forward<float>")
    assert first.metrics["gpu__time_duration.sum"] == 1324672
    assert second.metrics["l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio"] == 3.98
    assert (second.grid, second.block) == ("(256, 1, 1)", "(128, 1, 1)")
    assert second.device == "NVIDIA H100 80GB HBM3"


def test_names_of_kernels():
    for text, names in (
        ("void fwd02::layer_norm_forward<float>(ForwardArgs<T1>)", ("fwd02", "layer_norm_forward<float>")),
        ("lnc::zero_gradients_kernel(lnc::GradientSums, long)", ("lnc", "zero_gradients_kernel")),
        ("void fwd06::(anonymous namespace)::walk<fwd06::Tile<4>>(int)", ("fwd06", "walk<fwd06::Tile<4>>")),
        ("void fwd06::walk<(fwd06::Mode)1, (int)4>(int)", ("fwd06", "walk<(fwd06::Mode)1, (int)4>")),
        ("plain(int)", ("", "plain")),
    ):
        assert profile_chapter.split_name(text) == names
    assert [(k.namespace, k.name) for k in profile_chapter.parse_csv(csv_of("_ZN5bwd114walkIfLb0EEEvi"))] == [
        ("bwd11", "walk<float, false>")]


def test_shared_kernels_belong_to_the_chapter_that_launched_them():
    zero, done = "lnc::zero_gradients_kernel(int)", "void lnc::round_gradients_kernel<__half>(int)"
    kernels = profile_chapter.parse_csv(csv_of(
        "void fwd03::run<int>(int)", zero, "void bwd01::run<int>(int)", done,
        zero, "void bwd02::run<int>(int)", "void bwd02::sum<int>(int)", done))
    assert [chapter for chapter, _ in profile_chapter.by_chapter(kernels)] == [
        "fwd03", "bwd01", "bwd01", "bwd01", "bwd02", "bwd02", "bwd02", "bwd02"]


def test_a_chapter_of_the_reader_s_own_has_its_direction_from_the_program_s_record():
    kernels = profile_chapter.parse_csv(csv_of("void my01::run<int>(int)", "void lnc::round_gradients_kernel<__half>(int)"))
    results = [{"chapter": "my01", "direction": "backward", "problem": {}}]
    made = profile_chapter.make_records(kernels, results)
    assert [(record["chapter"], record["direction"]) for record in made] == 2 * [("my01", "backward")]


def test_records_are_appended_and_the_newest_run_counts(tmp_path, capsys):
    path, source = tmp_path / "profile.jsonl", tmp_path / "ncu.csv"
    for names in (("void bwd01::a<int>(int)", "void bwd01::b<int>(int)", "void fwd01::c<int>(int)"),
                  ("void bwd01::d<int>(int)",)):
        source.write_text(csv_of(*names), encoding="utf-8")
        assert profile_chapter.main(["--csv", str(source), "--json", str(path), "--problem", "rms f16 8x16"]) == 0
        assert "· rms f16, 8 × 16" in capsys.readouterr().out
    with path.open("a", encoding="utf-8") as file:
        file.write('{"schema":1,"chapter":"bwd01"}\n{"chapter":"bwd01","ker')
    found = profiles.load_profiles(path)
    assert {key[0]: [r["kernel"] for r in launches] for key, launches in found.items()} == {
        "bwd01": ["d<int>"], "fwd01": ["c<int>"]}
    err = capsys.readouterr().err
    assert "skipped 1 line" in err
    assert re.search(r"skipped 1 line of schema 1; this reads schema 2: line \d", err)


@pytest.fixture
def sentence(tmp_path, capsys):
    """sentence(argument, …): what the profiler says of a request that it cannot fulfil."""
    def of(*arguments):
        out = tmp_path / "x.jsonl"
        assert profile_chapter.main([*map(str, arguments), "--json", str(out)]) == 2
        err = capsys.readouterr().err
        assert "Traceback" not in err and not out.exists()
        return err
    return of


def test_says_what_is_missing(tmp_path, sentence, monkeypatch):
    for output, why in (
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "NVreg_RestrictProfilingToAdminUsers=0"),
        ("==WARNING== No kernels were profiled.", "BACKEND=cuda"),
        ("bwd02: something else", "something else"),
    ):
        (tmp_path / "out").write_text(output, encoding="utf-8")
        assert why in sentence("--csv", tmp_path / "out")
    assert "'f64 8x8' is no problem" in sentence("--csv", NCU, "--problem", "f64 8x8")
    assert "nowhere is no program" in sentence(tmp_path / "nowhere")
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    assert "nsight-compute" in sentence("--ready")


def test_runs_the_program_under_ncu(tmp_path, sentence, monkeypatch, capsys):
    def program(name, script):
        path = tmp_path / name
        path.write_text("#!/bin/sh\n" + script, encoding="utf-8")
        path.chmod(0o755)
        return str(path)

    # A pretended ncu: runs the program that follows its options, then prints a table.
    (tmp_path / "table").write_text(csv_of("void bwd02::layer_norm_backward<__half>(int)"), encoding="utf-8")
    problem = {"dtype": "f16", "rows": 4, "cols": 8}
    (tmp_path / "own").write_text(jsonl(record("bwd02", 20.0, problem=problem, predicted_bytes=200)), encoding="utf-8")
    chapter = program("bwd02", f'echo "$@" > {tmp_path}/arguments\ncat {tmp_path}/own > "$4"\n')
    program("ncu", 'while [ "${1##*/}" != bwd02 ]; do shift; done\n"$@" || exit\n' f"cat {tmp_path}/table\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    path = tmp_path / "profile.jsonl"
    assert profile_chapter.main([chapter, "--json", str(path), "--", "--dtype", "f16"]) == 0
    said = capsys.readouterr()
    assert said.err == "" and "layer_norm_backward<__half>" in said.out
    assert re.search(r"^--samples 0 --json \S+ --dtype f16\n$", (tmp_path / "arguments").read_text())
    line, = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    told = {"schema": 2, "commit": "c", "direction": "backward", "l2": "cold", "predicted_bytes": 200,
            "problem": {"kind": "layer", **problem, "eps": 1e-5, "seed": 1, "options": {}}}
    assert line == line | told
    profiles.load_profiles(path)
    assert capsys.readouterr().err == ""

    program("bwd02", "echo bwd02 takes no f16 >&2; exit 2\n")
    assert "bwd02 takes no f16" in sentence(chapter)
