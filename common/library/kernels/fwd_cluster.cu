// lib_fwd_cluster · Wide rows in the registers of a cluster
//
// Aligned rows of up to 256 KB, layer and RMS norm, on Hopper. A cluster of 2 to 16 blocks holds
// two neighbouring rows in registers, exchanges the moments of their pieces once, and retires.
// Blocks have only four warps, so several clusters share the same multiprocessors: while one waits
// for moments, others load. Each cluster loads weight and bias once for both rows, before the
// exchange.
//
// Parts: pieces.h (the moments of a piece, merging them, cutting a row), clusters.h (the exchange,
// the launch), vector.h (fwd06). fwd09 teaches the cluster and the exchange, fwd04 the mean in two
// floats.
//
// Measurements behind the constants, on an H100 with 128 MiB of bf16, layer norm:
// - kRows: two rows take 100 µs at 512 × 131072, one row 105. Four are 2 to 42 % slower.
// - kMostWarps: at 2048 × 131072, blocks of 128 threads with eight vectors take 371 µs, and blocks
//   of 256 threads with four vectors 427.
// - Vectors per lane: 2048 × 32768 takes 95.8 µs in eight blocks with four vectors per lane, and
//   96.8 in four blocks with eight; 1365 × 49152 takes 99.7 in twelve blocks, and 96.5 in six with
//   eight vectors.
// - Arrival at the cluster's barrier after the loads: 96 µs at 2048 × 32768; before them, 111.
// - The result: 363 µs at bf16 4096 × 65536, 99 % of a copy's speed, as at 16384 × 16384; 12.2 at
//   128 × 32768, which is 8 MiB.
#include "common/kernel/chapter.h"
#include "common/kernel/clusters.h"
#include "common/kernel/hopper.h"
#include "common/kernel/kinds.h"
#include "common/kernel/moments.h"
#include "common/kernel/pieces.h"
#include "common/kernel/reduce.h"
#include "common/kernel/vector.h"

namespace lib_fwd_cluster {
using namespace lnc;

constexpr int kRows = 2;       // of a cluster; with an odd number the last row is absent
constexpr int kMostWarps = 4;  // of a block: small, so that a multiprocessor has several
constexpr int kMostPieces = kMostClusterBlocks * kMostWarps;
constexpr int kFewVectors = 4;  // of a thread, in each row
constexpr int kMostVectors = 8;

/// Blocks for which a multiprocessor has registers; without this limit nvcc takes any number. float
/// parameters with 16-bit x take 64 registers each, so two blocks fit, not three.
template <typename T, typename W, int kVectors>
constexpr int kSmBlocks = kVectors == kFewVectors  ? 4
                          : sizeof(W) == sizeof(T) ? 3
                                                   : 2;

/// The moments of a warp's piece of a row, of which a lane has the vectors x. Those from `there` on
/// are outside the row and hold 0.
template <Kind kKind, typename T, int kElements, int kVectors>
__device__ Moments piece_moments(Packed<T, kElements> (&x)[kVectors], int there, int columns) {
  float near = 0.0f;  // of the first vectors: the others may still be in flight
  if (kKind == Kind::Layer) {
    near = mean_of_first(x[0], 0.0f, min(columns, kWarpSize * kElements));
  }
  Deviations<kKind> sums{};
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    stay_packed(x[i]);  // else nvcc keeps the first as floats: twice the registers
    if (i < there) add_deviations(sums, near, x[i]);
  }
  return moments_of(columns, near, warp_sum(sums));
}

