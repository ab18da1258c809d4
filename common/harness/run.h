// A chapter's launcher, bound to the tensors of a pass.
#pragma once

#include <memory>
#include <vector>

#include "common/harness/check.h"
#include "common/harness/split_run.h"

namespace lnc {

/// Prepares `chapter` for launches, with poisoned outputs. The tensors must be of the chapter's
/// direction and outlive the run, and the chapter must accept their problem.
class Run {
 public:
  Run(const Chapter& chapter, const Tensors& tensors);

  /// Enqueues the chapter's kernels on the default stream; does not wait for them. On several GPUs
  /// (Chapter::split) it waits.
  void launch() const { launches_.front()(); }
  /// One launch for each copy of the inputs; all write the same outputs.
  const std::vector<Launch>& launches() const { return launches_; }
  Timing time(const Sampling& sampling) const;

  /// Waits for the launches, then compares the outputs with the reference.
  std::vector<OutputCheck> check() const { return lnc::check(tensors_); }

 private:
  const Tensors& tensors_;
  Buffer workspace_;
  std::unique_ptr<SplitRun> split_;  // null without a Chapter::split
  std::vector<Launch> launches_;
};

}  // namespace lnc
