// cub::WarpScan over the machine's shuffles.
#pragma once

#include <cub/operators.h>

namespace cub {
namespace simt_details {

// The reduction of the values of this lane and of the lower lanes of its segment.
template <typename T, typename Op>
T scan_segment(T value, Op op, int width, std::source_location where) {
  const int lane = simt::lane() % width;
  const unsigned mask = simt::segment_mask(width);
  for (int offset = 1; offset < width; offset *= 2) {
    const T below = simt::shuffle_whole(simt::Op::ShuffleUp, mask, value, offset, width, where);
    if (lane >= offset) value = op(below, value);
  }
  return value;
}

/// Sums of one value per thread by the scans of `Scan`.
template <typename Scan, typename T>
class SumsByScan {
 public:
  /// Sums up to this thread's value; `all` is the sum of all.
  void InclusiveSum(T value, T& sum, std::source_location where = std::source_location::current()) {
    scan().InclusiveScan(value, sum, cub::Sum(), where);
  }
  void InclusiveSum(T value, T& sum, T& all,
                    std::source_location where = std::source_location::current()) {
    scan().InclusiveScan(value, sum, cub::Sum(), all, where);
  }
  /// Sums of the values before this thread's; `all` is the sum of all.
  void ExclusiveSum(T value, T& sum, std::source_location where = std::source_location::current()) {
    scan().ExclusiveScan(value, sum, T{}, cub::Sum(), where);
  }
  void ExclusiveSum(T value, T& sum, T& all,
                    std::source_location where = std::source_location::current()) {
    scan().ExclusiveScan(value, sum, T{}, cub::Sum(), all, where);
  }

 private:
  Scan& scan() { return static_cast<Scan&>(*this); }
};

}  // namespace simt_details

/// Scans over the `kWidth` lanes of a warp. Each call needs all of them.
template <typename T, int kWidth = 32, int kLegacy = 0>
class WarpScan : public simt_details::SumsByScan<WarpScan<T, kWidth, kLegacy>, T> {
  static_assert(kWidth >= 1 && kWidth <= 32 && (kWidth & (kWidth - 1)) == 0,
                "cub::WarpScan takes a power of two up to 32 lanes here.");

 public:
  struct TempStorage {};
  explicit WarpScan(TempStorage&) {}

  /// Scans by `op`. An exclusive scan starts from `initial`, which `all` leaves out.
  template <typename Op>
  void InclusiveScan(T value, T& scanned, Op op,
                     std::source_location where = std::source_location::current()) {
    scanned = simt_details::scan_segment(value, op, kWidth, where);
  }
  template <typename Op>
  void InclusiveScan(T value, T& scanned, Op op, T& all,
                     std::source_location where = std::source_location::current()) {
    InclusiveScan(value, scanned, op, where);
    all = Broadcast(scanned, kWidth - 1, where);
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
    const T inclusive = simt_details::scan_segment(value, op, kWidth, where);
    all = Broadcast(inclusive, kWidth - 1, where);
    const T below = simt::shuffle_whole(simt::Op::ShuffleUp, simt::segment_mask(kWidth), inclusive,
                                        1, kWidth, where);
    scanned = simt::lane() % kWidth == 0 ? initial : op(initial, below);
  }
  /// The value of lane `source`.
  T Broadcast(T value, unsigned source,
              std::source_location where = std::source_location::current()) {
    return simt::shuffle_whole(simt::Op::Shuffle, simt::segment_mask(kWidth), value,
                               static_cast<int>(source), kWidth, where);
  }
};

}  // namespace cub
