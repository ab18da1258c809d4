#!/usr/bin/env python3
"""The command `python3 common/bench/tables.py [--check]`: common/results/tables.py."""

import sys

import measurements  # noqa: F401  puts the repository's root on the path

from common.results.tables import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
