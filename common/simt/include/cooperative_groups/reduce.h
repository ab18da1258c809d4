// cooperative_groups::reduce over the SIMT machine: of a tile or of coalesced threads.
#pragma once

#include <cooperative_groups.h>

namespace cooperative_groups {
namespace simt_details {

// Whether a GPU has an instruction for this reduction, and which.
template <typename T, typename Op>
constexpr bool kHasInstruction = simt::Word<T>&&
    simt::OneOf<Op, plus<T>, less<T>, greater<T>, bit_and<T>, bit_or<T>, bit_xor<T>>;

template <typename Op, typename T>
T instruction(unsigned mask, T value, std::source_location where) {
  if constexpr (std::same_as<Op, plus<T>>) return __reduce_add_sync(mask, value, where);
  if constexpr (std::same_as<Op, less<T>>) return __reduce_min_sync(mask, value, where);
  if constexpr (std::same_as<Op, greater<T>>) return __reduce_max_sync(mask, value, where);
  const auto bits = static_cast<unsigned>(value);
  if constexpr (std::same_as<Op, bit_and<T>>) return T(__reduce_and_sync(mask, bits, where));
  if constexpr (std::same_as<Op, bit_or<T>>) return T(__reduce_or_sync(mask, bits, where));
  if constexpr (std::same_as<Op, bit_xor<T>>) return T(__reduce_xor_sync(mask, bits, where));
}

}  // namespace simt_details

/// The reduction of the tile's values by `op`, in every thread of the tile.
template <unsigned kSize, typename Parent, typename T, typename Op>
T reduce(const thread_block_tile<kSize, Parent>& tile, T value, Op op,
         std::source_location where = std::source_location::current()) {
  if constexpr (kSize >= 16 && simt_details::kHasInstruction<T, Op>) {
    return simt_details::instruction<Op>(tile.lanes(), value, where);
  } else {
    for (unsigned offset = kSize / 2; offset > 0; offset /= 2)
      value = op(value, tile.shfl_xor(value, offset, where));
    return value;
  }
}

/// The reduction of the group's values by `op`, in every thread of the group.
template <typename T, typename Op>
T reduce(const coalesced_group& group, T value, Op op,
         std::source_location where = std::source_location::current()) {
  if constexpr (simt_details::kHasInstruction<T, Op>) {
    return simt_details::instruction<Op>(group.lanes(), value, where);
  } else {
    T all = group.shfl(value, 0, where);
    for (unsigned rank = 1; rank < group.size(); ++rank)
      all = op(all, group.shfl(value, rank, where));
    return all;
  }
}

template <typename T, typename Op>
T reduce(const thread_block&, T value, Op) {
  static_assert(simt::kRefused<T>,
                "reduce takes a tile or coalesced threads; for a block, use cub::BlockReduce.");
  return value;
}
SIMT_REFUSED_FUNCTION(reduce_update_async,
                      "reduce_update_async is not here: let one thread update atomically.")
SIMT_REFUSED_FUNCTION(reduce_store_async,
                      "reduce_store_async is not here: let one thread store the result of reduce.")

}  // namespace cooperative_groups
