"""Which data the notebooks read, and what they say of bad ones. Needs neither a GPU nor matplotlib."""

import contextlib
import io
import json
import os
import tempfile
import unittest
from pathlib import Path

import book
from made_up import DEVICE, EMULATED, catalogue, jsonl, peer, profile, record, training
from measurements import PROGRESSION, DataError, MissingData


class Choose(unittest.TestCase):
    """A small repository: fwd01, fwd02, bwd01; all but fwd02 are measured."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = Path(directory.name)
        for name in ("fwd01_one", "fwd02_two", "bwd01_one"):
            self.write(f"chapters/{name}/kernel.cu", "")
        self.write(book.CATALOGUE, catalogue(fwd01=("fwd01_one", "One"), fwd02=("fwd02_two", "Two"),
                                             bwd01=("bwd01_one", "One back")))
        self.measured = [record("fwd01", 20.0), record("bwd01", 50.0)]
        self.write(book.DATA, jsonl(*self.measured))
        self.write(book.SOURCE, jsonl(record("bwd01", 80.0, device="A100", l2=None) | {"l2": None}))
        self.addCleanup(os.environ.pop, book.VARIABLE, None)
        os.environ.pop(book.VARIABLE, None)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def choose(self, name=None):
        """(the book, what was said on stderr)"""
        if name:
            os.environ[book.VARIABLE] = str(name)
        with contextlib.redirect_stderr(io.StringIO()) as err:
            return book.choose_book(self.root), err.getvalue()

    def test_the_committed_data_and_who_is_missing_in_them(self):
        chosen, err = self.choose()
        self.assertEqual((chosen.device, chosen.missing("fwd"), err), (DEVICE, ["fwd02"], ""))
        self.assertEqual([row["chapter"] for row in chosen.rows("fwd", [PROGRESSION])], ["fwd01"])
        for words in ("notebooks/data/h100.csv", DEVICE, "left out: fwd02."):
            self.assertIn(words, chosen.about())
        self.assertEqual([row["device"] for row in chosen.source_rows("bwd")], ["A100"])

    def test_a_row(self):
        row = self.choose()[0].rows("fwd", [PROGRESSION])[0]
        moved = 2 * 4 * 1024 * 2048
        self.assertEqual(row["operator_bytes"], moved)
        self.assertAlmostEqual(row["gbps"], moved / 20e3)
        self.assertAlmostEqual(row["of_roof"], 100 * moved / 20e3 / 2000)
        self.assertAlmostEqual(row["roof_us"], moved / 2e6)
        self.assertEqual((row["title"], row["variant"]), ("One", ""))

    def test_a_chapter_that_the_list_lacks_is_named(self):
        self.write("chapters/fwd10_new/kernel.cu", "")
        chosen, err = self.choose()
        self.assertEqual(err, "notebooks/data/chapters.json lacks fwd10; `make tables` writes it anew\n")
        self.assertEqual(list(chosen.chapters), ["fwd01", "fwd02", "bwd01", "fwd10"])

    def test_a_chapter_of_the_reader_s_own_is_in_no_book(self):
        self.write("chapters/my01_from_fwd01/kernel.cu", "")
        self.write(book.LOCAL, jsonl(*self.measured, record("my01", 10.0, direction="forward")))
        chosen, err = self.choose()
        self.assertEqual((chosen.measured.path.name, err), ("local.jsonl", ""))
        self.assertEqual(list(chosen.chapters), ["fwd01", "fwd02", "bwd01"])
        self.assertEqual([row["chapter"] for row in chosen.rows("fwd", [PROGRESSION])], ["fwd01"])
        self.assertEqual(chosen.variant_rows("fwd"), [])

    def test_a_warm_time_and_a_wrong_result_s_stand_beside_no_cold_one(self):
        warm = [record("fwd01", 1.0, l2="warm"), record("fwd02", 2.0, l2="warm")]
        self.write(book.DATA, jsonl(*self.measured, *warm, record("fwd02", 2.0, passed=False)))
        chosen, _ = self.choose()
        self.assertEqual([row["median_us"] for row in chosen.rows("fwd", [PROGRESSION])], [20.0])
        self.assertIn("Left out: 2 records of a warm L2", chosen.about())

    def test_the_readers_own_measurements_come_first(self):
        self.write(book.LOCAL, jsonl(record("fwd01", 9e4, **EMULATED), record("fwd02", 7.0, device="GPU")))
        chosen, _ = self.choose()
        self.assertEqual((chosen.device, [row["median_us"] for row in chosen.rows("fwd", [PROGRESSION])]), ("GPU", [7.0]))
        self.assertEqual(self.choose(book.DATA)[0].device, DEVICE)

    def test_emulated_times_only_where_they_are_named(self):
        self.write(book.LOCAL, jsonl(record("fwd01", 9e4, **EMULATED)))
        self.write("notebooks/data/peers.csv", jsonl(peer("torch", "forward", 9.0, **EMULATED)))
        chosen, err = self.choose()
        self.assertFalse(chosen.emulated)
        self.assertIn("local.jsonl holds no GPU's times", err)
        chosen, _ = self.choose(book.LOCAL)
        self.assertTrue(chosen.emulated)
        self.assertIn("Emulated times", chosen.about())
        row, = chosen.rows("fwd", [PROGRESSION])
        self.assertEqual([row[key] for key in ("cycles", "gbps", "roof_gbps", "of_roof")], [None] * 4)
        self.assertEqual([chosen.source_rows("bwd"), chosen.contenders("fwd")[1], chosen.training_rows()], [[], [], []])

    def test_lines_that_cannot_be_read_are_skipped_counted_and_said(self):
        text = jsonl({**record("fwd02", 1.0), "schema": 3}, *self.measured)
        self.write(book.DATA, text[:-40])
        chosen, err = self.choose()
        self.assertIn("skipped 1 line", err)
        self.assertIn("skipped 1 record of schema 3", err)
        self.assertIn("Skipped in it: 2 lines that could not be read.", chosen.about())
        self.assertEqual((chosen.missing("fwd"), chosen.missing("bwd")), (["fwd02"], ["bwd01"]))

    def test_no_data(self):
        with self.assertRaisesRegex(MissingData, "nowhere.jsonl is not there yet; `make bench JSON="):
            self.choose("notebooks/data/nowhere.jsonl")
        self.write("notebooks/data/empty.jsonl", "")
        chosen, _ = self.choose("notebooks/data/empty.jsonl")
        self.assertIn("holds no measurement", chosen.about())
        self.write("two.jsonl", jsonl(*self.measured, record("fwd02", 1.0, device="B")))
        with self.assertRaisesRegex(DataError, "times of B and NVIDIA H100 80GB HBM3"):
            self.choose("two.jsonl")

    def test_profiles_and_peers_are_of_the_same_device(self):
        self.write("notebooks/data/h100_profile.jsonl", jsonl(profile("fwd01"), profile("fwd01")))
        self.write("notebooks/data/peers_h100.csv", jsonl(*self.OWN, self.TORCH))
        chosen, _ = self.choose()
        row, = chosen.profile_rows("fwd")
        self.assertEqual((row["read_bytes"], row["l2_bytes"]), (2 * 9 * 10**6, 2 * 32 * 1100000))
        self.assertEqual([row["provider"] for row in chosen.contenders("fwd")[1]], ["torch"])
        self.write("notebooks/data/other.jsonl", jsonl(record("fwd01", 20.0, device="GPU")))
        self.write("notebooks/data/other_profile.jsonl", jsonl(profile("fwd01")))
        chosen, _ = self.choose("notebooks/data/other.jsonl")
        self.assertEqual((chosen.profile_rows("fwd"), chosen.contenders("fwd")[1]), ([], []))
        self.assertIn("No peer was measured on this device (GPU).", chosen.about_peers())

    def test_peers_may_stand_in_the_file_itself(self):
        self.write("both.jsonl", jsonl(*self.measured, *self.OWN, self.TORCH))
        self.assertEqual([row["provider"] for row in self.choose("both.jsonl")[0].contenders("fwd")[1]], ["torch"])

    def contend(self, *entries):
        """[(who, µs)] of ours and of the peers, forward, where these are the peers' file; and the book."""
        self.write("notebooks/data/peers_h100.csv", jsonl(*entries))
        chosen, _ = self.choose()
        ours, peers = chosen.contenders("fwd")
        return ([(row["chapter"], row["median_us"]) for row in ours],
                [(row["provider"], row["median_us"]) for row in peers], chosen)

    OWN = [peer("dispatch", "forward", 8.0, chosen="fwd02"), peer("fwd01", "forward", 21.0)]
    TORCH = peer("torch", "forward", 9.0, packages={"torch": "2.11", "quack-kernels": "0.6"})

    def test_kernels_measured_beside_the_peers_are_held_against_them(self):
        ours, peers, chosen = self.contend(*self.OWN, self.TORCH)
        self.assertEqual((ours, peers), ([("fwd02", 8.0), ("fwd01", 21.0)], [("torch", 9.0)]))
        for words in ("in one run", "2026-01-02", "PyTorch 2.11", "QuACK 0.6"):
            self.assertIn(words, chosen.about_peers())
            self.assertIn(words, chosen.about_peers(problems=[PROGRESSION]))
        self.assertIn("No run has peers", chosen.about_peers(problems=[PROGRESSION._replace(rows=1)]))
        pair, = chosen.against_peers("fwd")
        self.assertEqual((pair["title"], pair["peer"], pair["ratio"]), ("Two", "torch", 8 / 9))

    def test_ours_is_what_the_dispatch_chooses_or_the_fastest_chapter_without_it(self):
        faster = peer("fwd01", "forward", 7.0)
        for own, chapter in (([self.OWN[0], faster], "fwd02"), ([faster, peer("fwd02", "forward", 8.0)], "fwd01")):
            pair, = self.contend(*own, self.TORCH)[2].against_peers("fwd")
            self.assertEqual(pair["chapter"], chapter)

    def test_a_problem_is_shown_only_where_one_run_has_both(self):
        later, other = {"run": "2026-01-04T00:00:00Z", "date": "2026-01-04", "roof": 1900.0}, {"rows": 8, "cols": 8}
        ours, peers, chosen = self.contend(
            peer("torch", "forward", 7.0, problem=other), peer("dispatch", "forward", 6.0, problem=other, **later),
            peer("liger", "forward", 9.5), *self.OWN, self.TORCH, peer("torch", "forward", 5.0, **later))
        self.assertEqual(ours, [("fwd02", 8.0), ("fwd01", 21.0)])
        self.assertEqual(peers, [("liger", 9.5), ("torch", 9.0)])
        self.assertNotIn("2026-01-04", chosen.about_peers())
        ours, peers, _ = self.contend(*self.OWN, self.TORCH, peer("dispatch", "forward", 7.5, chosen="fwd01", **later),
                                      peer("torch", "forward", 8.5, **later))
        self.assertEqual((ours, peers), ([("fwd01", 7.5)], [("torch", 8.5)]))

    def test_calls_whose_roofs_agree_are_joined_and_a_run_s_own_times_count_more(self):
        def of(run, roof, provider, median, **more):
            return peer(provider, "forward", median, run=f"2026-01-0{run}T00:00:00Z", roof=roof, **more)

        ours, peers, chosen = self.contend(
            of(3, 2000.0, "dispatch", 8.0, chosen="fwd02"), of(3, 2000.0, "torch", 9.0), of(4, 1990.0, "torch", 7.0),
            of(1, 1985.0, "liger", 9.4), of(2, 2015.0, "liger", 9.5), of(5, 2030.0, "quack", 5.0))
        self.assertEqual((ours, peers), ([("fwd02", 8.0)], [("liger", 9.5), ("torch", 9.0)]))
        self.assertIn("in one run or in calls whose roofs agree within 1 %", chosen.about_peers())
        split = of(1, 2000.0, "dispatch", 8.0, chosen="fwd02"), of(2, 1990.0, "torch", 9.0)
        self.assertEqual(self.contend(*split)[1], [("torch", 9.0)])
        self.assertEqual(self.contend(split[0], of(2, 1970.0, "torch", 9.0))[:2], ([], []))

    def test_peers_of_another_commit_are_joined_and_our_times_of_it_are_not(self):
        def of(run, roof, provider, median, commit):
            more = {"chosen": "fwd02"} if provider == "dispatch" else {}
            return peer(provider, "forward", median, run=f"2026-01-0{run}T00:00:00Z", roof=roof, commit=commit, **more)

        ours, peers, chosen = self.contend(
            of(1, 2000.0, "dispatch", 9.0, "old"), of(1, 2000.0, "torch", 9.0, "old"),
            of(1, 2000.0, "liger", 12.0, "old"), of(2, 2010.0, "dispatch", 6.0, "new"),
            of(2, 2010.0, "liger", 12.0, "new"), of(3, 2040.0, "quack", 5.0, "old"))
        self.assertEqual((ours, sorted(peers)), ([("fwd02", 6.0)], [("liger", 12.0), ("torch", 9.0)]))
        row, = chosen.against_peers("fwd")
        self.assertEqual((row["peer"], row["ratio"]), ("torch", 6.0 / 9.0))

    def test_a_ratio_is_of_one_run_where_a_peer_of_another_run_has_ours_beside_it(self):
        def of(run, roof, provider, median, **more):
            return peer(provider, "forward", median, run=f"2026-01-0{run}T00:00:00Z", roof=roof, **more)

        first = [of(1, 2000.0, "dispatch", 8.0, chosen="fwd02"), of(1, 2000.0, "torch", 10.0),
                 of(1, 2000.0, "liger", 9.0)]
        second = [of(2, 1990.0, "dispatch", 8.4, chosen="fwd01"), of(2, 1990.0, "quack", 9.3)]
        pair, = self.contend(*first, *second)[2].against_peers("fwd")
        self.assertEqual({name: ratios[0] for name, ratios in pair["ratios"].items()},
                         {"torch": 8 / 10, "liger": 8 / 9, "quack": 8.4 / 9.3})
        self.assertEqual([pair[key] for key in ("peer", "ratio", "median_us", "chapter", "run")],
                         ["quack", 8.4 / 9.3, 8.4, "fwd01", "2026-01-02T00:00:00Z"])
        about = self.contend(*first, *second)[2].about_peers()
        self.assertIn("agree within 1 % (each ratio is of times of one run)", about)
        alone = self.contend(*first, second[1])[2]  # without ours beside it: ours of the other run
        self.assertEqual(alone.against_peers("fwd")[0]["ratios"]["quack"][0], 8 / 9.3)
        self.assertNotIn("each ratio", alone.about_peers())

    def test_of_two_runs_of_a_commit_that_do_not_agree_the_one_with_more_peers_counts(self):
        def of(run, provider, median, **more):
            return peer(provider, "forward", median, run=f"2026-01-0{run}T00:00:00Z", roof=2000.0 + 50 * run, **more)

        first = [of(1, "dispatch", 8.0, chosen="fwd02"), of(1, "torch", 10.0), of(1, "liger", 9.0)]
        second = [of(2, "dispatch", 8.4, chosen="fwd02"), of(2, "quack", 7.0)]
        self.assertEqual([name for name, _ in self.contend(*first, *second)[1]], ["torch", "liger"])
        newer = [{**record, "commit": "newer"} for record in second]
        self.assertEqual([name for name, _ in self.contend(*first, *newer)[1]], ["quack"])

    def test_the_widths_are_the_first_gpu_s_that_has_them_beside_the_book_s_own(self):
        width = {"dtype": "bf16", "rows": 16384, "cols": 4096}

        def widths(device):
            return [peer(name, "forward", us, problem=width, device=device)
                    for name, us in (("dispatch", 9.0), ("torch", 10.0))]

        def device():
            return [(one.device, len(one.width_rows())) for one in [self.choose()[0].with_widths()]]

        self.write("notebooks/data/peers_h100.csv", jsonl(*self.OWN, self.TORCH))
        self.assertEqual(device(), [(DEVICE, 0)])
        self.write("notebooks/data/peers_other.csv", jsonl(*widths("Another GPU")))
        self.write("notebooks/data/peers_third.csv", jsonl(*widths("A third GPU")))
        self.assertEqual(device(), [("Another GPU", 1)])
        self.assertEqual([len(self.choose()[0].against_peers("fwd")), len(self.choose()[0].width_rows())], [1, 0])
        self.write("notebooks/data/peers_h100.csv", jsonl(*self.OWN, self.TORCH, *widths(DEVICE)))
        self.assertEqual(device(), [(DEVICE, 1)])

    def test_wrong_peers_warm_ones_and_times_with_the_host_s_are_left_out(self):
        ours, peers, _ = self.contend(*self.OWN, self.TORCH, peer("torch", "forward", 30.0, host="counted"),
                                      peer("liger", "forward", 2.0, l2="warm"),
                                      peer("quack", "forward", 1.0, passed=False))
        self.assertEqual((len(ours), peers), (2, [("torch", 9.0)]))

    def test_without_our_kernels_beside_them_no_peer_is_shown(self):
        ours, peers, chosen = self.contend(self.TORCH)
        self.assertEqual((ours, peers, chosen.against_peers("fwd")), ([], [], []))
        self.assertIn("No run has peers and our kernels", chosen.about_peers())

    def test_the_reader_s_own_peers_count_in_notebooks_and_not_in_tables(self):
        self.write(book.LOCAL_PEERS, jsonl(*self.OWN, self.TORCH))
        self.assertEqual(len(self.choose()[0].contenders("fwd")[1]), 1)
        self.assertEqual(book.open_book(self.root).contenders("fwd")[1], [])

    def train(self, name, *entries):
        """(the book with this file of gpt_training.py, what was said on stderr)"""
        self.write(name, jsonl(*entries))
        return self.choose()

    def test_training_rows(self):
        chosen, err = self.train(book.TRAINING, *training("bf16"), *training("f32", seeds=4))
        rows = chosen.training_rows()
        self.assertEqual([row["norm"] for row in rows[:6]],
                         ["torch", "torch, reordered", "torch.compile", "enable()", "ours", "ours, memory-efficient"])
        self.assertEqual(([row["seeds"] for row in rows], err), ([3] * 6 + [4] * 6, ""))
        lasts = [run["last"] for run in training("bf16") if run["training"] == "torch"]
        self.assertAlmostEqual(rows[0]["last"], sum(lasts[::2]) / 3)
        self.assertEqual((rows[0]["agrees"], rows[0]["differences"], rows[4]["agrees"]), (None, [0, 0, 0], True))
        away = [reordered - torch for torch, reordered in zip(lasts[::2], lasts[1::2])]
        self.assertEqual(rows[1]["differences"], away)
        self.assertEqual({row["rounding"] for row in rows[:6]}, {max(map(abs, away))})
        self.assertAlmostEqual(rows[0]["entropy"], 1.82)
        self.assertNotIn("losses", rows[0])
        self.assertEqual(chosen.training_rows("rms"), [])

    def test_of_two_trainings_the_newest_whole_one_counts(self):
        def run(number):
            return training("bf16", run=str(number), step_us=float(number))

        for cut, step, seeds in (([], 2.0, 3), (run(3)[:11], 2.0, 3), (run(3)[:12], 3.0, 2), (run(3)[:14], 3.0, 2)):
            runs = [*run(1), *run(2)]
            rows = self.train(book.TRAINING, *runs, *cut)[0].training_rows()
            self.assertEqual([(row["step_us"], row["seeds"]) for row in rows], [(step, seeds)] * 6)

    def test_trainings_of_another_model_or_device_stand_apart(self):
        for other in ({"width": 64}, {"device": "GPU"}, {"steps": 20}):
            runs = [*training("bf16", run="1"), *training("f32", run="2", **other)]
            self.assertEqual({row["dtype"] for row in self.train(book.TRAINING, *runs)[0].training_rows()}, {"f32"})

    def test_the_reader_s_own_training_comes_first_if_it_is_a_gpu_s(self):
        self.write(book.TRAINING, jsonl(*training("bf16")))
        chosen, _ = self.train(book.LOCAL_TRAINING, *training("bf16", device="GPU"))
        self.assertEqual({row["device"] for row in chosen.training_rows()}, {"GPU"})
        self.assertEqual({row["device"] for row in book.open_book(self.root).training_rows()}, {DEVICE})
        for entries in (training("bf16", **EMULATED), training("bf16", seeds=1), ()):
            chosen, err = self.train(book.LOCAL_TRAINING, *entries)
            self.assertEqual({row["device"] for row in chosen.training_rows()}, {DEVICE})
            self.assertIn("local_training.jsonl holds no whole training on a GPU", err)

    def test_a_training_cut_short_is_skipped_counted_and_said(self):
        torch = training("f32")[0]
        broken = [json.dumps(entry) + "\n" for entry in (
            {"schema": 2, "training": "torch"}, [], {**torch, "losses": ["low"]}, {**torch, "last": "low"},
            {key: value for key, value in torch.items() if key != "last"},
            {key: value for key, value in torch.items() if key != "seed"})]
        whole = jsonl(*training("bf16"))
        self.write(book.TRAINING, whole[:-40] + "\n" + "".join(broken))
        chosen, err = self.choose()
        self.assertEqual([(row["norm"], row["seeds"]) for row in chosen.training_rows()][4:],
                         [("ours", 2), ("ours, memory-efficient", 2)])
        self.assertIn("training_h100.jsonl: skipped 7 lines", err)
        self.assertIn("\nSkipped in it: 7 lines that could not be read.", chosen.about_training())
