// NCCL's communicator of a GPU of common/harness/gpus.h, for programs that call NCCL themselves.
#pragma once

#include <nccl.h>

namespace lnc {

/// Of the GPU on which the calling work runs (Gpus::each); null elsewhere.
ncclComm_t current_communicator();

}  // namespace lnc
