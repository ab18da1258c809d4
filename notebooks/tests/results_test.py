"""The notebooks' figures of measurements: of one device, of one over another, and what is said where data lack."""

import dataclasses
import re

import pytest
from lab import results

from common.bench.tests.made_up import DEVICE, EMULATED, LARGE, Repository, peer, profile, record, records
from common.results import figures, peer_figures
from common.results.device import DATA, LOCAL, VARIABLE
from common.results.problems import PROGRESSION, SWEEP, WIDTHS, DataError, Problem, problem_of
from common.results.tests.figures_test import check_words, texts_of

CHAPTERS = [f"{direction}{number:02d}" for direction in ("fwd", "bwd") for number in range(1, 5)]
ROADS = {"fwd02": ("fwd01", "main line"), "fwd03": ("fwd02", "numerics"), "fwd04": ("fwd02", "main line"),
         "bwd01": ("fwd01", "main line"), "bwd02": ("bwd01", "main line"), "bwd03": ("bwd02", "main line"),
         "bwd04": ("bwd03", "main line")}
MANY = [*SWEEP, *(Problem.of(**problem) for problem in LARGE)]


def measured(chapters=CHAPTERS, **fields):
    return [entry for direction in ("fwd", "bwd")
            for entry in records([name for name in chapters if name.startswith(direction)], **fields)]


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A function that writes a small repository's files and opens them as a notebook does."""
    monkeypatch.delenv(VARIABLE, raising=False)
    repo = Repository(tmp_path)

    def open_data(own=(), named=None, committed=None, chapters=CHAPTERS, roads=ROADS, **more):
        repo.list_chapters(roads, **{name: (f"{name}_idea", "An idea with a fairly long title", "rows a block")
                                     for name in chapters})
        repo.write(DATA, *(committed or measured()))
        repo.write("notebooks/data/h100_profile.csv", *map(profile, CHAPTERS))
        repo.write("notebooks/data/peers_h100.csv", *(
            peer(name, direction, 10.0 + i, **({} if i else {"chosen": f"{direction[0]}wd01"}))
            for direction in ("forward", "backward")
            for i, name in enumerate(("dispatch", "torch", f"{direction[0]}wd02"))))
        if own:
            repo.write(named or LOCAL, *own)
        for name, entries in more.items():
            repo.write(f"notebooks/data/{name}{'.jsonl' if name.startswith('local') else '.csv'}", *entries)
        if named:
            monkeypatch.setenv(VARIABLE, str(named))
        return results.open_data(tmp_path)

    return open_data


def drawings(data, direction):
    """{name: figure} of all that notebooks 2, 3 and 5 draw of a direction."""
    one, many, fused = data.rows(direction, [PROGRESSION]), data.rows(direction, MANY), data.fused_rows(direction)
    profiles = data.profile_rows(direction)
    ratios = data.against_peers(direction, "layer")
    colours = [f"{direction}02", f"{direction}03"]
    return {"steps": figures.progression(one), "cycles": figures.progression(one, "cycles", data.own.source_rows(direction)),
            "over_columns": figures.sweep(many, "of_roof", colours),
            "time": figures.sweep(many, "median_us", colours),
            "model": figures.model(many, 3.5, 2000, colours), "groups": figures.groups(data.group_rows(direction)),
            "fused": figures.fused(fused), "traffic": figures.traffic(profiles), "waits": figures.waits(profiles),
            "beside_peers": peer_figures.peers_map(ratios, share=True, beside=data.fastest(ratios)),
            "standings": peer_figures.standings(*data.contenders(direction, "layer"))}


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_every_word_can_be_read_and_the_title_names_the_device(repository, direction):
    for name, figure in drawings(repository(), direction).items():
        check_words(name, figure)
        assert DEVICE in figure.get_suptitle(), name


