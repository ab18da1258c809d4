// lib_fwd_cluster_unaligned · Wide unaligned rows in the registers of a cluster
//
// Rows of up to 512 KB that start anywhere, layer and RMS norm, on Hopper; meant for rows too wide
// for lib_fwd_unaligned. A cluster of 2 to 16 blocks holds a row in registers: each warp has a
// piece of the row's whole vectors, and single lanes have the edges. It exchanges the moments of
// the pieces once, and retires.
//
// Parts: shifted_rows.h (whole vectors of an unaligned row, weight and bias shifted into place;
// fwd16), pieces.h and clusters.h (moments, cluster, exchange; fwd09, fwd04).
//
// Measurements behind the constants, on an H100 with 128 MiB, layer norm:
// - Vectors per lane: 20 001 columns of bf16 take 104 µs with six and 108 with eight or four;
//   100 003 columns take 115 with eight and 124 with six; 12 289 columns of f32 take 100 with six
//   and 105 with four.
// - Loading weight and bias after the exchange, one vector at a time: 104 µs at 20 001 columns of
//   bf16; two vectors at once, 120; the weight before the exchange, 128.
// - Clusters that retire after one row: 109 µs at bf16 1335 × 50257; persistent clusters, 116 to
//   127.
// - The result: 102 µs at bf16 5460 × 12289, 109 at 1335 × 50257, 100 at f32 2730 × 12289; a copy
//   takes 94. If x and y start at different offsets, 161 at 5460 × 12289. Up to 8192 columns
//   lib_fwd_unaligned is much faster.
#include "common/kernel/chapter.h"
#include "common/kernel/clusters.h"
#include "common/kernel/hopper.h"
#include "common/kernel/kinds.h"
#include "common/kernel/pieces.h"
#include "common/kernel/shifted_rows.h"

namespace lib_fwd_cluster_unaligned {
using namespace lnc;

constexpr int kMostWarps = 8;  // of a block
constexpr int kSmBlocks = 3;   // of so many warps on a multiprocessor: 80 registers a thread
constexpr int kMostPieces = kMostClusterBlocks * kMostWarps;
constexpr int kFewVectors = 6;   // of a lane
constexpr int kMostVectors = 8;  // of a lane

/// A cluster of `blocks` blocks has a row, and each of its warps a piece of it. The row has
/// `vectors` whole vectors; the other columns are edges.
template <typename T, typename W, Kind kKind, int kVectors>
__global__ void __launch_bounds__(kMostWarps* kWarpSize, kSmBlocks)
    layer_norm_forward(ForwardArgs<T, W> a, int blocks, int vectors, float inverse_cols) {
  __shared__ Barrier met;
  __shared__ Moments moments[1][kMostPieces];
  const int lane = threadIdx.x % kWarpSize;
  const int warps = blockDim.x / kWarpSize;
  const int pieces = blocks * warps;
  // Numbered over the cluster. Piece 0 has the edges; a piece past the row's end sends empty
  // moments.
  const int piece = cluster_rank() * warps + threadIdx.x / kWarpSize;
  const int64_t row = blockIdx.x / blocks;
  const T* const x_row = a.x + row * a.cols;
  T* const y_row = a.y + row * a.cols;
  const W* const bias = kKind == Kind::Layer ? a.bias : nullptr;
  if (threadIdx.x == 0) {
    met.init(1);
    fence_barrier_init();
  }

  const RowShare<kVectors> own(y_row, static_cast<int>(a.cols), vectors, piece);
  auto values = load_row(x_row, y_row, own);
  cluster_arrive_relaxed();
  // Once for all clusters, while x is in flight.
  if (row == 0) ask_for_parameters<T>(a.weight, bias, own);

  const Moments of_piece[] = {piece_moments<kKind>(values, own)};
  exchange_moments(of_piece, moments, met, blocks, pieces, piece);
  const Normaliser of_row =
      merge_moments<kKind, kMostPieces>(moments[0], pieces, inverse_cols, a.eps);
  if (piece == 0 && lane == 0) store_statistics<kKind>(a, row, of_row);
  // Weight and bias are loaded late, a vector at a time: early they would need 48 registers besides
  // the 24 of x.
  store_row<kKind>(y_row, values, of_row, a.weight, bias, own);
}

/// Eight vectors a lane if that costs more than a sixteenth less.
Cut cut_for(int64_t vectors, int most_blocks) {
  const Cut few = cut_row(vectors, {kFewVectors}, most_blocks, kMostWarps);
  const Cut many = cut_row(vectors, {kMostVectors}, most_blocks, kMostWarps);
  const bool costs_less = many.cost() < few.cost() - few.cost() / 16;
  return few.blocks == 0 || costs_less ? many : few;
}

/// Launches clusters for rows of `vectors` whole vectors that are cut like this. Returns false if
/// the GPU holds none.
template <Kind kKind, int kVectors, typename T, typename W>
bool run_cut(const ForwardArgs<T, W>& a, const Cut& cut, int vectors) {
  const LaunchConfig config = cluster_of(cut.blocks, cut.warps, 0, a.stream);
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  return launch_clusters(layer_norm_forward<T, W, kKind, kVectors>, config, a.rows, a, cut.blocks,
                         vectors, inverse_cols);
}

template <typename T, typename W>
void run(const ForwardArgs<T, W>& a) {
  const int vectors = whole_vectors<T>(a.cols);
  with_kind(a.kind, [&](auto kind) {
    launch_in_largest_cluster("lib_fwd_cluster_unaligned", a.cols, [&](int most_blocks) {
      const Cut cut = cut_for(std::max(vectors, 1), most_blocks);
      if (cut.blocks == 0) return false;
      if (cut.vectors == kFewVectors) return run_cut<kind(), kFewVectors>(a, cut, vectors);
      return run_cut<kind(), kMostVectors>(a, cut, vectors);
    });
  });
}

const Registration registration{{
    .id = "lib_fwd_cluster_unaligned",
    .title = "Wide unaligned rows in the registers of a cluster",
    .teaches = "rows of up to 512 KB that start anywhere, read once",
    .source = "this repository",
    .road = Road::Library,
    .usual_cols = 2049,
    .shares_by_address = true,
    .min_architecture = 90,
    .keeps_digits_at_large_means = true,
    .max_row_bytes = int64_t{kMostPieces} * kMostVectors * kWarpSize * 16,
    .max_row_bytes_because = "the registers of a cluster hold a row",
    .max_rows = kMaxGridX / kMostClusterBlocks,
    .run = ForwardLaunchers::every([](const auto& args) { run(args); }),
    .predicted_bytes = least_bytes<Direction::Forward>,
}};

}  // namespace lib_fwd_cluster_unaligned
