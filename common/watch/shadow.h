// The shadow memory of `make race`: for each byte, which threads and copies have accessed it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "common/simt/watch.h"
#include "common/watch/clocks.h"

namespace lnc::race {

enum class Way : std::uint8_t {
  Load,
  Store,
  Atomic,       ///< at the device's scope
  BlockAtomic,  ///< at the block's
  SystemAtomic,
  WordLoad,  ///< load_word, store_word: relaxed, of 16 bytes, at the system's scope
  WordStore
};

inline bool is_atomic(Way way) { return way >= Way::Atomic && way <= Way::SystemAtomic; }
inline bool is_word(Way way) { return way >= Way::WordLoad; }
inline bool is_load(Way way) { return way == Way::Load || way == Way::WordLoad; }
/// PTX's strong accesses do not race with each other, if their scopes include both threads.
inline bool is_strong(Way way) { return way >= Way::Atomic; }
inline simt::Scope scope_of(Way way) {
  if (way == Way::BlockAtomic) return simt::Scope::Block;
  return way == Way::Atomic ? simt::Scope::Device : simt::Scope::System;
}
/// The narrowest scope that includes threads of both blocks.
inline simt::Scope scope_of_both(Serial a, Serial b) {
  if (a == b) return simt::Scope::Block;
  return gpu_of(a) == gpu_of(b) ? simt::Scope::Device : simt::Scope::System;
}

/// An access to a word: by lanes of a warp, all at one place in the program and in one tick, or by
/// a copy.
struct Record {
  simt::Place place;
  Serial block;
  Tick tick;            ///< for a copy, its index among the copies
  std::uint32_t lanes;  ///< one bit each
  std::uint16_t warp;   ///< kCopy for a copy
  std::uint8_t bytes;   ///< of the word, one bit each
  Way way;

  static constexpr std::uint16_t kCopy = 0xFFFF;
  bool is_copy() const { return warp == kCopy; }
  /// Whether it differs from another only in its lanes, if at all.
  bool is_like(const Record& other) const {
    return place == other.place && block == other.block && tick == other.tick &&
           warp == other.warp && bytes == other.bytes && way == other.way && !is_copy();
  }
};

/// The records of a word of 4 bytes, without those that a later access supersedes.
using Records = std::vector<Record>;

/// The records of a memory, by address.
class Shadow {
 public:
  static constexpr std::uintptr_t kWord = 4;

  Records& at(std::uintptr_t address) {
    const std::uintptr_t number = address / kWord / kPageWords;
    Recent& recent = recent_[number % recent_.size()];
    if (recent.page == nullptr || recent.number != number) {
      auto& page = pages_[number];
      if (page == nullptr) page = std::make_unique<Page>();
      recent = {number, page.get()};
    }
    return (*recent.page)[address / kWord % kPageWords];
  }
  void clear() {
    pages_.clear();
    recent_.fill({});
  }

 private:
  static constexpr std::size_t kPageWords = 256;
  using Page = std::array<Records, kPageWords>;
  struct Recent {
    std::uintptr_t number = 0;
    Page* page = nullptr;
  };
  std::unordered_map<std::uintptr_t, std::unique_ptr<Page>> pages_;
  std::array<Recent, 64> recent_{};
};

}  // namespace lnc::race