def test_the_readers_own_gpu_stands_over_the_committed_one_in_the_same_panels(repository):
    data = repository(own=measured(CHAPTERS[:3] + CHAPTERS[4:7], device="My GPU"),
                      local_profile=[profile(name, device="My GPU") for name in CHAPTERS])
    assert list(data.books) == [DEVICE, "My GPU"]
    drawn = drawings(data, "fwd")
    for name in ("steps", "cycles", "over_columns", "time", "model", "groups", "fused", "traffic"):
        check_words(name, drawn[name])
        assert f"on My GPU; hollow: {DEVICE}" in drawn[name].get_suptitle(), name
    rings = [line for line in drawn["steps"].axes[0].lines if line.get_label() == DEVICE]
    assert [len(line.get_xdata()) for line in rings] == [3]  # a ring for each chapter of the reader's
    dashed = [line for line in drawn["over_columns"].axes[0].lines if line.get_linestyle() == "--"]
    assert len(dashed) == 2
    assert [axes.get_title("left") for axes in drawn["waits"].axes] == ["My GPU", DEVICE]
    assert f"on {DEVICE}; hollow: My GPU" in drawn["beside_peers"].get_suptitle()
    assert [line.get_markerfacecolor() for line in drawn["beside_peers"].axes[0].lines].count("none") == 1


def test_a_step_is_over_the_parent_or_the_nearest_ancestor_that_is_measured(repository):
    times = {"fwd01": 80.0, "fwd02": 40.0, "fwd03": 50.0, "fwd04": 10.0}
    texts = {}
    for lacking in ("", "fwd02"):
        data = repository(committed=[record(name, time) for name, time in times.items() if name != lacking])
        figure = figures.progression(data.rows("fwd", [PROGRESSION]))
        words = "\n".join(text.get_text() for text in figure.axes[0].texts)
        texts[lacking] = re.findall(r"× [\d.]+ over fwd\d\d(?: \(slower\))?", words)
        dashed = [line for line in figure.axes[0].lines if line.get_linestyle() == "--"]
        assert len(dashed) == (0 if lacking else 1)
    assert texts[""] == ["× 2.00 over fwd01", "× 0.80 over fwd02 (slower)", "× 4.00 over fwd02"]
    assert texts["fwd02"] == ["× 1.60 over fwd01", "× 8.00 over fwd01"]


def test_a_row_beside_the_named_peers_is_over_the_fastest_of_these(repository):
    data = repository()
    (every,), (one,) = (data.against_peers("fwd", "layer", peers) for peers in ("all", ["fwd02", "torch"]))
    assert list(one["ratios"]) == ["torch"] and one["ratio"] == pytest.approx(10 / 11)
    assert every["peer"] == one["peer"] == "torch" and one["peer_us"] == pytest.approx(11)
    assert data.against_peers("fwd", "layer", ["liger"]) == []


def test_ours_and_the_peers_stand_at_their_share_of_the_roof(repository):
    row, = repository().against_peers("fwd", "layer")
    lines = peer_figures.peers_map([row], share=True).axes[0].lines
    places = [float(line.get_xdata()[0]) for line in lines if line.get_marker() in ("o", "D")]
    assert places == pytest.approx([row["of_roof"], row["of_roof"] * row["ratios"]["torch"][0]])


def test_two_files_of_one_device_are_told_apart_by_their_names(repository):
    data = repository(own=measured())
    assert list(data.books) == [f"{DEVICE} (h100.csv)", f"{DEVICE} (local.jsonl)"]


def test_what_a_device_lacks_is_one_sentence_with_the_command(repository, capsys):
    data = repository(own=[record("fwd01", 20.0, device="My GPU")], named="notebooks/data/mine.jsonl")
    capsys.readouterr()
    assert {row["of"] for row in data.profile_rows("fwd")} == {DEVICE}
    assert capsys.readouterr().out == f"My GPU has no profile; `make profile` measures it. What follows is {DEVICE}'s.\n"
    data.rows("fwd", MANY[:1])
    assert "`make bench JSON=notebooks/data/mine.jsonl` measures it." in capsys.readouterr().out
    assert data.rows("fwd", [results.problem("f32:3x5")]) == []
    assert "`make run ARGS='--dtype f32 --rows 3 --cols 5 --json notebooks/data/local.jsonl'`" in capsys.readouterr().out
    assert {row["of"] for row in data.against_peers("fwd", "layer")} == {DEVICE}
    assert capsys.readouterr().out.count("`make peers` measures it") == 1


