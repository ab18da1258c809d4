// Which columns of a row a thread has, and the store of its sums over them: for library kernels on
// whole vectors, such as lib_fwd_fused and lib_bwd_registers. fwd06 explains vectors, bwd09 sums
// that stay in registers.
#pragma once

#include "common/kernel/vector.h"

namespace lnc {

/// The columns of a row, or of a slice of one, that a thread has: whole vectors, each `apart`
/// columns after the previous one. Other threads have the vectors between, so that neighbours read
/// neighbouring vectors.
struct ThreadColumns {
  int first;  ///< column of its first vector
  int apart;
  int cols;  ///< of the row, or of the slice

  __device__ int of(int i) const { return first + i * apart; }  ///< where vector i begins
  __device__ bool has(int i) const { return of(i) < cols; }
};

/// Stores a thread's sums to their columns of a row of floats.
/// @tparam Columns ThreadColumns, or a type with the same has(i) and of(i)
template <typename Columns, int kVectors, int kElements>
__device__ void store_sums(const Columns& columns, const Vector<float, kElements> (&sums)[kVectors],
                           float* row) {
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (columns.has(i)) *reinterpret_cast<Vector<float, kElements>*>(row + columns.of(i)) = sums[i];
  }
}

}  // namespace lnc
