// fwd09 · A row over a cluster
//
// The registers of a block limit fwd06 to 16 384 halves per row. For y it would have to read a
// wider row again, from L2 or device memory, as fwd05 does. Hopper starts up to 16 blocks together
// as a cluster, and each of them may write to the others' shared memory. Here the blocks of a
// cluster hold a row in registers, each warp a piece of it. A warp sends the mean and the squares
// of its piece, 8 bytes, to every block. Then each warp merges the moments of all pieces into the
// row's mean and variance, and computes y for its own piece.
//
// It should cost what a copy costs, 2·M·N elements, each moved once, plus one exchange between
// multiprocessors if no other cluster has work to hide it.
#include "common/kernel/chapter.h"
#include "common/kernel/hopper.h"
#include "common/kernel/reduce.h"
#include "common/kernel/vector.h"

namespace fwd09 {
using namespace lnc;

constexpr int kVectors = 8;    // 16-byte vectors of x, weight and bias each, in registers
constexpr int kThreads = 128;  // [1] small blocks: while one waits for its cluster, others load
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kResident = 4;  // blocks of a multiprocessor: 128 registers a thread
constexpr int kBlockVectors = kThreads * kVectors;  // 16 KB of a row
constexpr int kMostBlocks = 16;                     // [2] of a cluster
constexpr int kMostPieces = kMostBlocks * kWarps;   // of a row: one for each warp

/// What the other warps learn about a piece.
struct Moments {
  float mean;
  float squares;  ///< of the distances from that mean, summed
};

/// A piece has `piece_vectors` vectors; the last pieces of a row may have fewer, or none.
template <typename T>
__global__ void __launch_bounds__(kThreads, kResident)
    layer_norm_forward(ForwardArgs<T> a, int piece_vectors) {
  // exercise
  constexpr int kElements = kVectorElements<T>;
  using V = Packed<T, kElements>;
  __shared__ Moments received[kMostPieces];  // of all pieces of the row, in every block
  __shared__ Barrier arrived;

  const int blocks = cluster_size();
  const int pieces = blocks * kWarps;
  const int piece = cluster_rank() * kWarps + threadIdx.x / kWarpSize;  // [3] this warp's
  const int lane = threadIdx.x % kWarpSize;
  const int64_t row = blockIdx.x / blocks;
  const int row_vectors = static_cast<int>(a.cols) / kElements;
  const int first = piece * piece_vectors + lane;  // this lane's first vector of the row
  const int end = min((piece + 1) * piece_vectors, row_vectors);
  const auto columns_of = [=](int p) {  // that piece p has
    return max(min(row_vectors - p * piece_vectors, piece_vectors), 0) * kElements;
  };

  if (threadIdx.x == 0) {
    arrived.init(1);
    fence_barrier_init();
    arrived.arrive_and_expect(pieces * sizeof(Moments));  // [4] and waits for all bytes
  }

  const V* x = reinterpret_cast<const V*>(a.x) + row * row_vectors;
  const V* w = reinterpret_cast<const V*>(a.weight);
  const V* b = reinterpret_cast<const V*>(a.bias);
  V mine[kVectors], weight[kVectors], bias[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int at = first + i * kWarpSize;
    mine[i] = at < end ? x[at] : V{};
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {  // [5] early, so that no warp waits after the exchange
    const int at = first + i * kWarpSize;
    weight[i] = at < end ? w[at] : V{};
    bias[i] = at < end ? b[at] : V{};
  }

  cluster_arrive_relaxed();  // [6] this block's Barrier is ready

  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    float value[kElements];
    to_floats(mine[i], value);
    for (int k = 0; k < kElements; ++k) sum += value[k];  // [7] zeros beyond the piece
  }
  const float piece_mean = warp_sum(sum) / static_cast<float>(max(columns_of(piece), 1));

  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (first + i * kWarpSize >= end) continue;
    float value[kElements];
    to_floats(mine[i], value);
    for (int k = 0; k < kElements; ++k) {
      const float centred = value[k] - piece_mean;
      squares += centred * centred;
    }
  }
  const Moments moments{piece_mean, warp_sum(squares)};

  cluster_wait();  // every other block's Barrier is initialised
  if (lane < blocks) remote_store_async(&received[piece], lane, moments, arrived);  // [8]
  arrived.wait_at_cluster_scope(0);  // [9] all pieces have arrived, from all blocks

  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  sum = 0.0f;
#pragma unroll 1
  for (int p = lane; p < pieces; p += kWarpSize) {
    sum += columns_of(p) * received[p].mean;
  }
  const float mean = warp_sum(sum) * inverse_cols;
  squares = 0.0f;
#pragma unroll 1
  for (int p = lane; p < pieces; p += kWarpSize) {  // [10]
    const float distance = received[p].mean - mean;
    squares += received[p].squares + columns_of(p) * distance * distance;
  }
  const float rstd = rsqrtf(warp_sum(squares) * inverse_cols + a.eps);

  V* y = reinterpret_cast<V*>(a.y) + row * row_vectors;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int at = first + i * kWarpSize;
    if (at >= end) continue;
    float value[kElements], scale[kElements], shift[kElements];
    to_floats(mine[i], value);
    to_floats(weight[i], scale);
    to_floats(bias[i], shift);
    for (int k = 0; k < kElements; ++k) {
      value[k] = (value[k] - mean) * rstd * scale[k] + shift[k];
    }
    y[at] = from_floats<T>(value);
  }
  if (piece == 0 && lane == 0) {
    a.mean[row] = mean;
    a.rstd[row] = rstd;
  }
}

/// A cluster has as many blocks as its row needs, and two at least.
template <typename T>
void run(const ForwardArgs<T>& a) {
  const int64_t row_vectors = a.cols / kVectorElements<T>;
  const unsigned blocks = std::max(blocks_for(row_vectors, kBlockVectors), 2u);
  const auto piece_vectors = static_cast<int>(blocks_for(row_vectors, blocks * kWarps));
  const auto grid = static_cast<unsigned>(a.rows) * blocks;
  launch(layer_norm_forward<T>, {grid, kThreads, 0, a.stream, blocks}, a, piece_vectors);
}

const Registration registration{{
    .id = "fwd09",
    .title = "A row over a cluster",
    .teaches = "blocks share a row through distributed shared memory; one exchange of moments",
    .source = "QuACK",
    .parent = "fwd06",
    .road = Road::WideRows,
    .kinds = {Kind::Layer},
    .needs_affine = true,
    .needs_aligned = true,
    .min_architecture = 90,
    .max_row_bytes = int64_t{kMostBlocks} * kBlockVectors * 16,
    .max_row_bytes_because = "the registers of a cluster hold a whole row",
    .max_rows = kMaxGridX / kMostBlocks,
    .run = ForwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>},
    .predicted_bytes = [](const Problem& p, const Gpu&) -> std::int64_t {
      return 2 * p.tensor_bytes() + parameter_bytes(p);
    },
}};

}  // namespace fwd09
