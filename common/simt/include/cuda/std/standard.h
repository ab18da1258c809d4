// cuda::std over the SIMT machine: the C++ library's own std, which kernels may use on the CPU.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>

namespace cuda::std {
using namespace ::std;
}  // namespace cuda::std
