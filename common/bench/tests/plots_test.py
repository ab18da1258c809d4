#!/usr/bin/env python3
"""The figures: drawn from made-up data, every word inside the picture and none over another.

    bash common/setup/python.sh common/bench/tests/plots_test.py      exit status 77: no matplotlib
"""

import contextlib
import io
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import plots  # noqa: E402
from book import Book, Chapter  # noqa: E402
from made_up import DEVICE, EMULATED, jsonl, peer, profile, record, records, training  # noqa: E402
from measurements import LARGE, PROGRESSION, SWEEP, load, load_training  # noqa: E402
from profile_chapter import load_profiles  # noqa: E402

DIRECTIONS = ("fwd", "bwd")


def load_text(loader, text):
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "data.jsonl"
        path.write_text(text, encoding="utf-8")
        return loader(path)


def make_book(chapters, backend="cuda", device=DEVICE):
    """A book with this many chapters a direction."""
    own = EMULATED if backend == "cpu" else {"device": device}
    ids = {d: [f"{d}{i + 1:02d}" for i in range(chapters)] for d in DIRECTIONS}
    made = [r for names in ids.values() if names for r in records(names, **own)]
    found = {name: Chapter(name, Path(name), "An idea with a fairly long title", "rows a block")
             for names in ids.values() for name in names}
    names = ("dispatch", "torch", "torch.compile", "apex-memory-efficient") if chapters and backend == "cuda" else ()
    peers = [peer(name, direction, 10.0 + i, device=device, **({} if i else {"chosen": f"{direction[0]}wd01"}))
             for direction in ("forward", "backward") for i, name in enumerate(names)]
    return Book(Path(), found, load_text(load, jsonl(*made)),
                load_text(load_profiles, jsonl(*(profile(name, device=device) for name in found))),
                load_text(load, jsonl(record("bwd01", 900.0, device="A100"))),
                load_text(load, jsonl(*peers)),
                load_text(load_training, jsonl(*(r for dtype in ("bf16", "f32") * bool(chapters)
                                                 for r in training(dtype, device=device)))))


def draw_all(book):
    """[(name, figure or None)] of everything that the notebooks and README.md show."""
    drawn, ratios = [], []
    for d in DIRECTIONS:
        one, many = book.rows(d, [PROGRESSION]), book.rows(d, SWEEP + LARGE)
        drawn += [("cycles", plots.cycles(one, book.source_rows(d))), ("waterfall", plots.waterfall(one)),
                  ("time", plots.over_columns(many)), ("gbps", plots.over_columns(many, "gbps")),
                  ("of_roof", plots.over_columns(many, "of_roof", log=False)),
                  ("groups", plots.groups(book.variant_rows(d))), ("fused", plots.fused(book.variant_rows(d))),
                  ("traffic", plots.traffic(book.profile_rows(d))), ("waits", plots.waits(book.profile_rows(d))),
                  ("under_roof", plots.under_roof(one + many, *book.contenders(d)))]
        ratios += book.against_peers(d)
    both = [row for d in DIRECTIONS for row in book.rows(d, [PROGRESSION])]
    sweep = [row for d in DIRECTIONS for row in book.rows(d, SWEEP)]
    return drawn + [("map", plots.peers_map(ratios)), ("progression", plots.progression(both)),
                    ("sweep", plots.over_columns(sweep, "gbps")),
                    ("training", plots.training([] if book.emulated else book.training_rows()))]


