// Which GPU is there, for whoever chooses a chapter. Two files implement it, gpu_cuda.cu and
// gpu_cpu.cpp; a program or library is linked with one of them.
#pragma once

#include "common/kernel/description.h"

namespace lnc {

/// "cuda" or "cpu".
const char* backend_name();

/// The facts about the GPU that is current in the calling thread, which it remembers. The CPU
/// stands for an H100, or where LNC_GPU is h200 or b200 for one of these. Starts no other program.
/// @throws std::invalid_argument for another LNC_GPU
Gpu current_gpu();

}  // namespace lnc
