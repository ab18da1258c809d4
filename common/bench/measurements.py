"""Re-exports common/results for what still imports it from here, and puts the repository's root on the path, which
scripts of this directory lack."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

from common.results.problems import *  # noqa: E402, F403
from common.results.records import *  # noqa: E402, F403
