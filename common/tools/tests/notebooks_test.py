"""What `make notebooks-run` refuses, and that it fails with a cell. That the notebooks run is for it to show."""

import json

import pytest
import run_notebooks


def test_refuses_what_is_no_notebook(capsys):
    assert run_notebooks.main(["nowhere.ipynb"]) == 2
    assert "nowhere.ipynb is not a notebook" in capsys.readouterr().err


def test_a_file_of_data_that_is_not_there_is_a_sentence(capsys, monkeypatch):
    monkeypatch.setenv("LNC_DATA", "notebooks/data/nowhere.jsonl")
    assert run_notebooks.main([]) == 2
    line, = capsys.readouterr().err.splitlines()
    assert "nowhere.jsonl is not there yet; `make bench JSON=" in line


def test_a_cell_that_raises_fails_and_the_copy_has_what_ran_before(tmp_path):
    pytest.importorskip("nbmake", reason="this Python has no nbmake; `bash common/setup/setup.sh --with-notebooks` "
                                         "installs it")
    cells = [{"cell_type": "code", "id": str(index), "metadata": {}, "outputs": [], "execution_count": None,
              "source": source} for index, source in enumerate(("import lab\n6 * 7", "1 / 0"))]
    original = tmp_path / "two_cells.ipynb"
    original.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    before = original.read_text()
    assert run_notebooks.execute([original], tmp_path / "executed") == 1
    assert original.read_text() == before
    executed = json.loads((tmp_path / "executed/two_cells.ipynb").read_text())
    assert executed["cells"][0]["outputs"][0]["data"]["text/plain"] == ["42"]
