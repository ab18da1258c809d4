"""Import this before layernorm_chapters to use the package of this repository without installing it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
