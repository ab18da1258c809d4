// What a request costs in a GPU's memory: the sectors that it touches, and the passes that it takes
// through the banks of shared memory.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "common/watch/warp_paths.h"

namespace lnc {

inline constexpr std::uint64_t kSectorBytes = 32;

/// Calls `body` for each sector that overlaps a range of memory.
template <typename Body>
void for_sectors(const void* begin, std::size_t bytes, Body body) {
  const auto first = reinterpret_cast<std::uint64_t>(begin);
  for (std::uint64_t sector = first / kSectorBytes; sector * kSectorBytes < first + bytes; ++sector)
    body(sector);
}

/// The sectors that a request touches, each once, in ascending order, and how many of their bytes
/// it uses.
struct Sectors {
  std::vector<std::uint64_t> numbers;  ///< of a sector: its address / 32
  std::uint64_t useful_bytes = 0;
};

inline Sectors sectors_of(const Request& request) {
  std::array<std::uint64_t, kLanes> lanes;
  std::size_t count = 0;
  for (const std::byte* at : request.at)
    if (at != nullptr) lanes[count++] = reinterpret_cast<std::uint64_t>(at);
  std::sort(lanes.begin(), lanes.begin() + count);
  Sectors sectors;
  std::uint64_t end = 0;  // of the bytes counted so far
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t begin = std::max(lanes[i], end);
    const std::uint64_t stop = lanes[i] + request.bytes;
    if (begin >= stop) continue;
    sectors.useful_bytes += stop - begin;
    end = stop;
    for (std::uint64_t sector = begin / kSectorBytes; sector <= (stop - 1) / kSectorBytes; ++sector)
      if (sectors.numbers.empty() || sectors.numbers.back() != sector)
        sectors.numbers.push_back(sector);
  }
  return sectors;
}

/// The sectors that an atomic request sends to L2. Lanes at the same address need a sector each;
/// lanes at different addresses of a sector share one.
inline std::uint64_t sectors_sent(const Request& request) {
  std::array<std::uint64_t, kLanes> lanes;
  std::size_t count = 0;
  for (const std::byte* at : request.at)
    if (at != nullptr) lanes[count++] = reinterpret_cast<std::uint64_t>(at);
  std::sort(lanes.begin(), lanes.begin() + count);
  std::uint64_t sent = 0;
  std::uint64_t most = 0;  // lanes at one address of the current sector, so far
  std::uint64_t run = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const bool same_sector = i > 0 && lanes[i] / kSectorBytes == lanes[i - 1] / kSectorBytes;
    if (!same_sector) {
      sent += most;
      most = 0;
    }
    run = i > 0 && lanes[i] == lanes[i - 1] ? run + 1 : 1;
    most = std::max(most, run);
  }
  return sent + most;
}

/// How many lanes of a request access its most common address.
inline unsigned most_at_one_address(const Request& request) {
  std::array<const std::byte*, kLanes> at = request.at;
  std::sort(at.begin(), at.end());
  unsigned most = 0;
  unsigned run = 0;
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    run = lane > 0 && at[lane] == at[lane - 1] ? run + 1 : 1;
    if (at[lane] != nullptr) most = std::max(most, run);
  }
  return most;
}

/// Passes through shared memory: actual, and without bank conflicts.
struct Passes {
  unsigned taken = 0;
  unsigned needed = 0;
};

using Addresses = std::array<const std::byte*, kLanes>;

/// Whether `lanes` lanes from `first` on each access the same address as their partner, the lane
/// whose number differs in this bit.
inline bool in_pairs(const Addresses& at, unsigned first, unsigned lanes, unsigned bit) {
  for (unsigned lane = first; lane < first + lanes; ++lane) {
    const std::byte* const partner = at[lane ^ bit];
    if (at[lane] != nullptr && partner != nullptr && at[lane] != partner) return false;
  }
  return true;
}

/// The passes of those of a request's lanes that are served together.
inline Passes passes_of(const Addresses& at, unsigned first, unsigned lanes, std::uint32_t bytes) {
  constexpr unsigned kBanks = 32;
  constexpr std::uint64_t kWord = 4;
  std::vector<std::uint64_t> words;
  for (unsigned lane = first; lane < first + lanes; ++lane) {
    if (at[lane] == nullptr) continue;
    const auto begin = reinterpret_cast<std::uint64_t>(at[lane]);
    for (std::uint64_t word = begin / kWord; word <= (begin + bytes - 1) / kWord; ++word)
      words.push_back(word);
  }
  std::sort(words.begin(), words.end());
  words.erase(std::unique(words.begin(), words.end()), words.end());
  std::array<unsigned, kBanks> of_bank{};
  for (const std::uint64_t word : words) ++of_bank[word % kBanks];
  return {*std::max_element(of_bank.begin(), of_bank.end()),
          static_cast<unsigned>((words.size() + kBanks - 1) / kBanks)};
}

/// Shared memory has 32 banks of 4 bytes. A pass serves one word of each bank, to as many lanes as
/// access it. Accesses of 8 bytes are served by half warps, of 16 by quarters, 128 bytes each; two
/// adjacent parts are served together if all their lanes access the same address in pairs.
inline Passes passes_of(const Addresses& at, std::uint32_t bytes) {
  const unsigned lanes_a_part = bytes <= 4 ? kLanes : bytes <= 8 ? kLanes / 2 : kLanes / 4;
  const unsigned two_parts = std::min(2 * lanes_a_part, kLanes);
  Passes passes;
  for (unsigned first = 0; first < kLanes; first += two_parts) {
    const bool together = in_pairs(at, first, two_parts, 1) || in_pairs(at, first, two_parts, 2);
    const unsigned lanes = together ? two_parts : lanes_a_part;
    for (unsigned part = first; part < first + two_parts; part += lanes) {
      const Passes more = passes_of(at, part, lanes, bytes);
      passes.taken += more.taken;
      passes.needed += more.needed;
    }
  }
  return passes;
}

/// A simple model of a cache: it keeps a sector until, since the sector's last use, as many others
/// have been loaded as fit in it.
class Cache {
 public:
  explicit Cache(std::uint64_t bytes) : room_(bytes / kSectorBytes) {}

  /// Whether the sector was ever loaded, even if it has been evicted since.
  bool knows(std::uint64_t sector) const { return came_.contains(sector); }

  /// Whether it holds the sector. Loads it if not.
  bool holds(std::uint64_t sector) {
    const auto [entry, is_new] = came_.try_emplace(sector, in_);
    const bool held = !is_new && in_ - entry->second < room_;
    if (!held) ++in_;
    entry->second = in_;
    return held;
  }

 private:
  std::uint64_t room_;
  std::uint64_t in_ = 0;                                   // sectors loaded so far
  std::unordered_map<std::uint64_t, std::uint64_t> came_;  // in_ at a sector's last use
};

}  // namespace lnc
