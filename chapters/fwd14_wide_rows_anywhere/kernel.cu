// fwd14 · Wide rows that start anywhere
//
// fwd11 has the same columns in all rows of a block, so weight and bias come once, however the rows
// start. It holds a row in one block. fwd06 takes wider rows, but loads their weight and bias
// element by element for each row. Here a cluster has a wide row, two rows at a time in registers,
// as in fwd13; but the clusters stay, each with rows that start alike. Whole vectors of a row are
// loaded as such. Each of the few elements before and behind them is a single lane's.
//
// It should run at the speed of a copy for rows of up to 256 KB: 2·M·N elements, each moved once.
#include "common/kernel/chapter.h"
#include "common/kernel/hopper.h"
#include "common/kernel/moments.h"
#include "common/kernel/pieces.h"
#include "common/kernel/reduce.h"
#include "common/kernel/rows_anywhere.h"
#include "common/kernel/vector.h"

namespace fwd14 {
using namespace lnc;

constexpr int kRows = 2;         // [1] of a cluster, at a time
constexpr int kMostBlocks = 16;  // of a cluster
constexpr int kMostWarps = 4;    // of a block
constexpr int kMostPieces = kMostBlocks * kMostWarps;
constexpr int kMostVectors = 8;  // of a lane, in each row

/// [2] Blocks for which a multiprocessor has registers.
template <typename T, typename W>
constexpr int sm_blocks(int vectors) {
  const bool mixed = sizeof(W) != sizeof(T);
  const bool is_float = sizeof(T) == sizeof(float);
  if (vectors == 4) return mixed ? 3 : 4;
  if (vectors == 6) return mixed ? 2 : 3;
  return is_float ? 3 : 2;
}

/// The moments of a warp's piece of a row, of so many columns. A lane has `there` vectors of x, and
/// perhaps an edge. Its other registers hold 0.
template <Kind kKind, typename T, int kElements, int kVectors>
__device__ Moments piece_moments(Packed<T, kElements> (&x)[kVectors], int there,
                                 const Packed<T, 1>& edge, bool has_edge, int columns) {
  const auto of_columns = static_cast<float>(columns);
  float of_edge[1];
  to_floats(edge, of_edge);
  float values[kElements];
  float near = 0.0f;
  if constexpr (kKind == Kind::Layer) {
    float sum = of_edge[0];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      to_floats(x[i], values);
      for (int k = 0; k < kElements; ++k) {
        sum += values[k];
      }
    }
    near = warp_sum(sum) / max(of_columns, 1.0f);
  }
  Deviations<kKind> sums{};
  if (has_edge) add_deviation(sums, of_edge[0] - near);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    stay_packed(x[i]);
    if (i >= there) continue;
    to_floats(x[i], values);
    for (int k = 0; k < kElements; ++k) {
      add_deviation(sums, values[k] - near);
    }
  }
  sums = warp_sum(sums);
  if constexpr (kKind == Kind::Layer) {
    return {of_columns, near, sums.x, sums.y};
  } else {
    return {of_columns, 0.0f, 0.0f, sums};
  }
}

/// Loads a lane's vectors of a row, of which `there` are.
template <typename T, int kElements, int kVectors>
__device__ void load_vectors(Packed<T, kElements> (&x)[kVectors], const T* first, int there) {
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    x[i] = load_if<kElements>(i < there, first, i * kWarpSize * kElements);
  }
}

/// The same, element by element, from anywhere.
template <typename T, int kElements, int kVectors>
__device__ void load_elements(Packed<T, kElements> (&x)[kVectors], const T* first, int there) {
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    x[i] = load_singly<kElements>(i < there, first, i * kWarpSize * kElements);
  }
}

