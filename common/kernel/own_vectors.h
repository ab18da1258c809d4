// The vectors of a row that a thread keeps in registers: their loads and their sums, for the
// library's forward kernels. fwd06 explains vectors.
//
// `Own` says which vectors a thread has: has(i), whether its vector i is one of the row's, and
// of(i), the column where that begins. ThreadColumns is such a type.
#pragma once

#include "common/kernel/moments.h"
#include "common/kernel/vector.h"

namespace lnc {

/// Loads a thread's vectors of a row that starts at element `start` of a tensor, or of a parameter.
/// Elements past the row's end, or of a null tensor, are `otherwise`.
template <typename U, int kElements, int kVectors, typename Own>
__device__ void load_vectors(Packed<U, kElements> (&values)[kVectors], const U* tensor,
                             std::int64_t start, const Own& own, float otherwise = 0.0f) {
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const bool there = tensor != nullptr && own.has(i);
    values[i] = load_if<kElements>(there, tensor, start + own.of(i), otherwise);
  }
}

/// The sum of a thread's elements; those past the row's end are 0.
template <typename Vec, int kVectors>
__device__ float sum_of(const Vec (&x)[kVectors]) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    add_elements(sum, x[i]);
  }
  return sum;
}

/// The same, with a branch around each vector: without it nvcc converts all vectors to floats at
/// once, and lib_fwd_ring takes 80 registers instead of 64.
template <typename Vec, int kVectors, typename Own>
__device__ float sum_of(const Vec (&x)[kVectors], const Own& own) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (own.has(i)) add_elements(sum, x[i]);
  }
  return sum;
}

/// The sums of a thread's deviations from `near`, a float near the mean.
template <Kind kKind, typename Vec, int kVectors, typename Own>
__device__ Deviations<kKind> deviations_of(const Vec (&x)[kVectors], float near, const Own& own) {
  Deviations<kKind> sums{};
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (own.has(i)) add_deviations(sums, near, x[i]);
  }
  return sums;
}

}  // namespace lnc
