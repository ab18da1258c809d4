// Rows that start anywhere in memory, in vectors that start at 16-byte boundaries: explained by
// bwd15.
//
//   start_in_vector, row_period   where rows start, and how that repeats
//   start_in_line                 the same in lines of 128 bytes: where a bulk copy should begin
//   slot_elements_for             room for such a copy
//   row_vectors, rows_at_end      how many vectors a row spans; how many rows share an end vector
//   blocks_in_step                how many blocks, so that each steps to rows that start alike
//   OwnColumns                    a thread's columns: the same in all rows that start alike
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "common/kernel/launch.h"
#include "common/kernel/vector.h"

namespace lnc {

/// How many elements `place` is past a 16-byte boundary.
template <typename T>
__host__ __device__ inline int start_in_vector(const T* place) {
  return static_cast<int>(reinterpret_cast<std::uintptr_t>(place) % 16 / sizeof(T));
}

inline constexpr int kLineBytes = 128;

/// How many elements `place` is past the start of a line. A bulk copy is fastest if its source and
/// its destination have the same offset in a line: bwd15's laboratory has the measurement.
template <typename T>
__device__ inline int start_in_line(const T* place) {
  return static_cast<int>(reinterpret_cast<std::uintptr_t>(place) % kLineBytes / sizeof(T));
}

/// Elements of a slot in shared memory that holds `count` neighbouring elements, in whole lines,
/// wherever they start in a line.
template <typename T>
__host__ __device__ int slot_elements_for(int count) {
  constexpr int kElements = kLineBytes / sizeof(T);
  const int most = kElements - 1 + count;
  return (most + kElements - 1) / kElements * kElements;
}

/// Rows r and r + row_period start alike: equally far past a 16-byte boundary. A power of two, at
/// most kVectorElements.
template <typename T>
std::int64_t row_period(std::int64_t cols) {
  constexpr std::int64_t kElements = kVectorElements<T>;
  return kElements / std::gcd(kElements, cols);
}

/// The most vectors that a row of the tensor spans.
template <typename T>
std::int64_t row_vectors(const T* tensor, std::int64_t cols) {
  constexpr std::int64_t kElements = kVectorElements<T>;
  const std::int64_t apart = std::gcd(kElements, cols);  // between offsets at which rows start
  const std::int64_t last_start = kElements - apart + start_in_vector(tensor) % apart;
  return (last_start + cols + kElements - 1) / kElements;
}

/// How many rows at a tensor's start, or at its end, may overlap its first or last vector.
template <typename T>
unsigned rows_at_end(std::int64_t cols) {
  return blocks_for(kVectorElements<T>, cols);
}

/// How many blocks, about `most` at most, can walk over the rows so that each of a block's steps
/// leads to rows that start alike. A block takes `rows` neighbouring rows a step.
template <typename T>
std::int64_t blocks_in_step(std::int64_t most, std::int64_t rows, std::int64_t cols) {
  const std::int64_t period = row_period<T>(cols);
  const std::int64_t multiple = period / std::gcd(period, rows);
  return std::max<std::int64_t>(most / multiple, 1) * multiple;
}

/// Loads neighbouring elements of any alignment one by one. Each is `otherwise` if not `there`, or
/// if the tensor is null.
template <int kElements, typename T>
__device__ inline Packed<T, kElements> load_singly(bool there, const T* tensor, std::int64_t at,
                                                   float otherwise = 0.0f) {
  const bool loads = there && tensor != nullptr;
  Vector<T, kElements> vector;
  for (int k = 0; k < kElements; ++k) {
    vector.at[k] = loads ? tensor[at + k] : from_float<T>(otherwise);
  }
  return pack(vector);
}

/// Stores 16 bytes with one instruction. nvcc splits a plain store next to single-element ones into
/// four.
template <typename T, int kElements>
__device__ inline void store_whole(T* to, const Packed<T, kElements>& packed) {
  const auto words = __builtin_bit_cast(uint4, packed);
#if defined(__CUDA_ARCH__)
  __stwb(reinterpret_cast<uint4*>(to), words);
#else
  *reinterpret_cast<uint4*>(to) = words;
#endif
}

/// ThreadColumns of a row that may start inside a vector: the columns that a thread has, in
/// vectors, each `apart` columns after the previous one. A vector may begin before the row, in
/// column -1 or -7, and may end after it.
struct OwnColumns {
  int first;  ///< column where its first vector begins
  int apart;
  int cols;  ///< of the row

  __device__ int of(int i) const { return first + i * apart; }  ///< where vector i begins
  __device__ bool has(int i) const { return of(i) < cols; }
  /// Whether element k of vector i is one of the row.
  __device__ bool has(int i, int k) const { return of(i) + k >= 0 && of(i) + k < cols; }
  template <int kElements>
  __device__ bool has_all(int i) const {
    return of(i) >= 0 && of(i) + kElements <= cols;
  }

  /// Replaces elements outside the row by `other`.
  template <int kElements>
  __device__ void fill_others(int i, float (&values)[kElements], float other) const {
    if (has_all<kElements>(i)) return;
    for (int k = 0; k < kElements; ++k) {
      if (!has(i, k)) values[k] = other;
    }
  }

  /// Vector i of a tensor that may start anywhere: `otherwise` outside the row or where it is null.
  template <int kElements, typename W>
  __device__ Packed<W, kElements> load(int i, const W* tensor, float otherwise) const {
    Vector<W, kElements> vector;
    for (int k = 0; k < kElements; ++k) {
      const bool there = tensor != nullptr && has(i, k);
      vector.at[k] = there ? tensor[of(i) + k] : from_float<W>(otherwise);
    }
    return pack(vector);
  }

  /// Stores vector i of `row` in one access, or only those of its elements that are in the row.
  template <int kElements, typename T>
  __device__ void store(int i, T* row, const float (&values)[kElements]) const {
    if (has_all<kElements>(i)) {
      store_whole(row + of(i), from_floats<T>(values));
      return;
    }
    for (int k = 0; k < kElements; ++k) {
      if (has(i, k)) row[of(i) + k] = from_float<T>(values[k]);
    }
  }
};

}  // namespace lnc
