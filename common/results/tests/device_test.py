"""Which data are shown together, and what is said of bad ones. Needs neither a GPU nor matplotlib."""

import json

import pytest

from common.bench.tests.made_up import DEVICE, EMULATED, Repository, jsonl, peer, profile, record, training
from common.results import device
from common.results.problems import PROGRESSION, DataError
from common.results.records import MissingData

MEASURED = [record("fwd01", 20.0), record("bwd01", 50.0)]
OWN = [peer("dispatch", "forward", 8.0, chosen="fwd02"), peer("fwd01", "forward", 21.0)]
TORCH = peer("torch", "forward", 9.0, packages={"torch": "2.11", "quack-kernels": "0.6"})
PEERS = "notebooks/data/peers_h100.csv"


@pytest.fixture
def repo(tmp_path, monkeypatch, capsys):
    """A small repository: fwd01, fwd02, bwd01; all but fwd02 are measured."""
    repo = Repository(tmp_path)
    repo.list_chapters(fwd01=("fwd01_one", "One"), fwd02=("fwd02_two", "Two"), bwd01=("bwd01_one", "One back"))
    repo.write(device.DATA, *MEASURED)
    repo.write(device.SOURCE, record("bwd01", 80.0, device="A100", l2=None) | {"l2": None})

    def choose(name=None):
        monkeypatch.setenv(device.VARIABLE, str(name or ""))
        chosen = device.choose_results(tmp_path)
        repo.err = capsys.readouterr().err
        return chosen

    def contend(*entries):
        """The results, [(who, µs)] of ours and of the peers, forward, where these are the peers' file."""
        repo.write(PEERS, *entries)
        ours, peers = choose().contenders("fwd")
        return (choose(), [(row["chapter"], row["median_us"]) for row in ours],
                [(row["provider"], row["median_us"]) for row in peers])

    repo.choose, repo.contend = choose, contend
    return repo


def medians(results, direction="fwd"):
    return [row["median_us"] for row in results.rows(direction, [PROGRESSION])]


# --- Which file ---


def test_the_committed_data_and_what_is_missing_in_them(repo):
    chosen = repo.choose()
    assert (chosen.device, chosen.missing("fwd"), repo.err) == (DEVICE, ["fwd02"], "")
    assert [row["chapter"] for row in chosen.rows("fwd", [PROGRESSION])] == ["fwd01"]
    for words in ("notebooks/data/h100.csv", DEVICE, "left out: fwd02."):
        assert words in chosen.about()
    assert [row["device"] for row in chosen.source_rows("bwd")] == ["A100"]


def test_a_chapter_that_the_list_lacks_is_named_and_one_of_the_reader_s_own_is_left_out(repo):
    repo.write("chapters/fwd10_new/kernel.cu", "")
    repo.write("chapters/my01_from_fwd01/kernel.cu", "")
    repo.write(device.LOCAL, *MEASURED, record("my01", 10.0, direction="forward"))
    chosen = repo.choose()
    assert repo.err == "notebooks/data/chapters.json lacks fwd10; `make tables` writes it anew\n"
    assert (chosen.measured.path.name, list(chosen.chapters)) == ("local.jsonl", ["fwd01", "fwd02", "bwd01", "fwd10"])
    assert (medians(chosen), chosen.variant_rows("fwd")) == ([20.0], [])


def test_a_warm_time_and_a_wrong_result_s_are_left_out(repo):
    repo.write(device.DATA, *MEASURED, *(record(name, 1.0, l2="warm") for name in ("fwd01", "fwd02")),
               record("fwd02", 2.0, passed=False))
    chosen = repo.choose()
    assert medians(chosen) == [20.0]
    assert "Left out: 2 records of a warm L2" in chosen.about()


def test_the_reader_s_own_measurements_come_first(repo):
    repo.write(device.LOCAL, record("fwd01", 9e4, **EMULATED), record("fwd02", 7.0, device="GPU"))
    chosen = repo.choose()
    assert (chosen.device, medians(chosen)) == ("GPU", [7.0])
    assert repo.choose(device.DATA).device == DEVICE


