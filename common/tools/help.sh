#!/usr/bin/env bash
# What `make` alone prints.
cat <<'END'
LayerNorm, chapter by chapter

  make run                     set up what is missing, build, run and check every chapter
  make run CH=bwd02            one chapter; add ARGS="--rows 4096 --cols 1000" to choose the problem
  make run CH=bwd02 ARGS=-h    all options of a chapter's program
  make run LIB=fwd_ring        a kernel of the library instead of a chapter; LIB=all for all. Commands with CH=… accept LIB=…
  make new CH=my02 FROM=fwd02  a chapter of your own: the idea of fwd02, and an empty kernel for you to write; git ignores it
  make check FILE=other.cu     run a .cu file from elsewhere, unchanged, with its own main; report faults with their lines; no GPU.
                               make count, make race and make trace accept FILE=… too
  make count CH=fwd02          the kernel's source, and under each line its requests, sectors and bank conflicts; no GPU
  make race CH=bwd08           pairs of accesses that nothing orders, with their lines, threads and elements; no GPU
  make trace CH=fwd03          the events of one block, as JSON; ARGS="--block 0"; no GPU
  make test                    the tests that find most faults, in minutes: on the CPU, and on the GPU if there is one
  make test CH=bwd02           the same for one chapter, in seconds
  make test-all                the rest: every shape, type and order, sanitizers, three architectures, the notebooks, the book;
                               PARTS="sanitize watch" runs only these
  make library                 the kernels as a library for C and PyTorch: build/…/lib/liblnc.so
  make wheel                   the PyTorch package with its kernels as one file for pip; ARCHITECTURES="80;90" for other GPUs
  make bench [CH=…]            the measurements behind the notebooks, into notebooks/data/local.jsonl
  make peers                   our kernels beside PyTorch, Liger, QuACK, cuDNN, Helion, …:
                               python3 -m common.bench.compare_peers --help
  make profile CH=bwd02        what Nsight Compute counts while a chapter runs, each row explained
  make sanitize [CH=…]         compute-sanitizer's four tools on every kernel; without a GPU, the sanitizers of g++
  make compile-cuda            compile every kernel for every GPU architecture (needs nvcc, no GPU),
                               and check that no kernel that the library chooses spills registers
  make tables                  write the measured tables into the README files and the chapters
  make notebooks               open the notebooks; DATA=notebooks/data/… chooses the measurements
  make notebooks-run           execute them all, without a browser; notebooks-strip removes their outputs
  make book                    the book of all this, for a browser: build/book/index.html
  make lint                    what a change must pass besides the tests: clang-format, ruff, shellcheck, notebooks
  make format, format-check    clang-format; make clean removes build/

BACKEND=cpu runs the same kernels on a small SIMT machine, BACKEND=cuda on the GPU; without
it you get cuda if there are a GPU and nvcc, else cpu. CMAKE_PREFIX_PATH adds places to look for libraries.
END
