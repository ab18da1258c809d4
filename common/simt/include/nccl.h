// In place of NCCL's header: symmetric memory of several GPUs. common/simt/gpus.h makes a window.
#pragma once

#include "common/simt/gpus.h"

using ncclWindow_t = simt::Window*;
