"""The tables in the texts, made from made-up records. They need no GPU, and no matplotlib."""

import pytest

from common.bench import profile_chapter
from common.bench.tests.made_up import DEVICE, Repository, jsonl, peer, record, training
from common.results import chapter_tables, device, drawing, machine_tables, peer_tables, problems, tables
from common.results.chapters import MAIN
from common.results.problems import PROGRESSION, ROOT, SETS

TESTS = ROOT / "common/bench/tests"
NOTES = "chapters/bwd02_warp_per_row/notes.md"
PEERS = "notebooks/data/peers_h100.csv"
LARGE = {"dtype": "bf16", "rows": 131072, "cols": 4096}
CHAPTERS = {"fwd01": ("fwd01_thread_per_row", "One thread per row"), "fwd99": ("fwd99_future", "Not measured"),
            "bwd01": ("bwd01_thread_per_row", "Atomics"), "bwd02": ("bwd02_warp_per_row", "One warp per row")}
ROADS = {"bwd01": ("fwd01", MAIN), "bwd02": ("bwd01", MAIN), "fwd99": ("fwd01", "numerics")}


class Tables(Repository):
    """Four chapters, one of them not measured."""

    def __init__(self, root, capsys):
        super().__init__(root)
        self.capsys = capsys
        self.list_chapters(ROADS, **CHAPTERS)
        self.write(device.DATA, (TESTS / "measured.jsonl").read_text())
        self.write(device.SOURCE, (ROOT / device.SOURCE).read_text())

    def run(self, *arguments):
        """The exit status; self.out and self.err have what was said."""
        status = tables.main(list(arguments), self.root)
        self.out, self.err = self.capsys.readouterr()
        return status

    def make(self, *requests, file="README.md"):
        """A file's text with these tables."""
        self.write(file, "".join(f"<!-- table: {request} -->\n<!-- end table -->\n" for request in requests))
        assert self.run() == 0, self.err
        return self.text(file)

@pytest.fixture
def repo(tmp_path, capsys, monkeypatch):
    repo = Tables(tmp_path, capsys)
    monkeypatch.setattr(drawing, "write_figure", lambda draw, rows, path: repo.write(path, f"data {drawing.digest(rows)}"))
    return repo


# --- Markers and the program ---


def test_a_table_leaves_the_text_around_it(repo):
    repo.write("README.md", "# Title\n\n<!-- table: progression -->\n<!-- end table -->\n\nEnd.\n")
    assert repo.run() == 0
    assert repo.text().startswith("# Title\n\n<!-- table: progression -->\n\n|")
    assert repo.text().endswith("\n\n<!-- end table -->\n\nEnd.\n")
    waiting = "<!-- table: measured fwd99 -->\n\n<!-- end table -->\n"  # a new chapter's, for its first measurement
    repo.write("README.md", waiting)
    assert (repo.run(), repo.text()) == (0, waiting)


def test_check_finds_a_changed_digit_and_a_figure_of_other_data_and_writes_nothing(repo):
    repo.make("measured bwd02", file=NOTES)
    right = repo.make("progression")
    assert (repo.run("--check"), repo.out, repo.err) == (0, "", "")
    changed = {"README.md": right.replace("45.28", "45.27"), "notebooks/figures/progression.svg": "data 0123456789abcdef"}
    for name, text in changed.items():
        repo.write(name, text)
    assert repo.run("--check") == 1
    for words in ("README.md:1: the table 'progression'", "45.27", "45.28", "progression.svg was not drawn from these data"):
        assert words in repo.out
    assert "notes.md:" not in repo.out
    assert {name: repo.text(name) for name in changed} == changed


@pytest.mark.parametrize("text, why", [
    ("\n<!-- table: progresion -->\n<!-- end table -->", "README.md:2: there is no table 'progresion'; choose from "),
    ("<!-- table: measured bwd77 -->\n<!-- end table -->", "README.md:1: the table 'measured bwd77' names no kernel"),
    ("<!-- table: progression -->\n", "README.md:1: the table 'progression' is not closed"),
    ("<!-- table: map -->\n<!-- table: progression -->\n<!-- end table -->", "README.md:1: the table 'map' is not closed"),
    ("a\n\n<!-- end table -->\n", "README.md:3: <!-- end table --> ends no table"),
    ("\n<!-- table: source common/y.h add -->\n<!-- end table -->", "README.md:2: cannot read common/y.h")])
