// bwd21 · Rows over GPUs
//
// In data-parallel training each GPU has rows of its own and all columns. dx then needs nothing
// from the other GPUs, but dweight and dbias are sums over the rows of all of them. Usually an
// all-reduce adds them up after the backward pass. Here the kernel of the last sum does it: as soon
// as a block has its GPU's sums of 32 columns, it sends them to every other GPU, waits for theirs,
// and adds them up in the order of the GPUs, so that all GPUs get the same bits in every run.
//
// It should cost what bwd12 costs on one GPU's rows, plus one message: the first kernel is bwd12's.
#include "common/kernel/chapter.h"
#include "common/kernel/hopper.h"
#include "common/kernel/peers.h"
#include "common/kernel/reduce.h"
#include "common/kernel/vector.h"

namespace bwd21 {
using namespace lnc;

constexpr int kStages = 3;         // of the ring, each with a slot for a row of x and one of dy
constexpr int kMaxThreads = 1024;  // so rows of up to 16 KB
constexpr int kMaxWarps = kMaxThreads / kWarpSize;
constexpr int kAtOnce = 10;  // loads of a thread in the last sum, all in flight together
constexpr int kMaxBlocks = kAtOnce * kMaxWarps;

/// Block b of B has the rows b, b + B, b + 2B, … and a thread a 16-byte vector of each. The block
/// leaves a row of `partials`: its sums for dweight, then those for dbias.
template <typename T>
__global__ void __launch_bounds__(kMaxThreads)
    layer_norm_backward(BackwardArgs<T> a, float* partials) {
  // exercise
  constexpr int kElements = kVectorElements<T>;
  __shared__ Barrier full[kStages];
  __shared__ float2 from_warp[kStages][kMaxWarps];
  T* const ring = dynamic_shared<T>();  // [stage][x, dy][column]
  const auto cols = static_cast<int>(a.cols);
  const int col = static_cast<int>(threadIdx.x) * kElements;  // the first of this thread's
  const unsigned warp = threadIdx.x / kWarpSize;
  const unsigned lane = threadIdx.x % kWarpSize;
  const float inverse_cols = 1.0f / static_cast<float>(cols);

  const auto request = [&](int64_t row, int stage) {  // by one thread
    if (row >= a.rows) return;
    const auto bytes = static_cast<unsigned>(cols * sizeof(T));
    T* const slot = ring + stage * 2 * cols;
    full[stage].arrive_and_expect(2 * bytes);
    bulk_load(slot, a.x + row * cols, bytes, full[stage]);
    bulk_load(slot + cols, a.dy + row * cols, bytes, full[stage]);
  };

  if (threadIdx.x == 0) {
    for (Barrier& barrier : full) barrier.init(1);
    fence_barrier_init();
    for (int stage = 0; stage < kStages; ++stage) request(blockIdx.x + stage * gridDim.x, stage);
  }
  launch_dependents();  // add_partials may start; it waits for the end of this kernel

  float weight[kElements];
  float dweight[kElements] = {};
  float dbias[kElements] = {};
  to_floats(load_if<kElements>(col < cols, a.weight, col), weight);
  float next_mean = a.mean[blockIdx.x];
  float next_rstd = a.rstd[blockIdx.x];
  __syncthreads();  // the barriers are initialised

  int stage = 0;
  unsigned parity = 0;
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const float mean = next_mean;
    const float rstd = next_rstd;
    const int64_t next_row = min(row + gridDim.x, a.rows - 1);
    next_mean = a.mean[next_row];
    next_rstd = a.rstd[next_row];
    full[stage].wait(parity);

    const T* const slot = ring + stage * 2 * cols;
    float xhat[kElements], dy[kElements], wdy[kElements], dx[kElements];
    to_floats(load_if<kElements>(col < cols, slot, col), xhat);
    to_floats(load_if<kElements>(col < cols, slot + cols, col), dy);
    float2 c = make_float2(0.0f, 0.0f);
    for (int k = 0; k < kElements; ++k) {
      xhat[k] = (xhat[k] - mean) * rstd;
      wdy[k] = weight[k] * dy[k];
      c.x += wdy[k] * xhat[k];
      c.y += wdy[k];
      dweight[k] += dy[k] * xhat[k];
      dbias[k] += dy[k];
    }

    fence_proxy_async();  // before the copy engine overwrites what this thread has read
    c = warp_sum(c);
    if (lane == 0) from_warp[stage][warp] = c;
    __syncthreads();  // all sums are there, and the slot is free
    if (threadIdx.x == 0) request(row + kStages * int64_t{gridDim.x}, stage);

    c = warp_sum(lane < blockDim.x / kWarpSize ? from_warp[stage][lane] : float2{});
    const float c1 = c.x * inverse_cols;
    const float c2 = c.y * inverse_cols;
    for (int k = 0; k < kElements; ++k) dx[k] = rstd * (wdy[k] - c2 - xhat[k] * c1);
    if (col < cols) store(a.dx, row * cols + col, dx);
    stage = stage + 1 < kStages ? stage + 1 : 0;
    parity ^= stage == 0;  // once around, every mbarrier is a phase further
  }

