// A running block: its threads, and the parts of the machine that serve them. The functions that
// kernels call (machine.h) use these parts; each is defined in the file of the part it uses.
#pragma once

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
#include "common/simt/progress.h"
#include "common/simt/scheduler.h"
#include "common/simt/shared_memory.h"

namespace simt {

class Block {
 public:
  /// @param body what each thread runs
  /// @param number of the block in the grid
  Block(const Launch& launch, const std::function<void()>& body, std::uint64_t number,
        Cluster& cluster, Watch* watch);

  /// Runs until all threads have exited or another block has failed; rethrows any error that ends
  /// the block early.
  void run(const Schedule& schedule, Progress& progress);

  unsigned rank() const { return rank_; }
  Cluster& cluster() const { return cluster_; }
  const SharedMemory& shared() const { return shared_; }
  CopyEngine& copies() { return copies_; }
  Scheduler& scheduler() { return scheduler_; }
  Barriers& barriers() { return barriers_; }
  Witness& witness() { return *witness_; }
  bool is_watched() const { return watched_ != nullptr; }
  Thread& running() const { return scheduler_.running(); }

  /// Records that the running thread begins an operation.
  Thread& at(Op op, std::source_location where) {
    Thread& self = running();
    self.op = op;
    self.where = where;
    ++self.operations;
    return self;
  }
  /// Throws a Fault of the running thread unless `problem` is empty.
  void require(const std::string& problem) const {
    if (!problem.empty()) throw faults_.of(running(), problem);
  }
  /// The Fault of the running thread, where it is at no operation.
  Fault fault(const std::string& what) const { return faults_.of_block(what); }
  void require_shared(const void* pointer) const;
  /// Suspends the running thread until its operation is over. Every function that can end such a
  /// wait calls wake().
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
  std::string problem() const;

  const Launch& launch_;
  const std::function<void()>& body_;
  const std::uint64_t number_;
  Cluster& cluster_;
  const unsigned rank_;
  std::vector<Thread> threads_;
  std::size_t exited_ = 0;
  const SharedMemory shared_;
  const std::unique_ptr<Witness> watched_;  // null if the block is not watched
  Witness silent_;
  Witness* const witness_;
  CopyEngine copies_;
  const Faults faults_;
  Scheduler scheduler_;
  Barriers barriers_;
};

/// The block that this core is running; null outside kernels.
extern constinit thread_local Block* current_block;

/// The current block, while a function that a kernel calls runs: the clock does not interrupt it.
/// Inlined, so that it can record the address of that call.
class Entered {
 public:
  [[gnu::always_inline]] Entered() : block_(current_block) {
    if (block_ == nullptr) throw std::logic_error("only a kernel may call this");
    block_->scheduler().leaves_kernel();
    block_->running().place = __builtin_return_address(0);
  }
  [[gnu::always_inline]] ~Entered() { block_->scheduler().enters_kernel(); }
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;

  Block& operator*() const { return *block_; }
  Block* operator->() const { return block_; }

 private:
  Block* const block_;
};

}  // namespace simt
