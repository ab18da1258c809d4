// For the forward kernels over clusters: one exchange of moments for all rows of a cluster, which
// then retires (lib_fwd_cluster and lib_fwd_cluster_unaligned; fwd09 explains it), and a launch
// with the largest cluster that fits on the GPU (also for lib_fwd_cluster_ring).
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "common/kernel/hopper.h"
#include "common/kernel/launch.h"
#include "common/kernel/pieces.h"

namespace lnc {

inline constexpr int kMostClusterBlocks = 16;  // more than 8 is not portable

/// Sends a warp's moments of its piece of each row to every block of the cluster, and waits until
/// those of all `pieces` have arrived in `moments`. `met` is a new Barrier of one arrival; the
/// caller has called fence_barrier_init() for it and then cluster_arrive_relaxed().
///
/// No block retires before all moments have reached it, so none is sent to a retired block.
template <int kRows, int kMostPieces>
__device__ void exchange_moments(const Moments (&of_piece)[kRows],
                                 Moments (&moments)[kRows][kMostPieces], Barrier& met, int blocks,
                                 int pieces, int piece) {
  const int lane = threadIdx.x % kWarpSize;
  cluster_wait();
  // One thread expects the bytes for its block: 16 from every warp of the cluster for each row.
  if (threadIdx.x == 0) met.arrive_and_expect(kRows * pieces * sizeof(Moments));
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (lane < blocks) remote_store_async(&moments[r][piece], lane, of_piece[r], met);
  }
  met.wait_at_cluster_scope(0);  // the mbarrier is used once: parity 0
}

/// The configuration of one cluster; launch_clusters() sets how many there are.
inline LaunchConfig cluster_of(int blocks, int warps, std::size_t shared_bytes,
                               cudaStream_t stream) {
  const auto grid = static_cast<unsigned>(blocks);
  return {grid, static_cast<unsigned>(warps * kWarpSize), shared_bytes, stream, grid};
}

/// Launches this many clusters. Returns false where the GPU holds no cluster of this size.
template <typename... Params, typename... Args>
bool launch_clusters(void (*kernel)(Params...), LaunchConfig config, std::int64_t clusters,
                     const Args&... args) {
  if (resident_clusters(kernel, config) == 0) return false;
  config.grid = static_cast<unsigned>(clusters) * config.cluster;
  launch(kernel, config, args...);
  return true;
}

/// Calls launch_within(most_blocks) for clusters of up to 16 blocks, then of fewer, until it has
/// launched and returns true: a GPU may hold no cluster of 16.
/// @throws std::runtime_error where it never returns true; the sentence begins with the kernel's id
template <typename LaunchWithin>
void launch_in_largest_cluster(std::string_view id, std::int64_t cols,
                               const LaunchWithin& launch_within) {
  for (int most_blocks = kMostClusterBlocks; most_blocks >= 2; --most_blocks) {
    if (launch_within(most_blocks)) return;
  }
  throw std::runtime_error(std::string(id) + ": no cluster of this GPU holds rows of " +
                           std::to_string(cols) + " columns");
}

}  // namespace lnc
