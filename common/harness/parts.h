// A fusion against its parts: what a fused chapter does in one kernel, as kernels of their own.
#pragma once

#include <array>
#include <vector>

#include "common/harness/tensors.h"

namespace lnc {

/// Whether there is something to take apart: a forward problem with a fusion, all of whose tensors
/// the parts below know.
bool has_parts(const Chapter& chapter, const Problem& problem);

/// Bytes of device memory that the parts need between them.
std::int64_t parts_scratch_bytes(const Problem& problem);

/// The parts of a fused forward pass, one after another: x · rowscale, dropout, the same for x1,
/// + x1, + residual, and then the chapter's own norm without a fusion, once for each affine output.
/// Each reads its inputs from device memory and writes its output there, rounded to the type of x;
/// dropout also stores its mask, a byte an element. The outputs are those of the fused launch, but
/// for the sum where nothing is added up: that is x itself.
class Parts {
 public:
  /// @param tensors of a forward pass that `chapter` takes; they must outlive the parts
  Parts(const Chapter& chapter, const Tensors& tensors);

  /// Puts every part on the default stream; does not wait for them.
  void launch() const {
    for (const auto& launch : launches_) launch();
  }
  int kernels() const { return static_cast<int>(launches_.size()); }
  /// To and from device memory, predicted for tensors that do not wait in L2 for the next part.
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
