// lib_fwd_cluster_ring · Very wide rows: a cluster with rings of bulk copies
//
// Aligned rows of up to 1.7 MB, layer and RMS norm, on Hopper; meant for rows that are too wide for
// lib_fwd_cluster. A cluster of up to 16 blocks has a row, and each of its warps a piece of the
// row. Each warp brings x through a ring of bulk copies; weight and bias are in shared memory if
// they fit. The warps exchange the moments of their pieces once per row and never meet at a block's
// barrier.
//
// Parts: ring.h and hopper.h (fwd08; clusters and remote stores fwd09), pieces.h (moments of a
// piece and merging them; fwd09, and fwd04 for the mean in two floats), clusters.h (the launch),
// vector.h (fwd06).
//
// Measurements behind the constants, on an H100:
// - With three, four or eight stages, and two, four or eight vectors per lane, the times differ by
//   2 % at most.
// - No arrival signals that moments have been read; instead, rows rotate through several sets of
//   moments. An arrival at the receiver's mbarrier with every message takes 429 to 436 µs at bf16
//   1024 × 262144, against 374; if one warp forwards the messages, 411 against 373.
// - Computing moments about the mean of the first vectors needs one walk over a piece instead of
//   two, which takes 4 % less time at bf16 256 × 262144.
// - The result, layer norm: 374 µs at bf16 1024 × 262144 (96 % of a copy), 390 at f32 512 × 262144
//   (92 %), where lib_fwd_registers takes 761 and 718; 405 at bf16 4096 × 65536, where
//   lib_fwd_cluster takes 363.
#include <bit>

#include "common/kernel/chapter.h"
#include "common/kernel/clusters.h"
#include "common/kernel/kinds.h"
#include "common/kernel/moments.h"
#include "common/kernel/pieces.h"
#include "common/kernel/reduce.h"
#include "common/kernel/ring.h"
#include "common/kernel/vector.h"

namespace lib_fwd_cluster_ring {
using namespace lnc;

constexpr int kMostWarps = 16;          // of a block
constexpr int kLaneVectors = 4;         // of a lane, before a row gets another warp: 2 KB a piece
constexpr int kFewestStages = 3;        // rows in a ring
constexpr int kMostStages = 8;          // where shared memory has room
constexpr int kSets = 4;                // of moments: exchanges that may be in flight
constexpr int kStaticShared = 2 << 10;  // bytes: the barriers, and what CUDA takes
constexpr int kVectorBytes = 16;

/// How a row is cut into pieces, one for each warp of a cluster.
struct Cut {
  int blocks;                ///< of a cluster
  int warps;                 ///< of a block
  int pieces;                ///< of a row: blocks · warps
  int vectors;               ///< of a piece; the row's last ones may have fewer, or none
  int stages;                ///< of a warp's ring
  bool keeps;                ///< weight and bias stay in shared memory
  std::size_t shared_bytes;  ///< of a block
};

/// The vectors that a piece of the row has.
__device__ inline int vectors_of(int piece, const Cut& cut, int row_vectors) {
  return max(min(row_vectors - piece * cut.vectors, cut.vectors), 0);
}

/// Requests a piece, which may be empty, from the copy engine. One lane calls this.
template <typename T, int kElements>
__device__ void request_piece(const T* from, int vectors, Packed<T, kElements>* slot,
                              Barrier& full) {
  const auto bytes = static_cast<unsigned>(vectors * sizeof *slot);
  full.arrive_and_expect(bytes);
  if (bytes > 0) bulk_load(slot, from, bytes, full);
}

/// The moments of a warp's piece.
template <Kind kKind, typename T, int kElements>
__device__ Moments piece_moments(const Packed<T, kElements>* slot, int vectors) {
  const int lane = threadIdx.x % kWarpSize;
  const int columns = vectors * kElements;
  float near = 0.0f;
  if (kKind == Kind::Layer) {
    const auto first = lane < vectors ? slot[lane] : Packed<T, kElements>{};
    near = mean_of_first(first, 0.0f, min(columns, kWarpSize * kElements));
  }
  Deviations<kKind> sums{};
#pragma unroll 4
  for (int i = lane; i < vectors; i += kWarpSize) {
    float x[kElements];
    to_floats(slot[i], x);
    add_deviations(sums, near, x);
  }
  return moments_of(columns, near, warp_sum(sums));
}

/// Sends a piece's moments to `place` of every block of the cluster, where `met` counts them.
__device__ inline void send_to_cluster(Moments moments, Moments* place, Barrier& met,
                                       const Cut& cut) {
  const int lane = threadIdx.x % kWarpSize;
  // One thread expects the bytes for its block. They may arrive first: no phase completes without
  // this arrival.
  if (threadIdx.x == 0) met.arrive_and_expect(cut.pieces * sizeof(Moments));
  if (lane < cut.blocks) remote_store_async(place, lane, moments, met);
}

// Eight for each lane of the warp that merges them.
constexpr int kMostPieces = kMostClusterBlocks * kMostWarps;

/// A warp's piece of weight or bias. With kKeeps, each lane keeps its vectors in shared memory,
/// once for all rows; else it loads them from global memory each time. If the parameter is null,
/// each element is `otherwise`.
template <typename W, int kElements, bool kKeeps>
struct Parameter {
  Packed<W, kElements>* kept;
  const W* parameter;
  int64_t first;  ///< column of the piece
  float otherwise;

