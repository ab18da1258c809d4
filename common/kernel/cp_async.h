// Asynchronous copies that a thread issues for itself, and its wait for them: explained by bwd11.
#pragma once

#include "common/kernel/launch.h"

namespace lnc {

/// Tells the compiler that shared and global memory may have changed here, so that later code reads
/// it again instead of using old register values. It emits no instruction.
__device__ inline void forget() { asm volatile("" ::: "memory"); }

/// Waits until of the thread's commit groups all but the youngest kLater have arrived.
/// __pipeline_memcpy_async tells the compiler that memory changes, __pipeline_wait_prior does not:
/// without forget(), nvcc may read above the wait.
template <int kLater>
__device__ inline void wait_for_own_copies() {
  __pipeline_wait_prior(kLater);
  forget();
}

}  // namespace lnc
