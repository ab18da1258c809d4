"""targets.py on made-up records: what is met, missed and not measured. No measured time is asserted here."""

import re

import pytest

from common.bench.tests.made_up import MADE_BY, jsonl, peer
from common.campaign import target_tables, targets
from common.results.problems import SETS, UNUSUAL_WIDTHS, Problem, size_of
from common.results.records import parse

PROBLEMS = [*SETS["widths"], *SETS["smaller"], targets.LARGEST]
DIRECTIONS = ("forward", "backward")
ONE = Problem.of("bf16", 16384, 4096)


def contender(provider, direction, problem, times_roof, **more):
    """A record of who needs so many times the roof's time."""
    size = size_of(problem) * {"forward": 2, "backward": 3}[direction]
    return peer(provider, direction, times_roof * size / 2e6, problem=problem._asdict() | {"options": {}}, **more)


def campaign(ours=1.01, theirs=1.5, without=(), **slower):
    """Each problem with ours and two peers; `slower`: {"forward_4096": times the roof} of some of ours."""
    made = []
    for direction in DIRECTIONS:
        for problem in PROBLEMS:
            if problem.cols not in without:
                us = slower.get(f"{direction}_{problem.cols}", ours)
                made += [contender("dispatch", direction, problem, us, chosen=f"{direction[0]}wd01"),
                         contender("torch", direction, problem, theirs), contender("liger", direction, problem, 3.0)]
    return made


@pytest.fixture
def judge(tmp_path, capsys):
    """(exit status, lines) where these are the measured ones."""
    def judge(records, *options):
        path = tmp_path / "peers.jsonl"
        path.write_text(jsonl(*records), encoding="utf-8")
        status = targets.main([str(path), *options])
        said = capsys.readouterr()
        return status, (said.out + said.err).splitlines()
    return judge


def standings(*records):
    """{(direction, problem): Standing}"""
    return targets.standings([parse(record) for record in records])


def test_all_is_met_where_ours_are_near_the_roof_and_ahead_of_the_peers(judge):
    status, lines = judge(campaign())
    assert status == 0 and "commit c" in lines[0]
    assert [line[:7] for line in lines[1:]] == ["met    "] * len(targets.targets())
    assert re.fullmatch(r"met     forward, 128 MiB, from 256 columns on: % of the copy at least 97: "
                        r"least \w+ \w+ \d+ \(99.0\), of 136, by at least 2.0", lines[1])


def test_a_missed_target_names_its_widths_the_worst_first_and_by_how_much(judge):
    status, lines = judge(campaign(forward_1000=1.04, forward_262144=1.06, forward_64=1.06))
    assert status == 1
    assert [line for line in lines if line.startswith("MISSED")] == [
        "MISSED  forward, 128 MiB, from 256 columns on: % of the copy at least 97: at 8 of 136, by up to 2.7: "
        "bf16 layer 262144 (94.3); bf16 rms 262144 (94.3); f32 layer 262144 (94.3); f32 rms 262144 (94.3); "
        "bf16 layer 1000 (96.2); bf16 rms 1000 (96.2); f32 layer 1000 (96.2); f32 rms 1000 (96.2)"]


@pytest.mark.parametrize("options, end", [((), "; and 24 more"), (("--all",), ")")])
def test_every_name_is_shown_only_on_request(judge, options, end):
    line = next(line for line in judge(campaign(theirs=1.0), *options)[1] if "64 MiB: ours" in line)
    assert "at 32 of 32, by up to 0.010" in line and line.endswith(end) and ("more" in line) == ("more" in end)


@pytest.mark.parametrize("width, share, words", [(5119, 92.0, "256 to 16384"), (18432, 89.0, "beyond 16384"),
                                                 (128, 89.0, "below 256"), (5120, 94.0, "multiples of 1024")])
def test_backward_has_a_limit_for_each_range_of_widths(judge, width, share, words):
    _, lines = judge(campaign(**{f"backward_{width}": 100 / share}))
    missed, = (line for line in lines if line.startswith("MISSED  backward, 128"))
    assert words in missed


@pytest.mark.parametrize("change, means", [
    ({f"backward_{width}": 1.4 for width in (*UNUSUAL_WIDTHS, 65536, 131072, 262144)},
     ["0.673, met by 0.077; the roof itself 0.667", "1.010, met by 0.070"]),
    ({"ours": 1.2}, ["0.800, missed by 0.050; the roof itself 0.667", "1.200, missed by 0.120"])])
def test_the_means_are_over_the_list_alone(judge, change, means):
    _, lines = judge(campaign(**change))
    assert [line.split(": ")[-1] for line in lines if ": mean of " in line] == means * 2


def test_what_is_not_measured_is_said_and_is_not_met(judge):
    status, lines = judge(campaign(without=(4096, 262144)))
    assert status == 1 and "unmeasured  backward, f32, 512 × 262144: % of the triad" in lines
    line, = (line for line in lines if line.startswith("met     backward, 64 MiB: % of the triad"))
    assert line.endswith("; 4 of 32 problems not measured")


