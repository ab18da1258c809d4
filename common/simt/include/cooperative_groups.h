// CUDA's cooperative groups over the SIMT machine: the block, tiles of a warp, the lanes that are
// together, the cluster, and the grid without its barrier.
//
// A group's sync is the machine's own barrier, so a fault names the line that calls it.
#pragma once

#include <bit>

#include "common/simt/facades.h"

namespace cooperative_groups {

// ------------------------------------------------------------------------------------- the block

/// All threads of the block.
class thread_block {
 public:
  /// Waits for every thread of the block.
  static void sync(std::source_location where = std::source_location::current()) {
    __syncthreads(where);
  }
  static unsigned size() { return simt::threads_of_block(); }
  static unsigned num_threads() { return size(); }
  static unsigned thread_rank() { return simt::rank_in_block(); }
  static dim3 group_index() { return {blockIdx.x, blockIdx.y, blockIdx.z}; }
  static dim3 thread_index() { return {threadIdx.x, threadIdx.y, threadIdx.z}; }
  static dim3 dim_threads() { return blockDim; }
  static dim3 group_dim() { return blockDim; }
  SIMT_REFUSED(barrier_arrive, "The block's barrier is not split here: call sync().")
  SIMT_REFUSED(barrier_wait, "The block's barrier is not split here: call sync().")
};
/// The block of this thread.
inline thread_block this_thread_block() { return {}; }

// ------------------------------------------------------------------------------- parts of a warp

/// Votes and matches of a group of lanes; `Group` has lanes() and ranks_of(lanes).
template <typename Group>
class lane_votes {
 public:
  /// Whether the predicate holds in any thread of the group.
  int any(int predicate, std::source_location where = std::source_location::current()) const {
    return __any_sync(group().lanes(), predicate, where);
  }
  /// Whether the predicate holds in all threads of the group.
  int all(int predicate, std::source_location where = std::source_location::current()) const {
    return __all_sync(group().lanes(), predicate, where);
  }
  /// The ranks whose predicate holds, one bit each.
  unsigned ballot(int predicate,
                  std::source_location where = std::source_location::current()) const {
    return group().ranks_of(__ballot_sync(group().lanes(), predicate, where));
  }
  /// The ranks that passed the same value.
  template <typename T>
  unsigned match_any(T value, std::source_location where = std::source_location::current()) const {
    return group().ranks_of(__match_any_sync(group().lanes(), value, where));
  }
  /// All ranks if they passed the same value, which `same` says; else 0.
  template <typename T>
  unsigned match_all(T value, int& same,
                     std::source_location where = std::source_location::current()) const {
    return group().ranks_of(__match_all_sync(group().lanes(), value, &same, where));
  }

 private:
  const Group& group() const { return static_cast<const Group&>(*this); }
};

/// The lanes of a warp that are together: what the groups of lanes have in common.
class coalesced_group : public lane_votes<coalesced_group> {
  friend lane_votes<coalesced_group>;

 public:
  explicit coalesced_group(unsigned mask) : mask_(mask) {}

  /// Waits for every lane of the group.
  void sync(std::source_location where = std::source_location::current()) const {
    __syncwarp(mask_, where);
  }
  unsigned size() const { return std::popcount(mask_); }
  unsigned num_threads() const { return size(); }
  unsigned thread_rank() const { return rank_of(simt::lane()); }
  unsigned meta_group_rank() const { return 0; }
  unsigned meta_group_size() const { return 1; }
  /// The group's lanes, one bit each.
  unsigned lanes() const { return mask_; }

  /// The value of the thread of rank `source`.
  template <typename T>
  T shfl(T value, unsigned source,
         std::source_location where = std::source_location::current()) const {
    return read(value, source % size(), where);
  }
  /// The value of the rank `delta` below; a thread's own value if there is none.
  template <typename T>
  T shfl_up(T value, unsigned delta,
            std::source_location where = std::source_location::current()) const {
    const unsigned rank = thread_rank();
    return read(value, rank >= delta ? rank - delta : rank, where);
  }
  /// The value of the rank `delta` above; a thread's own value if there is none.
  template <typename T>
  T shfl_down(T value, unsigned delta,
              std::source_location where = std::source_location::current()) const {
    const unsigned rank = thread_rank();
    return read(value, rank + delta < size() ? rank + delta : rank, where);
  }
  SIMT_REFUSED(shfl_xor, "A coalesced group has no shfl_xor: call shfl with a rank.")

 private:
  template <typename T>
  T read(T value, unsigned rank, std::source_location where) const {
    unsigned rest = mask_;
    for (; rank > 0; --rank) rest &= rest - 1;
    const int lane = std::countr_zero(rest);
    return simt::shuffle_whole(simt::Op::Shuffle, mask_, value, lane, 32, where);
  }
  unsigned rank_of(unsigned lane) const { return std::popcount(mask_ & ((1u << lane) - 1)); }
  unsigned ranks_of(unsigned lanes) const {
    unsigned ranks = 0;
    for (; lanes != 0; lanes &= lanes - 1) ranks |= 1u << rank_of(std::countr_zero(lanes));
    return ranks;
  }

