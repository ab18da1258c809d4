"""gpt_training.py with PyTorch: each norm trains, and what is recorded. On the library's device."""

import contextlib
import io
import itertools
import math
import os
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from common.tools.pytest_fixtures import import_torch

torch = import_torch()
from common.results import peers  # noqa: E402
from common.campaign import gpt_training  # noqa: E402
from common.results import records as measurements  # noqa: E402
from common.results import seeds  # noqa: E402

LIBRARY, DEVICE = None, "cpu"  # those of --build


@pytest.fixture(scope="module", autouse=True)
def of_the_build(library, torch_device):
    global LIBRARY, DEVICE
    LIBRARY, DEVICE = library, torch_device


class Wrong(torch.nn.LayerNorm):
    def forward(self, x):
        return super().forward(x) + 0.1 * x


class Training(unittest.TestCase):
    SMALL = "--steps 4 --width 16 --heads 2 --layers 1 --batch 4 --context 8 --seeds 2 --json".split()

    def train(self, *arguments, norms=None):
        """(exit status, what was printed, the records) of a run of gpt_training.py"""
        with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stdout(io.StringIO()) as out, \
                contextlib.redirect_stderr(io.StringIO()), mock.patch.dict(os.environ, {"LNC_LIBRARY": str(LIBRARY)}), \
                mock.patch.object(gpt_training, "norms", (lambda kind: norms) if norms else gpt_training.norms):
            path = Path(directory) / "training.jsonl"
            status = gpt_training.main([*self.SMALL, str(path), *arguments])
            found = measurements.load_training(path)
            self.assertEqual(found.skipped, 0)
            return status, out.getvalue(), found.records

    def test_each_norm_trains_with_each_seed_and_is_recorded(self):
        for kind in peers.KINDS:
            status, text, runs = self.train("--dtype", "f32", "--kind", kind)
            names = [(run["training"], run["order"]) for run in runs if run["seed"] == 1]
            self.assertEqual(names, [(run["training"], run["order"]) for run in runs if run["seed"] == 2])
            self.assertEqual(names[:2], [seeds.TORCH, seeds.REORDERED])
            self.assertTrue({(name, "as it is") for name in ("enable()", "chapters", "chapters-memory-efficient")} <= set(names))
            self.assertTrue(seeds.is_whole(runs))
            self.assertEqual(status, 1 if "does not agree" in text else 0)
            lasts = seeds.last_losses(runs)
            self.assertNotAlmostEqual(*lasts[seeds.TORCH].values(), places=4)  # first weights and text are others
            for name in lasts:
                self.assertLess(seeds.difference(lasts, name).most, 1e-5, text)
            for run in runs:
                first = run["seed"] == 1
                timed = first and torch.cuda.is_available() and run["order"] == "as it is"
                self.assertEqual((run["schema"], list(run["packages"]), run["steps"]), (2, ["torch"], 4))
                self.assertEqual(("losses" in run, "graph_us" in run), (first, timed))
                if first:
                    self.assertEqual(len(run["losses"]), 4)
                    self.assertAlmostEqual(run["losses"][-1], run["last"], places=3)

    def test_enable_is_on_for_its_own_norm_only(self):
        import layernorm_chapters as ours
        seen = []

        class Spy(torch.nn.LayerNorm):
            def forward(self, x):
                seen.append(ours.operators.load().is_enabled())
                return super().forward(x)

        self.train("--dtype", "f32", norms={"torch": Spy, gpt_training.ENABLE: Spy, "after": Spy})
        own = [list(group) for _, group in itertools.groupby(seen)]
        self.assertEqual([group[0] for group in own], [False, True, False, True, False])
        self.assertEqual(len(own[3]), len(own[4]))  # as often as in the training after it, which is not timed either
        if not torch.cuda.is_available():  # a GPU's first seed is timed, and takes more steps
            self.assertEqual(sum(seen), len(seen) // 4)  # one of four trainings a seed

    def test_norms_share_weights_and_text_of_a_seed_and_reordering_changes_the_order_alone(self):
        given = []

        def spy(options, dtype, norm, batches, seed, timed=False):
            given.append((batches, seed))
            return {"losses": [1.0] * len(batches)}

        with mock.patch.object(gpt_training, "train", spy):
            self.train("--dtype", "f32", norms=dict.fromkeys(("torch", "another"), torch.nn.LayerNorm))
        given = given[-6:]  # on a GPU one comes before them, which warms up
        (one, _), (turned, _), (same, _) = given[:3]
        self.assertTrue(torch.equal(one, same))
        self.assertFalse(torch.equal(one, turned))
        self.assertTrue(torch.equal(one, turned[:, [3, 2, 1, 0]]))
        self.assertFalse(torch.equal(one, given[3][0]))
        self.assertEqual([seed for _, seed in given], [1, 1, 1, 2, 2, 2])
        options = SimpleNamespace(width=16, heads=2, layers=1, context=8, rate=6e-4)
        first = [gpt_training.train(options, torch.float32, torch.nn.LayerNorm, one[:1], seed)["losses"] for seed in (1, 1, 2)]
        self.assertEqual(first[0], first[1])
        self.assertNotEqual(first[0], first[2])

    def test_losses_that_part_are_found(self):
        status, text, runs = self.train("--dtype", "f32", norms={"torch": torch.nn.LayerNorm, "wrong": Wrong})
        self.assertEqual(status, 1)
        self.assertIn("Farther from PyTorch than another order of its sums takes it: wrong, f32.", text)

    def test_a_loss_that_is_no_number_does_not_agree(self):
        class Lost(torch.nn.LayerNorm):
            def forward(self, x):
                return super().forward(x) * float("nan")

        status, text, runs = self.train("--dtype", "f32", norms={"torch": torch.nn.LayerNorm, "lost": Lost})
        self.assertEqual((status, runs[-1]["last"], runs[-1]["training"]), (1, None, "lost"))
        self.assertRegex(text, "lost +no number .* does not agree")

    def test_a_graph_takes_the_steps_that_eager_mode_takes(self):
        if DEVICE != "cuda":
            self.skipTest("graphs need a GPU")
        options = SimpleNamespace(width=64, heads=4, layers=2, context=32, rate=6e-4)
        text, _ = gpt_training.markov_text(40 * 4, 33, 1)
        batches = text.view(40, 4, -1).to(DEVICE)
        for name, norm in gpt_training.norms("layer").items():
            with gpt_training.kernels_of(name):
                in_a_graph = gpt_training.train(options, torch.float32, norm, batches, 1)["losses"]
                with mock.patch.object(gpt_training, "EAGER", 40):  # of 80 steps
                    eager = gpt_training.train(options, torch.float32, norm, batches.repeat(2, 1, 1), 1, timed=True)["losses"]
            for one, other in zip(in_a_graph, eager[:40], strict=True):
                self.assertAlmostEqual(one, other, places=3, msg=name)

    def test_one_seed_is_refused(self):
        with contextlib.redirect_stderr(io.StringIO()) as err, self.assertRaises(SystemExit):
            gpt_training.main(["--seeds", "1"])
        self.assertIn("at least 2", err.getvalue())

    def test_the_text_is_its_seed_s_and_its_entropy_is_below_uniform(self):
        text, entropy = gpt_training.markov_text(50, 20, 1)
        gpt_training.markov_text.cache_clear()
        self.assertTrue(torch.equal(text, gpt_training.markov_text(50, 20, 1)[0]))
        self.assertFalse(torch.equal(text, gpt_training.markov_text(50, 20, 2)[0]))
        self.assertTrue(0.5 < entropy < math.log(gpt_training.VOCABULARY) - 1, entropy)

    def test_all_seeds_draw_from_one_chain(self):
        def pairs(seed):
            """How often one symbol comes after another."""
            text, _ = gpt_training.markov_text(1000, 100, seed)
            both = gpt_training.VOCABULARY * text[:, 2:-1] + text[:, 3:]
            return torch.bincount(both.flatten(), minlength=gpt_training.VOCABULARY**2) / both.numel()

        self.assertLess(float((pairs(1) - pairs(2)).abs().sum()), 0.4)  # of two chains more than 1
