#!/usr/bin/env bash
# sanitize.sh BACKEND PROGRAM [ARGUMENT…]
#
# On a GPU, runs PROGRAM under each of compute-sanitizer's tools. They slow a kernel down a
# hundredfold, so the problem is small; its odd width exercises the tails. On the CPU, builds with the
# address and undefined-behaviour sanitizers, and runs the quick tests of PROGRAM, a kernel or all of
# them (`chapters`, `library_kernels`), or with arguments PROGRAM itself.
set -euo pipefail
cd "$(dirname "$0")/../.."
. common/setup/cuda.sh

backend=$1
name=$2
shift 2

if [ "$backend" = cpu ]; then
  if [ $# -gt 0 ]; then
    bash common/setup/build.sh cpu-asan "$name"
    build/cpu-asan/bin/"$name" "$@"
  else
    tests=${name}_test only="^$name\$"
    case $name in
      chapters) tests=chapter_tests only='^[a-z]+[0-9]+$' ;;
      library_kernels) tests=library_kernel_tests only='^lib_' ;;
    esac
    bash common/setup/build.sh cpu-asan "$tests"
    bash common/tools/test.sh cpu-asan --tests-regex "$only" --label-exclude complete
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
