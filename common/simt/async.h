// What goes on in a block while its threads do something else: its mbarriers, the bulk copies on
// their way, and each thread's own copies.
//
// A copy arrives later than it is begun: a bulk copy when the scheduler says so, a thread's own
// when that waits for it. Until then its destination holds 0xFF (NaN), so a thread that does not
// wait computes nonsense.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "common/simt/words.h"

namespace simt {

inline constexpr unsigned char kPoison = 0xFF;  ///< where a copy has not arrived

/// Numbers the copies of a program.
inline std::uint64_t next_copy() {
  static std::atomic<std::uint64_t> next = 0;
  return next++;
}

/// The copies of one thread, in groups (cp.async of PTX). Only its own wait makes them arrive.
class ThreadCopies {
 public:
  std::string begin(void* to, const void* from, std::size_t bytes, std::size_t zeros,
                    std::uint64_t number) {
    const auto fits = [=](const void* p) {
      return reinterpret_cast<std::uintptr_t>(p) % bytes == 0;
    };
    if (bytes != 4 && bytes != 8 && bytes != 16)
      return "copies " + std::to_string(bytes) + " bytes, and not 4, 8 or 16";
    if (zeros > bytes) return "wants more zeros than bytes";
    if (!fits(to)) return "copies to an address that is no multiple of the size";
    if (!fits(from)) return "copies from an address that is no multiple of the size";
    Copy copy{static_cast<std::byte*>(to), {}, bytes, groups_, number};
    if (zeros < bytes) std::memcpy(copy.data.data(), from, bytes - zeros);
    std::memset(to, kPoison, bytes);
    copies_.push_back(copy);
    return "";
  }
  void commit() { ++groups_; }
  /// Ends all copies of the groups committed so far but the last `prior`; `arrives` is told their
  /// numbers.
  template <typename Arrives>
  std::string wait(std::size_t prior, Arrives arrives) {
    auto copy_at = copies_.begin();
    for (; copy_at != copies_.end() && copy_at->group + prior < groups_; ++copy_at) {
      const Copy& copy = *copy_at;
      if (std::any_of(copy.to, copy.to + copy.bytes,
                      [](std::byte byte) { return byte != std::byte{kPoison}; }))
        return "waits for a copy whose destination was written to before it had arrived";
      std::memcpy(copy.to, copy.data.data(), copy.bytes);
      arrives(copy.number);
    }
    copies_.erase(copies_.begin(), copy_at);
    return "";
  }

 private:
  struct Copy {
    std::byte* to;
    std::array<std::byte, 16> data;  // as it was when the copy began
    std::size_t bytes;
    std::size_t group;
    std::uint64_t number;
  };
  std::vector<Copy> copies_;  // few; and a deque allocates even where there are none
  std::size_t groups_ = 0;    // committed
};

/// An mbarrier as PTX describes it. A phase is complete when no arrival and no byte is missing.
struct Mbarrier {
  unsigned arrivals;  ///< that a phase takes
  unsigned pending = arrivals;
  std::int64_t bytes = 0;  ///< expected less arrived: below 0 where some came before that was said
  std::uint64_t phase = 0;
  bool fenced = false;  ///< known to the copy engine

  void update() {
    if (pending > 0 || bytes != 0) return;
    pending = arrivals;
    ++phase;
  }
};

struct BulkCopy {
  std::byte* to;
  const std::byte* from;
  std::vector<std::byte> data;  // as it was when the copy began
  const void* barrier;          // of a load; a store has none
  unsigned thread;
  unsigned group;  // of a store, among its thread's
  std::uint64_t number;
  std::source_location where;

  std::string name() const {
    const bool is_remote_store = data.size() < 16;  // st.async: a bulk copy has 16 bytes or more
    const std::string kind = is_remote_store ? "asynchronous" : "bulk";
    const std::string does = barrier != nullptr && !is_remote_store ? "load" : "store";
    return "the " + kind + " " + does + " of " + std::to_string(data.size()) +
           " bytes that thread " + std::to_string(thread) + " began at " + to_string(where);
  }
};

/// The functions that return a string say what is wrong; an empty one means nothing.
class Async {
 public:
  std::string init(const void* barrier, unsigned arrivals) {
    if (arrivals == 0 || arrivals >= 1u << 20) return "wants 0 or more than 2^20 - 1 arrivals";
    if (!barriers_.emplace(barrier, Mbarrier{.arrivals = arrivals}).second)
      return "initialises a Barrier for the second time";
    return "";
  }
  void fence_init() {
    for (auto& [address, barrier] : barriers_) barrier.fenced = true;
  }
  void fence_stores() { stores_fenced_ = true; }
  /// Arrives, and expects `bytes` more.
  std::string arrive(const void* address, std::uint32_t bytes) {
    Mbarrier* const barrier = find(address);
    if (barrier == nullptr) return "arrives at a Barrier that is not initialised";
    if (barrier->pending == 0) return "arrives at a Barrier that has all arrivals of its phase";
    barrier->bytes += bytes;
    if (barrier->bytes >= 1 << 20) return "expects 2^20 bytes or more";
    --barrier->pending;
    barrier->update();
    return "";
  }
  /// Whether the phase of this parity is complete: the one before the current has the other parity.
  bool passed(const void* address, unsigned parity) const {
    const Mbarrier* const barrier = find(address);
    return barrier != nullptr && (barrier->phase & 1) != parity;
  }
  bool knows(const void* barrier) const { return find(barrier) != nullptr; }
  /// How many phases of the barrier are complete; 0 for null.
  std::uint64_t phase(const void* address) const {
    const Mbarrier* const barrier = find(address);
    return barrier == nullptr ? 0 : barrier->phase;
  }

