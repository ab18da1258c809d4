// The CUDA backend's side of common/kernel/launch.h: error checks and `launch`.
#pragma once

#include <cuda_pipeline_primitives.h>
#include <cuda_runtime.h>
#include <cxxabi.h>

#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
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
  bool starts_early = false;  ///< before the stream's previous kernel has ended; it calls
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

inline int current_device() {
  int gpu = 0;
  check_cuda(cudaGetDevice(&gpu), "asking for the current device");
  return gpu;
}

// The answers to the queries below depend only on the GPU and the kernel, and a query takes longer
// than some kernels. So each thread asks CUDA once and caches the answer.

inline int attribute_of_gpu(cudaDeviceAttr attribute) {
  static thread_local std::map<std::pair<int, int>, int> known;
  const int gpu = current_device();
  const auto [found, is_new] = known.try_emplace({gpu, attribute}, 0);
  if (!is_new) return found->second;
  const cudaError_t status = cudaDeviceGetAttribute(&found->second, attribute, gpu);
  if (status != cudaSuccess) {
    known.erase(found);
    check_cuda(status, "asking for a device's attribute");
  }
  return found->second;
}

/// How many multiprocessors the current GPU has.
inline int multiprocessors() { return attribute_of_gpu(cudaDevAttrMultiProcessorCount); }

/// How much dynamic shared memory a block can have: 227 KB on an H100.
inline int max_shared_bytes() { return attribute_of_gpu(cudaDevAttrMaxSharedMemoryPerBlockOptin); }

/// Shared memory, static and dynamic together, that a kernel has without opting in.
inline constexpr std::size_t kSharedBytesUnasked = 48 << 10;

/// The most static shared memory of a kernel that has dynamic shared memory too.
inline constexpr std::size_t kMostStaticSharedBytes = 16 << 10;

/// Opts in to `bytes` of dynamic shared memory if a kernel does not have them by default. The
/// kernel is then allowed the maximum, so it opts in only once.
inline cudaError_t allow_shared_bytes(const void* kernel, std::size_t bytes) {
  // Looking up a kernel's attributes would cost every launch some host time, so a small launch
  // relies on kMostStaticSharedBytes. That is safe: if a kernel has more and so should have opted
  // in, CUDA refuses the launch, and `launch` throws.
  if (bytes <= kSharedBytesUnasked - kMostStaticSharedBytes) return cudaSuccess;
  static thread_local std::map<std::pair<int, const void*>, std::size_t> allowed;
  std::size_t& has_bytes = allowed[{current_device(), kernel}];
  if (bytes <= has_bytes) return cudaSuccess;
  cudaFuncAttributes has{};
  cudaError_t status = cudaFuncGetAttributes(&has, kernel);
  if (status != cudaSuccess) return status;
  if (has.sharedSizeBytes > kMostStaticSharedBytes)
    throw std::logic_error(kernel_name(kernel) + " has " + std::to_string(has.sharedSizeBytes) +
                           " bytes of static shared memory; beside dynamic it may have " +
                           std::to_string(kMostStaticSharedBytes));
  const auto most = static_cast<std::size_t>(max_shared_bytes()) - has.sharedSizeBytes;
  status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                static_cast<int>(most));
  if (status == cudaSuccess) has_bytes = most;
  return status;
}

/// Lets a kernel's clusters have 16 blocks; only 8 are supported by every GPU with clusters.
inline cudaError_t allow_large_clusters(const void* kernel) {
  static thread_local std::map<std::pair<int, const void*>, bool> allowed;
  bool& is_allowed = allowed[{current_device(), kernel}];
  if (is_allowed) return cudaSuccess;
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  is_allowed = status == cudaSuccess;
  return status;
}

/// A LaunchConfig as CUDA wants it.
struct CudaLaunch {
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attributes[2]{};

  /// Also opts in to what a kernel does not have by default.
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
      status = allow_large_clusters(kernel);
    return status;
  }
};

/// Runs `kernel` over `config.grid` blocks on `config.stream`. A grid without blocks does nothing.
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
  (void)cudaGetLastError();  // so that the next launch does not report this error
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
  static thread_local std::map<std::tuple<int, const void*, int, std::size_t>, int> known;
  int& blocks = known[{current_device(), address, threads, shared_bytes}];
  if (blocks > 0) return blocks;
  cudaError_t status = allow_shared_bytes(address, shared_bytes);
  if (status == cudaSuccess)
    status = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, shared_bytes);
  if (status != cudaSuccess)  // finding the name takes longer than the query
    check_cuda(status, "asking how many blocks of " + kernel_name(address) + " fit");
  blocks = blocks > 0 ? blocks : 1;
  return blocks;
}

/// How many clusters of a launch the GPU holds at once, whatever its grid; 0 where it holds none. A
/// cluster lives in one group of multiprocessors (up to 18 on an H100), so fewer may fit than the
/// GPU's room for blocks divided by a cluster's blocks.
template <typename... Params>
int resident_clusters(void (*kernel)(Params...), const LaunchConfig& config) {
  if (config.cluster <= 1) {
    const auto threads = static_cast<int>(config.block.x);
    return multiprocessors() * resident_blocks(kernel, threads, config.shared_bytes);
  }
  const auto* address = reinterpret_cast<const void*>(kernel);
  using Question = std::tuple<int, const void*, unsigned, std::size_t, unsigned>;
  static thread_local std::map<Question, int> known;
  const auto [found, is_new] = known.try_emplace(
      {current_device(), address, config.block.x, config.shared_bytes, config.cluster}, 0);
  if (!is_new) return found->second;
  CudaLaunch prepared;
  cudaError_t status = prepared.prepare(address, config);
  prepared.config.gridDim = config.cluster;
  if (status == cudaSuccess)
    status = cudaOccupancyMaxActiveClusters(&found->second, kernel, &prepared.config);
  if (status == cudaSuccess) return found->second;
  (void)cudaGetLastError();  // more blocks, or more shared memory, than the GPU allows
  found->second = 0;
  return 0;
}

/// The block's dynamic shared memory, LaunchConfig::shared_bytes of it, 128-byte aligned: bulk
/// copies to an address off a 32-byte boundary take a tenth longer (bwd12's laboratory).
template <typename T>
__device__ T* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char lnc_dynamic_shared[];
  return reinterpret_cast<T*>(lnc_dynamic_shared);
}

}  // namespace lnc