def test_a_marker_that_means_nothing_is_a_sentence_and_changes_no_file(repo, text, why):
    repo.write("README.md", text)
    repo.write(NOTES, "<!-- table: profile bwd02 -->\n<!-- end table -->\n")
    assert repo.run() == 2
    assert why in repo.err
    if "choose from" in why:
        for one in ("map, ", "results, ", "peers rms, ", "against rms, ", "steps <chapter>, ", "source <file> <name>"):
            assert one in repo.err
    assert repo.text() == text and "Not measured" not in repo.text(NOTES)


def test_a_part_of_a_kernel_is_the_lines_around_its_words_without_the_marks_of_the_exercise(repo):
    repo.write("chapters/bwd02_warp_per_row/kernel.cu", "int a;\n\n  // exercise\n  int b;  // [1]\n    int c;\n\nint d;\n")
    repo.make("part bwd02 [1]")
    assert "```cpp\nint b;  // [1]\n  int c;\n```" in repo.text()
    for words, why in (("[2]", "0 parts of bwd02's kernel.cu contain '[2]'"), ("int", "3 parts of bwd02's kernel.cu")):
        repo.write("README.md", f"<!-- table: part bwd02 {words} -->\n<!-- end table -->\n")
        assert repo.run() == 2 and why in repo.err


def test_a_table_may_be_in_any_readme_and_in_a_chapter_s_two_texts_and_nowhere_else(repo):
    here = ["chapters/README.md", "chapters/bwd02_warp_per_row/lab.md", "common/bench/README.md",
            "common/simt/tests/README.md", "reference_cpu/README.md", "notebooks/README.md"]
    for name in (*here, "NEWS.md"):
        repo.make("head bwd02", file=name)
    assert [name for name in (*here, "NEWS.md") if "*Main line." not in repo.text(name)] == ["NEWS.md"]


def test_a_marker_in_a_code_block_is_an_example(repo):
    repo.write("README.md", text := "```\n<!-- table: whatever -->\n```\n")
    assert (repo.run(), repo.text()) == (0, text)


def test_without_matplotlib_the_figure_stays(repo, monkeypatch):
    monkeypatch.setattr(drawing, "write_figure", lambda *_: False)
    assert repo.run() == 0 and "matplotlib is not installed" in repo.out


def test_without_data_each_time_is_missing_and_a_command_named(repo):
    (repo.root / device.DATA).unlink()
    asked = {"steps bwd02": "make bench CH=bwd02", "measured bwd02": "make bench", "variants bwd02": "make bench CH=bwd02",
             "groups bwd02": "make bench CH=bwd02", "profile bwd02": "make profile CH=bwd02", "results": "make peers",
             "counted bwd02": "make count CH=bwd02", "peers": "make peers",
             **dict.fromkeys(("machine", "constants", "roofs", "machine strides", "machine flight"), machine_tables.COMMAND),
             "against rms": "make peers", "widths": 'make peers ARGS="--set widths"', "picture peers": "make peers",
             "training": "make library && python3 -m common.campaign.gpt_training",
             "host calls": "make library && python3 -m common.campaign.host_time"}
    text = repo.make("progression", *asked)
    assert "h100.csv is not there yet" in repo.err
    assert "| Atomics | – | fwd01 |  | – | – | – | – | 7 482 424 |\n" in text
    for request, command in asked.items():
        own = text[text.index(f"<!-- table: {request} -->"):]
        assert f"Not measured yet; run `{command}`." in own[:own.index("<!-- end table -->")], request
    assert not (repo.root / "notebooks/figures/progression.svg").exists()
    assert repo.run("--check") == 0


def test_emulated_times_and_two_devices_are_no_table(repo):
    for entries, why in (((record("fwd01", 1.0, backend="cpu"),), "emulated"),
                         ((record("fwd01", 1.0, device="A"), record("fwd02", 1.0, device="B")), "one device")):
        repo.write(device.DATA, *entries)
        assert repo.run() == 2 and why in repo.err


def test_the_tables_of_this_repository_agree_with_its_data(capsys):
    if not (ROOT / device.DATA).exists():
        pytest.skip(f"{device.DATA} is not there yet, so no table can disagree with it")
    assert tables.main(["--check"]) == 0, capsys.readouterr()


# --- What the committed texts cannot show ---


def test_a_head_names_the_road_and_what_comes_before_and_after(repo):
    assert repo.make("head fwd99").split("\n")[2] == (
        "*Side road: numerics. Before: [fwd01 · One thread per row](chapters/fwd01_thread_per_row/notes.md). Back to the "
        "main line: [bwd01 · Atomics](chapters/bwd01_thread_per_row/notes.md).*")
    repo.write("chapters/bwd02_warp_per_row/questions.md", "")
    assert repo.make("head bwd02", file=NOTES).split("\n")[2] == (  # in a lesson, links start there
        "*Main line. Before: [bwd01 · Atomics](../bwd01_thread_per_row/notes.md). At the end: "
        "[check yourself](questions.md).*")
    repo.write("chapters/fwd50_new/kernel.cu", "")
    assert "\n*Not on the map yet.*\n" in repo.make("head fwd50")


