// Rows that start anywhere in memory, in vectors that start at 16-byte boundaries: explained by
// fwd11.
//
//   start_in_vector, row_period, row_vectors   where rows start, and how that repeats
//   OwnColumns                                 a thread's columns: the same in all rows that start
//                                              alike
//   TensorPiece                                neighbouring rows on their way to shared memory
//   TakeVectors, TakeElements                  a thread's columns out of shared memory
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "common/kernel/hopper.h"
#include "common/kernel/vector.h"

namespace lnc {

/// How many elements past a 16-byte boundary a place is.
template <typename T>
__host__ __device__ inline int start_in_vector(const T* place) {
  return static_cast<int>(reinterpret_cast<std::uintptr_t>(place) % 16 / sizeof(T));
}

/// Rows r and r + row_period start alike: so many elements past a 16-byte boundary. A power of two,
/// at most kVectorElements.
template <typename T>
std::int64_t row_period(std::int64_t cols) {
  constexpr std::int64_t kElements = kVectorElements<T>;
  return kElements / std::gcd(kElements, cols);
}

/// How many vectors a row of the tensor lies in, at most.
template <typename T>
std::int64_t row_vectors(const T* tensor, std::int64_t cols) {
  constexpr std::int64_t kElements = kVectorElements<T>;
  const std::int64_t apart = std::gcd(kElements, cols);  // of the places where rows start
  const std::int64_t last_start = kElements - apart + start_in_vector(tensor) % apart;
  return (last_start + cols + kElements - 1) / kElements;
}

/// How many rows at a tensor's start, or at its end, may lie in its first or last vector.
template <typename T>
unsigned rows_at_end(std::int64_t cols) {
  return blocks_for(kVectorElements<T>, cols);
}

/// Elements of shared memory, whole vectors, that hold `rows` neighbouring rows wherever they
/// start.
template <typename T>
__host__ __device__ inline int slot_elements_for(int rows, int cols) {
  constexpr int kElements = kVectorElements<T>;
  const int most = kElements - 1 + rows * cols;
  return (most + kElements - 1) / kElements * kElements;
}

/// How many blocks, at most about `most`, walk over the rows so that each step of a block leads to
/// rows that start alike. A block takes `rows` neighbouring rows a step.
template <typename T>
std::int64_t blocks_in_step(std::int64_t most, std::int64_t rows, std::int64_t cols) {
  const std::int64_t period = row_period<T>(cols);
  const std::int64_t multiple = period / std::gcd(period, rows);
  return std::max<std::int64_t>(most / multiple, 1) * multiple;
}

/// Stores 16 bytes by one instruction. Of a plain store that stands beside single ones nvcc makes
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

/// The columns of a row that a thread has: vectors, each `apart` columns behind the one before. A
/// vector may begin before the row, in column -1 or -7, and it may end behind it.
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

  /// Puts `other` in place of what is not the row's.
  template <int kElements>
  __device__ void fill_others(int i, float (&values)[kElements], float other) const {
    if (has_all<kElements>(i)) return;
    for (int k = 0; k < kElements; ++k) {
      if (!has(i, k)) values[k] = other;
    }
  }

  /// Vector i of a tensor that may start anywhere, or be null: then each element is `otherwise`.
  template <int kElements, typename W>
  __device__ Packed<W, kElements> load(int i, const W* tensor, float otherwise) const {
    Vector<W, kElements> vector;
    for (int k = 0; k < kElements; ++k) {
      const bool there = tensor != nullptr && has(i, k);
      vector.at[k] = there ? tensor[of(i) + k] : from_float<W>(otherwise);
    }
    return pack(vector);
  }

  /// Stores vector i of `row` at once, or the elements of it that are the row's.
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

/// The whole vectors that neighbouring elements of a tensor lie in, far from the tensor's ends.
struct WholeVectors {
  const void* boundary;  ///< where the first begins
  unsigned bytes;        ///< of all of them

