// What a .cu file from elsewhere, with its own main, needs to be a C++ program: CUDA's built-ins,
// the runtime's functions, and launches that end it when they fail.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <source_location>
#include <string>
#include <string_view>

#include "common/simt/host_pointers.h"
#include "common/simt/rewritten.h"

#if defined(SIMT_WATCH)
#include "common/watch/foreign.h"
#endif

namespace simt {

/// Throws std::runtime_error for more than 48 KB of dynamic shared memory that no call has allowed.
void require_allowed(const Launch& launch);
/// The most dynamic shared memory that cudaFuncSetAttribute has allowed for any kernel.
extern std::size_t allowed_shared_bytes;

/// A launch whose fault ends the program with its message and exit status 1, as a GPU's error would
/// end a program that checks for it.
template <typename Kernel>
class ForeignLaunch : public RewrittenLaunch<Kernel> {
 public:
  ForeignLaunch(const char* name, Kernel kernel, dim3 grid, dim3 block,
                std::size_t shared_bytes = 0, cudaStream_t stream = nullptr,
                std::source_location where = std::source_location::current())
      : RewrittenLaunch<Kernel>(name, kernel, grid, block, shared_bytes, stream), where_(where) {}

  template <typename... Args>
  void operator()(Args... args) const {
#if defined(SIMT_WATCH)
    lnc::watch_foreign();
#endif
    try {
      require_allowed(this->launch_);
      const HostPointers hidden(args...);
      RewrittenLaunch<Kernel>::operator()(args...);
    } catch (const std::exception& error) {
      std::fflush(stdout);
      if (dynamic_cast<const Fault*>(&error) == nullptr)  // of the launch itself
        std::fprintf(stderr, "%s:%u: ", where_.file_name(), static_cast<unsigned>(where_.line()));
      std::fprintf(stderr, "%s\n", error.what());
      std::exit(1);
    }
  }

 private:
  std::source_location where_;
};
}  // namespace simt

// The runtime's templates, which its header keeps for nvcc.
template <typename T>
cudaError_t cudaMalloc(T** pointer, std::size_t bytes) {
  return ::cudaMalloc(reinterpret_cast<void**>(pointer), bytes);
}
template <typename T>
cudaError_t cudaMallocManaged(T** pointer, std::size_t bytes,
                              unsigned flags = cudaMemAttachGlobal) {
  return ::cudaMallocManaged(reinterpret_cast<void**>(pointer), bytes, flags);
}

// Buffers get the names of the variables that they are allocated for: &x, (void**)&x.
namespace simt {
inline std::string name_of_buffer(std::string_view arguments) {
  const std::string_view pointer = arguments.substr(0, arguments.find(','));
  return std::string(pointer.substr(pointer.find_last_of("&) ") + 1));
}
template <typename T>
void name_buffer(T** pointer, std::string_view arguments) {
  std::size_t element_bytes = 1;
  if constexpr (!std::is_void_v<T>) element_bytes = sizeof(T);
  name_device_buffer(*pointer, name_of_buffer(arguments), element_bytes);
}
}  // namespace simt
#define SIMT_NAMED(function)                                                           \
  template <typename T, typename... Rest>                                              \
  cudaError_t simt_##function(std::string_view arguments, T** pointer, Rest... rest) { \
    const cudaError_t error = function(pointer, rest...);                              \
    if (error == cudaSuccess) simt::name_buffer(pointer, arguments);                   \
    return error;                                                                      \
  }
SIMT_NAMED(cudaMalloc)
SIMT_NAMED(cudaMallocManaged)
#define cudaMalloc(...) simt_cudaMalloc(#__VA_ARGS__, __VA_ARGS__)
#define cudaMallocManaged(...) simt_cudaMallocManaged(#__VA_ARGS__, __VA_ARGS__)

template <typename T>
cudaError_t cudaMallocHost(T** pointer, std::size_t bytes) {
  return ::cudaMallocHost(reinterpret_cast<void**>(pointer), bytes);
}
template <typename T>
cudaError_t cudaMallocAsync(T** pointer, std::size_t bytes, cudaStream_t stream) {
  return ::cudaMallocAsync(reinterpret_cast<void**>(pointer), bytes, stream);
}
template <typename T>
cudaError_t cudaHostAlloc(T** pointer, std::size_t bytes, unsigned flags) {
  return ::cudaHostAlloc(reinterpret_cast<void**>(pointer), bytes, flags);
}
template <typename T>
cudaError_t cudaMallocPitch(T** pointer, std::size_t* pitch, std::size_t width,
                            std::size_t height) {
  return ::cudaMallocPitch(reinterpret_cast<void**>(pointer), pitch, width, height);
}
SIMT_NAMED(cudaMallocPitch)
#undef SIMT_NAMED
#define cudaMallocPitch(...) simt_cudaMallocPitch(#__VA_ARGS__, __VA_ARGS__)
// A device's number, as before CUDA 13.
inline cudaError_t cudaMemPrefetchAsync(const void*, std::size_t, int, cudaStream_t = nullptr) {
  return cudaSuccess;
}
inline cudaError_t cudaMemAdvise(const void*, std::size_t, cudaMemoryAdvise, int) {
  return cudaSuccess;
}
template <typename T>
cudaError_t cudaGetSymbolAddress(void** pointer, const T& symbol) {
  *pointer = const_cast<T*>(&symbol);
  return cudaSuccess;
}
template <typename T>
cudaError_t cudaMemcpyToSymbol(T& symbol, const void* from, std::size_t bytes,
                               std::size_t offset = 0, cudaMemcpyKind = cudaMemcpyHostToDevice) {
  std::memcpy(reinterpret_cast<char*>(&symbol) + offset, from, bytes);
  return cudaSuccess;
}
template <typename T>
cudaError_t cudaMemcpyFromSymbol(void* to, const T& symbol, std::size_t bytes,
                                 std::size_t offset = 0, cudaMemcpyKind = cudaMemcpyDeviceToHost) {
  std::memcpy(to, reinterpret_cast<const char*>(&symbol) + offset, bytes);
  return cudaSuccess;
}
template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel*, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value > lnc::max_shared_bytes()) return cudaErrorInvalidValue;
  simt::allowed_shared_bytes =
      std::max(simt::allowed_shared_bytes, static_cast<std::size_t>(value));
  return cudaSuccess;
}
template <typename Kernel>
cudaError_t cudaFuncSetCacheConfig(Kernel*, cudaFuncCache) {
  return cudaSuccess;
}
template <typename Kernel>
cudaError_t cudaOccupancyMaxPotentialBlockSize(int* blocks, int* threads, Kernel*, std::size_t = 0,
                                               int limit = 0) {
  *threads = limit == 0 ? 1024 : limit;
  *blocks = lnc::multiprocessors() * (2048 / *threads);
  return cudaSuccess;
}
template <typename Kernel>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Kernel* kernel, int threads,
                                                          std::size_t shared_bytes) {
  *blocks = lnc::resident_blocks(kernel, threads, shared_bytes);
  return cudaSuccess;
}
