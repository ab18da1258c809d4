"""The version, which CMakeLists.txt says. An installed copy has the one that it was built from."""

import re
from importlib import metadata

from .library import ROOT


def version():
    try:
        project = re.search(r"project\(layernorm_chapters VERSION ([0-9.]+)",
                            (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"))
    except OSError:
        project = None
    return project[1] if project else metadata.version("layernorm-chapters")
