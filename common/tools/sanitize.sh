#!/usr/bin/env bash
# sanitize.sh BACKEND PROGRAM [ARGUMENT…]
#
# On a GPU, runs PROGRAM under each of compute-sanitizer's tools. They slow a kernel down a
# hundredfold, so the problem is small; its odd width exercises the tails. On the CPU, builds it with
# the address and undefined-behaviour sanitizers and runs it on a few shapes and dtypes.
set -euo pipefail
cd "$(dirname "$0")/../.."
. common/setup/cuda.sh

backend=$1
name=$2
shift 2

if [ "$backend" = cpu ]; then
  bash common/setup/build.sh cpu-asan "$name" -DSANITIZE=ON
  if [ $# -gt 0 ]; then
    build/cpu-asan/bin/"$name" "$@"
  else
    for dtype in f32 f16 bf16; do
      for cols in 1 33 1025 4096; do
        build/cpu-asan/bin/"$name" --rows 5 --cols $cols --dtype $dtype --samples 0 >/dev/null
      done
    done
    build/cpu-asan/bin/"$name" --rows 2 --cols 17001 --dtype f32 --samples 0 >/dev/null
    build/cpu-asan/bin/"$name" --rows 2 --cols 20000 --dtype bf16 --samples 0 >/dev/null
  fi
  echo "sanitize: the address and undefined-behaviour sanitizers found nothing"
  exit
fi

program=build/$backend/bin/$name
[ $# -gt 0 ] || set -- --rows 37 --cols 1025 --samples 0

if ! sanitizer=$(find_cuda_tool compute-sanitizer); then
  echo "make sanitize needs compute-sanitizer, which comes with the CUDA Toolkit." >&2
  exit 2
fi
failed=()
for tool in memcheck racecheck initcheck synccheck; do
  echo "== $tool: $program $*"
  "$sanitizer" --tool "$tool" --error-exitcode 1 "$program" "$@" || failed+=("$tool")
done
if [ ${#failed[@]} -gt 0 ]; then
  echo "sanitize: ${failed[*]} failed" >&2
  exit 1
fi
echo "sanitize: memcheck, racecheck, initcheck and synccheck found nothing"
