"""The reader of records, the problem sets, the list of chapters, and numbers for a reader."""

import json
from pathlib import Path

import pytest

from common.bench.tests.made_up import catalogue, jsonl, record
from common.results import chapters, problems, records
from common.results.problems import PROGRESSION, SETS, DataError
from common.results.records import MissingData, load

ROOT = Path(__file__).resolve().parents[3]
MEASURED = ROOT / "common/bench/tests/measured.jsonl"  # two runs of seven chapters


@pytest.fixture
def read(tmp_path):
    def read(*entries, **options):
        path = tmp_path / "data.jsonl"
        path.write_text("".join(one + "\n" if isinstance(one, str) else jsonl(one) for one in entries), encoding="utf-8")
        return load(path, **options)

    return read


def median(results, *asked, **options):
    found = results.find(*asked, **options)
    return found and found["median_us"]


def test_a_later_run_replaces_an_earlier_one_of_the_same_problem_alone():
    results = load(MEASURED)
    assert (len(results.records), results.skipped) == (7, 0)
    found = results.find("fwd01", PROGRESSION)
    assert (found["median_us"], found["date"]) == (1332.19, "2026-11-21")
    for other in (PROGRESSION._replace(dtype="f16"), PROGRESSION._replace(kind="rms")):
        assert results.find("fwd01", other) is None


WHOLE = record("fwd01", 1.0)


@pytest.mark.parametrize("broken", [
    '{"schema":2,"chapter":"fwd01","problem":', "[1, 2]", '{"schema":2,"chapter":"fwd01"}', {**WHOLE, "median_us": "fast"},
    {**WHOLE, "l2": "tepid"}, {**WHOLE, "problem": {**WHOLE["problem"], "rows": "10"}}, {**WHOLE, "samples": True},
    {**WHOLE, "problem": {**WHOLE["problem"], "options": {"dropout": []}}}, {**WHOLE, "rel_err": "none"},
    {**WHOLE, "chapter": 1}, {key: value for key, value in WHOLE.items() if key != "operator_bytes"},
    {key: value for key, value in WHOLE.items() if key != "roof_bytes"},
    {key: value for key, value in WHOLE.items() if key != "direction"}])
def test_a_line_that_holds_no_record_is_skipped_counted_and_named(read, broken, capsys):
    results = read(WHOLE, broken)
    assert (len(results.records), results.skipped) == (1, 1)
    assert capsys.readouterr().err.endswith(
        "data.jsonl: skipped 1 line that could not be read as a record (cut short?): line 2\n")


def test_of_many_lines_the_first_are_named_and_another_schema_is_said_apart(read, capsys):
    results = read(*7 * ["[]"], {"device": "GPU"}, *({**WHOLE, "schema": schema} for schema in (1, 1, 3)), WHOLE)
    assert (len(results.records), results.skipped) == (1, 11)
    err = capsys.readouterr().err
    for words in ("skipped 7 lines that could not be read as a record (cut short?): lines 1, 2, 3, 4, 5 and 2 more",
                  "skipped 1 line of no schema; this reads schema 2: line 8",
                  "skipped 2 lines of schema 1; this reads schema 2: lines 9, 10",
                  "skipped 1 line of schema 3; this reads schema 2: line 11"):
        assert f"data.jsonl: {words}\n" in err


def test_a_warm_record_and_one_with_the_host_s_time_replace_and_are_taken_for_no_other(read):
    cold, warm = record("fwd01", 9.0), record("fwd01", 1.0, l2="warm")
    counted = record("torch", 30.0, "forward", host="counted")
    for entries in ((cold, warm), (warm, cold)):
        results = read(*entries, counted)
        assert (median(results, "fwd01", PROGRESSION), median(results, "fwd01", PROGRESSION, l2="warm")) == (9.0, 1.0)
        assert results.find("torch", PROGRESSION, "forward") is None
        assert [one["median_us"] for one in results.only().records] == [9.0]
    assert read(warm).find("fwd01", PROGRESSION) is None


def test_the_newest_counts_whatever_its_clock_and_of_peers_each_run(read):
    results = read(record("fwd01", 9.0, clock=2), record("fwd01", 8.0, clock=1))
    assert [(one["median_us"], one["clock"]) for one in results.records] == [(8.0, 1)]
    assert len(read(*(record("torch", 1.0, "forward", run=run) for run in "112")).records) == 2


def test_options_are_part_of_the_problem(read):
    options = {"dropout": 0.10000000149011612, "residual": "f32", "second_input": True, "second_affine": True,
               "group": 0, "later": 3}
    results = read(record("fwd07", 9.0, options=options), record("fwd07", 8.0))
    asked = PROGRESSION.with_options(dropout=0.1, residual="f32", second_input=True, second_affine=True, later=3)
    assert (median(results, "fwd07", asked), median(results, "fwd07", PROGRESSION)) == (9.0, 8.0)
    assert asked.words == "dropout 0.1, parallel, residual f32, later 3"


def test_a_missing_file_names_the_command_that_makes_it(tmp_path):
    with pytest.raises(MissingData, match="nowhere.jsonl is not there yet; `make bench JSON=.*nowhere.jsonl` measures it"):
        load(tmp_path / "nowhere.jsonl")
    with pytest.raises(MissingData, match=r"results.archive add .*nowhere.csv"):
        load(tmp_path / "nowhere.csv")
    with pytest.raises(DataError, match="cannot read"):
        load(tmp_path)


