// A block while it runs: its threads, and the parts of the machine that serve them. What kernels
// call (machine.h) is written in terms of these, each function in the file of the part that it is
// about.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <source_location>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/simt/barriers.h"
#include "common/simt/cluster.h"
#include "common/simt/copies.h"
#include "common/simt/faults.h"
#include "common/simt/scheduler.h"
#include "common/simt/shared_memory.h"

namespace simt {

class Block {
 public:
  /// @param body what each thread runs
  /// @param number of the block in the grid
  Block(const Launch& launch, const std::function<void()>& body, std::uint64_t number,
        Cluster& cluster, Watch* watch);

  /// Runs until all threads have exited, or another block has `failed`; throws what ends it early.
  void run(const Schedule& schedule, const std::atomic<bool>& failed);

  unsigned rank() const { return rank_; }
  Cluster& cluster() const { return cluster_; }
  const SharedMemory& shared() const { return shared_; }
  CopyEngine& copies() { return copies_; }
  Scheduler& scheduler() { return scheduler_; }
  Barriers& barriers() { return barriers_; }
  Witness& witness() { return *witness_; }
  bool is_watched() const { return watched_ != nullptr; }
  Thread& running() const { return scheduler_.running(); }

  /// The running thread begins an operation.
  Thread& at(Op op, std::source_location where) {
    Thread& self = running();
    self.op = op;
    self.where = where;
    return self;
  }
  /// Throws a Fault of the running thread unless `problem` is empty.
  void require(const std::string& problem) const {
    if (!problem.empty()) throw faults_.of(running(), problem);
  }
  void require_shared(const void* pointer) const;
  /// Waits until what the running thread's operation waits for has come about; what may bring it
  /// about calls wake().
  void wait() {
    Thread& self = running();
    while (!is_over(self)) {
      self.state = Thread::State::Waiting;
      scheduler_.suspend_waiting();
    }
  }
  void wake();

 private:
  void run_thread();
  bool is_over(const Thread& waiting) const;
  std::string problem(bool out_of_patience) const;

  const Launch& launch_;
  const std::function<void()>& body_;
  const std::uint64_t number_;
  Cluster& cluster_;
  const unsigned rank_;
  std::vector<Thread> threads_;
  std::size_t exited_ = 0;
  const SharedMemory shared_;
  const std::unique_ptr<Witness> watched_;  // null where the block is not watched
  Witness silent_;
  Witness* const witness_;
  CopyEngine copies_;
  const Faults faults_;
  Scheduler scheduler_;
  Barriers barriers_;
};

/// The block that this core runs; null outside of kernels.
extern constinit thread_local Block* current_block;

/// The same for a function that a kernel calls. Inlined there, it notes where the call came from.
[[gnu::always_inline]] inline Block& this_block() {
  if (current_block == nullptr) throw std::logic_error("only a kernel may call this");
  current_block->running().place = __builtin_return_address(0);
  return *current_block;
}

}  // namespace simt
