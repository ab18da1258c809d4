// The asynchronous part of a block: its mbarriers, the bulk copies in flight, and each thread's own
// asynchronous copies.
//
// Every copy arrives late: a bulk copy when the scheduler decides, a thread's own copy when the
// thread waits for it. Until then its destination holds 0xFF (NaN), so a thread that does not wait
// computes with NaN.
//
// Functions that return a string return the error, or an empty string if there is none.
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

/// The next copy's number, unique in the program.
std::uint64_t next_copy();

/// One thread's copies, in groups (PTX's cp.async). They arrive only when it waits for them.
class ThreadCopies {
 public:
  std::string begin(void* to, const void* from, std::size_t bytes, std::size_t zeros,
                    std::uint64_t number);
  void commit() { ++groups_; }
  /// Completes the copies of all committed groups except the last `prior`.
  std::string wait(std::size_t prior, Witness& witness);

 private:
  struct Copy {
    std::byte* to;
    std::array<std::byte, 16> data;  // as it was when the copy began
    std::size_t bytes;
    std::size_t group;
    std::uint64_t number;
  };
  std::vector<Copy> copies_;  // few; an empty deque would still allocate
  std::size_t groups_ = 0;    // committed
};

struct BulkCopy {
  std::byte* to;
  const std::byte* from;
  std::vector<std::byte> data;  // as it was when the copy began
  const void* barrier;          // of a load; null for a store
  unsigned thread;
  unsigned group;  // of a store: index among its thread's groups
  std::uint64_t number;
  std::source_location where;

  std::string name() const;
};

/// A block's mbarriers, and its copies in flight.
class CopyEngine {
 public:
  explicit CopyEngine(Witness& witness) : witness_(witness) {}

  std::string init(const void* barrier, unsigned arrivals);
  void fence_init();
  void fence_stores() { stores_fenced_ = true; }
  /// Arrives, and adds `bytes` to the bytes that the phase expects.
  std::string arrive(const void* barrier, std::uint32_t bytes);
  std::string expect(const void* barrier, std::uint32_t bytes);
  /// The parity of the phase that is not yet complete.
  unsigned parity(const void* barrier) const { return find(barrier)->phase & 1; }
  /// Whether the phase of this parity is complete: then the current phase has the other parity.
  bool passed(const void* address, unsigned parity) const {
    const Mbarrier* const barrier = find(address);
    return barrier != nullptr && (barrier->phase & 1) != parity;
  }
  bool knows(const void* barrier) const { return find(barrier) != nullptr; }

  std::string begin(BulkCopy copy, std::size_t bytes);
  /// Begins a copy sent by another block of the cluster, to which the rules of bulk copies do not
  /// apply.
  void post(BulkCopy copy);
  std::size_t in_flight() const { return copies_.size(); }
  bool has_store(unsigned thread, unsigned before_group) const;
  /// Completes copy `i` of those in flight.
  std::string complete(std::size_t i);

  /// What is wrong if the block ends now.
  std::string unfinished() const;
  /// "lacks 1 arrivals and 512 bytes"
  std::string missing(const void* barrier) const;

 private:
  // PTX's mbarrier. A phase is complete when no arrival and no byte is pending.
  struct Mbarrier {
    unsigned arrivals;  // per phase
    unsigned pending = arrivals;
    std::int64_t bytes = 0;  // expected minus arrived; negative if some arrive before the expect
    std::uint64_t phase = 0;
    bool fenced = false;  // visible to the copy engine
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
  bool stores_fenced_ = false;  // by any thread, ever: a fence missing later goes unnoticed
};

}  // namespace simt
