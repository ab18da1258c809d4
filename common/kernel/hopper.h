// What Hopper adds, for chapters that need it: they include this in place of common/kernel/kernel.h.
//
// Such a chapter says `.min_architecture = 90` in its registration. On the CPU backend it runs like
// any other. All of it speaks of shared memory, static or dynamic.
//
//   Barrier                                 an mbarrier: arrivals and bytes         fwd08
//   fence_barrier_init                      before the first use                    fwd08
//   bulk_load                               global to shared, by the copy engine    fwd08
//   L2Policy                                what L2 gives up first                  bwd12
//   bulk_store, commit_bulk_stores,
//   wait_bulk_stores_read                   shared to global, likewise              fwd08
//   fence_proxy_async                       between own stores and the engine       fwd08
//   cluster_rank, cluster_size              which block of a cluster                fwd09
//   cluster_sync                            waits for all threads of the cluster    fwd09
//   remote_load, remote_store               another block's shared memory           fwd09
//   remote_store_async                      likewise, with a Barrier over there     fwd09
//   BulkRows, Ring                          rows of any width, in turns             fwd08
//   launch_dependents, grid_dependency_wait the next kernel starts early            bwd12
//
// Barrier. A barrier in shared memory that goes through phases 0, 1, 2, … A phase is complete when
// all its arrivals are there and all bytes that somebody expected in it have come; the next begins
// at once. Any number of threads may wait for a phase, by its parity: phase % 2.
//
//   init(arrivals)            by one thread, once; then fence_barrier_init() by the same thread
//   arrive()                  what this thread wrote before is seen by those who wait
//   arrive_and_expect(bytes)  arrives, and the phase wants so many bytes more: less than 2^20
//   wait(parity)              until the phase of this parity is complete
//   wait_at_cluster_scope(parity)  likewise, where remote_store_async brings the bytes
//
// Other blocks' asynchronous stores are released at the cluster's scope, so by the letter of PTX a
// wait for them acquires there; nvcc 13 empties L1 behind it.
//
// Other threads know a Barrier only after a __syncthreads(). Of a new one the phase before the
// first counts as complete: wait(1) returns. A thread that waits must be at most one phase behind:
// a parity says no more.
//
// bulk_load(to_shared, from_global, bytes, barrier). One thread asks, the copy engine works. Both
// addresses and the size are multiples of 16. The bytes count for the barrier's phase when they are
// there; who has waited for that sees them. An L2Policy may follow: lines that are EvictFirst are
// the first that L2 gives up.
//
// bulk_store(to_global, from_shared, bytes). By the same rules, but it completes in a group: a
// thread commits what it has begun as one group, and wait_bulk_stores_read<n>() waits until all of
// its groups but the last n have been read, so that their sources may be overwritten. A block must
// not end before. Each thread that wrote to the source by ordinary stores calls fence_proxy_async()
// before the threads meet and one of them calls bulk_store.
//
// Clusters. LaunchConfig::cluster blocks, neighbours in x, run at the same time. Before one reaches
// for another's shared memory, and after the last time, they meet in a cluster_sync(); it orders
// all memory, global too, and so waits for the stores before it and empties L1. It is made of
// cluster_arrive() and cluster_wait(), between which a thread may do something else.
// remote_…(&x, rank, …) means x of block `rank`, for 4 or 8 bytes. remote_store_async needs no
// meeting: its bytes count for that block's barrier, as a bulk_load's do. It wants a cluster of 2
// or more: without one it is an illegal instruction, and compute-sanitizer rejects it in one of 1.
//
// The next kernel. One that is launched with LaunchConfig::starts_early may start when every block
// of the kernel before it has called launch_dependents() or ended, on what those leave free. Before
// it touches global memory each of its threads calls grid_dependency_wait(), which returns when the
// kernel before has ended and its writes are seen. On the CPU backend there is nothing to wait for.
#pragma once

#include "common/kernel/kernel.h"

