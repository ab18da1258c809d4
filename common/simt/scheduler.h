// Runs a block's threads on its core, one at a time. A thread is a fiber: it runs until it must
// wait, then hands the core to the next lane of its warp; the last lane returns to the scheduler.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "common/simt/thread.h"
#include "common/simt/turns.h"
#include "common/simt/watch.h"

namespace simt {

class Scheduler {
 public:
  /// @param body runs the current thread from start to exit
  Scheduler(std::vector<Thread>& threads, std::function<void()> body, Witness& witness)
      : threads_(threads), body_(std::move(body)), witness_(witness) {}
  Scheduler(const Scheduler&) = delete;

  struct Round {
    bool some_ran = true;
    bool progress = true;   ///< a thread did more than spin
    bool advances = false;  ///< the clock has found a thread in a new state
  };
  /// Runs every warp that is awake.
  Round run_round(Turns& turns);

  Thread& running() const { return *running_; }

  /// Hands the core on and returns at the running thread's next turn. A round in which threads only
  /// do this makes no progress.
  void suspend();
  /// The same for a thread that starts to wait, which counts as progress.
  void suspend_waiting();

  // For the clock (clock.h). A kernel's thread that has run for a slice of time may be interrupted,
  // unless it is in a function of the machine.
  void enters_kernel() { in_kernel_.store(true, std::memory_order_release); }
  void leaves_kernel() {
    in_kernel_.store(false, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  bool in_kernel() const { return in_kernel_.load(std::memory_order_relaxed); }
  /// Whether the same thread has run since the last call.
  bool has_run_since() { return std::exchange(switches_seen_, switches_) == switches_; }
  /// Hands the core on, in the middle of the kernel's code.
  /// @param state of the thread: a number made of its registers
  void interrupt(Place at, std::uint64_t state);
  /// Whether the running thread may go on instead. To run all threads of a block in turn would let
  /// each take as long as all: of those that only compute, one has half of the time until it waits
  /// or ends.
  bool may_run_on() const;
  /// That thread, if it has had so many seconds of the core, the others' half included; else null.
  const Thread* runs_longer_than(std::chrono::duration<double> limit);

  /// The error that ended the block early; null if none did.
  const std::exception_ptr& error() const { return error_; }
  void fail(std::exception_ptr error) { error_ = std::move(error); }

  /// Ends all suspended threads by an exception, so that their destructors run.
  void unwind();

 private:
  struct LongRun {
    Thread* thread = nullptr;
    unsigned operations = 0;                  // of the thread, when it was found
    int repeated = 0;                         // states in a row in which it has been before
    std::chrono::duration<double> since{};    // when it was found,
    std::chrono::duration<double> went_on{};  // when it went on last,
    std::chrono::duration<double> others{};   // and how long the others had run before
  };

  Thread* next_in_turn();
  void forget_ended_run();
  void go_on_with(Thread* thread, Context& from);
  Context& context_of(Thread* thread);
  void start(Thread& first);
  void run_to_its_end();

  std::vector<Thread>& threads_;
  const std::function<void()> body_;
  Witness& witness_;

  Context self_;             // where run_round() stopped, while a thread runs
  Context* left_ = nullptr;  // of the thread, or the scheduler, that was suspended last
  Thread* running_ = nullptr;
  unsigned warp_ = 0;                // the warp that is running
  std::span<const unsigned> lanes_;  // its lanes that have yet to run
  bool progress_ = false;            // whether one of its lanes has done more than spin
  bool interrupted_ = false;         // whether the clock has interrupted one
  bool advances_ = false;            // whether it was in a new state
  std::atomic<bool> in_kernel_{false};
  LongRun long_run_;
  std::uint64_t switches_ = 0;  // from one thread to another
  std::uint64_t switches_seen_ = 0;
  std::exception_ptr error_;
  bool unwinding_ = false;
};

}  // namespace simt
