// Calls the library of common/library/lnc.h with PyTorch's tensors. Callers have already checked
// shapes and types: this code only handles pointers, workspaces, devices and streams.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "common/library/lnc.h"

namespace layernorm_chapters {

/// Loads liblnc.so from a path, once per process. Raises RuntimeError with a sentence.
void load(const std::string& path);

/// "cuda" or "cpu": which tensors the library takes. Raises RuntimeError if none is loaded.
const char* backend();

/// The arguments of a pass other than its tensors.
struct Norm {
  std::int64_t rows;
  std::int64_t cols;
  double eps;
  bool rms;
  std::string chapter;  ///< pinned; empty for the dispatch's choice
  bool batch_invariant;

  lnc_problem problem(at::ScalarType dtype, at::ScalarType parameter_dtype) const;
};

/// A new, uninitialised tensor.
at::Tensor allocate(at::IntArrayRef size, at::ScalarType dtype, at::Device device);

/// Runs a pass on the current stream of `like`'s device, after setting workspace, stream and
/// chapter in `args`. Raises ValueError for an invalid argument or if the pinned kernel is unknown
/// or refuses, and RuntimeError if a launch fails.
void run(lnc_forward_args& args, const Norm& norm, const at::Tensor& like);
void run(lnc_backward_args& args, const Norm& norm, const at::Tensor& like);

/// The same, but returns false, without running anything, if no kernel takes this, the pinned one
/// refuses, or a number is out of range.
bool run_if_taken(lnc_forward_args& args, const Norm& norm, const at::Tensor& like);
bool run_if_taken(lnc_backward_args& args, const Norm& norm, const at::Tensor& like);

/// The address of a tensor's elements; null for an undefined tensor.
inline void* pointer(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.data_ptr() : nullptr;
}

}  // namespace layernorm_chapters
