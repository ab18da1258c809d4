"""has_group.py GROUP: exit status 0 if this Python has what the group of pyproject.toml lists, in versions that do."""

import sys
from importlib.metadata import version
from pathlib import Path

from packaging.requirements import Requirement

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where pytest brings it
    import tomli as tomllib

PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
GROUPS = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["dependency-groups"]


def requirements(group):
    for entry in GROUPS[group]:
        if isinstance(entry, dict):
            yield from requirements(entry["include-group"])
        else:
            yield Requirement(entry)


def is_installed(requirement):
    return requirement.specifier.contains(version(requirement.name), prereleases=True)


if __name__ == "__main__":
    sys.exit(not all(map(is_installed, requirements(sys.argv[1]))))
