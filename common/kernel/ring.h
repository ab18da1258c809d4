// The ring of slots in shared memory that bulk copies fill in turns: explained by fwd08 and bwd12,
// which write theirs out; used by lib_fwd_ring, lib_bwd_ring and lib_bwd_cluster, among others.
#pragma once

#include <cstdint>

#include "common/kernel/hopper.h"
#include "common/kernel/rows.h"
#include "common/kernel/vector.h"

namespace lnc {

/// Asks for `count` rows of a tensor, from `first` on, side by side in shared memory: what lies
/// side by side there, too, comes in one copy.
template <typename T>
__device__ void bulk_load_rows(void* to, const T* tensor, const DenseRows& rows, std::int64_t first,
                               int count, int cols, Barrier& barrier, L2Policy policy) {
  const auto bytes = static_cast<unsigned>(count * cols * sizeof(T));
  bulk_load(to, tensor + rows.start(first, cols), bytes, barrier, policy);
}

/// Likewise, of rows that lie apart: each comes in a copy of its own.
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

/// Places in shared memory to which bulk copies bring rows, or pieces of rows, in turns. A stage is
/// the number of such a place, and a slot its memory.
template <typename T>
struct Ring {
  Packed<T, kVectorElements<T>>* slots;
  int slot_vectors;     ///< that a slot holds
  int stages;           ///< in the ring
  Barrier* full;        ///< one for each stage
  int stage = 0;        ///< in turn
  unsigned parity = 0;  ///< of its barrier's phase

  __device__ auto* slot(int i) const { return slots + std::int64_t{i} * slot_vectors; }
  /// One thread calls this before it asks for anything. A __syncthreads(), or a meeting of the
  /// cluster, must follow.
  __device__ void init() const {
#pragma unroll 1
    for (int i = 0; i < stages; ++i) full[i].init(1);
    fence_barrier_init();
  }
  /// Likewise, and `request(i)` asks for what comes to stage i first.
  template <typename Request>
  __device__ void fill(const Request& request) const {
    init();
#pragma unroll 1
    for (int i = 0; i < stages; ++i) request(i);
  }
  /// Waits for what comes to the stage in turn, and says where it is.
  __device__ auto* wait() const {
    full[stage].wait(parity);
    return slot(stage);
  }
  /// Each thread that has read a slot calls this before the barrier after which one of them starts
  /// the next copy into it: to the copy engine, another proxy, the barrier alone says nothing.
  __device__ static void release() { fence_proxy_async(); }
  __device__ void advance() {
    stage = stage + 1 < stages ? stage + 1 : 0;
    parity ^= stage == 0;  // once around, every barrier is a phase further
  }
};

}  // namespace lnc
