// One chapter on one problem: whether it can run here, whether it is right, and how long it takes.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/harness/check.h"
#include "common/harness/stopwatch.h"
#include "common/kernel/registry.h"

namespace lnc {

/// The parts of a fusion as separate kernels, to compare a fused chapter with.
struct PartsResult {
  int kernels;
  std::int64_t predicted_bytes;
  std::optional<double> median_us;  ///< of all of them, one after another; none if not timed
};

/// The result of one chapter on one problem.
struct Result {
  const Chapter* chapter;
  Problem problem;
  std::string set;  ///< the problem set that contains it; empty for none
  bool cold = true;
  std::vector<OutputCheck> checks;
  std::optional<Timing> timing;   ///< none if not timed
  std::optional<double> roof_us;  ///< of the same run, size and L2 state
  // Of several GPUs: those of the one that has most.
  std::int64_t roof_bytes;           ///< that the roof's copy or triad moves
  std::int64_t operator_bytes;       ///< that any kernel must move
  std::int64_t predicted_bytes;      ///< that this one should move
  std::optional<PartsResult> parts;  ///< none if has_parts is false or memory does not suffice
  std::string error;                 ///< the message if a launch or a kernel failed

  bool passed() const;
  double gbps() const;  ///< the operator's bytes over the median
  std::optional<double> roof_gbps() const;
  std::optional<double> percent_of_roof() const;  ///< of its bytes per second
};

/// Why `chapter` cannot run `problem` here; empty if it can.
Refusal obstacle(const Chapter& chapter, const Problem& problem);

/// The roofs of one run of the program, each measured once.
class Roofs {
 public:
  std::optional<double> us(Direction direction, const Problem& problem, const Sampling& sampling);

 private:
  std::map<std::pair<Direction, std::int64_t>, std::optional<double>> roofs_;
};

/// Launches the chapter for the check, then for the time. A failure is in the result's `error`.
Result run_chapter(const Chapter& chapter, const Tensors& tensors, const Sampling& sampling,
                   Roofs& roofs);

}  // namespace lnc
