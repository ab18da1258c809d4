#!/usr/bin/env bash
# python.sh SCRIPT [ARGUMENT…]: runs SCRIPT with a Python that has notebooks/requirements.txt, which
# setup.sh installs into .venv where they are missing.
set -euo pipefail
cd "$(dirname "$0")/../.."
. common/setup/find.sh

bash common/setup/setup.sh --with-tables
if ! has_modules "${PYTHON:-python3}"; then
  PYTHON=.venv/bin/python
fi
exec "${PYTHON:-python3}" "$@"
