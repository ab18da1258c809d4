// What dx, dweight and dbias are made of, vector by vector: explained by bwd08.
#pragma once

#include "common/kernel/contract.h"
#include "common/kernel/reduce.h"
#include "common/kernel/vector.h"

namespace lnc {

/// What dx, dweight and dbias are made of, for the columns of one vector.
template <int kLanes>
struct GradientTerms {
  float xhat[kLanes], dy[kLanes], wdy[kLanes];

  GradientTerms() = default;
  template <typename X, typename T, typename W>
  __device__ GradientTerms(const Packed<X, kLanes>& packed_x, const Packed<T, kLanes>& packed_dy,
                           const Packed<W, kLanes>& weight, float mean, float rstd) {
    to_floats(packed_x, xhat);
    to_floats(packed_dy, dy);
    to_floats(weight, wdy);
    for (float& value : xhat) {
      value = (value - mean) * rstd;
    }
    for (int lane = 0; lane < kLanes; ++lane) {
      wdy[lane] *= dy[lane];
    }
  }
  /// Adds to the sums that c1 (x) and c2 (y) are means of. Where dy is 0 there is nothing to add.
  __device__ void add_to(float2& sums) const {
    for (int lane = 0; lane < kLanes; ++lane) {
      sums.x += wdy[lane] * xhat[lane];
      sums.y += wdy[lane];
    }
  }
};

inline constexpr int kMeansThreads = 512;

/// c1 and c2 of a row, a block each, for kernels in which no block sees the whole of it.
template <typename T, typename W, int kLanes>
__global__ void __launch_bounds__(kMeansThreads) row_means(BackwardArgs<T, W> a, float2* means) {
  const std::int64_t row = blockIdx.x;
  const std::int64_t start = row * a.cols;
  const bool layer = a.kind == Kind::Layer;
  const float mean = layer ? a.mean[row] : 0.0f;
  const float rstd = a.rstd[row];
  float2 c = make_float2(0.0f, 0.0f);
#pragma unroll 4
  for (std::int64_t col = threadIdx.x * kLanes; col < a.cols; col += kMeansThreads * kLanes) {
    const auto x = load_if<kLanes>(true, a.x, start + col);
    const auto dy = load_if<kLanes>(true, a.dy, start + col);
    const auto weight = load_if<kLanes>(a.weight != nullptr, a.weight, col, 1.0f);
    const GradientTerms<kLanes> terms(x, dy, weight, mean, rstd);
    terms.add_to(c);
  }
  c = row_sums<kMeansThreads, kMeansThreads>(c, 0);
  if (threadIdx.x > 0) return;
  const float c1 = c.x / a.cols;
  const float c2 = layer ? c.y / a.cols : 0.0f;
  means[row] = make_float2(c1, c2);
}

}  // namespace lnc
