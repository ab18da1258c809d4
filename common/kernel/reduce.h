// Sums over a warp and over a block.
//
//   warp_sum     five shuffles                   explained by fwd02
//   block_sum    shared memory between warps     explained by fwd03
//   row_sums     one barrier a sum, not two      used by lib_fwd_ring, lib_bwd_any
//   team_sums    the same, of any team of warps  used by lib_bwd_unaligned, lib_bwd_fused_any
#pragma once

#include "common/kernel/launch.h"

namespace lnc {

/// The sum of `value` over the 32 lanes of a warp, or over each group of kLanes neighbours, a power
/// of two, in every lane. All lanes must call it.
template <int kLanes = kWarpSize>
__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2)
    value += __shfl_xor_sync(kFullMask, value, offset);
  return value;
}

/// The same for both values.
template <int kLanes = kWarpSize>
__device__ inline float2 warp_sum(float2 values) {
  return make_float2(warp_sum<kLanes>(values.x), warp_sum<kLanes>(values.y));
}

/// The sum of a float, or of each of a float2, over the threads of a block, in every thread. All
/// must call it. The block has kMaxThreads threads, or `threads` of them, a multiple of 32.
template <int kMaxThreads, typename Value>
__device__ Value block_sum(Value value, int threads = kMaxThreads) {
  static_assert(kMaxThreads % kWarpSize == 0 && kMaxThreads <= kWarpSize * kWarpSize);
  __shared__ Value partial[kMaxThreads / kWarpSize];
  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;

  value = warp_sum(value);
  if (lane == 0) partial[warp] = value;
  __syncthreads();  // every partial is written before one is read
  const bool there = lane < threads / kWarpSize;
  value = warp_sum(there ? partial[lane] : Value{});  // each warp adds them up for itself
  __syncthreads();  // every partial is read before the next call writes one
  return value;
}

/// The sums of a value, or of both of a float2, over the kRowThreads threads of a row, in each of
/// them; a block has kThreads / kRowThreads rows at a time. All threads of the block must call it,
/// with a `parity` that alternates between 0 and 1: the barrier of one call then ensures that the
/// partials of the previous call have been read, so no second barrier is needed.
template <int kThreads, int kRowThreads, typename Values>
__device__ Values row_sums(Values values, int parity) {
  static_assert((kRowThreads & (kRowThreads - 1)) == 0);
  values = warp_sum(values);
  if constexpr (kRowThreads > kWarpSize) {
    constexpr int kRowWarps = kRowThreads / kWarpSize;
    __shared__ Values partial[2][kThreads / kWarpSize];
    const int warp = threadIdx.x / kWarpSize;
    const int lane = threadIdx.x % kWarpSize;
    if (lane == 0) partial[parity][warp] = values;
    __syncthreads();
    const int first_warp = warp / kRowWarps * kRowWarps;  // of this thread's row
    values = partial[parity][first_warp + lane % kRowWarps];
    values = warp_sum<kRowWarps>(values);
  }
  return values;
}

/// The same over a team of `team_warps` neighbouring warps, the first of which is `first_warp`, in
/// a block of up to kMostThreads threads. `place`, below kPlaces, must differ from the last call's.
template <int kMostThreads, int kPlaces, typename Values>
__device__ Values team_sums(Values values, int place, int first_warp, int team_warps) {
  static_assert(kPlaces >= 2 && kMostThreads <= kWarpSize * kWarpSize);
  __shared__ Values partial[kPlaces][kMostThreads / kWarpSize];
  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  values = warp_sum(values);
  if (lane == 0) partial[place][warp] = values;
  __syncthreads();
  values = lane < team_warps ? partial[place][first_warp + lane] : Values{};
  return warp_sum(values);
}

}  // namespace lnc
