#!/usr/bin/env bash
# python.sh [--with-notebooks] SCRIPT [ARGUMENT…]: runs SCRIPT with a Python that has
# common/setup/requirements-tables.txt, and requirements-notebooks.txt if so asked. setup.sh installs them into
# .venv where they are missing.
set -euo pipefail
cd "$(dirname "$0")/../.."
. common/setup/find.sh

needed=(common/setup/requirements-tables.txt)
part=--with-tables
if [ "${1:-}" = --with-notebooks ]; then
  needed+=(common/setup/requirements-notebooks.txt)
  part=$1
  shift
fi
bash common/setup/setup.sh "$part"
if ! has_modules "${PYTHON:-python3}" "${needed[@]}"; then
  PYTHON=.venv/bin/python
fi
exec "${PYTHON:-python3}" "$@"
