// The CUDA backend's side of the kernel header: error checks and `launch`.
#pragma once

#include <cuda_pipeline_primitives.h>
#include <cuda_runtime.h>
#include <cxxabi.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace lnc {

/// Throws std::runtime_error that names `what` and the CUDA error, unless `status` is success.
inline void check_cuda(cudaError_t status, std::string_view what) {
  if (status != cudaSuccess)
    throw std::runtime_error(std::string(what) + " failed: " + cudaGetErrorString(status) + " (" +
                             cudaGetErrorName(status) + ")");
}

struct LaunchConfig {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;  ///< of dynamic shared memory, for each block
  cudaStream_t stream = nullptr;
  unsigned cluster = 0;       ///< blocks, neighbours in x, that share their shared memory (Hopper)
  bool starts_early = false;  ///< before the stream's kernel before has ended: it calls
                              ///< grid_dependency_wait() (Hopper)
};

/// "fwd02::layer_norm_forward<float>": the kernel as its source spells it, without its parameters.
inline std::string kernel_name(const void* kernel) {
  const char* mangled = nullptr;
  if (cudaFuncGetName(&mangled, kernel) != cudaSuccess || mangled == nullptr) return "a kernel";
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> demangled(
      abi::__cxa_demangle(mangled, nullptr, nullptr, &status), std::free);
  std::string name = status == 0 ? demangled.get() : mangled;
  if (name.starts_with("void ")) name.erase(0, 5);
  int depth = 0;  // the parameter list opens at the first '(' outside of <...>
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (name[i] == '<') ++depth;
    if (name[i] == '>') --depth;
    if (name[i] == '(' && depth == 0) return name.substr(0, i);
  }
  return name;
}

inline int attribute_of_gpu(cudaDeviceAttr attribute) {
  int gpu = 0;
  int value = 0;
  check_cuda(cudaGetDevice(&gpu), "asking for the current device");
  check_cuda(cudaDeviceGetAttribute(&value, attribute, gpu), "asking for a device's attribute");
  return value;
}

/// How many multiprocessors the current GPU has.
inline int multiprocessors() { return attribute_of_gpu(cudaDevAttrMultiProcessorCount); }

/// How much dynamic shared memory a block can have: 227 KB on an H100.
inline int max_shared_bytes() { return attribute_of_gpu(cudaDevAttrMaxSharedMemoryPerBlockOptin); }

/// Shared memory, static and dynamic together, that a kernel has without asking.
inline constexpr std::size_t kSharedBytesUnasked = 48 << 10;

/// Static shared memory at most, of a kernel that has dynamic shared memory too.
inline constexpr std::size_t kMostStaticSharedBytes = 16 << 10;

/// Asks for `bytes` of dynamic shared memory where a kernel does not have them anyway. It is then
/// allowed all there is: another thread that launches it may want still more.
inline cudaError_t allow_shared_bytes(const void* kernel, std::size_t bytes) {
  // To look up a kernel's attributes would cost every launch some host time, so a small launch
  // trusts kMostStaticSharedBytes. That is safe: a kernel that had more, and so should have asked,
  // does not start; CUDA refuses the launch, and `launch` throws.
  if (bytes <= kSharedBytesUnasked - kMostStaticSharedBytes) return cudaSuccess;
  cudaFuncAttributes has{};
  const cudaError_t status = cudaFuncGetAttributes(&has, kernel);
  if (status != cudaSuccess) return status;
  if (has.sharedSizeBytes > kMostStaticSharedBytes)
    throw std::logic_error(kernel_name(kernel) + " has " + std::to_string(has.sharedSizeBytes) +
                           " bytes of static shared memory; beside dynamic it may have " +
                           std::to_string(kMostStaticSharedBytes));
  if (bytes <= static_cast<std::size_t>(has.maxDynamicSharedSizeBytes)) return cudaSuccess;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              max_shared_bytes() - static_cast<int>(has.sharedSizeBytes));
}

/// A LaunchConfig as CUDA wants it.
struct CudaLaunch {
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attributes[2]{};