def test_emulated_times_only_where_they_are_named(repo):
    repo.write(device.LOCAL, record("fwd01", 9e4, **EMULATED))
    repo.write("notebooks/data/peers.csv", peer("torch", "forward", 9.0, **EMULATED))
    assert not repo.choose().emulated
    assert "local.jsonl holds no GPU's times" in repo.err
    chosen = repo.choose(device.LOCAL)
    assert chosen.emulated and "Emulated times" in chosen.about()
    row, = chosen.rows("fwd", [PROGRESSION])
    assert [row[key] for key in ("cycles", "gbps", "roof_gbps", "of_roof")] == [None] * 4
    assert [chosen.source_rows("bwd"), chosen.contenders("fwd")[1], chosen.training_rows()] == [[], [], []]


def test_lines_that_cannot_be_read_are_skipped_counted_and_said(repo):
    repo.write(device.DATA, jsonl({**record("fwd02", 1.0), "schema": 3}, *MEASURED)[:-40])
    chosen = repo.choose()
    assert "skipped 1 line that" in repo.err and "skipped 1 line of schema 3" in repo.err
    assert "Skipped in it: 2 lines that could not be read." in chosen.about()
    assert (chosen.missing("fwd"), chosen.missing("bwd")) == (["fwd02"], ["bwd01"])


def test_no_data_and_two_devices(repo):
    with pytest.raises(MissingData, match="nowhere.jsonl is not there yet; `make bench JSON="):
        repo.choose("notebooks/data/nowhere.jsonl")
    repo.write("empty.jsonl")
    assert "holds no measurement" in repo.choose("empty.jsonl").about()
    repo.write("two.jsonl", *MEASURED, record("fwd02", 1.0, device="B"))
    with pytest.raises(DataError, match="times of B and NVIDIA H100 80GB HBM3"):
        repo.choose("two.jsonl")


# --- Beside peers ---


def test_profiles_and_peers_are_of_the_same_device(repo):
    repo.write("notebooks/data/h100_profile.csv", profile("fwd01"), profile("fwd01"))
    repo.write(PEERS, *OWN, TORCH)
    row, = repo.choose().profile_rows("fwd")
    assert (row["read_bytes"], row["l2_bytes"]) == (2 * 9 * 10**6, 2 * 32 * 1100000)
    assert [row["provider"] for row in repo.choose().contenders("fwd")[1]] == ["torch"]
    repo.write("notebooks/data/other.jsonl", record("fwd01", 20.0, device="GPU"))
    repo.write("notebooks/data/other_profile.jsonl", profile("fwd01"))
    chosen = repo.choose("notebooks/data/other.jsonl")
    assert (chosen.profile_rows("fwd"), chosen.contenders("fwd")[1]) == ([], [])
    assert "No peer was measured on this device (GPU)." in chosen.about_peers()


def test_peers_may_stand_in_the_file_itself_and_the_reader_s_own_count_in_notebooks_alone(repo):
    repo.write("both.jsonl", *MEASURED, *OWN, TORCH)
    assert [row["provider"] for row in repo.choose("both.jsonl").contenders("fwd")[1]] == ["torch"]
    repo.write(device.LOCAL_PEERS, *OWN, TORCH)
    assert len(repo.choose().contenders("fwd")[1]) == 1
    assert device.open_results(repo.root).contenders("fwd")[1] == []


def of(run, provider, median, roof=2000.0, **more):
    """A peer's record of the run of a day in January."""
    return peer(provider, "forward", median, run=f"2026-01-0{run}T00:00:00Z", date=f"2026-01-0{run}", roof=roof, **more)


def ours(run, median, chosen="fwd02", **more):
    return of(run, "dispatch", median, chosen=chosen, **more)


OTHER = {"problem": {"rows": 8, "cols": 8}}
JOINED = "in one run or in calls whose roofs agree within 1 %"


