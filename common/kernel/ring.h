// The ring of slots in shared memory that bulk copies fill in turn. fwd08 and bwd12 explain it and
// write out their own; lib_fwd_ring, lib_bwd_ring, lib_bwd_cluster and others use this one.
#pragma once

#include <cstdint>

#include "common/kernel/hopper.h"
#include "common/kernel/rows.h"
#include "common/kernel/vector.h"

namespace lnc {

/// Requests `count` rows of a tensor, from `first` on, contiguous in shared memory: dense rows,
/// contiguous in the tensor too, take one copy.
template <typename T>
__device__ void bulk_load_rows(void* to, const T* tensor, const DenseRows& rows, std::int64_t first,
                               int count, int cols, Barrier& barrier, L2Policy policy) {
  const auto bytes = static_cast<unsigned>(count * cols * sizeof(T));
  bulk_load(to, tensor + rows.start(first, cols), bytes, barrier, policy);
}

/// The same for strided rows: each takes a copy of its own.
template <typename T>
__device__ void bulk_load_rows(void* to, const T* tensor, const StridedRows& rows,
                               std::int64_t first, int count, int cols, Barrier& barrier,
                               L2Policy policy) {
  const auto row_bytes = static_cast<unsigned>(cols * sizeof(T));
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    T* const row_to = static_cast<T*>(to) + i * cols;
    bulk_load(row_to, tensor + rows.start(first + i), row_bytes, barrier, policy);
  }
}

/// Slots in shared memory that bulk copies fill in turn with rows, or pieces of rows. A stage is
/// the number of a slot.
template <typename T>
struct Ring {
  Packed<T, kVectorElements<T>>* slots;
  int slot_vectors;     ///< that a slot holds
  int stages;           ///< in the ring
  Barrier* full;        ///< one for each stage
  int stage = 0;        ///< to wait for next
  unsigned parity = 0;  ///< of its barrier's phase

  __device__ auto* slot(int i) const { return slots + std::int64_t{i} * slot_vectors; }
  /// One thread calls this before its first request. A __syncthreads() or a cluster barrier must
  /// follow.
  __device__ void init() const {
#pragma unroll 1
    for (int i = 0; i < stages; ++i) full[i].init(1);
    fence_barrier_init();
  }
  /// The same, and `request(i)` requests the first contents of stage i.
  template <typename Request>
  __device__ void fill(const Request& request) const {
    init();
#pragma unroll 1
    for (int i = 0; i < stages; ++i) request(i);
  }
  /// Waits until the current stage is full, and returns its slot.
  __device__ auto* wait() const {
    full[stage].wait(parity);
    return slot(stage);
  }
  /// Each thread that has read a slot calls this before the barrier after which one of them starts
  /// the next copy into it: the barrier alone does not order the copy engine, another proxy.
  __device__ static void release() { fence_proxy_async(); }
  __device__ void advance() {
    stage = stage + 1 < stages ? stage + 1 : 0;
    parity ^= stage == 0;  // after a full round, every barrier is one phase on
  }
};

}  // namespace lnc
