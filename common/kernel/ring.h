// The ring of slots in shared memory that bulk copies fill in turns: explained by fwd08.
#pragma once

#include <cstdint>

#include "common/kernel/hopper.h"
#include "common/kernel/vector.h"

namespace lnc {

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
  __device__ void advance() {
    stage = stage + 1 < stages ? stage + 1 : 0;
    parity ^= stage == 0;  // once around, every barrier is a phase further
  }
};

}  // namespace lnc
