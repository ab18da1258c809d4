// bwd20 · Columns over GPUs, backward
//
// bwd12 needs whole rows on one GPU. Here, as in fwd17, each GPU has a slice of every row of x and
// dy. The gradient of a slice needs two sums over the whole row: of wdy · xhat and of wdy. Each GPU
// sends its part of both to every other GPU while other rows load, and adds up the parts of all.
// dweight and dbias belong to columns, so they need nothing from other GPUs.
//
// It should cost what bwd12 costs on one GPU's slice, plus one message at the end. The message does
// not cost more, but the kernel takes up to 18 % longer than bwd12 even on a single GPU, where it
// reads x and dy of a row twice from shared memory. The lesson says how much of that is known.
#include "common/kernel/chapter.h"
#include "common/kernel/hopper.h"
#include "common/kernel/peers.h"
#include "common/kernel/reduce.h"
#include "common/kernel/vector.h"

namespace bwd20 {
using namespace lnc;

constexpr int kWarps = 8;    // that compute; one more exchanges
constexpr int kVectors = 2;  // 16-byte vectors of x and dy each in a thread: slices of up to 8 KB
constexpr int kPiece = kVectors * kWarpSize;  // vectors of a warp
constexpr int kThreads = (kWarps + 1) * kWarpSize;
constexpr int kResident = 2;          // blocks of a multiprocessor
constexpr int kAnswer = 2;            // [1] rows between a message and its answer
constexpr int kBehind = kAnswer + 1;  // rows between a row's sums and its dx
constexpr int kStages = 6;            // of the ring: kBehind + 1 rows in use, two in flight
constexpr int kSumWarps = 32;         // of a block of the second kernel

/// What a row's dx needs besides x, dy and the weight.
struct Terms {
  float c1, c2, mean, rstd;
};

/// Block b leaves its sums in row b of `partials`: those for dweight, then those for dbias.
template <typename T>
__global__ void __launch_bounds__(kThreads, kResident)
    layer_norm_backward(BackwardArgs<T> a, float* partials, Peers peers) {
  // exercise
  constexpr int kElements = kVectorElements<T>;
  using V = Packed<T, kElements>;
  __shared__ Barrier full[kStages];   // the row has arrived
  __shared__ Barrier told[kStages];   // the warps have left their sums of it
  __shared__ Barrier known[kStages];  // its terms are there
  __shared__ float2 sums[kStages][kWarps];
  __shared__ Terms terms[kStages];
  V* const ring = dynamic_shared<V>();  // [stage][x, dy][vector]

  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  const int row_vectors = static_cast<int>(a.cols) / kElements;  // of the slice
  const int rows = static_cast<int>((a.rows - blockIdx.x + gridDim.x - 1) / gridDim.x);
  const auto row_of = [&](int n) { return blockIdx.x + n * int64_t{gridDim.x}; };
  const auto parity_of = [](int n) { return n / kStages % 2; };
  const auto request = [&](int n) {  // the block's row n, by one thread
    if (n >= rows) return;
    const auto bytes = static_cast<unsigned>(a.cols * sizeof(T));
    const int stage = n % kStages;
    V* const slot = ring + stage * 2 * row_vectors;
    full[stage].arrive_and_expect(2 * bytes);
    bulk_load(slot, a.x + row_of(n) * a.cols, bytes, full[stage]);
    bulk_load(slot + row_vectors, a.dy + row_of(n) * a.cols, bytes, full[stage]);
  };

  if (threadIdx.x == kWarps * kWarpSize) {
    for (Barrier& barrier : full) barrier.init(1);
    for (Barrier& barrier : told) barrier.init(kWarps);
    for (Barrier& barrier : known) barrier.init(1);
    fence_barrier_init();
    for (int n = 0; n < kStages; ++n) request(n);
  }
  launch_dependents();  // [2] add_partials may start; it waits for the end of this kernel
  __syncthreads();

  if (warp == kWarps) {  // the warp that exchanges
    const unsigned epoch = epoch_of_launch(peers);
    __syncwarp();
    if (lane == 0) advance_epoch(peers, epoch);
    for (int n = 0; n < rows + kAnswer; ++n) {
      const int64_t row = n < kAnswer ? 0 : row_of(n - kAnswer);  // whose answer is due
      const float mean = a.mean[row];  // [3] requested before the wait for the warps
      const float rstd = a.rstd[row];

      if (n < rows) {
        const int stage = n % kStages;
        told[stage].wait(parity_of(n));
        __syncwarp();  // every lane has read the earlier rows' sums, which request() lets go
        if (lane == 0 && n > kBehind) request(n - kBehind - 1 + kStages);  // [4]
        const float2 sum = warp_sum(lane < kWarps ? sums[stage][lane] : float2{});
        const Word word{sum.x, sum.y, static_cast<float>(a.cols)};  // [5]
        if (lane < peers.ranks) send(peers, epoch, row_of(n), lane, word);
      }

      if (n >= kAnswer) {
        const int stage = (n - kAnswer) % kStages;
        const Word part = lane < peers.ranks ? receive(peers, epoch, row, lane) : Word{};
        const float inverse_cols = 1.0f / warp_sum(part.third);             // of the whole row
        const float2 sum = warp_sum(make_float2(part.first, part.second));  // [6]
        if (lane == 0) {
          terms[stage] = {sum.x * inverse_cols, sum.y * inverse_cols, mean, rstd};  // [7]
          known[stage].arrive();
        }
      }
    }
    return;
  }

  const int first = warp * kPiece + lane;
  V weight[kVectors];
  float dweight[kVectors][kElements] = {};
  float dbias[kVectors][kElements] = {};
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int at = first + i * kWarpSize;
    weight[i] = at < row_vectors ? reinterpret_cast<const V*>(a.weight)[at] : V{};
  }
  float next_mean = a.mean[blockIdx.x];
  float next_rstd = a.rstd[blockIdx.x];

