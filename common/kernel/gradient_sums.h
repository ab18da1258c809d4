// dweight and dbias added up in float by atomics: explained by bwd01.
#pragma once

#include "common/kernel/contract.h"
#include "common/kernel/types.h"

namespace lnc {

/// Where dweight and dbias are added up in float by atomics. For float these are the outputs
/// themselves; for half and bfloat16 a workspace of [2, cols], rounded once at the end.
struct GradientSums {
  float* dweight;
  float* dbias;  ///< null for Kind::Rms
};

inline std::int64_t gradient_sums_bytes(const Problem& problem) {
  return problem.parameter_element_bytes() == 4 ? 0
                                                : 2 * problem.cols * std::int64_t{sizeof(float)};
}

inline constexpr int kColumnThreads = 256;  ///< a block, where a thread takes one column

template <int kThreads>
__global__ void zero_gradients_kernel(GradientSums sums, std::int64_t cols) {
  const std::int64_t col = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (col >= cols) return;
  sums.dweight[col] = 0.0f;
  if (sums.dbias != nullptr) sums.dbias[col] = 0.0f;
}

/// Sets the sums to 0, for atomics to add to.
template <typename T, typename W>
GradientSums zero_gradient_sums(const BackwardArgs<T, W>& a) {
  GradientSums sums;
  if constexpr (sizeof(W) == sizeof(float)) {
    sums = {a.dweight, a.dbias};
  } else {
    auto* workspace = static_cast<float*>(a.workspace);
    sums = {workspace, a.dbias == nullptr ? nullptr : workspace + a.cols};
  }
  launch(zero_gradients_kernel<kColumnThreads>,
         {blocks_for(a.cols, kColumnThreads), kColumnThreads, 0, a.stream}, sums, a.cols);
  return sums;
}

template <typename W>
__global__ void round_gradients_kernel(GradientSums sums, W* dweight, W* dbias, std::int64_t cols) {
  const std::int64_t col = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (col >= cols) return;
  dweight[col] = from_float<W>(sums.dweight[col]);
  if (dbias != nullptr) dbias[col] = from_float<W>(sums.dbias[col]);
}

/// Stores the sums, rounded to W, in dweight and dbias; does nothing for float.
template <typename T, typename W>
void round_gradients(const BackwardArgs<T, W>& a, const GradientSums& sums) {
  if constexpr (sizeof(W) != sizeof(float)) {
    launch(round_gradients_kernel<W>,
           {blocks_for(a.cols, kColumnThreads), kColumnThreads, 0, a.stream}, sums, a.dweight,
           a.dbias, a.cols);
  }
}

}  // namespace lnc