#if defined(__CUDACC__)
#include "common/cuda/hopper.h"
#else
#include "common/simt/hopper.h"
#endif

namespace lnc {

/// Rows of a tensor that bulk copies bring to shared memory, in the vectors of Columns: these start
/// at 16-byte boundaries of memory, wherever the rows do. kAligned: all rows start and end there.
template <typename T, bool kAligned>
struct BulkRows {
  static constexpr int kLanes = kVectorElements<T>;
  using Slot = Packed<T, kLanes>;  ///< what a vector takes in shared memory
  const T* tensor;
  std::int64_t rows, cols;

  /// Asks for up to `vectors` vectors of a row, from number `first` on, and arrives at the barrier.
  /// The row's neighbours come along where it shares a vector with them; a vector that is not
  /// wholly inside of the tensor does not come.
  __device__ void load(std::int64_t row, std::int64_t first, int vectors, Slot* slots,
                       Barrier& barrier) const {
    barrier.arrive_and_expect(copy(row, first, vectors, slots, barrier));
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
    for (int i = 0; i < count; ++i, slots += vectors)
      bytes += copy(row + i, 0, vectors, slots, barrier, policy...);
    return bytes;
  }

  /// A vector of `row`, from the slot where `load` has brought it; 0 outside of the row.
  __device__ Slot take(const T* row, const Columns<T, kAligned>& columns, const Slot* slot) const {
    if (!columns.any()) return {};
    if (kAligned || (columns.first >= 0 && columns.first + kLanes <= cols)) return *slot;
    const T* at = row + columns.first;
    if (at < tensor || at + kLanes > tensor + rows * cols) return columns.load(row);
    auto vector = __builtin_bit_cast(Vector<T, kLanes>, *slot);
    for (int lane = 0; lane < kLanes; ++lane)
      if (!columns.has(lane)) vector.at[lane] = from_float<T>(0.0f);
    return __builtin_bit_cast(Slot, vector);
  }
  /// The elements of `row` from column `first` on, a multiple of kLanes, from the slots where
  /// `load_rows` has brought it; 0 beyond its end, and where the row is not `there`.
  __device__ Slot take_columns(bool there, std::int64_t row, int first, const Slot* slots) const {
    if (!there || first >= cols) return {};
    if constexpr (kAligned) return slots[first / kLanes];
    const T* const start = tensor + row * cols;
    const auto* elements = reinterpret_cast<const T*>(slots) +
                           reinterpret_cast<std::uintptr_t>(start) % 16 / sizeof(T);
    Vector<T, kLanes> vector{};
    for (int col = first; col < first + kLanes && col < cols; ++col) {
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
      const std::int64_t elements = min(cols - first * kLanes, std::int64_t{vectors} * kLanes);
      if (elements <= 0) return 0;
      const auto bytes = static_cast<unsigned>(elements * sizeof(T));
      bulk_load(slots, tensor + row * cols + first * kLanes, bytes, barrier, policy...);
      return bytes;
    }
    const auto floor = [](const T* p) { return reinterpret_cast<std::uintptr_t>(p) / 16 * 16; };
    const auto ceil = [=](const T* p) { return floor(p + kLanes - 1); };
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
  int slot_vectors, stages;  ///< of a slot; and slots
  Barrier* full;             ///< one for each
  int stage = 0;             ///< the slot in turn
  unsigned parity = 0;       ///< of its barrier's phase

  __device__ auto* slot(int i) const { return slots + std::int64_t{i} * slot_vectors; }
  /// One thread calls this; `request(i)` asks for what comes to slot i first. A __syncthreads()
  /// must follow.
  template <typename Request>
  __device__ void fill(const Request& request) const {
#pragma unroll 1
    for (int i = 0; i < stages; ++i) full[i].init(1);
    fence_barrier_init();
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

/// A kernel that is launched early, and waits before it reads what the one before has written.
struct EarlyStart {
  static constexpr bool kEarly = true;
  static __device__ void wait() { grid_dependency_wait(); }
};

}  // namespace lnc
