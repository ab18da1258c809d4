// Neighbouring rows of a tensor in shared memory, a tile, which the copy engine brings and takes
// away: explained by fwd15.
#pragma once

#include <cstdint>

#include "common/kernel/hopper.h"
#include "common/kernel/reduce.h"
#include "common/kernel/rows_anywhere.h"
#include "common/kernel/vector.h"

namespace lnc {

/// `elements` neighbouring elements of a tensor. The copy engine moves whole vectors, `to_copy`
/// elements in all; the block's threads move the rest one by one.
template <typename T>
struct Tile {
  T* shared;  ///< where they lie in shared memory, from a 16-byte boundary on
  int elements;
  int to_copy;

  /// @param at_boundary the tile starts at a 16-byte boundary in the tensor; else nothing is copied
  __device__ Tile(T* shared_, int elements_, bool at_boundary)
      : shared(shared_), elements(elements_) {
    constexpr int kElements = kVectorElements<T>;
    to_copy = at_boundary ? elements / kElements * kElements : 0;
  }
  __device__ unsigned bytes_to_copy() const { return static_cast<unsigned>(to_copy * sizeof(T)); }

  /// One thread asks for the tile, which starts at `from`, once `full` expects its bytes.
  __device__ void ask_for(const T* from, Barrier& full) const {
    if (to_copy > 0) bulk_load(shared, from, bytes_to_copy(), full);
  }
  /// All threads bring the rest. A __syncthreads() must follow.
  __device__ void bring_rest(const T* from) const {
    for (int i = to_copy + static_cast<int>(threadIdx.x); i < elements; i += blockDim.x) {
      shared[i] = from[i];
    }
  }
  /// One thread has the tile taken to `to`, behind a fence_proxy_async() of all threads and a
  /// __syncthreads(). Before the tile is written again, or the thread ends, it waits for its bulk
  /// stores.
  __device__ void take_away(T* to) const {
    if (to_copy == 0) return;
    bulk_store(to, shared, bytes_to_copy());
    commit_bulk_stores();
  }
  /// All threads take the rest.
  __device__ void take_rest(T* to) const {
    for (int i = to_copy + static_cast<int>(threadIdx.x); i < elements; i += blockDim.x) {
      to[i] = shared[i];
    }
  }
};

/// The row of a tile that this thread has, where each has one. All lanes of a warp read at once,
/// each in its row, and meet in no bank if their rows lie an odd number of words apart. Rows of an
/// odd number of 16-bit elements do not, but every second one does: two warps share 64 rows. Of an
/// even number, lanes may meet.
template <typename T>
__device__ inline int own_row_of_tile(int cols) {
  const auto thread = static_cast<int>(threadIdx.x);
  if (sizeof(T) == sizeof(float) || cols % 2 == 0) return thread;
  const int warp = thread / kWarpSize;
  const int lane = thread % kWarpSize;
  return warp / 2 * (2 * kWarpSize) + 2 * lane + warp % 2;
}

}  // namespace lnc
