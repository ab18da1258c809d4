// The parts of `make race`: what it knows of launches, copies and memory. races.cpp has the
// accesses, block_races.cpp what orders them, findings.cpp the words.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/watch/clocks.h"
#include "common/watch/handshakes.h"
#include "common/watch/observer.h"
#include "common/watch/shadow.h"

namespace lnc::race {

using simt::Copy;
using simt::Place;
using simt::volume;
using Json = nlohmann::ordered_json;

inline bool is_by_engine(Copy::Kind kind) {
  return kind == Copy::Kind::BulkLoad || kind == Copy::Kind::BulkStore;
}

/// By what others know that a copy is over.
struct Over {
  enum class By { Nothing, Barrier, Thread };
  By by = By::Nothing;
  std::uint32_t barrier = 0;
  Tick tick = 0;  ///< a number of the Barrier's phases, or a tick of the copy's thread
};

/// A copy, which is a thread of its own.
struct CopyState {
  Copy::Kind kind;
  Serial block;
  unsigned thread;  ///< that has begun it
  const void* barrier;
  Tick tick;
  Knowledge knows;  ///< what that thread knew then, until the copy arrives
  Over read{}, written{};
};

/// Who makes an access: a thread, or a copy that it begins.
struct Actor {
  const Knowledge& knows;
  Serial block;
  unsigned thread;
  Tick now;
  const CopyState* copy = nullptr;

  Moment moment() const { return {block, thread, now, knows}; }
  bool is_by_engine() const { return copy != nullptr && race::is_by_engine(copy->kind); }
};

/// What comes between an earlier access and a later one.
enum class Order {
  Ordered,
  ByConvention,  ///< a message came between, which does not say what its sender has read
  Unordered,
  Unfenced  ///< ordered for threads, and a fence is missing that tells the copy engine
};

/// An access of a thread or a copy, as findings name it.
struct Party {
  Place place;
  Serial block;
  unsigned thread;
  Way way;
  std::optional<Copy::Kind> copy;
};

/// How far two threads are from each other.
enum class Apart { OneThread, Lanes, Warps, Blocks };

inline Apart apart_of(Serial block, unsigned thread, const Actor& actor) {
  if (block != actor.block) return Apart::Blocks;
  if (thread == actor.thread) return Apart::OneThread;
  return thread / kWarpSize == actor.thread / kWarpSize ? Apart::Lanes : Apart::Warps;
}

/// All pairs of accesses at two places that race, and one of them.
struct Finding {
  Apart apart{};
  Party first{}, second{};
  Json where;
  Missing missing;
  bool by_convention = true;  ///< all of them are ordered by convention
  std::uint64_t count = 0;
};

/// What atomics on one place pass on.
struct Location {
  Knowledge to_all;
  FlatMap<Serial, Knowledge> to_block;
};
using Locations = std::unordered_map<const void*, Location>;

/// The shared memory of a block, with what is known of its bytes.
struct WatchedMemory {
  Serial serial;         ///< of the block
  std::uint64_t number;  ///< of the block in its grid
  SharedMemory memory;
  Shadow shadow{};
  Locations locations{};

  WatchedMemory(const simt::BlockInfo& info, Serial of_block)
      : serial(of_block), number(info.number), memory(info) {}

  bool holds(const std::byte* address) const { return memory.find(address).has_value(); }
  /// A place that it holds, as findings name it.
  Json where(const std::byte* address) const {
    const SharedMemory::Place place = memory.find(address).value();
    return {{"shared", place.part}, {"offset", place.byte}, {"block", number}};
  }
};

/// The blocks of a cluster, and what they bring to its barrier.
struct ClusterState {
  std::vector<WatchedMemory*> blocks;  ///< those that run
  std::map<unsigned, Gathering> gathered;
  std::map<unsigned, Knowledge> released;  ///< by phase
};

class BlockRaces;

/// All that is seen.
class Races final : public Observer {
 public:
  explicit Races(const Names& names) : names_(names) {}

