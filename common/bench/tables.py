#!/usr/bin/env python3
"""The command `python3 common/bench/tables.py [--check]`: common/results/tables.py."""

import sys

import measurements  # noqa: F401  puts the repository's root on the path

try:
    from common.results.tables import main
except ModuleNotFoundError as error:
    print(f"{error.name} is not installed; `make tables` runs with the group tables of pyproject.toml",
          file=sys.stderr)
    sys.exit(2)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
