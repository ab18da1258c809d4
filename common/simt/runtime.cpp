// The CUDA runtime's functions that a program's host code calls, on the CPU. Memory is the host's,
// streams are in order, and a launch has ended when it returns, so nothing is left to wait for.
#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>

#include "common/simt/host_pointers.h"
#include "common/simt/launch.h"
#include "common/simt/stacks.h"
#include "common/simt/watch.h"

struct CUevent_st {
  std::chrono::steady_clock::time_point at;
};

namespace {

cudaError_t last_error = cudaSuccess;

cudaError_t report(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

constexpr std::size_t kAlignment = 256;  // as cudaMalloc's
constexpr std::size_t kPitch = 512;      // as cudaMallocPitch's
constexpr std::size_t kMemory = std::size_t{80} << 30;

}  // namespace

namespace simt {

std::size_t allowed_shared_bytes = 48 << 10;

void require_allowed(const Launch& launch) {
  if (launch.shared_bytes <= allowed_shared_bytes || launch.shared_bytes > 227 << 10) return;
  throw std::runtime_error("kernel " + std::string(launch.name) + " asks for " +
                           std::to_string(launch.shared_bytes) +
                           " bytes of dynamic shared memory, and more than 48 KB need a "
                           "cudaFuncSetAttribute(kernel, "
                           "cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) before the launch");
}

#if defined(__SANITIZE_ADDRESS__)
void HostPointers::hide(void* pointer) {
  char name[1] = {};
  Region found{};
  const std::string_view kind =
      __asan_locate_address(pointer, name, sizeof name, &found.begin, &found.bytes);
  if (kind != "heap" && kind != "stack") return;
  const auto* const begin = static_cast<const std::byte*>(found.begin);
  if (device_buffer_of(begin) != nullptr || __asan_address_is_poisoned(pointer) != 0) return;
  __asan_poison_memory_region(found.begin, found.bytes);
  hidden_.push_back(found);
}
HostPointers::~HostPointers() {
  for (const Region& region : hidden_) __asan_unpoison_memory_region(region.begin, region.bytes);
}
#else
void HostPointers::hide(void*) {}
HostPointers::~HostPointers() {}
#endif

}  // namespace simt

extern "C" {

cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (posix_memalign(pointer, kAlignment, bytes) != 0) return report(cudaErrorMemoryAllocation);
  std::memset(*pointer, 0xFF, bytes);  // NaN: what was never written shows
  simt::add_device_buffer(*pointer, bytes);
  return cudaSuccess;
}
cudaError_t cudaFree(void* pointer) {
  if (pointer != nullptr) simt::remove_device_buffer(pointer);
  std::free(pointer);
  return cudaSuccess;
}
cudaError_t cudaMallocManaged(void** pointer, std::size_t bytes, unsigned) {
  return cudaMalloc(pointer, bytes);
}
cudaError_t cudaMallocAsync(void** pointer, std::size_t bytes, cudaStream_t) {
  return cudaMalloc(pointer, bytes);
}
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t) { return cudaFree(pointer); }
// Pinned memory, which kernels may access.
cudaError_t cudaMallocHost(void** pointer, std::size_t bytes) { return cudaMalloc(pointer, bytes); }
cudaError_t cudaHostAlloc(void** pointer, std::size_t bytes, unsigned) {
  return cudaMallocHost(pointer, bytes);
}
cudaError_t cudaFreeHost(void* pointer) { return cudaFree(pointer); }

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  if (bytes > 0) std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t) {
  return cudaMemcpy(to, from, bytes, kind);
}
cudaError_t cudaMallocPitch(void** pointer, std::size_t* pitch, std::size_t width,
                            std::size_t height) {
  *pitch = (width + kPitch - 1) / kPitch * kPitch;
  return cudaMalloc(pointer, *pitch * height);
}
cudaError_t cudaMemcpy2D(void* to, std::size_t pitch_to, const void* from, std::size_t pitch_from,
                         std::size_t width, std::size_t height, cudaMemcpyKind) {
  if (width > pitch_to || width > pitch_from) return report(cudaErrorInvalidPitchValue);
  for (std::size_t row = 0; row < height; ++row)
    std::memcpy(static_cast<char*>(to) + row * pitch_to,
                static_cast<const char*>(from) + row * pitch_from, width);
  return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t pitch_to, const void* from,
                              std::size_t pitch_from, std::size_t width, std::size_t height,
                              cudaMemcpyKind kind, cudaStream_t) {
  return cudaMemcpy2D(to, pitch_to, from, pitch_from, width, height, kind);
}
cudaError_t cudaMemset2D(void* to, std::size_t pitch, int value, std::size_t width,
                         std::size_t height) {
  for (std::size_t row = 0; row < height; ++row)
    std::memset(static_cast<char*>(to) + row * pitch, value, width);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = *total = kMemory;
  return cudaSuccess;
}
// Hints, of which no result depends.
cudaError_t cudaMemPrefetchAsync(const void*, std::size_t, cudaMemLocation, unsigned,
                                 cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaMemAdvise(const void*, std::size_t, cudaMemoryAdvise, cudaMemLocation) {
  return cudaSuccess;
}
cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache) { return cudaSuccess; }
cudaError_t cudaDeviceSetSharedMemConfig(cudaSharedMemConfig) { return cudaSuccess; }
cudaError_t cudaSetDeviceFlags(unsigned) { return cudaSuccess; }
cudaError_t cudaHostRegister(void* pointer, std::size_t bytes, unsigned) {
  simt::add_device_buffer(pointer, bytes);
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* pointer) {
  simt::remove_device_buffer(pointer);
  return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  *device = host;
  return cudaSuccess;
}

cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  if (bytes > 0) std::memset(to, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t) {
  return cudaMemset(to, value, bytes);
}

cudaError_t cudaDeviceSynchronize() { return last_error; }
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaSuccess                  ? "cudaSuccess"
         : error == cudaErrorMemoryAllocation  ? "cudaErrorMemoryAllocation"
         : error == cudaErrorInvalidPitchValue ? "cudaErrorInvalidPitchValue"
                                               : "cudaErrorUnknown";
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess                  ? "no error"
         : error == cudaErrorMemoryAllocation  ? "out of memory"
         : error == cudaErrorInvalidPitchValue ? "invalid pitch argument"
                                               : "unknown error";
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  *stream = nullptr;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return cudaStreamCreate(stream);
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return last_error; }
cudaError_t cudaStreamQuery(cudaStream_t) { return last_error; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new CUevent_st{};
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return cudaEventCreate(event);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  event->at = std::chrono::steady_clock::now();
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) { return last_error; }
/// Emulated: says nothing about a GPU.
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  *milliseconds = std::chrono::duration<float, std::milli>(to->at - from->at).count();
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) { return cudaRuntimeGetVersion(version); }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceReset() { return cudaSuccess; }
/// Those of an H100 that kernels are configured by.
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "the SIMT machine, as an H100");
  properties->major = 9;
  properties->warpSize = 32;
  properties->multiProcessorCount = lnc::multiprocessors();
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->sharedMemPerBlock = 48 << 10;
  properties->sharedMemPerBlockOptin = lnc::max_shared_bytes();
  properties->sharedMemPerMultiprocessor = 228 << 10;
  properties->regsPerBlock = 64 << 10;
  properties->l2CacheSize = 50 << 20;
  properties->totalGlobalMem = kMemory;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = lnc::multiprocessors();
      break;
    case cudaDevAttrMaxThreadsPerBlock:
      *value = 1024;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = lnc::max_shared_bytes();
      break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = 2048;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      break;
    case cudaDevAttrWarpSize:
      *value = 32;
      break;
    default:
      *value = 0;
  }
  return cudaSuccess;
}

}  // extern "C"
