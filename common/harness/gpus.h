// The GPUs of this machine that share a problem, and how long a launch on all of them takes.
// gpus_cuda.cu and gpus_cpu.cpp implement it; a program links one of them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace lnc {

struct Peers;  // common/kernel/peers.h

/// How many GPUs there are; the CPU backend has as many as it can run side by side.
int gpu_count();

/// How many a program uses unless it is told: all, or two of the SIMT machine.
int usual_gpus();

/// "GPUs 0 to 1: NVIDIA H200, linked by NVLink"; of two or more.
std::string describe_gpus(int count);

/// GPUs 0 to count - 1, with windows through which their kernels reach each other.
class Gpus {
 public:
  /// @param slots that a launch may use for words, from each GPU to each
  /// @throws std::runtime_error if there are fewer GPUs, or two of them are not linked
  Gpus(int count, std::int64_t slots);
  ~Gpus();
  Gpus(const Gpus&) = delete;

  int count() const;
  /// What kernels on this GPU are given.
  const Peers& peers(int gpu) const;

  /// Calls work(0), work(1), …, with that GPU as the current one. What they launch runs side by
  /// side; on the CPU backend the calls do, too.
  void each(const std::function<void(int gpu)>& work) const;
  /// Waits for all GPUs.
  /// @throws std::runtime_error if a kernel has failed, or has waited in vain for a word
  void synchronize() const;

  /// The microseconds that `work`, called on each GPU, takes on the slowest of them: a sample for
  /// each number in `flushes`, which says how often L2 is flushed before it. All GPUs start when
  /// the last has flushed.
  std::vector<double> time(const std::function<void(int gpu)>& work,
                           const std::vector<int>& flushes) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lnc
