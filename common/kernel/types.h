// The element types: float, half and bfloat16. Conversions are explained by fwd01.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "common/kernel/launch.h"

namespace lnc {

/// An element as float: exact, since every half and bfloat16 is a float.
__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(__half value) { return __half2float(value); }
__device__ inline float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

/// A float as an element, rounded to nearest even.
template <typename T>
__device__ inline T from_float(float value);
template <>
__device__ inline float from_float<float>(float value) {
  return value;
}
template <>
__device__ inline __half from_float<__half>(float value) {
  return __float2half_rn(value);
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

}  // namespace lnc
