#!/usr/bin/env python3
"""Executes the notebooks, opens them, or takes their outputs out.

    make notebooks-run                                     # all, on the data that book.py chooses
    make notebooks-run DATA=notebooks/data/h200.csv      # on other data
    make notebooks-run ARGS="notebooks/2*.ipynb"           # some
    make notebooks                                         # opens them in JupyterLab
    make notebooks-strip                                   # before a commit: no outputs, no counts

The executed copies go to build/notebooks/; the notebooks themselves stay as they are. Exit status 1
where a cell raised an error, 2 where the request was wrong.
"""

import argparse
import contextlib
import io
import json
import os
import re
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
import book  # noqa: E402
import measurements  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"
EXECUTED = ROOT / "build/notebooks"
METADATA = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
CELL_SECONDS = 600  # a cell that needs longer hangs


def stripped(text):
    """A notebook's text without outputs, counts, and what an editor adds; it ends in a new line."""
    notebook = json.loads(text)
    notebook["metadata"] = METADATA
    for cell in notebook["cells"]:
        cell["metadata"] = {}
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
    return json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def strip(paths):
    for path in paths:
        text = path.read_text(encoding="utf-8")
        if text != stripped(text):
            path.write_text(stripped(text), encoding="utf-8")
            print(f"{path.name}: outputs removed")


def execute(path, executed=EXECUTED):
    """Executes a notebook into a copy in `executed`. Returns what went wrong, or None."""
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=CELL_SECONDS, kernel_name="python3",
                            resources={"metadata": {"path": str(path.parent)}},
                            extra_arguments=["--IPKernelApp.log_level=ERROR"])
    try:
        client.execute()
    except CellExecutionError as error:
        return re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()
    except (CellTimeoutError, DeadKernelError, RuntimeError) as error:  # the last: it did not start
        return str(error)
    finally:
        executed.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, executed / path.name)
    return None


def execute_all(paths):
    failed = []
    for path in paths:
        print(f"{path.name} …", end=" ", flush=True)
        start = time.monotonic()
        problem = execute(path)
        print(f"{'FAILED after ' if problem else ''}{time.monotonic() - start:.0f} s", flush=True)
        if problem:
            failed.append(path.name)
            print(problem, file=sys.stderr)
    where = EXECUTED.relative_to(ROOT)
    if failed:
        print(f"notebooks: {', '.join(failed)} failed; what ran before the error is in {where}/", file=sys.stderr)
        return 1
    print(f"notebooks: {len(paths)} executed; the copies with their outputs are in {where}/")
    return 0


def unusable():
    """Why the data that the reader named cannot be shown, or None."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # the notebooks say themselves what was skipped
            book.choose_book()
    except measurements.DataError as error:
        return str(error)
    return None


def open_lab():
    """Does not return: JupyterLab takes this process's place."""
    root = ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    os.execv(sys.executable, [sys.executable, "-m", "jupyterlab", f"--notebook-dir={NOTEBOOKS}", *root])


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: all")
    parser.add_argument("--strip", action="store_true", help="take the outputs out instead")
    parser.add_argument("--open", action="store_true", help="open them in JupyterLab instead")
    options = parser.parse_args(argv)
    paths = [path.resolve() for path in options.notebooks] or sorted(NOTEBOOKS.glob("*.ipynb"))
    for path in paths:
        if path.suffix != ".ipynb" or not path.is_file():
            print(f"{path} is not a notebook", file=sys.stderr)
            return 2
    if options.strip:
        strip(paths)
        return 0
    if os.environ.get(book.VARIABLE) and (problem := unusable()):
        print(problem, file=sys.stderr)
        return 2
    if options.open:
        open_lab()
    return execute_all(paths)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