def test_another_devices_training_is_not_shown_silently(repository, capsys, monkeypatch):
    data = repository(own=[record("fwd01", 20.0, device="My GPU")])
    monkeypatch.setattr(type(data.own), "training_rows", lambda book, kind="layer": [{"device": DEVICE}])
    assert data.training_rows() == [{"device": DEVICE}]
    out = capsys.readouterr().out
    assert "My GPU has no training" in out and "gpt_training.py" in out and f"What follows is {DEVICE}'s." in out


def of_widths(device):
    return [peer(name, direction, us, problem=problem._asdict() | {"options": {}}, device=device)
            for problem in WIDTHS if problem.cols in (768, 1024) for direction in ("forward", "backward")
            for name, us in (("dispatch", 150.0), ("torch", 200.0))]


def test_the_widths_are_the_readers_own_or_another_devices_by_its_name(repository, capsys):
    lacking = f'{DEVICE} has no width beside peers; `make peers ARGS="--set widths"` measures them.'
    assert repository().width_rows("bf16") == []
    assert capsys.readouterr().out == lacking + "\n"
    rows = repository(peers_other=of_widths("Another GPU")).width_rows("bf16")
    assert capsys.readouterr().out == f"{lacking} What follows is Another GPU's.\n"
    assert [(row["device"], row["dtype"]) for row in rows] == [("Another GPU", "bf16")] * 8
    data = repository(own=[record("fwd01", 20.0, device="Another GPU")])
    assert len(data.width_rows("f32")) == 8 and capsys.readouterr().out == ""
    assert {problem.cols for problem in map(problem_of, data.contenders("fwd", "layer")[0])} == {2048}
    assert {row["of"] for row in data.against_peers("fwd", "layer")} == {DEVICE}


def test_emulated_times_stand_alone_and_rank_nothing(repository, capsys):
    data = repository(own=measured(**EMULATED), named="notebooks/data/emulated.jsonl")
    assert list(data.books) == ["a CPU"]
    drawn = {name: figure for name, figure in drawings(data, "fwd").items() if figure}
    assert set(drawn) == {"steps", "time", "fused"}
    for name in drawn:
        assert "Emulated times rank nothing on a GPU" in drawn[name].get_suptitle(), name
    for name in ("steps", "time"):
        words = " ".join(text for text, _ in texts_of(drawn[name]))
        assert "roof" not in words and "emulated µs" in words, name
    assert data.training_rows() == []
    assert "make peers" not in capsys.readouterr().out


def test_a_problem_is_read_or_refused_in_a_sentence():
    assert results.problem("bf16:8192x4096") == Problem("bf16", 8192, 4096)
    for text in ("f99:1x1", "f32", "f32:1x2,f32:3x4"):
        with pytest.raises(DataError, match="is no problem"):
            results.problem(text)


def test_a_meaning_of_group_has_panels_of_its_own(repository):
    data = repository()
    chapters = {name: chapter._replace(group="buffers") if name == "fwd04" else chapter
                for name, chapter in data.own.chapters.items()}
    data.books = {DEVICE: dataclasses.replace(data.own, chapters=chapters)}
    figure = figures.groups(data.group_rows("fwd"))
    assert [axes.get_xlabel() for axes in figure.axes] == ["rows a block", "buffers"]


def test_traffic_compares_like_with_like(repository):
    figure = figures.traffic(repository().profile_rows("fwd"))
    left, right = figure.axes
    mark, = (line for line in left.lines if line.get_label() == "must be read: x once")
    assert set(mark.get_xdata()) == {1024 * 2048 * 4 / 1e6}
    bars = [sum(patch.get_width() for patch in bar) for bar in zip(*right.containers)]
    assert bars == pytest.approx([32 * 1.1] * 4)  # sectors read and written, beside a prediction of both


def test_a_copy_is_no_forward_chapter(repository):
    data = repository(committed=[*measured(), {**record("fwd01", 9.0), "chapter": "copy00", "direction": "copy"}],
                      chapters=["copy00", *CHAPTERS], roads={**ROADS, "fwd01": ("copy00", "main line")})
    assert "copy00" in data.own.chapters
    for direction in ("fwd", "bwd"):
        shown = [*data.rows(direction, data.problems()), *data.group_rows(direction), *data.fused_rows(direction)]
        assert {row["chapter"][:3] for row in shown} == {direction}
        assert figures.progression(data.rows(direction, [PROGRESSION]))
    assert "copy00" not in data.about()
