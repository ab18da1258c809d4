#!/usr/bin/env bash
# test.sh DIRECTORY: runs the tests of build/DIRECTORY, as many at a time as there are cores.
set -euo pipefail
cd "$(dirname "$0")/../.."
exec ctest --test-dir "build/$1" --output-on-failure --no-tests=error -j "$(nproc)"