def test_the_progression_has_each_measured_chapter(repo):
    text = repo.make("progression")
    assert ("| [bwd02](chapters/bwd02_warp_per_row/notes.md) | One warp per row | 45.28 | bwd01 | × 56.7 | 82 675 | 556 | "
            "30.2 | 25.19 | 251 740 |\n") in text
    assert "fwd99" not in text  # newer than the data: the next run adds it


def test_steps_of_a_first_chapter_have_no_parent_and_those_of_a_wrong_one_no_times(repo):
    repo.write(device.DATA, record("fwd01", 100.0), record("bwd02", 50.0), record("bwd01", 50.0, passed=False))
    assert "--: |\n| **bwd01** | – | – | – | – |\n| a triad | – | – | – | – |\n\nNot measured yet; run" in repo.make("steps bwd01")


def test_measured_shows_what_is_missing_wrong_or_cut_short(repo):
    cut, failed = ({"dtype": "f16", "rows": 4096, "cols": cols} for cols in (8192, 4096))
    repo.write(device.DATA, (TESTS / "measured.jsonl").read_text() + jsonl(
        record("bwd02", 200.0, problem=cut, cut_short=True), record("bwd02", 20.0, problem=failed, passed=False),
        record("bwd02", 50.0, problem={"dtype": "f16", "rows": 4096, "cols": 1024}, passed=None)))
    text = repo.make("measured bwd02")
    for row in ("f32, 1024 × 2048 | 45.28 | 43.84–46.59 | 556 | 30.2 | 25.19 | 31",
                "f16, 4096 × 8192 | 200.0 | 194.0–208.0 | 1 007 | 50.3 | 201.4 | 31 †",
                "f16, 4096 × 4096 | – | – | – | – | 100.7 | –", "bf16, 131072 × 8192 | – | – | – | – | – | –"):
        assert f"\n| {row} |\n" in text
    assert "\n\n† cut short" in text and "\n\nWithout times, because the check failed: bwd02 on f16, 4096 × 4096.\n" in text


def test_a_variant_without_its_parts_and_a_profile_that_lacks_the_prediction(repo):
    repo.write(device.DATA, record("bwd02", 45.28), record("bwd02", 10.0, options={"prenorm": True}), record(
        "bwd02", 20.0, options={"dropout": 0.1, "residual": "same"}, parts_us=35.0, parts_bytes=50364416))
    text = repo.make("variants bwd02")
    assert "| dropout 0.1, residual | 20.00 | 19.40–20.80 | 1 258 | 62.9 | 25.18 | 35.00 | × 1.75 | × 2.00 |\n" in text
    assert "| prenorm | 10.00 | 9.700–10.40 | 2 517 | 125.8 | 25.18 | – | – | – |\n" in text
    profile_chapter.main(["--csv", str(TESTS / "ncu.csv"), "--json", str(repo.root / "notebooks/data/h100_profile.csv")])
    text = repo.make("profile bwd02")
    for row in ("device memory read | 16.82 MB", "device memory, predicted | 25.18 MB", "L2 sectors reduced | 786 432"):
        assert f"\n| {row} |" in text


def test_groups_are_of_one_option_alone_and_name_those_that_failed(repo):
    large = {"dtype": "bf16", "rows": 16384, "cols": 4096}
    repo.write(device.DATA, record("bwd02", 20.0, options={"group": 16}), record("bwd02", 40.0, options={"group": 2}),
               record("bwd01", 20.0, options={"group": 4}), record("bwd02", 20.0, options={"group": 128}, passed=False),
               record("bwd02", 20.0, problem=large, options={"group": 8, "mixed": True}))
    text = repo.make("groups bwd02")
    assert "--: |\n| 2 | 40.00 | 31.5 | – | – |\n| 16 | 20.00 | 62.9 | – | – |\n\nEach time" in text
    assert "check failed: bwd02 on f32, 1024 × 2048, group 128." in text


def test_without_roofs_ours_are_compared_with_the_peers_alone(repo):
    repo.write(PEERS, *(peer(name, "forward", us, roof_us=None, roof_bytes=None) for name, us in (("fwd01", 8.0), ("torch", 9.0))))
    text = repo.make("peers", "against layer")
    assert "| f32, 1024 × 2048 | – | **8.000** | fwd01 | 9.000 | 0.89 |\n" in text and "in the geometric mean.\n" in text


