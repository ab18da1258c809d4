#!/usr/bin/env python3
"""Which data the notebooks read, and what they say of bad ones. Needs neither a GPU nor matplotlib.

    python3 common/bench/tests/book_test.py
"""

import contextlib
import io
import json
import os
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import book  # noqa: E402
from made_up import EMULATED, HEADER, jsonl, peer, profile, record, training  # noqa: E402
from measurements import PROGRESSION, DataError, MissingData  # noqa: E402


class Choose(unittest.TestCase):
    """A small repository: fwd01, fwd02, bwd01; all but fwd02 are measured."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = Path(directory.name)
        for name in ("fwd01_one", "fwd02_two", "bwd01_one"):
            self.write(f"chapters/{name}/kernel.cu", f'    .title = "{name}",\n')
        self.measured = [record("fwd01", 20.0), record("bwd01", 50.0)]
        self.write(book.DATA, jsonl(HEADER, *self.measured))
        self.write(book.SOURCE, jsonl({"device": "A100"}, record("bwd01", 80.0)))
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
        self.assertEqual((chosen.device, err), (HEADER["device"], ""))
        self.assertEqual([row["chapter"] for row in chosen.rows("fwd", [PROGRESSION])], ["fwd01"])
        self.assertEqual(chosen.missing("fwd"), ["fwd02"])
        self.assertIn("Data: notebooks/data/h100.jsonl, NVIDIA H100 80GB HBM3, driver 1", chosen.about())
        self.assertIn("left out: fwd02.", chosen.about())
        self.assertEqual([row["device"] for row in chosen.source_rows("bwd")], ["A100"])

    def test_a_row(self):
        row = self.choose()[0].rows("fwd", [PROGRESSION])[0]
        moved = 2 * 4 * 1024 * 2048
        self.assertEqual(row["operator_bytes"], moved)
        self.assertAlmostEqual(row["gbps"], moved / 20e3)
        self.assertAlmostEqual(row["of_roof"], 100 * moved / 20e3 / 2000)
        self.assertAlmostEqual(row["roof_us"], moved / 2e6)

    def test_the_readers_own_measurements_come_first(self):
        own = {**HEADER, "device": "GPU"}
        self.write(book.LOCAL, jsonl(EMULATED, record("fwd01", 9e4, backend="cpu"), own, record("fwd02", 7.0)))
        chosen, _ = self.choose()
        self.assertEqual((chosen.device, [row["median_us"] for row in chosen.rows("fwd", [PROGRESSION])]), ("GPU", [7.0]))
        self.assertEqual(self.choose(book.DATA)[0].device, HEADER["device"])

    def test_emulated_times_only_where_they_are_named(self):
        self.write(book.LOCAL, jsonl(EMULATED, record("fwd01", 9e4, backend="cpu")))
        self.write("notebooks/data/peers.jsonl", jsonl(EMULATED, peer("torch", "forward", 9.0)))
        chosen, err = self.choose()
        self.assertFalse(chosen.emulated)
        self.assertIn("local.jsonl holds no GPU's times", err)
        chosen, _ = self.choose(book.LOCAL)
        self.assertTrue(chosen.emulated)
        self.assertIn("Emulated times", chosen.about())
        row, = chosen.rows("fwd", [PROGRESSION])
        self.assertEqual([row[key] for key in ("cycles", "gbps", "roof_gbps", "of_roof")], [None] * 4)
        self.assertEqual((chosen.source_rows("bwd"), chosen.peer_rows("fwd"), chosen.profiles), ([], [], {}))

    def test_a_line_cut_short_is_skipped_counted_and_said(self):
        self.write(book.DATA, jsonl(HEADER, *self.measured)[:-40])
        chosen, err = self.choose()
        self.assertIn("skipped 1 line", err)
        self.assertIn("Skipped in it: 1 line that could not be read.", chosen.about())
        self.assertEqual(chosen.missing("bwd"), ["bwd01"])

    def test_no_data(self):
        with self.assertRaisesRegex(MissingData, "nowhere.jsonl is not there yet; `make bench JSON="):
            self.choose("notebooks/data/nowhere.jsonl")
        self.write("notebooks/data/empty.jsonl", "")
        chosen, _ = self.choose("notebooks/data/empty.jsonl")
        self.assertIn("holds no measurement", chosen.about())
        self.write("two.jsonl", jsonl(HEADER, *self.measured, {**HEADER, "device": "B"}, record("fwd02", 1.0)))
        with self.assertRaisesRegex(DataError, "times of B and NVIDIA H100 80GB HBM3"):
            self.choose("two.jsonl")

    def test_a_wrong_result_has_no_time(self):
        self.write(book.DATA, jsonl(HEADER, record("fwd01", 20.0, passed=False)))
        self.assertEqual(self.choose()[0].rows("fwd", [PROGRESSION]), [])

    def test_profiles_and_peers_are_of_the_same_device(self):
        self.write("notebooks/data/h100_profile.jsonl", jsonl(HEADER, profile("fwd01"), profile("fwd01")))
        self.write("notebooks/data/peers_h100.jsonl", jsonl({**HEADER, "torch": "2.11"}, peer("torch", "forward", 9.0)))
        chosen, _ = self.choose()
        row, = chosen.profile_rows("fwd")
        self.assertEqual((row["read_bytes"], row["l2_bytes"]), (2 * 9 * 10**6, 2 * 32 * 1100000))
        self.assertEqual([row["provider"] for row in chosen.peer_rows("fwd")], ["torch"])
        self.assertIn("another run than the chapters, 2026-01-02, PyTorch 2.11", chosen.about_peers())
        self.assertIn("another run", chosen.peer_rows("fwd")[0]["run"])
        other = {**HEADER, "device": "GPU"}
        self.write("notebooks/data/other.jsonl", jsonl(other, *self.measured))
        self.write("notebooks/data/other_profile.jsonl", jsonl(HEADER, profile("fwd01")))
        chosen, _ = self.choose("notebooks/data/other.jsonl")
        self.assertEqual((chosen.profile_rows("fwd"), chosen.peer_rows("fwd")), ([], []))
        self.assertIn("No peer was measured on this device (GPU).", chosen.about_peers())

    def test_peers_in_the_file_itself_are_of_the_same_run(self):
        self.write("both.jsonl", jsonl(HEADER, *self.measured, peer("torch", "backward", 9.0)))
        chosen, _ = self.choose("both.jsonl")
        self.assertEqual([row["run"] for row in chosen.peer_rows("bwd")], [""])
        self.assertIn("with the chapters", chosen.about_peers())

    def contend(self, *entries, chosen=None):
        """[(who, µs, run)] of ours and of the peers, forward, where these are the peers' file."""
        self.write("notebooks/data/peers_h100.jsonl", jsonl(*entries))
        chosen, _ = self.choose(chosen)
        ours, peers = chosen.contenders("fwd")
        return ([(row["chapter"], row["median_us"]) for row in ours],
                [(row["provider"], row["median_us"], bool(row["run"])) for row in peers], chosen)

    RUN = {**HEADER, "run": "2026-01-03T10:00:00Z", "date": "2026-01-03", "torch": "2.11", "quack-kernels": "0.6"}
    OWN = [peer("dispatch", "forward", 8.0, chosen="fwd02"), peer("fwd01", "forward", 21.0)]

    def test_kernels_measured_beside_the_peers_are_held_against_them(self):
        ours, peers, chosen = self.contend(self.RUN, *self.OWN, peer("torch", "forward", 9.0))
        self.assertEqual(ours, [("fwd02", 8.0), ("fwd01", 21.0)])
        self.assertEqual(peers, [("torch", 9.0, False)])
        self.assertEqual(chosen.about_peers(), "The peers were measured beside our kernels, in one run, 2026-01-03, "
                                               "PyTorch 2.11, QuACK 0.6.")
        self.assertEqual(chosen.contenders("fwd")[0][0]["title"], "fwd02_two")

    def test_a_run_with_both_goes_before_newer_peers_and_older_ones_alone(self):
        other = {"rows": 8, "cols": 8}
        ours, peers, chosen = self.contend(HEADER, peer("apex", "forward", 5.0), peer("torch", "forward", 7.0, **other),
                                           self.RUN, *self.OWN, peer("torch", "forward", 9.0),
                                           {**self.RUN, "run": "2026-01-04"}, peer("liger", "forward", 6.0))
        self.assertEqual(ours, [("fwd02", 8.0), ("fwd01", 21.0)])
        self.assertEqual(peers, [("torch", 9.0, False), ("torch", 7.0, True)])
        self.assertEqual({(row["provider"], row["median_us"], bool(row["run"]))
                          for row in chosen.contenders("fwd", everyone=True)[1]},
                         {("torch", 9.0, False), ("liger", 6.0, True), ("apex", 5.0, True), ("torch", 7.0, True)})
        self.assertIn("What that run lacks was measured in another run than the chapters, 2026-01-02",
                      chosen.about_peers())

    def test_wrong_peers_and_times_with_the_launch_are_left_out(self):
        ours, peers, _ = self.contend(self.RUN, *self.OWN, peer("torch", "forward", 9.0),
                                      peer("torch", "forward", 30.0, variant="with launch"),
                                      peer("quack", "forward", 1.0, passed=False))
        self.assertEqual((len(ours), peers), (2, [("torch", 9.0, False)]))

    def test_without_our_kernels_the_chapters_own_times_stand_beside_the_peers(self):
        ours, peers, _ = self.contend(self.RUN, peer("torch", "forward", 9.0))
        self.assertEqual((ours, peers), ([("fwd01", 20.0)], [("torch", 9.0, True)]))

    def test_the_reader_s_own_peers_count_in_notebooks_and_not_in_tables(self):
        self.write(book.LOCAL_PEERS, jsonl(self.RUN, *self.OWN, peer("torch", "forward", 9.0)))
        self.assertEqual(len(self.choose()[0].peer_rows("fwd")), 1)
        self.assertEqual(book.open_book(self.root).peer_rows("fwd"), [])

    def train(self, name, *entries):
        """(the book with this file of gpt_training.py, what was said on stderr)"""
        self.write(name, jsonl(*entries))
        return self.choose()

    def test_without_training_that_is_said(self):
        chosen, err = self.choose()
        self.assertEqual((chosen.training_rows(), err), ([], ""))
        self.assertRegex(chosen.about_training(), "^notebooks/data/training_h100.jsonl holds no training")

    def test_training_rows(self):
        runs = [{**HEADER, "run": "1", "torch": "2.11"}, *training("bf16"), *training("f32")]
        chosen, err = self.train(book.TRAINING, *runs)
        rows = chosen.training_rows()
        self.assertEqual([row["norm"] for row in rows[:6]],
                         ["torch"] * 3 + ["torch.compile", "ours", "ours, memory-efficient"])
        self.assertEqual(([row["noise"] for row in rows[::6]], len(rows), err), ([3e-3, 2e-5], 12, ""))
        self.assertAlmostEqual(rows[0]["last"], sum(rows[0]["losses"][54:]) / 6)
        self.assertEqual(rows[0]["model"], "60 steps of 16 × 512 symbols, 6 layers of width 768")
        self.assertEqual(chosen.training_rows("rms"), [])
        self.assertEqual(chosen.about_training(), "Data: notebooks/data/training_h100.jsonl, NVIDIA H100 80GB HBM3, "
                                                  "driver 1, CUDA 13.0, PyTorch 2.11, 2026-01-02, commit c.")

    def test_of_two_trainings_the_newest_whole_one_counts(self):
        first, second, third = ({**HEADER, "run": str(i)} for i in range(3))
        runs = [first, *training("bf16", step_us=1.0), second, *training("bf16", step_us=2.0), third]
        for cut, step in (([], 2.0), (training("bf16", step_us=3.0)[:3], 2.0), (training("bf16", step_us=3.0), 3.0)):
            rows = self.train(book.TRAINING, *runs, *cut)[0].training_rows()
            self.assertEqual(([row["step_us"] for row in rows]), [step] * 6)

    def test_trainings_of_another_model_or_device_stand_apart(self):
        for other in ({"width": 64}, {"device": "GPU"}, {"steps": 20}):
            runs = [{**HEADER, "run": "1"}, *training("bf16"), {**HEADER, "run": "2"}, *training("f32", **other)]
            if "device" in other:
                runs = [*runs[:7], {**runs[7], **other}, *training("f32")]
            self.assertEqual({row["dtype"] for row in self.train(book.TRAINING, *runs)[0].training_rows()}, {"f32"})

    def test_the_reader_s_own_training_comes_first_if_it_is_a_gpu_s(self):
        self.write(book.TRAINING, jsonl(HEADER, *training("bf16")))
        chosen, _ = self.train(book.LOCAL_TRAINING, {**HEADER, "device": "GPU"}, *training("bf16"))
        self.assertEqual({row["device"] for row in chosen.training_rows()}, {"GPU"})
        self.assertEqual({row["device"] for row in book.open_book(self.root).training_rows()}, {HEADER["device"]})
        for entries in ((EMULATED, *training("bf16")), (HEADER, *training("bf16")[:3]), ()):
            chosen, err = self.train(book.LOCAL_TRAINING, *entries)
            self.assertEqual({row["device"] for row in chosen.training_rows()}, {HEADER["device"]})
            self.assertIn("local_training.jsonl holds no whole training on a GPU", err)
        self.write(book.LOCAL, jsonl(EMULATED, record("fwd01", 9e4, backend="cpu")))
        chosen, _ = self.choose(book.LOCAL)
        self.assertEqual((chosen.training_rows(), chosen.about_training()),
                         ([], "A model trains on a GPU; none stands beside emulated times."))

    def test_a_training_cut_short_is_skipped_counted_and_said(self):
        broken = ['{"training": "torch"}\n', "[]\n", json.dumps({**training("f32")[0], "losses": ["low"]}) + "\n"]
        whole = jsonl(HEADER, *training("bf16"))
        self.write(book.TRAINING, whole[:-40] + "\n" + "".join(broken))
        chosen, err = self.choose()
        self.assertEqual([row["norm"] for row in chosen.training_rows()][3:], ["torch.compile", "ours"])
        self.assertIn("training_h100.jsonl: skipped 4 lines", err)
        self.assertIn("\nSkipped in it: 4 lines that could not be read.", chosen.about_training())


if __name__ == "__main__":
    unittest.main()
