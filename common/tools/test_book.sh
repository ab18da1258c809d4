#!/usr/bin/env bash
# test_book.sh [PYTEST_OPTION…]: makes the book, and tests it in a browser.
set -euo pipefail
cd "$(dirname "$0")/../.."

bash common/setup/setup.sh cpu --with-browser
make book
exec .venv/bin/python -B -m pytest -q common/book/tests "$@"
