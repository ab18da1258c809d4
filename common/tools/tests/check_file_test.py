"""A .cu file from elsewhere runs on the SIMT machine as it is, and its mistakes are named with their lines."""

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest

from common.results import agreement, store
from common.tools import check_file

ROOT = Path(__file__).resolve().parents[3]
FOREIGN = Path(__file__).parent / "foreign"


@pytest.fixture(scope="module")
def check():
    subprocess.run(["bash", "common/setup/build.sh", "cpu-asan", "foreign"], cwd=ROOT, check=True, capture_output=True)
    return lambda *arguments: subprocess.run([sys.executable, "-m", "common.tools.check_file", *map(str, arguments)],
                                             cwd=ROOT, capture_output=True, text=True)


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


SHARED = """__global__ void fill(int *x) {
  __shared__ char tile[%d];
  tile[threadIdx.x] = 1;
  *x = tile[0];
}
int main() {
  int *x;
  cudaMalloc(&x, 4);
  fill<<<1, 1, %d>>>(x);
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


HOST = """#include <vector>
struct Args { const int *x; int *y; };
__global__ void add(Args a) {
  a.y[threadIdx.x] +=
      a.x[threadIdx.x];
}
int main() {
  int *y, stack[32] = {};
  std::vector<int> heap(32);
  cudaMallocManaged(&y, 128);
  %s
  add<<<1, 32>>>(Args{x, y});
  return stack[0] + heap[0];
}
"""
NOT_OF_DEVICE = "a.cu:5: add reads 4 bytes of the host's memory; a kernel needs memory from cudaMalloc"
UNWRITTEN = """__global__ void k(int *x) {
  __shared__ int s[32];
  x[threadIdx.x] = s[threadIdx.x];
}
int main() {
  int *x;
  cudaMallocManaged(&x, 128);
  k<<<1, 32>>>(x);
  return x[3] != -1;
}
"""
DYNAMIC = """__global__ void k() {
  extern __shared__ int s[];
  s[threadIdx.x] = 1;
}
int main() { k<<<1, 3%s>>>(); }
"""
C_NAMES = """#include <cstdio>
// extern "C" __global__
extern "C" __global__ void one(int *x);
extern "C" __device__ int twice(int x) { return 2 * x; }
extern "C" {
__constant__ int k = 3;
__global__ void one(int *x) {
  __shared__ int s[64];
  s[threadIdx.x] = twice(k);
  x[threadIdx.x] = s[threadIdx.x];
}
}
int main() {
  int *x;
  cudaMallocManaged(&x, 256);
  one<<<1, 64>>>(x);
  return x[63] != 6;
}
"""


@pytest.mark.parametrize(("source", "status", "said"), [
    (C_NAMES, 0, ""),
    (HOST % "int *x = stack;", 1, NOT_OF_DEVICE),
    (HOST % "int *x = heap.data();", 1, NOT_OF_DEVICE),
    (HOST % "int *x; cudaMallocHost(&x, 128);", 0, ""),
    (HOST % "int *x = heap.data(); cudaHostRegister(x, 128, 0);", 0, ""),
    (UNWRITTEN, 0, ""),
    (UNWRITTEN.replace("__shared__", "static __shared__"), 0, ""),
    ("__noinline__ __device__ int f() { return 1; }\n" + UNWRITTEN.replace("s[threadIdx.x];", "-f();"), 0, ""),
    (FLAG, 1, "a.cu:5: while (flag == 0) {}"),
    (FLAG, 1, "a.cu:7\n"),
    (FLAG.replace("{}", "atomicAdd(&sum, 1);"), 1, "SIMT_LONGEST_RUN=60"),
    (SHARED % (50_000, 0), 1, "its __shared__ variables can take at most 48 KB"),
    (SHARED % (40_000, 40_000), 0, ""),
    (SHARED % (40_000, 60_000), 1, "kernel fill asks for 60000 bytes of dynamic shared memory, and more than 48 KB need"),
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
    ("__global__ void k() {}\nint main() { k<<<1, 2048>>>(); }\n", 1,
     "a.cu:2: kernel k cannot start with grid (1, 1, 1), block (2048, 1, 1), 0 bytes of shared memory: a block has at "
     "most 1024 threads"),
    ("__global__ void k() {}\nint main() {\n  k<<<1, 32, 300000>>>();\n}\n", 1, "a.cu:3: kernel k cannot start"),
    ("__global__ void k() {}\nint main() {\n  k<<<31 / 32, 32>>>();\n}\n", 1, "a grid needs at least one block"),
    ("__global__ void c() {}\n__global__ void k() { c<<<1, 1>>>(); }\nint main() { k<<<1, 1>>>(); }\n", 1,
     "a.cu:2: kernel c cannot start"),
    ("__global__ void k() {\n  cg::grid_group g;\n}\nint main() {}\n", 2,
     "a.cu:2: the SIMT machine has no barrier of the whole grid; use two launches"),
    (DYNAMIC % "", 1, "a.cu:3: k writes 4 bytes, 0 bytes after the launch's dynamic shared memory of 0 bytes (its third "
     "argument)\n"),
    (DYNAMIC % ", 8", 1, "a.cu:3: k writes 4 bytes, 0 bytes after the launch's dynamic shared memory of 8 bytes\n"),
    ("__global__ void k() {}\nint main() { k<<<1, 1>>>(); return 3; }\n", 3,
     "No fault found by the machine; the program ended with status 3. make race FILE="),
    ("#include <thrust/sort.h>\n__global__ void k() {}\nint main() {}\n", 2, "a.cu:1: the SIMT machine has no such library"),
    ("__global__ void k() {}\nint main() {\n  cudaThreadExit();\n}\n", 2, "a.cu:3: cudaThreadExit is not known here"),
    ("__global__ void k() {}\nint main() {\n  cudaDeviceSetLimit(cudaLimitStackSize, 1);\n}\n", 2,
     "a.cu:3: cudaDeviceSetLimit is declared, but not here"),
    ("__global__ void k(int* x) {\n  *x = 1;\n}\nint main() { k<<<1, 1>>>(nullptr); }\n", 1,
     "a.cu:2: k writes through a null pointer"),
    ("__global__ void k(int* x, int n) {\n  *x = 1 / n;\n}\nint main() {\n  int* x;\n  cudaMalloc(&x, 4);\n"
     "  k<<<1, 1>>>(x, 0);\n}\n", 1, "a.cu:2: division by zero"),
    ("__global__ void k(int* x) {\n  __shared__ int s[32];\n  s[threadIdx.x + 1] = 1;\n  *x = s[0];\n}\nint main() {\n"
     "  int* x;\n  cudaMalloc(&x, 4);\n  k<<<1, 32>>>(x);\n}\n", 1, "a.cu:3: index 32 out of bounds for type 'int [32]'"),
    ("__global__ void k(int* x) {\n  *x = 1;\n}\nint main() {\n  int* x;\n  cudaMalloc(&x, 4);\n  cudaFree(x);\n"
     "  k<<<1, 1>>>(x);\n}\n", 1, "a buffer of 4 bytes, which is free"),
    ("__global__ void k() {}\nint main() {\n  int* x;\n  cudaMalloc(&x, 4);\n  cudaFree(x);\n  cudaFree(x);\n}\n", 1,
     "a.cu:6: main frees a buffer that is free"),
])
def test_what_is_wrong_is_said_in_a_sentence(check, tmp_path, source, status, said):
    file = tmp_path / "a.cu"
    file.write_text(source, encoding="utf-8")
    done = check(file)
    assert done.returncode == status, done.stderr
    assert said in done.stderr
    assert said.startswith("No fault") or "No fault" not in done.stderr


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
    assert "histogram.cu:19: for (int b = threadIdx.x; b < BINS; b += blockDim.x) local[b] = 0;" in done.stdout


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
    (COUNTER % "counter = counter + 1", 1, "kernel: count, run without arguments\n"),
    (COUNTER.replace("int counter", "unsigned i") % "i = i + 1", 1, "race 1: i,"),
    (COUNTER.replace("counter", "g[4]", 1) % "g[1] = g[1] + 1", 1, "race 1: g[1],"),
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


STORES = """__global__ void k(int *x) { x[threadIdx.x] = 1; }
int main() {
  int *x;
  cudaMalloc(&x, 128);
  %s
  return 0;
}
"""


@pytest.mark.parametrize(("main", "status", "said"), [
    ("k<<<1, 32>>>(x);", 0, "a.cu: no races: 32 accesses"),
    ("k<<<1, 32>>>(x); return 3;", 3, "a.cu: no races until the program ended with status 3: 32 accesses"),
    ("k<<<1, 32>>>(x); k<<<1, 2048>>>(x);", 1, "a.cu: no races until the program ended with status 1: 32 accesses"),
    ("k<<<1, 2048>>>(x);", 1, "a.cu ended with status 1 before a kernel ran\n"),
    ("k<<<1, 32>>>(nullptr);", 1, "a.cu ended with status 1 before anything was recorded\n"),
    ("k<<<1, 32>>>(x); *(volatile int *)nullptr = 1;", 1, "a.cu ended by signal 11 before anything was recorded\n"),
    ("return 3;", 1, "a.cu ended with status 3 before anything was recorded\n"),
])
def test_of_a_program_that_ended_early_it_says_so(watch, tmp_path, main, status, said):
    file = tmp_path / "a.cu"
    file.write_text(STORES % main, encoding="utf-8")
    done = watch("race", file)
    assert done.returncode == status, done.stdout + done.stderr
    assert said in done.stdout + done.stderr


# --- Teaching kernels, as they are published ---

KERNELS = sorted(path.stem for path in FOREIGN.glob("*.cu"))
COMMITTED = store.read(ROOT / agreement.PROGRAMS_COUNTED)


@pytest.fixture(scope="module")
def tool(check, watch, request):  # check and watch build the machine
    """Runs the command on a file of foreign/, each of whose two programs is compiled once."""
    compiled = cache(check_file.compiled)
    named = [getattr(item, "callspec", None) for item in request.session.items if item.path == request.path]
    files = sorted({call.params["kernels"] for call in named if call and "kernels" in call.params})
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as both_cores:
        for build in (check_file.PLAIN, check_file.WATCHING):
            list(both_cores.map(lambda file: compiled(FOREIGN / f"{file}.cu", build), files))
        patch.setattr(check_file, "compiled", lambda path, build=check_file.PLAIN: compiled(path, build))
        yield lambda file, *words: check_file.main([*words[:1], str(FOREIGN / f"{file}.cu"), *words[1:]])


@pytest.mark.parametrize("kernels", KERNELS)
def test_kernels_from_elsewhere_run_as_they_are(tool, capfd, kernels):
    assert tool(kernels) == 0
    assert capfd.readouterr() == ("right\n", "")


@pytest.mark.parametrize("kernels", KERNELS)
def test_kernels_from_elsewhere_have_no_races(tool, capfd, kernels):
    assert tool(kernels, "--race") == 0, capfd.readouterr().out


@pytest.mark.parametrize(("kernels", "argument", "line", "missing"), [
    # Lanes of a warp that only volatile orders: right before Volta.
    ("reduction", "published", "sdata[tid] += sdata[tid + 16];", "a __syncwarp() or a __syncthreads() between them"),
    ("stencil", "nosync", "temp[lindex + BLOCK_SIZE] = in[gindex + BLOCK_SIZE];", "a __syncthreads() between them"),
    # A last block that no fence lets see the others' sums.
    ("dot", "nofence", "partial[blockIdx.x] = partialSum;", "by an atomic and __threadfence() on both sides"),
    ("dot", "published", "partial[blockIdx.x] = partialSum;", "a __threadfence() after the atomic by which thread 0"),
])
def test_a_famous_race_is_found(tool, capfd, kernels, argument, line, missing):
    assert tool(kernels, "--race", argument) == 1
    races = capfd.readouterr().out.split("\nrace ")[1:]
    assert any(line in race and missing in race for race in races)


def counted(page):
    """{(kernel, line of the source, what): (times, what each costs)}, of the first launch of each kernel."""
    found, kernel, line = {}, "", ""
    for text in page.splitlines():
        if match := re.match(r"(\S.*), [\d ×]+ blocks? of [\d ×]+ threads", text):
            kernel = match[1]
        elif match := re.match(r" *\d+ │ (.*)", text):
            line = match[1].strip()
        elif text.startswith("     ·   "):
            what, times, cost = text[9:33].strip(), int(text[34:45].replace(" ", "")), text[48:]
            found.setdefault((kernel, line, what), (times, cost))
    return found


# The lesson of each: a kernel, a part of its line, what it does there, how often, and what each costs. A warp of 32
# floats in a row asks for 128 bytes, 4 sectors.
@pytest.mark.parametrize(("kernels", "arguments", "lessons"), [
    # Trees of 256 threads, 32 blocks of them. By modulo, each of the 8 warps has a lane that works while 2s <= 32, then
    # 4, 2 and 1 of them: 5 · 8 + 7 = 47 steps, of two loads. Otherwise the threads at work are neighbours: 4, 2 and six
    # times 1 warp, 12 steps. With 2s words from one to the next they need min(2s, lanes at work) passes: 4 · 2 + 2 · 4 +
    # 8 + 8 + 8 + 4 + 2 + 1 = 47, 3.9 each. To add while loading halves the blocks.
    ("reduction", [], [
        ("reduce1", "// by modulo", "load shared", 2 * 47 * 32, "1 pass each"),
        ("reduce2", "sdata[index] +=", "load shared", 2 * 12 * 32, "3.9 passes each, where 1"),
        ("reduce3", "// in sequence", "load shared", 2 * 12 * 32, "1 pass each"),
        ("reduce4", "// half as many blocks", "load shared", 2 * 12 * 16, "1 pass each"),
    ]),
    # 512 elements. All threads from `offset` on add: 16 warps five times, then 15, 14, 12 and 8 of them, with two loads.
    # Work-efficient: 8, 4, 2 and six times 1 warp, whose passes are 8 · 2, 4 · 4, 2 · 8, 16, 16, 8, 4, 2 and 1: 95 of 20.
    ("scan", [], [
        ("scan_hillis_steele", "+ temp[pin * n + thid - offset];", "load shared", 2 * 129, "1 pass each"),
        ("scan_blelloch", "temp[bi] += temp[ai];", "store shared", 20, "4.8 passes each, where 1"),
        ("scan_blelloch_padded", "temp[bi] += temp[ai];", "store shared", 20, "1 pass each"),
    ]),
    # 64 x 64: 2 x 2 blocks of 32 warps. A column of a matrix lies 64 floats apart, a sector each; a column of a tile
    # lies in one bank.
    ("transpose", ["64", "64"], [
        ("transposeNaive", "out[x * height + y] =", "store out", 128, "32 sectors each, 12%"),
        ("transpose<0>", "tile[threadIdx.x][threadIdx.y]", "store out", 128, "4 sectors each, 100%"),
        ("transpose<0>", "tile[threadIdx.x][threadIdx.y]", "load shared", 128, "32 passes each, where 1"),
        ("transpose<1>", "tile[threadIdx.x][threadIdx.y]", "load shared", 128, "1 pass each"),
    ]),
    # 20000 bytes, a request for 32 of them. Of shared memory, 12 blocks add 64 bins, two requests each.
    ("histogram", [], [
        ("histogram_global", "atomicAdd(&bins[", "atomic counts", 625, ""),
        ("histogram", "atomicAdd(&local[", "atomic shared", 625, ""),
        ("histogram", "atomicAdd(&bins[b]", "atomic counts", 12 * 2, "4 sectors each, each lane at an address"),
        ("histogram", "atomicAdd(&finished", "atomic finished", 12, "1 sector each"),
    ]),
    # 4 x 3 blocks of 8 warps, 2 tiles, 16 products, two loads. A warp reads two words of a, or a row of b.
    ("matmul", [], [("matmul<16>", "sum = __fmaf_rn", "load shared", 12 * 8 * 2 * 16 * 2, "1 pass each")]),
    # 9 rows, 4 warps, 5 steps, two values.
    ("softmax", [], [("softmax", "__shfl_xor_sync(~0u, mine.m, o)", "shuffles", 9 * 4 * 5 * 2, "")]),
    # 64 rows of 256. A thread a row: 2 warps, 256 steps, lanes a row apart. A warp a row: 8 steps; 2 of float4. In the
    # backward pass all lanes of a warp add to one column; a block of 8 warps that adds in shared memory first has 8
    # requests left for its 256 columns.
    ("layernorm", [], [
        ("layernorm_forward_kernel1", "// a thread a row", "load d", 2 * 256, "32 sectors each, 12%"),
        ("layernorm_forward_kernel3", "// a warp a row", "load d", 64 * 8, "4 sectors each, 100%"),
        ("layernorm_forward_kernel6", "reinterpret_cast<const x128*>(inp + c)", "load d", 64 * 2,
         "16 sectors each, 100%"),
        ("layernorm_backward_kernel1", "atomicAdd(&dbias[i]", "atomic d", 2 * 256,
         "32 sectors each, 32 lanes at one address"),
        ("layernorm_backward_kernel2", "// of a block", "atomic d", 8 * 8, "4 sectors each, each lane"),
    ]),
    # 4096 elements. In pieces: 4 warps, 32 steps, lanes 32 floats apart. One float past a sector's start: 5 sectors.
    ("saxpy", [], [
        ("saxpy_pieces", "// in pieces", "load x", 4 * 32, "32 sectors each, 12%"),
        ("saxpy", "// in strides of the grid", "load x", 128, "4 sectors each, 100%"),
        ("saxpy4", "float4 v = x[i]", "load x", 32, "16 sectors each, 100%"),
        ("saxpy_offset", "// off by one", "load x", 128, "5 sectors each, 80%"),
    ]),
    # 8 blocks count to 8, and the last one adds 8 sums. A tile's sum has 5 shuffles: of 4 warps, and of one.
    ("dot", [], [
        ("dot<true>", "atomicInc(&count", "atomic count", 8, "1 sector each"),
        ("dot<true>", "total += partial[b]", "load d_partial", 8, "1 sector each"),
        ("dot_groups", "cg::reduce(warp, sum", "shuffles", 8 * 4 * 5, ""),
        ("dot_cub<THREADS, 4>", "atomicAdd(result, aggregate)", "atomic d_result", 6, "1 sector each"),
    ]),
    # 16 warps, 7 words of shared memory each; in + 3 is 12 bytes past a sector's start. 30 rows of 3 warps have five
    # loads without a tile; 32 rows have one for the tile itself.
    ("stencil", [], [
        ("stencil_1d<true>", "result += temp[lindex + offset]", "load shared", 16 * 7, "1 pass each"),
        ("stencil_1d<true>", "temp[lindex] = in[gindex];", "load d_in", 16, "5 sectors each, 80%"),
        ("heat_global", "float sum = in[y * nx + x - 1];", "load buffer", 30 * 3, ""),
        ("heat_tiled", "// into the tile", "load buffer", 32 * 3, "4 sectors each, 100%"),
        ("heat_tiled", "float sum = tile[ty][tx - 1];", "load shared", 30 * 3, "1 pass each"),
    ]),
    # 8 warps read each of 256 bodies, all lanes the same 16 bytes; from memory each tile comes once. A structure of 32
    # bytes has a sector for each lane.
    ("nbody", [], [
        ("calculate_forces", "shPosition[i], accel)", "load shared", 8 * 256, "2 passes each"),
        ("calculate_forces", "shPosition[threadIdx.x] = devX[idx]", "load dx", 8 * 4, "16 sectors each, 100%"),
        ("step_of_structures", "b[i].x +=", "load bodies", 8 * 2, "32 sectors each, 12%"),
        ("step_of_arrays", "b.x[i] +=", "load arrays.x", 8, "4 sectors each, 100%"),
    ]),
    # 128 x 128 x 16: 512 warps, 16 steps. Neighbouring rows lie 64 bytes apart. A tile of 128 x 8 is 8 requests of
    # float4, twice. 16 columns of threads read words that lie 8 apart: of 4 banks, 4 each.
    ("sgemm", [], [
        ("sgemm_naive", "float a = A[x * K + i];", "load dA", 512 * 16, "32 sectors each, 12%"),
        ("sgemm_naive", "// naive", "load dB", 512 * 16, "1 sector each"),
        ("sgemm_global_mem_coalesce<32>", "float a = A[cRow * K + i];", "load dA", 512 * 16, "1 sector each"),
        ("sgemm_global_mem_coalesce<32>", "// coalesced", "load dB", 512 * 16, "4 sectors each, 100%"),
        ("sgemmVectorize<BM, BN, BK, TM, TN>", "&A[innerRowA", "load dA", 16, "16 sectors each, 100%"),
        ("sgemmVectorize<BM, BN, BK, TM, TN>", "regN[i] = Bs", "load shared", 8 * 16 * 8, "4 passes each, where 1"),
    ]),
    # 3 blocks of 4 warps, 36 steps, two loads. With a stride below 32, in 30 of them, a warp's words span 64: 2 passes.
    ("sort", [], [
        ("bitonicSortShared", "if ((a > b) == up)", "load shared", 3 * 4 * 36 * 2, "1.8 passes each, where 1"),
        ("radixSortShared", "__ballot_sync", "shuffles", 6 * 4 * 12, ""),
    ]),
    # 4 blocks of 8 warps, 9 words. At the border a warp has 4 lanes outside, all at one address.
    ("convolution", [], [
        ("convolutionRowsKernel", "sum += c_Kernel", "load shared", 32 * 9, "1 pass each"),
        ("convolutionRowsKernel", "atomicAdd(&outside, 1)", "atomic outside", 32, "4 sectors each, 4 lanes at one"),
    ]),
    # 128 rows of 32 doubles: a thread a row, 4 warps and 32 steps, or a warp a row, 256 bytes in one request.
    ("spmv", [], [
        ("spmv_csr_scalar_kernel<double>", "// a row a thread", "load d_data", 4 * 32, "32 sectors each, 25%"),
        ("spmv_csr_vector_kernel<double>", "// a row a warp", "load d_data", 128, "8 sectors each, 100%"),
    ]),
], ids=lambda value: value if isinstance(value, str) else "")
def test_the_counts_show_the_lesson(tool, capfd, kernels, arguments, lessons):
    assert tool(kernels, "--count", *arguments) == 0
    account = counted(capfd.readouterr().out)
    for kernel, part, what, times, cost in lessons:
        found = [seen for (of, line, does), seen in account.items() if (of, does) == (kernel, what) and part in line]
        assert found, (kernel, part, what)
        assert found[0][0] == times and found[0][1].startswith(cost), (kernel, part, what, found)


@pytest.mark.parametrize("kernels", sorted({Path(record["program"]).stem for record in COMMITTED}))
def test_the_committed_counts_are_those_of_this_code(tool, kernels):
    lucky = {"sectors held by L1", "sectors held by L2"}  # which of two blocks is first to read what both read

    def facts(records):
        return [(record["kernel"], {name: total for name, total in record["totals"].items() if name not in lucky})
                for record in records]
    assert facts(agreement.count_program(f"{kernels}.cu")) == facts(
        record for record in COMMITTED if record["program"] == f"{kernels}.cu")


@pytest.mark.parametrize("kernels", ["convolution"])
def test_constant_memory_is_no_request(tool, capfd, kernels):
    tool(kernels, "--count")
    assert "c_Kernel" not in {what.split()[-1] for _, _, what in counted(capfd.readouterr().out)}
