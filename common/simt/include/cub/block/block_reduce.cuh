// cub::BlockReduce over the machine's shuffles, its barrier and shared memory.
#pragma once

#include <cub/warp/warp_reduce.cuh>

namespace cub {

/// How CUB reduces; here always as the third.
enum BlockReduceAlgorithm {
  BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY,
  BLOCK_REDUCE_RAKING,
  BLOCK_REDUCE_WARP_REDUCTIONS,
  BLOCK_REDUCE_WARP_REDUCTIONS_NONDETERMINISTIC
};

/// Reductions over the threads of a block. Thread 0 has the result, and the others 0xFF bytes,
/// which are NaN: CUB leaves theirs undefined. A __syncthreads() comes before the storage's next
/// use.
template <typename T, int kX, BlockReduceAlgorithm = BLOCK_REDUCE_WARP_REDUCTIONS, int kY = 1,
          int kZ = 1, int = 0>
class BlockReduce {
  static constexpr int kThreads = kX * kY * kZ;
  static constexpr int kWarps = (kThreads + 31) / 32;

 public:
  using TempStorage = simt_details::Room<T, kWarps>;
  BlockReduce() : storage_(simt_details::own_storage<TempStorage>()) {}
  explicit BlockReduce(TempStorage& storage) : storage_(storage) {}

  /// The sum of the values, or of the arrays of values.
  T Sum(T value, std::source_location where = std::source_location::current()) {
    return Reduce(value, cub::Sum(), kThreads, where);
  }
  template <int kItems>
  T Sum(T (&values)[kItems], std::source_location where = std::source_location::current()) {
    return Reduce(values, cub::Sum(), where);
  }
  /// The sum of the values of the first `valid` threads.
  T Sum(T value, int valid, std::source_location where = std::source_location::current()) {
    return Reduce(value, cub::Sum(), valid, where);
  }
  /// The reduction of the values, or of the arrays of values, by `op`.
  template <typename Op>
  T Reduce(T value, Op op, std::source_location where = std::source_location::current()) {
    return Reduce(value, op, kThreads, where);
  }
  template <int kItems, typename Op>
  T Reduce(T (&values)[kItems], Op op,
           std::source_location where = std::source_location::current()) {
    T value = values[0];
    for (int i = 1; i < kItems; ++i) value = op(value, values[i]);
    return Reduce(value, op, kThreads, where);
  }
  /// The reduction by `op` of the values of the first `valid` threads.
  template <typename Op>
  T Reduce(T value, Op op, int valid,
           std::source_location where = std::source_location::current()) {
    simt_details::require_threads(kThreads, where);
    const int thread = static_cast<int>(simt::rank_in_block());
    const int warp = thread / 32;
    value = simt_details::reduce_segment(value, op, 32, valid - 32 * warp, where);
    if (thread % 32 == 0) storage_.data()[warp] = value;
    __syncthreads(where);
    if (thread != 0) return simt::undefined<T>();
    for (int other = 1; 32 * other < valid; ++other) value = op(value, storage_.data()[other]);
    return value;
  }

 private:
  TempStorage& storage_;
};

}  // namespace cub
