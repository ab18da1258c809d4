# Sourced: where the CUDA compiler is, and which GPU this machine has.
# shellcheck shell=bash

# The minimum version of nvcc, used by the search and by the error message: the first that knows every architecture up to
# Blackwell.
least_nvcc=12.8
# shellcheck disable=SC2034  # for those who source this
no_nvcc="no nvcc $least_nvcc or newer in PATH, CUDA_HOME or /usr/local/cuda"

# at_least 3.22 "$(cmake --version)": the first version number in the text is that one or a later one.
at_least() {
  local found
  found=$(grep -Eom1 '[0-9]+(\.[0-9]+)*' <<<"$2" | head -n 1) || return
  [ "$(printf '%s\n%s\n' "$1" "$found" | sort -V | head -n 1)" = "$1" ]
}

# A program of the CUDA Toolkit, by name: in PATH, in CUDA_HOME or CUDA_PATH, or in /usr/local/cuda.
find_cuda_tool() {
  local place
  command -v "$1" && return
  for place in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda; do
    if [ -n "$place" ] && [ -x "$place/bin/$1" ]; then
      echo "$place/bin/$1"
      return
    fi
  done
  return 1
}

# The path of an nvcc that is new enough.
find_nvcc() {
  local nvcc
  nvcc=$(find_cuda_tool nvcc) || return
  at_least "$least_nvcc" "$("$nvcc" --version | sed -n 's/.*release //p')" && echo "$nvcc"
}

# The name of the first NVIDIA GPU.
find_gpu() {
  local name
  if command -v nvidia-smi >/dev/null; then
    name=$(nvidia-smi -L 2>/dev/null | sed -n 's/^GPU [0-9]*: \(.*\) (UUID.*/\1/p' | head -n 1) || true
    if [ -n "$name" ]; then
      echo "$name"
      return
    fi
  fi
  [ -e /dev/nvidia0 ] && echo /dev/nvidia0
}
