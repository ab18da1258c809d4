// CUDA's language and `launch`: nvcc's own, or the SIMT machine's if g++ compiles the kernel.
//
//   launch(kernel, {grid, block, shared_bytes, stream}, arguments...)
//
// means kernel<<<grid, block, shared_bytes, stream>>>(arguments...) on both, and throws an
// exception that names the kernel if it fails. dynamic_shared<T>() is the block's dynamic shared
// memory; multiprocessors() and resident_blocks() say what the GPU holds at once.
#pragma once

#if defined(__CUDACC__)
#include "common/cuda/launch.h"
#else
#include "common/simt/cuda.h"
#include "common/simt/launch.h"
#endif

#include <cstdint>

namespace lnc {

inline constexpr int kWarpSize = 32;
inline constexpr unsigned kFullMask = 0xffffffffu;

/// The number of blocks that cover `count` items with `per_block` each.
constexpr unsigned blocks_for(std::int64_t count, std::int64_t per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

/// The most blocks of a launch: as many as asked for, or `places` on each multiprocessor.
inline std::int64_t most_blocks(std::int64_t asked, std::int64_t places) {
  return asked > 0 ? asked : multiprocessors() * places;
}

/// Threads that a multiprocessor holds, at least.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr int kSmThreads = 1024;  // Turing
#else
constexpr int kSmThreads = 1536;
#endif

}  // namespace lnc
