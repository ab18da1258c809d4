// Gives a block's threads the core, one at a time. A thread is a fiber: it runs until it must wait,
// then hands the core to the next lane of its warp, and the last lane hands it to the scheduler.
#pragma once

#include <exception>
#include <functional>
#include <span>
#include <vector>

#include "common/simt/thread.h"
#include "common/simt/turns.h"
#include "common/simt/watch.h"

namespace simt {

class Scheduler {
 public:
  /// @param body runs the running thread from its start to its exit
  Scheduler(std::vector<Thread>& threads, std::function<void()> body, Witness& witness)
      : threads_(threads), body_(std::move(body)), witness_(witness) {}
  Scheduler(const Scheduler&) = delete;

  struct Round {
    bool some_ran = true;
    bool progress = true;  ///< a thread did more than spin
  };
  /// Gives every warp that is awake its turns.
  Round run_round(Turns& turns);

  Thread& running() const { return *running_; }

  /// Hands the core on and returns at the running thread's next turn. A round in which threads do
  /// nothing else makes no progress.
  void suspend();
  /// The same for a thread that waits, which is progress.
  void suspend_waiting();

  /// What has ended the block early; null where nothing has.
  const std::exception_ptr& error() const { return error_; }
  void fail(std::exception_ptr error) { error_ = std::move(error); }

  /// Ends all threads that have stopped, so that their destructors run.
  void unwind();

 private:
  Thread* next_in_turn();
  void go_on_with(Thread* thread, Context& from);
  Context& context_of(Thread* thread);
  void start(Thread& first);
  void run_to_its_end();

  std::vector<Thread>& threads_;
  const std::function<void()> body_;
  Witness& witness_;

  Context self_;             // where run_round() stopped, while a thread has its turn
  Context* left_ = nullptr;  // of the thread, or the scheduler, that stopped last
  Thread* running_ = nullptr;
  unsigned warp_ = 0;                // whose lanes have their turns
  std::span<const unsigned> lanes_;  // whose turns are still to come
  bool progress_ = false;            // one of the warp's lanes has done more than spin
  std::exception_ptr error_;
  bool unwinding_ = false;
};

}  // namespace simt