def test_a_peer_of_another_run_or_problem_than_ours_is_not_shown(repo):
    own = peer("dispatch", "forward", 8.0, chosen="fwd01")
    for other in (peer("torch", "forward", 30.0, run="later", roof=1900.0), peer("torch", "forward", 30.0, problem={"rows": 7})):
        repo.write(PEERS, own, other)
        text = repo.make("peers", "against layer")
        assert text.count("Not measured yet; run `make peers`.") == 2 and "30.00" not in text


def test_the_problems_of_the_small_tables_are_measured_and_the_results_have_eight_rows_at_most():
    assert 2 * len(peer_tables.RESULTS) <= 8
    for chosen, measured in ((peer_tables.RESULTS, SETS["peers"]), (chapter_tables.NARROW_STEPS, problems.NARROW),
                             (chapter_tables.STEPS, (PROGRESSION, *problems.LARGE)),
                             (chapter_tables.FUSION_STEPS, (*SETS["fused"], *SETS["residual"])),
                             (chapter_tables.UNALIGNED_STEPS, problems.ODD)):
        assert set(chosen) <= set(measured)


def of_widths(times, cols, directions=("forward",), chosen=problems.WIDTHS, **fields):
    """Records of providers on some of the sets' widths; times: {provider: µs, or a function of the problem}."""
    return [peer(name, direction, us(one) if callable(us) else us, problem=one._asdict() | {"options": {}}, **fields)
            for one in chosen if one.cols in cols for direction in directions for name, us in times.items()]


def test_widths_of_another_gpu_are_shown_by_its_name(repo):
    def widths(us, name):
        made = of_widths({"dispatch": us, "torch": 200.0, "liger": 150.0}, (768, 1024, 1152), device=name)
        return [one for one in made if one["problem"]["dtype"] == "bf16"
                and (one["provider"], one["problem"]["cols"]) != ("liger", 1024)]

    repo.write("notebooks/data/peers_other.csv", *widths(165.0, "Another GPU"))
    text = repo.make("widths sum", "peers")
    assert "Ahead at 1, behind at 2; at worst 1.10 of liger's, at 768 columns." in text
    assert "The peers are torch, liger (at 4 of 6). Another GPU, driver" in text
    assert text.count("Not measured yet") == 1  # the peers' table is of the committed data's own GPU
    repo.write(PEERS, *widths(150.5, DEVICE))
    text = repo.make("widths sum")
    assert "level within 1 % at 2; at worst 1.00 of liger's" in text and "Another GPU" not in text


def test_a_line_of_the_machine_s_figures_that_cannot_be_read_is_named(repo):
    figures = {"SM clock": 2.0, "latency: L2": 280, "bandwidth: L2, read": 7.44}
    repo.write(machine_tables.MACHINE, jsonl(*({"figure": name, "value": value} for name, value in figures.items())) + '{"fig')
    assert "| L2 | the GPU | 50 MB | 280 | 140 | 7.4 |\n| device memory | the GPU | 80 GB | – | – | – |" in repo.make("machine")
    assert "machine_h100.jsonl: skipped 1 line that could not be read as a record (cut short?): line 4" in repo.err


def test_a_constant_has_its_spread_in_the_unit_that_the_lessons_take_and_one_not_measured_is_missing(repo):
    repo.write(machine_tables.MACHINE, *(
        {"figure": name, "value": value, "unit": unit} | dict(zip(("low", "high"), ends)) for name, value, unit, *ends in (
            ("SM clock", 2.0, "GHz"), ("latency: device memory", 700, "cycles", 690, 720),
            ("meeting: warp_sum", 150.6, "cycles", 150, 151), ("events around a launch", 3.89, "us", 3.85, 4.0))))
    text = repo.make("constants")
    for row in ("launch: an empty kernel, between two events | 3.9 µs | 3.89 | 3.85–4.00 |  ",
                "a wait for 1 load from device memory | 0.35 µs | 0.350 | 0.345–0.360 | 700 cycles ",
                "`warp_sum` | 151 cycles | 151 | 150–151 | 0.0753 µs ",
                "… for 16 independent loads | 0.51 µs | – | – |  ", "clock of a multiprocessor | 1.98 GHz | 2.00 | – |  "):
        assert f"\n| {row}|\n" in text