  std::string begin(BulkCopy copy, std::size_t bytes) {
    const auto at_16 = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; };
    const Mbarrier* const barrier = find(copy.barrier);
    if (copy.barrier != nullptr && barrier == nullptr)
      return "names a Barrier that is not initialised";
    if (barrier != nullptr && !barrier->fenced)
      return "names a Barrier that the copy engine does not know: fence_barrier_init()";
    if (copy.barrier == nullptr && !stores_fenced_)
      return "copies what the copy engine may not see yet: fence_proxy_async()";
    if (bytes == 0 || bytes % 16 != 0)
      return "copies " + std::to_string(bytes) + " bytes, which is no multiple of 16";
    if (!at_16(copy.to)) return "copies to an address that is no multiple of 16";
    if (!at_16(copy.from)) return "copies from an address that is no multiple of 16";
    copy.data.assign(copy.from, copy.from + bytes);
    post(std::move(copy));
    return "";
  }
  /// Without the rules of bulk copies: what another block of the cluster sends.
  void post(BulkCopy copy) {
    std::memset(copy.to, kPoison, copy.data.size());
    copies_.push_back(std::move(copy));
  }
  std::size_t on_their_way() const { return copies_.size(); }
  /// The number of a copy on its way, and the barrier that it completes on.
  std::pair<std::uint64_t, const void*> identity(std::size_t i) const {
    return {copies_[i].number, copies_[i].barrier};
  }
  bool has_store(unsigned thread, unsigned before_group) const {
    return std::any_of(copies_.begin(), copies_.end(), [&](const BulkCopy& copy) {
      return copy.barrier == nullptr && copy.thread == thread && copy.group < before_group;
    });
  }

  /// Ends the copy that is number `i` of those on their way.
  std::string complete(std::size_t i) {
    const BulkCopy copy = std::move(copies_[i]);
    copies_.erase(copies_.begin() + static_cast<std::ptrdiff_t>(i));
    if (copy.barrier == nullptr) {
      if (std::memcmp(copy.from, copy.data.data(), copy.data.size()) != 0)
        return copy.name() + " had not read its source when that was written to";
    } else if (std::any_of(copy.to, copy.to + copy.data.size(),
                           [](std::byte byte) { return byte != std::byte{kPoison}; })) {
      return copy.name() + " had not arrived when its destination was written to";
    }
    std::memcpy(copy.to, copy.data.data(), copy.data.size());
    if (copy.barrier == nullptr) return "";
    Mbarrier& barrier = *find(copy.barrier);
    barrier.bytes -= static_cast<std::int64_t>(copy.data.size());
    if (barrier.pending == 0 && barrier.bytes < 0)
      return copy.name() + " brings " + std::to_string(-barrier.bytes) +
             " bytes that its Barrier does not expect";
    barrier.update();
    return "";
  }

  /// What is wrong where the block ends now.
  std::string unfinished() const {
    if (!copies_.empty()) return "it ends while " + copies_.front().name() + " is on its way";
    for (const auto& [address, barrier] : barriers_) {
      if (barrier.bytes != 0) return "it ends while a Barrier " + missing(address);
    }
    return "";
  }
  /// "lacks 1 arrivals and 512 bytes"
  std::string missing(const void* address) const {
    const Mbarrier* const barrier = find(address);
    if (barrier == nullptr) return "does not exist";
    return "lacks " + std::to_string(barrier->pending) + " arrivals and " +
           std::to_string(barrier->bytes) + " bytes";
  }

 private:
  const Mbarrier* find(const void* address) const {
    const auto found = barriers_.find(address);
    return found == barriers_.end() ? nullptr : &found->second;
  }
  Mbarrier* find(const void* address) {
    return const_cast<Mbarrier*>(std::as_const(*this).find(address));
  }

  std::map<const void*, Mbarrier> barriers_;
  std::vector<BulkCopy> copies_;
  bool stores_fenced_ = false;  // by any thread, ever: that one is missing now and then is not seen
};

}  // namespace simt
