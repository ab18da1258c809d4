// The state of `make race`: launches, copies and memory. races.cpp checks accesses, block_races.cpp
// tracks what orders them, and findings.cpp words the reports.
#pragma once

#include <algorithm>
#include <array>
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

/// How other threads learn that a copy is over.
struct Over {
  enum class By { Nothing, Barrier, Thread };
  By by = By::Nothing;
  std::uint32_t barrier = 0;
  Tick tick = 0;  ///< a number of the Barrier's phases, or a tick of the copy's thread
};

/// A copy, which counts as a thread of its own.
struct CopyState {
  Copy::Kind kind;
  Serial block;
  unsigned thread;  ///< that started it
  const void* barrier;
  Tick tick;
  Knowledge knows;  ///< what that thread knew at the time; dropped when the copy arrives
  Over read{}, written{};
};

/// What makes an access: a thread, or a copy that it starts.
struct Actor {
  const Knowledge& knows;
  Serial block;
  unsigned thread;
  Tick now;
  const CopyState* copy = nullptr;

  Moment moment() const { return {block, thread, now, knows}; }
  bool is_by_engine() const { return copy != nullptr && race::is_by_engine(copy->kind); }
};

/// How an earlier access and a later one are ordered.
enum class Order {
  Ordered,
  ByConvention,  ///< only by a message, which does not guarantee that its sender's reads are over
  Unordered,
  Unfenced,     ///< ordered for threads, but not for the copy engine: a proxy fence is missing
  Overwritten,  ///< a word, by the next store, and nothing says that it has been read
  TooEarly      ///< a thread goes on with the value that a word had before
};

/// An access of a thread or a copy, as findings name it.
struct Party {
  Place place;
  Serial block;
  unsigned thread;
  Way way;
  std::optional<Copy::Kind> copy;
};

/// How far apart two threads are: the same, lanes of one warp, warps of one block, blocks of one
/// GPU, or GPUs.
enum class Apart { OneThread, Lanes, Warps, Blocks, Gpus };

inline Apart apart_of(Serial block, unsigned thread, const Actor& actor) {
  if (gpu_of(block) != gpu_of(actor.block)) return Apart::Gpus;
  if (block != actor.block) return Apart::Blocks;
  if (thread == actor.thread) return Apart::OneThread;
  return thread / kWarpSize == actor.thread / kWarpSize ? Apart::Lanes : Apart::Warps;
}

/// All racing pairs of accesses at two places: their count, and one of them in full.
struct Finding {
  Apart apart{};
  Party first{}, second{};
  Json where;
  Missing missing;
  bool by_convention = true;  ///< all of them are ordered by convention
  std::uint64_t count = 0;
};

/// The knowledge that atomics on one address pass on.
struct Location {
  Knowledge to_all;
  FlatMap<unsigned, Knowledge> to_gpu;
  FlatMap<Serial, Knowledge> to_block;
};
using Locations = std::unordered_map<const void*, Location>;

/// The shared memory of a block, with the records of its bytes.
struct WatchedMemory {
  Serial serial;         ///< of the block
  std::uint64_t number;  ///< of the block in its grid
  SharedMemory memory;
  Shadow shadow{};
  Locations locations{};

  WatchedMemory(const simt::BlockInfo& info, Serial of_block)
      : serial(of_block), number(info.number), memory(info) {}

  bool holds(const std::byte* address) const { return memory.find(address).has_value(); }
  /// An address in it, as findings name it.
  Json where(const std::byte* address) const {
    const SharedMemory::Place place = memory.find(address).value();
    return {{"shared", place.part}, {"offset", place.byte}, {"block", number}};
  }
};

/// The blocks of a cluster, and the knowledge that they pass through its barrier.
struct ClusterState {
  std::vector<WatchedMemory*> blocks;  ///< those that are running
  std::map<unsigned, Gathering> gathered;
  std::map<unsigned, Knowledge> released;  ///< by phase
};

/// The word that store_word has left at an address.
struct Word {
  struct Read {
    Record record;
    unsigned thread;
    std::uint64_t version;

    bool is_of(Serial block, unsigned by) const { return record.block == block && thread == by; }
  };
  struct Sender {
    Record record;
    unsigned thread;
    Knowledge knows;

    Actor actor() const { return {knows, record.block, thread, record.tick}; }
  };
  std::uint64_t version = 0;  ///< stores so far
  std::optional<Sender> sender{};
  Knowledge by_words{};       ///< what the sender passes on
  std::vector<Read> polls{};  ///< of threads that have done nothing else since
  std::vector<Read> taken{};  ///< of this version, by threads that went on
};

class BlockRaces;

