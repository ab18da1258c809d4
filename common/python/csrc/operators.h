// The operators torch.ops.layernorm_chapters: what they take and return, on tensors with elements.
//
//   norm           x, its parameters                        -> y, statistics
//   norm_backward  dy, what norm saved                      -> dx, dweight, dbias
//   add_norm       x, residual, …: the fused forward pass   -> y, sum, statistics, y1
//   add_norm_backward                                       -> the seven gradients
//   add_norm_      x, residual: for inference               -> y in x, sum in residual
//
// `statistics` is float, [2, *rows of x] with the mean and rstd of each row, or [1, *rows of x]
// with rstd alone for RMS norm. An output that is not requested or does not exist is returned with
// no elements.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/string_view.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

namespace layernorm_chapters {

using MaybeTensor = std::optional<at::Tensor>;
using MaybeName = std::optional<c10::string_view>;
using Two = std::tuple<at::Tensor, at::Tensor>;
using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using Four = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using Seven =
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

// Signatures as the dispatcher sees them, with sizes that may be symbols.
using NormSignature = Two(const at::Tensor&, c10::SymIntArrayRef, const MaybeTensor&,
                          const MaybeTensor&, double, bool, bool, bool, MaybeName, MaybeName, bool);
using NormBackwardSignature = Three(const at::Tensor&, const at::Tensor&, c10::SymIntArrayRef,
                                    const MaybeTensor&, const MaybeTensor&, const at::Tensor&,
                                    double, bool, bool, bool, bool, bool, MaybeName, bool);
using AddNormSignature = Four(const at::Tensor&, const MaybeTensor&, c10::SymIntArrayRef,
                              const MaybeTensor&, const MaybeTensor&, const MaybeTensor&,
                              const MaybeTensor&, const MaybeTensor&, const MaybeTensor&,
                              const MaybeTensor&, const MaybeTensor&, const MaybeTensor&, double,
                              double, bool, bool, bool, MaybeName, MaybeName, bool);
using AddNormBackwardSignature = Seven(const at::Tensor&, const MaybeTensor&, const MaybeTensor&,
                                       const at::Tensor&, c10::SymIntArrayRef, const MaybeTensor&,
                                       const MaybeTensor&, const MaybeTensor&, const MaybeTensor&,
                                       const at::Tensor&, const MaybeTensor&, const MaybeTensor&,
                                       const MaybeTensor&, const MaybeTensor&, double, double, bool,
                                       bool, bool, bool, MaybeName, bool, bool);
using AddNormInPlaceSignature = void(const at::Tensor&, const at::Tensor&, c10::SymIntArrayRef,
                                     const MaybeTensor&, const MaybeTensor&, double, bool, bool,
                                     MaybeName, bool);

inline at::Tensor value(const MaybeTensor& tensor) { return tensor.value_or(at::Tensor()); }
inline bool is_there(const MaybeTensor& tensor) { return tensor.has_value() && tensor->defined(); }
inline std::string text(MaybeName name) { return name.has_value() ? std::string(*name) : ""; }

/// Whether the kernels take x of this type: float32, float16 and bfloat16.
inline bool is_row_type(at::ScalarType type) {
  return type == at::kFloat || type == at::kHalf || type == at::kBFloat16;
}

}  // namespace layernorm_chapters
