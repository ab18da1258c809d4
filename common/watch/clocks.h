// The vector clocks by which `make race` decides whether one access comes before another.
//
// A thread counts its own time in ticks. Other threads learn of everything it did in a tick at
// once, through a barrier, a fence with an atomic, or in another way; then its next tick starts. A
// vector clock holds, for each other thread, the last tick of which everything is known. Usually
// the same is known of all threads of a block. So a clock stores one tick for the block, and
// further ones only for warps and threads of which more is known. Threads that have met share one
// copy of the clock.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace lnc::race {

using Tick = std::uint32_t;
using Serial = std::uint32_t;  ///< numbers the blocks of all launches of a GPU
inline constexpr unsigned kWarpSize = 32;
inline constexpr unsigned kGpus = 8;
inline constexpr unsigned kGpuShift = 29;  ///< of the bits of a Serial that name the GPU

inline unsigned gpu_of(Serial block) { return block >> kGpuShift; }

/// A map in a sorted vector, for few keys and frequent copies.
template <typename Key, typename Value>
class FlatMap {
 public:
  FlatMap() = default;
  FlatMap(Key key, Value value) : entries_{{key, std::move(value)}} {}
  const Value* find(Key key) const {
    const auto at = place(key);
    return at != entries_.end() && at->first == key ? &at->second : nullptr;
  }
  Value& operator[](Key key) {
    const auto at = entries_.begin() + (place(key) - entries_.begin());
    if (at != entries_.end() && at->first == key) return at->second;
    return entries_.insert(at, {key, Value{}})->second;
  }
  template <typename Condition>
  void erase_if(Condition condition) {
    std::erase_if(entries_, condition);
  }
  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }
  bool empty() const { return entries_.empty(); }

 private:
  auto place(Key key) const {
    return std::lower_bound(entries_.begin(), entries_.end(), key,
                            [](const auto& entry, Key wanted) { return entry.first < wanted; });
  }
  std::vector<std::pair<Key, Value>> entries_;
};

/// What is known of the threads of one block. 0 means nothing: ticks start at 1.
class BlockClock {
 public:
  Tick of(unsigned thread) const {
    const Tick* const own = threads_.empty() ? nullptr : threads_.find(thread);
    return std::max(of_warp(thread / kWarpSize), own == nullptr ? 0 : *own);
  }
  /// Whether the tick of each of these lanes of a warp is known.
  bool covers(unsigned warp, std::uint32_t lanes, Tick tick) const {
    if (of_warp(warp) >= tick) return true;
    if (threads_.empty()) return lanes == 0;
    for (unsigned lane = 0; lane < kWarpSize; ++lane)
      if ((lanes >> lane & 1) != 0 && of(warp * kWarpSize + lane) < tick) return false;
    return true;
  }

  /// For all threads, which have met: `tick` is at least what was known of any of them.
  void learn_all(Tick tick) { *this = BlockClock(tick); }
  void learn_warp(unsigned warp, Tick tick) {
    if (of_warp(warp) >= tick) return;
    if (warps_.size() <= warp) warps_.resize(warp + 1);
    warps_[warp] = tick;
    forget_the_lesser();
  }
  void learn_thread(unsigned thread, Tick tick) {
    if (of(thread) < tick) threads_[thread] = tick;
  }
  void join(const BlockClock& other) {
    all_ = std::max(all_, other.all_);
    warps_.resize(std::max(warps_.size(), other.warps_.size()));
    for (std::size_t warp = 0; warp < other.warps_.size(); ++warp)
      warps_[warp] = std::max(warps_[warp], other.warps_[warp]);
    for (const auto& [thread, tick] : other.threads_) learn_thread(thread, tick);
    forget_the_lesser();
  }

  /// Replaces the ticks of single threads by those of warps or the block where these suffice.
  void fold(unsigned threads) {
    if (threads_.empty()) return;
    Tick all = ~Tick{0};
    for (unsigned first = 0; first < threads; first += kWarpSize) {
      Tick least = ~Tick{0};
      for (unsigned thread = first; thread < std::min(first + kWarpSize, threads); ++thread)
        least = std::min(least, of(thread));
      learn_warp(first / kWarpSize, least);
      all = std::min(all, least);
    }
    all_ = std::max(all_, all);
    forget_the_lesser();
  }

