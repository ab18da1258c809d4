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

# has_group PYTHON GROUP: that interpreter has what the group of pyproject.toml lists. One that cannot tell has not.
has_group() {
  "$1" common/setup/has_group.py "$2" 2>/dev/null
}

# The browser that the book is tested in, and the program that drives it: GitHub's machines have them in other places.
find_browser() {
  command -v chromium || command -v google-chrome || command -v chromium-browser
}

find_driver() {
  command -v chromedriver || { [ -x "${CHROMEWEBDRIVER:-}/chromedriver" ] && echo "$CHROMEWEBDRIVER/chromedriver"; }
}

# venv_has GROUP VENV: what pyproject.toml lists in the group is in that environment: venv_install got to its end, with
# these very lists.
venv_has() {
  lists | cmp -s - "$2/.$1"
}

lists() {
  cat pyproject.toml common/setup/constraints.txt
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