  unsigned mask_;
};
/// The lanes of this warp that are at this call together. A GPU may find fewer.
inline coalesced_group coalesced_threads(
    std::source_location where = std::source_location::current()) {
  return coalesced_group(__activemask(where));
}

/// `kSize` neighbouring lanes of a warp: 1, 2, 4, 8, 16 or 32.
template <unsigned kSize, typename Parent = void>
class thread_block_tile : public lane_votes<thread_block_tile<kSize, Parent>> {
  friend lane_votes<thread_block_tile>;
  static_assert(kSize <= 32, "A tile has at most 32 threads here: use the block for more.");
  static_assert(kSize >= 1 && (kSize & (kSize - 1)) == 0, "A tile's size is a power of two.");

 public:
  /// A tile of a group of `threads_of_parent`: tiled_partition makes it.
  explicit thread_block_tile(unsigned threads_of_parent) : parent_(threads_of_parent) {}
  template <typename Other>
  thread_block_tile(const thread_block_tile<kSize, Other>& other)
      : parent_(other.threads_of_parent()) {}

  /// Waits for every thread of the tile.
  void sync(std::source_location where = std::source_location::current()) const {
    __syncwarp(lanes(), where);
  }
  static constexpr unsigned size() { return kSize; }
  static constexpr unsigned num_threads() { return kSize; }
  static unsigned thread_rank() { return simt::rank_in_block() % kSize; }
  /// Which of its group's tiles this is.
  unsigned meta_group_rank() const { return simt::rank_in_block() % parent_ / kSize; }
  /// How many tiles its group has.
  unsigned meta_group_size() const { return (parent_ + kSize - 1) / kSize; }
  unsigned threads_of_parent() const { return parent_; }
  /// The tile's lanes, one bit each.
  static unsigned lanes() { return simt::segment_mask(kSize); }

  /// The value of the thread of rank `source`.
  template <typename T>
  T shfl(T value, int source, std::source_location where = std::source_location::current()) const {
    return shuffle(simt::Op::Shuffle, value, source, where);
  }
  /// The value of the rank `delta` below; a thread's own value if there is none.
  template <typename T>
  T shfl_up(T value, unsigned delta,
            std::source_location where = std::source_location::current()) const {
    return shuffle(simt::Op::ShuffleUp, value, static_cast<int>(delta), where);
  }
  /// The value of the rank `delta` above; a thread's own value if there is none.
  template <typename T>
  T shfl_down(T value, unsigned delta,
              std::source_location where = std::source_location::current()) const {
    return shuffle(simt::Op::ShuffleDown, value, static_cast<int>(delta), where);
  }
  /// The value of the rank that differs from this one's in the bits of `mask`.
  template <typename T>
  T shfl_xor(T value, unsigned mask,
             std::source_location where = std::source_location::current()) const {
    return shuffle(simt::Op::ShuffleXor, value, static_cast<int>(mask), where);
  }

 private:
  template <typename T>
  T shuffle(simt::Op op, T value, int x, std::source_location where) const {
    return simt::shuffle_whole(op, lanes(), value, x, kSize, where);
  }
  static unsigned ranks_of(unsigned lanes) { return lanes >> (simt::lane() & ~(kSize - 1)); }

  unsigned parent_;
};

/// The tile of `kSize` threads of this thread, in a block or a larger tile.
template <unsigned kSize, typename Group>
thread_block_tile<kSize, Group> tiled_partition(const Group& group) {
  return thread_block_tile<kSize, Group>(group.size());
}
template <unsigned kSize>
thread_block_tile<kSize> tiled_partition(const coalesced_group&) {
  static_assert(simt::kRefused<thread_block_tile<kSize>>,
                "Coalesced threads are not cut into tiles here: partition the block or a tile.");
  return thread_block_tile<kSize>(kSize);
}

/// The threads of a tile or a coalesced group that passed the same label.
template <typename Group>
coalesced_group labeled_partition(const Group& group, int label,
                                  std::source_location where = std::source_location::current()) {
  return coalesced_group(__match_any_sync(group.lanes(), label, where));
}
/// The threads of a tile or a coalesced group whose predicate is as this thread's.
template <typename Group>
coalesced_group binary_partition(const Group& group, bool predicate,
                                 std::source_location where = std::source_location::current()) {
  return labeled_partition(group, predicate, where);
}

/// A group whose kind is known only when the kernel runs: a block, or lanes of a warp.
class thread_group {
 public:
  thread_group(const thread_block&) : mask_(0) {}
  thread_group(const coalesced_group& group) : mask_(group.lanes()) {}
  template <unsigned kSize, typename Parent>
  thread_group(const thread_block_tile<kSize, Parent>& tile) : mask_(tile.lanes()) {}

