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

/// Runs `kernel` over `config.grid` blocks on `config.stream`. A grid of no blocks is no work.
/// @throws std::runtime_error naming the kernel and its configuration where the launch fails.
template <typename... Params, typename... Args>
void launch(void (*kernel)(Params...), const LaunchConfig& config, Args&&... args) {
  if (config.grid.x == 0 || config.grid.y == 0 || config.grid.z == 0) return;
  const auto* address = reinterpret_cast<const void*>(kernel);
  constexpr std::size_t kSharedWithoutAsking = 48 << 10;
  cudaError_t status = cudaSuccess;
  if (config.shared_bytes > kSharedWithoutAsking)
    status = cudaFuncSetAttribute(address, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(config.shared_bytes));
  if (status == cudaSuccess) {
    cudaLaunchConfig_t cuda_config{};
    cuda_config.gridDim = config.grid;
    cuda_config.blockDim = config.block;
    cuda_config.dynamicSmemBytes = config.shared_bytes;
    cuda_config.stream = config.stream;
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
  check_cuda(status, what.str());
}

/// How many multiprocessors the current GPU has.
inline int multiprocessors() {
  int gpu = 0, count = 0;
  check_cuda(cudaGetDevice(&gpu), "asking for the current device");
  check_cuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, gpu),
             "asking for the number of multiprocessors");
  return count;
}

/// The block's dynamic shared memory, LaunchConfig::shared_bytes of it, 16-byte aligned.
template <typename T>
__device__ T* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char lnc_dynamic_shared[];
  return reinterpret_cast<T*>(lnc_dynamic_shared);
}

}  // namespace lnc
