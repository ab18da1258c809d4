// bwd12 · Bulk copies in a ring, an early last sum
//
// In bwd11 every thread spends instructions on requesting its part of the next rows, and the kernel
// for the last sum is launched only when the first kernel has ended. Here one thread requests whole
// rows of x and dy from the copy engine, as in fwd08, up to three rows ahead. The kernel that adds
// up the blocks' sums is launched while the first one still runs.
//
// It should cost what a triad costs, 3·M·N elements, each moved once, plus the blocks' sums: the
// second launch, for which bwd11 waits, is hidden. The lesson says where that holds.
#include "common/kernel/chapter.h"
#include "common/kernel/hopper.h"
#include "common/kernel/reduce.h"
#include "common/kernel/vector.h"

namespace bwd12 {
using namespace lnc;

constexpr int kStages = 3;         // [1] of the ring, each with a slot for a row of x and one of dy
constexpr int kMaxThreads = 1024;  // [2] so rows of up to 16 KB
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
    full[stage].arrive_and_expect(2 * bytes);  // [3]
    bulk_load(slot, a.x + row * cols, bytes, full[stage]);
    bulk_load(slot + cols, a.dy + row * cols, bytes, full[stage]);
  };

  if (threadIdx.x == 0) {
    for (Barrier& barrier : full) barrier.init(1);
    fence_barrier_init();
    for (int stage = 0; stage < kStages; ++stage) request(blockIdx.x + stage * gridDim.x, stage);
  }
  launch_dependents();  // [4] add_partials may start; it waits for the end of this kernel

  float weight[kElements];
  float dweight[kElements] = {};
  float dbias[kElements] = {};
  to_floats(load_if<kElements>(col < cols, a.weight, col), weight);
  float next_mean = a.mean[blockIdx.x];  // [5]
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
    full[stage].wait(parity);  // [6]

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

    fence_proxy_async();  // [7] before the copy engine overwrites what this thread has read
    c = warp_sum(c);
    if (lane == 0) from_warp[stage][warp] = c;
    __syncthreads();  // [8] all sums are there, and the slot is free
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

/// Adds up the blocks' rows of partial sums: a lane has a column, the warps share the rows.
template <typename T>
__global__ void __launch_bounds__(kMaxThreads)
    add_partials(const float* partials, int blocks, T* dweight, T* dbias, int cols) {
  // exercise
  __shared__ float from_warp[kMaxWarps][kWarpSize];
  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  const int col = static_cast<int>(blockIdx.x) * kWarpSize + lane;  // of dweight, then of dbias

  grid_dependency_wait();  // [9]
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) {
    const int block = i * kMaxWarps + warp;
    sum += block < blocks && col < 2 * cols ? partials[int64_t{block} * 2 * cols + col] : 0.0f;
  }
  from_warp[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || col >= 2 * cols) return;
  for (int other = 1; other < kMaxWarps; ++other) sum += from_warp[other][lane];
  (col < cols ? dweight[col] : dbias[col - cols]) = from_float<T>(sum);
}

/// [10] Two blocks a multiprocessor, or one where a row takes more than half of its 1024 threads;
/// no more than rows, or than the last sum takes.
int64_t blocks_of(int64_t rows, int64_t row_bytes) {
  const int64_t resident = multiprocessors() * (row_bytes <= kMaxThreads / 2 * 16 ? 2 : 1);
  return std::min({rows, resident, int64_t{kMaxBlocks}});
}

template <typename T>
void run(const BackwardArgs<T>& a) {
  const int64_t row_bytes = a.cols * sizeof(T);
  const auto blocks = static_cast<unsigned>(blocks_of(a.rows, row_bytes));
  const unsigned threads = blocks_for(row_bytes, 16 * kWarpSize) * kWarpSize;
  const std::size_t ring_bytes = kStages * 2 * row_bytes;
  auto* const partials = static_cast<float*>(a.workspace);
  launch(layer_norm_backward<T>, {blocks, threads, ring_bytes, a.stream}, a, partials);
  launch(add_partials<T>,
         {.grid = blocks_for(2 * a.cols, kWarpSize),
          .block = kMaxThreads,
          .stream = a.stream,
          .starts_early = true},
         partials, static_cast<int>(blocks), a.dweight, a.dbias, static_cast<int>(a.cols));
}

const Registration registration{{
    .id = "bwd12",
    .title = "Bulk copies in a ring, an early last sum",
    .teaches = "the copy engine brings the next rows; the last sum is launched before it is needed",
    .source = "this repository",
    .parent = "bwd11",
    .road = Road::Main,
    .kinds = {Kind::Layer},
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

}  // namespace bwd12
