// A line of memory asked for ahead of its use: explained by fwd06.
#pragma once

#include <cstdint>

#include "common/kernel/launch.h"

namespace lnc {

/// Asks L2 for the line of element `i`, and waits for nothing: no register holds what comes. A null
/// tensor has none. The SIMT machine has no L2 to ask.
template <typename T>
__device__ inline void prefetch_to_l2([[maybe_unused]] const T* tensor,
                                      [[maybe_unused]] std::int64_t i) {
#if defined(__CUDA_ARCH__)
  if (tensor == nullptr) return;
  asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(tensor + i)));
#endif
}

}  // namespace lnc
