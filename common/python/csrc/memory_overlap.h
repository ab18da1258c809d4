// Which tensors share memory, whatever their strides: what an operator that writes in place asks.
#pragma once

#include <ATen/core/Tensor.h>

namespace layernorm_chapters {

/// Whether a tensor's elements all have memory of their own, as far as its strides tell: each
/// dimension steps over all that is inside of it.
bool has_own_memory(const at::Tensor& tensor);

/// Whether an element of `a` and one of `b` share a byte. Exact for tensors that has_own_memory;
/// true, too, for a pair of layouts so entangled that the search for such a byte is given up.
bool may_share_memory(const at::Tensor& a, const at::Tensor& b);

}  // namespace layernorm_chapters
