// A Hopper cluster: which of its blocks has the turn, and how many threads are at cluster_sync.
#pragma once

#include <atomic>
#include <barrier>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

namespace simt {

class Block;

/// The blocks of a cluster, one on each of `size` cores. Only the block that has the turn runs, so
/// their shared state needs no lock. A launch without clusters uses clusters of one block.
class Cluster {
 public:
  Cluster(unsigned size, std::uint64_t threads, const std::atomic<bool>& failed)
      : blocks_(size),
        stuck_(size),
        threads_(threads),
        failed_(failed),
        meeting_(size),
        has_turn_(size) {}

  /// The number of the grid's next cluster, the same for all blocks; every block must call it.
  std::uint64_t next(unsigned rank, std::atomic<std::uint64_t>& counter);
  /// Adds a block. Once all have entered, block `first` gets the first turn.
  void enter(unsigned rank, Block* block, unsigned first);
  void leave(unsigned rank);
  /// Gives the turn to the block `steps` ranks further on, and waits to get it back.
  void pass_turn(unsigned rank, unsigned steps);
  /// Records whether a block was stuck in its turn; returns whether all of them are.
  bool all_stuck(unsigned rank, bool stuck);

  unsigned size() const { return blocks_.size(); }
  /// Null before the block has entered and after it has left.
  Block* block(unsigned rank) const { return blocks_[rank]; }
  /// The number of completed phases of cluster_arrive.
  std::uint64_t phase() const { return phase_; }
  /// A thread arrives or exits. The others do not wait for a thread that has exited.
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
  std::vector<std::condition_variable> has_turn_;  // one per block, to wake only the next
  std::uint64_t number_ = 0;
  unsigned turn_ = 0;
  unsigned entered_ = 0;
  std::uint64_t arrived_ = 0;  // threads, in this phase
  std::uint64_t exited_ = 0;   // threads
  std::uint64_t phase_ = 0;
};

}  // namespace simt
