#!/usr/bin/env bash
# test_python.sh FILE… [OPTION…]: pytest for ctest, with the reader's own Python where it has what the tests need, else
# that of .venv. A file with torch in its name has PyTorch from .venv-torch, or from the reader's own Python.
set -euo pipefail
cd "$(dirname "$0")/../.."
. common/setup/find.sh

own=${PYTHON:-python3}
python=
if [[ ${1##*/} == *torch* ]]; then
  if venv_has torch .venv-torch; then
    python=.venv-torch/bin/python
  elif has_group "$own" torch-tests; then
    python=$own
  fi
fi
if [ -z "$python" ]; then
  if has_group "$own" tests; then
    python=$own
  elif venv_has tests .venv; then
    python=.venv/bin/python
  else
    echo "skipped: no Python here has pytest and what the tables need; \`bash common/setup/setup.sh --with-tests\` installs them"
    exit 77
  fi
fi
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 # those of the notebooks take two seconds to load
exec "$python" -B -m pytest -q "$@"
