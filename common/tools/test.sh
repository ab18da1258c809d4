#!/usr/bin/env bash
# test.sh DIRECTORY CTEST_OPTION…: runs those tests of build/DIRECTORY, as many at a time as there are cores, and says at
# the end which chapters took too long, and which tests were skipped, and why: a line `skipped: why` of a test, or
# `skipped: part: why` where the rest of it ran.
set -euo pipefail
cd "$(dirname "$0")/../.."

# ctest prints which tests were skipped whole, and its log has what each printed.
status=0
ctest --test-dir "build/$1" --output-on-failure --no-tests=error -j "$(nproc)" "${@:2}" | tee "build/$1/tests.log" || status=$?
awk '
  FNR == NR && /\*\*\*Skipped/ { skipped[$4] }
  FNR == NR                   { next }
  / Testing: /                { name = $NF }
  { sub(/^.*MESSAGE: /, "") } # what doctest puts before a message
  /^skipped: / {
    print "skipped: " name ": " substr($0, length("skipped: ") + 1)
    delete skipped[name]
  }
  END { for (name in skipped) print "skipped: " name ": it does not say why" }
' "build/$1/tests.log" "build/$1/Testing/Temporary/LastTest.log"
if [ "$1" = cpu ]; then
  "${PYTHON:-python3}" -m common.tools.budget "build/$1"
fi
exit "$status"