  /// Asks for what a kernel has only on demand, too.
  cudaError_t prepare(const void* kernel, const LaunchConfig& from) {
    config.gridDim = from.grid;
    config.blockDim = from.block;
    config.dynamicSmemBytes = from.shared_bytes;
    config.stream = from.stream;
    config.attrs = attributes;
    config.numAttrs = 0;
    if (from.cluster > 0) {
      auto& cluster = attributes[config.numAttrs];
      ++config.numAttrs;
      cluster.id = cudaLaunchAttributeClusterDimension;
      cluster.val.clusterDim = {from.cluster, 1, 1};
    }
    if (from.starts_early) {
      auto& early = attributes[config.numAttrs];
      ++config.numAttrs;
      early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      early.val.programmaticStreamSerializationAllowed = 1;
    }
    cudaError_t status = allow_shared_bytes(kernel, from.shared_bytes);
    constexpr unsigned kClusterWithoutAsking = 8;
    if (status == cudaSuccess && from.cluster > kClusterWithoutAsking)
      status = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    return status;
  }
};

/// Runs `kernel` over `config.grid` blocks on `config.stream`. A grid of no blocks is no work.
/// @throws std::runtime_error naming the kernel and its configuration where the launch fails.
template <typename... Params, typename... Args>
void launch(void (*kernel)(Params...), const LaunchConfig& config, Args&&... args) {
  if (config.grid.x == 0 || config.grid.y == 0 || config.grid.z == 0) return;
  const auto* address = reinterpret_cast<const void*>(kernel);
  CudaLaunch prepared;
  cudaError_t status = prepared.prepare(address, config);
  if (status == cudaSuccess)
    status = cudaLaunchKernelEx(&prepared.config, kernel, static_cast<Params>(args)...);
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();  // a refused launch must not be blamed on the next one
  std::ostringstream what;
  const auto show = [&what](const char* label, dim3 d) {
    what << label << " (" << d.x << ", " << d.y << ", " << d.z << ")";
  };
  what << "launching " << kernel_name(address);
  show(" with grid", config.grid);
  show(", block", config.block);
  what << ", " << config.shared_bytes << " bytes of shared memory";
  if (config.cluster > 0) what << ", " << config.cluster << " blocks a cluster";
  check_cuda(status, what.str());
}

/// How many blocks of a kernel a multiprocessor holds at once, with their registers and
/// `shared_bytes` of dynamic shared memory each; at least 1.
template <typename... Params>
int resident_blocks(void (*kernel)(Params...), int threads, std::size_t shared_bytes) {
  const auto* address = reinterpret_cast<const void*>(kernel);
  int blocks = 0;
  cudaError_t status = allow_shared_bytes(address, shared_bytes);
  if (status == cudaSuccess)
    status = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, shared_bytes);
  if (status != cudaSuccess)  // a name takes longer to find than the answer
    check_cuda(status, "asking how many blocks of " + kernel_name(address) + " fit");
  return blocks > 0 ? blocks : 1;
}

/// How many clusters of a launch the GPU holds at once, whatever its grid; 0 where it holds none. A
/// cluster lives in one group of multiprocessors (up to 18 on an H100), so these may be fewer than
/// the places for blocks divided by a cluster's blocks.
template <typename... Params>
int resident_clusters(void (*kernel)(Params...), const LaunchConfig& config) {
  if (config.cluster <= 1) {
    const auto threads = static_cast<int>(config.block.x);
    return multiprocessors() * resident_blocks(kernel, threads, config.shared_bytes);
  }
  CudaLaunch prepared;
  cudaError_t status = prepared.prepare(reinterpret_cast<const void*>(kernel), config);
  prepared.config.gridDim = config.cluster;
  int clusters = 0;
  if (status == cudaSuccess)
    status = cudaOccupancyMaxActiveClusters(&clusters, kernel, &prepared.config);
  if (status == cudaSuccess) return clusters;
  (void)cudaGetLastError();  // more blocks, or more shared memory, than there can be
  return 0;
}

/// The block's dynamic shared memory, LaunchConfig::shared_bytes of it, 16-byte aligned.
template <typename T>
__device__ T* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char lnc_dynamic_shared[];
  return reinterpret_cast<T*>(lnc_dynamic_shared);
}

}  // namespace lnc
