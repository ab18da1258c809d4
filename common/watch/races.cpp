// `make race` finds accesses to the same byte that nothing orders.
//
// Two accesses race if different threads make them, at least one is a store, they are not both
// atomic, and neither comes before the other by program order and synchronisation. Vector clocks
// (clocks.h) decide this for each access and all earlier ones that still matter (shadow.h). So one
// run in one order of threads finds what any order could have shown, as long as the threads take
// the same branches.
#include "common/watch/races.h"

#include <algorithm>

#include "common/simt/gpus.h"
#include "common/simt/words.h"

namespace lnc {
namespace race {
namespace {

/// Whether accesses of these kinds to one byte must be ordered.
bool conflict(Way a, Serial block_of_a, Way b, Serial block_of_b) {
  if (is_load(a) && is_load(b)) return false;
  if (!is_strong(a) || !is_strong(b) || is_word(a) != is_word(b)) return true;
  return std::min(scope_of(a), scope_of(b)) < scope_of_both(block_of_a, block_of_b);
}

/// Whether a later access makes the record of an earlier one superfluous: any access that races
/// with the earlier one and does not come before the later one also races with the later one.
bool stands_for(const Record& later, const Record& earlier) {
  if (later.way == Way::Store) return true;
  const bool is_like =
      later.way == earlier.way || (later.way == Way::WordStore && earlier.way == Way::WordLoad);
  return is_like && (!is_strong(later.way) ||
                     scope_of(later.way) >= scope_of_both(later.block, earlier.block));
}

}  // namespace

// -------------------------------------------------------------------------------------- launches

void Races::begins(const simt::Launch& launch) {
  Stream& stream = streams_[simt::current_gpu()];
  auto over = std::make_shared<Clocks>();  // earlier launches on this GPU are
  if (stream.knows != nullptr) *over = *stream.knows;
  over->floors.raise(stream.next_block);
  over->forget_ended();
  stream.after_wait = over;
  if (!launch.starts_early || stream.at_start == nullptr) {
    if (!several_gpus_) forget();
    stream.at_start = over;
  }
  if (!several_gpus_) clusters_.clear();
  stream.launches.push_back({stream.next_block, simt::kernel_name(launch)});
  stream.next_block += static_cast<Serial>(volume(launch.grid));
}

void Races::gpus_meet() {
  several_gpus_ = !several_gpus_;
  had_several_gpus_ = true;
  forget();
  for (Stream& stream : streams_) stream.knows = stream.at_start = nullptr;
}

void Races::forget() {
  device_.clear();
  locations_.clear();
  words_.clear();
  copies_.clear();
  proxy_fences_.clear();
  handshakes_.clear();
}

std::unique_ptr<simt::Witness> Races::begins_block(const simt::BlockInfo& info) {
  const std::lock_guard lock(mutex_);
  const auto serial = static_cast<Serial>(streams_[info.gpu].launches.back().first + info.number);
  auto& known = clusters_[serial - info.rank];
  auto cluster = known.lock();
  if (cluster == nullptr) {
    cluster = std::make_shared<ClusterState>();
    known = cluster;
  }
  return watch_block(*this, info, serial, cluster);
}

// -------------------------------------------------------------------------------------- accesses

/// Of all bytes of a word of the shadow.
Record Races::record_of(const Actor& actor, Way way, Place place) const {
  constexpr std::uint8_t kAllBytes = (1u << Shadow::kWord) - 1;
  Record mine{place, actor.block, actor.now, 0, 0, kAllBytes, way};
  if (actor.copy != nullptr) {
    mine.tick = static_cast<Tick>(actor.copy - copies_.data());
    mine.warp = Record::kCopy;
  } else {
    mine.warp = static_cast<std::uint16_t>(actor.thread / kWarpSize);
    mine.lanes = 1u << actor.thread % kWarpSize;
  }
  return mine;
}

void Races::touch(const Memory& memory, const Actor& actor, Way way, Place place,
                  const std::byte* address, std::size_t bytes) {
  Record mine = record_of(actor, way, place);
  const std::byte* const end = address + bytes;
  while (address < end) {
    const auto in_word = reinterpret_cast<std::uintptr_t>(address) % Shadow::kWord;
    const std::byte* const word = address - in_word;
    const auto until = std::min<std::uintptr_t>(Shadow::kWord, end - word);
    mine.bytes = static_cast<std::uint8_t>((1u << until) - (1u << in_word));
    touch_word(memory, actor, mine, word);
    address = word + until;
  }
}

void Races::touch_word(const Memory& memory, const Actor& actor, const Record& mine,
                       const std::byte* word) {
  Records& records = memory.shadow.at(reinterpret_cast<std::uintptr_t>(word));
  bool is_noted = false;
  for (std::size_t i = 0; i < records.size();) {
    Record& earlier = records[i];
    const bool is_like = earlier.is_like(mine);
    const bool may_race = conflict(mine.way, mine.block, earlier.way, earlier.block);
    const bool may_end = stands_for(mine, earlier) && earlier.block == mine.block;
    if ((earlier.bytes & mine.bytes) != 0 && (may_race || may_end)) {
      Order order = order_of(earlier, actor, mine.way, memory);
      if (order == Order::Unordered && was_observed(records, i, actor, mine))
        order = Order::Ordered;
      if (may_race && order != Order::Ordered) report(earlier, actor, mine, order, memory, word);
      const bool is_over = order == Order::Ordered || order == Order::ByConvention;
      if (is_over && stands_for(mine, earlier) && !is_like) {
        earlier.bytes &= ~mine.bytes;
        if (earlier.bytes == 0) {
          records.erase(records.begin() + static_cast<std::ptrdiff_t>(i));  // they stay in order
          continue;
        }
      }
    }
    if (is_like) {
      earlier.lanes |= mine.lanes;
      is_noted = true;
    }
    ++i;
  }
  if (is_noted) return;
  if (records.size() == kMostRecords) {
    records.erase(records.begin());
    ++forgotten_;
  }
  records.push_back(mine);
}

Order Races::order_of(const Record& earlier, const Actor& actor, Way way,
                      const Memory& memory) const {
  const Clocks& knows = *actor.knows;
  if (knows.floors.cover(earlier.block)) return Order::Ordered;
  unsigned warp = earlier.warp;
  std::uint32_t lanes = earlier.lanes;
  Tick tick = earlier.tick;
  if (earlier.is_copy()) {
    const CopyState& copy = copies_[earlier.tick];
    const Over& over = earlier.way == Way::Load ? copy.read : copy.written;
    if (over.by == Over::By::Nothing) return Order::Unordered;
    if (over.by == Over::By::Barrier)
      return knows.of_barrier(over.barrier) >= over.tick            ? Order::Ordered
             : knows.is_past_by_convention(over.barrier, over.tick) ? Order::ByConvention
                                                                    : Order::Unordered;
    warp = copy.thread / kWarpSize;
    lanes = 1u << copy.thread % kWarpSize;
    tick = over.tick;
  }
  std::uint32_t others = lanes;
  if (earlier.block == actor.block && warp == actor.thread / kWarpSize)
    others &= ~(1u << actor.thread % kWarpSize);
  const auto covers = [&](const BlockClocks& clocks) {
    const auto* const clock = clocks.find(earlier.block);
    return clock != nullptr && (*clock)->covers(warp, others, tick);
  };
  const bool in_own_shared = memory.shared != nullptr && memory.shared->serial == earlier.block;
  const bool is_known =
      others == 0 || covers(knows.blocks) || (in_own_shared && covers(knows.in_shared));
  if (!is_known) {
    const bool was_read = earlier.way == Way::Load && in_own_shared;
    return was_read && covers(knows.by_convention.in_shared) ? Order::ByConvention
                                                             : Order::Unordered;
  }
  const bool by_another_proxy = actor.is_by_engine() && !earlier.is_copy();
  if (!by_another_proxy || (earlier.way == Way::Load && way == Way::Load)) return Order::Ordered;
  const bool is_seen =
      memory.shared != nullptr && is_fenced(earlier.block, warp, lanes, tick, actor);
  return is_seen ? Order::Ordered : Order::Unfenced;
}

/// Whether an atomic is followed by another of the same bytes, by a thread that then executed a
/// fence before the actor's access: the second atomic has observed the first, so what comes after
/// the two is ordered after both. A last block so resets the counter that made it the last.
bool Races::was_observed(const Records& records, std::size_t number, const Actor& actor,
                         const Record& mine) const {
  const Record& first = records[number];
  const bool is_wide = is_atomic(first.way) && first.way != Way::BlockAtomic;
  if (!is_wide || actor.copy != nullptr) return false;
  const unsigned bytes = first.bytes & mine.bytes;
  for (std::size_t i = number + 1; i < records.size(); ++i) {
    const Record& second = records[i];
    const auto scope = scope_of_both(first.block, second.block);
    if (!is_atomic(second.way) || std::min(scope_of(first.way), scope_of(second.way)) < scope ||
        (second.bytes & bytes) != bytes)
      continue;
    for (unsigned lane = 0; lane < kWarpSize; ++lane) {
      if ((second.lanes >> lane & 1) == 0) continue;
      const unsigned thread = second.warp * kWarpSize + lane;
      const Moment at{second.block, thread, second.tick, nullptr};
      if (handshakes_.is_fenced_after(at, actor.moment(), scope)) return true;
    }
  }
  return false;
}

/// Whether each of these threads has called fence_proxy_async since the tick, as the actor knows.
bool Races::is_fenced(Serial block, unsigned warp, std::uint32_t lanes, Tick tick,
                      const Actor& actor) const {
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    if ((lanes >> lane & 1) == 0) continue;
    const unsigned thread = warp * kWarpSize + lane;
    const auto fences = proxy_fences_.find({block, thread});
    if (fences == proxy_fences_.end()) return false;
    const auto fence = std::lower_bound(fences->second.begin(), fences->second.end(), tick);
    if (fence == fences->second.end()) return false;
    if (!actor.moment().is_after(block, thread, *fence)) return false;
  }
  return true;
}

}  // namespace race

std::unique_ptr<Observer> find_races(const Names& names) {
  return std::make_unique<race::Races>(names);
}

}  // namespace lnc
