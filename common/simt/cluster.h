// A cluster of Hopper: which of its blocks has its turn, and who has come to cluster_sync.
#pragma once

#include <link.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <span>
#include <vector>

namespace simt {

// The thread-local variables of the program, or of the library that this machine is part of, as
// this core has them: every __shared__ is in there, and so is what is found.
inline std::span<std::byte> static_shared() {
  thread_local std::span<std::byte> found;
  if (!found.empty()) return found;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* out) {
        for (const auto& part : std::span(info->dlpi_phdr, info->dlpi_phnum)) {
          if (part.p_type != PT_TLS || info->dlpi_tls_data == nullptr) continue;
          const std::span variables(static_cast<std::byte*>(info->dlpi_tls_data), part.p_memsz);
          auto* const here = static_cast<std::byte*>(out);
          if (here < variables.data() || here >= variables.data() + variables.size()) continue;
          *static_cast<std::span<std::byte>*>(out) = variables;
          return 1;
        }
        return 0;
      },
      &found);
  return found;
}

// The blocks of a cluster, one to each of `size` cores. One of them at a time has the turn, so none
// of what they share needs a lock; a block that has no cluster is the only one of its own.
template <typename Block>
class Cluster {
 public:
  Cluster(unsigned size, std::uint64_t threads, const std::atomic<bool>& failed)
      : blocks_(size),
        stuck_(size),
        threads_(threads),
        failed_(failed),
        meeting_(size),
        has_turn_(size) {}

  /// The number of the next cluster of the grid, the same for all blocks; all must come for it.
  std::uint64_t next(unsigned rank, std::atomic<std::uint64_t>& counter) {
    meeting_.arrive_and_wait();
    if (rank == 0) {
      number_ = failed_ ? std::numeric_limits<std::uint64_t>::max() : counter++;
      entered_ = 0;
      arrived_ = 0;
      exited_ = 0;
      phase_ = 0;
    }
    meeting_.arrive_and_wait();
    return number_;
  }
  /// Enters a block. The turns begin when all have entered.
  void enter(unsigned rank, Block* block, unsigned first) {
    {
      const std::lock_guard lock(mutex_);
      blocks_[rank] = block;
      stuck_[rank] = false;
      turn_ = first;
      ++entered_;
    }
    wake_all();
    wait_for_turn(rank);
  }
  void leave(unsigned rank) {
    const std::lock_guard lock(mutex_);
    blocks_[rank] = nullptr;
    stuck_[rank] = true;
    if (turn_ == rank) turn_ = after(rank, 1);
    wake_all();
  }
  /// Lets the block that is `steps` further have its turn, and waits for the own one.
  void pass_turn(unsigned rank, unsigned steps) {
    if (blocks_.size() == 1) return;
    const unsigned next = after(rank, steps);
    {
      const std::lock_guard lock(mutex_);
      turn_ = next;
    }
    has_turn_[next].notify_one();
    wait_for_turn(rank);
  }
  /// Notes whether a block could do nothing in its turn; returns whether none of them can.
  bool all_stuck(unsigned rank, bool stuck) {
    if (!stuck) {  // what it did may be what the others wait for
      for (unsigned other = 0; other < size(); ++other) stuck_[other] = blocks_[other] == nullptr;
    }
    stuck_[rank] = stuck;
    return std::find(stuck_.begin(), stuck_.end(), false) == stuck_.end();
  }

  unsigned size() const { return blocks_.size(); }
  Block* block(unsigned rank) const { return blocks_[rank]; }
  std::uint64_t phase() const { return phase_; }
  void arrive() {
    ++arrived_;
    complete_phase();
  }
  void exit() {  // a thread; the others do not wait for it
    ++exited_;
    complete_phase();
  }

 private:
  void complete_phase() {
    if (arrived_ == 0 || arrived_ + exited_ < threads_) return;
    arrived_ = 0;
    ++phase_;
    for (Block* block : blocks_) {
      if (block != nullptr) block->wake();
    }
  }
  void wake_all() {
    for (std::condition_variable& block : has_turn_) block.notify_one();
  }
  void wait_for_turn(unsigned rank) {
    std::unique_lock lock(mutex_);
    has_turn_[rank].wait(lock, [&] { return failed_ || (entered_ == size() && turn_ == rank); });
  }
  unsigned after(unsigned rank, unsigned steps) const {
    unsigned next = (rank + steps) % size();
    for (unsigned i = 0; i < size() && blocks_[next] == nullptr; ++i) next = (next + 1) % size();
    return next;
  }

  std::vector<Block*> blocks_;  // null after it has left
  std::vector<bool> stuck_;
  const std::uint64_t threads_;
  const std::atomic<bool>& failed_;
  std::barrier<> meeting_;
  std::mutex mutex_;
  std::vector<std::condition_variable> has_turn_;  // one a block: a turn wakes nobody else
  std::uint64_t number_ = 0;
  unsigned turn_ = 0;
  unsigned entered_ = 0;
  std::uint64_t arrived_ = 0;  // threads at cluster_arrive, in this phase
  std::uint64_t exited_ = 0;   // threads
  std::uint64_t phase_ = 0;    // of cluster_arrive
};

}  // namespace simt
