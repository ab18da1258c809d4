# Sourced: where the CUDA compiler is, and which GPU this machine has.
# shellcheck shell=bash

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

# nvcc's path. 12.8 is the first that knows every architecture up to Blackwell.
find_nvcc() {
  local nvcc
  nvcc=$(find_cuda_tool nvcc) || return
  "$nvcc" --version | grep -Eq 'release (12\.([89]|[1-9][0-9])|1[3-9]\.|[2-9][0-9]\.)' && echo "$nvcc"
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
