// What every kernel.cu includes: the arguments of a launch, the CUDA language, conversions between
// elements and floats, and the description that a chapter gives of itself.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/kernel/contract.h"
#include "common/kernel/description.h"
#include "common/kernel/launch.h"
#include "common/kernel/types.h"
