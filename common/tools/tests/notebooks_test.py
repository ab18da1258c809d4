"""What `make notebooks-run` refuses. That the notebooks run is for it to show."""

from common.tools import run_notebooks


def test_refuses_what_is_no_notebook(capsys):
    assert run_notebooks.main(["nowhere.ipynb"]) == 2
    assert "nowhere.ipynb is not a notebook" in capsys.readouterr().err


def test_a_file_of_data_that_is_not_there_is_a_sentence(capsys, monkeypatch):
    monkeypatch.setenv("LNC_DATA", "notebooks/data/nowhere.jsonl")
    assert run_notebooks.main([]) == 2
    line, = capsys.readouterr().err.splitlines()
    assert "nowhere.jsonl is not there yet; `make bench JSON=" in line
