#include <cstdlib>
#include <stdexcept>
#include <string>

#include "common/kernel/gpu.h"

namespace lnc {

const char* backend_name() { return "cpu"; }

Gpu current_gpu() {
  const char* const asked = std::getenv("LNC_GPU");
  const std::string name = asked == nullptr ? "h100" : asked;
  if (name == "h100") return kH100;
  if (name == "h200") return kH200;
  if (name == "b200") return {148, 2048, 126 << 20, 100, 8000};
  throw std::invalid_argument("LNC_GPU, the GPU that the CPU backend stands for, is '" + name +
                              "'; it must be h100, h200 or b200");
}

}  // namespace lnc
