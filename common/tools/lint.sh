#!/usr/bin/env bash
# lint.sh [ARGUMENT OF pre-commit run…]: every hook of .pre-commit-config.yaml over every file that git knows.
set -euo pipefail
cd "$(dirname "$0")/../.."

[ $# -gt 0 ] || set -- --all-files
exec .venv/bin/pre-commit run --show-diff-on-failure "$@"
