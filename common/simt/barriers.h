// Where a block's threads meet: __syncthreads and the warp operations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <source_location>
#include <vector>

#include "common/simt/faults.h"
#include "common/simt/scheduler.h"
#include "common/simt/thread.h"
#include "common/simt/watch.h"

namespace simt {

class Barriers {
 public:
  /// @param watched whether to report to `witness` which lanes shuffles read
  Barriers(std::vector<Thread>& threads, Scheduler& scheduler, const Faults& faults,
           Witness& witness, bool watched);

  /// simt::barrier and simt::collective, for the running thread.
  std::uint64_t wait_for_block(std::source_location where, bool vote);
  std::uint64_t collective(Op op, unsigned mask, std::uint64_t value, int x, int width,
                           std::source_location where);
  /// simt::active_lanes, for the running thread, and the end of all such waits. Returns whether
  /// there were any.
  unsigned active_lanes(std::source_location where);
  bool end_active_lanes();
  /// Marks a thread as exited: the lanes of its warp no longer wait for it.
  void exit(const Thread& thread);

 private:
  struct Warp {
    unsigned waiting = 0;  // lanes at a warp operation
    unsigned exited = 0;
  };

  Thread* lanes_of(const Thread& thread) { return &threads_[thread.warp() * kWarpSize]; }
  void complete(const Thread& last);
  static unsigned same_as(const Thread& reader, const Thread* lanes, unsigned active);
  Fault no_source(const Thread& reader) const;
  void tell_of_shuffle(const Thread* lanes, unsigned active);

  std::vector<Thread>& threads_;
  Scheduler& scheduler_;
  const Faults& faults_;
  Witness& witness_;
  const bool watched_;
  std::vector<Warp> warps_;
  std::size_t at_barrier_ = 0;
  std::uint64_t votes_ = 0;  // of the threads at the barrier
};

}  // namespace simt
