"""The figures: drawn from made-up data, every word inside the picture and none over another."""

from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from matplotlib.text import Text

from common.results.profiles import parse_profile
from common.bench.tests.made_up import DEVICE, EMULATED, peer, profile, record, records, training
from common.results import figures, peer_figures
from common.results.chapters import KINDS, Chapter
from common.results.device import DeviceResults
from common.results.drawing import digest, drawn_from, shortened, spread_of, spread_out, write_figure
from common.results.peer_figures import FARTHEST
from common.results.problems import PROGRESSION, SWEEP, WIDTHS
from common.results.records import Measurements, parse, parse_training

DIRECTIONS = ("fwd", "bwd")


def read(*entries, parse=parse):
    return Measurements(Path(), [parse(entry) for entry in entries])


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
    profiles = {(name, PROGRESSION): [parse_profile(profile(name, device=device))] for name in found}
    trained = [one for dtype in ("bf16", "f32") * bool(chapters) for one in training(dtype, device=device)]
    return DeviceResults(Path(), found, {}, read(*made), profiles, read(record("bwd01", 900.0, device="A100")),
                         read(*peers), read(*trained, parse=parse_training))


def rows_of_widths(widths=(64, 192, 768, 1152, 4096, 16384), device=DEVICE, kinds=("layer", "rms")):
    """What book.against_peers() returns of 128 MiB with these widths, in both directions, kinds and types."""
    made = []
    for place, problem in enumerate(one for one in WIDTHS if one.cols in widths and one.kind in kinds):
        for direction in ("forward", "backward"):
            shape = {"problem": problem._asdict() | {"options": {}}, "device": device}
            made += [peer(name, direction, us + place % 5, **shape, **({"chosen": "fwd01"} if name == "dispatch" else {}))
                     for name, us in (("dispatch", 140.0), ("torch", 170.0), ("torch.compile", 150.0))]
    book = replace(make_book(0), peers=read(*made))
    return [row for direction in DIRECTIONS for kind in kinds for row in book.against_peers(direction, kind)]


def drawings(book):
    """{name: what draws it} of README.md's figures."""
    both = [row for d in DIRECTIONS for row in book.rows(d, [PROGRESSION])]
    sweep = [row for d in DIRECTIONS for row in book.rows(d, SWEEP)]
    return {"sweep": lambda: figures.sweep(sweep),
            "map": lambda: peer_figures.peers_map([row for d in DIRECTIONS for row in book.against_peers(d)]),
            "progression": lambda: figures.progression(both),
            "training": lambda: peer_figures.training([] if book.emulated else book.training_rows())}


def texts_of(figure):
    """The words that a figure shows, and their boxes in pixels: what is asked to draw itself."""
    shown, draw = [], Text.draw
    with mock.patch.object(Text, "draw", lambda text, renderer: (shown.append(text), draw(text, renderer))):
        figure.draw_without_rendering()
    # Text's own box: an annotation's would hold its line, too.
    return [(text.get_text(), Text.get_window_extent(text)) for text in dict.fromkeys(shown)
            if text.get_visible() and text.get_text().strip()]


def check_words(name, figure):
    width, height = figure.get_size_inches() * figure.dpi
    texts = texts_of(figure)
    for i, (words, box) in enumerate(texts):
        inside = -1 <= box.x0 and box.x1 <= width + 1 and -1 <= box.y0 and box.y1 <= height + 1
        assert inside, f"{name}: '{words}' leaves the picture"
        for other, its in texts[i + 1:]:
            across = min(box.x1, its.x1) - max(box.x0, its.x0)
            down = min(box.y1, its.y1) - max(box.y0, its.y0)
            assert not (across > 1 and down > 3), f"{name}: '{words}' lies over '{other}'"


def check_large(name, figure):
    """GitHub shows a picture in its own size, in a column of 948 pixels."""
    assert figure.get_size_inches()[0] * 96 <= 948, name
    assert not [text.get_text() for text in figure.findobj(Text)
                if text.get_visible() and text.get_text().strip() and text.get_fontsize() < 10], name


@pytest.mark.parametrize("chapters, device, left_out", [(1, "NVIDIA H200", {"sweep"}),
                                                        (13, DEVICE, set())])
def test_every_word_of_a_figure_can_be_read_and_its_title_names_the_device(chapters, device, left_out):
    for name, draw in drawings(make_book(chapters, device=device)).items():
        if name not in left_out:
            figure = draw()
            check_words(name, figure)
            check_large(name, figure)
            assert device in figure.get_suptitle(), name
            assert {"training": "ours", "map": "forward 0.91"}.get(name, "fwd") in figure.get_label(), name


