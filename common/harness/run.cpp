#include "common/harness/run.h"

namespace lnc {

Run::Run(const Chapter& chapter, const Tensors& tensors)
    : tensors_(tensors),
      workspace_(chapter.workspace_bytes == nullptr ? 0
                                                    : chapter.workspace_bytes(tensors.problem())) {
  poison(workspace_);
  tensors.poison_outputs();
  auto* const workspace = workspace_.as<void>();
  with_types(tensors.problem(), [&]<typename T, typename W>() {
    for (int copy = 0; copy < tensors.copies(); ++copy) {
      if (const auto* forward = std::get_if<ForwardLaunchers>(&chapter.run)) {
        const auto run = forward->get<T, W>();
        const auto args = forward_args<T, W>(tensors, workspace, copy);
        launches_.emplace_back([=] { run(args); });
      } else {
        const auto run = std::get<BackwardLaunchers>(chapter.run).get<T, W>();
        const auto args = backward_args<T, W>(tensors, workspace, copy);
        launches_.emplace_back([=] { run(args); });
      }
    }
  });
}

}  // namespace lnc
