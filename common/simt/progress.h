// Whether a grid makes progress: a block whose threads spin may wait for what another block does,
// so all blocks count. Progress is a thread that starts to wait or ends, a copy that arrives, an
// atomic that changes memory, and a thread that runs through states in which it has not been
// before.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

namespace simt {

// A stack and its guard page take two memory mappings, and Linux allows a process 65530, so at most
// 16 blocks of 1024 threads can run at once.
inline constexpr int kMaxCores = 16;

/// Shared by the blocks of a launch.
struct Grid {
  explicit Grid(std::uint64_t blocks) : blocks(blocks) {}

  struct alignas(64) Core {  // a cache line of its own
    std::atomic<std::uint64_t> moves{0}, advances{0};
  };
  const std::uint64_t blocks;
  std::atomic<std::uint64_t> begun{0};
  std::atomic<bool> failed{false};
  std::array<Core, kMaxCores> cores;
};

/// The progress of the blocks that run on one core, one after another.
class Progress {
 public:
  Progress(Grid& grid, int core) : grid_(grid), core_(grid.cores[core]) {}

  bool failed() const { return grid_.failed.load(std::memory_order_relaxed); }
  void begins_block();
  /// What is wrong after a round; empty if nothing is.
  /// @param moved whether a thread waited or ended, a copy arrived or an atomic changed memory
  /// @param advances whether a thread that was interrupted was in a new state
  std::string problem(bool moved, bool advances, std::chrono::duration<double> patience);

 private:
  using Clock = std::chrono::steady_clock;

  Grid& grid_;
  Grid::Core& core_;
  std::uint64_t moves_ = 0, advances_ = 0;  // of the grid, when it was last seen to make progress
  Clock::time_point last_move_, last_advance_;
  int quiet_rounds_ = 0;
};

/// Whether an atomic of a kernel has changed memory on this core.
extern constinit thread_local bool memory_changed;

}  // namespace simt