def test_the_model_s_times_of_the_roofs_and_what_it_misses(repo):
    repo.write(machine_tables.MACHINE, {"figure": "copy of 8 MiB", "value": 10.5, "unit": "us", "low": 10.4, "high": 10.6},
               {"figure": "triad of 1024 MiB", "value": 1055.0, "unit": "us"}, {"figure": "lanes 16 floats apart: useful", "value": 0.18},
               {"figure": "8 KB on the way a multiprocessor", "value": 1.74, "low": 1.7, "high": 1.75})
    text = repo.make("roofs", "machine strides", "machine flight")
    for row in ("copy, 8 MiB | 16.78 | 9.84 | 10.5 | 10.4–10.6 | +0.7 | 1.60", "triad, 8 MiB | 25.17 | 12.6 | – | – | – | –",
                "triad, 1024 MiB | 3 221 | 1 078 | 1 055 | – | −23.0 | 3.05", "16 floats | 32 | 0.180 | –",
                "KB in flight per multiprocessor | 8", "TB/s | 1.74", "lowest–highest | 1.70–1.75"):
        assert f"\n| {row} |\n" in text


@pytest.mark.parametrize("constant", machine_tables.CONSTANTS, ids=lambda one: one.figure)
def test_the_lessons_take_what_is_measured(constant):
    figures = machine_tables.read_figures(ROOT)
    value, scale = machine_tables.measured(constant, figures, machine_tables.clock_of(figures))
    if value is None:
        pytest.skip(f"'{constant.figure}' is not measured yet")
    low, high = (figures[constant.figure].get(end, value / scale) * scale for end in ("low", "high"))
    taken, room = float(constant.taken), constant.tolerance
    assert low * (1 - room) <= taken <= high * (1 + room), f"lessons take {constant.taken} for {value:.3g}: correct them all"


def test_chapter_zero_s_sentences_say_what_its_table_of_constants_says():
    notes = (ROOT / "chapters/copy00_machine/notes.md").read_text(encoding="utf-8")
    taken = {one.figure: one.taken for one in machine_tables.CONSTANTS}
    for sentence in (
            "waits {latency: device memory} µs for one load, {at once: 4 cold loads} for four independent loads together, "
            "{at once: 8 cold loads} for eight, and {at once: 16 cold loads} for sixteen",
            "lines occupies it for {L1: a request to 32 lines} cycles",
            "A kernel that does nothing takes {events around a launch} µs",
            "second, small kernel in the same measurement adds about {a second kernel, empty, behind the first} µs",
            "Device memory delivers {bandwidth: copy of 1024 MiB} TB/s, and a byte takes {latency: device memory} µs",
            "memory takes {latency: device memory} µs, one from L2 {latency: L2}, and one from L1 {latency: L1}"):
        for figure, value in taken.items():
            sentence = sentence.replace(f"{{{figure}}}", value)
        assert sentence in " ".join(notes.split())


def test_training_names_which_norm_does_not_agree(repo):
    runs = training("bf16")
    away = {"torch.compile": (0.0, 0.0, 0.0), "chapters": (0.03, 0.05, 0.07), "chapters-memory-efficient": (0, 0, None),
            "enable()": (-0.01, 0.033, -0.05)}
    torch = {run["seed"]: run["last"] for run in runs if (run["training"], run["order"]) == ("torch", "as it is")}
    for run in runs:
        more = 0.01 * (run["order"] == "reversed") if run["training"] == "torch" else away[run["training"]][run["seed"] - 1]
        run["last"] = None if more is None else round(torch[run["seed"]] + more, 6)
    repo.write(device.TRAINING, *runs, *training("f32", seeds=2, kind="rms", norms=["chapters"]))
    text = repo.make("training")
    for row in ("bf16 | torch | 3 | 2.6000 | – | – | 41.23 | 40.12 | 6 543",
                "bf16 | torch, reordered | 3 | 2.6100 | +1.0e-2 ± 0.0e0 | 1.0e-2 | – | – | –",
                "bf16 | enable() | 3 | 2.5910 | −9.0e-3 ± 1.0e-1 | 5.0e-2 | 38.23 | 37.42 | 6 243",
                "bf16 | ours, memory-efficient | 3 | – | – | – |", "f32, RMS norm | ours | 2 |"):
        assert f"\n| {row}" in text
    assert "These do not: ours, bf16; ours, memory-efficient, bf16. A step" in text
    assert "Farther than that: ours (bf16). Losses that are no numbers: ours, memory-efficient (bf16).](" in text
    assert (repo.root / "notebooks/figures/training.svg").exists()


@pytest.mark.parametrize("change", [{"backend": "cpu"}, {"seed": 1}, {"seed": None}])
def test_an_emulated_training_and_one_with_one_seed_make_no_table_and_no_figure(repo, change):
    repo.write(device.TRAINING, *({**run, **change} for run in training("bf16")))
    assert "Not measured yet" in repo.make("training")
    assert not (repo.root / "notebooks/figures/training.svg").exists()