@pytest.mark.parametrize("kinds", [("layer", "rms"), ("rms",)])
def test_the_widths_are_drawn_for_both_directions_beside_the_roof_and_the_fastest_peer(kinds):
    rows = rows_of_widths(kinds=kinds)
    assert len(rows) == 6 * 2 * 2 * len(kinds)
    figure = peer_figures.widths(rows)
    check_words("widths", figure)
    words = [text for text, _ in texts_of(figure)]
    for title in ("forward: % of a copy", "backward: % of a triad", "forward: ours / fastest peer"):
        assert title in words
    title = figure.get_suptitle().replace("\n", " ")
    made = f"128 MiB, bf16 and f32, cold L2, on {DEVICE}, driver 1, CUDA 13.0, 2026-01-02, commit c"
    for words in (made, "RMS norm 0.9"):
        assert words in title
    assert len(figure.axes) == 4
    for axes in figure.axes:
        curves = {line.get_label(): len(line.get_xdata()) for line in axes.lines if len(line.get_xdata()) > 2}
        assert curves == {f"{KINDS[kind]}, {dtype}": 6 for kind in kinds for dtype in ("bf16", "f32")}
    shown = f"of torch, torch.compile, at 6 widths from 64 to 16384 columns, bf16 and f32, on {DEVICE}"
    assert shown in figure.get_label()
    for row in figure.axes[:2], figure.axes[2:]:
        assert row[0].get_ylim() == row[1].get_ylim()  # so that forward and backward can be compared
    check_large("widths", figure)


def test_two_drawings_that_differ_in_the_last_digits_of_their_layout_are_one_file():
    drawn = [f'<path clip-path="url(#{a})"/><path clip-path="url(#{b})"/><clipPath id="{a}"/><clipPath id="{b}"/>'
             for a, b in (("p8744f40c90", "p0123456789"), ("p7de817f42f", "pabcdef0123"))]
    assert shortened(drawn[0]) == shortened(drawn[1]) != drawn[0]
    assert shortened(drawn[0]).count("clip1") == 2


def test_one_width_alone_is_no_picture(capsys):
    assert peer_figures.widths(rows_of_widths((4096,))) is None
    assert "hold no width of the list" in capsys.readouterr().out


def test_emulated_times_are_labelled_and_stand_alone(capsys):
    drawn = {name: draw() for name, draw in drawings(make_book(2, backend="cpu")).items()}
    figure = drawn.pop("progression")
    assert set(drawn.values()) == {None}
    assert "Emulated times rank nothing on a GPU" in figure.get_suptitle()
    words = " ".join(text for text, _ in texts_of(figure))
    assert "roof" not in words and "emulated µs" in words
    assert "these data hold no value of more than one width" in capsys.readouterr().out


def test_without_rows_there_is_no_figure():
    for draw in (figures.progression, figures.sweep, figures.groups, figures.fused, figures.traffic, figures.waits,
                 peer_figures.peers_map, peer_figures.widths, peer_figures.training):
        assert draw([]) is None


