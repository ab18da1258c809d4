// A row's two sums over the blocks of a cluster that hold slices of it, while the rows before are
// still on their way: explained by bwd13.
#pragma once

#include "common/kernel/hopper.h"
#include "common/kernel/reduce.h"

namespace lnc {

inline constexpr int kExchanges = 4;        // rows whose sums may be on their way
inline constexpr int kExchangeWarps = 16;   // of a block, at most
inline constexpr int kExchangeBlocks = 16;  // of a cluster, at most

/// The sums of a block's warps, and those of all blocks that arrive from the cluster.
struct Exchange {
  float2 of_warp[kExchangeWarps];
  float2 of_block[kExchanges][kExchangeBlocks];
};

/// Adds up the threads' sums of a row and sends the block's to every block of the cluster.
__device__ inline void send_sums(float2 c, Exchange& exchange, int place, Barrier& arrived) {
  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  const int warps = blockDim.x / kWarpSize;
  const int blocks = cluster_size();
  c = warp_sum(c);
  if (lane == 0) exchange.of_warp[warp] = c;
  __syncthreads();
  if (warp > 0) return;
  c = warp_sum(lane < warps ? exchange.of_warp[lane] : float2{});
  if (lane == 0) arrived.arrive_and_expect(blocks * sizeof c);
  if (lane < blocks) {
    float2* const my_pair = &exchange.of_block[place][cluster_rank()];
    remote_store_async(my_pair, lane, c, arrived);
  }
}

/// A row's sums over the cluster, when those of all blocks have arrived.
__device__ inline float2 receive_sums(const Exchange& exchange, int place, Barrier& arrived,
                                      int parity) {
  const int lane = threadIdx.x % kWarpSize;
  const int blocks = cluster_size();
  arrived.wait_at_cluster_scope(parity);
  return warp_sum(lane < blocks ? exchange.of_block[place][lane] : float2{});
}

}  // namespace lnc
