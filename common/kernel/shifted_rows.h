// A row that starts anywhere, in whole vectors from its first 16-byte boundary on. Weight and bias
// are loaded in whole vectors too and shifted into place. For lib_fwd_unaligned and
// lib_fwd_cluster_unaligned; fwd16 explains the shift with code of its own.
//
//   whole_vectors   how many vectors each row has
//   RowShare        a thread's share of a row of which each warp has a piece
//   load_row        loads x of that share
//   ask_for_parameters, piece_moments, store_row   the next steps, in this order
//
// The few elements before and after a row's vectors are its edges: single lanes of the first piece
// have them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/kernel/contract.h"
#include "common/kernel/moments.h"
#include "common/kernel/pieces.h"
#include "common/kernel/reduce.h"
#include "common/kernel/unaligned_rows.h"
#include "common/kernel/vector.h"

namespace lnc {

/// How many vectors each row has, wherever it starts; each overlaps two of weight's. The other
/// columns, fewer than two vectors, are edges.
template <typename T>
int whole_vectors(std::int64_t cols) {
  return static_cast<int>(std::max<std::int64_t>(cols / kVectorElements<T> - 1, 0));
}

/// Moves words down by `places`, fewer than 2 · kStep: by kStep or 0, then by half of it or 0, …
template <int kStep, int kWords>
__device__ void move_down(std::uint32_t (&words)[kWords], int places) {
#pragma unroll
  for (int i = 0; i < kWords - kStep; ++i) {
    words[i] = places & kStep ? words[i + kStep] : words[i];
  }
  if constexpr (kStep > 1) move_down<kStep / 2>(words, places);
}

/// kElements elements of `from` from its element `past` (below kElements) on, extracted from the
/// whole vectors that contain them.
template <int kElements, typename W>
__device__ Packed<W, kElements> load_past(const W* from, int past) {
  constexpr int kVector = kVectorElements<W>;
  constexpr int kVectorWords = 4;
  constexpr int kWords = kElements * sizeof(W) / 4;
  const int skipped = kElements > kVector ? past / kVector * kVector : 0;  // by whole vectors
  std::uint32_t words[kWords + kVectorWords];
#pragma unroll
  for (int i = 0; i < kWords + kVectorWords; i += kVectorWords) {
    const auto vector = load_vector<kVector>(from + skipped, i / kVectorWords * kVector);
    for (int k = 0; k < kVectorWords; ++k) {
      words[i + k] = vector.at[k];
    }
  }
  const int past_bytes = (past - skipped) * static_cast<int>(sizeof(W));
  move_down<kVectorWords / 2>(words, past_bytes / 4);
  Packed<W, kElements> packed;
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    packed.at[i] = words[i];
    if constexpr (sizeof(W) == 2) {
      const std::uint64_t two_words = std::uint64_t{words[i + 1]} << 32 | words[i];
      packed.at[i] = static_cast<std::uint32_t>(two_words >> (past_bytes & 2) * 8);
    }
  }
  return packed;
}

/// Returns `number`, but nvcc no longer knows that it is the same in all lanes.
__device__ inline int of_lane(int number) {
#if defined(__CUDA_ARCH__)
  asm("" : "+r"(number));
#endif
  return number;
}

/// A thread's share of a row of which each warp has a piece: kVectors vectors a lane.
template <int kVectors>
struct RowShare {
  int head;           ///< elements before the row's first vector
  int first_col;      ///< of the thread's first vector, counted from the row's first vector
  int left;           ///< vectors of the row from that one on
  int edge_col;       ///< of its edge element
  bool has_edge;      ///< whether it has one
  int columns;        ///< of the warp's piece
  int first_columns;  ///< of these, the edges and those of the lanes' first vectors

  /// @param y_row where y's row starts: stores must be whole vectors
  /// @param vectors of the row
  template <typename T>
  __device__ RowShare(const T* y_row, int cols, int vectors, int piece) {
    constexpr int kElements = kVectorElements<T>;
    const int lane = threadIdx.x % kWarpSize;
    const int before = piece * kVectors * kWarpSize;
    const int thread = piece * kWarpSize + lane;
    const int edges = cols - vectors * kElements;
    head = of_lane((kElements - start_in_vector(y_row)) % kElements);
    first_col = (before + lane) * kElements;
    left = vectors - before - lane;
    edge_col = thread < head ? thread : cols - edges + thread;
    has_edge = thread < edges;
    const int of_piece = max(min(vectors - before, kVectors * kWarpSize), 0);
    const int of_edges = piece == 0 ? edges : 0;
    columns = of_piece * kElements + of_edges;
    first_columns = min(of_piece, kWarpSize) * kElements + of_edges;
  }
  /// Whether the row has the thread's vector i.
  __device__ bool has(int i) const { return i * kWarpSize < left; }
};

