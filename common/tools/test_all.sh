#!/usr/bin/env bash
# test_all.sh "BACKEND…" "[PART…]" [CTEST_OPTION…]: what `make test` leaves out, or these parts of it, with the time of each:
# complete, sanitize, watch, notebooks, book, compile-cuda. One that fails does not keep the next from running.
set -euo pipefail
cd "$(dirname "$0")/../.."
. common/setup/cuda.sh

backends=$1
parts=${2:-complete sanitize watch notebooks book compile-cuda}
shift 2
summary=()
status=0

run() {
  local start=$SECONDS word=passed
  echo "test-all: ---- $*"
  "$@" || word=FAILED
  [ $word = passed ] || status=1
  summary+=("$(printf '%5d s  %s  %s' $((SECONDS - start)) $word "$*")")
}

for part in $parts; do
  case $part in
    complete)
      for backend in $backends; do
        run bash common/setup/build.sh "$backend" all
        run bash common/tools/test.sh "$backend" --label-regex complete "$@"
      done
      ;;
    sanitize)
      for backend in $backends; do
        run make sanitize "BACKEND=$backend"
        run make sanitize "BACKEND=$backend" LIB=all
      done
      ;;
    watch) run bash common/tools/test_watch.sh ;;
    notebooks)
      run make notebooks-run
      run make notebooks-run DATA=notebooks/data/h200.csv 'ARGS=notebooks/[235]*.ipynb'
      ;;
    book) run bash common/tools/test_book.sh ;;
    compile-cuda)
      if find_nvcc >/dev/null; then
        run make compile-cuda 'ARCHS=75;90' # the oldest, and the one that is measured; without ARCHS it takes all
      else
        echo "skipped: compile-cuda: there is $no_nvcc"
      fi
      ;;
    *) echo "test-all: '$part' is not one of complete, sanitize, watch, notebooks, book, compile-cuda" >&2 && exit 2 ;;
  esac
done
printf 'test-all: %s\n' "${summary[@]}"
exit $status
