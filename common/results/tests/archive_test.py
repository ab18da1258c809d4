"""Committed tables give back what the programs wrote, and say which record they cannot read."""

import json

import pytest

from common.bench.tests.made_up import jsonl, peer, profile, record
from common.results import archive, store
from common.results.records import DataError, load


@pytest.fixture
def add(tmp_path, capsys):
    def add(*records, text=""):
        file = tmp_path / "mine.jsonl"
        file.write_text(jsonl(*records) + text, encoding="utf-8")
        archive.main(["add", str(tmp_path / "gpu.csv"), str(file)])
        return capsys.readouterr()

    return add


def test_a_table_gives_back_every_field(add, tmp_path, capsys):
    odd = {"schema": 2, "chapter": "1e5", "problem": {"kind": "rms", "rows": 3, "options": {"dropout": 0.1}},
           "note": 'a "word", and\na line', "none": None, "flag": False, "list": [1, {"a": "b"}], "tiny": 1e-05, "empty": ""}
    whole = record("fwd01", 12.5)
    launch = profile("fwd01")
    add(whole, odd, {"trial": "no schema", "device": "A GPU"}, launch, launch)
    assert store.read(tmp_path / "gpu.csv") == [whole, odd, {"trial": "no schema", "device": "A GPU"}, launch, launch]
    archive.main(["show", str(tmp_path / "gpu.csv")])
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()][:2] == [whole, odd]


def test_a_newer_record_takes_the_place_of_the_older(add, tmp_path):
    add(record("fwd01", 9.0), record("fwd02", 8.0))
    said = add(record("fwd01", 7.0, commit="abc"), record("fwd03", 6.0))
    assert said.out.endswith("1 records added, 1 replaced\n")
    times = {each["chapter"]: each["median_us"] for each in load(tmp_path / "gpu.csv").records}
    assert times == {"fwd01": 7.0, "fwd02": 8.0, "fwd03": 6.0}
    assert len(store.read_table(tmp_path / "runs.csv")) == 2


def test_runs_are_shared_by_the_tables_of_a_directory(add, tmp_path):
    add(record("fwd01", 9.0))
    store.write(tmp_path / "other.csv", [record("fwd02", 1.0)])
    assert [len(store.read_table(tmp_path / name)) for name in store.NAMES] == [1, 1]
    assert store.read(tmp_path / "gpu.csv") == [record("fwd01", 9.0)]


def test_what_a_newer_run_replaces_everywhere_is_dropped(add, tmp_path):
    old, new = ([peer(name, "forward", us, run=run, **more) for name, more in
                 (("dispatch", {"chosen": "fwd06"}), ("torch", {}), ("fwd06", {}))] for run, us in (("1", 9.0), ("2", 8.0)))
    add(record("fwd01", 9.0), *old, *new[:2])
    archive.main(["prune", str(tmp_path / "gpu.csv")])
    assert store.read(tmp_path / "gpu.csv") == [record("fwd01", 9.0), old[0], old[2], *new[:2]]  # a chapter's newest run
    add(new[2])
    archive.main(["prune", str(tmp_path / "gpu.csv")])
    assert store.read(tmp_path / "gpu.csv") == [record("fwd01", 9.0), *new]


def test_what_cannot_be_read_is_named(add, tmp_path, capsys):
    said = add(record("fwd01", 9.0), text="cut sho")
    assert said.err == f"{tmp_path}/mine.jsonl, line 2: not a record, skipped\n"
    assert said.out.endswith("1 records added, 0 replaced, 1 skipped\n")
    table = tmp_path / "gpu.csv"
    table.write_text(table.read_text().replace("\n0,", "\n7,"), encoding="utf-8")
    with pytest.raises(DataError, match=r"gpu.csv, row 2: no row 7 in runs.csv"):
        load(table)
    with pytest.raises(SystemExit, match="no row 7"):
        archive.main(["show", str(table)])
    for words in (["add", str(tmp_path / "x.jsonl"), "y"], ["show", str(tmp_path / "runs.csv")]):
        with pytest.raises(SystemExit):
            archive.main(words)
        assert "a table's name ends in .csv" in capsys.readouterr().err


def test_nothing_is_written_without_a_record(tmp_path):
    (tmp_path / "mine.jsonl").write_text("\n")
    with pytest.raises(SystemExit, match="no record in .*make bench"):
        archive.main(["add", str(tmp_path / "gpu.csv"), str(tmp_path / "mine.jsonl")])
    assert not (tmp_path / "gpu.csv").exists()