  __device__ Packed<W, kElements> load(int i) const {
    const int64_t col = first + int64_t{i} * kElements;
    return load_if<kElements>(parameter != nullptr, parameter, col, otherwise);
  }
  // A lane keeps only the vectors that it will use itself: no fence, no barrier.
  __device__ void keep(int vectors) const {
    if constexpr (kKeeps) {
#pragma unroll 4
      for (int i = threadIdx.x % kWarpSize; i < vectors; i += kWarpSize) {
        kept[i] = load(i);
      }
    }
  }
  __device__ Packed<W, kElements> vector(int i) const {
    if constexpr (kKeeps) return kept[i];
    return load(i);
  }
};

/// Stores a warp's piece of y.
template <typename T, typename W, int kElements, bool kKeeps>
__device__ void store_piece(Packed<T, kElements>* y, const Packed<T, kElements>* slot,
                            const Parameter<W, kElements, kKeeps>& weight,
                            const Parameter<W, kElements, kKeeps>& bias, int vectors,
                            const Normaliser& of_row) {
  // Vectors of a lane, loaded before the first use. float W takes twice the registers.
  constexpr int kBatch = sizeof(W) == sizeof(T) ? 4 : 2;
  const int lane = threadIdx.x % kWarpSize;
  for (int begin = lane; begin < vectors; begin += kBatch * kWarpSize) {
    Packed<T, kElements> x_batch[kBatch];
    Packed<W, kElements> weight_batch[kBatch];
    Packed<W, kElements> bias_batch[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int next = begin + j * kWarpSize;
      const int i =
          next < vectors ? next : begin;  // past the end its first again, not to be stored
      x_batch[j] = slot[i];
      weight_batch[j] = weight.vector(i);
      bias_batch[j] = bias.vector(i);
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int i = begin + j * kWarpSize;
      if (i >= vectors) continue;
      float x[kElements];
      float of_weight[kElements];
      float of_bias[kElements];
      to_floats(x_batch[j], x);
      to_floats(weight_batch[j], of_weight);
      to_floats(bias_batch[j], of_bias);
      for (int k = 0; k < kElements; ++k) {
        x[k] = of_row.xhat(x[k]) * of_weight[k] + of_bias[k];
      }
      y[i] = from_floats<T>(x);
    }
  }
}

/// A warp has a piece of every row of its cluster, and a ring for these pieces.
template <typename T, typename W, Kind kKind, bool kKeeps>
__global__ void __launch_bounds__(kMostWarps* kWarpSize)
    layer_norm_forward(ForwardArgs<T, W> a, Cut cut) {
  constexpr int kElements = kVectorElements<T>;
  using Vec = Packed<T, kElements>;
  __shared__ Barrier full[kMostWarps][kMostStages];
  __shared__ Barrier met[kSets];
  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  const int64_t first_row = blockIdx.x / cut.blocks;
  const int64_t stride = gridDim.x / cut.blocks;  // clusters
  const int piece = cluster_rank() * cut.warps + warp;
  const int vectors = vectors_of(piece, cut, static_cast<int>(a.cols / kElements));
  const int64_t first_col = int64_t{piece} * cut.vectors * kElements;
  const auto request = [&](int64_t row, Vec* slot, Barrier& barrier) {
    if (row < a.rows) request_piece(a.x + row * a.cols + first_col, vectors, slot, barrier);
  };

  // Dynamic shared memory: the moments, [kSets][pieces]; each warp's ring; each warp's piece of
  // the weight and of the bias.
  auto* const moments = dynamic_shared<Moments>();
  auto* const slots = reinterpret_cast<Vec*>(moments + kSets * cut.pieces);
  const int ring_vectors = cut.stages * cut.vectors;
  Ring<T> ring{slots + warp * ring_vectors, cut.vectors, cut.stages, full[warp]};
  auto* const parameters =
      reinterpret_cast<Packed<W, kElements>*>(slots + cut.warps * ring_vectors);
  auto* const kept = parameters + warp * 2 * cut.vectors;
  const Parameter<W, kElements, kKeeps> weight{kept, a.weight, first_col, 1.0f};
  const Parameter<W, kElements, kKeeps> bias{kept + cut.vectors, a.bias, first_col, 0.0f};

  if (threadIdx.x == 0) {
    for (Barrier& barrier : met) barrier.init(1);
  }
  if (lane == 0) {
    ring.fill([&](int stage) {  // its fence also publishes `met`, which thread 0 initialised
      request(first_row + stage * stride, ring.slot(stage), full[warp][stage]);
    });
  }
  // The cluster's only barrier: no block may send before the others run and have initialised their
  // mbarriers. The relaxed arrival publishes nothing else, so it waits for no store.
  cluster_arrive_relaxed();
  weight.keep(vectors);
  bias.keep(vectors);
  cluster_wait();

  const auto send_moments = [&](int64_t row, int k) {  // of the cluster's row k, if there is one
    if (row >= a.rows) return;
    const Moments of_piece = piece_moments<kKind>(ring.wait(), vectors);
    const int set = k % kSets;
    send_to_cluster(of_piece, &moments[set * cut.pieces + piece], met[set], cut);
    ring.advance();
  };
  send_moments(first_row, 0);
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  int stage = 0;  // of the row to be finished: the ring itself is a row ahead
  int k = 0;      // that row's number in the cluster
  for (int64_t row = first_row; row < a.rows; row += stride, ++k) {
    // A row ahead: its moments are in flight while this row is finished.
    send_moments(row + stride, k + 1);

    const int set = k % kSets;
    // Acquires at the cluster's scope, at which the senders release, but for shared memory only: a
    // full acquire would empty L1 in every row.
    met[set].wait_at_cluster_scope(k / kSets % 2);
    const Normaliser of_row = merge_moments<kKind, kMostPieces>(moments + set * cut.pieces,
                                                                cut.pieces, inverse_cols, a.eps);
    if (piece == 0 && lane == 0) store_statistics<kKind>(a, row, of_row);

    Vec* const slot = ring.slot(stage);
    auto* const y = reinterpret_cast<Vec*>(a.y + row * a.cols + first_col);
    store_piece(y, slot, weight, bias, vectors, of_row);

    ring.release();
    // All lanes have released the stage before lane 0 lets the copy engine overwrite it; the
    // shuffles before order no memory. No other warp uses this stage.
    __syncwarp();
    if (lane == 0) request(row + cut.stages * stride, slot, full[warp][stage]);
    stage = stage + 1 < cut.stages ? stage + 1 : 0;
  }
}

/// Cuts a row of `vectors` vectors over `blocks` blocks.
template <typename T, typename W>
Cut cut_over(int blocks, int64_t vectors) {
  Cut cut;
  cut.blocks = blocks;
  const unsigned warps = blocks_for(vectors, blocks * kLaneVectors * kWarpSize);
  cut.warps = static_cast<int>(std::clamp<unsigned>(warps, 1, kMostWarps));
  cut.pieces = blocks * cut.warps;
  cut.vectors = static_cast<int>(blocks_for(vectors, cut.pieces));

  const int64_t x_bytes = int64_t{cut.warps} * cut.vectors * kVectorBytes;
  const int64_t parameter_bytes = 2 * x_bytes * sizeof(W) / sizeof(T);
  const int64_t moments_bytes = kSets * cut.pieces * sizeof(Moments);
  const int64_t reserved = kStaticShared + moments_bytes;
  const int64_t room = max_shared_bytes() - reserved;
  cut.keeps = room - parameter_bytes >= kFewestStages * x_bytes;
  const int64_t kept_bytes = cut.keeps ? parameter_bytes : 0;
  const int64_t stages_there = (room - kept_bytes) / x_bytes;
  // A multiprocessor has registers for 16 such warps; smaller blocks share its memory.
  const int blocks_side_by_side = kMostWarps / cut.warps;
  const int64_t fair_share = max_shared_bytes() / blocks_side_by_side - reserved;
  const int64_t stages_of_share = (fair_share - kept_bytes) / x_bytes;
  const int64_t wanted = std::clamp<int64_t>(stages_of_share, kFewestStages, kMostStages);
  cut.stages = static_cast<int>(std::min(stages_there, wanted));
  cut.shared_bytes = moments_bytes + cut.stages * x_bytes + kept_bytes;
  return cut;
}

/// The fewest blocks, two or more, that hold three rows and the parameters, or else most_blocks.
template <typename T, typename W>
Cut cut_row(int64_t vectors, int most_blocks) {
  for (int blocks = 2; blocks < most_blocks; blocks *= 2) {
    const Cut cut = cut_over<T, W>(blocks, vectors);
    if (cut.keeps) return cut;
  }
  return cut_over<T, W>(most_blocks, vectors);
}

/// Launches as many clusters as the GPU holds at once; returns false if it holds none of this size.
template <Kind kKind, bool kKeeps, typename T, typename W>
bool run_cut(const ForwardArgs<T, W>& a, const Cut& cut) {
  const auto kernel = layer_norm_forward<T, W, kKind, kKeeps>;
  const LaunchConfig config = cluster_of(cut.blocks, cut.warps, cut.shared_bytes, a.stream);
  const int64_t clusters = a.group > 0 ? a.group : resident_clusters(kernel, config);
  return launch_clusters(kernel, config, std::min(clusters, a.rows), a, cut);
}

template <typename T, typename W>
void run(const ForwardArgs<T, W>& a) {
  const int64_t vectors = a.cols / kVectorElements<T>;
  with_kind(a.kind, [&](auto kind) {
    launch_in_largest_cluster("lib_fwd_cluster_ring", a.cols, [&](int most_blocks) {
      if (!std::has_single_bit(unsigned(most_blocks))) return false;  // 16, 8, 4 and 2 only
      const Cut cut = cut_row<T, W>(vectors, most_blocks);
      if (cut.stages < 2) return false;  // the row to be finished, and the one ahead
      return cut.keeps ? run_cut<kind(), true>(a, cut) : run_cut<kind(), false>(a, cut);
    });
  });
}

/// The widest row: two stages of it fill the shared memory of the largest cluster. GPUs whose
/// clusters are smaller throw sooner.
constexpr int64_t widest_row_bytes() {
  constexpr int kSharedBytes = 227 << 10;  // of a block, on Hopper
  constexpr int kMoments = kSets * kMostPieces * sizeof(Moments);
  constexpr int kRoom = kSharedBytes - kStaticShared - kMoments;
  constexpr int kVectors = kRoom / (2 * kMostWarps * kVectorBytes);
  return int64_t{kMostPieces} * kVectors * kVectorBytes;
}

const Registration registration{{
    .id = "lib_fwd_cluster_ring",
    .title = "Very wide rows: a cluster with rings of bulk copies",
    .teaches = "rows of up to 1.7 MB read once, over up to 16 blocks",
    .source = "QuACK",
    .road = Road::Library,
    .needs_aligned = true,
    .group = "clusters",
    .min_architecture = 90,
    .keeps_digits_at_large_means = true,
    .max_row_bytes = widest_row_bytes(),
    .max_row_bytes_because = "a cluster holds two whole rows",
    .run = ForwardLaunchers::every([](const auto& args) { run(args); }),
    .predicted_bytes = least_bytes<Direction::Forward>,
}};

}  // namespace lib_fwd_cluster_ring
