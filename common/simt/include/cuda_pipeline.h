// The __pipeline_* functions, which common/simt/cuda.h has.
#pragma once

#include "common/simt/cuda.h"
