#include "common/harness/gpu.h"

namespace lnc {

const char* backend_name() { return "cpu"; }

Gpu current_gpu() { return kH100; }

}  // namespace lnc
