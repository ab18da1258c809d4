// A chapter at work: its launcher, bound to an instance of a problem.
#pragma once

#include <functional>
#include <vector>

#include "common/harness/check.h"

namespace lnc {

/// Poisons the outputs of `instance` and is then ready to launch `chapter` on it. The instance must
/// have been made for the chapter's direction, and the chapter must take its problem.
template <typename T, typename W = T>
class Run {
 public:
  Run(const Chapter& chapter, const Instance<T, W>& instance)
      : workspace_(
            chapter.workspace_bytes == nullptr ? 0 : chapter.workspace_bytes(instance.problem())) {
    poison(workspace_);
    instance.poison_outputs();
    const Problem problem = instance.problem();
    if (const auto* forward = std::get_if<ForwardLaunchers>(&chapter.run)) {
      const auto run = forward->get<T, W>();
      const auto args = instance.forward_args(workspace_);
      launch_ = [=] { run(args); };
      check_ = [=] { return check_forward<T, W>(problem, args); };
    } else {
      const auto run = std::get<BackwardLaunchers>(chapter.run).get<T, W>();
      const auto args = instance.backward_args(workspace_);
      launch_ = [=] { run(args); };
      check_ = [=] { return check_backward<T, W>(problem, args); };
    }
  }

  /// Puts the chapter's kernels on the default stream; does not wait for them.
  void launch() const { launch_(); }
  const std::function<void()>& launcher() const { return launch_; }

  /// What the launches so far left in the outputs, against the reference.
  std::vector<OutputCheck> check() const {
    synchronize();
    return check_();
  }

 private:
  Buffer workspace_;
  std::function<void()> launch_;
  std::function<std::vector<OutputCheck>()> check_;
};

}  // namespace lnc