def texts_of(figure):
    """The words that a figure shows, and their boxes in pixels: what is asked to draw itself."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    shown, draw = [], Text.draw
    with mock.patch.object(Text, "draw", lambda text, renderer: (shown.append(text), draw(text, renderer))):
        FigureCanvasAgg(figure).draw()
    # Text's own box: an annotation's would hold its line, too.
    return [(text.get_text(), Text.get_window_extent(text)) for text in dict.fromkeys(shown)
            if text.get_visible() and text.get_text().strip()]


class Figures(unittest.TestCase):
    def draw(self, book):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            drawn = draw_all(book)
        return drawn, out.getvalue()

    def check_words(self, name, figure):
        width, height = figure.canvas.get_width_height()
        texts = texts_of(figure)
        for words, box in texts:
            inside = -1 <= box.x0 and box.x1 <= width + 1 and -1 <= box.y0 and box.y1 <= height + 1
            self.assertTrue(inside, f"{name}: '{words}' leaves the picture")
        for i, (words, box) in enumerate(texts):
            for other, its in texts[i + 1:]:
                across = min(box.x1, its.x1) - max(box.x0, its.x0)
                down = min(box.y1, its.y1) - max(box.y0, its.y0)
                self.assertFalse(across > 1 and down > 3, f"{name}: '{words}' lies over '{other}'")

    def test_all_are_legible_with_few_and_with_many_chapters(self):
        for chapters in (1, 13):
            drawn, _ = self.draw(make_book(chapters))
            for name, figure in drawn:
                with self.subTest(f"{name}, {chapters} chapters"):
                    if figure is None:
                        self.assertEqual((name, chapters), ("groups", 1))
                    else:
                        self.check_words(name, figure)
                        self.assertIn(DEVICE, figure.get_suptitle())

    def test_another_device_needs_no_edit(self):
        for name, figure in self.draw(make_book(3, device="NVIDIA H200"))[0]:
            self.assertIn("NVIDIA H200", figure.get_suptitle(), name)

    def test_emulated_times_are_labelled_and_stand_alone(self):
        drawn, out = self.draw(make_book(3, backend="cpu"))
        shown = {name: figure for name, figure in drawn if figure is not None and name not in ("traffic", "waits")}
        self.assertEqual(set(shown), {"waterfall", "time", "progression", "fused", "map"} & set(shown))
        for name, figure in shown.items():
            self.assertIn("Emulated times rank nothing on a GPU", figure.get_suptitle(), name)
        for name in ("waterfall", "time", "progression"):
            words = " ".join(text for text, _ in texts_of(shown[name]))
            self.assertNotIn("roof", words)
            self.assertIn("emulated µs", words)
        self.assertIn("these data hold no cycle counts of a GPU", out)

    def test_nothing_to_draw_is_a_sentence(self):
        drawn, out = self.draw(make_book(0))
        self.assertEqual({figure for _, figure in drawn}, {None})
        self.assertEqual(out.count("Nothing to draw: these data hold no "), len(drawn))

    def test_the_same_data_give_the_same_file(self):
        rows = make_book(3).rows("fwd", [PROGRESSION])
        with tempfile.TemporaryDirectory() as directory:
            paths = [Path(directory) / name for name in ("a.svg", "b.svg")]
            for path in paths:
                self.assertTrue(plots.write_figure(plots.progression, rows, path))
            self.assertEqual(paths[0].read_bytes(), paths[1].read_bytes())
            self.assertEqual(plots.drawn_from(paths[0]), plots.digest(rows))
        self.assertIsNone(plots.drawn_from(paths[0]))


    def train(self, *entries):
        """The figure of these records of gpt_training.py."""
        book = make_book(1)
        book.training = load_text(load_training, jsonl(*entries))
        return plots.training(book.training_rows())

    def test_training_shows_each_norm_and_only_differences_from_torch(self):
        above, below = self.train(*training("bf16")).axes
        names = ["torch", "torch.compile", "ours", "ours, memory-efficient"]
        self.assertEqual([line.get_label() for line in above.lines[:-1]], names)
        self.assertEqual([line.get_label() for line in below.lines], names[1:])
        self.assertTrue(1e-4 < min(below.lines[1].get_ydata()[5:]) < 1e-1)

    def test_training_says_what_agrees(self):
        runs = training("bf16")
        self.assertRegex(self.train(*runs).get_suptitle(), r"^Ours differ from torch's losses by 0.\d\d to \d.\d\d")
        runs[-1]["agrees"] = False
        self.assertIn("These do not agree: ours, memory-efficient (bf16)\n", self.train(*runs).get_suptitle())
        self.assertIn("Ours did not train here", self.train(*training("f32", norms=["torch.compile"])).get_suptitle())

    def test_losses_that_are_no_numbers_leave_a_gap(self):
        runs = [{**run, "agrees": False} for run in training("f32", steps=4)] + training("bf16", steps=4)
        runs[-1] |= {"losses": [4.0, 3.0, None, None], "distance": None, "agrees": False}
        figure = self.train(*runs)
        self.check_words("training", figure)
        self.assertEqual(sum(y == y for y in figure.axes[1].lines[3].get_ydata()), 2)


class Words(unittest.TestCase):
    def test_labels_are_moved_apart_as_little_as_possible(self):
        self.assertEqual(plots.spread_out([0, 5, 10], 2), [0, 5, 10])
        self.assertEqual(plots.spread_out([4, 4, 10], 2), [3, 5, 10])
        self.assertEqual(plots.spread_out([1, 1, 1, 2], 1), [-0.25, 0.75, 1.75, 2.75])
        self.assertEqual(plots.spread_out([], 1), [])

    def test_one_sample_has_no_spread(self):
        """Not even one of a rounding below 0, which matplotlib refuses."""
        rows = [{"of_roof": 0.1 * i, "median_us": 3.7 * i, "p10_us": 3.7 * i, "p90_us": 3.7 * i} for i in range(1, 99)]
        for end in plots.spread_of(rows, "of_roof"):
            self.assertEqual(end, [row["of_roof"] for row in rows])

    def test_a_cell_is_a_problem_that_one_run_has_of_both(self):
        ratios = make_book(3).against_peers("fwd")
        words = [text for text, _ in texts_of(plots.peers_map(ratios))]
        self.assertIn("0.91\nfwd01\ntorch", words)
        self.assertTrue(any("Our time over the fastest peer's: 0.91 to 0.91 times forward" in text for text in words))
        self.assertFalse(any("*" in text for text in words))


if __name__ == "__main__":
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        print("skipped: matplotlib is not installed; `make notebooks-run` installs it")
        sys.exit(77)
    unittest.main()