  if (col >= cols) return;
  float* const partial = partials + int64_t{blockIdx.x} * 2 * cols;
  store(partial, col, dweight);
  store(partial, cols + col, dbias);
}

/// Adds up the blocks' sums, then those of all GPUs. A lane has a column, of dweight and of dbias.
template <typename T>
__global__ void __launch_bounds__(kMaxThreads)
    add_partials(const float* partials, int blocks, T* dweight, T* dbias, int cols, Peers peers) {
  // exercise
  __shared__ float2 from_warp[kMaxWarps][kWarpSize];
  __shared__ float2 from_gpu[kMaxGpus][kWarpSize];
  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  const unsigned epoch = epoch_of_launch(peers);  // [1]
  __syncthreads();
  if (threadIdx.x == 0) advance_epoch(peers, epoch);
  grid_dependency_wait();

  const int step = static_cast<int>(gridDim.x) * kWarpSize;
  for (int begin = static_cast<int>(blockIdx.x) * kWarpSize; begin < cols; begin += step) {  // [2]
    const int col = begin + lane;
    float2 of_block[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int block = i * kMaxWarps + warp;
      const bool there = block < blocks && col < cols;
      const float* const partial = partials + int64_t{block} * 2 * cols + col;
      of_block[i].x = there ? partial[0] : 0.0f;
      of_block[i].y = there ? partial[cols] : 0.0f;
    }
    float2 sum = make_float2(0.0f, 0.0f);
    for (const float2& one : of_block) {
      sum.x += one.x;
      sum.y += one.y;
    }
    from_warp[warp][lane] = sum;
    __syncthreads();

    if (warp < peers.ranks && col < cols) {  // [3] each of these warps exchanges with one GPU
      sum = make_float2(0.0f, 0.0f);
      for (int other = 0; other < kMaxWarps; ++other) {
        sum.x += from_warp[other][lane].x;
        sum.y += from_warp[other][lane].y;
      }
      send(peers, epoch, col, warp, {sum.x, sum.y});
      const Word word = receive(peers, epoch, col, warp);
      from_gpu[warp][lane] = make_float2(word.first, word.second);
    }
    __syncthreads();

    if (warp == 0 && col < cols) {
      sum = from_gpu[0][lane];
      for (int gpu = 1; gpu < peers.ranks; ++gpu) {  // [4] on all GPUs alike
        sum.x += from_gpu[gpu][lane].x;
        sum.y += from_gpu[gpu][lane].y;
      }
      dweight[col] = from_float<T>(sum.x);
      dbias[col] = from_float<T>(sum.y);
    }
  }
}

/// Two blocks a multiprocessor, or one where a row takes more than half of its 1024 threads; no
/// more than rows, or than the last sum takes.
int64_t blocks_of(int64_t rows, int64_t row_bytes) {
  const int64_t resident = multiprocessors() * (row_bytes <= kMaxThreads / 2 * 16 ? 2 : 1);
  return std::min({rows, resident, int64_t{kMaxBlocks}});
}

template <typename T>
void run(const BackwardArgs<T>& a) {
  const int64_t row_bytes = a.cols * sizeof(T);
  const auto blocks = static_cast<unsigned>(blocks_of(a.rows, row_bytes));  // [5] 0 without rows
  const unsigned threads = blocks_for(row_bytes, 16 * kWarpSize) * kWarpSize;
  const std::size_t ring_bytes = kStages * 2 * row_bytes;
  auto* const partials = static_cast<float*>(a.workspace);
  launch(layer_norm_backward<T>, {blocks, threads, ring_bytes, a.stream}, a, partials);
  const auto sums = static_cast<int64_t>(blocks_for(a.cols, kWarpSize));
  launch(
      add_partials<T>,
      {.grid = static_cast<unsigned>(std::min<int64_t>(sums, multiprocessors())),
       .block = kMaxThreads,
       .stream = a.stream,
       .starts_early = blocks > 0},  // else it would follow the last launch's, whose epoch it reads
      partials, static_cast<int>(blocks), a.dweight, a.dbias, static_cast<int>(a.cols), *a.peers);
}

const Registration registration{{
    .id = "bwd21",
    .title = "Rows over GPUs",
    .teaches = "the last sum adds up the sums of all GPUs, in their order, as soon as they exist",
    .source = "NCCL's device API",
    .parent = "bwd12",
    .road = Road::Gpus,
    .kinds = {Kind::Layer},
    .split = Split::Rows,
    .needs_affine = true,
    .needs_aligned = true,
    .min_architecture = 90,
    .max_row_bytes = kMaxThreads * 16,
    .max_row_bytes_because = "each of a block's threads has one vector of a row",
    .run = BackwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>},
    .predicted_bytes = [](const Problem& p, const Gpu&) -> std::int64_t {
      return 3 * p.tensor_bytes() + parameter_bytes(p);
    },
    .workspace_bytes = [](const Problem& p) -> std::int64_t {
      return blocks_of(p.rows, p.cols * p.element_bytes()) * 2 * p.cols *
             std::int64_t{sizeof(float)};
    },
}};

}  // namespace bwd21
