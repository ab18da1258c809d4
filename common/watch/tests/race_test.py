"""The front end of `make race`: what it refuses, and how it shows what was seen."""

import json

import pytest

from common.watch import race
from common.watch.lines import WatchError


def run(capsys, monkeypatch, *arguments):
    monkeypatch.setattr(race, "prepare", lambda chapters: None)
    status = race.main(list(arguments))
    return status, capsys.readouterr()


def test_a_gpu_is_refused_in_one_sentence(capsys, monkeypatch):
    status, said = run(capsys, monkeypatch, "fwd02", "--backend", "cuda")
    assert status == 2
    assert said.err.startswith("race: make race looks into the SIMT machine, which a GPU does not have")
    assert said.err.count("\n") == 1


def test_unknown_names_are_refused(capsys, monkeypatch):
    status, said = run(capsys, monkeypatch, "fwd2")
    assert status == 2 and "did you mean CH=fwd02?" in said.err
    status, said = run(capsys, monkeypatch, "fwd12")
    assert status == 2 and "its kernel is LIB=fwd_fused" in said.err
    status, said = run(capsys, monkeypatch, "fwd02", "--backend", "tpu")
    assert status == 2 and "BACKEND=tpu is not a backend" in said.err
    status, said = run(capsys, monkeypatch, "fwd02", "--json")
    assert status == 2 and "--json needs a value" in said.err


def test_the_reader_s_problem_is_taken_as_it_is_and_others_are_chosen():
    kernel = {"id": "fwd08", "group": "blocks", "fused": False, "residual_only": False}
    own = race.Request(["fwd08", "--rows", "8", "--cols=300"])
    assert own.problems(kernel) == ([["--rows", "8", "--cols=300"]], False)
    request = race.Request(["fwd08", "--dtype", "f16"])
    problems, may_refuse = request.problems(kernel)
    assert may_refuse and len(problems) == len(race.PROBLEMS)
    assert all(problem[-4:] == ["--blocks", "2", "--dtype", "f16"] for problem in problems)
    fused, _ = request.problems({**kernel, "group": "rows a block", "fused": True})
    assert all({"--dropout", "--prenorm", "--rows-per-block"} <= set(problem) for problem in fused)
    residual, _ = request.problems({**kernel, "group": "", "fused": True, "residual_only": True})
    assert all("--prenorm" in problem and "--dropout" not in problem for problem in residual)


def test_a_program_says_what_its_kernel_takes(programs):
    kernels = [race.registration_of(programs[name]) for name in ("fwd08", "lib_fwd_fused")]
    assert [kernel["id"] for kernel in kernels] == ["fwd08", "lib_fwd_fused"]
    assert [(kernel["group"], kernel["fused"], kernel["residual_only"]) for kernel in kernels] == [
        ("blocks", False, False), ("", True, True)]


def test_without_a_chapter_all_are_meant_but_the_reader_s_own():
    chapters = race.Request(["--backend", "auto"]).chapters
    assert {"copy00", "fwd01", "bwd13"} <= set(chapters)
    assert not any(chapter.startswith(("my", "lib")) for chapter in chapters)
    assert race.Request(["chapters"]).chapters == race.Request([]).chapters


def test_the_library_s_kernels_are_asked_for_together():
    request = race.Request(["library_kernels", "--strict"])
    assert not request.one and {"lib_fwd_ring", "lib_bwd_any"} <= set(request.chapters)
    assert all(chapter.startswith("lib_") for chapter in request.chapters)
    assert race.Request(["lib_fwd_ring"]).chapters == ["lib_fwd_ring"]


def test_each_kernel_with_further_problems_is_there():
    assert set(race.MORE_PROBLEMS) <= set(race.kernel_sources())


@pytest.fixture
def program(programs):
    return programs["fwd03"]


def test_a_chapter_without_races_passes(program, capsys, monkeypatch, tmp_path):
    path = tmp_path / "seen.json"
    status, said = run(capsys, monkeypatch, "fwd03", "--rows", "3", "--cols", "70", "--json", str(path))
    assert status == 0
    assert said.out.startswith("fwd03: no races: ") and " accesses of 1 kernel in " in said.out
    (seen,) = json.loads(path.read_text(encoding="utf-8"))
    assert seen["chapter"] == "fwd03" and seen["races"] == []
    assert seen["runs"][0]["arguments"] == "--rows 3 --cols 70" and seen["runs"][0]["passed"]


def test_what_the_program_refuses_is_said(program, capsys, monkeypatch):
    status, said = run(capsys, monkeypatch, "fwd03", "--rows", "3", "--cols", "none")
    assert status == 2 and "--cols" in said.err


RACE = {
    "where": "y[0, 5]", "count": 12, "by_convention": False, "problem": "--rows 3", "missing": "a __syncthreads() between them",
    "missing_at": [{"file": "k.cu", "line": 9, "text": "here();"}],
    "first": {"does": "store", "stores": True, "kernel": "k", "block": 2, "thread": 37,
              "lines": [{"file": "h.h", "line": 3, "text": "*p = 1;"}, {"file": "k.cu", "line": 7, "text": "f(p);"}]},
    "second": {"does": "bulk_load", "stores": False, "kernel": "k", "block": 2, "thread": 0,
               "lines": [{"file": "k.cu", "line": 8, "text": "g(p);"}]},
}


def test_a_race_is_shown_with_lines_threads_element_and_what_is_missing(capsys):
    race.print_race(1, RACE)
    assert capsys.readouterr().out.splitlines() == [
        "",
        "race 1: y[0, 5], 12 times",
        "  store by thread 37 (warp 1, lane 5) of block 2",
        "      h.h:3: *p = 1;",
        "      from k.cu:7: f(p);",
        "  bulk_load begun by thread 0 (warp 0, lane 0) of block 2",
        "      k.cu:8: g(p);",
        "  missing: a __syncthreads() between them",
        "      k.cu:9: here();",
        "  kernel: k, with --rows 3",
    ]


def test_of_several_gpus_a_race_names_both(capsys):
    sides = {side: {**RACE[side], "does": does, "gpu": gpu}
             for side, does, gpu in (("first", "load_word", 1), ("second", "store_word", 0))}
    race.print_race(1, {**RACE, **sides})
    said = capsys.readouterr().out
    assert "  load_word by thread 37 (warp 1, lane 5) of block 2 of GPU 1\n" in said
    assert "  store_word by thread 0 (warp 0, lane 0) of block 2 of GPU 0\n" in said


def test_the_same_lines_of_several_kernels_are_one_race():
    swapped = {**RACE, "first": RACE["second"], "second": RACE["first"], "count": 3}
    (one,) = race.merged([dict(RACE), swapped])
    assert one["count"] == 15


class Found:
    """Runs with a race, as show_line asks."""

    is_clean = False

    def __init__(self, chapter):
        self.chapter = chapter

    def summary(self):
        return "1 race"


def test_a_line_says_how_to_see_more(capsys):
    for kernel in ("fwd08", "lib_fwd_ring"):
        race.show_line(Found(kernel))
    assert capsys.readouterr().out.splitlines() == ["fwd08  1 race; make race CH=fwd08 shows more",
                                                    "lib_fwd_ring  1 race; make race LIB=fwd_ring shows more"]


def test_faults_and_errors_of_lines_are_told(monkeypatch, capsys):
    def fail(_):
        raise WatchError("addr2line is missing")
    monkeypatch.setattr(race, "prepare", fail)
    assert race.main(["fwd03"]) == 2
    assert capsys.readouterr().err == "race: addr2line is missing\n"
