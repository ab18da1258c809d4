// Applies reference_cpu to some rows of a problem.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "common/harness/values.h"
#include "reference_cpu/fused_layer_norm.h"

namespace lnc {

/// The reference's name for a kind.
inline reference::Norm reference_norm(Kind kind) {
  return kind == Kind::Layer ? reference::Norm::Layer : reference::Norm::Rms;
}

/// A forward pass over some rows, fused or not: its inputs and its results.
class ReferenceForward {
 public:
  /// @param absolute replaces every input by its absolute value, so that the result's `sum` adds up
  /// the magnitudes of the terms, unrounded
  ReferenceForward(const Problem& problem, RowRange rows, bool absolute = false);
  ReferenceForward(const ReferenceForward&) = delete;

  reference::FusedForwardInput in;
  reference::FusedForward run() const { return reference::fused_forward(in); }
  const std::deque<std::vector<double>>& values() const { return kept_; }  ///< to which `in` refers

 private:
  std::deque<std::vector<double>> kept_;  // a deque: spans of its vectors stay valid
  std::vector<std::uint32_t> seeds_, seeds1_;
};

/// What a perfect forward pass stores for some rows: y, the sum of a fusion, mean and rstd, each
/// rounded to its type. mean is empty for Kind::Rms.
struct SavedForward {
  std::vector<double> y, sum, mean, rstd;
};
SavedForward saved_forward(const Problem& problem, RowRange rows);

/// A fused backward pass over some rows, from what a perfect forward pass stores.
class ReferenceBackward {
 public:
  ReferenceBackward(const Problem& problem, RowRange rows);
  ReferenceBackward(const ReferenceBackward&) = delete;

  reference::FusedBackwardInput in;
  reference::FusedBackward run() const { return reference::fused_backward(in); }
  const std::deque<std::vector<double>>& values() const { return kept_; }  ///< to which `in` refers

 private:
  SavedForward saved_;
  std::deque<std::vector<double>> kept_;
  std::vector<std::uint32_t> seeds_, seeds1_;
};

}  // namespace lnc