  for (int n = 0; n < rows + kBehind; ++n) {
    if (n < rows) {  // the sums of row n
      const float mean = next_mean;
      const float rstd = next_rstd;
      const int64_t next_row = row_of(min(n + 1, rows - 1));
      next_mean = a.mean[next_row];
      next_rstd = a.rstd[next_row];
      const int stage = n % kStages;
      full[stage].wait(parity_of(n));
      const V* const slot = ring + stage * 2 * row_vectors;

      float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        const int at = first + i * kWarpSize;
        if (at >= row_vectors) continue;
        stay_packed(weight[i]);
        float x[kElements], dy[kElements], w[kElements];
        to_floats(slot[at], x);
        to_floats(slot[row_vectors + at], dy);
        to_floats(weight[i], w);
        for (int k = 0; k < kElements; ++k) {
          const float xhat = (x[k] - mean) * rstd;
          const float wdy = w[k] * dy[k];
          sum.x += wdy * xhat;
          sum.y += wdy;
          dweight[i][k] += dy[k] * xhat;
          dbias[i][k] += dy[k];
        }
      }
      sum = warp_sum(sum);
      if (lane == 0) {
        sums[stage][warp] = sum;
        told[stage].arrive();
      }
    }

    if (n >= kBehind) {  // dx of a row whose answer has come
      const int stage = (n - kBehind) % kStages;
      known[stage].wait(parity_of(n - kBehind));
      const auto [c1, c2, mean, rstd] = terms[stage];
      const V* const slot = ring + stage * 2 * row_vectors;
      V* const dx = reinterpret_cast<V*>(a.dx + row_of(n - kBehind) * a.cols);
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        const int at = first + i * kWarpSize;
        if (at >= row_vectors) continue;
        stay_packed(weight[i]);
        float x[kElements], dy[kElements], w[kElements];
        to_floats(slot[at], x);  // [8] again, from the ring
        to_floats(slot[row_vectors + at], dy);
        to_floats(weight[i], w);
        for (int k = 0; k < kElements; ++k) {
          const float xhat = (x[k] - mean) * rstd;
          x[k] = rstd * (w[k] * dy[k] - c2 - xhat * c1);
        }
        dx[at] = from_floats<T>(x);
      }
      fence_proxy_async();  // [9] before a bulk copy overwrites the slot
      __syncwarp();
    }
  }

  float* const partial = partials + int64_t{blockIdx.x} * 2 * a.cols;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int at = first + i * kWarpSize;
    if (at >= row_vectors) continue;
    store(partial, at * kElements, dweight[i]);
    store(partial + a.cols, at * kElements, dbias[i]);
  }
}

/// Adds up the blocks' rows of partial sums: a lane has a column, the warps share the rows.
template <typename T>
__global__ void __launch_bounds__(kSumWarps* kWarpSize)
    add_partials(const float* partials, int blocks, T* dweight, T* dbias, int cols) {
  // exercise
  __shared__ float of_warp[kSumWarps][kWarpSize];
  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  const int col = static_cast<int>(blockIdx.x) * kWarpSize + lane;  // of dweight, then of dbias

  grid_dependency_wait();
  float sum = 0.0f;
#pragma unroll 8
  for (int block = warp; block < blocks; block += kSumWarps) {
    sum += col < 2 * cols ? partials[int64_t{block} * 2 * cols + col] : 0.0f;
  }
  of_warp[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || col >= 2 * cols) return;
  for (int other = 1; other < kSumWarps; ++other) sum += of_warp[other][lane];
  (col < cols ? dweight[col] : dbias[col - cols]) = from_float<T>(sum);
}

/// [10] On each GPU as many blocks as it holds at once, if there are rows for them.
int64_t blocks_of(int64_t rows) { return std::min<int64_t>(rows, kResident * multiprocessors()); }

template <typename T>
void run(const BackwardArgs<T>& a) {
  const auto blocks = static_cast<unsigned>(blocks_of(a.rows));
  const std::size_t ring_bytes = kStages * 2 * a.cols * sizeof(T);
  auto* const partials = static_cast<float*>(a.workspace);
  launch(layer_norm_backward<T>, {blocks, kThreads, ring_bytes, a.stream}, a, partials, *a.peers);
  launch(add_partials<T>,
         {.grid = blocks_for(2 * a.cols, kWarpSize),
          .block = kSumWarps * kWarpSize,
          .stream = a.stream,
          .starts_early = true},
         partials, static_cast<int>(blocks), a.dweight, a.dbias, static_cast<int>(a.cols));
}

const Registration registration{{
    .id = "bwd20",
    .title = "Columns over GPUs, backward",
    .teaches = "c1 and c2 cross the link while other rows load; dweight and dbias stay local",
    .source = "NCCL's device API",
    .parent = "bwd12",
    .road = Road::Gpus,
    .kinds = {Kind::Layer},
    .split = Split::Columns,
    .needs_affine = true,
    .needs_aligned = true,
    .min_architecture = 90,
    .max_row_bytes = kWarps * kPiece * 16,
    .max_row_bytes_because = "a block's threads have two vectors of a slice each",
    .run = BackwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>},
    .predicted_bytes = [](const Problem& p, const Gpu&) -> std::int64_t {
      return 3 * p.tensor_bytes() + parameter_bytes(p);
    },
    .workspace_bytes = [](const Problem& p) -> std::int64_t {
      return blocks_of(p.rows) * 2 * p.cols * std::int64_t{sizeof(float)};
    },
}};

}  // namespace bwd20
