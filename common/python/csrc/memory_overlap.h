// Whether tensors share memory, whatever their strides. An operator that works in place needs this.
#pragma once

#include <ATen/core/Tensor.h>

namespace layernorm_chapters {

/// Whether a tensor's strides show that no two of its elements share memory: each dimension's
/// stride must be at least the extent of the dimensions inside it.
bool has_own_memory(const at::Tensor& tensor);

/// Whether an element of `a` and one of `b` share a byte. Exact if has_own_memory holds for both,
/// but also true for a pair of layouts so entangled that the search for such a byte gives up.
bool may_share_memory(const at::Tensor& a, const at::Tensor& b);

}  // namespace layernorm_chapters
