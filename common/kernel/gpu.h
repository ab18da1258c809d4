// The current GPU, for code that chooses a chapter. Two files implement it, gpu_cuda.cu and
// gpu_cpu.cpp; a program or library links one of them.
#pragma once

#include "common/kernel/description.h"

namespace lnc {

/// "cuda" or "cpu".
const char* backend_name();

/// The facts about the calling thread's current GPU; each thread caches them. The CPU backend acts
/// as an H100, or as the GPU that LNC_GPU names, of those in gpu_cpu.cpp. Starts no other program.
/// @throws std::invalid_argument for an LNC_GPU that it does not know
Gpu current_gpu();

}  // namespace lnc
