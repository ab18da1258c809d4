// A tile: neighbouring rows of a tensor in shared memory, which the copy engine loads and stores.
// fwd15 explains it.
#pragma once

#include <cstdint>

#include "common/kernel/hopper.h"
#include "common/kernel/reduce.h"
#include "common/kernel/unaligned_rows.h"
#include "common/kernel/vector.h"

namespace lnc {

/// `elements` neighbouring elements of a tensor. The copy engine moves whole vectors, `to_copy`
/// elements in all; the block's threads move the rest one by one.
template <typename T>
struct Tile {
  T* shared;  ///< their place in shared memory, at a 16-byte boundary
  int elements;
  int to_copy;

  /// @param at_boundary the tile starts at a 16-byte boundary in the tensor; else threads move all
  __device__ Tile(T* shared_, int elements_, bool at_boundary)
      : shared(shared_), elements(elements_) {
    constexpr int kElements = kVectorElements<T>;
    to_copy = at_boundary ? elements / kElements * kElements : 0;
  }
  __device__ unsigned bytes_to_copy() const { return static_cast<unsigned>(to_copy * sizeof(T)); }

  /// One thread requests the tile, which starts at `from`, once `full` expects its bytes.
  __device__ void ask_for(const T* from, Barrier& full) const {
    if (to_copy > 0) bulk_load(shared, from, bytes_to_copy(), full);
  }
  /// All threads load the rest. A __syncthreads() must follow.
  __device__ void bring_rest(const T* from) const {
    for (int i = to_copy + static_cast<int>(threadIdx.x); i < elements; i += blockDim.x) {
      shared[i] = from[i];
    }
  }
  /// One thread issues the store of the tile to `to`, after a fence_proxy_async() by all threads
  /// and a __syncthreads(). It must wait for its bulk stores before the tile is written again or it
  /// exits.
  __device__ void take_away(T* to) const {
    if (to_copy == 0) return;
    bulk_store(to, shared, bytes_to_copy());
    commit_bulk_stores();
  }
  /// All threads store the rest.
  __device__ void take_rest(T* to) const {
    for (int i = to_copy + static_cast<int>(threadIdx.x); i < elements; i += blockDim.x) {
      to[i] = shared[i];
    }
  }
};

/// The row of a tile that a thread has, if each has one. All lanes of a warp read at once, each in
/// its own row, without bank conflicts if their rows are an odd number of words apart. Rows of an
/// odd number of 16-bit elements are not, but every second one is: two warps share 64 rows. Rows of
/// an even number may conflict.
template <typename T>
__device__ inline int own_row_of_tile(int thread, int cols) {
  if (sizeof(T) == sizeof(float) || cols % 2 == 0) return thread;
  const int warp = thread / kWarpSize;
  const int lane = thread % kWarpSize;
  return warp / 2 * (2 * kWarpSize) + 2 * lane + warp % 2;
}

/// Reads neighbouring elements of shared memory as floats: one, or several from a word's boundary
/// on, a word at a time.
template <typename T, int kCount>
__device__ inline void read_elements(const T* from, float (&values)[kCount]) {
  constexpr int kOfWord = kCount == 1 ? 1 : 4 / static_cast<int>(sizeof(T));
#pragma unroll
  for (int i = 0; i < kCount; i += kOfWord) {
    float of_word[kOfWord];
    to_floats(load_vector<kOfWord>(from, i), of_word);
    for (int k = 0; k < kOfWord; ++k) {
      values[i + k] = of_word[k];
    }
  }
}

/// Writes floats, rounded, the same way.
template <typename T, int kCount>
__device__ inline void write_elements(T* to, const float (&values)[kCount]) {
  constexpr int kOfWord = kCount == 1 ? 1 : 4 / static_cast<int>(sizeof(T));
#pragma unroll
  for (int i = 0; i < kCount; i += kOfWord) {
    float of_word[kOfWord];
    for (int k = 0; k < kOfWord; ++k) {
      of_word[k] = values[i + k];
    }
    store_vector(to + i, of_word);
  }
}

/// Calls visit<kCount>(col) for the columns of a row in shared memory, or of a part of one, in
/// order: kCount of them from `col` on. kCount is four, from a word's boundary on, or one where the
/// row begins or ends inside a word or has fewer than four left.
template <typename T, typename Visit>
__device__ inline void for_columns(const T* row, int cols, const Visit& visit) {
  int col = 0;
  const bool inside = reinterpret_cast<std::uintptr_t>(row) % 4 != 0;
  if (sizeof(T) == 2 && inside && cols > 0) {
    visit.template operator()<1>(0);
    col = 1;
  }
#pragma unroll 2
  for (; col + 4 <= cols; col += 4) {
    visit.template operator()<4>(col);
  }
#pragma unroll 1
  for (; col < cols; ++col) {
    visit.template operator()<1>(col);
  }
}

}  // namespace lnc