/// A cluster of so many blocks takes two of its rows at a time, and each of its warps has a piece
/// of both. `alike`: x starts as y does.
template <typename T, typename W, Kind kKind, int kVectors>
__global__ void __launch_bounds__(kMostWarps* kWarpSize, sm_blocks<T, W>(kVectors))
    layer_norm_forward(ForwardArgs<T, W> a, int blocks, bool alike) {
  constexpr int kElements = kVectorElements<T>;
  constexpr int kPieceVectors = kVectors * kWarpSize;
  constexpr int kStep = kWarpSize * kElements;  // columns from one vector of a lane to the next
  constexpr bool kLayer = kKind == Kind::Layer;
  __shared__ Barrier met[2];
  __shared__ Moments moments[2][kRows][kMostPieces];
  const int lane = threadIdx.x % kWarpSize;
  const int warps = blockDim.x / kWarpSize;
  const int pieces = blocks * warps;
  const int piece = cluster_rank() * warps + threadIdx.x / kWarpSize;
  const int64_t cluster = blockIdx.x / blocks;
  const int64_t clusters = gridDim.x / blocks;

  const auto cols = static_cast<int>(a.cols);
  const RowParts parts(a.y + cluster * a.cols, cols);  // [3] y's, for its stores must be whole
  const int before = piece * kPieceVectors;            // vectors of the row
  const int vectors = max(min(parts.vectors - before, kPieceVectors), 0);
  const int there = (vectors - lane + kWarpSize - 1) / kWarpSize;  // of this lane
  const int first_col = parts.head + (before + lane) * kElements;
  const bool first = piece == 0;  // [4]
  const bool has_edge = first && lane < parts.edges();
  const int edge_col = parts.edge_col(lane, cols);
  const int edges = first ? parts.edges() : 0;
  const int columns = vectors * kElements + edges;  // of the piece

  if (threadIdx.x == 0) {
    met[0].init(1);
    met[1].init(1);
    fence_barrier_init();
  }
  cluster_arrive_relaxed();
  const W* const tensor_of_bias = kLayer ? a.bias : nullptr;
  Packed<W, kElements> weight[kVectors];
  Packed<W, kElements> bias[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {  // [5]
    const int col = first_col + i * kStep;
    weight[i] = load_singly<kElements>(i < there, a.weight, col, 1.0f);
    bias[i] = load_singly<kElements>(i < there, tensor_of_bias, col, 0.0f);
  }
  const auto edge_weight = load_singly<1>(has_edge, a.weight, edge_col, 1.0f);
  const auto edge_bias = load_singly<1>(has_edge, tensor_of_bias, edge_col, 0.0f);
  cluster_wait();

  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  int place = 0;
  int parity = 0;
#pragma unroll 1
  for (int64_t first_row = cluster; first_row < a.rows; first_row += kRows * clusters) {
    Packed<T, kElements> x[kRows][kVectors];
    Packed<T, 1> edge[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t row = first_row + r * clusters;
      const bool has_row = row < a.rows;
      const T* const x_row = a.x + row * a.cols;
      edge[r] = load_singly<1>(has_row && has_edge, x_row, edge_col);
      if (alike) {
        load_vectors(x[r], x_row + first_col, has_row ? there : 0);
      } else {
        load_elements(x[r], x_row + first_col, has_row ? there : 0);  // [6]
      }
    }
    Moments of_piece[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      of_piece[r] = piece_moments<kKind>(x[r], there, edge[r], has_edge, columns);
    }
    if (threadIdx.x == 0) met[place].arrive_and_expect(kRows * pieces * sizeof(Moments));
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      Moments* const mine = &moments[place][r][piece];
      if (lane < blocks) remote_store_async(mine, lane, of_piece[r], met[place]);
    }
    met[place].wait_at_cluster_scope(parity);  // [7]

#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t row = first_row + r * clusters;
      if (row >= a.rows) break;
      const Normaliser of_row =
          merge_moments<kMostPieces>(moments[place][r], pieces, inverse_cols, a.eps);
      if (piece == 0 && lane == 0) {
        if (kLayer) a.mean[row] = of_row.mean;
        a.rstd[row] = of_row.rstd;
      }
      T* const y_row = a.y + row * a.cols;
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        stay_packed(weight[i]);
        if (kLayer) stay_packed(bias[i]);
        if (i >= there) continue;
        float values[kElements];
        normalise(x[r][i], of_row, weight[i], bias[i], values);
        store_vector(y_row + first_col + i * kStep, values);
      }
      if (has_edge) {
        float value[1];
        normalise(edge[r], of_row, edge_weight, edge_bias, value);
        y_row[edge_col] = from_float<T>(value[0]);
      }
    }
    parity ^= place;  // once both places have been used, the next phase of each
    place ^= 1;
  }
}

/// Returns false where the GPU holds no cluster of this size.
template <Kind kKind, int kVectors, typename T, typename W>
bool run_clusters(const ForwardArgs<T, W>& a, const Cut& cut) {
  const auto kernel = layer_norm_forward<T, W, kKind, kVectors>;
  const auto blocks = static_cast<unsigned>(cut.blocks);
  LaunchConfig config{blocks, cut.warps * kWarpSize, 0, a.stream, blocks};
  const int fit = resident_clusters(kernel, config);
  if (fit == 0) return false;
  const int64_t in_step = blocks_in_step<T>(fit, 1, a.cols);  // [8]
  const int64_t clusters = std::min(in_step, a.rows);
  const bool alike = start_in_vector(a.x) == start_in_vector(a.y);
  config.grid = static_cast<unsigned>(clusters) * blocks;
  launch(kernel, config, a, cut.blocks, alike);
  return true;
}

/// [9] Eight vectors a lane only where six are too few.
Cut cut_for(int64_t vectors, int most_blocks) {
  const Cut cut = cut_row(vectors, {4, 6}, most_blocks, kMostWarps);
  return cut.blocks > 0 ? cut : cut_row(vectors, {kMostVectors}, most_blocks, kMostWarps);
}

template <Kind kKind, typename T, typename W>
void run_kind(const ForwardArgs<T, W>& a) {
  const int64_t vectors = std::max<int64_t>(a.cols / kVectorElements<T>, 1);
  for (int most_blocks = kMostBlocks; most_blocks >= 2; --most_blocks) {  // 16 may not fit
    const Cut cut = cut_for(vectors, most_blocks);
    if (cut.blocks == 0) break;
    const bool launched = cut.vectors == 4   ? run_clusters<kKind, 4>(a, cut)
                          : cut.vectors == 6 ? run_clusters<kKind, 6>(a, cut)
                                             : run_clusters<kKind, kMostVectors>(a, cut);
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
    .teaches = "a row's edges are single lanes'; clusters that stay, with rows that start alike",
    .source = "this repository",
    .parent = "fwd11",
    .road = Road::UnalignedRows,
    .usual_cols = 2049,
    .min_architecture = 90,
    .keeps_digits_at_large_means = true,
    .max_row_bytes = int64_t{kMostPieces} * kMostVectors * kWarpSize * 16,
    .max_row_bytes_because = "the registers of a cluster hold two rows",
    .run = ForwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>, run<__half, float>,
                            run<__nv_bfloat16, float>},
    .predicted_bytes =
        [](const Problem& p, const Gpu& gpu) {
          const int threads = gpu.threads_per_multiprocessor * kMostBlocks;
          return predict_bytes(p, gpu, {.inputs = 1, .walks = 1, .threads_per_row = threads});
        },
}};

}  // namespace fwd14
