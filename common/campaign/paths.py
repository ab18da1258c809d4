"""Imported first by the scripts of this folder: puts the repository's root and the rooms that they use on the path."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT), *(str(ROOT / "common" / room) for room in ("bench", "python", "tools"))]
