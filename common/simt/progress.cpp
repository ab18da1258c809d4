#include "common/simt/progress.h"

#include <algorithm>

namespace simt {
namespace {

constexpr int kQuietRounds = 8;  // a thread in a loop has shown its few states by then
constexpr int kLongRuns = 15;    // of Schedule::longest_run, where no thread is found to compute

}  // namespace

constinit thread_local bool memory_changed = false;

void Progress::begins_block() {
  ++grid_.begun;
  core_.moves.fetch_add(1, std::memory_order_relaxed);
  last_move_ = last_advance_ = Clock::now();
  quiet_rounds_ = 0;
  core_.is_quiet = false;
}

void Progress::ends_block() {
  core_.moves.fetch_add(1, std::memory_order_relaxed);
  core_.is_quiet = true;
}

std::string Progress::problem(bool moved, bool advances, const Schedule& schedule) {
  const auto count = [](std::atomic<std::uint64_t>& counter) {  // only this core writes to it
    counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  };
  if (advances) count(core_.advances);
  if (moved) {
    count(core_.moves);
    quiet_rounds_ = 0;
    core_.is_quiet.store(false, std::memory_order_relaxed);
    return "";
  }
  const Clock::time_point now = Clock::now();
  const bool hosts =
      grid_.running.hosts > 0;  // before the moves: a launch moves, then leaves these
  std::uint64_t all_moves = 0, all_advances = 0;
  for (const Running::Core& core : grid_.running.cores) {
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
  core_.is_quiet.store(quiet_rounds_ >= kQuietRounds, std::memory_order_relaxed);
  // A host thread between two launches makes progress that is not seen here.
  const int times = hosts ? kLongRuns : 1;
  const bool all_quiet =
      std::all_of(grid_.running.cores.begin(), grid_.running.cores.end(),
                  [](const Running::Core& core) { return core.is_quiet.load(); });
  if (all_quiet && now - last_advance_ > times * schedule.patience)
    return "its threads spin, and what they wait for does not come" + others();
  if (now - last_move_ > kLongRuns * schedule.longest_run)
    return "its threads run on and on, and none reaches a barrier or its end";
  return "";
}

// Why nothing else brings it.
std::string Progress::others() const {
  const std::uint64_t waiting = grid_.blocks - grid_.begun;
  if (waiting > 0)
    return "; " + std::to_string(waiting) + (waiting == 1 ? " block has" : " blocks have") +
           " not started, since " +
           (grid_.at_once == 0 ? "a core runs one block at a time"
                               : "the GPU holds " + std::to_string(grid_.at_once) + " at once");
  if (grid_.running.hosts > 0) return ", and another GPU runs no kernel";
  return ", since every other thread waits, spins or has ended";
}

}  // namespace simt
