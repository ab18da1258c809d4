// A row's two sums over the blocks of a cluster that hold its slices, while those of earlier rows
// are still in flight. bwd13 explains it, and cluster_backward.h uses it.
#pragma once

#include "common/kernel/hopper.h"
#include "common/kernel/reduce.h"

namespace lnc {

inline constexpr int kExchanges = 4;        // rows whose sums may be in flight
inline constexpr int kExchangeWarps = 16;   // of a block, at most
inline constexpr int kExchangeBlocks = 16;  // of a cluster, at most

/// The sums of a block's warps, and those of all blocks that arrive from the cluster.
struct Exchange {
  float2 of_warp[kExchangeWarps];
  float2 of_block[kExchanges][kExchangeBlocks];
  Barrier arrived[kExchanges];

  /// One thread calls this before a fence_barrier_init() and the first cluster barrier.
  __device__ void init() {
    for (Barrier& barrier : arrived) {
      barrier.init(1 + cluster_size());
    }
  }
};

/// Adds up the threads' sums of the nth row and sends the block's to every block of the cluster. A
/// block that has received them may overwrite this block's slots of rows up to nth - 2: this
/// block's warps have read them.
__device__ inline void send_sums(float2 c, Exchange& exchange, std::int64_t nth) {
  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  const int warps = blockDim.x / kWarpSize;
  const int blocks = cluster_size();
  const int place = nth % kExchanges;
  Barrier& arrived = exchange.arrived[place];
  c = warp_sum(c);
  if (lane == 0) exchange.of_warp[warp] = c;
  __syncthreads();
  if (warp > 0) return;
  c = warp_sum(lane < warps ? exchange.of_warp[lane] : float2{});
  if (lane == 0) arrived.arrive_and_expect(blocks * sizeof c);
  if (lane < blocks) {
    float2* const my_pair = &exchange.of_block[place][cluster_rank()];
    remote_store_async(my_pair, lane, c, arrived);
    remote_arrive(arrived, lane);
  }
}

/// Waits for all blocks' sums of the nth row, and returns their totals over the cluster.
__device__ inline float2 receive_sums(Exchange& exchange, std::int64_t nth) {
  const int lane = threadIdx.x % kWarpSize;
  const int blocks = cluster_size();
  const int place = nth % kExchanges;
  exchange.arrived[place].wait_at_cluster_scope(nth / kExchanges % 2);
  return warp_sum(lane < blocks ? exchange.of_block[place][lane] : float2{});
}

}  // namespace lnc
