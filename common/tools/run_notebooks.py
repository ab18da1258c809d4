#!/usr/bin/env python3
"""Executes the notebooks, or opens them.

    make notebooks-run                                     # all, on the data that common/results/device.py chooses
    make notebooks-run DATA=notebooks/data/h200.csv      # on other data
    make notebooks-run ARGS="notebooks/2*.ipynb"           # some
    make notebooks                                         # opens them in JupyterLab

nbmake executes copies in build/notebooks/; the notebooks themselves stay as they are. Exit status 1 where a cell raised
an error, 2 where the request was wrong.
"""

import argparse
import contextlib
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

from common.results import device
from common.results.problems import DataError

ROOT = Path(__file__).resolve().parents[2]

NOTEBOOKS = ROOT / "notebooks"
EXECUTED = ROOT / "build/notebooks"
CELL_SECONDS = 600  # a cell that needs longer hangs


def execute(paths, executed=EXECUTED):
    """Executes copies of the notebooks in `executed`, up to an error. Returns the exit status."""
    executed.mkdir(parents=True, exist_ok=True)
    copies = [shutil.copy(path, executed) for path in paths]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "--durations=0", "--nbmake", "--overwrite",
         f"--nbmake-timeout={CELL_SECONDS}", *copies],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(NOTEBOOKS)}, check=False).returncode


def unusable():
    """Why the data that the reader named cannot be shown, or None."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # the notebooks say themselves what was skipped
            device.choose_results()
    except DataError as error:
        return str(error)
    return None


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: all")
    parser.add_argument("--open", action="store_true", help="open them in JupyterLab instead")
    options = parser.parse_args(argv)
    for path in options.notebooks:
        if path.suffix != ".ipynb" or not path.is_file():
            print(f"{path} is not a notebook", file=sys.stderr)
            return 2
    if os.environ.get(device.VARIABLE) and (problem := unusable()):
        print(problem, file=sys.stderr)
        return 2
    if options.open:
        root = ["--allow-root"] if os.geteuid() == 0 else []
        os.execv(sys.executable, [sys.executable, "-m", "jupyterlab", f"--notebook-dir={NOTEBOOKS}", *root])
    return execute(options.notebooks or sorted(NOTEBOOKS.glob("*.ipynb")))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
