// The library of common/library/lnc.h, called with PyTorch's tensors. Who calls this has checked
// shapes and types: here are only pointers, workspaces, devices and streams.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "common/library/lnc.h"

namespace layernorm_chapters {

/// Loads liblnc.so from a path, once for the process. Raises RuntimeError in a sentence.
void load(const std::string& path);

/// "cuda" or "cpu": on which tensors the library works. Raises RuntimeError where none is loaded.
const char* backend();

/// What a pass is about, beside its tensors.
struct Norm {
  std::int64_t rows;
  std::int64_t cols;
  double eps;
  bool rms;
  std::string chapter;  ///< pinned; empty for the dispatch's choice
  bool batch_invariant;

  lnc_problem problem(at::ScalarType dtype, at::ScalarType parameter_dtype) const;
};

/// A new tensor of a size, a type and a device, uninitialised.
at::Tensor allocate(at::IntArrayRef size, at::ScalarType dtype, at::Device device);

/// What runs on the current stream of `like`'s device. `args` lacks only workspace, stream and
/// chapter. Raises ValueError for an argument that makes no sense, or where the kernel that was
/// pinned is unknown or refuses, and RuntimeError where a launch fails.
void run(lnc_forward_args& args, const Norm& norm, const at::Tensor& like);
void run(lnc_backward_args& args, const Norm& norm, const at::Tensor& like);

/// The same, but false where the kernels do not take this: no kernel does, the pinned one refuses,
/// or a number is out of their range. Then nothing ran.
bool run_if_taken(lnc_forward_args& args, const Norm& norm, const at::Tensor& like);
bool run_if_taken(lnc_backward_args& args, const Norm& norm, const at::Tensor& like);

/// A tensor's elements; null for one that is not there.
inline void* pointer(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.data_ptr() : nullptr;
}

}  // namespace layernorm_chapters
