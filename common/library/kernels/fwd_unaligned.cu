// lib_fwd_unaligned · Unaligned rows in registers, weight and bias shifted
//
// Rows of up to 36 KB that start anywhere, layer and RMS norm, on every GPU. A warp or a block has
// a row, and retires after it. Vectors start at y's 16-byte boundaries. Weight and bias start at
// other offsets, so a thread loads the two whole vectors that contain each of its vectors and
// shifts the elements into place. Single lanes handle the edges, up to 15 elements at the row's
// ends.
//
// Parts: shifted_rows.h (whole vectors, edges, shifts; fwd16), pieces.h (moments of a warp's piece
// and merging them; fwd09, fwd04). Block 0 prefetches weight and bias, as in lib_fwd_registers.
//
// Measurements behind the constants, on an H100 with 128 MiB, layer norm / RMS norm:
// - kMinBlocks: 56 registers allow 36 warps per multiprocessor, so three blocks of 12 warps fit.
// - One exchange between warps: 97 µs at bf16 5460 × 12289; with two exchanges, for the mean and
//   then for the deviations, 103.
// - At most 18 warps: with up to 32, 20 001 halves take 122 / 110 µs; lib_fwd_cluster_unaligned
//   takes 104 / 100.
// - Testing once per row, not once per vector, how to load weight and bias: 96.7 µs against 99.4 at
//   bf16 16384 × 4097.
// - The result: 96.5 / 95.9 µs at bf16 16384 × 4097, 95.4 / 94.7 at 65536 × 1001, 96.0 / 95.2 at
//   f32 8192 × 4097; a copy takes 94. If x and y start at different offsets, 158 at bf16 5460 ×
//   12289.
#include "common/kernel/chapter.h"
#include "common/kernel/kinds.h"
#include "common/kernel/pieces.h"
#include "common/kernel/shapes.h"
#include "common/kernel/shifted_rows.h"

namespace lib_fwd_unaligned {
using namespace lnc;

/// A thread has kVectors vectors. A row has one of a block's four warps, or a block of as many
/// warps as it needs.
template <int kVectors_, int kMostWarps>
struct Variant {
  static constexpr int kVectors = kVectors_;
  static constexpr bool kOneWarp = kMostWarps == 1;
  static constexpr int kBlockRows = kOneWarp ? 4 : 1;
  static constexpr int kThreads = kMostWarps * kBlockRows * kWarpSize;
  // Limits nvcc to 72 or 56 registers. A Turing GPU has threads for one such block only.
  static constexpr int kMinBlocks = kOneWarp ? 7 : std::min(2, kSmThreads / kThreads);
  static constexpr int kRowVectors = kVectors * kMostWarps * kWarpSize;
  static constexpr bool holds(int vectors) { return vectors <= kRowVectors; }
};
using ManyWarps = Variant<4, 18>;

/// Merges the moments of a row's warps into its Normaliser, in every thread of the row.
template <Kind kKind, typename Fit>
__device__ Normaliser merge_warps(const Moments& of_piece, float inverse_cols, float eps) {
  if constexpr (Fit::kOneWarp) {
    const float2 sums = make_float2(of_piece.deviations, of_piece.squares);
    return normaliser(of_piece.near, sums, inverse_cols, eps);
  } else {
    __shared__ Moments of_warp[kWarpSize];
    if (threadIdx.x % kWarpSize == 0) of_warp[threadIdx.x / kWarpSize] = of_piece;
    __syncthreads();
    const int warps = blockDim.x / kWarpSize;
    return merge_moments<kKind, kWarpSize>(of_warp, warps, inverse_cols, eps);
  }
}

/// A row in registers. It has `vectors` whole vectors; the other columns are edges.
template <typename T, typename W, Kind kKind, typename Fit>
__global__ void __launch_bounds__(Fit::kThreads, Fit::kMinBlocks)
    layer_norm_forward(ForwardArgs<T, W> a, int vectors, float inverse_cols) {
  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  const int64_t row = int64_t{blockIdx.x} * Fit::kBlockRows + (Fit::kOneWarp ? warp : 0);
  if (row >= a.rows) return;
  const T* const x_row = a.x + row * a.cols;
  T* const y_row = a.y + row * a.cols;
  const W* const bias = kKind == Kind::Layer ? a.bias : nullptr;

  const int piece = Fit::kOneWarp ? 0 : warp;
  const RowShare<Fit::kVectors> own(y_row, static_cast<int>(a.cols), vectors, piece);
  auto values = load_row(x_row, y_row, own);
  // Prefetches both for all blocks.
  if (blockIdx.x == 0) ask_for_parameters<T>(a.weight, bias, own);

  // About the mean of the first vectors, so that the warps synchronise only once.
  const Moments of_piece = piece_moments<kKind>(values, own);
  const Normaliser of_row = merge_warps<kKind, Fit>(of_piece, inverse_cols, a.eps);
  if (piece == 0 && lane == 0) store_statistics<kKind>(a, row, of_row);
  store_row<kKind>(y_row, values, of_row, a.weight, bias, own);
}

template <typename T, typename W>
void run(const ForwardArgs<T, W>& a) {
  const int vectors = whole_vectors<T>(a.cols);
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  const auto run_fit = [&]<typename Fit>(Fit) {
    const unsigned warps = std::max(blocks_for(vectors, Fit::kVectors * kWarpSize), 1u);
    const unsigned threads = warps * Fit::kBlockRows * kWarpSize;
    const LaunchConfig config{blocks_for(a.rows, Fit::kBlockRows), threads, 0, a.stream};
    with_kind(a.kind, [&](auto kind) {
      launch(layer_norm_forward<T, W, kind(), Fit>, config, a, vectors, inverse_cols);
    });
  };
  run_shapes<Variant<1, 1>, Variant<2, 1>, Variant<4, 1>, ManyWarps>(vectors, run_fit);
}

const Registration registration{{
    .id = "lib_fwd_unaligned",
    .title = "Unaligned rows in registers, weight and bias shifted",
    .teaches = "rows of up to 36 KB that start anywhere, at the speed of a copy",
    .source = "this repository",
    .road = Road::Library,
    .usual_cols = 2049,
    .shares_by_address = true,
    .keeps_digits_at_large_means = true,
    .max_row_bytes = ManyWarps::kRowVectors * 16,
    .max_row_bytes_because = "a multiprocessor has registers for two such rows",
    .run = ForwardLaunchers::every([](const auto& args) { run(args); }),
    .predicted_bytes = least_bytes<Direction::Forward>,
}};

}  // namespace lib_fwd_unaligned
