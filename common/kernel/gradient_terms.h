// The terms of dx, dweight and dbias, vector by vector: the formulas are bwd01's.
#pragma once

#include "common/kernel/contract.h"
#include "common/kernel/reduce.h"
#include "common/kernel/rows.h"
#include "common/kernel/vector.h"

namespace lnc {

__device__ inline float xhat_from_x(float x, float mean, float rstd) { return (x - mean) * rstd; }

/// The terms of dx, dweight and dbias for the columns of one vector.
template <int kElements>
struct GradientTerms {
  float xhat[kElements], dy[kElements], wdy[kElements];

  GradientTerms() = default;
  template <typename X, typename T, typename W>
  __device__ GradientTerms(const Packed<X, kElements>& packed_x,
                           const Packed<T, kElements>& packed_dy,
                           const Packed<W, kElements>& weight, float mean, float rstd) {
    to_floats(packed_x, xhat);
    to_floats(packed_dy, dy);
    to_floats(weight, wdy);
    for (float& value : xhat) {
      value = xhat_from_x(value, mean, rstd);
    }
    for (int k = 0; k < kElements; ++k) {
      wdy[k] *= dy[k];
    }
  }
  /// Adds to the sums that c1 (x) and c2 (y) are means of. Elements with dy = 0 add nothing.
  __device__ void add_to(float2& sums) const {
    for (int k = 0; k < kElements; ++k) {
      sums.x += wdy[k] * xhat[k];
      sums.y += wdy[k];
    }
  }
};

inline constexpr int kMeansThreads = 512;

/// c1 and c2 of each row, computed by one block, for kernels in which no block has a whole row.
template <typename T, typename W, int kElements, typename Rows>
__global__ void __launch_bounds__(kMeansThreads)
    row_means(BackwardArgs<T, W> a, float2* means, InputRows<Rows> rows) {
  const std::int64_t row = blockIdx.x;
  const std::int64_t x_start = rows.x.start(row, a.cols);
  const std::int64_t dy_start = rows.dy.start(row, a.cols);
  const bool layer = a.kind == Kind::Layer;
  const float mean = layer ? a.mean[row] : 0.0f;
  const float rstd = a.rstd[row];
  float2 c = make_float2(0.0f, 0.0f);
#pragma unroll 4
  for (std::int64_t col = threadIdx.x * kElements; col < a.cols; col += kMeansThreads * kElements) {
    const auto x = load_vector<kElements>(a.x, x_start + col);
    const auto dy = load_vector<kElements>(a.dy, dy_start + col);
    const auto weight = load_if<kElements>(a.weight != nullptr, a.weight, col, 1.0f);
    const GradientTerms<kElements> terms(x, dy, weight, mean, rstd);
    terms.add_to(c);
  }
  c = row_sums<kMeansThreads, kMeansThreads>(c, 0);
  if (threadIdx.x > 0) return;
  const float c1 = c.x / a.cols;
  const float c2 = layer ? c.y / a.cols : 0.0f;
  means[row] = make_float2(c1, c2);
}

}  // namespace lnc
