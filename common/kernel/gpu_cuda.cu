#include <map>

#include "common/cuda/launch.h"
#include "common/kernel/gpu.h"

namespace lnc {

const char* backend_name() { return "cuda"; }

Gpu current_gpu() {
  static thread_local std::map<int, Gpu> known;
  const int device = current_device();
  const auto found = known.find(device);
  if (found != known.end()) return found->second;
  const std::int64_t khz = attribute_of_gpu(cudaDevAttrMemoryClockRate);
  const std::int64_t bits = attribute_of_gpu(cudaDevAttrGlobalMemoryBusWidth);
  const Gpu gpu{attribute_of_gpu(cudaDevAttrMultiProcessorCount),
                attribute_of_gpu(cudaDevAttrMaxThreadsPerMultiProcessor),
                attribute_of_gpu(cudaDevAttrL2CacheSize),
                10 * attribute_of_gpu(cudaDevAttrComputeCapabilityMajor) +
                    attribute_of_gpu(cudaDevAttrComputeCapabilityMinor),
                static_cast<int>(2 * khz * bits / 8 / 1'000'000)};  // two words a clock
  known.emplace(device, gpu);
  return gpu;
}

}  // namespace lnc
