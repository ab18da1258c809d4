// How long a launch takes on a GPU: the one clock of chapters and peers.
//
// Clock 2. A sample is the time between two events around one launch. Before it, L2 is flushed:
// 256 MB are written, several times. This does four things.
//
//   Cold lines.   One flush would make L2 cold. What the launch reads comes from device memory, as
//                 in a network, where other layers ran in between.
//   A full queue. While the device writes, for 0.1 ms a flush, the host puts the launch and both
//                 events into the queue. So a time is the device's alone.
//   A lot.        A place in the queue counts: with the same number of flushes before every sample,
//                 one kernel on the same tensors took 10.1, 10.4, 10.4 or 11.1 us on an H100, by
//                 the number of commands before it modulo 4, and all samples of a call had the same
//                 luck. So the number of flushes is drawn by lot, three to six. It is drawn so that
//                 sixteen samples have each place four times, however many commands a launch is.
//                 And there are 160 samples at least: single samples of a 10 us kernel spread by
//                 some 8 % either way, so that a median of 50 still moves by 2 %.
//   Turns.        A line that was loaded with evict_last outlives a flush. So copies of the inputs
//                 take turns, as many as make 256 MB of x, 32 at most. A plain copy of 8 MiB took
//                 10.7 us and one with such loads 9.0; with 24 copies of x in turns, 10.6 and 10.4.
//
// As a chapter's program, as the library's choice and as a peer's provider one kernel has the same
// time, within 2 % at 8 MiB: notebooks/data/clock_h100.jsonl.
//
// Clock 1, of older records: one flush before each sample, and the same inputs in all.
//
// `make peers` times with the same clock, in Python: common/bench/peer_clock.py.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <random>
#include <vector>

#include "common/harness/device.h"
#include "common/kernel/description.h"

namespace lnc {

inline constexpr int kClock = 2;  ///< the method's number, in records

struct Sampling {
  int samples = 320;          ///< at most; 0 times nothing
  double budget_ms = 1000.0;  ///< device time to spend; one sample is taken however long it is
  bool cold = true;           ///< flush L2 before each sample, and let inputs take turns
};

struct Timing {
  double median_us, p10_us, p90_us;
  int samples;
  bool cut_short;                ///< the budget ended it before the median was stable
  std::optional<double> cycles;  ///< elapsed SM cycles at the median; none where emulated
};

/// How many copies of the inputs take turns in launches of `problem`.
int turns(const Problem& problem, const Sampling& sampling);

/// Draws how often L2 is flushed before each sample.
///
/// A flush more moves a sample, and all behind it, one place further. The lots are places; from one
/// to the next goes a number of flushes. Of 16 samples, the four whose numbers leave the same rest
/// when divided by 4 have all four places. What a launch itself puts into the queue moves sample
/// number i by i times a constant, the same for each of those four: they have all four places
/// again.
class Lots {
 public:
  static constexpr int kLeast = 3;
  static constexpr int kPlaces = 4;  ///< in the queue
  static constexpr int kRound = kPlaces * kPlaces;

  /// @param cold false: never
  std::vector<int> draw(int count, bool cold);

 private:
  void begin_round();

  std::minstd_rand random_{1};
  std::array<int, kRound> places_{};
  int next_ = kRound;  ///< in places_
  int place_ = 0;      ///< of the last sample
};

/// Takes `count` samples, in microseconds.
using TakeSamples = std::function<std::vector<double>(int count)>;

/// Samples until the median is stable, the samples are enough or the budget is spent. No cycles.
Timing sample(const TakeSamples& take, const Sampling& sampling);

/// Whether the newer half of the samples has the median of all of them, within 0.5 %; of fewer than
/// 160 samples none has.
bool stable(const std::vector<double>& samples);

/// Times launches that take turns. Warm them up before. An emulated device gets a few samples: they
/// say nothing about a GPU.
Timing time_launches(const std::vector<Launch>& launches, const Sampling& sampling);

/// Microseconds that the device needs to stream tensors of `bytes` each: for backward a triad (two
/// reads, one write), else a copy (one read, one write). The best of a few launch
/// shapes, each by the clock above; none where the device is emulated, there is nothing to stream,
/// or the tensors do not fit in device memory beside what is there.
std::optional<double> roof_us(Direction direction, std::int64_t bytes, bool cold);

/// How event times turn into cycles. A kernel that spins for a known number of cycles, at two
/// lengths, gives a line: its slope is the SM clock, where it meets zero is what the events add.
struct CycleClock {
  double cycles_per_us;
  double overhead_us;

  double cycles(double event_us) const { return (event_us - overhead_us) * cycles_per_us; }
};
/// None where the device is emulated.
std::optional<CycleClock> measure_cycle_clock();

}  // namespace lnc
