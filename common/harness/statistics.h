// Order statistics of timing samples.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace lnc {

/// The q-quantile of `samples` (0 <= q <= 1), linear between the two nearest. Needs one sample.
inline double quantile(std::vector<double> samples, double q) {
  std::sort(samples.begin(), samples.end());
  const double at = q * static_cast<double>(samples.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const auto above = std::min(below + 1, samples.size() - 1);
  return std::lerp(samples[below], samples[above], at - static_cast<double>(below));
}

inline double median(std::vector<double> samples) { return quantile(std::move(samples), 0.5); }

}  // namespace lnc
