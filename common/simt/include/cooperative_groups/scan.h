// cooperative_groups' scans over the SIMT machine: of a tile or of coalesced threads.
#pragma once

#include <cooperative_groups.h>

namespace cooperative_groups {

/// The reduction by `op` of the values of this thread and of those of lower rank.
template <typename Group, typename T, typename Op = plus<T>>
T inclusive_scan(const Group& group, T value, Op op = {},
                 std::source_location where = std::source_location::current()) {
  static_assert(!std::same_as<Group, thread_block>,
                "A scan takes a tile or coalesced threads; for a block, use cub::BlockScan.");
  for (unsigned offset = 1; offset < group.size(); offset *= 2) {
    const T below = group.shfl_up(value, offset, where);
    if (group.thread_rank() >= offset) value = op(below, value);
  }
  return value;
}

/// The same without this thread's own value: T{} in rank 0.
template <typename Group, typename T, typename Op = plus<T>>
T exclusive_scan(const Group& group, T value, Op op = {},
                 std::source_location where = std::source_location::current()) {
  const T below = group.shfl_up(inclusive_scan(group, value, op, where), 1, where);
  return group.thread_rank() == 0 ? T{} : below;
}

SIMT_REFUSED_FUNCTION(inclusive_scan_update,
                      "inclusive_scan_update is not here: scan, and let the last rank update.")
SIMT_REFUSED_FUNCTION(exclusive_scan_update,
                      "exclusive_scan_update is not here: scan, and let the last rank update.")

}  // namespace cooperative_groups
