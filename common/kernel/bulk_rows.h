// Rows that bulk copies bring to shared memory, and the ring of slots that they come to in turns:
// explained by fwd08.
#pragma once

#include <cstdint>

#include "common/kernel/columns.h"
#include "common/kernel/hopper.h"

namespace lnc {

/// Rows of a tensor that bulk copies bring to shared memory, in the vectors of Columns: these start
/// at 16-byte boundaries of memory, wherever the rows do. kAligned: all rows start and end there.
template <typename T, bool kAligned>
struct BulkRows {
  static constexpr int kElements = kVectorElements<T>;
  using Slot = Packed<T, kElements>;  ///< what a vector takes in shared memory
  const T* tensor;
  std::int64_t rows;
  std::int64_t cols;

  /// Asks for up to `vectors` vectors of a row, from number `first` on, and arrives at the barrier.
  /// The row's neighbours come along where it shares a vector with them; a vector that is not
  /// wholly inside of the tensor does not come.
  __device__ void load(std::int64_t row, std::int64_t first, int vectors, Slot* slots,
                       Barrier& barrier) const {
    const unsigned bytes = copy(row, first, vectors, slots, barrier);
    barrier.arrive_and_expect(bytes);
  }
  /// Asks for `count` neighbouring rows, or for as many as there are, each to `vectors` vectors of
  /// the slots, which hold a whole one. Returns how many bytes come: the caller arrives and expects
  /// them. policy: nothing, or an L2Policy.
  template <typename... Policy>
  __device__ unsigned load_rows(std::int64_t row, int count, int vectors, Slot* slots,
                                Barrier& barrier, Policy... policy) const {
    count = static_cast<int>(min(rows - row, std::int64_t{count}));
    if constexpr (kAligned) {  // they are neighbours in both places
      const auto bytes = static_cast<unsigned>(count * cols * sizeof(T));
      bulk_load(slots, tensor + row * cols, bytes, barrier, policy...);
      return bytes;
    }
    unsigned bytes = 0;
    for (int i = 0; i < count; ++i) {
      bytes += copy(row + i, 0, vectors, slots, barrier, policy...);
      slots += vectors;
    }
    return bytes;
  }

  /// A vector of `row`, from the slot where `load` has brought it; 0 outside of the row.
  __device__ Slot take(const T* row, const Columns<T, kAligned>& columns, const Slot* slot) const {
    if (!columns.any()) return {};
    if (kAligned || (columns.first >= 0 && columns.first + kElements <= cols)) return *slot;
    const T* at = row + columns.first;
    if (at < tensor || at + kElements > tensor + rows * cols) return columns.load(row);
    auto vector = __builtin_bit_cast(Vector<T, kElements>, *slot);
    for (int k = 0; k < kElements; ++k) {
      if (!columns.has(k)) vector.at[k] = from_float<T>(0.0f);
    }
    return __builtin_bit_cast(Slot, vector);
  }
  /// The elements of `row` from column `first` on, a multiple of kElements, from the slots where
  /// `load_rows` has brought it; 0 beyond its end, and where the row is not `there`.
  __device__ Slot take_columns(bool there, std::int64_t row, int first, const Slot* slots) const {
    if (!there || first >= cols) return {};
    if constexpr (kAligned) return slots[first / kElements];
    const T* const start = tensor + row * cols;
    const auto shift = reinterpret_cast<std::uintptr_t>(start) % 16 / sizeof(T);
    const auto* elements = reinterpret_cast<const T*>(slots) + shift;
    Vector<T, kElements> vector{};
    for (int col = first; col < first + kElements && col < cols; ++col) {
      const std::uintptr_t of_vector = reinterpret_cast<std::uintptr_t>(start + col) / 16 * 16;
      const bool came = of_vector >= reinterpret_cast<std::uintptr_t>(tensor) &&
                        of_vector + 16 <= reinterpret_cast<std::uintptr_t>(tensor + rows * cols);
      vector.at[col - first] = came ? elements[col] : start[col];
    }
    return __builtin_bit_cast(Slot, vector);
  }

 private:
  /// Begins the copy that `load` speaks of; returns how many bytes come.
  template <typename... Policy>
  __device__ unsigned copy(std::int64_t row, std::int64_t first, int vectors, Slot* slots,
                           Barrier& barrier, Policy... policy) const {
    if constexpr (kAligned) {
      const std::int64_t elements =
          min(cols - first * kElements, std::int64_t{vectors} * kElements);
      if (elements <= 0) return 0;
      const auto bytes = static_cast<unsigned>(elements * sizeof(T));
      bulk_load(slots, tensor + row * cols + first * kElements, bytes, barrier, policy...);
      return bytes;
    }
    const auto floor = [](const T* p) { return reinterpret_cast<std::uintptr_t>(p) / 16 * 16; };
    const auto ceil = [=](const T* p) { return floor(p + kElements - 1); };
    const std::uintptr_t start = floor(tensor + row * cols) + first * 16;
    const std::uintptr_t begin = max(start, ceil(tensor));
    const std::uintptr_t end = min(min(start + vectors * 16, ceil(tensor + (row + 1) * cols)),
                                   floor(tensor + rows * cols));
    if (end <= begin) return 0;
    bulk_load(slots + (begin - start) / 16, reinterpret_cast<const void*>(begin), end - begin,
              barrier, policy...);
    return end - begin;
  }
};

/// Slots in shared memory to which rows, or pieces of rows, come in turns.
template <typename T>
struct Ring {
  Packed<T, kVectorElements<T>>* slots;
  int slot_vectors;     ///< that a slot holds
  int stages;           ///< slots in the ring
  Barrier* full;        ///< one for each slot
  int stage = 0;        ///< the slot in turn
  unsigned parity = 0;  ///< of its barrier's phase

  __device__ auto* slot(int i) const { return slots + std::int64_t{i} * slot_vectors; }
  /// One thread calls this before it asks for anything. A __syncthreads() must follow.
  __device__ void init() const {
#pragma unroll 1
    for (int i = 0; i < stages; ++i) full[i].init(1);
    fence_barrier_init();
  }
  /// Likewise, and `request(i)` asks for what comes to slot i first.
  template <typename Request>
  __device__ void fill(const Request& request) const {
    init();
#pragma unroll 1
    for (int i = 0; i < stages; ++i) request(i);
  }
  /// Waits for the slot in turn.
  __device__ auto* wait() const {
    full[stage].wait(parity);
    return slot(stage);
  }
  __device__ int before() const { return (stage > 0 ? stage : stages) - 1; }
  __device__ void advance() {
    stage = stage + 1 < stages ? stage + 1 : 0;
    parity ^= stage == 0;  // once around, every barrier is a phase further
  }
};

}  // namespace lnc
