// Measures how long a launch takes on a GPU: one clock for chapters and peers.
//
// Clock 2. A sample is the time between two events around one launch. Before it, L2 is flushed by
// writing 256 MB, several times. Four things matter.
//
//   Cold lines.   One flush makes L2 cold. The launch then reads from device memory, as in a
//                 network, where other layers run in between.
//   A full queue. While the device writes, for 0.1 ms per flush, the host enqueues the launch and
//                 both events. So the time does not include the host's. A sample for which the
//                 host was late, because the device reached the first event before the second was
//                 enqueued, is taken again with twice the flushes.
//   Random slots. The slot in the queue matters: with the same number of flushes before every
//                 sample, one kernel on the same tensors took 10.1, 10.4, 10.4 or 11.1 us on an
//                 H100, depending on the number of commands before it modulo 4, and all samples of
//                 a call had the same slot. So the number of flushes is drawn at random, three to
//                 six, such that sixteen samples get each slot four times, whatever the number of
//                 commands in a launch. And there are at least 160 samples: single samples of a
//                 10 us kernel vary by some 8 % either way, so a median of 50 still moves by 2 %.
//   Input copies. A line that was loaded with evict_last survives a flush. So launches use copies
//                 of the inputs in turn, enough for 256 MB of x, but at most 32. A plain copy of
//                 8 MiB took 10.7 us and one with such loads 9.0; with 24 copies of x, 10.6 and
//                 10.4.
//
// A kernel's time is the same, within 2 % at 8 MiB, whether a chapter's program, the library's
// dispatch or a peer's provider launches it: notebooks/data/clock_h100.csv.
//
// Clock 1, in older records: one flush before each sample, and the same inputs for all samples.
//
// `make peers` times with this clock too: common/bench/clock.cpp is its C interface.
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
  double budget_ms = 1000.0;  ///< device time to spend; takes one sample however long it is
  bool cold = true;           ///< flush L2 before each sample, and use copies of the inputs in turn
};

struct Timing {
  double median_us, p10_us, p90_us;
  int samples;
  bool cut_short;                ///< the budget was spent before the median was stable
  std::optional<double> cycles;  ///< elapsed SM cycles at the median; none if emulated
};

/// How many copies of the inputs the launches of `problem` use in turn.
int input_copies(const Problem& problem, const Sampling& sampling);

/// Draws how often L2 is flushed before each sample.
///
/// Each extra flush shifts this and all later samples by one queue slot. So the schedule draws a
/// slot for each sample, and the number of flushes follows from the distance to the previous
/// sample's slot. Among 16 samples, the four whose indices are equal modulo 4 get all four slots.
/// A launch's own commands shift sample i by i times a constant, which modulo 4 is the same for all
/// four, so they still get all four slots.
class FlushSchedule {
 public:
  static constexpr int kLeast = 3;
  static constexpr int kSlots = 4;  ///< in the queue
  static constexpr int kRound = kSlots * kSlots;

  /// @param cold if false, never flush
  std::vector<int> draw(int count, bool cold);

 private:
  void begin_round();

  std::minstd_rand random_{1};
  std::array<int, kRound> slots_{};
  int next_ = kRound;  ///< in slots_
  int slot_ = 0;       ///< of the last sample
};

/// Takes samples of launches, used in turn; warm them up first.
class Sampler {
 public:
  /// @param cold if false, L2 is never flushed, and no sample counts as late
  explicit Sampler(std::vector<Launch> launches, bool cold = true, Host host = Host::Hidden)
      : launches_(std::move(launches)), cold_(cold), host_(host) {}

  /// Takes `count` samples, in microseconds.
  std::vector<double> take(int count);

  /// Whether some of the samples include the host's time, however many flushes went before.
  bool late() const { return late_; }

 private:
  static constexpr int kMostFlushes = 96;  // about 10 ms
  std::vector<Launch> launches_;
  bool cold_;
  Host host_;
  FlushSchedule schedule_;
  std::size_t turn_ = 0;
  int more_flushes_ = 0;  // than the schedule draws, since the host was late
  bool late_ = false;
};

/// Takes `count` samples, in microseconds.
using TakeSamples = std::function<std::vector<double>(int count)>;

/// Samples until the median is stable, sampling.samples are taken or the budget is spent. Does not
/// set Timing::cycles.
Timing sample(const TakeSamples& take, const Sampling& sampling);

/// Whether the median of the newer half of the samples is within 0.5 % of the median of all. Fewer
/// than 160 samples are never stable.
bool stable(const std::vector<double>& samples);

/// Samples as sample() does, and sets Timing::cycles. On an emulated device it takes only a few
/// samples, since they say nothing about a GPU.
Timing time_samples(const TakeSamples& take, const Sampling& sampling);

/// The same for launches in turn; warm them up first.
Timing time_launches(const std::vector<Launch>& launches, const Sampling& sampling);

/// Microseconds that the device needs to stream tensors of `bytes` each: for backward a triad (two
/// reads, one write), otherwise a copy (one read, one write). The best of a few launch shapes, each
/// timed by the clock above; none if the device is emulated, there is nothing to stream, or the
/// tensors do not fit in the free device memory.
std::optional<double> roof_us(Direction direction, std::int64_t bytes, bool cold);

/// Converts event times to cycles. Timing a kernel that spins for two known numbers of cycles gives
/// a line: its slope is the SM clock, and its intercept is what the events add.
struct CycleClock {
  double cycles_per_us;
  double overhead_us;

  double cycles(double event_us) const { return (event_us - overhead_us) * cycles_per_us; }
};
/// None if the device is emulated.
std::optional<CycleClock> measure_cycle_clock();

}  // namespace lnc
