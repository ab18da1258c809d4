// A clock on each core. A thread that runs on and on without calling the machine, in a loop on a
// volatile flag for example, would keep all others from running: the clock interrupts it in the
// middle of its code, and the scheduler goes on with the next one.
#pragma once

#include <time.h>

#include "common/simt/watch.h"

namespace simt {

/// Runs on the core that makes it, while it exists.
class Clock {
 public:
  Clock();
  ~Clock();
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;

  /// Interrupts often, as long as threads have to be interrupted; rarely again.
  void hurry();
  static void slow_down();
  bool is_fast() const { return is_fast_; }

 private:
  timer_t slow_{}, fast_{};
  bool is_fast_ = false;
};

/// For the start of a basic block of a watched kernel, in which the clock only asks for the core.
void give_way(Place place);

}  // namespace simt
