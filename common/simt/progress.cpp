#include "common/simt/progress.h"

namespace simt {
namespace {

constexpr int kQuietRounds = 8;  // a thread in a loop has shown its few states by then
constexpr int kLongRun = 15;     // times the patience, for threads that only compute

}  // namespace

constinit thread_local bool memory_changed = false;

void Progress::begins_block() {
  ++grid_.begun;
  core_.moves.fetch_add(1, std::memory_order_relaxed);
  last_move_ = last_advance_ = Clock::now();
  quiet_rounds_ = 0;
}

std::string Progress::problem(bool moved, bool advances, std::chrono::duration<double> patience) {
  const auto count = [](std::atomic<std::uint64_t>& counter) {  // only this core writes to it
    counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  };
  if (advances) count(core_.advances);
  if (moved) {
    count(core_.moves);
    quiet_rounds_ = 0;
    return "";
  }
  const Clock::time_point now = Clock::now();
  std::uint64_t all_moves = 0, all_advances = 0;
  for (const Grid::Core& core : grid_.cores) {
    all_moves += core.moves.load(std::memory_order_relaxed);
    all_advances += core.advances.load(std::memory_order_relaxed);
  }
  ++quiet_rounds_;
  if (all_moves != moves_) last_move_ = now;
  if (all_moves != moves_ || all_advances != advances_) {
    last_advance_ = now;
    quiet_rounds_ = 0;
  }
  moves_ = all_moves;
  advances_ = all_advances;
  const std::uint64_t waiting = grid_.blocks - grid_.begun;
  const std::string others = waiting > 0 ? "; " + std::to_string(waiting) +
                                               (waiting == 1 ? " block has" : " blocks have") +
                                               " not started, since a core runs one block at a time"
                                         : ", since every other thread waits, spins or has ended";
  if (quiet_rounds_ >= kQuietRounds && now - last_advance_ > patience)
    return "its threads spin, and what they wait for does not come" + others;
  if (now - last_move_ > kLongRun * patience)
    return "its threads run on and on, and none reaches a barrier or its end";
  return "";
}

}  // namespace simt
