// The stopwatch's C interface, for the peers: common/bench/clock.py calls it from Python.
#include <exception>
#include <stdexcept>
#include <string>

#include "common/harness/stopwatch.h"

namespace {
std::string last_error;
}  // namespace

extern "C" {

/// Takes `count` samples of `launch`, in microseconds, into `us`.
/// @param launch enqueues work on the default stream; not 0 ends the sampling
/// @param with_host whether a sample includes the host's time
/// @param late becomes 1 where samples include the host's time in spite of all; else 0
/// @return 0, or 1 and lnc_clock_error() says why
int lnc_clock_samples(int (*launch)(), int count, int with_host, double* us, int* late) {
  try {
    const auto checked = [launch] {
      if (launch() != 0) throw std::runtime_error("the launch failed");
    };
    lnc::Sampler sampler({checked}, true, with_host ? lnc::Host::Counted : lnc::Host::Hidden);
    for (const double sample : sampler.take(count)) *us++ = sample;
    *late = sampler.late();
    return 0;
  } catch (const std::exception& error) {
    last_error = error.what();
    return 1;
  }
}

const char* lnc_clock_error() { return last_error.c_str(); }

}  // extern "C"
