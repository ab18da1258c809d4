#include "common/cuda/launch.h"
#include "common/harness/gpu.h"

namespace lnc {

const char* backend_name() { return "cuda"; }

Gpu current_gpu() {
  return {attribute_of_gpu(cudaDevAttrMultiProcessorCount),
          attribute_of_gpu(cudaDevAttrMaxThreadsPerMultiProcessor),
          attribute_of_gpu(cudaDevAttrL2CacheSize),
          10 * attribute_of_gpu(cudaDevAttrComputeCapabilityMajor) +
              attribute_of_gpu(cudaDevAttrComputeCapabilityMinor)};
}

}  // namespace lnc
