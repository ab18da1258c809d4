// The parts of a fusion: what a fused chapter does in one kernel, as separate kernels.
#pragma once

#include <array>
#include <vector>

#include "common/harness/tensors.h"

namespace lnc {

/// Whether a problem has parts: a forward pass with a fusion whose tensors are all supported below.
bool has_parts(const Chapter& chapter, const Problem& problem);

/// Bytes of device memory for the intermediate results of the parts.
std::int64_t parts_scratch_bytes(const Problem& problem);

/// The parts of a fused forward pass, one after another: x · rowscale, dropout, the same for x1,
/// + x1, + residual, and then the chapter's own norm without a fusion, once for each affine output.
/// Each reads its inputs from device memory and writes its output, rounded to the type of x, to
/// device memory; dropout also stores its mask, one byte per element. The outputs are those of the
/// fused launch, except for a sum of x alone, which no part writes.
class Parts {
 public:
  /// @param tensors of a forward pass that `chapter` accepts; they must outlive the parts
  Parts(const Chapter& chapter, const Tensors& tensors);

  /// Enqueues every part on the default stream; does not wait for them.
  void launch() const {
    for (const auto& launch : launches_) launch();
  }
  int kernels() const { return static_cast<int>(launches_.size()); }
  /// Predicted traffic to and from device memory, if no tensor stays in L2 for the next part.
  std::int64_t predicted_bytes() const { return predicted_bytes_; }

 private:
  template <typename T, typename W>
  void build(const Chapter& chapter, const Problem& problem, ForwardArgs<T, W> args);

  std::array<Buffer, 2> branch_, mask_;  // of x and of x1
  Buffer workspace_;
  std::vector<Launch> launches_;
  std::int64_t predicted_bytes_ = 0;
};

}  // namespace lnc
