// What a thread of a backward kernel computes from its columns of each row, however they were
// loaded: bwd09 explains sums that stay in registers, bwd12 the two multiply-adds of dx.
#pragma once

#include "common/kernel/contract.h"
#include "common/kernel/gradient_terms.h"
#include "common/kernel/partial_sums.h"
#include "common/kernel/thread_columns.h"

namespace lnc {

/// mean and rstd of a row, or zeros if it does not exist, so that it adds nothing. RMS norm has no
/// mean.
template <bool kLayer, typename T, typename W>
__device__ float2 statistics_of(const BackwardArgs<T, W>& a, std::int64_t row, bool there) {
  if (!there) return make_float2(0.0f, 0.0f);
  const float mean = kLayer ? a.mean[row] : 0.0f;
  return make_float2(mean, a.rstd[row]);
}

/// c1 · rstd and c2 · rstd, from the row's sums. RMS norm has no c2.
template <bool kLayer>
__device__ float2 scaled_means(float2 sums, float inverse_cols, float rstd) {
  return make_float2(sums.x * inverse_cols * rstd, kLayer ? sums.y * inverse_cols * rstd : 0.0f);
}

/// rstd · (wdy − c2 − xhat · c1), in two multiply-adds a column.
template <int kElements>
__device__ void dx_of(const GradientTerms<kElements>& terms, float rstd, float2 scaled,
                      float (&dx)[kElements]) {
  for (int k = 0; k < kElements; ++k) {
    dx[k] = rstd * terms.wdy[k] - (terms.xhat[k] * scaled.x + scaled.y);
  }
}

/// dweight and dbias of a thread's columns, over the rows that it has processed. Without kBias, as
/// in RMS norm, dbias takes no registers.
template <int kElements, int kVectors, bool kBias = true>
struct ColumnGradients {
  Vector<float, kElements> dweight[kVectors] = {};
  Vector<float, kElements> dbias[kVectors] = {};

  /// @tparam Terms GradientTerms, or another type with dy and xhat
  template <typename Terms>
  __device__ void add(int i, const Terms& terms) {
    for (int k = 0; k < kElements; ++k) {
      dweight[i].at[k] += terms.dy[k] * terms.xhat[k];
      if (kBias) dbias[i].at[k] += terms.dy[k];
    }
  }
  /// Stores the sums as a part that begins at float `at`. Pass `bias` where the kind is known only
  /// at run time: false for RMS norm.
  template <typename Columns>
  __device__ void store(const Columns& own, const PartialSums& sums, std::int64_t at,
                        bool bias = kBias) const {
    store_sums(own, dweight, sums.dweight + at);
    if (bias) store_sums(own, dbias, sums.dbias + at);
  }
  /// The same for `teams` teams of the block with different rows: it adds up their sums in dynamic
  /// shared memory, 2 · teams · own.cols floats, which no thread may still be reading. All threads
  /// of the block call it.
  __device__ void store_of_teams(const ThreadColumns& own, int team, int teams,
                                 const PartialSums& sums, std::int64_t at,
                                 bool bias = kBias) const {
    auto* const dweights = dynamic_shared<float>();
    auto* const dbiases = dweights + teams * own.cols;
    store_sums(own, dweight, dweights + team * own.cols);
    if (bias) store_sums(own, dbias, dbiases + team * own.cols);
    __syncthreads();
    add_rows(dweights, teams, own.cols, sums.dweight + at);
    if (bias) add_rows(dbiases, teams, own.cols, sums.dbias + at);
  }
};

}  // namespace lnc
