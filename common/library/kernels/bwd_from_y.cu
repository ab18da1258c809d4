// lib_bwd_from_y · Gradients from y instead of x
//
// The memory-efficient backward pass: xhat = (y - bias) / weight, so neither x nor mean is read.
// Every width, type and alignment, layer and RMS norm, on every GPU. The walk is lib_bwd_any's,
// with RowsOfY instead of RowsOfX. Rows too wide for a block are cut into slices of columns, and a
// first kernel computes c1 and c2 of each row.
//
// Parts: persistent.h (teams, shares, slices, the walk over the rows; bwd09), partial_sums.h
// (bwd06), vector.h (fwd06). bwd07 teaches the formulas and the clamp of small weights.
//
// Measured on an H100, layer norm; in brackets, % of a triad's speed: 300 µs at bf16 131072 × 1024
// (90 %), 1167 at × 4096 (91 %), 2441 at × 8192 (86 %), where lib_bwd_any takes 295, 1152 and 2398;
// 187 at f16 4096 × 12288 (56 %), cut into slices. 1 / weight stays in shared memory, and threads
// read the bias from L1 for each row, because 16-bit types already need 127 or 128 of 128
// registers. With the bias, a thread also waits for the next row's loads. bwd07 avoids this wait by
// keeping the bias in shared memory too: 1097 µs at × 4096.
//
// Accuracy: with a bias, the relative error of dweight is about u / (8 |weight|), where u is the
// unit roundoff of the element type: 5 % at a weight of 0.01 in bf16. RMS norm loses nothing until
// the weight is clamped at eps.
#include "common/kernel/chapter.h"
#include "common/kernel/gradient_terms.h"
#include "common/kernel/partial_sums.h"
#include "common/kernel/persistent.h"
#include "common/kernel/reduce.h"
#include "common/kernel/vector.h"

namespace lib_bwd_from_y {
using namespace lnc;

/// weight, with its magnitude raised to `least` where it is smaller; 0 counts as positive.
__device__ inline float clamp_by_magnitude(float weight, float least) {
  return copysignf(fmaxf(fabsf(weight), least), weight);
}

/// 1 / divisor, or 0 for a divisor of 0 or so small that its reciprocal may be infinite. Only an
/// eps of 0 lets such a weight through, and then y says next to nothing about xhat.
__device__ inline float inverse_or_zero(float divisor) {
  constexpr float kLeast = 0x1p-126f;  // the least normal float
  return fabsf(divisor) < kLeast ? 0.0f : 1.0f / divisor;
}

/// In place of xhat_from_x, which is (x - mean) * rstd.
__device__ inline float xhat_from_y(float y, float bias, float inverse_weight) {
  return (y - bias) * inverse_weight;
}

/// The terms of dx, dweight and dbias for the columns of one vector.
template <int kElements>
struct TermsFromY {
  float xhat[kElements], dy[kElements], wdy[kElements];
  float wdy_xhat[kElements];

  TermsFromY() = default;
  template <typename T, typename W>
  __device__ TermsFromY(const Packed<T, kElements>& packed_y, const Packed<T, kElements>& packed_dy,
                        const Packed<W, kElements>& weight, const Packed<W, kElements>& packed_bias,
                        const float (&inverse_weight)[kElements]) {
    float y[kElements];
    float bias[kElements];
    to_floats(packed_y, y);
    to_floats(packed_bias, bias);
    to_floats(packed_dy, dy);
    to_floats(weight, wdy);
    for (int k = 0; k < kElements; ++k) {
      xhat[k] = xhat_from_y(y[k], bias[k], inverse_weight[k]);
      wdy_xhat[k] = dy[k] * (y[k] - bias[k]);  // dy (y - bias): no weight, no division, no clamp
      wdy[k] *= dy[k];
    }
  }
  __device__ void add_to(float2& sums) const {
    for (int k = 0; k < kElements; ++k) {
      sums.x += wdy_xhat[k];
      sums.y += wdy[k];
    }
  }
};

/// The reciprocals of a block's weights, in shared memory because registers have no room. Each
/// thread writes and reads its own words: no barrier, no bank conflicts.
template <typename Team>
using InverseWeights = float[Team::kVectors][Team::kElements][Team::kThreads];

/// The rows of y and dy, with rstd.
template <typename Team, typename T, typename W>
struct RowsOfY {
  static constexpr int kElements = Team::kElements;
  using Terms = TermsFromY<kElements>;
  struct Row {
    Packed<T, kElements> y[Team::kVectors];
    Packed<T, kElements> dy[Team::kVectors];
    float rstd;
  };
  const BackwardArgs<T, W>& a;
  const OwnShare<Team>& share;
  InverseWeights<Team>& inverse_weight;
  Packed<W, kElements> weight[Team::kVectors];