/// A cluster of `blocks` blocks has two neighbouring rows; each of its warps has a piece of both.
template <typename T, typename W, Kind kKind, int kVectors>
__global__ void __launch_bounds__(kMostWarps* kWarpSize, kSmBlocks<T, W, kVectors>)
    layer_norm_forward(ForwardArgs<T, W> a, int blocks) {
  constexpr int kElements = kVectorElements<T>;
  __shared__ Barrier met;
  __shared__ Moments moments[kRows][kMostPieces];
  const int lane = threadIdx.x % kWarpSize;
  const int warps = blockDim.x / kWarpSize;
  const int pieces = blocks * warps;
  const int piece = cluster_rank() * warps + threadIdx.x / kWarpSize;
  const int64_t first_row = int64_t{blockIdx.x / blocks} * kRows;
  const auto row_vectors = static_cast<int>(a.cols / kElements);
  const int before = piece * kVectors * kWarpSize;  // vectors of the row
  const int vectors = max(min(row_vectors - before, kVectors * kWarpSize), 0);
  const int there = (vectors - lane + kWarpSize - 1) / kWarpSize;  // of this lane
  const int64_t first_col = (int64_t{before} + lane) * kElements;
  constexpr int kStep = kWarpSize * kElements;  // columns from one vector of a lane to the next

  if (threadIdx.x == 0) {
    met.init(1);
    fence_barrier_init();
  }
  Packed<T, kElements> x[kRows][kVectors];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const bool has_row = first_row + r < a.rows;
    const T* x_row = a.x + (first_row + r) * a.cols + first_col;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      x[r][i] = load_if<kElements>(has_row && i < there, x_row, i * kStep);
    }
  }
  Packed<W, kElements> weight[kVectors];
  Packed<W, kElements> bias[kVectors];
  // Requested before the exchange, long before their use.
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int64_t col = first_col + i * kStep;
    const bool has_bias = kKind == Kind::Layer && a.bias != nullptr;
    weight[i] = load_if<kElements>(a.weight != nullptr && i < there, a.weight, col, 1.0f);
    bias[i] = load_if<kElements>(has_bias && i < there, a.bias, col, 0.0f);
  }

  // Placed after the loads, which nvcc does not move across it: before them, it delays the loads of
  // the bias.
  cluster_arrive_relaxed();

  Moments of_piece[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    of_piece[r] = piece_moments<kKind>(x[r], there, vectors * kElements);
  }
  exchange_moments(of_piece, moments, met, blocks, pieces, piece);

  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int64_t row = first_row + r;
    if (row >= a.rows) break;
    const Normaliser of_row =
        merge_moments<kKind, kMostPieces>(moments[r], pieces, inverse_cols, a.eps);
    if (piece == 0 && lane == 0) store_statistics<kKind>(a, row, of_row);
    auto* const y = reinterpret_cast<Packed<T, kElements>*>(a.y + row * a.cols + first_col);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (i >= there) continue;
      float values[kElements];
      normalise(x[r][i], of_row, weight[i], bias[i], values);
      y[i * kWarpSize] = from_floats<T>(values);
    }
  }
}

/// The cut of least cost, or blocks of four warps with few vectors a thread if these leave no more
/// places empty: they have less to add up before they send. In layer norm, which also loads a bias,
/// that pays only with up to eight blocks, and only instead of eight vectors.
template <Kind kKind>
Cut cut_of(int64_t vectors, int most_blocks) {
  const Cut any = cut_row(vectors, {kFewVectors, 6, kMostVectors}, most_blocks, kMostWarps);
  constexpr int kOfBlock = kMostWarps * kWarpSize * kFewVectors;
  const Cut few{static_cast<int>(blocks_for(vectors, kOfBlock)), kMostWarps, kFewVectors};
  const bool fits = few.blocks >= 2 && few.blocks <= most_blocks;
  const bool pays = kKind == Kind::Rms || (few.blocks <= 8 && any.vectors == kMostVectors);
  return fits && pays && few.places() <= any.places() ? few : any;
}

/// Launches clusters for rows that are cut like this. Returns false if the GPU holds none.
template <Kind kKind, int kVectors, typename T, typename W>
bool run_cut(const ForwardArgs<T, W>& a, const Cut& cut) {
  const LaunchConfig config = cluster_of(cut.blocks, cut.warps, 0, a.stream);
  return launch_clusters(layer_norm_forward<T, W, kKind, kVectors>, config,
                         blocks_for(a.rows, kRows), a, cut.blocks);
}

template <typename T, typename W>
void run(const ForwardArgs<T, W>& a) {
  const int64_t vectors = a.cols / kVectorElements<T>;
  with_kind(a.kind, [&](auto kind) {
    launch_in_largest_cluster("lib_fwd_cluster", a.cols, [&](int most_blocks) {
      const Cut cut = cut_of<kind()>(vectors, most_blocks);
      if (cut.blocks == 0) return false;
      if (cut.vectors == kFewVectors) return run_cut<kind(), kFewVectors>(a, cut);
      if (cut.vectors == 6) return run_cut<kind(), 6>(a, cut);
      return run_cut<kind(), kMostVectors>(a, cut);
    });
  });
}

const Registration registration{{
    .id = "lib_fwd_cluster",
    .title = "Wide rows in the registers of a cluster",
    .teaches = "rows of up to 256 KB read once, two at a time",
    .source = "QuACK",
    .road = Road::Library,
    .needs_aligned = true,
    .min_architecture = 90,
    .keeps_digits_at_large_means = true,
    .max_row_bytes = int64_t{kMostPieces} * kMostVectors * kWarpSize * 16,
    .max_row_bytes_because = "the registers of a cluster hold two rows",
    .max_rows = kMaxGridX / kMostClusterBlocks * kRows,
    .run = ForwardLaunchers::every([](const auto& args) { run(args); }),
    .predicted_bytes = least_bytes<Direction::Forward>,
}};

}  // namespace lib_fwd_cluster
