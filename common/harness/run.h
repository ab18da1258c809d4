// A chapter at work: its launcher, bound to the tensors of a pass.
#pragma once

#include <vector>

#include "common/harness/check.h"

namespace lnc {

/// Poisons the outputs and is then ready to launch `chapter`. The tensors must have been made for
/// the chapter's direction and outlive the run, and the chapter must take their problem.
class Run {
 public:
  Run(const Chapter& chapter, const Tensors& tensors);

  /// Puts the chapter's kernels on the default stream; does not wait for them.
  void launch() const { launches_.front()(); }
  /// One launch for each copy of the inputs; all write the same outputs.
  const std::vector<Launch>& launches() const { return launches_; }

  /// What the launches so far left in the outputs, against the reference.
  std::vector<OutputCheck> check() const { return lnc::check(tensors_); }

 private:
  const Tensors& tensors_;
  Buffer workspace_;
  std::vector<Launch> launches_;
};

}  // namespace lnc
