#include <map>

#include "common/cuda/launch.h"
#include "common/harness/gpu.h"

namespace lnc {

const char* backend_name() { return "cuda"; }

Gpu current_gpu() {
  static thread_local std::map<int, Gpu> known;
  const int device = current_device();
  const auto found = known.find(device);
  if (found != known.end()) return found->second;
  const Gpu gpu{attribute_of_gpu(cudaDevAttrMultiProcessorCount),
                attribute_of_gpu(cudaDevAttrMaxThreadsPerMultiProcessor),
                attribute_of_gpu(cudaDevAttrL2CacheSize),
                10 * attribute_of_gpu(cudaDevAttrComputeCapabilityMajor) +
                    attribute_of_gpu(cudaDevAttrComputeCapabilityMinor)};
  known.emplace(device, gpu);
  return gpu;
}

}  // namespace lnc