/// Everything that `make race` observes.
class Races final : public Observer {
 public:
  explicit Races(const Names& names) : names_(names) {
    for (Serial gpu = 0; gpu < kGpus; ++gpu) streams_[gpu].next_block += gpu << kGpuShift;
  }

  bool one_at_a_time() const override { return true; }
  void begins(const simt::Launch& launch) override;
  void gpus_meet() override;
  std::unique_ptr<simt::Witness> begins_block(const simt::BlockInfo& info) override;
  Json seen() const override;

 private:
  friend class BlockRaces;

  struct LaunchState {
    Serial first;  // of its blocks
    std::string kernel;
  };
  /// The launches of a GPU, one after another.
  struct Stream {
    std::vector<LaunchState> launches;
    Serial next_block = 1;
    Knowledge knows;       // what the blocks knew that have ended, if there are several GPUs
    Knowledge at_start;    // what a thread of the current launch knows when it starts
    Knowledge after_wait;  // what grid_dependency_wait adds
  };

  void forget();

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
  Memory of_device() { return {device_, locations_, nullptr}; }
  Record record_of(const Actor& actor, Way way, Place place) const;
  void touch(const Memory& memory, const Actor& actor, Way way, Place place,
             const std::byte* address, std::size_t bytes);
  void touch_word(const Memory& memory, const Actor& actor, const Record& mine,
                  const std::byte* word);
  Order order_of(const Record& earlier, const Actor& actor, Way way, const Memory& memory) const;
  bool was_observed(const Records& records, std::size_t number, const Actor& actor,
                    const Record& mine) const;
  bool is_fenced(Serial block, unsigned warp, std::uint32_t lanes, Tick tick,
                 const Actor& actor) const;
  void add_proxy_fence(Serial block, unsigned thread, Tick tick) {
    proxy_fences_[{block, thread}].push_back(tick);
  }

  // In words.cpp.
  bool load(const std::byte* address, const Actor& actor, Place place, const std::uint64_t* seen);
  void take(const std::byte* address, const Actor& actor);
  void overwrite(const std::byte* address, const Actor& actor, Place place);

  // In findings.cpp.
  void report(const Record& earlier, const Actor& actor, const Record& mine, Order order,
              const Memory& memory, const std::byte* word);
  Missing missing(const Record& earlier, const Actor& actor, const Record& mine, Order order,
                  const Memory& memory) const;
  Missing missing_between_gpus(const Record& earlier, const Actor& actor, const Record& mine,
                               const Moment& first) const;
  Missing missing_of_copy(const Record& earlier, const Actor& actor, Way way) const;
  unsigned unknown_thread(const Record& record, const Actor& actor) const;
  const LaunchState& launch_of(Serial block) const {
    const auto& launches = streams_[gpu_of(block)].launches;
    const auto after = std::upper_bound(
        launches.begin(), launches.end(), block,
        [](Serial serial, const LaunchState& launch) { return serial < launch.first; });
    return *(after - 1);
  }
  std::uint32_t number_of_block(Serial block) const { return block - launch_of(block).first; }
  std::string name_of_thread(Serial block, unsigned thread) const {
    return "thread " + std::to_string(thread) + " of block " +
           std::to_string(number_of_block(block)) +
           (had_several_gpus_ ? " of GPU " + std::to_string(gpu_of(block)) : "");
  }
  Json party(const Party& party) const;

  static constexpr std::size_t kMostRecords = 512;  // per word

  const Names& names_;
  std::array<Stream, kGpus> streams_;
  bool several_gpus_ = false;
  bool had_several_gpus_ = false;
  std::uint32_t next_barrier_ = 0;

  Shadow device_;
  Locations locations_;
  std::unordered_map<const void*, Word> words_;
  std::vector<CopyState> copies_;
  std::uint64_t first_copy_ = 0;
  std::map<std::pair<Serial, unsigned>, std::vector<Tick>> proxy_fences_;
  Handshakes handshakes_;
  Joiner join_;

  std::mutex mutex_;  // the blocks of a cluster start and end on different cores
  std::map<Serial, std::weak_ptr<ClusterState>> clusters_;  // by their first block

  std::map<std::pair<Place, Place>, std::size_t> known_;  // the index of a pair's finding
  std::vector<Finding> findings_;
  std::uint64_t accesses_ = 0;
  std::uint64_t shared_accesses_ = 0;
  std::uint64_t copies_seen_ = 0;
  std::uint64_t forgotten_ = 0;
};

/// The watcher of a block of the current launch.
std::unique_ptr<simt::Witness> watch_block(Races& all, const simt::BlockInfo& info, Serial serial,
                                           std::shared_ptr<ClusterState> cluster);

}  // namespace lnc::race