  bool one_at_a_time() const override { return true; }
  void begins(const simt::Launch& launch) override;
  std::unique_ptr<simt::Witness> begins_block(const simt::BlockInfo& info) override;
  Json seen() const override;

 private:
  friend class BlockRaces;

  struct LaunchState {
    Serial first;  // of its blocks
    std::string kernel;
  };

  CopyState& copy(std::uint64_t number) { return copies_.at(number - first_copy_); }
  CopyState& add_copy(std::uint64_t number, CopyState state) {
    if (copies_.empty()) first_copy_ = number;
    copies_.resize(number - first_copy_ + 1);
    ++copies_seen_;
    return copies_.back() = std::move(state);
  }

  struct Memory {
    Shadow& shadow;
    Locations& locations;
    const WatchedMemory* shared;  // null: device memory
  };
  void touch(const Memory& memory, const Actor& actor, Way way, Place place,
             const std::byte* address, std::size_t bytes);
  void touch_word(const Memory& memory, const Actor& actor, const Record& mine,
                  const std::byte* word);
  Order order_of(const Record& earlier, const Actor& actor, Way way, const Memory& memory) const;
  bool is_fenced(Serial block, unsigned warp, std::uint32_t lanes, Tick tick,
                 const Actor& actor) const;
  void add_proxy_fence(Serial block, unsigned thread, Tick tick) {
    proxy_fences_[{block, thread}].push_back(tick);
  }

  // In findings.cpp.
  void report(const Record& earlier, const Actor& actor, const Record& mine, Order order,
              const Memory& memory, const std::byte* word);
  Missing missing(const Record& earlier, const Actor& actor, const Record& mine, Order order,
                  const Memory& memory) const;
  Missing missing_of_copy(const Record& earlier, const Actor& actor, Way way) const;
  unsigned unknown_thread(const Record& record, const Actor& actor) const;
  const LaunchState& launch_of(Serial block) const {
    const auto after = std::upper_bound(
        launches_.begin(), launches_.end(), block,
        [](Serial serial, const LaunchState& launch) { return serial < launch.first; });
    return *(after - 1);
  }
  std::uint32_t number_of_block(Serial block) const { return block - launch_of(block).first; }
  std::string name_of_thread(Serial block, unsigned thread) const {
    return "thread " + std::to_string(thread) + " of block " +
           std::to_string(number_of_block(block));
  }
  Json party(const Party& party) const;

  static constexpr std::size_t kMostRecords = 512;  // of a word

  const Names& names_;
  std::vector<LaunchState> launches_;
  Serial next_block_ = 1;
  Knowledge at_start_;    // what a thread of the current launch knows as it begins
  Knowledge after_wait_;  // what it learns by grid_dependency_wait
  std::uint32_t next_barrier_ = 0;

  Shadow device_;
  Locations locations_;
  std::vector<CopyState> copies_;
  std::uint64_t first_copy_ = 0;
  std::map<std::pair<Serial, unsigned>, std::vector<Tick>> proxy_fences_;
  Handshakes handshakes_;
  Joiner join_;

  std::mutex mutex_;  // the blocks of a cluster begin and end on cores of their own
  std::map<std::uint64_t, std::weak_ptr<ClusterState>> clusters_;

  std::map<std::pair<Place, Place>, std::size_t> known_;  // the number of a pair's finding
  std::vector<Finding> findings_;
  std::uint64_t accesses_ = 0;
  std::uint64_t shared_accesses_ = 0;
  std::uint64_t copies_seen_ = 0;
  std::uint64_t forgotten_ = 0;
};

/// Who watches a block of the current launch.
std::unique_ptr<simt::Witness> watch_block(Races& all, const simt::BlockInfo& info, Serial serial,
                                           std::shared_ptr<ClusterState> cluster);

}  // namespace lnc::race
