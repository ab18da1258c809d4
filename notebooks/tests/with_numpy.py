"""NumPy for a test that needs it: from the project's environment where this Python has none."""

import os
import sys
from pathlib import Path

VENV = Path(__file__).resolve().parents[2] / ".venv"
SKIPPED = 77


def numpy_or_skip():
    """The module. Else starts the test again with the environment's Python, or skips it, and says why."""
    try:
        import numpy
        return numpy
    except ImportError:
        if (VENV / "bin/python").exists() and Path(sys.prefix).resolve() != VENV.resolve():
            os.execv(VENV / "bin/python", [str(VENV / "bin/python"), *sys.argv])
        print("skipped: NumPy is not installed; make tables installs it")
        sys.exit(SKIPPED)
