// kernel<<<grid, block, shared_bytes, stream>>>(args...), spelt in plain C++: the CPU's version.
#pragma once

#include <cstddef>
#include <tuple>
#include <utility>

#include "common/simt/cuda.h"
#include "common/simt/gpus.h"

namespace lnc {

/// The configuration of a launch, in CUDA's order. The CPU has one stream and ignores it.
struct LaunchConfig {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
  unsigned cluster = 0;       ///< blocks, adjacent in x, that share their shared memory
  bool starts_early = false;  ///< every thread calls grid_dependency_wait(); kernels never overlap
};

/// Runs `kernel` over the grid and returns when it has ended. Each thread gets its own copy of the
/// arguments, converted once to the kernel's parameters. An empty grid, as for M = 0, launches
/// nothing. Throws what simt::run throws.
template <typename... Params, typename... Args>
void launch(void (*kernel)(Params...), const LaunchConfig& config, Args&&... args) {
  static_assert(sizeof...(Params) == sizeof...(Args), "one argument for each kernel parameter");
  if (config.grid.x == 0 || config.grid.y == 0 || config.grid.z == 0) return;
  const std::tuple<Params...> params(std::forward<Args>(args)...);
  const simt::Launch launch{config.grid,         config.block,
                            config.shared_bytes, reinterpret_cast<const void*>(kernel),
                            config.cluster,      config.starts_early};
  simt::run(launch, [&] { std::apply(kernel, params); });
}

/// Multiprocessors of the GPU that this backend assumes: an H100's; of one of several GPUs, fewer;
/// for Schedule::only_last so many that no block has many rows.
inline int multiprocessors() {
  return simt::schedule().only_last ? 15 << 12 : simt::multiprocessors_of_a_gpu();
}

/// The most dynamic shared memory, in bytes, that a block can have.
inline int max_shared_bytes() { return 227 << 10; }

/// How many blocks one multiprocessor of that GPU can hold, at 64 registers per thread.
template <typename... Params>
int resident_blocks(void (*)(Params...), int threads, std::size_t shared_bytes) {
  return simt::resident_blocks(threads, shared_bytes);
}

/// How many clusters of a launch that GPU can hold.
template <typename... Params>
int resident_clusters(void (*)(Params...), const LaunchConfig& config) {
  return simt::resident_clusters(static_cast<int>(std::max(config.cluster, 1u)),
                                 static_cast<int>(config.block.x), config.shared_bytes);
}

/// The block's dynamic shared memory, as an array of T. In CUDA: `extern __shared__ T data[]`.
template <typename T>
T* dynamic_shared() {
  return static_cast<T*>(simt::dynamic_shared());
}

}  // namespace lnc