def test_a_gap_alone_is_not_met(judge):
    records = campaign(without=(1152,))
    status, lines = judge(records)
    assert status == 1 and {line[:7] for line in lines[1:]} == {"met    "}
    found = standings(*records)
    assert ({target.words for target in targets.targets() if not targets.judge(target, found)[0]}
            == {target.words for target in targets.targets() if 1152 in {one.cols for one in target.problems}})


def test_each_gpu_is_named_and_one_without_these_problems_has_no_verdicts(judge):
    elsewhere = contender("dispatch", "forward", Problem.of("f16", 4096, 1024), 1.0, device="Another GPU")
    _, lines = judge([elsewhere, *campaign()])
    assert re.fullmatch("Another GPU, .*: none of the targets' problems measured", lines[0])
    assert MADE_BY["device"] in lines[1] and len(lines) == 2 + len(targets.targets())


OURS, TORCH = contender("dispatch", "forward", ONE, 1.20), contender("torch", "forward", ONE, 1.5)
LATER = {"run": "2026-01-03T00:00:00Z"}


@pytest.mark.parametrize("later, of_peer, times_roof", [
    # A peer of another run is held against ours of that run.
    ([contender("dispatch", "forward", ONE, 1.10, **LATER), contender("quack", "forward", ONE, 1.0, **LATER)], 1.10, 1.10),
    # A later run without peers gives the share and no ratio.
    ([contender("dispatch", "forward", ONE, 1.05, **LATER)], 1.20 / 1.5, 1.05)])
def test_the_share_is_the_newest_run_s_and_a_ratio_that_of_a_run_with_both(later, of_peer, times_roof):
    one, = standings(OURS, TORCH, *later).values()
    assert (one.of_peer, one.share) == pytest.approx((of_peer, 100 / times_roof))


def test_a_roof_of_other_bytes_than_the_operator_s_is_scaled():
    record = contender("dispatch", "forward", ONE, 1.0)
    one, = standings({**record, "roof_us": record["roof_us"] / 2, "roof_bytes": record["roof_bytes"] // 2}).values()
    assert one.share == pytest.approx(100)


def test_shares_need_no_peer_and_ratios_do(judge):
    _, lines = judge([record for record in campaign() if record["provider"] == "dispatch"])
    assert all(line.startswith("unmeasured") == ("peer" in line) for line in lines[1:]), lines


def test_no_records_are_a_sentence(judge, tmp_path, capsys):
    status, lines = judge([])
    assert (status, len(lines)) == (2, 1)
    assert targets.main([str(tmp_path / "nowhere.jsonl")]) == 2 and "is not there yet" in capsys.readouterr().err


def test_the_rows_of_a_table_are_the_judgements():
    found = standings(*campaign(forward_1000=1.04, backward_5120=1.2))
    shown = {str(target): targets.target_row(target, found) for target in targets.targets()}
    assert shown["forward, 128 MiB, from 256 columns on: % of the copy"] == ("4 of 136", "bf16 layer 1000 (96.2)")
    assert shown["forward, 128 MiB, below 256 columns: % of the copy"] == ("met at 28", "–")
    for words in ("128 MiB, multiples of 1024 up to 8192", "64 MiB"):
        assert shown[f"backward, {words}: % of the triad"] == ("4 of 32", "bf16 layer 5120 (83.3)")
    means = [row for words, row in shown.items() if ": mean of" in words]
    assert [verdict for verdict, _ in means] == ["met"] * 4
    assert [worst.partition("; ")[2] for _, worst in means] == ["the triad itself 0.667", ""] * 2


def test_each_miss_is_in_the_region_that_it_belongs_to():
    found = standings(*campaign(**{f"forward_{cols}": 1.2 for cols in (65, 80, 1023, 4096, 12288, 50257, 262144)}))
    rows, regions = targets.region_rows(found), {}
    for region, target, *_, worst in rows:
        assert target.direction == "forward"
        regions.setdefault(region, set()).add(worst.split()[2])
    assert regions == {
        "single elements: 65 and 127 columns": {"65"}, "rows that start anywhere, up to 12 288 columns": {"1023"},
        "wide rows that start anywhere": {"50257"}, "narrow rows, below 256 columns": {"80"},
        "256 to 8192 columns": {"4096"}, "8193 to 18 432 columns": {"12288"}, "the widest rows": {"262144"}}
    missed = [targets.misses(target, targets.values_of(target, found)) for target in targets.targets() if not target.is_mean]
    assert sum(count for _, _, count, *_ in rows) == sum(map(len, missed))


def test_the_tables_of_the_page_agree_with_the_data(capsys):
    assert target_tables.main(["--check"]) == 0, capsys.readouterr()
