#!/usr/bin/env bash
# python.sh [--with-notebooks|--with-book|--with-browser] SCRIPT [ARGUMENT…]: runs SCRIPT with a Python that has
# common/setup/requirements-tables.txt, and if so asked what the notebooks, the book or its tests need. setup.sh
# installs them into .venv where they are missing.
set -euo pipefail
cd "$(dirname "$0")/../.."
. common/setup/find.sh

parts=(tables)
case ${1:-} in
  --with-notebooks) parts+=(notebooks) ;;
  --with-book) parts+=(notebooks book) ;;
  --with-browser) parts+=(notebooks book tests browser) ;;
esac
part=--with-tables
if [ ${#parts[@]} -gt 1 ]; then
  part=$1
  shift
fi
needed=()
for name in "${parts[@]}"; do needed+=("$(list_of "$name")"); done
bash common/setup/setup.sh "$part"
if ! has_modules "${PYTHON:-python3}" "${needed[@]}"; then
  PYTHON=.venv/bin/python
fi
exec "${PYTHON:-python3}" "$@"
