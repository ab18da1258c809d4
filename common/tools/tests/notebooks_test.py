"""The notebooks are committed without outputs. That they run is for `make notebooks-run` to show."""

import contextlib
import io
import json
import os
import tempfile
import unittest
from pathlib import Path

import run_notebooks


def notebook(*cells):
    return json.dumps({"cells": cells, "metadata": {"widgets": {}}, "nbformat": 4, "nbformat_minor": 5})


EXECUTED = {"cell_type": "code", "id": "a", "metadata": {"scrolled": True}, "source": ["1"], "execution_count": 7,
            "outputs": [{"output_type": "execute_result", "data": {"text/plain": ["1"]}, "execution_count": 7}]}


class ThisRepository(unittest.TestCase):
    def test_its_notebooks_are_stripped(self):
        paths = sorted((Path(__file__).resolve().parents[3] / "notebooks").glob("*.ipynb"))
        self.assertTrue(paths)
        for path in paths:
            with self.subTest(path.name):
                text = path.read_text(encoding="utf-8")
                self.assertTrue(text == run_notebooks.stripped(text),
                                f"{path.name} is not as it is committed; `make notebooks-strip` mends it")
                self.assertTrue(all(cell.get("id") for cell in json.loads(text)["cells"]))


class Strip(unittest.TestCase):
    def test_removes_outputs_counts_and_what_an_editor_adds(self):
        text = run_notebooks.stripped(notebook(EXECUTED))
        parsed = json.loads(text)
        self.assertEqual(parsed["cells"], [{**EXECUTED, "metadata": {}, "outputs": [], "execution_count": None}])
        self.assertEqual(parsed["metadata"], run_notebooks.METADATA)
        self.assertEqual(text, run_notebooks.stripped(text))

    def test_writes_only_what_changes(self):
        with tempfile.TemporaryDirectory() as directory:
            paths = [Path(directory) / name for name in ("a.ipynb", "b.ipynb")]
            paths[0].write_text(notebook(EXECUTED), encoding="utf-8")
            paths[1].write_text(run_notebooks.stripped(notebook(EXECUTED)), encoding="utf-8")
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                status = run_notebooks.main(["--strip", *map(str, paths)])
            self.assertEqual((status, out.getvalue()), (0, "a.ipynb: outputs removed\n"))
            self.assertEqual(*(path.read_text(encoding="utf-8") for path in paths))

    def test_refuses_what_is_no_notebook(self):
        with contextlib.redirect_stderr(io.StringIO()) as err:
            self.assertEqual(run_notebooks.main(["nowhere.ipynb"]), 2)
        self.assertIn("nowhere.ipynb is not a notebook", err.getvalue())


class BadData(unittest.TestCase):
    def test_a_file_that_is_not_there_is_a_sentence(self):
        self.addCleanup(os.environ.pop, "LNC_DATA")
        os.environ["LNC_DATA"] = "notebooks/data/nowhere.jsonl"
        with contextlib.redirect_stderr(io.StringIO()) as err:
            self.assertEqual(run_notebooks.main([]), 2)
        self.assertRegex(err.getvalue(), r"^\S+nowhere.jsonl is not there yet; `make bench JSON=\S+` measures it\n$")