@pytest.mark.parametrize("entries, own, peers, about", [
    ([*OWN, TORCH], [("fwd02", 8.0), ("fwd01", 21.0)], [("torch", 9.0)], "in one run, 2026-01-02, PyTorch 2.11, QuACK 0.6"),
    ([TORCH], [], [], "No run has peers and our kernels with layer norm; `make peers` measures one"),
    ([ours(1, 8.0), of(1, "torch", 9.0), of(1, "torch", 30.0, host="counted"), of(1, "liger", 2.0, l2="warm"),
      of(1, "quack", 1.0, passed=False)], [("fwd02", 8.0)], [("torch", 9.0)], "in one run, 2026-01-01"),
    # One run has both; a later one has a peer alone, or ours alone on another problem.
    ([of(1, "torch", 7.0, **OTHER), ours(4, 6.0, roof=1900.0, **OTHER), ours(1, 8.0), of(1, "torch", 9.0),
      of(4, "torch", 5.0, roof=1900.0)], [("fwd02", 8.0)], [("torch", 9.0)], "in one run, 2026-01-01"),
    # A run of its own counts more than a later one of ours, which its peers could join.
    ([ours(1, 8.0), of(1, "torch", 9.0), ours(4, 7.0)], [("fwd02", 8.0)], [("torch", 9.0)], "in one run, 2026-01-01"),
    # The newest that has both.
    ([ours(1, 8.0), of(1, "torch", 9.0), ours(4, 7.5, "fwd01", roof=1900.0), of(4, "torch", 8.5, roof=1900.0)],
     [("fwd01", 7.5)], [("torch", 8.5)], "in one run, 2026-01-04"),
    # Calls of one commit whose roofs agree are joined; a run's own times count more, and of others the newest.
    ([ours(3, 8.0), of(3, "torch", 9.0), of(4, "torch", 7.0, 1990.0), of(1, "liger", 9.4, 1985.0),
      of(2, "liger", 9.5, 2015.0), of(5, "quack", 5.0, 2030.0)], [("fwd02", 8.0)], [("liger", 9.5), ("torch", 9.0)], JOINED),
    # Peers of another commit are joined, our kernels of it are not.
    ([ours(1, 9.0, commit="old"), of(1, "torch", 9.0, commit="old"), of(1, "liger", 12.0, commit="old"),
      ours(2, 6.0, roof=2010.0), of(2, "liger", 12.5, 2010.0), of(3, "quack", 5.0, 2040.0, commit="old")],
     [("fwd02", 6.0)], [("torch", 9.0), ("liger", 12.5)], JOINED),
    ([ours(1, 8.0), of(2, "torch", 9.0, 1990.0)], [("fwd02", 8.0)], [("torch", 9.0)], JOINED),
    ([ours(1, 8.0), of(2, "torch", 9.0, 1970.0)], [], [], "No run has peers"),
    # Of two runs of a commit that do not agree the one with more peers; of two commits the newer.
    ([ours(1, 8.0), of(1, "torch", 9.0), of(1, "liger", 9.0), ours(2, 8.4, roof=2100.0), of(2, "quack", 7.0, 2100.0)],
     [("fwd02", 8.0)], [("torch", 9.0), ("liger", 9.0)], "in one run, 2026-01-01"),
    ([ours(1, 8.0), of(1, "torch", 9.0), of(1, "liger", 9.0), ours(2, 8.4, roof=2100.0, commit="newer"),
      of(2, "quack", 7.0, 2100.0, commit="newer")], [("fwd02", 8.4)], [("quack", 7.0)], "in one run, 2026-01-02")])
def test_what_may_be_compared_is_of_one_run_or_of_calls_whose_roofs_agree(repo, entries, own, peers, about):
    chosen, *contenders = repo.contend(*entries)
    assert contenders == [own, peers]
    assert about in chosen.about_peers() and (not peers or about in chosen.about_peers(problems=[PROGRESSION]))
    assert "No run has peers" in chosen.about_peers(problems=[PROGRESSION._replace(rows=1)])


def test_ours_is_what_the_dispatch_chooses_or_the_fastest_chapter_without_it(repo):
    faster = peer("fwd01", "forward", 7.0)
    for own, chapter, title in (([OWN[0], faster], "fwd02", "Two"), ([faster, peer("fwd02", "forward", 8.0)], "fwd01", "One")):
        pair, = repo.contend(*own, TORCH)[0].against_peers("fwd")
        assert (pair["chapter"], pair["title"], pair["peer"], pair["ratio"]) == (chapter, title, "torch", pair["median_us"] / 9)


def test_a_ratio_is_of_one_run_where_a_peer_of_another_run_has_ours_beside_it(repo):
    first = [ours(1, 8.0), of(1, "torch", 10.0), of(1, "liger", 9.0)]
    second = [ours(2, 8.4, "fwd01", roof=1990.0), of(2, "quack", 9.3, 1990.0)]
    chosen = repo.contend(*first, *second)[0]
    pair, = chosen.against_peers("fwd")
    assert {name: ratios[0] for name, ratios in pair["ratios"].items()} == {
        "torch": 8 / 10, "liger": 8 / 9, "quack": 8.4 / 9.3}
    assert [pair[key] for key in ("peer", "ratio", "median_us", "chapter", "date")] == [
        "quack", 8.4 / 9.3, 8.4, "fwd01", "2026-01-02"]
    assert "agree within 1 % (each ratio is of times of one run)" in chosen.about_peers()
    alone = repo.contend(*first, second[1])[0]  # without ours beside it: ours of the other run
    assert alone.against_peers("fwd")[0]["ratios"]["quack"][0] == 8 / 9.3
    assert "each ratio" not in alone.about_peers()


