// In place of CUDA's header, whose templates are for nvcc. Programs from elsewhere include it.
#pragma once

#include "common/simt/foreign.h"
