// Which columns of a row a thread has, and its sums of them: for the library's kernels of whole
// vectors, such as lib_fwd_fused and lib_bwd_registers. fwd06 explains vectors, bwd09 sums that
// stay in registers.
#pragma once

#include "common/kernel/vector.h"

namespace lnc {

/// The columns of a row, or of a slice of one, that a thread has: whole vectors, each `apart`
/// columns behind the one before. The threads between have the others, so that neighbours read what
/// lies side by side.
struct ThreadColumns {
  int first;  ///< column of its first vector
  int apart;
  int cols;  ///< of the row, or of the slice

  __device__ int of(int i) const { return first + i * apart; }  ///< where vector i begins
  __device__ bool has(int i) const { return of(i) < cols; }
};

/// Stores a thread's sums to their columns of a row of floats.
/// @tparam Columns ThreadColumns, or what says likewise which vectors the thread has
template <typename Columns, int kVectors, int kElements>
__device__ void store_sums(const Columns& columns, const Vector<float, kElements> (&sums)[kVectors],
                           float* row) {
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (columns.has(i)) *reinterpret_cast<Vector<float, kElements>*>(row + columns.of(i)) = sums[i];
  }
}

}  // namespace lnc
