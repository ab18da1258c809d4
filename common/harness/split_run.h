// A chapter's launchers on several GPUs: their parts of the tensors, and how the outputs return.
#pragma once

#include <functional>
#include <vector>

#include "common/harness/gpus.h"
#include "common/harness/stopwatch.h"
#include "common/harness/tensors.h"

namespace lnc {

/// A chapter with a Chapter::split, on Problem::gpus GPUs. Each has its part of every input.
class SplitRun {
 public:
  /// The tensors, on GPU 0, must outlive the run.
  SplitRun(const Chapter& chapter, const Tensors& tensors);

  /// Distributes the inputs, launches on all GPUs, waits, and collects the outputs in the tensors.
  /// @throws std::runtime_error if GPUs that compute the same output have different bits
  void launch() const;
  /// The time of the slowest GPU, when all start together.
  Timing time(const Sampling& sampling) const;

 private:
  struct OfGpu {
    std::vector<Buffer> tensors;  // in the order of Tensors::all()
    Buffer workspace;
    Launch launch;
  };
  void copy(const Tensor& tensor, std::size_t number, int gpu, bool back) const;
  void collect() const;

  const Tensors& tensors_;
  const Split split_;
  Gpus gpus_;
  std::vector<OfGpu> of_gpu_;
};

}  // namespace lnc
