// The kernel header: the only file that a chapter includes.
//
// It brings the CUDA language (nvcc's own, or the CPU backend's in common/simt), the arguments of a
// chapter, `launch`, and the primitives that an early chapter explains and later ones use:
//
//   to_float, from_float   element conversions             fwd01
//   warp_sum               five shuffles                   fwd02
//   block_sum              shared memory between warps     fwd03
//   GradientSums           dweight, dbias added in float   bwd01
#pragma once

#if defined(__CUDACC__)
#include "common/cuda/launch.h"
#else
#include "common/simt/cuda.h"
#include "common/simt/launch.h"
#endif
#include "common/chapter.h"

namespace lnc {

inline constexpr int kWarpSize = 32;
inline constexpr unsigned kFullMask = 0xffffffffu;

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

/// The number of blocks that cover `count` items with `per_block` each.
constexpr unsigned blocks_for(std::int64_t count, std::int64_t per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

/// The sum of `value` over the 32 lanes of a warp, in every lane. All lanes must call it.
__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2)
    value += __shfl_xor_sync(kFullMask, value, offset);
  return value;
}

/// The sum of `value` over the kThreads threads of a block, in every thread. All must call it.
template <int kThreads>
__device__ float block_sum(float value) {
  static_assert(kThreads % kWarpSize == 0 && kThreads <= kWarpSize * kWarpSize);
  constexpr int kWarps = kThreads / kWarpSize;
  __shared__ float partial[kWarps];
  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;

  value = warp_sum(value);
  if (lane == 0) partial[warp] = value;
  __syncthreads();  // every partial is written before one is read
  value = warp_sum(lane < kWarps ? partial[lane] : 0.0f);  // each warp adds them up for itself
  __syncthreads();  // every partial is read before the next call writes one
  return value;
}

/// Where dweight and dbias are added up in float by atomics. For float these are the outputs
/// themselves; for half and bfloat16 a workspace of [2, cols], rounded once at the end.
struct GradientSums {
  float* dweight;
  float* dbias;
};

inline std::int64_t gradient_sums_bytes(const Problem& problem) {
  return problem.dtype == DType::F32 ? 0 : 2 * problem.cols * std::int64_t{sizeof(float)};
}

inline constexpr int kColumnThreads = 256;  ///< a block, where a thread takes one column

__global__ inline void zero_gradients_kernel(GradientSums sums, std::int64_t cols) {
  const std::int64_t col = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (col >= cols) return;
  sums.dweight[col] = 0.0f;
  sums.dbias[col] = 0.0f;
}

/// Sums set to 0, for atomics to add to.
template <typename T>
GradientSums zero_gradient_sums(const BackwardArgs<T>& a) {
  GradientSums sums;
  if constexpr (sizeof(T) == sizeof(float)) {
    sums = {a.dweight, a.dbias};
  } else {
    auto* workspace = static_cast<float*>(a.workspace);
    sums = {workspace, workspace + a.cols};
  }
  launch(zero_gradients_kernel, {blocks_for(a.cols, kColumnThreads), kColumnThreads, 0, a.stream},
         sums, a.cols);
  return sums;
}

template <typename T>
__global__ void round_gradients_kernel(GradientSums sums, T* dweight, T* dbias, std::int64_t cols) {
  const std::int64_t col = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (col >= cols) return;
  dweight[col] = from_float<T>(sums.dweight[col]);
  dbias[col] = from_float<T>(sums.dbias[col]);
}

/// The sums rounded to T, into dweight and dbias; nothing to do for float.
template <typename T>
void round_gradients(const BackwardArgs<T>& a, const GradientSums& sums) {
  if constexpr (sizeof(T) != sizeof(float)) {
    launch(round_gradients_kernel<T>,
           {blocks_for(a.cols, kColumnThreads), kColumnThreads, 0, a.stream}, sums, a.dweight,
           a.dbias, a.cols);
  }
}

}  // namespace lnc
