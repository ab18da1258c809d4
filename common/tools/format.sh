#!/usr/bin/env bash
# format.sh format|format-check
#
# Rewrites every C++ and CUDA file to .clang-format's style, or fails where one differs from it.
# The version is pinned in pyproject.toml; CLANG_FORMAT names another.
set -euo pipefail
cd "$(dirname "$0")/../.."

clang_format=${CLANG_FORMAT:-.venv/bin/clang-format}
case $1 in
  format) mode=(-i) ;;
  format-check) mode=(--dry-run --Werror) ;;
esac
mapfile -d '' files < <(find chapters common reference_cpu -path 'chapters/my*' -prune -o \
  \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' \) -print0 | sort -z)
if [ ${#files[@]} -gt 0 ] && ! "$clang_format" --style=file "${mode[@]}" "${files[@]}"; then
  echo "format-check: run 'make format' ($("$clang_format" --version))" >&2
  exit 1
fi
echo "$1: ${#files[@]} files"
