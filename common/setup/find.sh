# Sourced: what this machine already has. Nothing here installs anything or touches the network.
# shellcheck shell=bash

# The user's own directories, one a line: CMAKE_PREFIX_PATH, split at ':' or ';'.
own_prefixes() {
  tr ':;' '\n' <<<"${CMAKE_PREFIX_PATH:-}" | sed '/^$/d'
}

# Every directory that CMake will look in.
prefixes() {
  own_prefixes
  printf '%s\n' /usr /usr/local
}

# find_header doctest/doctest.h
find_header() {
  local prefix
  while read -r prefix; do
    [ ! -e "$prefix/include/$1" ] || return 0
  done < <(prefixes)
  return 1
}

# find_library boost_context: what the linker takes for -lboost_context.
find_library() {
  local prefix file
  while read -r prefix; do
    for file in "$prefix"/lib*/lib"$1".{so,a} "$prefix"/lib/*/lib"$1".{so,a}; do
      [ ! -e "$file" ] || return 0
    done
  done < <(prefixes)
  return 1
}

# The CUDA headers that give g++ __half and __nv_bfloat16: of a toolkit, a prefix, or the .venv.
find_cuda_headers() {
  local include
  while read -r include; do
    [ ! -e "$include/cuda_fp16.h" ] || [ ! -e "$include/crt/host_defines.h" ] ||
      [ ! -e "$include/nv/target" ] || return 0
  done < <(
    printf '%s/include\n' "${CUDA_HOME:-/nowhere}" "${CUDA_PATH:-/nowhere}" /usr/local/cuda
    own_prefixes | sed 's|$|/include|'
  )
  venv_has cuda-headers .venv
}

# has_modules PYTHON REQUIREMENTS…: that interpreter has what the files list, in versions new enough.
has_modules() {
  "$1" - "${@:2}" 2>/dev/null <<'END'
import fileinput, re, sys
from importlib.metadata import version
number = lambda text: [int(digits) for digits in re.findall(r"\d+", text)]
for line in fileinput.input(encoding="utf-8"):
    name, _, least = line.partition("#")[0].strip().partition(">=")
    if name and number(version(name)) < number(least):
        sys.exit(1)
END
}

# The path of the pinned clang-format: CLANG_FORMAT if the user sets it, the system's, or the .venv's.
find_clang_format() {
  local major candidate
  major=$(sed -n 's/^clang-format==\([0-9]*\).*/\1/p' common/setup/clang-format.txt)
  if [ -n "${CLANG_FORMAT:-}" ]; then
    command -v "$CLANG_FORMAT"
    return
  fi
  for candidate in "clang-format-$major" clang-format .venv/bin/clang-format; do
    if "$candidate" --version 2>/dev/null | grep -q "version $major\."; then
      echo "$candidate"
      return
    fi
  done
  return 1
}

# The browser that the book is tested in, and the program that drives it: GitHub's machines have them in other places.
find_browser() {
  command -v chromium || command -v google-chrome || command -v chromium-browser
}

find_driver() {
  command -v chromedriver || { [ -x "${CHROMEWEBDRIVER:-}/chromedriver" ] && echo "$CHROMEWEBDRIVER/chromedriver"; }
}

# venv_has NAME VENV: what common/setup lists under NAME is in that environment: venv_install got to its end, with this
# very list.
venv_has() {
  cmp -s "$(list_of "$1")" "$2/.$1"
}

# list_of tests: the path of a list for pip.
list_of() {
  local list=common/setup/requirements-$1.txt
  [ -e "$list" ] || list=common/setup/$1.txt
  echo "$list"
}

# find_torch: prints the directory of the PyTorch that the library is bound to: of .venv-torch, or the reader's own.
# Without importing it, which takes seconds.
find_torch() {
  local python
  for python in .venv-torch/bin/python "${PYTHON:-python3}"; do
    ! "$python" -c 'import importlib.util as find; print(find.find_spec("torch").submodule_search_locations[0])' \
      2>/dev/null || return 0
  done
  return 1
}
