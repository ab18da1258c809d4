// fwd14 · Wide rows that start anywhere
//
// fwd16 holds a row in one block. A wide one takes so many registers there that the multiprocessor
// has room for no second block, and nothing to do while this one waits. Here a cluster has a row,
// and its blocks' warps a piece each, in fwd16's vectors. Their moments meet as in fwd13.
//
// It should run at the speed of a copy for rows of up to 512 KB: 2·M·N elements, each moved once.
#include "common/kernel/chapter.h"
#include "common/kernel/hopper.h"
#include "common/kernel/pieces.h"
#include "common/kernel/shifted_rows.h"

namespace fwd14 {
using namespace lnc;

constexpr int kMostBlocks = 16;  // of a cluster
constexpr int kMostWarps = 8;    // of a block
constexpr int kSmBlocks = 3;     // [1] of so many warps, for which a multiprocessor has registers
constexpr int kMostPieces = kMostBlocks * kMostWarps;
constexpr int kFewVectors = 6;   // of a lane
constexpr int kMostVectors = 8;  // likewise

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
  const int piece = cluster_rank() * warps + threadIdx.x / kWarpSize;  // [2]
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
  if (row == 0) ask_for_parameters<T>(a.weight, bias, own);  // [3]

  const Moments of_piece = piece_moments<kKind>(values, own);
  cluster_wait();
  if (threadIdx.x == 0) met.arrive_and_expect(pieces * sizeof(Moments));
  if (lane < blocks) remote_store_async(&moments[piece], lane, of_piece, met);  // [4]
  met.wait_at_cluster_scope(0);
  const Normaliser of_row = merge_moments<kKind, kMostPieces>(moments, pieces, inverse_cols, a.eps);
  if (piece == 0 && lane == 0) {
    if (kKind == Kind::Layer) a.mean[row] = of_row.mean;
    a.rstd[row] = of_row.rstd;
  }
  store_row<kKind>(y_row, values, of_row, a.weight, bias, own);  // [5]
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

/// [6] Eight vectors a lane where that costs more than a sixteenth less.
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
  throw std::runtime_error("fwd14: no cluster of this GPU holds rows of " + std::to_string(a.cols) +
                           " columns");
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
    .id = "fwd14",
    .title = "Wide rows that start anywhere",
    .teaches = "a cluster has a row that starts anywhere, and ends with it",
    .source = "this repository",
    .parent = "fwd16",
    .road = Road::UnalignedRows,
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

}  // namespace fwd14