  /// Waits for every thread of the group.
  void sync(std::source_location where = std::source_location::current()) const {
    if (mask_ == 0)
      __syncthreads(where);
    else
      __syncwarp(mask_, where);
  }
  unsigned size() const {
    return mask_ == 0 ? simt::threads_of_block() : coalesced_group(mask_).size();
  }
  unsigned num_threads() const { return size(); }
  unsigned thread_rank() const {
    return mask_ == 0 ? simt::rank_in_block() : coalesced_group(mask_).thread_rank();
  }

 private:
  unsigned mask_;  // 0: the block
};
/// The tile of `size` threads of this thread, in a block.
inline thread_group tiled_partition(const thread_block&, unsigned size) {
  return coalesced_group(simt::segment_mask(size));
}

// ------------------------------------------------------------------------------ the whole grid

/// All threads of the grid. They have no barrier: the machine runs a block on a core until it ends.
class grid_group {
 public:
  static unsigned long long size() { return num_blocks() * simt::threads_of_block(); }
  static unsigned long long num_threads() { return size(); }
  static unsigned long long thread_rank() {
    return block_rank() * simt::threads_of_block() + simt::rank_in_block();
  }
  static unsigned long long num_blocks() { return simt::volume(gridDim); }
  static unsigned long long block_rank() {
    return blockIdx.x +
           std::uint64_t{gridDim.x} * (blockIdx.y + std::uint64_t{gridDim.y} * blockIdx.z);
  }
  static dim3 dim_blocks() { return gridDim; }
  static dim3 group_dim() { return gridDim; }
  static dim3 block_index() { return {blockIdx.x, blockIdx.y, blockIdx.z}; }
  static bool is_valid() { return false; }
#define SIMT_NO_GRID_BARRIER \
  "The blocks of a grid cannot wait for each other here: use two kernels, or a cluster."
  SIMT_REFUSED(sync, SIMT_NO_GRID_BARRIER)
  SIMT_REFUSED(barrier_arrive, SIMT_NO_GRID_BARRIER)
  SIMT_REFUSED(barrier_wait, SIMT_NO_GRID_BARRIER)
#undef SIMT_NO_GRID_BARRIER
};
/// The grid of this thread.
inline grid_group this_grid() { return {}; }

// ----------------------------------------------------------------------------------- the cluster

/// All threads of the cluster. Without a cluster, those of the block.
class cluster_group {
 public:
  /// Waits for every thread of the cluster.
  static void sync(std::source_location where = std::source_location::current()) {
    simt::cluster_arrive(where);
    simt::cluster_wait(where);
  }
  /// Arrives at the cluster's barrier; barrier_wait waits there for the others.
  static void barrier_arrive(std::source_location where = std::source_location::current()) {
    simt::cluster_arrive(where);
  }
  static void barrier_wait(std::source_location where = std::source_location::current()) {
    simt::cluster_wait(where);
  }
  static unsigned block_rank() { return simt::cluster_rank(); }
  static unsigned num_blocks() { return simt::cluster_size(); }
  static unsigned thread_rank() {
    return block_rank() * simt::threads_of_block() + simt::rank_in_block();
  }
  static unsigned num_threads() { return num_blocks() * simt::threads_of_block(); }
  static unsigned size() { return num_threads(); }
  static dim3 block_index() { return {block_rank(), 0, 0}; }
  static dim3 dim_blocks() { return {num_blocks(), 1, 1}; }
  static dim3 dim_threads() { return {num_blocks() * blockDim.x, blockDim.y, blockDim.z}; }
  /// The same place in the shared memory of block `rank`, once the cluster has synchronised.
  template <typename T>
  static T* map_shared_rank(T* pointer, int rank,
                            std::source_location where = std::source_location::current()) {
    return reinterpret_cast<T*>(simt::remote(pointer, static_cast<unsigned>(rank), where));
  }
  SIMT_REFUSED(query_shared_rank, "The machine does not tell whose shared memory an address is in.")
};
/// The cluster of this thread.
inline cluster_group this_cluster() { return {}; }

// ------------------------------------------------------------------------------------- functions

/// Waits for every thread of the group.
template <typename Group>
void sync(const Group& group, std::source_location where = std::source_location::current()) {
  group.sync(where);
}

/// The operators of reduce and of the scans; less and greater keep the least and the greatest.
template <typename T>
struct plus {
  T operator()(T a, T b) const { return a + b; }
};
template <typename T>
struct less {
  T operator()(T a, T b) const { return b < a ? b : a; }
};
template <typename T>
struct greater {
  T operator()(T a, T b) const { return a < b ? b : a; }
};
template <typename T>
struct bit_and {
  T operator()(T a, T b) const { return a & b; }
};
template <typename T>
struct bit_or {
  T operator()(T a, T b) const { return a | b; }
};
template <typename T>
struct bit_xor {
  T operator()(T a, T b) const { return a ^ b; }
};

}  // namespace cooperative_groups
