// cub::BlockScan over the machine's shuffles, its barrier and shared memory.
#pragma once

#include <cub/warp/warp_scan.cuh>

namespace cub {

/// How CUB scans; here always as the third.
enum BlockScanAlgorithm { BLOCK_SCAN_RAKING, BLOCK_SCAN_RAKING_MEMOIZE, BLOCK_SCAN_WARP_SCANS };

/// Scans over the threads of a block. A __syncthreads() comes before the storage's next use.
template <typename T, int kX, BlockScanAlgorithm kAlgorithm = BLOCK_SCAN_RAKING, int kY = 1,
          int kZ = 1, int kLegacy = 0>
class BlockScan
    : public simt_details::SumsByScan<BlockScan<T, kX, kAlgorithm, kY, kZ, kLegacy>, T> {
  using Sums = simt_details::SumsByScan<BlockScan, T>;
  static constexpr int kThreads = kX * kY * kZ;
  static constexpr int kWarps = (kThreads + 31) / 32;

 public:
  using TempStorage = simt_details::Room<T, kWarps>;
  BlockScan() : storage_(simt_details::own_storage<TempStorage>()) {}
  explicit BlockScan(TempStorage& storage) : storage_(storage) {}

  using Sums::InclusiveSum, Sums::ExclusiveSum;
  /// Sums up to each of this thread's values; `all` is the sum of all.
  template <int kItems>
  void InclusiveSum(T (&values)[kItems], T (&sums)[kItems],
                    std::source_location where = std::source_location::current()) {
    T all;
    InclusiveSum(values, sums, all, where);
  }
  template <int kItems>
  void InclusiveSum(T (&values)[kItems], T (&sums)[kItems], T& all,
                    std::source_location where = std::source_location::current()) {
    T before = sum_before(values, all, where);
    for (int i = 0; i < kItems; ++i) sums[i] = before = before + values[i];
  }
  /// Sums of the values before each of this thread's values.
  template <int kItems>
  void ExclusiveSum(T (&values)[kItems], T (&sums)[kItems],
                    std::source_location where = std::source_location::current()) {
    T all;
    ExclusiveSum(values, sums, all, where);
  }
  template <int kItems>
  void ExclusiveSum(T (&values)[kItems], T (&sums)[kItems], T& all,
                    std::source_location where = std::source_location::current()) {
    T before = sum_before(values, all, where);
    for (int i = 0; i < kItems; ++i) {
      const T value = values[i];
      sums[i] = before;
      before = before + value;
    }
  }
#define SIMT_NO_PREFIX \
  "A prefix callback is not here: pass the value to start from to ExclusiveScan."
  template <typename Callback>
  requires(!std::is_convertible_v<Callback, T> &&
           !std::is_same_v<Callback, std::source_location>) void InclusiveSum(T, T&, Callback&) {
    static_assert(simt::kRefused<Callback>, SIMT_NO_PREFIX);
  }
  template <typename Callback>
  requires(!std::is_convertible_v<Callback, T> &&
           !std::is_same_v<Callback, std::source_location>) void ExclusiveSum(T, T&, Callback&) {
    static_assert(simt::kRefused<Callback>, SIMT_NO_PREFIX);
  }
#undef SIMT_NO_PREFIX
  /// The same of one value by `op`. An exclusive scan starts from `initial`, which `all` leaves
  /// out.
  template <typename Op>
  void InclusiveScan(T value, T& scanned, Op op,
                     std::source_location where = std::source_location::current()) {
    T all;
    InclusiveScan(value, scanned, op, all, where);
  }
  template <typename Op>
  void InclusiveScan(T value, T& scanned, Op op, T& all,
                     std::source_location where = std::source_location::current()) {
    const Scanned result = scan(value, op, where);
    all = result.all;
    scanned = result.inclusive;
  }
  template <typename Op>
  void ExclusiveScan(T value, T& scanned, T initial, Op op,
                     std::source_location where = std::source_location::current()) {
    T all;
    ExclusiveScan(value, scanned, initial, op, all, where);
  }
  template <typename Op>
  void ExclusiveScan(T value, T& scanned, T initial, Op op, T& all,
                     std::source_location where = std::source_location::current()) {
    const Scanned result = scan(value, op, where);
    all = result.all;
    scanned = simt::rank_in_block() == 0 ? initial : op(initial, result.exclusive);
  }

 private:
  struct Scanned {
    T inclusive;
    T exclusive;  // undefined in thread 0
    T all;
  };

  template <typename Op>
  Scanned scan(T value, Op op, std::source_location where) {
    simt_details::require_threads(kThreads, where);
    const int thread = static_cast<int>(simt::rank_in_block());
    const int warp = thread / 32;
    Scanned result;
    result.inclusive = simt_details::scan_segment(value, op, 32, where);
    result.exclusive =
        simt::shuffle_whole(simt::Op::ShuffleUp, ~0u, result.inclusive, 1, 32, where);
    T* const of_warp = storage_.data();
    if (thread % 32 == 31 || thread == kThreads - 1) of_warp[warp] = result.inclusive;
    __syncthreads(where);
    result.all = of_warp[0];
    for (int other = 1; other < kWarps; ++other) {
      if (other == warp) {
        result.exclusive = thread % 32 == 0 ? result.all : op(result.all, result.exclusive);
        result.inclusive = op(result.all, result.inclusive);
      }
      result.all = op(result.all, of_warp[other]);
    }
    return result;
  }

  template <int kItems>
  T sum_before(const T (&values)[kItems], T& all, std::source_location where) {
    T own = values[0];
    for (int i = 1; i < kItems; ++i) own = own + values[i];
    T before;
    ExclusiveSum(own, before, all, where);
    return before;
  }

  TempStorage& storage_;
};

}  // namespace cub