  __device__ RowsOfY(const BackwardArgs<T, W>& a_, const OwnShare<Team>& share_,
                     InverseWeights<Team>& inverse_weight_)
      : a(a_), share(share_), inverse_weight(inverse_weight_) {
    const W* const weights = a.weight;  // copies: nvcc assumes that the stores below may change `a`
    const float eps = a.eps;
#pragma unroll
    for (int i = 0; i < Team::kVectors; ++i) {
      weight[i] = share.parameter(weights, i, 1.0f);
      float divisor[kElements];
      to_floats(weight[i], divisor);
      for (int k = 0; k < kElements; ++k) {
        if (weights != nullptr) divisor[k] = clamp_by_magnitude(divisor[k], eps);
        inverse_weight[i][k][threadIdx.x] = inverse_or_zero(divisor[k]);
      }
    }
  }
  __device__ Row load(int64_t row, bool there) const {
    Row loaded;
#pragma unroll
    for (int i = 0; i < Team::kVectors; ++i) {
      const bool given = there && share.own.has(i);
      const int64_t at = row * a.cols + share.column(i);
      loaded.y[i] = load_if<kElements>(given, a.y, at);
      loaded.dy[i] = load_if<kElements>(given, a.dy, at);
    }
    loaded.rstd = there ? a.rstd[row] : 0.0f;
    return loaded;
  }
  __device__ Terms terms(const Row& row, int i) const {
    const auto bias = share.parameter(a.bias, i, 0.0f);  // from L1: registers have no room
    float inverse[kElements];
    for (int k = 0; k < kElements; ++k) inverse[k] = inverse_weight[i][k][threadIdx.x];
    return {row.y[i], row.dy[i], weight[i], bias, inverse};
  }
  __device__ void stored(int64_t, int, const Terms&) const {}
};

template <typename Team, typename T, typename W>
__global__ void __launch_bounds__(Team::kThreads, Team::kBlocks)
    layer_norm_backward(BackwardArgs<T, W> a, Shares shares, PartialSums sums,
                        const float2* c_of_rows) {
  __shared__ InverseWeights<Team> inverse_weight;
  const OwnShare<Team> share(shares, a.cols);
  walk_rows<Team>(a, shares, share, RowsOfY<Team, T, W>(a, share, inverse_weight), c_of_rows, sums);
}

/// c1 and c2 of each row that is cut in slices, from y.
template <int kElements, typename T, typename W>
__global__ void __launch_bounds__(kMeansThreads)
    row_means_from_y(BackwardArgs<T, W> a, float2* means) {
  const int64_t row = blockIdx.x;
  const int64_t start = row * a.cols;
  float2 c = make_float2(0.0f, 0.0f);
#pragma unroll 4
  for (int64_t col = threadIdx.x * kElements; col < a.cols; col += kMeansThreads * kElements) {
    const auto y = load_if<kElements>(true, a.y, start + col);
    const auto dy = load_if<kElements>(true, a.dy, start + col);
    const auto weight = load_if<kElements>(a.weight != nullptr, a.weight, col, 1.0f);
    const auto bias = load_if<kElements>(a.bias != nullptr, a.bias, col, 0.0f);
    const float unused[kElements] = {};  // xhat is not in c1 and c2
    const TermsFromY<kElements> terms(y, dy, weight, bias, unused);
    terms.add_to(c);
  }
  c = row_sums<kMeansThreads, kMeansThreads>(c, 0);
  if (threadIdx.x > 0) return;
  const float c1 = c.x / a.cols;
  const float c2 = a.kind == Kind::Layer ? c.y / a.cols : 0.0f;
  means[row] = make_float2(c1, c2);
}

template <typename Team, typename T, typename W>
void launch_team(const BackwardArgs<T, W>& a, const Shares& shares) {
  const PartialSums sums = partial_sums(a, shares.groups);
  float2* const c_of_rows = c_of_rows_in_workspace(a, shares);
  if (c_of_rows != nullptr) {
    launch(row_means_from_y<Team::kElements, T, W>,
           {blocks_for(a.rows, 1), kMeansThreads, 0, a.stream}, a, c_of_rows);
  }
  launch(layer_norm_backward<Team, T, W>, {shares.grid(), Team::kThreads, 0, a.stream}, a, shares,
         sums, c_of_rows);
  add_partial_sums(a, sums, shares.groups);
}

template <typename T, typename W>
void run(const BackwardArgs<T, W>& a) {
  const bool aligned =
      a.cols % kVectorElements<T> == 0 && at_16_bytes(a.y, a.dy, a.dx, a.weight, a.bias);
  run_shares(a, aligned, a.group,
             [&]<typename Team>(Team, const Shares& shares) { launch_team<Team>(a, shares); });
}

const Registration registration{{
    .id = "lib_bwd_from_y",
    .title = "Gradients from y instead of x",
    .teaches = "the memory-efficient backward pass: x and mean need not be kept",
    .source = "NVIDIA Apex",
    .road = Road::Library,
    .takes_frozen = true,
    .from_y = true,
    .group = "row groups",
    .run = BackwardLaunchers::every([](const auto& args) { run(args); }),
    .predicted_bytes = [](const Problem& p, const Gpu& gpu) -> std::int64_t {
      const std::int64_t mean_bytes = 4 * p.rows;  // mean is not read
      return shares_predicted_bytes(p, gpu) - mean_bytes;
    },
    .workspace_bytes = [](const Problem& p) -> std::int64_t { return shares_bytes(p, p.group); },
}};

}  // namespace lib_bwd_from_y
