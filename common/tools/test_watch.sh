#!/usr/bin/env bash
# test_watch.sh: builds every chapter so that the SIMT machine can watch it, tests what it sees, and looks for races in
# all chapters.
set -euo pipefail
cd "$(dirname "$0")/../.."

if "${CXX:-c++}" --version | grep -q clang; then
  echo "skipped: watch: only GCC can insert the calls that report a kernel's accesses, and CXX is not GCC"
  exit
fi
bash common/setup/build.sh cpu-watch all
bash common/tools/test.sh cpu-watch
make race
