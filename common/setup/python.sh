#!/usr/bin/env bash
# python.sh SCRIPT [ARGUMENT…]: runs SCRIPT with a Python that has notebooks/requirements.txt.
set -euo pipefail
cd "$(dirname "$0")/../.."
. common/setup/find.sh

if ! has_modules "${PYTHON:-python3}"; then
  PYTHON=.venv/bin/python
fi
exec "${PYTHON:-python3}" "$@"
