#!/usr/bin/env bash
# sanitize.sh PROGRAM [ARGUMENT…]
#
# Runs PROGRAM under each of compute-sanitizer's tools. They slow a kernel down a hundredfold, so
# the problem is small; its odd width exercises the tails.
set -euo pipefail
cd "$(dirname "$0")/../.."
. common/setup/cuda.sh

program=$1
shift
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