def test_a_ratio_to_a_peer_of_another_commit_is_of_our_newest_time(repo):
    chosen = repo.contend(ours(1, 9.0, commit="old"), of(1, "torch", 9.0, commit="old"),
                          ours(2, 6.0, roof=2010.0), of(2, "liger", 12.0, 2010.0))[0]
    pair, = chosen.against_peers("fwd")
    assert (pair["peer"], pair["ratio"]) == ("torch", 6 / 9)


def test_the_widths_are_the_first_gpu_s_that_has_them_after_this_one(repo):
    def widths(name):
        problem = {"dtype": "bf16", "rows": 16384, "cols": 4096}
        return [peer(provider, "forward", us, problem=problem, device=name)
                for provider, us in (("dispatch", 9.0), ("torch", 10.0))]

    def shown():
        found = repo.choose().with_widths()
        return found.device, len(found.width_rows())

    repo.write(PEERS, *OWN, TORCH)
    assert shown() == (DEVICE, 0)
    repo.write("notebooks/data/peers_other.csv", *widths("Another GPU"))
    repo.write("notebooks/data/peers_third.csv", *widths("A third GPU"))
    assert shown() == ("Another GPU", 1)
    assert (len(repo.choose().against_peers("fwd")), len(repo.choose().width_rows())) == (1, 0)
    repo.write(PEERS, *OWN, TORCH, *widths(DEVICE))
    assert shown() == (DEVICE, 1)


# --- In training ---


def rows_of(repo, *entries, name=device.TRAINING):
    repo.write(name, *entries)
    return repo.choose().training_rows()


@pytest.mark.parametrize("lines, step, seeds", [(0, 2.0, 3), (11, 2.0, 3), (12, 3.0, 2), (14, 3.0, 2)])
def test_of_trainings_the_newest_whole_one_counts(repo, lines, step, seeds):
    runs = [training("bf16", run=str(number), step_us=float(number)) for number in (1, 2, 3)]
    rows = rows_of(repo, *runs[0], *runs[1], *runs[2][:lines])
    assert [(row["step_us"], row["seeds"]) for row in rows] == [(step, seeds)] * 6


@pytest.mark.parametrize("other", [{"width": 64}, {"device": "GPU"}, {"steps": 20}])
def test_trainings_of_another_model_or_device_are_shown_apart(repo, other):
    rows = rows_of(repo, *training("bf16", run="1"), *training("f32", run="2", **other))
    assert {row["dtype"] for row in rows} == {"f32"}


def test_the_reader_s_own_training_comes_first_if_it_is_a_gpu_s(repo):
    repo.write(device.TRAINING, *training("bf16"))
    own = rows_of(repo, *training("bf16", device="GPU"), name=device.LOCAL_TRAINING)
    assert {row["device"] for row in own} == {"GPU"}
    assert {row["device"] for row in device.open_results(repo.root).training_rows()} == {DEVICE}
    for entries in (training("bf16", **EMULATED), training("bf16", seeds=1), ()):
        assert {row["device"] for row in rows_of(repo, *entries, name=device.LOCAL_TRAINING)} == {DEVICE}
        assert "local_training.jsonl holds no whole training on a GPU" in repo.err


def test_a_training_cut_short_is_skipped_counted_and_said(repo):
    torch = training("f32")[0]
    broken = [{"schema": 2, "training": "torch"}, [], {**torch, "losses": ["low"]}, {**torch, "last": "low"},
              *({key: value for key, value in torch.items() if key != gone} for gone in ("last", "seed"))]
    rows = rows_of(repo, jsonl(*training("bf16"))[:-40] + "\n" + "".join(json.dumps(one) + "\n" for one in broken))
    assert [(row["norm"], row["seeds"]) for row in rows][4:] == [("ours", 2), ("ours, memory-efficient", 2)]
    assert "training_h100.jsonl: skipped 7 lines" in repo.err
    assert "\nSkipped in it: 7 lines that could not be read." in repo.choose().about_training()
