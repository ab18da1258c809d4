"""What the notebooks about measurements use of common/bench: the records, joined with the chapters, and
the figures of them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "common/bench"))

import plots  # noqa: E402
from book import DIRECTIONS, choose_book  # noqa: E402
from measurements import LARGE, PROGRESSION, SWEEP  # noqa: E402

__all__ = ["DIRECTIONS", "LARGE", "PROGRESSION", "SWEEP", "choose_book", "plots"]
