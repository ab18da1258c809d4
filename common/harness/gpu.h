// Which GPU is there, for whoever chooses a chapter. Two files implement it, gpu_cuda.cu and
// gpu_cpu.cpp; a program or library is linked with one of them.
#pragma once

#include "common/kernel/description.h"

namespace lnc {

/// "cuda" or "cpu".
const char* backend_name();

/// The facts about the GPU that is current in the calling thread, which it remembers; an H100's on
/// the CPU. Starts no other program.
Gpu current_gpu();

}  // namespace lnc
