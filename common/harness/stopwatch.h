// How long a launch takes, and what that is worth.
#pragma once

#include <functional>
#include <optional>

#include "common/harness/device.h"

namespace lnc {

struct Sampling {
  int samples = 100;          ///< at most; 0 times nothing
  double budget_ms = 1000.0;  ///< device time to spend; one sample is taken however long it is
  bool cold = true;           ///< overwrite L2 before each sample
};

struct Timing {
  double median_us, p10_us, p90_us;
  int samples;
  bool cut_short;                ///< the budget ended it before the median was stable
  std::optional<double> cycles;  ///< elapsed SM cycles at the median; none where emulated
};

/// Samples `launch` until the median is stable or the sampling ends. Warm it up before.
/// @param launch puts a chapter's kernels on the default stream and does not wait for them
Timing time_chapter(const std::function<void()>& launch, const Sampling& sampling);

}  // namespace lnc
