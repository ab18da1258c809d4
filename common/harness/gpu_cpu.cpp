#include <cstdlib>
#include <stdexcept>
#include <string>

#include "common/harness/gpu.h"

namespace lnc {

const char* backend_name() { return "cpu"; }

Gpu current_gpu() {
  const char* const asked = std::getenv("LNC_GPU");
  const std::string name = asked == nullptr ? "h100" : asked;
  if (name == "h100") return kH100;
  if (name == "h200") return kH200;
  throw std::invalid_argument(
      "LNC_GPU, the GPU that the CPU backend stands for, is h100 or h200, not " + name);
}

}  // namespace lnc