  BlockClock() = default;

 private:
  explicit BlockClock(Tick all) : all_(all) {}
  Tick of_warp(unsigned warp) const {
    return warp < warps_.size() ? std::max(all_, warps_[warp]) : all_;
  }
  void forget_the_lesser() {
    const auto at_most_all = [&](Tick tick) { return tick <= all_; };
    if (std::all_of(warps_.begin(), warps_.end(), at_most_all)) warps_.clear();
    threads_.erase_if(
        [&](const auto& entry) { return entry.second <= of_warp(entry.first / kWarpSize); });
  }

  Tick all_ = 0;
  std::vector<Tick> warps_;
  FlatMap<unsigned, Tick> threads_;
};

using BlockClocks = FlatMap<Serial, std::shared_ptr<const BlockClock>>;

inline Tick known_of(const BlockClocks& clocks, Serial block, unsigned thread) {
  const auto* const clock = clocks.find(block);
  return clock == nullptr ? 0 : (*clock)->of(thread);
}

inline void join(BlockClocks& into, const BlockClocks& from) {
  for (const auto& [block, clock] : from) {
    auto& mine = into[block];
    if (mine == clock) continue;
    if (mine == nullptr) {
      mine = clock;
      continue;
    }
    auto joined = std::make_shared<BlockClock>(*mine);
    joined->join(*clock);
    mine = joined;
  }
}

/// For each GPU, before which block everything is known of the blocks.
class Floors {
 public:
  bool cover(Serial block) const { return block < of_gpu_[gpu_of(block)]; }
  void raise(Serial to) {
    Serial& mine = of_gpu_[gpu_of(to)];
    mine = std::max(mine, to);
  }
  void join(const Floors& other) {
    for (const Serial floor : other.of_gpu_) raise(floor);
  }

 private:
  std::array<Serial, kGpus> of_gpu_{};
};

/// What a thread, a barrier or a message knows of all threads.
struct Clocks {
  using Phases = FlatMap<std::uint32_t, Tick>;

  Floors floors;
  BlockClocks blocks;  ///< what their threads have done
  /// Beyond that: what they have done in their own block's shared memory.
  BlockClocks in_shared;
  /// Which copies have arrived: for each Barrier, how many of its phases are known to be complete.
  Phases barriers;

  /// What messages from other blocks imply by convention only: that the data which their senders
  /// had read in their own shared memory, or had received there, may be overwritten.
  struct {
    BlockClocks in_shared;
    Phases barriers;
  } by_convention;

  /// What words from other threads imply (store_word): that their senders have loaded the words
  /// that they waited for before. Relaxed words order nothing else.
  struct {
    Floors floors;
    BlockClocks blocks;
  } by_words;

  Tick of_barrier(std::uint32_t barrier) const { return phases_of(barriers, barrier); }
  bool is_past_by_convention(std::uint32_t barrier, Tick phases) const {
    return phases_of(by_convention.barriers, barrier) >= phases;
  }
  void learn_barrier(std::uint32_t barrier, Tick phases) { learn(barriers, barrier, phases); }
  void join(const Clocks& other) {
    floors.join(other.floors);
    race::join(blocks, other.blocks);
    race::join(in_shared, other.in_shared);
    learn_barriers(other);
    learn_by_convention(other);
    by_words.floors.join(other.by_words.floors);
    race::join(by_words.blocks, other.by_words.blocks);
  }
  void learn_barriers(const Clocks& other) { learn_all(barriers, other.barriers); }
  void learn_by_convention(const Clocks& other) {
    race::join(by_convention.in_shared, other.by_convention.in_shared);
    learn_all(by_convention.barriers, other.by_convention.barriers);
  }

  /// What the sender of a word passes on of what it knows.
  void learn_by_words(const Clocks& other) {
    for (const auto* floors : {&other.floors, &other.by_words.floors})
      by_words.floors.join(*floors);
    for (const auto* blocks : {&other.blocks, &other.by_words.blocks})
      race::join(by_words.blocks, *blocks);
  }

