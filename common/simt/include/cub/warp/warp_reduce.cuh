// cub::WarpReduce over the machine's shuffles.
#pragma once

#include <cub/operators.h>

namespace cub {
namespace simt_details {

// In lane 0 of each segment of `width` lanes, the reduction of its first `valid` values.
template <typename T, typename Op>
T reduce_segment(T value, Op op, int width, int valid, std::source_location where) {
  const int lane = simt::lane() % width;
  const unsigned mask = simt::segment_mask(width);
  for (int offset = 1; offset < width; offset *= 2) {
    const int from = lane + offset < valid ? lane + offset : lane;
    const T above = simt::shuffle_whole(simt::Op::Shuffle, mask, value, from, width, where);
    if (from != lane) value = op(value, above);
  }
  return value;
}

}  // namespace simt_details

/// Reductions over the `kWidth` lanes of a warp. Lane 0 has the result, and the others 0xFF bytes,
/// which are NaN: CUB leaves theirs undefined.
template <typename T, int kWidth = 32, int = 0>
class WarpReduce {
  static_assert(kWidth >= 1 && kWidth <= 32 && (kWidth & (kWidth - 1)) == 0,
                "cub::WarpReduce takes a power of two up to 32 lanes here.");

 public:
  struct TempStorage {};
  explicit WarpReduce(TempStorage&) {}

  /// The sum of the values.
  T Sum(T value, std::source_location where = std::source_location::current()) {
    return Reduce(value, cub::Sum(), kWidth, where);
  }
  /// The sum of the values of the first `valid` lanes.
  T Sum(T value, int valid, std::source_location where = std::source_location::current()) {
    return Reduce(value, cub::Sum(), valid, where);
  }
  /// The greatest value.
  T Max(T value, std::source_location where = std::source_location::current()) {
    return Reduce(value, cub::Max(), kWidth, where);
  }
  /// The least value.
  T Min(T value, std::source_location where = std::source_location::current()) {
    return Reduce(value, cub::Min(), kWidth, where);
  }
  /// The reduction of the values by `op`.
  template <typename Op>
  T Reduce(T value, Op op, std::source_location where = std::source_location::current()) {
    return Reduce(value, op, kWidth, where);
  }
  /// The reduction by `op` of the values of the first `valid` lanes.
  template <typename Op>
  T Reduce(T value, Op op, int valid,
           std::source_location where = std::source_location::current()) {
    const T all = simt_details::reduce_segment(value, op, kWidth, valid, where);
    return simt::lane() % kWidth == 0 ? all : simt::undefined<T>();
  }
#define SIMT_NO_SEGMENTS "Segmented reductions are not here: use labeled_partition and reduce."
  SIMT_REFUSED(HeadSegmentedSum, SIMT_NO_SEGMENTS)
  SIMT_REFUSED(TailSegmentedSum, SIMT_NO_SEGMENTS)
  SIMT_REFUSED(HeadSegmentedReduce, SIMT_NO_SEGMENTS)
  SIMT_REFUSED(TailSegmentedReduce, SIMT_NO_SEGMENTS)
#undef SIMT_NO_SEGMENTS
};

}  // namespace cub
