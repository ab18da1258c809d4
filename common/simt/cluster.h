// A cluster of Hopper: which of its blocks has its turn, and who has come to cluster_sync.
#pragma once

#include <atomic>
#include <barrier>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

namespace simt {

class Block;

/// The blocks of a cluster, one on each of `size` cores. One of them at a time has the turn, so
/// what they share needs no lock. A block without a cluster is alone in one.
class Cluster {
 public:
  Cluster(unsigned size, std::uint64_t threads, const std::atomic<bool>& failed)
      : blocks_(size),
        stuck_(size),
        threads_(threads),
        failed_(failed),
        meeting_(size),
        has_turn_(size) {}

  /// The number of the next cluster of the grid, the same for all blocks; all of them must call it.
  std::uint64_t next(unsigned rank, std::atomic<std::uint64_t>& counter);
  /// Enters a block. The turns begin, with block `first`, when all have entered.
  void enter(unsigned rank, Block* block, unsigned first);
  void leave(unsigned rank);
  /// Gives the turn to the block that is `steps` ranks further, and waits for its own.
  void pass_turn(unsigned rank, unsigned steps);
  /// Notes whether a block could do nothing in its turn; returns whether none of them can.
  bool all_stuck(unsigned rank, bool stuck);

  unsigned size() const { return blocks_.size(); }
  /// Null before the block has entered and after it has left.
  Block* block(unsigned rank) const { return blocks_[rank]; }
  /// How many phases of cluster_arrive are complete.
  std::uint64_t phase() const { return phase_; }
  /// A thread arrives, or exits; the others do not wait for one that has exited.
  void arrive() {
    ++arrived_;
    complete_phase();
  }
  void exit() {
    ++exited_;
    if (arrived_ > 0) complete_phase();
  }

 private:
  void complete_phase();
  void wake_all();
  void wait_for_turn(unsigned rank);
  unsigned after(unsigned rank, unsigned steps) const;

  std::vector<Block*> blocks_;
  std::vector<bool> stuck_;
  const std::uint64_t threads_;
  const std::atomic<bool>& failed_;
  std::barrier<> meeting_;
  std::mutex mutex_;
  std::vector<std::condition_variable> has_turn_;  // one a block: a turn wakes no other
  std::uint64_t number_ = 0;
  unsigned turn_ = 0;
  unsigned entered_ = 0;
  std::uint64_t arrived_ = 0;  // threads, in this phase
  std::uint64_t exited_ = 0;   // threads
  std::uint64_t phase_ = 0;
};

}  // namespace simt