  /// At the end of a kernel: what its shared memory held, and what the floors say of its blocks.
  void forget_ended() {
    in_shared = {};
    barriers = {};
    by_convention = {};
    blocks.erase_if([&](const auto& entry) { return floors.cover(entry.first); });
    by_words.blocks.erase_if([&](const auto& entry) {
      return floors.cover(entry.first) || by_words.floors.cover(entry.first);
    });
  }

  static Tick phases_of(const Phases& phases, std::uint32_t barrier) {
    const Tick* const known = phases.find(barrier);
    return known == nullptr ? 0 : *known;
  }
  static void learn(Phases& mine, std::uint32_t barrier, Tick phases) {
    Tick& known = mine[barrier];
    known = std::max(known, phases);
  }
  static void learn_all(Phases& mine, const Phases& others) {
    for (const auto& [barrier, phases] : others) learn(mine, barrier, phases);
  }
};

using Knowledge = std::shared_ptr<const Clocks>;

/// Joins two clocks. Threads with the same knowledge share one object, so the joiner caches its
/// last few answers for the next thread that needs the same join.
class Joiner {
 public:
  Knowledge operator()(const Knowledge& a, const Knowledge& b) {
    if (a == b || b == nullptr) return a;
    if (a == nullptr) return b;
    for (const Answer& answer : answers_)
      if (answer.a == a && answer.b == b) return answer.joined;
    auto joined = std::make_shared<Clocks>(*a);
    joined->join(*b);
    answers_[next_++ % kAnswers] = {a, b, joined};
    return joined;
  }

 private:
  static constexpr std::size_t kAnswers = 8;
  struct Answer {
    Knowledge a, b, joined;
  };
  Answer answers_[kAnswers];
  std::size_t next_ = 0;
};

/// Collects the knowledge of threads that arrive at a barrier, for the threads that pass it.
class Gathering {
 public:
  /// Adds what a thread knows, and what it has done up to this tick.
  void bring(const Knowledge& knows, Serial block, unsigned thread, Tick tick) {
    if (knows != last_) sum_.join(*knows);
    last_ = knows;
    own_[block].learn_thread(thread, tick);
  }
  /// Adds what a thread knows of its own block's shared memory, and what it has done in it.
  void bring_in_shared(const Clocks& knows, Serial block, unsigned thread, Tick tick) {
    if (const auto* const known = knows.blocks.find(block)) join(sum_.in_shared, {block, *known});
    sum_.learn_barriers(knows);
    own_in_shared_[block].learn_thread(thread, tick);
  }
  /// Adds what, by convention, a message's sender knew of its own block's shared memory.
  void bring_by_convention(const Clocks& knows, Serial block, unsigned thread, Tick tick) {
    BlockClocks& in_shared = sum_.by_convention.in_shared;
    if (const auto* const known = knows.blocks.find(block)) join(in_shared, {block, *known});
    sum_.learn_by_convention(knows);
    Clocks::learn_all(sum_.by_convention.barriers, knows.barriers);
    own_by_convention_[block].learn_thread(thread, tick);
  }
  void bring(const Clocks& clocks) { sum_.join(clocks); }

  /// @param threads of a block
  Clocks take(unsigned threads) {
    add(sum_.blocks, own_, threads);
    add(sum_.in_shared, own_in_shared_, threads);
    add(sum_.by_convention.in_shared, own_by_convention_, threads);
    return std::exchange(*this, Gathering()).sum_;
  }

 private:
  static void add(BlockClocks& to, const FlatMap<Serial, BlockClock>& own, unsigned threads) {
    for (const auto& [block, clock] : own) {
      auto folded = std::make_shared<BlockClock>(clock);
      folded->fold(threads);
      join(to, {block, folded});
    }
  }

  Clocks sum_;
  FlatMap<Serial, BlockClock> own_, own_in_shared_, own_by_convention_;
  Knowledge last_;
};

}  // namespace lnc::race
