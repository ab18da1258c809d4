// The scaling and dropout of a branch before it is added to the residual; fwd07 explains them.
#pragma once

#include <cstdint>

#include "common/kernel/philox.h"

namespace lnc {

/// The factors of a row of a branch, x or x1, in the forward pass, and of the sum's gradient in the
/// backward pass: the row's scale and, for dropout with probability p, 1 / (1 - p) or 0.
struct Branch {
  bool drops;
  float p;
  float scale;  ///< of an element that is kept
  std::uint32_t seed = 0;

  __device__ Branch(const float* rowscale, const std::uint32_t* seeds, float p, std::int64_t row)
      : drops(seeds != nullptr), p(p), scale(drops ? 1.0f / (1.0f - p) : 1.0f) {
    if (rowscale != nullptr) scale *= rowscale[row];
    if (drops) seed = seeds[row];
  }

  __device__ bool keeps(std::int64_t col) const {
    return triton_uniform(seed, static_cast<std::uint32_t>(col)) > p;
  }

  /// Scales the elements from column `col` on and sets the dropped ones to 0: 0 times infinity
  /// would be NaN. Tests for dropout once per vector, so that the random numbers of its elements
  /// are independent instruction chains.
  template <int kElements>
  __device__ void apply(float (&values)[kElements], std::int64_t col) const {
    for (float& value : values) {
      value *= scale;
    }
    if (!drops) return;
    for (int k = 0; k < kElements; ++k) {
      if (!keeps(col + k)) values[k] = 0.0f;
    }
  }
};

}  // namespace lnc
