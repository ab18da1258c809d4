// The mean and standard deviation of a row in registers or shared memory, by two walks over it,
// accurate even where the mean is thousands of deviations: fwd04 explains why.
//
//   near = sum of x / cols                         a float near the mean: all that rounding leaves
//   sums = of the deviations x - near, and of their squares
//   normaliser(near, sums, …)                      the mean's distance from `near`, variance, rstd
//   normalise(x, normaliser, …)                    y of elements of x
//   store_statistics(a, row, normaliser)           mean and rstd
//
// RMS norm has no mean. There `near` is 0, and the sums are of the squares alone.
#pragma once

#include <type_traits>

#include "common/kernel/contract.h"
#include "common/kernel/launch.h"
#include "common/kernel/vector.h"

namespace lnc {

/// The sums of the deviations (x) and of their squares (y); for RMS norm of the squares.
template <Kind kKind>
using Deviations = std::conditional_t<kKind == Kind::Layer, float2, float>;

__device__ inline void add_deviation(float2& sums, float deviation) {
  sums.x += deviation;
  sums.y += deviation * deviation;
}
__device__ inline void add_deviation(float& squares, float deviation) {
  squares += deviation * deviation;
}

/// Adds the deviations of a vector's elements from `near`, a float near the mean, to `sums`.
template <typename Sums, int kElements>
__device__ inline void add_deviations(Sums& sums, float near, const float (&x)[kElements]) {
  for (int k = 0; k < kElements; ++k) {
    add_deviation(sums, x[k] - near);
  }
}
template <typename Sums, typename T, int kElements>
__device__ inline void add_deviations(Sums& sums, float near, const Packed<T, kElements>& packed) {
  float x[kElements];
  to_floats(packed, x);
  add_deviations(sums, near, x);
}

/// Adds a vector's elements to `sum`.
template <int kElements>
__device__ inline void add_elements(float& sum, const float (&x)[kElements]) {
  for (int k = 0; k < kElements; ++k) {
    sum += x[k];
  }
}
template <typename T, int kElements>
__device__ inline void add_elements(float& sum, const Packed<T, kElements>& packed) {
  float x[kElements];
  to_floats(packed, x);
  add_elements(sum, x);
}

/// What a row is normalised by.
struct Normaliser {
  float near;   ///< a float near the mean
  float shift;  ///< (the mean - near) · rstd
  float mean;   ///< the float nearest to the mean
  float rstd;

  __device__ float xhat(float x) const { return (x - near) * rstd - shift; }
};

/// @param sums of a whole row
__device__ inline Normaliser normaliser(float near, float2 sums, float inverse_cols, float eps) {
  const float delta = sums.x * inverse_cols;  // the mean - near
  const float variance = sums.y * inverse_cols - delta * delta;
  const float not_negative = variance < 0.0f ? 0.0f : variance;  // rounded; NaN stays NaN
  const float rstd = rsqrtf(not_negative + eps);
  return {near, delta * rstd, near + delta, rstd};
}
__device__ inline Normaliser normaliser(float near, float squares, float inverse_cols, float eps) {
  const float rstd = rsqrtf(squares * inverse_cols + eps);
  return {near, 0.0f, near, rstd};
}

/// Stores rstd and, except for RMS norm, the mean. One thread of a row calls this.
template <Kind kKind, typename T, typename W>
__device__ void store_statistics(const ForwardArgs<T, W>& a, std::int64_t row,
                                 const Normaliser& of_row) {
  if (kKind == Kind::Layer) a.mean[row] = of_row.mean;
  a.rstd[row] = of_row.rstd;
}

/// Turns elements of x into y, in place. With Kind::Rms the bias is ignored.
template <Kind kKind = Kind::Layer, typename W, int kElements>
__device__ inline void normalise(float (&values)[kElements], const Normaliser& of_row,
                                 const Packed<W, kElements>& weight,
                                 const Packed<W, kElements>& bias) {
  float of_weight[kElements];
  float of_bias[kElements];
  to_floats(weight, of_weight);
  to_floats(bias, of_bias);
  for (int k = 0; k < kElements; ++k) {
    const float xhat = of_row.xhat(values[k]);
    values[k] = kKind == Kind::Layer ? xhat * of_weight[k] + of_bias[k] : xhat * of_weight[k];
  }
}
template <Kind kKind = Kind::Layer, typename T, typename W, int kElements>
__device__ inline void normalise(const Packed<T, kElements>& x, const Normaliser& of_row,
                                 const Packed<W, kElements>& weight,
                                 const Packed<W, kElements>& bias, float (&values)[kElements]) {
  to_floats(x, values);
  normalise<kKind>(values, of_row, weight, bias);
}

}  // namespace lnc
