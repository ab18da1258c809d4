// Per-piece statistics of a row that several warps share, how they are merged into the row's, and
// how a row is cut into pieces. fwd09 explains the exchange and fwd04 the mean in two floats;
// lib_fwd_cluster and lib_fwd_cluster_unaligned cut rows this way.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "common/kernel/launch.h"
#include "common/kernel/moments.h"
#include "common/kernel/reduce.h"
#include "common/kernel/vector.h"

namespace lnc {

/// The statistics of a piece. For RMS norm `near` counts as 0, and `squares` are those of x.
struct alignas(16) Moments {
  float columns;     ///< of the piece
  float near;        ///< a float near their mean
  float deviations;  ///< sum of the deviations from `near`
  float squares;     ///< sum of their squares
};

/// The Moments of a piece of `columns` columns, from its sums of deviations from `near`.
__device__ inline Moments moments_of(int columns, float near, float2 sums) {
  return {static_cast<float>(columns), near, sums.x, sums.y};
}
__device__ inline Moments moments_of(int columns, float near, float squares) {
  return {static_cast<float>(columns), near, 0.0f, squares};
}

/// A float near the mean of a warp's piece: the mean of each lane's first vector and perhaps one
/// more element, `columns` in all. A lane passes 0 for what it does not have. If that is one column
/// in v, it is less than sqrt(v) standard deviations of the piece away from the piece's mean.
template <typename T, int kElements>
__device__ inline float mean_of_first(const Packed<T, kElements>& vector, float beside,
                                      int columns) {
  float sum = beside;
  add_elements(sum, vector);
  return warp_sum(sum) / static_cast<float>(columns > 0 ? columns : 1);
}

/// Merges the moments of a row's pieces, kMostPieces or fewer, into its Normaliser. A whole warp
/// calls this, and each lane has the result.
template <Kind kKind, int kMostPieces>
__device__ inline Normaliser merge_moments(const Moments* moments, int pieces, float inverse_cols,
                                           float eps) {
  static_assert(kMostPieces % kWarpSize == 0);
  constexpr int kLanePieces = kMostPieces / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  Moments of_piece[kLanePieces];
#pragma unroll
  for (int i = 0; i < kLanePieces; ++i) {
    const int number = lane + i * kWarpSize;
    of_piece[i] = number < pieces ? moments[number] : Moments{};
  }
  float near = 0.0f;
  Deviations<kKind> sums{};
  if constexpr (kKind == Kind::Rms) {
    for (const Moments& piece : of_piece) {
      sums += piece.squares;
    }
  } else {
    float sum = 0.0f;
    for (const Moments& piece : of_piece) {
      sum += piece.columns * piece.near;
    }
    near = warp_sum(sum) * inverse_cols;
    for (const Moments& piece : of_piece) {
      const float distance = piece.near - near;
      const float of_distance = piece.columns * distance;
      sums.x += piece.deviations + of_distance;
      sums.y += piece.squares + (2.0f * piece.deviations + of_distance) * distance;
    }
  }
  return normaliser(near, warp_sum(sums), inverse_cols, eps);
}

/// How a row is cut over a cluster, a piece for each warp.
struct Cut {
  int blocks;   ///< of the cluster; 0: the row does not fit
  int warps;    ///< of a block
  int vectors;  ///< of a thread
  int places() const { return blocks * warps * vectors; }
  /// Empty places cost, and so does each block: every warp sends to it.
  std::int64_t cost() const { return std::int64_t{places()} * (32 + blocks); }
};

/// The cut of least cost for a row of `vectors` vectors.
/// @param each the vectors that a thread may have
inline Cut cut_row(std::int64_t vectors, std::initializer_list<int> each, int most_blocks,
                   int most_warps) {
  Cut best{};
  for (const int of_thread : each) {
    for (int blocks = 2; blocks <= most_blocks; ++blocks) {
      const std::int64_t of_warps = std::int64_t{blocks} * of_thread * kWarpSize;
      const Cut cut{blocks, static_cast<int>(blocks_for(vectors, of_warps)), of_thread};
      if (cut.warps > most_warps) continue;
      if (best.blocks == 0 || cut.cost() < best.cost()) best = cut;
    }
  }
  return best;
}

}  // namespace lnc
