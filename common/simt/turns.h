// Which warp, lane, copy or block comes next: a Schedule's choices where CUDA promises no order.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "common/simt/machine.h"
#include "common/simt/thread.h"

namespace simt {

/// The order of a block's warps and of their lanes, round by round. A random order also puts half
/// of the warps to sleep, for 8 rounds on average, so that the others get far ahead: a missing
/// barrier that matters only when one warp is fast would otherwise go unnoticed.
class Turns {
 public:
  Turns(const Schedule& schedule, std::uint64_t block, std::size_t threads)
      : order_(schedule.order),
        random_(schedule.seed + block),
        warps_((threads + kWarpSize - 1) / kWarpSize) {
    std::iota(warps_.begin(), warps_.end(), 0u);
    std::iota(lanes_.begin(), lanes_.end(), 0u);
    if (order_ != Order::Reverse) return;
    std::reverse(warps_.begin(), warps_.end());
    std::reverse(lanes_.begin(), lanes_.end());
  }

  /// @param some_ran whether any thread ran in the last round
  void begin_round(bool some_ran) {
    if (!is_random()) return;
    std::shuffle(warps_.begin(), warps_.end(), random_);
    std::shuffle(lanes_.begin(), lanes_.end(), random_);
    if (!some_ran || random_() % kRoundsOfSleep == 0) awake_ = random_();
  }
  std::span<const unsigned> warps() const { return warps_; }
  std::span<const unsigned> lanes() const { return lanes_; }
  bool sleeps(unsigned warp) const { return (awake_ >> warp & 1) == 0; }

  /// Whether to stop the running warp although its lanes could continue. Otherwise it runs until
  /// all of them wait, which keeps their stacks in the cache.
  bool interrupts() { return is_random() && random_() % kChanceToStop == 0; }

  /// Which of the copies in flight arrives now, if any. In a random order any may arrive at any
  /// time; otherwise one arrives when the block is idle: no thread can continue without it.
  std::optional<std::size_t> arrival(std::size_t copies, bool idle) {
    if (is_random()) {
      const std::size_t drawn = random_() % (idle ? copies : 2 * copies);
      if (drawn < copies) return drawn;
      return std::nullopt;
    }
    if (!idle) return std::nullopt;
    return order_ == Order::Reverse ? copies - 1 : 0;
  }

  /// Which of a cluster's `size` blocks runs first.
  unsigned first_block(unsigned size) const { return order_ == Order::Reverse ? size - 1 : 0; }
  /// How many ranks to advance to the block that runs next; none if this block keeps running.
  std::optional<unsigned> steps_to_next_block(unsigned size, bool idle) {
    if (is_random()) {
      if (random_() % kChanceToStop != 0) return std::nullopt;
      return random_() % size;
    }
    if (!idle) return std::nullopt;
    return order_ == Order::Reverse ? size - 1 : 1;
  }

  /// Whether the block lets those of all GPUs run, where they run one at a time.
  bool passes_turn(bool idle) { return idle || (is_random() && random_() % kChanceToStop == 0); }

 private:
  static constexpr unsigned kRoundsOfSleep = 8;
  static constexpr unsigned kChanceToStop = 4;

  bool is_random() const { return order_ == Order::Random; }

  Order order_;
  std::mt19937_64 random_;
  std::vector<unsigned> warps_;
  std::array<unsigned, kWarpSize> lanes_;
  std::uint64_t awake_ = ~std::uint64_t{0};  // one bit per warp
};

}  // namespace simt
