// In place of NCCL's header: what kernels call to reach the memory of other GPUs.
#pragma once

#include <source_location>

#include "common/simt/include/nccl.h"

/// The address of byte `offset` of the window in GPU `peer`.
inline void* ncclGetLsaPointer(ncclWindow_t window, std::size_t offset, int peer,
                               std::source_location where = std::source_location::current()) {
  return window->at(offset, peer, where);
}
/// In the GPU on which the kernel runs.
inline void* ncclGetLocalPointer(ncclWindow_t window, std::size_t offset,
                                 std::source_location where = std::source_location::current()) {
  return window->at(offset, simt::current_gpu(), where);
}
