#!/usr/bin/env bash
# python.sh [--with-notebooks|--with-book|--with-browser] SCRIPT [ARGUMENT…]: runs SCRIPT with a Python that has what
# pyproject.toml lists in the group tables, or in the one that is asked for. setup.sh installs it into .venv where it is
# missing.
set -euo pipefail
cd "$(dirname "$0")/../.."
. common/setup/find.sh

group=tables
if [[ ${1:-} == --with-* ]]; then
  group=${1#--with-}
  shift
fi
bash common/setup/setup.sh "--with-$group"
if ! has_group "${PYTHON:-python3}" "$group"; then
  PYTHON=.venv/bin/python
fi
exec "${PYTHON:-python3}" "$@"
