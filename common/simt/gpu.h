// What the machine knows of a GPU inside run_on_gpus.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <list>
#include <mutex>
#include <random>
#include <string>

#include "common/simt/machine.h"
#include "common/simt/progress.h"
#include "common/simt/stacks.h"

namespace simt {

inline constexpr int kMaxGpus = 8;
inline constexpr std::uint32_t kWordBytes = 16;
inline constexpr int kGpuCores = 64;  // blocks that a GPU holds: 2 multiprocessors of at most 32

/// Lets the blocks of all GPUs run one at a time, for watchers.
class Turn {
 public:
  /// Waits for the turn; gives it to the block that the schedule chooses of those that wait.
  void take();
  void give();
  void pass() {
    give();
    take();
  }

 private:
  struct Waiting {
    std::condition_variable goes_on;
    bool has_turn = false;
  };
  std::mutex mutex_;
  std::list<Waiting> waiting_;
  bool taken_ = false;
  std::mt19937_64 random_{schedule().seed};
};

struct Gpus {
  explicit Gpus(int count) : count(count), running(count * kGpuCores) { running.hosts = count; }
  const int count;
  Running running;
  Turn turn;
};

struct Gpu {
  Gpu(Gpus& all, int number, StackPool* stack_pools)
      : all(all), number(number), first_core(number * kGpuCores), stack_pools(stack_pools) {}
  Gpus& all;
  const int number;
  const int first_core;          // of its cores, among those of all GPUs
  StackPool* const stack_pools;  // of these cores
  int launches = 0;
};

/// The GPU of the calling host thread or core; null outside run_on_gpus.
extern constinit thread_local Gpu* gpu_here;

/// The turn, while this core has it or waits for it; null unless blocks run one at a time.
extern constinit thread_local Turn* turn_here;

/// Has the turn, if blocks of several GPUs run one at a time.
class OneAtATime {
 public:
  explicit OneAtATime(bool wanted) {
    if (!wanted || gpu_here == nullptr) return;
    turn_here = &gpu_here->all.turn;
    turn_here->take();
  }
  ~OneAtATime() {
    if (turn_here != nullptr) turn_here->give();
    turn_here = nullptr;
  }
  OneAtATime(const OneAtATime&) = delete;
  OneAtATime& operator=(const OneAtATime&) = delete;
};

/// Thrown by a launch that ends because another GPU has failed.
struct Stopped {};

/// A launch on this host thread's GPU, if there are several: begins when the schedule says.
class InLaunch {
 public:
  explicit InLaunch(const Schedule& schedule);
  ~InLaunch();
  InLaunch(const InLaunch&) = delete;
  InLaunch& operator=(const InLaunch&) = delete;
};

/// What is known of a word on which a thread spins: ", a word of epoch 6,".
std::string word_at(const void* address);

/// Held by a launch, or by run_on_gpus: two grids at once would need too many stacks.
std::mutex& alone();

}  // namespace simt
