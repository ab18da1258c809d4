#!/usr/bin/env bash
# build.sh DIRECTORY TARGET [CMAKE OPTION…]
#
# Configures build/DIRECTORY with the preset of that name if it is new, or if what it was configured with has
# changed, and builds TARGET. One without a preset of its own, cpu-mine, has that of its backend.
# Everything goes to stderr, so that stdout belongs to the program that runs next.
set -euo pipefail
cd "$(dirname "$0")/../.."
. common/setup/cuda.sh
. common/setup/find.sh

directory=build/$1
target=$2
preset=$1
grep -q "\"name\": \"$1\"" CMakePresets.json || preset=${1%%-*}
options=()
if [ "${1%%-*}" = cuda ]; then
  options+=("-DCMAKE_CUDA_COMPILER=$(find_nvcc)")
fi
if torch=$(find_torch); then
  options+=("-DTORCH=$torch")
fi
options+=("${@:3}") # may name another
# CMake splits the variable at ':' only.
CMAKE_PREFIX_PATH=$(printf %s "${CMAKE_PREFIX_PATH:-}" | tr ';' ':')
export CMAKE_PREFIX_PATH

# A changed compiler or a moved checkout needs a fresh cache, not only another run of CMake.
configured="$PWD $(cksum CMakePresets.json) ${CXX:-} $CMAKE_PREFIX_PATH ${CUDA_HOME:-} ${CUDA_PATH:-} ${options[*]}"
if [ ! -f "$directory/build.ninja" ] ||
  [ "$(cat "$directory/configured_with" 2>/dev/null)" != "$configured" ]; then
  mkdir -p "$directory"
  rm -rf "$directory/CMakeCache.txt" "$directory/CMakeFiles" "$directory/configured_with"
  echo "configure: $directory" >&2
  cmake --preset "$preset" -B "$directory" "${options[@]}" >"$directory/configure.log" ||
    { echo "configure failed; its whole output is in $directory/configure.log" >&2 && exit 1; }
  echo "$configured" >"$directory/configured_with"
fi
if [[ $target != my* ]]; then
  cmake --build "$directory" --target "$target" >&2
  exit
fi
# A reader's own kernel: progress as it comes, the compiler's words at the end, and an error first in a sentence.
log=$directory/$target.log
if cmake --build "$directory" --target "$target" 2>&1 | tee "$log" | { grep --line-buffered '^\[[0-9]*/' || true; } >&2; then
  grep -v '^\[[0-9]*/' "$log" >&2 || true
else
  "${PYTHON:-python3}" -m common.tools.compile_errors "$log"
  exit 1
fi
