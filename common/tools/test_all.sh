#!/usr/bin/env bash
# test_all.sh BACKEND…: what `make test` leaves out, part by part, with the time of each. A part that fails does not keep
# the next from running.
set -euo pipefail
cd "$(dirname "$0")/../.."
. common/setup/cuda.sh

summary=()
status=0

part() {
  local start=$SECONDS word=passed
  echo "test-all: ---- $*"
  "$@" || word=FAILED
  [ $word = passed ] || status=1
  summary+=("$(printf '%5d s  %s  %s' $((SECONDS - start)) $word "$*")")
}

for backend in "$@"; do
  part bash common/tools/test.sh "$backend" --label-regex complete
  part make sanitize "BACKEND=$backend"
  part make sanitize "BACKEND=$backend" LIB=all
done
part bash common/tools/test_watch.sh
part make notebooks-run
part make notebooks-run DATA=notebooks/data/h200.csv 'ARGS=notebooks/[235]*.ipynb'
part bash common/tools/test_book.sh
if find_nvcc >/dev/null; then
  part make compile-cuda 'ARCHS=75;90' # the oldest, and the one that is measured; without ARCHS it takes all
else
  echo "skipped: compile-cuda: there is $no_nvcc"
fi
printf 'test-all: %s\n' "${summary[@]}"
exit $status
