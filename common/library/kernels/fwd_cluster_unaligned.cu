// lib_fwd_cluster_unaligned · Wide unaligned rows in the registers of a cluster
//
// Rows of up to 512 KB that start anywhere, layer and RMS norm, on Hopper; meant for rows too wide
// for lib_fwd_unaligned. A cluster of 2 to 16 blocks holds a row in registers, a piece of its whole
// vectors in each warp and the row's ends in single lanes, exchanges the pieces' moments once, and
// retires.
//
// Parts: shifted_rows.h (whole vectors of an unaligned row, weight and bias shifted into place;
// fwd16), pieces.h and hopper.h (moments, cluster, exchange; fwd09, fwd04).
//
// Measurements behind the constants, on an H100 with 128 MiB, layer norm:
// - Vectors a lane: bf16 of 20 001 columns takes 104 µs with six and 108 with eight or four; of 100
//   003 columns 115 with eight and 124 with six; f32 of 12 289 100 with six and 105 with four.
// - Weight and bias after the exchange, a vector at a time: 104 µs at bf16 20 001 columns; two
//   vectors at once 120, weight before the exchange 128.
// - One row a cluster that retires: 109 µs at bf16 1335 × 50257; clusters that stay 116 to 127.
// - The result: 102 µs at bf16 5460 × 12289, 109 at 1335 × 50257, 100 at f32 2730 × 12289; a copy
//   takes 94. Where x starts elsewhere than y, 161 at 5460 × 12289. Up to 8192 columns
//   lib_fwd_unaligned is far ahead.
#include "common/kernel/chapter.h"
#include "common/kernel/hopper.h"
#include "common/kernel/pieces.h"
#include "common/kernel/shifted_rows.h"

namespace lib_fwd_cluster_unaligned {
using namespace lnc;

constexpr int kMostBlocks = 16;  // of a cluster
constexpr int kMostWarps = 8;    // of a block
constexpr int kSmBlocks = 3;     // of so many warps on a multiprocessor: 80 registers a thread
constexpr int kMostPieces = kMostBlocks * kMostWarps;
constexpr int kFewVectors = 6;   // of a lane
constexpr int kMostVectors = 8;  // of a lane

/// A cluster of so many blocks has a row, and each of its warps a piece of it. The row has
/// `vectors` whole vectors; the other columns are edges.
template <typename T, typename W, Kind kKind, int kVectors>
__global__ void __launch_bounds__(kMostWarps* kWarpSize, kSmBlocks)
    layer_norm_forward(ForwardArgs<T, W> a, int blocks, int vectors, float inverse_cols) {
  __shared__ Barrier met;
  __shared__ Moments moments[kMostPieces];
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
  const bool alike = start_in_vector(x_row) == start_in_vector(y_row);
  auto values = load_row(x_row, own, alike);
  cluster_arrive_relaxed();
  // Once for all clusters, while x is on its way.
  if (row == 0) ask_for_parameters<T>(a.weight, bias, own);

  const Moments of_piece = piece_moments<kKind>(values, own);
  cluster_wait();
  if (threadIdx.x == 0) met.arrive_and_expect(pieces * sizeof(Moments));
  // No block retires before all moments have reached it, so none is sent to a block that is gone.
  if (lane < blocks) remote_store_async(&moments[piece], lane, of_piece, met);
  met.wait_at_cluster_scope(0);
  const Normaliser of_row = merge_moments<kKind, kMostPieces>(moments, pieces, inverse_cols, a.eps);
  if (piece == 0 && lane == 0) {
    if (kKind == Kind::Layer) a.mean[row] = of_row.mean;
    a.rstd[row] = of_row.rstd;
  }
  // Weight and bias are loaded late, a vector at a time: early they would need 48 registers beside
  // the 24 of x.
  store_row<kKind>(y_row, values, of_row, a.weight, bias, own);
}

/// Returns false where the GPU holds no cluster of this size.
template <Kind kKind, int kVectors, typename T, typename W>
bool run_clusters(const ForwardArgs<T, W>& a, const Cut& cut, int vectors) {
  const auto kernel = layer_norm_forward<T, W, kKind, kVectors>;
  const auto blocks = static_cast<unsigned>(cut.blocks);
  LaunchConfig config{blocks, cut.warps * kWarpSize, 0, a.stream, blocks};
  if (resident_clusters(kernel, config) == 0) return false;
  config.grid = blocks_for(a.rows, 1) * blocks;
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  launch(kernel, config, a, cut.blocks, vectors, inverse_cols);
  return true;
}

/// Eight vectors a lane where that costs more than a sixteenth less.
Cut cut_for(int64_t vectors, int most_blocks) {
  const Cut few = cut_row(vectors, {kFewVectors}, most_blocks, kMostWarps);
  const Cut many = cut_row(vectors, {kMostVectors}, most_blocks, kMostWarps);
  const bool costs_less = many.cost() < few.cost() - few.cost() / 16;
  return few.blocks == 0 || costs_less ? many : few;
}

template <Kind kKind, typename T, typename W>
void run_kind(const ForwardArgs<T, W>& a) {
  const int vectors = whole_vectors<T>(a.cols);
  for (int most_blocks = kMostBlocks; most_blocks >= 2; --most_blocks) {  // 16 may not fit
    const Cut cut = cut_for(std::max(vectors, 1), most_blocks);
    if (cut.blocks == 0) break;
    const bool launched = cut.vectors == kFewVectors
                              ? run_clusters<kKind, kFewVectors>(a, cut, vectors)
                              : run_clusters<kKind, kMostVectors>(a, cut, vectors);
    if (launched) return;
  }
  throw std::runtime_error("lib_fwd_cluster_unaligned: no cluster of this GPU holds rows of " +
                           std::to_string(a.cols) + " columns");
}

template <typename T, typename W>
void run(const ForwardArgs<T, W>& a) {
  if (a.kind == Kind::Layer) {
    run_kind<Kind::Layer>(a);
  } else {
    run_kind<Kind::Rms>(a);
  }
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
    .max_rows = kMaxGridX / kMostBlocks,
    .run = ForwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>, run<__half, float>,
                            run<__nv_bfloat16, float>},
    .predicted_bytes = [](const Problem& p, const Gpu&) -> std::int64_t {
      return 2 * p.tensor_bytes() + parameter_bytes(p);
    },
}};

}  // namespace lib_fwd_cluster_unaligned
