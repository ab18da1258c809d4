#include "common/harness/run.h"

namespace lnc {

Run::Run(const Chapter& chapter, const Tensors& tensors) : tensors_(tensors) {
  tensors.poison_outputs();
  if (chapter.split != Split::None) {
    split_ = std::make_unique<SplitRun>(chapter, tensors);
    launches_.emplace_back([this] { split_->launch(); });
    return;
  }
  if (chapter.workspace_bytes != nullptr)
    workspace_ = Buffer(chapter.workspace_bytes(tensors.problem()));
  if (tensors.are_whole()) poison(workspace_);
  auto* const workspace = workspace_.as<void>();
  with_types(tensors.problem(), [&]<typename T, typename W>() {
    const auto add = [&](const auto& launchers, const auto& args) {
      const auto run = launchers.template get<T, W>();
      launches_.emplace_back([=] { run(args); });
    };
    for (int copy = 0; copy < tensors.copies(); ++copy) {
      if (const auto* copying = std::get_if<CopyLaunchers>(&chapter.run))
        add(*copying, copy_args<T, W>(tensors, copy));
      else if (const auto* forward = std::get_if<ForwardLaunchers>(&chapter.run))
        add(*forward, forward_args<T, W>(tensors, workspace, copy));
      else
        add(std::get<BackwardLaunchers>(chapter.run),
            backward_args<T, W>(tensors, workspace, copy));
    }
  });
}

Timing Run::time(const Sampling& sampling) const {
  return split_ ? split_->time(sampling) : time_launches(launches_, sampling);
}

}  // namespace lnc
