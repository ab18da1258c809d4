// What goes on in a block while its threads do something else: its mbarriers, the bulk copies in
// flight, and each thread's own asynchronous copies.
//
// A copy arrives later than it begins: a bulk copy when the scheduler says so, a thread's own copy
// when the thread waits for it. Until then its destination holds 0xFF (NaN), so a thread that does
// not wait computes nonsense.
//
// The functions that return a string say what is wrong; an empty string means that nothing is.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "common/simt/watch.h"

namespace simt {

/// Numbers the copies of a program.
std::uint64_t next_copy();

/// The copies of one thread, in groups (cp.async of PTX). They arrive only when it waits for them.
class ThreadCopies {
 public:
  std::string begin(void* to, const void* from, std::size_t bytes, std::size_t zeros,
                    std::uint64_t number);
  void commit() { ++groups_; }
  /// Ends all copies of the groups committed so far except the last `prior`.
  std::string wait(std::size_t prior, Witness& witness);

 private:
  struct Copy {
    std::byte* to;
    std::array<std::byte, 16> data;  // as it was when the copy began
    std::size_t bytes;
    std::size_t group;
    std::uint64_t number;
  };
  std::vector<Copy> copies_;  // few; a deque would allocate even where there are none
  std::size_t groups_ = 0;    // committed
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

  std::string name() const;
};

/// The mbarriers of a block, and the copies that complete on them or for them.
class CopyEngine {
 public:
  explicit CopyEngine(Witness& witness) : witness_(witness) {}

  std::string init(const void* barrier, unsigned arrivals);
  void fence_init();
  void fence_stores() { stores_fenced_ = true; }
  /// Arrives, and expects `bytes` more.
  std::string arrive(const void* barrier, std::uint32_t bytes);
  /// Whether the phase of this parity is complete: the one before the current has the other parity.
  bool passed(const void* address, unsigned parity) const {
    const Mbarrier* const barrier = find(address);
    return barrier != nullptr && (barrier->phase & 1) != parity;
  }
  bool knows(const void* barrier) const { return find(barrier) != nullptr; }

  std::string begin(BulkCopy copy, std::size_t bytes);
  /// Begins a copy without the rules of bulk copies: another block of the cluster sends it.
  void post(BulkCopy copy);
  std::size_t in_flight() const { return copies_.size(); }
  bool has_store(unsigned thread, unsigned before_group) const;
  /// Ends copy `i` of those in flight.
  std::string complete(std::size_t i);

  /// What is wrong if the block ends now.
  std::string unfinished() const;
  /// "lacks 1 arrivals and 512 bytes"
  std::string missing(const void* barrier) const;

 private:
  // An mbarrier as PTX describes it. A phase is complete when no arrival and no byte is missing.
  struct Mbarrier {
    unsigned arrivals;  // that a phase takes
    unsigned pending = arrivals;
    std::int64_t bytes = 0;  // expected less arrived: below 0 where some came before that was said
    std::uint64_t phase = 0;
    bool fenced = false;  // known to the copy engine
  };

  const Mbarrier* find(const void* address) const {
    const auto found = barriers_.find(address);
    return found == barriers_.end() ? nullptr : &found->second;
  }
  Mbarrier* find(const void* address) {
    return const_cast<Mbarrier*>(std::as_const(*this).find(address));
  }
  void complete_phase(const void* address, Mbarrier& barrier);

  Witness& witness_;
  std::map<const void*, Mbarrier> barriers_;
  std::vector<BulkCopy> copies_;
  bool stores_fenced_ = false;  // by any thread, at any time: a fence missing later is not noticed
};

}  // namespace simt