def test_the_same_data_give_the_same_file_with_a_title_and_words_for_those_who_do_not_see_it(tmp_path):
    rows = make_book(2).rows("fwd", [PROGRESSION])
    paths = [tmp_path / name for name in ("a.svg", "b.svg")]
    for path in paths:
        assert write_figure(figures.progression, rows, path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert drawn_from(paths[0]) == digest(rows)
    assert drawn_from(tmp_path / "c.svg") is None
    text = paths[0].read_text(encoding="utf-8")
    assert "<title>Forward falls from 1\u202f678 to 62.9 µs, 13 % of the roof " in text
    assert "From fwd01 to fwd02: forward falls from 1\u202f678 to 62.9 µs" in text


def test_the_fall_is_the_main_lines_and_side_roads_are_hollow():
    book = make_book(4)
    road = {"fwd02": "numerics", "fwd04": "wide rows"}
    book.chapters = {name: chapter._replace(road=road.get(name, "main line")) for name, chapter in book.chapters.items()}
    figure = figures.progression(book.rows("fwd", [PROGRESSION]))
    fall, *dots = (line for line in figure.axes[0].lines if len(line.get_ydata()) == 2 or line.get_marker() == "o")
    assert list(fall.get_ydata()) == [0, 2]
    hollow = [dot.get_markerfacecolor() == "white" for dot in dots if dot.get_marker() == "o"]
    assert hollow == [False, True, False, True]
    assert "to 47.2 µs" in figure.get_suptitle()  # fwd03's; fwd04 is faster, and beside the line


def test_a_few_chapters_are_in_colour_and_the_best_is_blue():
    book = make_book(13)
    figure = figures.sweep(book.rows("fwd", SWEEP))
    told = [(line.get_color(), line.get_marker()) for line in figure.axes[0].lines if line.get_marker() != "None"]
    assert len(told) == len(set(told)) == 4
    assert [line.get_color() for line in figure.axes[0].lines].count("#bbbbbb") == 9
    assert figures.story(book.rows("fwd", SWEEP))[-1] == "fwd13"
    names = [text for text, _ in texts_of(figure)]
    assert "the roof" in names and sum(text.startswith("fwd") for text in names) == 4


def train(*entries):
    """The figure of these records of gpt_training.py."""
    book = make_book(1)
    book.training = read(*entries, parse=parse_training)
    return peer_figures.training(book.training_rows())


NORMS = ["torch, reordered", "torch.compile", "enable()", "ours", "ours, memory-efficient"]


def test_training_has_a_dot_for_each_seed_and_the_mean_of_them():
    runs = training("bf16", seeds=4)
    figure = train(*runs, *training("f32"))
    check_words("training", figure)
    assert [axes.get_title("left") for axes in figure.axes] == ["bf16, 4 seeds", "f32, 3 seeds"]
    dots = {line.get_label(): line for line in figure.axes[0].lines if line.get_label() in NORMS}
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == list(dots) == NORMS
    found = {(run["training"], run["order"], run["seed"]): run["last"] for run in runs}
    for norm, name in (("torch, reordered", ("torch", "reversed")), ("ours", ("chapters", "as it is"))):
        away = [found[(*name, seed)] - found["torch", "as it is", seed] for seed in range(1, 5)]
        assert list(dots[norm].get_xdata()) == pytest.approx(away)
        bar = figure.axes[0].containers[NORMS.index(norm)]
        assert bar.lines[0].get_xdata() == pytest.approx([sum(away) / 4])
    band = figure.axes[0].patches[0]
    assert band.get_x() + band.get_width() == pytest.approx(max(map(abs, dots[NORMS[0]].get_xdata())))


def test_who_is_farther_from_torch_than_reordering_takes_it_is_named():
    runs = training("bf16")
    assert "Farther" not in train(*runs).get_suptitle()
    for run in runs:
        if run["training"] == "chapters":
            run["last"] += 0.1
    figure = train(*runs)
    assert "Farther than that: ours (bf16)\n" in figure.get_suptitle()
    assert "Farther than that: ours (bf16)." in figure.get_label()
    check_words("training", figure)


def test_losses_that_are_no_numbers_leave_a_gap_and_are_named():
    runs = training("f32") + training("bf16")
    runs[-1]["last"] = None
    figure = train(*runs)
    check_words("training", figure)
    dots = {line.get_label(): line for line in figure.axes[1].lines}
    assert [len(dots[norm].get_xdata()) for norm in NORMS[-2:]] == [3, 2]
    assert "Losses that are no numbers: ours, memory-efficient (bf16)\n" in figure.get_suptitle()
    runs[-6]["last"] = None  # torch's own, without which nothing is compared
    check_words("training", train(*runs))


def test_labels_are_moved_apart_as_little_as_possible():
    assert spread_out([0, 5, 10], 2) == [0, 5, 10]
    assert spread_out([1, 1, 1, 2], 1) == [-0.25, 0.75, 1.75, 2.75]


def test_one_sample_has_no_spread():
    """Not even one of a rounding below 0, which matplotlib refuses."""
    rows = [{"of_roof": 0.1 * i, "median_us": 3.7 * i, "p10_us": 3.7 * i, "p90_us": 3.7 * i} for i in range(1, 99)]
    for end in spread_of(rows, "of_roof"):
        assert end == [row["of_roof"] for row in rows]


def test_the_peers_stand_at_our_time_over_theirs():
    ratios = make_book(2).against_peers("fwd")
    figure = peer_figures.peers_map(ratios)
    dots = [float(line.get_xdata()[0]) for line in figure.axes[0].lines if line.get_marker() in "os^"]
    assert [round(dot, 3) for dot in dots] == [0.909, 0.833, 0.769]
    words = [text for text, _ in texts_of(figure)]
    assert {"torch", "torch.compile", "apex-memory-efficient", "ours", "0.91"} <= set(words)
    assert "forward 0.91 to 0.91\none run, 2026-01-02, on NVIDIA" in figure.get_suptitle()


def test_a_peer_beyond_the_edge_is_said_with_its_number():
    row, = make_book(2).against_peers("fwd")
    row["ratios"]["torch"] = [0.07, 0.072, 0.068]
    figure = peer_figures.peers_map([row])
    check_words("peers", figure)
    assert "torch 0.07" in [text for text, _ in texts_of(figure)]
    assert figure.axes[0].get_xlim()[0] == FARTHEST
