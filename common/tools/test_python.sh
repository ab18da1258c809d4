#!/usr/bin/env bash
# test_python.sh [ARGUMENT…]: the Python of the tests, which ctest calls: the reader's own where it has what the tables
# need, or PyTorch, which some tests need; else that of .venv.
set -euo pipefail
cd "$(dirname "$0")/../.."
. common/setup/find.sh

python=${PYTHON:-python3}
if ! has_modules "$python" common/setup/requirements-tables.txt && venv_has tables common/setup/requirements-tables.txt &&
  ! "$python" -c 'import sys; from importlib.util import find_spec; sys.exit(not find_spec("torch"))'; then
  python=.venv/bin/python
fi
exec "$python" "$@"
