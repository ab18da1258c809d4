// Which accesses of a warp's lanes are one request.
//
// The machine runs the lanes of a warp one after another; a GPU runs them together, and what they
// do at the same place at the same time is one memory request. So the steps of each lane are
// recorded separately, and merged when the lanes meet (at a warp operation, a barrier, their end).
//
// Merging follows the order in which a GPU would run them: the lanes whose next step is first in
// the code's order (code_order.h) take it together, while the others wait. A step is an access, or
// the start of a basic block, which tells which iteration of a loop a lane is in.
//
// Hardware may differ: a compiler may unroll a loop and so separate the lanes that end it early,
// predicate both sides of a branch, or keep a warp diverged for longer than necessary.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/simt/watch.h"
#include "common/watch/code_order.h"

namespace lnc {

inline constexpr unsigned kLanes = 32;
inline constexpr unsigned kAllLanes = ~0u;

/// Calls `body` for each lane of a mask, in ascending order.
template <typename Body>
void for_lanes(unsigned mask, Body body) {
  for (unsigned rest = mask; rest != 0; rest &= rest - 1)
    body(static_cast<unsigned>(std::countr_zero(rest)));
}
inline unsigned first_lane(unsigned mask) { return static_cast<unsigned>(std::countr_zero(mask)); }

/// The number of a block's warps, and the mask of the lanes that one of them has.
inline unsigned warps_of(const simt::Launch& launch) {
  return static_cast<unsigned>((simt::volume(launch.block) + kLanes - 1) / kLanes);
}
inline unsigned lanes_of(const simt::Launch& launch, unsigned warp) {
  const std::uint64_t lanes = simt::volume(launch.block) - std::uint64_t{warp} * kLanes;
  return lanes >= kLanes ? kAllLanes : (1u << lanes) - 1;
}

/// A step of a lane: an access, or the start of a basic block.
struct Step {
  simt::Place place;
  const std::byte* address;  ///< null: a basic block begins
  std::uint32_t bytes;
  simt::Kind kind;
  simt::Space space;
  bool past_l1 = false;           ///< a load that bypasses L1
  const std::byte* to = nullptr;  ///< destination of an asynchronous copy to shared memory

  static Step block(simt::Place place) {
    return {place, nullptr, 0, simt::Kind::Load, simt::Space::Device};
  }
  static Step access(const simt::Access& a) {
    return {a.place, a.address, a.bytes, a.kind, a.space, a.past_l1};
  }
};

/// The accesses of a warp's lanes at one place: lane `i` of the warp accesses `at[i]`, null if it
/// does not take part. All are of one kind and in one space.
struct Request {
  simt::Place place;
  simt::Kind kind;
  simt::Space space;
  std::uint32_t bytes;  ///< per lane
  bool past_l1;
  std::array<const std::byte*, kLanes> at;
  std::array<const std::byte*, kLanes> to;  ///< of a copy to shared memory; else null

  /// The mask of the lanes that take part.
  unsigned lanes() const {
    unsigned mask = 0;
    for (unsigned lane = 0; lane < kLanes; ++lane)
      if (at[lane] != nullptr) mask |= 1u << lane;
    return mask;
  }
  bool copies() const {
    return std::any_of(to.begin(), to.end(), [](const std::byte* p) { return p != nullptr; });
  }
};

/// The steps of a warp's lanes since they last met.
class WarpPaths {
  struct Noted {
    CodeOrder::Node node;
    Step step;
  };

 public:
  static constexpr std::size_t kStepBytes = sizeof(Noted);  ///< of memory, until lanes meet

  /// @param order of the kernel's code, which learns from these lanes and must outlive this object
  explicit WarpPaths(CodeOrder& order) : order_(&order) { last_.fill(CodeOrder::kStart); }

  void add(unsigned lane, const Step& step) {
    const CodeOrder::Node node = order_->node(step.place);
    order_->goes(last_[lane], node);
    last_[lane] = node;
    steps_[lane].push_back({node, step});
  }

  /// Memory used by the steps recorded since the last meeting.
  std::size_t noted_bytes() const {
    std::size_t sum = 0;
    for (const auto& steps : steps_) sum += steps.size() * kStepBytes;
    return sum;
  }

  /// The lanes of the mask have met: passes their requests to `take`, one after another.
  template <typename Take>
  void meet(unsigned lanes, Take take) {
    order_->settle();
    Next next{};
    unsigned left = 0;  // lanes with steps left
    for_lanes(lanes, [&](unsigned lane) {
      if (!steps_[lane].empty()) left |= 1u << lane;
    });
    while (left != 0) {
      const unsigned together = first_in_code(left, next);
      const unsigned any = first_lane(together);
      const Step& step = steps_[any][next[any]].step;
      if (step.address != nullptr) take(request(step, together, next));
      for_lanes(together, [&](unsigned lane) {
        if (++next[lane] == steps_[lane].size()) left &= ~(1u << lane);
      });
    }
    for_lanes(lanes, [&](unsigned lane) { steps_[lane].clear(); });
  }

 private:
  using Next = std::array<std::size_t, kLanes>;

  // The lanes whose next step is first in the code's order.
  unsigned first_in_code(unsigned lanes, const Next& next) const {
    std::uint32_t first = 0;
    unsigned together = 0;
    for_lanes(lanes, [&](unsigned lane) {
      const std::uint32_t rank = order_->rank(steps_[lane][next[lane]].node);
      if (together == 0 || rank < first) {
        first = rank;
        together = 0;
      }
      if (rank == first) together |= 1u << lane;
    });
    return together;
  }

  Request request(const Step& step, unsigned lanes, const Next& next) const {
    Request request{step.place, step.kind, step.space, step.bytes, step.past_l1, {}, {}};
    for_lanes(lanes, [&](unsigned lane) {
      request.at[lane] = steps_[lane][next[lane]].step.address;
      request.to[lane] = steps_[lane][next[lane]].step.to;
    });
    return request;
  }

  CodeOrder* order_;
  std::array<CodeOrder::Node, kLanes> last_;
  std::array<std::vector<Noted>, kLanes> steps_;
};

}  // namespace lnc
