#include "common/harness/stopwatch.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/harness/statistics.h"

namespace lnc {
namespace {

/// The median of a launch's samples, for measurements of the device itself.
double median_us(const Launch& launch, int count, bool cold) {
  launch();  // warms up
  return median(Sampler({launch}, cold).take(count));
}

}  // namespace

int input_copies(const Problem& problem, const Sampling& sampling) {
  constexpr std::int64_t kMost = 32;  // more would not help tiny problems, which launches dominate
  if (device().emulated || !sampling.cold || sampling.samples == 0) return 1;
  const std::int64_t bytes = std::max<std::int64_t>(problem.tensor_bytes(), 1);
  return static_cast<int>(std::min(kMost, (kFlushBytes + bytes - 1) / bytes));
}

std::vector<int> FlushSchedule::draw(int count, bool cold) {
  std::vector<int> flushes(count, 0);
  if (!cold) return flushes;
  for (int& flush : flushes) {
    if (next_ == kRound) begin_round();
    const int slot = slots_[next_++];
    flush = kLeast + (slot - slot_ + kSlots) % kSlots;
    slot_ = slot;
  }
  return flushes;
}

void FlushSchedule::begin_round() {
  std::array<int, kSlots> all{};
  std::iota(all.begin(), all.end(), 0);
  for (int rest = 0; rest < kSlots; ++rest) {
    std::shuffle(all.begin(), all.end(), random_);
    for (int i = 0; i < kSlots; ++i) slots_[i * kSlots + rest] = all[i];
  }
  next_ = 0;
}

std::vector<double> Sampler::take(int count) {
  constexpr int kPatience = 4;  // samples tried for each that is asked for
  const auto enough = static_cast<std::size_t>(count);
  std::vector<double> taken;
  for (int tried = 0; taken.size() < enough;) {
    std::vector<int> flushes = schedule_.draw(count - static_cast<int>(taken.size()), cold_);
    for (int& flush : flushes) flush += more_flushes_;
    bool came_late = false;
    for (const Sample& sample : time_launches(launches_, flushes, turn_, host_)) {
      came_late |= sample.late;
      if (sample.late && ++tried <= (kPatience - 1) * count) continue;
      late_ |= sample.late;
      taken.push_back(sample.us);
    }
    const int more = 2 * more_flushes_ + FlushSchedule::kLeast;
    if (came_late && more < kMostFlushes) more_flushes_ = more;
  }
  return taken;
}

bool stable(const std::vector<double>& samples) {
  constexpr std::size_t kEnough = 10 * FlushSchedule::kRound;
  constexpr double kTolerance = 0.005;
  if (samples.size() < kEnough) return false;
  const std::vector<double> newer(samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2),
                                  samples.end());
  const double all = median(samples);
  return std::abs(median(newer) - all) <= kTolerance * all;
}

Timing sample(const TakeSamples& take, const Sampling& sampling) {
  constexpr int kBatch = FlushSchedule::kRound;
  const double budget_us = 1e3 * sampling.budget_ms;
  std::vector<double> samples = take(1);
  double spent_us = samples.front();
  const auto room = [&] {
    const double each = spent_us / static_cast<double>(samples.size());
    const double affordable = std::min((budget_us - spent_us) / std::max(each, 0.1), 1e6);
    const int left = sampling.samples - static_cast<int>(samples.size());
    return std::min({kBatch, left, static_cast<int>(affordable)});
  };
  while (!stable(samples)) {
    const int count = room();
    if (count <= 0) break;
    const auto batch = take(count);
    samples.insert(samples.end(), batch.begin(), batch.end());
    spent_us = std::accumulate(samples.begin(), samples.end(), 0.0);
  }
  return {
      .median_us = median(samples),
      .p10_us = quantile(samples, 0.1),
      .p90_us = quantile(samples, 0.9),
      .samples = static_cast<int>(samples.size()),
      .cut_short = !stable(samples) && static_cast<int>(samples.size()) < sampling.samples,
      .cycles = std::nullopt,
  };
}

Timing time_samples(const TakeSamples& take, const Sampling& sampling) {
  constexpr int kEmulated = 5;
  Sampling enough = sampling;
  if (device().emulated) enough.samples = std::min(sampling.samples, kEmulated);
  Timing timing = sample(take, enough);
  if (const auto clock = measure_cycle_clock()) timing.cycles = clock->cycles(timing.median_us);
  return timing;
}

Timing time_launches(const std::vector<Launch>& launches, const Sampling& sampling) {
  Sampler sampler(launches, sampling.cold);
  return time_samples([&](int count) { return sampler.take(count); }, sampling);
}

std::optional<double> roof_us(Direction direction, std::int64_t bytes, bool cold) {
  constexpr int kSamples = 5 * FlushSchedule::kRound;
  const bool triad = direction == Direction::Backward;
  if (device().emulated || bytes < 16) return std::nullopt;
  if ((triad ? 3 : 2) * bytes > free_device_bytes()) return std::nullopt;
  const Buffer a(bytes);
  const Buffer b(triad ? bytes : 0);
  const Buffer c(bytes);
  double best = 0.0;
  for (int shape = 0; shape < kStreamShapes; ++shape) {
    const double us = median_us([&] { launch_stream(shape, a, b, c); }, kSamples, cold);
    if (shape == 0 || us < best) best = us;
  }
  return best;
}

std::optional<CycleClock> measure_cycle_clock() {
  if (device().emulated) return std::nullopt;
  constexpr long long kShort = 20'000;  // about 10 us
  constexpr long long kLong = 200'000;
  constexpr int kSamples = FlushSchedule::kRound;
  const double short_us = median_us([] { launch_spin(kShort); }, kSamples, true);
  const double long_us = median_us([] { launch_spin(kLong); }, kSamples, true);
  const double cycles_per_us = static_cast<double>(kLong - kShort) / (long_us - short_us);
  return CycleClock{cycles_per_us, short_us - static_cast<double>(kShort) / cycles_per_us};
}

}  // namespace lnc
