#include "common/harness/stopwatch.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/harness/statistics.h"

namespace lnc {
namespace {

/// Stable: the newer half of the samples has the median of all of them, within 0.5 %.
bool stable(const std::vector<double>& samples) {
  constexpr std::size_t kEnough = 20;
  constexpr double kTolerance = 0.005;
  if (samples.size() < kEnough) return false;
  const std::vector<double> newer(samples.begin() + samples.size() / 2, samples.end());
  const double all = median(samples);
  return std::abs(median(newer) - all) <= kTolerance * all;
}

}  // namespace

Timing time_chapter(const std::function<void()>& launch, const Sampling& sampling) {
  constexpr int kBatch = 10;
  const double budget_us = 1e3 * sampling.budget_ms;
  std::vector<double> samples = time_launches(launch, 1, sampling.cold);
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
    const auto batch = time_launches(launch, count, sampling.cold);
    samples.insert(samples.end(), batch.begin(), batch.end());
    spent_us = std::accumulate(samples.begin(), samples.end(), 0.0);
  }
  Timing timing{
      .median_us = median(samples),
      .p10_us = quantile(samples, 0.1),
      .p90_us = quantile(samples, 0.9),
      .samples = static_cast<int>(samples.size()),
      .cut_short = !stable(samples) && static_cast<int>(samples.size()) < sampling.samples,
      .cycles = std::nullopt,
  };
  if (const auto clock = measure_clock()) timing.cycles = clock->cycles(timing.median_us);
  return timing;
}

}  // namespace lnc
