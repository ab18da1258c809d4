"""A .cu file from elsewhere runs on the SIMT machine as it is, and its mistakes are named with their lines."""

import subprocess
import sys
from pathlib import Path

import pytest

from common.tools import check_file

ROOT = Path(__file__).resolve().parents[3]
FOREIGN = Path(__file__).parent / "foreign"


@pytest.fixture(scope="module")
def check():
    subprocess.run(["bash", "common/setup/build.sh", "cpu-asan", "foreign"], cwd=ROOT, check=True, capture_output=True)
    return lambda *arguments: subprocess.run([sys.executable, "-m", "common.tools.check_file", *map(str, arguments)],
                                             cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize("file", sorted(FOREIGN.glob("*.cu")), ids=lambda path: path.stem)
def test_kernels_from_elsewhere_run_as_they_are(check, file):
    done = check(file)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


def test_arguments_go_to_the_program(check):
    assert check(FOREIGN / "transpose.cu", 33).stdout == "right\n"


GUARD = """#include <cstdio>
__global__ void twice(float *x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  x[i] = 2 * x[i];
}
int main() {
  float *x;
  cudaMalloc(&x, 1000 * 4);
  twice<<<4, 256>>>(x, 1000);
}
"""
BARRIER = """extern __shared__ float s[];
__global__ void halve(float *x) {
  s[threadIdx.x] = x[threadIdx.x];
  if (threadIdx.x < 16)
    __syncthreads();
  x[threadIdx.x] = s[31 - threadIdx.x];
}
int main() {
  float *x;
  cudaMalloc(&x, 128);
  halve<<<1, 32, 128>>>(x);
}
"""


FLAG = """__device__ volatile int flag;
__device__ int sum;
__global__ void waits() {
  if (threadIdx.x == 0)
    while (flag == 0) {}
  atomicAdd(&sum, 1);
  __syncthreads();
  flag = 1;
}
int main() {
  waits<<<1, 64>>>();
}
"""


@pytest.mark.parametrize(("source", "status", "said"), [
    (FLAG, 1, "a.cu:5: while (flag == 0) {}"),
    (FLAG, 1, "a.cu:7\n"),
    (GUARD, 1, "a.cu:4: twice reads 4 bytes, 0 bytes after a buffer of 4000 bytes"),
    (BARRIER, 1, "threads 0-15: at __syncthreads(), "),
    ("__global__ void k(float *x) {\n  x[0] = __frobnicate(x[1]);\n}\nint main() { k<<<1, 1>>>(nullptr); }\n", 2,
     "a.cu:2: __frobnicate is not known here"),
    ("__global__ void k() {}\n// texture<int>\nint main() {\n  texture<float> t;\n}\n", 2,
     "a.cu:4: the SIMT machine has no textures; use a pointer"),
    ("__global__ void k() {\n  asm volatile(\"vote.sync.all.pred p, q, 1;\"); }\nint main() {}\n", 2,
     "a.cu:2: the SIMT machine has no PTX instruction vote.sync.all.pred; common/simt/README.md lists"),
    ("__global__ void k() {\n  asm volatile(\"bar.sync 1, 64;\"); }\nint main() {}\n", 2,
     "a.cu:2: the SIMT machine has no PTX instruction bar.sync; named barriers are not here: use __syncthreads()"),
    ("#define TO(s) asm(\"ld.\" s \".f32 %0, [%1];\" : \"=f\"(x) : \"l\"(p));\n__global__ void k() {}\nint main() {}\n", 2,
     "a.cu:1: its text is put together by a macro"),
    ("int main() {}\n", 2, "a.cu has no kernel"),
    ("__global__ void k() {}\n", 2, "a.cu has no main"),
    ("__global__ void k() {}\nint main() {\n  k<<<1, 2;\n}\n", 2, "a.cu:3: this <<< has no >>>"),
    ("#include <nowhere.h>\n__global__ void k() {}\nint main() {}\n", 2, "a.cu:1: the header nowhere.h is not here"),
    ("__global__ void k() {}\nint main() { k<<<1, 2048>>>(); }\n", 1, "a block has at most 1024 threads"),
])
def test_what_is_wrong_is_said_in_a_sentence(check, tmp_path, source, status, said):
    file = tmp_path / "a.cu"
    file.write_text(source, encoding="utf-8")
    done = check(file)
    assert done.returncode == status, done.stderr
    assert said in done.stderr


def test_a_file_that_is_not_there(check):
    done = check("nowhere.cu")
    assert done.returncode == 2
    assert done.stderr.startswith("nowhere.cu cannot be read")


def test_headers_from_the_same_folder_are_rewritten_too(check, tmp_path):
    (tmp_path / "lane.cuh").write_text("""#pragma once
__device__ int lane() {
  int x;
  asm("mov.u32 %0, %%laneid;" : "=r"(x));
  return x;
}
""", encoding="utf-8")
    (tmp_path / "kernel.cuh").write_text("""#include "lane.cuh"
__global__ void k(int* x) { x[threadIdx.x] = lane(); }
""", encoding="utf-8")
    file = tmp_path / "a.cu"
    file.write_text("""#include "lane.cuh"
#include "kernel.cuh"
#include <cstdio>
int main() {
  int* x;
  cudaMallocManaged(&x, 256);
  k<<<1, 64>>>(x);
  cudaDeviceSynchronize();
  puts(x[63] == 31 ? "right" : "wrong");
}
""", encoding="utf-8")
    done = check(file)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


def test_rewriting_keeps_the_lines(tmp_path):
    source = """

extern __shared__ float s[];
int main() {
  a::b<int, 2>
      <<<dim3(1, 2),
         f(3 >> 1)>>>
  (x);
}
"""
    text = check_file.rewritten(tmp_path / "a.cu", source)
    assert text.count("\n") == source.count("\n")
    assert "#define s (::lnc::dynamic_shared<float>())" in text
    assert 'Launch("a::b<int, 2>", [&](auto... simt_arguments) { a::b<int, 2>(simt_arguments...); }, dim3(1, 2),' in text


@pytest.mark.parametrize("text", ['// k<<<1, 1>>>()', '/* extern __shared__ int s[]; */', 'const char* a = "<<<";'])
def test_comments_and_texts_stay(tmp_path, text):
    source = f"__global__ void k() {{}}\nint main() {{ {text}\n}}\n"
    assert check_file.rewritten(tmp_path / "a.cu", source).endswith(source)


# --- Watching ---


@pytest.fixture(scope="module")
def watch():
    subprocess.run(["bash", "common/setup/build.sh", "cpu-watch", "foreign_watch"], cwd=ROOT, check=True,
                   capture_output=True)
    return lambda mode, file, *arguments: subprocess.run(
        [sys.executable, "-m", "common.tools.check_file", f"--{mode}", str(file), *arguments],
        cwd=ROOT, capture_output=True, text=True)


def test_counts_show_what_the_padding_is_for(watch):
    done = watch("count", FOREIGN / "transpose.cu")
    assert done.returncode == 0, done.stderr
    without, padded = done.stdout.split("\ntranspose<1>, ")
    assert "passes each, where 1 would do without bank conflicts" in without
    assert "bank conflicts" not in padded


def test_a_barrier_that_is_missing_is_a_race(watch, tmp_path):
    source = (FOREIGN / "histogram.cu").read_text(encoding="utf-8")
    assert watch("race", FOREIGN / "histogram.cu").returncode == 0
    file = tmp_path / "histogram.cu"
    first, rest = source.split("  __syncthreads();\n", 1)
    file.write_text(f"{first}\n{rest}", encoding="utf-8")
    done = watch("race", file)
    assert done.returncode == 1
    assert "local + " in done.stdout
    assert "histogram.cu:10: for (int b = threadIdx.x; b < BINS; b += blockDim.x) local[b] = 0;" in done.stdout


COUNTER = """__device__ int counter;
__global__ void count() { %s; }
int main() { count<<<2, 64>>>(); }
"""
LAST_BLOCK = """__device__ unsigned finished;
__device__ float parts[8];
__global__ void sum(float *out) {
  parts[blockIdx.x] = 1;
  __threadfence();
  if (atomicAdd(&finished, 1u) < gridDim.x - 1) return;
  __threadfence();
  float total = 0;
  for (int i = 0; i < gridDim.x; ++i) total += parts[i];
  *out = total;
}
int main() {
  float *out;
  cudaMalloc(&out, 4);
  sum<<<8, 1>>>(out);
}
"""
HALVES = """#include <cuda_fp16.h>
__global__ void reverse(__half *x) {
  __shared__ __half s[256];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = s[255 - threadIdx.x];
}
int main() {
  __half *x;
  cudaMalloc(&x, 512);
  reverse<<<1, 256>>>(x);
}
"""


@pytest.mark.parametrize(("source", "status", "said"), [
    (COUNTER % "counter = counter + 1", 1, "race 1: counter"),
    (COUNTER % "atomicAdd(&counter, 1)", 0, "no races: 128 accesses"),
    (LAST_BLOCK, 0, "no races"),
    (LAST_BLOCK.replace("  __threadfence();\n", "", 1), 1, "race 1: parts["),
    (HALVES, 0, "no races: 1,024 accesses"),
])
def test_variables_of_the_device_and_of_a_block_are_seen(watch, tmp_path, source, status, said):
    file = tmp_path / "a.cu"
    file.write_text(source, encoding="utf-8")
    done = watch("race", file)
    assert done.returncode == status, done.stdout
    assert said in done.stdout


@pytest.mark.parametrize(("file", "said"), [
    ("missing_proxy_fence", "missing: a fence_proxy_async() of thread 32 of block 0 after its store"),
    ("reused_stage", "a __syncthreads() after the read and before the copy is requested"),
    ("relaxed_flag", "missing: a kernel of its own for the later access, or a handshake"),
])
def test_bugs_of_well_known_kernels_are_found(watch, file, said):
    done = watch("race", FOREIGN / f"broken/{file}.cu")
    assert done.returncode == 1
    assert said in done.stdout


@pytest.mark.parametrize(("file", "bug", "mended"), [
    ("missing_proxy_fence", "  __syncthreads();", 'asm volatile("fence.proxy.async.shared::cta;"); __syncthreads();'),
    ("reused_stage", "    __syncwarp();", '    asm volatile("fence.proxy.async.shared::cta;"); __syncthreads();'),
    ("relaxed_flag", "cuda::memory_order_relaxed", "cuda::memory_order_acq_rel"),
])
def test_without_the_bug_they_are_clean(watch, tmp_path, file, bug, mended):
    source = (FOREIGN / f"broken/{file}.cu").read_text(encoding="utf-8")
    assert bug in source
    path = tmp_path / f"{file}.cu"
    path.write_text(source.replace(bug, mended), encoding="utf-8")
    done = watch("race", path)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "right"), done.stdout


@pytest.mark.parametrize("file", ["inline_ptx", "cuda_ptx"])
def test_watchers_see_through_ptx(watch, file):
    assert watch("race", FOREIGN / f"{file}.cu").returncode == 0
    done = watch("count", FOREIGN / f"{file}.cu")
    assert "bulk stores of dy" in done.stdout


def test_a_trace_names_lines_and_variables(watch, tmp_path):
    done = watch("trace", FOREIGN / "cuda_ptx.cu")
    assert done.returncode == 0, done.stderr
    assert "begins bulk load 0: dx[0…255] to stage + 0, lane 0" in done.stdout
    assert "completes mbarrier 0" in done.stdout


def test_a_block_that_no_launch_has(watch):
    done = watch("trace", FOREIGN / "cuda_ptx.cu", "--block", "1")
    assert (done.returncode, done.stderr) == (2, "cuda_ptx.cu has no block 1 on its main: --block 0 is its only one\n")


def test_a_program_that_launches_nothing(watch, tmp_path):
    file = tmp_path / "a.cu"
    file.write_text("__global__ void k() {}\nint main() {}\n", encoding="utf-8")
    done = watch("race", file)
    assert (done.returncode, done.stderr) == (2, f"{file} launched no kernel\n")
