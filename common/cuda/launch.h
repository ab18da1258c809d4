// The CUDA backend's side of the kernel header: error checks and `launch`.
#pragma once

#include <cuda_runtime.h>
#include <cxxabi.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace lnc {

/// Throws std::runtime_error that names `what` and the CUDA error, unless `status` is success.
inline void check_cuda(cudaError_t status, const std::string& what) {
  if (status != cudaSuccess)
    throw std::runtime_error(what + " failed: " + cudaGetErrorString(status) + " (" +
                             cudaGetErrorName(status) + ")");
}

struct LaunchConfig {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;  ///< of dynamic shared memory, for each block
  cudaStream_t stream = nullptr;
  unsigned cluster = 1;  ///< blocks, neighbours in x, that share their shared memory (Hopper)
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

/// A kernel may have 48 KB of dynamic shared memory without asking; less was never asked for.
inline cudaError_t allow_shared_bytes(const void* kernel, std::size_t bytes) {
  if (bytes <= 48 << 10) return cudaSuccess;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(bytes));
}

/// Runs `kernel` over `config.grid` blocks on `config.stream`. A grid of no blocks is no work.
/// @throws std::runtime_error naming the kernel and its configuration where the launch fails.
template <typename... Params, typename... Args>
void launch(void (*kernel)(Params...), const LaunchConfig& config, Args&&... args) {
  if (config.grid.x == 0 || config.grid.y == 0 || config.grid.z == 0) return;
  const auto* address = reinterpret_cast<const void*>(kernel);
  constexpr unsigned kClusterWithoutAsking = 8;
  cudaError_t status = allow_shared_bytes(address, config.shared_bytes);
  if (status == cudaSuccess && config.cluster > kClusterWithoutAsking)
    status = cudaFuncSetAttribute(address, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  if (status == cudaSuccess) {
    cudaLaunchConfig_t cuda_config{};
    cuda_config.gridDim = config.grid;
    cuda_config.blockDim = config.block;
    cuda_config.dynamicSmemBytes = config.shared_bytes;
    cuda_config.stream = config.stream;
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {config.cluster, 1, 1};
    cuda_config.attrs = &cluster;
    cuda_config.numAttrs = config.cluster > 1 ? 1 : 0;
    status = cudaLaunchKernelEx(&cuda_config, kernel, static_cast<Params>(args)...);
  }
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
  if (config.cluster > 1) what << ", " << config.cluster << " blocks a cluster";
  check_cuda(status, what.str());
}

inline int attribute_of_gpu(cudaDeviceAttr attribute) {
  int gpu = 0, value = 0;
  check_cuda(cudaGetDevice(&gpu), "asking for the current device");
  check_cuda(cudaDeviceGetAttribute(&value, attribute, gpu), "asking for a device's attribute");
  return value;
}

/// How many multiprocessors the current GPU has.
inline int multiprocessors() { return attribute_of_gpu(cudaDevAttrMultiProcessorCount); }

/// How much dynamic shared memory a block can have: 227 KB on an H100.
inline int max_shared_bytes() { return attribute_of_gpu(cudaDevAttrMaxSharedMemoryPerBlockOptin); }

/// How many blocks of a kernel a multiprocessor holds at once, with their registers and
/// `shared_bytes` of dynamic shared memory each; at least 1.
template <typename... Params>
int resident_blocks(void (*kernel)(Params...), int threads, std::size_t shared_bytes) {
  const auto* address = reinterpret_cast<const void*>(kernel);
  int blocks = 0;
  cudaError_t status = allow_shared_bytes(address, shared_bytes);
  if (status == cudaSuccess)
    status = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, shared_bytes);
  check_cuda(status, "asking how many blocks of " + kernel_name(address) + " fit");
  return blocks > 0 ? blocks : 1;
}

/// The block's dynamic shared memory, LaunchConfig::shared_bytes of it, 16-byte aligned.
template <typename T>
__device__ T* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char lnc_dynamic_shared[];
  return reinterpret_cast<T*>(lnc_dynamic_shared);
}

}  // namespace lnc
