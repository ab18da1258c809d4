#!/usr/bin/env python3
"""The command `python3 common/bench/archive.py add|show …`: common/results/archive.py."""

import sys

import measurements  # noqa: F401  puts the repository's root on the path

from common.results.archive import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
