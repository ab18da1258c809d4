// The columns, in vectors, of a row that may start anywhere; elements outside the row are masked.
// For lib_fwd_registers and lib_fwd_fused_any. fwd06 explains vectors.
#pragma once

#include "common/kernel/vector.h"

namespace lnc {

/// The most vectors that a row can span. An unaligned row may start inside one.
template <typename T, bool kAligned>
std::int64_t vectors_of_row(std::int64_t cols) {
  constexpr int kElements = kVectorElements<T>;
  return blocks_for((kAligned ? 0 : kElements - 1) + cols, kElements);
}

/// The columns of a row that one vector covers, accessed as 16 bytes where possible and element by
/// element at the row's ends. kAligned: every tensor's rows start and end at 16-byte boundaries, so
/// 16-byte access is always possible.
template <typename T, bool kAligned>
struct Columns {
  static constexpr int kElements = kVectorElements<T>;
  std::int64_t first;  // before the row's start, or past its end, for a vector that straddles
  std::int64_t cols;

  /// @param batch_invariant vectors begin at the row's first column; otherwise at 16-byte
  /// boundaries of memory
  __device__ Columns(const T* row, std::int64_t vector, std::int64_t cols, bool batch_invariant)
      : cols(cols) {
    const bool at_start = kAligned || batch_invariant;
    const std::int64_t start =
        at_start ? 0 : reinterpret_cast<std::uintptr_t>(row) % 16 / sizeof(T);
    first = vector * kElements - start;
  }
  __device__ bool any() const { return first < cols; }
  __device__ std::int64_t start() const { return first > 0 ? first : 0; }  // in the row
  __device__ bool has(int element) const {  // no test at all where rows are aligned
    return kAligned || (first + element >= 0 && first + element < cols);
  }
  template <typename U>
  __device__ bool in_one_access(const U* row) const {
    return kAligned || (first >= 0 && first + kElements <= cols &&
                        reinterpret_cast<std::uintptr_t>(row + first) % 16 == 0);
  }

  template <typename U>
  __device__ Packed<U, kElements> load(const U* row) const {
    Packed<U, kElements> packed{};  // 0 outside of the row
    if (!any()) return packed;
    if (in_one_access(row)) return *reinterpret_cast<const Packed<U, kElements>*>(row + first);
    Vector<U, kElements> vector{};
    for (int k = 0; k < kElements; ++k) {
      if (has(k)) vector.at[k] = row[first + k];
    }
    return __builtin_bit_cast(Packed<U, kElements>, vector);
  }
  /// The same for a tensor that may be null: each element is then `otherwise`.
  template <typename U>
  __device__ Packed<U, kElements> load_or(float otherwise, const U* row) const {
    const bool given = row != nullptr;
    if constexpr (kAligned) return load_if<kElements>(given && any(), row, first, otherwise);
    return given ? load(row) : load_if<kElements>(false, row, 0, otherwise);
  }
  template <typename U>
  __device__ void store(U* row, const float (&values)[kElements]) const {
    if (!any()) return;
    if (in_one_access(row)) {
      *reinterpret_cast<Packed<U, kElements>*>(row + first) = from_floats<U>(values);
      return;
    }
    for (int k = 0; k < kElements; ++k) {
      if (has(k)) row[first + k] = from_float<U>(values[k]);
    }
  }
};

}  // namespace lnc
