#!/usr/bin/env bash
# test.sh DIRECTORY: runs the tests of build/DIRECTORY, as many at a time as there are cores, and says at the end which
# were skipped, and why: a line `skipped: why` of a test, or `skipped: part: why` where the rest of it ran.
set -euo pipefail
cd "$(dirname "$0")/../.."

bash common/setup/setup.sh --with-tests || echo "test: without them the Python tests are skipped" >&2

# ctest prints which tests were skipped whole, and its log has what each printed.
status=0
ctest --test-dir "build/$1" --output-on-failure --no-tests=error -j "$(nproc)" | tee "build/$1/tests.log" || status=$?
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
exit "$status"