def test_does_not_mix_emulated_times_with_a_gpu_s(read):
    entries = record("fwd01", 1.0), record("fwd02", 1.0, backend="cpu")
    with pytest.raises(records.MixedBackends, match="emulated"):
        read(*entries)
    assert [one["chapter"] for one in read(*entries, backend="cpu").records] == ["fwd02"]


# --- Problem sets ---


def sets(tmp_path, text):
    path = tmp_path / "problem_sets.json"
    path.write_text(text, encoding="utf-8")
    return problems.load_sets(path)


def test_a_list_stands_for_each_of_its_values(tmp_path):
    found = sets(tmp_path, '{"two": {"problems": [{"dtype": "f16", "rows": 4, "cols": [1, 2], "dropout": [0.0, 0.1]}, '
                           '{"kind": "rms", "dtype": "f32", "rows": 1, "cols": 1}]}}')
    assert [(one.cols, one.kind, one.words) for one in found["two"]] == [
        (1, "layer", ""), (1, "layer", "dropout 0.1"), (2, "layer", ""), (2, "layer", "dropout 0.1"), (1, "rms", "")]


@pytest.mark.parametrize("text, why", [
    ('{"odd": {"problems": [{"dtype": "f32", "rows": 1, "cols": 1, "colour": 2}]}}',
     "the set 'odd' has an unknown field 'colour'; the fields are kind, dtype"),
    ("", ""), ('{"a": {}}', "'problems'"), ('{"a": {"problems": [{"rows": 1}]}}', "missing")])
def test_what_is_no_set_is_a_sentence_that_names_the_file(tmp_path, text, why):
    with pytest.raises(DataError, match=f"problem_sets.json holds no problem sets: .*{why}"):
        sets(tmp_path, text)


def test_the_sweep_has_its_widths_and_the_wide_set_its_one_size():
    assert [one.cols for one in problems.SWEEP] == [512 * i for i in range(2, 32)]
    for one in problems.WIDE[1:]:
        assert one.rows * one.cols == {"f32": 1 << 27, "bf16": 1 << 28}[one.dtype]


@pytest.mark.parametrize("name, sizes", [("widths", {128}), ("smaller", {64, 8})])
def test_the_sets_of_widths_hold_as_many_whole_rows_as_fit_of_both_types_and_kinds(name, sizes):
    assert len(set(SETS[name])) == len(SETS[name])
    of_width = {}
    for one in SETS[name]:
        row = one.cols * {"f32": 4, "bf16": 2}[one.dtype]
        size, = (size for size in sizes if (size << 20) - row < one.rows * row <= size << 20)
        of_width.setdefault((one.cols, size), []).append((one.dtype, one.kind))
    for found in of_width.values():
        assert sorted(found) == [(dtype, kind) for dtype in ("bf16", "f32") for kind in ("layer", "rms")]


# --- Chapters ---


def test_a_chapter_may_be_read_before_a_later_one_in_place_of_after_its_parent():
    places = {"fwd01": ("", ""), "fwd02": ("fwd01", "bwd02"), "fwd03": ("fwd02", "bwd02"), "bwd01": ("fwd01", ""),
              "bwd02": ("bwd01", ""), "bwd03": ("bwd02", "")}
    found = {name: chapters.Chapter(name, Path(), "", "", parent=parent, road=chapters.MAIN, before=before)
             for name, (parent, before) in places.items()}
    line = chapters.ChapterMap(found)
    assert [one.id for one in line.main_line()] == ["fwd01", "bwd01", "fwd02", "fwd03", "bwd02", "bwd03"]
    assert line.after(found["bwd01"]).id == "fwd02"


def test_what_is_no_list_of_chapters_is_a_sentence(tmp_path):
    with pytest.raises(MissingData, match="chapters.json is not there yet; `make tables`"):
        chapters.load_catalogue(tmp_path)
    path = tmp_path / problems.CATALOGUE
    path.parent.mkdir(parents=True)
    for text, why in (("{", "cannot read"), ("[]", "no list of chapters"), ('{"chapters": []}', "no list of library")):
        path.write_text(text)
        with pytest.raises(DataError, match=why):
            chapters.load_catalogue(tmp_path)
    path.write_text(catalogue(fwd01=("fwd01_gone", "")))
    assert chapters.find_chapters(tmp_path) == {}  # without its file


def test_each_chapter_of_this_repository_has_its_file_and_the_dispatch_names_no_other():
    found = chapters.load_catalogue()
    for chapter in found["chapters"] + found["library"]:  # a newer directory may wait for `make tables`
        assert (ROOT / chapter["file"]).exists()
    assert set(chapters.dispatched(found)) <= {kernel["id"] for kernel in found["chapters"] + found["library"]}


def test_a_kernel_s_former_id_is_today_s():
    commits, kernels = records.former_ids()
    commit, (old, new) = min(commits), next(pair for pair in kernels.items() if pair[1])
    assert records.parse(json.loads(jsonl(record(old, 1.0, commit=commit))))["chapter"] == new
    assert records.parse(record(old, 1.0))["chapter"] == old


# --- Numbers ---


def test_numbers_have_significant_digits_and_groups():
    written = [records.number(value).replace("\u202f", "_") for value in
               (1330.69, 34.11, 44.8, 9.216, 0, 0.196, 74824.24, None)]
    assert written == ["1_331", "34.11", "44.80", "9.216", "0", "0.196", "74_824", "–"]
    assert records.count(7482424).replace("\u202f", "_") == "7_482_424"
