// copy00 · The machine
//
// The smallest kernel that does something: it copies x to y. It has no rows and no sums, and no
// thread depends on another. What it costs is what the machine costs.
//
// It should cost a launch, and one read and one write of every byte. No kernel that reads x and
// writes y can cost less, so a copy is the roof of every forward chapter.
#include "common/kernel/chapter.h"

namespace copy00 {
using namespace lnc;

constexpr int kThreadsPerBlock = 256;

template <typename T>
__global__ void copy(const T* x, T* y, int64_t count) {
  // exercise
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;  // [1] the thread's own element
  if (i >= count) return;  // [2] the last block may have more threads than elements
  y[i] = x[i];             // [3] a load, and a store that waits for it
}

template <typename T>
void run(const CopyArgs<T>& a) {
  const unsigned blocks = blocks_for(a.count, kThreadsPerBlock);
  launch(copy<T>, {blocks, kThreadsPerBlock, 0, a.stream}, a.x, a.y, a.count);  // [4]
}

const Registration registration{{
    // [5] What the chapter says of itself, as data
    .id = "copy00",
    .title = "The machine",
    .teaches = "threads, warps and memory, on a kernel that only copies",
    .source = "this repository",
    .parent = "",
    .max_elements = kMaxGridX * kThreadsPerBlock,  // a grid has 2^31 - 1 blocks at most
    .run = CopyLaunchers{run<float>, run<__half>, run<__nv_bfloat16>},
    .predicted_bytes = [](const Problem& p, const Gpu&) { return 2 * p.tensor_bytes(); },  // [6]
}};

}  // namespace copy00
