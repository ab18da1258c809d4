// Whether a grid makes progress: a block whose threads spin may wait for what another block does,
// so all blocks count. Progress is a thread that starts to wait or ends, a copy that arrives, an
// atomic that changes memory, and a thread that runs through states in which it has not been
// before.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "common/simt/machine.h"

namespace simt {

// A stack and its guard page take two memory mappings, and Linux allows a process 65530, so at most
// 16 blocks of 1024 threads can run at once.
inline constexpr int kMaxCores = 16;

/// Shared by the blocks that run side by side: those of a launch, or of several GPUs' launches.
struct Running {
  explicit Running(int cores) : cores(cores) {}

  struct alignas(64) Core {  // a cache line of its own
    std::atomic<std::uint64_t> moves{0}, advances{0};
    std::atomic<bool> is_quiet{true};  ///< its block's threads spin, or it runs none
  };
  std::atomic<bool> failed{false};
  std::atomic<int> hosts{0};  ///< of GPUs that run no kernel, but may yet launch one
  std::vector<Core> cores;
};

/// Shared by the blocks of a launch.
struct Grid {
  const std::uint64_t blocks;
  const std::uint64_t at_once;  ///< blocks of it, on a GPU that is one of several; else 0
  Running& running;
  std::atomic<std::uint64_t> begun{0};
};

/// The progress of the blocks that run on one core, one after another.
class Progress {
 public:
  Progress(Grid& grid, int core) : grid_(grid), core_(grid.running.cores[core]) {}

  bool failed() const { return grid_.running.failed.load(std::memory_order_relaxed); }
  void begins_block();
  void ends_block();
  /// What is wrong after a round; empty if nothing is.
  /// @param moved whether a thread waited or ended, a copy arrived or an atomic changed memory
  /// @param advances whether a thread that was interrupted was in a new state
  std::string problem(bool moved, bool advances, const Schedule& schedule);

 private:
  std::string others() const;

  using Clock = std::chrono::steady_clock;

  Grid& grid_;
  Running::Core& core_;
  std::uint64_t moves_ = 0,
                advances_ = 0;  // of all cores, when they were last seen to make progress
  Clock::time_point last_move_, last_advance_;
  int quiet_rounds_ = 0;
};

/// Whether an atomic of a kernel has changed memory on this core.
extern constinit thread_local bool memory_changed;

}  // namespace simt
