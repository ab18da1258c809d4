#!/usr/bin/env bash
# backend.sh auto|cpu|cuda [test]
#
# Prints the backend to use (for 'test', where a GPU is: both) on stdout, and the reason on stderr.
set -euo pipefail
cd "$(dirname "$0")/../.."
. common/setup/cuda.sh

asked=${1:-auto}
purpose=${2:-run}

refuse() {
  echo "$1" >&2
  exit 2
}

use() {
  echo "backend: $1 ($2)" >&2
  echo "$1"
  exit
}

case $asked in
  auto | cpu | cuda) ;;
  *) refuse "BACKEND=$asked is not a backend: choose cpu, cuda, or auto." ;;
esac

[ "$asked" != cpu ] || use cpu "BACKEND=cpu"

if ! gpu=$(find_gpu); then
  [ "$asked" = auto ] || refuse "BACKEND=cuda needs an NVIDIA GPU, and this machine has none: BACKEND=cpu runs the same kernels."
  use cpu "no NVIDIA GPU found"
elif ! find_nvcc >/dev/null; then
  [ "$asked" = auto ] || refuse "BACKEND=cuda needs the CUDA Toolkit, and there is $no_nvcc."
  use cpu "$gpu, but $no_nvcc"
elif [ "$asked $purpose" = 'auto test' ]; then
  use 'cpu cuda' "$gpu"
else
  use cuda "$gpu"
fi