/// x of a thread's share of a row. Elements outside the row are 0.
template <typename T, int kVectors>
struct RowValues {
  Packed<T, kVectorElements<T>> x[kVectors];
  Packed<T, 1> edge;
};

/// Loads x of a thread's share: element by element if x's row does not start as y's does.
template <typename T, int kVectors>
__device__ RowValues<T, kVectors> load_row(const T* x_row, const T* y_row,
                                           const RowShare<kVectors>& own) {
  constexpr int kElements = kVectorElements<T>;
  constexpr int kStep = kWarpSize * kElements;  // columns from one vector of a lane to the next
  const bool alike = start_in_vector(x_row) == start_in_vector(y_row);
  const T* const first = x_row + own.head + own.first_col;
  RowValues<T, kVectors> values;
  if (alike) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      values.x[i] = load_if<kElements>(own.has(i), first, i * kStep);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      values.x[i] = load_singly<kElements>(own.has(i), first, i * kStep);
    }
  }
  values.edge = load_if<1>(own.has_edge, x_row, own.edge_col);
  return values;
}

/// Prefetches weight and bias of a thread's vectors into L2.
template <typename T, typename W, int kVectors>
__device__ void ask_for_parameters(const W* weight, const W* bias, const RowShare<kVectors>& own) {
  for (int i = 0; i < kVectors; ++i) {
    if (!own.has(i)) break;
    const int col = own.first_col + i * kWarpSize * kVectorElements<T>;
    prefetch_to_l2(weight, col);
    prefetch_to_l2(bias, col);
  }
}

/// The moments of the warp's piece.
template <Kind kKind, typename T, int kVectors>
__device__ Moments piece_moments(RowValues<T, kVectors>& row, const RowShare<kVectors>& own) {
  float of_edge[1];
  to_floats(row.edge, of_edge);
  float near = 0.0f;
  if (kKind == Kind::Layer) near = mean_of_first(row.x[0], of_edge[0], own.first_columns);
  Deviations<kKind> sums{};
  if (own.has_edge) add_deviation(sums, of_edge[0] - near);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    stay_packed(row.x[i]);  // else nvcc would keep the first vector as floats, too
    if (own.has(i)) add_deviations(sums, near, row.x[i]);
  }
  return moments_of(own.columns, near, warp_sum(sums));
}

/// Weight or bias of a vector that starts in the column `past` + `col`, where `col` is a multiple
/// of kElements. kWhole: the tensor is not null and starts at a 16-byte boundary.
template <bool kWhole, int kElements, typename W>
__device__ Packed<W, kElements> load_parameter(const W* tensor, int col, int past,
                                               float otherwise) {
  if constexpr (kWhole) {
    return load_past<kElements>(tensor + col, past);
  } else {
    return load_singly<kElements>(true, tensor, past + col, otherwise);
  }
}

/// Computes y of a thread's vectors and stores it. `bias` is null in RMS norm.
template <bool kWhole, Kind kKind, typename T, typename W, int kVectors>
__device__ void store_vectors(T* y_row, const RowValues<T, kVectors>& row, const Normaliser& of_row,
                              const W* weight, const W* bias, const RowShare<kVectors>& own) {
  constexpr int kElements = kVectorElements<T>;
  T* const first = y_row + own.head + own.first_col;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (!own.has(i)) break;
    constexpr bool kWholeBias = kWhole && kKind == Kind::Layer;
    const int step = i * kWarpSize * kElements;
    const int col = own.first_col + step;
    const auto of_weight = load_parameter<kWhole, kElements>(weight, col, own.head, 1.0f);
    const auto of_bias = load_parameter<kWholeBias, kElements>(bias, col, own.head, 0.0f);
    float values[kElements];
    normalise(row.x[i], of_row, of_weight, of_bias, values);
    store_vector(first + step, values);
  }
}

/// Computes y of a thread's share and stores it. If weight or bias is null or not 16-byte aligned,
/// both are loaded element by element.
template <Kind kKind, typename T, typename W, int kVectors>
__device__ void store_row(T* y_row, const RowValues<T, kVectors>& row, const Normaliser& of_row,
                          const W* weight, const W* bias, const RowShare<kVectors>& own) {
  const bool given = weight != nullptr && (kKind == Kind::Rms || bias != nullptr);
  const bool whole = given && start_in_vector(weight) == 0 && start_in_vector(bias) == 0;
  if (whole) {
    store_vectors<true, kKind>(y_row, row, of_row, weight, bias, own);
  } else {
    store_vectors<false, kKind>(y_row, row, of_row, weight, bias, own);
  }
  if (!own.has_edge) return;
  const auto of_weight = load_singly<1>(true, weight, own.edge_col, 1.0f);
  const auto of_bias = load_singly<1>(true, bias, own.edge_col, 0.0f);
  float value[1];
  normalise(row.edge, of_row, of_weight, of_bias, value);
  y_row[own.edge_col] = from_float<T>(value[0]);
}

}  // namespace lnc