  template <typename T>
  __device__ WholeVectors(const T* first, int count) {
    const auto begin = reinterpret_cast<std::uintptr_t>(first) / 16 * 16;
    const auto end = (reinterpret_cast<std::uintptr_t>(first + count) + 15) / 16 * 16;
    boundary = reinterpret_cast<const void*>(begin);
    bytes = static_cast<unsigned>(end - begin);
  }
};

/// Neighbouring elements of a tensor on their way to shared memory. There they lie as in memory: in
/// vectors, counted from the 16-byte boundary before the piece. The numbers below count elements
/// from there.
template <typename T>
struct TensorPiece {
  static constexpr int kElements = kVectorElements<T>;
  const T* boundary;
  int begin, end;
  int copy_begin, copy_end;  ///< of the vectors that lie wholly inside of the tensor

  /// @param elements of the tensor, of which the piece has `count`, from number `first` on
  __device__ TensorPiece(const T* tensor, std::int64_t elements, std::int64_t first, int count) {
    begin = start_in_vector(tensor + first);
    end = begin + count;
    boundary = tensor + first - begin;
    copy_begin = boundary < tensor ? kElements : 0;
    copy_end = (end + kElements - 1) / kElements * kElements;
    if (boundary + copy_end > tensor + elements) copy_end -= kElements;
    copy_end = max(copy_end, copy_begin);
  }
  __device__ unsigned copy_bytes() const { return (copy_end - copy_begin) * sizeof(T); }

  /// One thread asks for the vectors inside of the tensor. They count for the barrier.
  __device__ void copy(T* slot, Barrier& barrier) const {
    if (copy_end > copy_begin) {
      bulk_load(slot + copy_begin, boundary + copy_begin, copy_bytes(), barrier);
    }
  }
  /// A block's threads bring what is left at the tensor's ends, an element each. A __syncthreads()
  /// must follow.
  __device__ void bring_ends(T* slot) const {
    const int front = begin + static_cast<int>(threadIdx.x);
    const int back = copy_end + static_cast<int>(threadIdx.x);
    if (front < min(copy_begin, end)) slot[front] = boundary[front];
    if (back < end) slot[back] = boundary[back];
    fence_proxy_async();  // a later copy may write where this thread has written
  }
};

/// Loads vector i of a row that starts as the thread's columns do, at once. What its first vector
/// and its last have of its neighbours comes along. Where the tensor ends there may be no
/// neighbour: a row that is not `inside` comes element by element, with 0 in place of the others.
struct LoadVectors {
  template <typename T>
  static __device__ auto load(const OwnColumns& own, int i, const T* row, bool inside) {
    constexpr int kElements = kVectorElements<T>;
    if (!inside) return own.load<kElements>(i, row, 0.0f);
    return load_if<kElements>(own.has(i), row, own.of(i));
  }
};

/// Loads vector i of a row that starts anywhere, element by element.
struct LoadElements {
  template <typename T>
  static __device__ auto load(const OwnColumns& own, int i, const T* row, bool) {
    return own.load<kVectorElements<T>>(i, row, 0.0f);
  }
};

/// Takes vector i of a row that starts in shared memory as the thread's columns do: at once. In
/// place of what is not the row's stands 0.
struct TakeVectors {
  template <typename T>
  static __device__ auto take(const OwnColumns& own, int i, const T* row) {
    constexpr int kElements = kVectorElements<T>;
    const auto all = *reinterpret_cast<const Packed<T, kElements>*>(row + own.of(i));
    if (own.has_all<kElements>(i)) return all;
    auto vector = __builtin_bit_cast(Vector<T, kElements>, all);
    for (int k = 0; k < kElements; ++k) {
      if (!own.has(i, k)) vector.at[k] = from_float<T>(0.0f);
    }
    return __builtin_bit_cast(Packed<T, kElements>, vector);
  }
};

/// Takes vector i of a row that starts in shared memory anywhere, element by element.
struct TakeElements {
  template <typename T>
  static __device__ auto take(const OwnColumns& own, int i, const T* row) {
    Vector<T, kVectorElements<T>> vector{};
    for (int k = 0; k < kVectorElements<T>; ++k) {
      if (own.has(i, k)) vector.at[k] = row[own.of(i) + k];
    }
    return __builtin_bit_cast(Packed<T, kVectorElements<T>>, vector);
  }
};

}  // namespace lnc
