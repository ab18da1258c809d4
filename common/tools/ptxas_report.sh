#!/usr/bin/env bash
# ptxas_report.sh OBJECT COMMAND…
#
# Runs a compiler. What ptxas says of each kernel (nvcc -Xptxas=-v) goes to OBJECT.ptxas, for
# spills.py; everything else is shown as ever.
object=$1
shift
status=0
"$@" 2>"$object.stderr" || status=$?
pattern='^ptxas info|^    [0-9]+ bytes stack frame'
grep -E "$pattern" "$object.stderr" >"$object.ptxas"
grep -Ev "$pattern" "$object.stderr" >&2
rm "$object.stderr"
exit $status
