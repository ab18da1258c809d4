"""targets.py on made-up records: what is met, missed and not measured. No measured time is asserted here."""

import contextlib
import io
import json
import unittest

import pytest

from common.bench.tests.made_up import MADE_BY, jsonl, peer
from common.campaign import target_tables, targets
from common.results import records as measurements
from common.results.problems import SETS, UNUSUAL_WIDTHS, Problem, size_of

PROBLEMS = [*SETS["widths"], *SETS["smaller"], targets.LARGEST]
DIRECTIONS = ("forward", "backward")


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


class Judged(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def in_directory(self, tmp_path):
        self.path = tmp_path / "peers.jsonl"

    def judge(self, records, *options):
        """(exit status, lines) where these are the measured ones."""
        self.path.write_text(jsonl(*records), encoding="utf-8")
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            status = targets.main([str(self.path), *options])
        return status, (out.getvalue() + err.getvalue()).splitlines()

    def standings(self, records):
        self.path.write_text(jsonl(*records), encoding="utf-8")
        return targets.standings(measurements.load(self.path).records)

    def test_all_is_met_where_ours_are_near_the_roof_and_ahead_of_the_peers(self):
        status, lines = self.judge(campaign())
        self.assertEqual(status, 0, lines)
        self.assertIn("commit c", lines[0])
        self.assertEqual(len(lines), 1 + len(targets.targets()))
        self.assertTrue(all(line.startswith("met ") for line in lines[1:]), lines)
        self.assertRegex(lines[1], r"^met     forward, 128 MiB, from 256 columns on: % of the copy at least 97: "
                                   r"least \w+ \w+ \d+ \(99.0\), of 136, by at least 2.0$")

    def test_a_missed_target_names_its_widths_the_worst_first_and_by_how_much(self):
        status, lines = self.judge(campaign(forward_1000=1.04, forward_262144=1.06, forward_64=1.06))
        self.assertEqual(status, 1)
        missed = [line for line in lines if line.startswith("MISSED")]
        self.assertEqual(missed, [
            "MISSED  forward, 128 MiB, from 256 columns on: % of the copy at least 97: at 8 of 136, by up to 2.7: "
            "bf16 layer 262144 (94.3); bf16 rms 262144 (94.3); f32 layer 262144 (94.3); f32 rms 262144 (94.3); "
            "bf16 layer 1000 (96.2); bf16 rms 1000 (96.2); f32 layer 1000 (96.2); f32 rms 1000 (96.2)"])

    def test_every_name_is_shown_only_on_request(self):
        records = campaign(theirs=1.0)
        short, long = (next(line for line in self.judge(records, *options)[1] if "64 MiB: ours" in line)
                       for options in ((), ("--all",)))
        self.assertIn("; and 24 more", short)
        self.assertNotIn(" more", long)
        self.assertIn("at 32 of 32, by up to 0.010", long)

    def test_backward_has_a_limit_for_each_range_of_widths(self):
        for width, share, words in ((5119, 92.0, "256 to 16384"), (18432, 89.0, "beyond 16384"), (128, 89.0, "below 256"),
                                    (5120, 94.0, "multiples of 1024")):
            _, lines = self.judge(campaign(**{f"backward_{width}": 100 / share}))
            missed = [line for line in lines if line.startswith("MISSED  backward, 128")]
            self.assertEqual(len(missed), 1, missed)
            self.assertIn(words, missed[0])

    def test_the_means_are_over_the_list_alone(self):
        others = {f"backward_{width}": 1.4 for width in (*UNUSUAL_WIDTHS, 65536, 131072, 262144)}
        _, lines = self.judge(campaign(**others))
        means = [line for line in lines if ": mean of " in line]
        self.assertEqual([line.split(": ")[-1] for line in means], ["0.673, met by 0.077; the roof itself 0.667", "1.010, met by 0.070"] * 2)
        _, lines = self.judge(campaign(ours=1.2))
        means = [line for line in lines if ": mean of " in line]
        self.assertEqual([line.split(": ")[-1] for line in means],
                         ["0.800, missed by 0.050; the roof itself 0.667", "1.200, missed by 0.120"] * 2)

    def test_what_is_not_measured_is_said_and_is_not_met(self):
        status, lines = self.judge(campaign(without=(4096, 262144)))
        self.assertEqual(status, 1)
        self.assertIn("unmeasured  backward, f32, 512 × 262144: % of the triad", lines)
        self.assertTrue(any(line.startswith("met     backward, 64 MiB: % of the triad") and
                            line.endswith("; 4 of 32 problems not measured") for line in lines), lines)

    def test_each_gpu_is_named_and_one_without_these_problems_has_no_verdicts(self):
        elsewhere = contender("dispatch", "forward", Problem.of("f16", 4096, 1024), 1.0, device="Another GPU")
        _, lines = self.judge([elsewhere, *campaign()])
        self.assertRegex(lines[0], "^Another GPU, .*: none of the targets' problems measured$")
        self.assertIn(MADE_BY["device"], lines[1])
        self.assertEqual(len(lines), 2 + len(targets.targets()))

    def test_a_peer_of_another_run_is_held_against_ours_of_that_run(self):
        problem, later = Problem.of("bf16", 16384, 4096), {"run": "2026-01-03T00:00:00Z"}
        made = [contender("dispatch", "forward", problem, 1.20), contender("torch", "forward", problem, 1.5),
                contender("dispatch", "forward", problem, 1.10, **later),
                contender("quack", "forward", problem, 1.0, **later)]
        self.path.write_text(jsonl(*made), encoding="utf-8")
        one, = targets.standings(measurements.load(self.path).records).values()
        self.assertAlmostEqual(one.of_peer, 1.10)
        self.assertAlmostEqual(one.share, 100 / 1.10)

    def test_a_later_run_without_peers_gives_the_share_and_no_ratio(self):
        problem = Problem.of("bf16", 16384, 4096)
        made = [contender("dispatch", "forward", problem, 1.20), contender("torch", "forward", problem, 1.5),
                contender("dispatch", "forward", problem, 1.05, run="2026-01-03T00:00:00Z")]
        self.path.write_text(jsonl(*made), encoding="utf-8")
        one, = targets.standings(measurements.load(self.path).records).values()
        self.assertAlmostEqual(one.of_peer, 1.20 / 1.5)
        self.assertAlmostEqual(one.share, 100 / 1.05)

    def test_the_rows_of_a_table_are_the_judgements(self):
        rows = targets.target_rows(self.standings(campaign(forward_1000=1.04, backward_5120=1.2)))
        self.assertEqual([target.words for target, *_ in rows], [target.words for target in targets.targets()])
        missed = [(target.words, count, total, worst) for target, count, total, worst in rows if count]
        self.assertEqual(missed[0], ("128 MiB, from 256 columns on: % of the copy", 4, 136, "bf16 layer 1000 (96.2)"))
        self.assertEqual(missed[-2:], [
            ("128 MiB, multiples of 1024 up to 8192: % of the triad", 4, 32, "bf16 layer 5120 (83.3)"),
            ("64 MiB: % of the triad", 4, 32, "bf16 layer 5120 (83.3)")])
        means = [worst for target, _, _, worst in rows if isinstance(target, targets.Mean)]
        self.assertEqual(len(means), 4)
        self.assertTrue(all(0.6 < mean < 1.1 for mean, _ in means), means)
        self.assertEqual([of_roof and round(of_roof, 3) for _, of_roof in means], [0.667, None] * 2)

    def test_each_miss_is_in_the_region_that_it_belongs_to(self):
        slow = {f"forward_{cols}": 1.2 for cols in (65, 80, 1023, 4096, 12288, 50257, 262144)}
        found = self.standings(campaign(**slow))
        rows, regions = targets.region_rows(found), {}
        for region, target, *_, worst in rows:
            self.assertEqual(target.direction, "forward")
            regions.setdefault(region, []).append(worst)
        self.assertEqual({region: {worst.split()[2] for worst in found} for region, found in regions.items()}, {
            "single elements: 65 and 127 columns": {"65"}, "rows that start anywhere, up to 12 288 columns": {"1023"},
            "wide rows that start anywhere": {"50257"}, "narrow rows, below 256 columns": {"80"},
            "256 to 8192 columns": {"4096"}, "8193 to 18 432 columns": {"12288"}, "the widest rows": {"262144"}})
        self.assertEqual(sum(count for _, _, count, *_ in rows),
                         sum(count or 0 for _, count, *_ in targets.target_rows(found)))

    def test_a_gap_alone_is_not_met(self):
        status, lines = self.judge(campaign(without=(1152,)))
        self.assertEqual(status, 1)
        self.assertTrue(all(line.startswith("met ") for line in lines[1:]), lines)
        found = targets.standings(measurements.load(self.path).records)
        self.assertEqual({target.words for target in targets.targets() if not targets.judge(target, found)[0]},
                         {target.words for target in targets.targets() if 1152 in {one.cols for one in target.problems}})

    def test_shares_need_no_peer_and_ratios_do(self):
        ours = [record for record in campaign() if record["provider"] == "dispatch"]
        _, lines = self.judge(ours)
        self.assertTrue(all(line.startswith("unmeasured") == ("peer" in line) for line in lines[1:]), lines)

    def test_no_records_are_a_sentence(self):
        status, lines = self.judge([])
        self.assertEqual((status, len(lines)), (2, 1))
        self.path.unlink()
        with contextlib.redirect_stderr(io.StringIO()) as err:
            self.assertEqual(targets.main([str(self.path)]), 2)
        self.assertIn("is not there yet", err.getvalue())

    def test_a_roof_of_other_bytes_than_the_operator_s_is_scaled(self):
        problem = Problem.of("bf16", 1024, 4096)
        record = contender("dispatch", "forward", problem, 1.0)
        record["roof_us"] /= 2
        record["roof_bytes"] //= 2
        self.path.write_text(json.dumps(record), encoding="utf-8")
        one, = targets.standings(measurements.load(self.path).records).values()
        self.assertAlmostEqual(one.share, 100)


def test_the_tables_of_the_page_agree_with_the_data(capsys):
    assert target_tables.main(["--check"]) == 0, capsys.readouterr()
