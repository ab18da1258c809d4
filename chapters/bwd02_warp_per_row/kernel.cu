// bwd02 · One warp per row
//
// In bwd01 the lanes of a warp read addresses a row apart and all add to the same dweight. Here the
// 32 lanes walk one row side by side: loads are coalesced, shuffles combine c1 and c2, and the 32
// atomics of a request go to 32 neighbouring columns instead of one.
//
// It should be an order of magnitude faster than bwd01. What remains: 2·M·N atomics, which all rows
// send to the same few columns at the same time, and, with few rows, too few warps to hide the
// loads.
#include "common/kernel/chapter.h"
#include "common/kernel/gradient_sums.h"
#include "common/kernel/reduce.h"

namespace bwd02 {
using namespace lnc;

constexpr int kWarpsPerBlock = 4;

template <typename T>
__global__ void layer_norm_backward(BackwardArgs<T> a, GradientSums sums) {
  // exercise
  const int64_t row = int64_t{blockIdx.x} * kWarpsPerBlock + threadIdx.x / kWarpSize;  // [1]
  if (row >= a.rows) return;
  const int lane = threadIdx.x % kWarpSize;
  const T* dy = a.dy + row * a.cols;
  const T* x = a.x + row * a.cols;
  T* dx = a.dx + row * a.cols;
  const float mean = a.mean[row];
  const float rstd = a.rstd[row];
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);

  float c1 = 0.0f;
  float c2 = 0.0f;
  for (int64_t col = lane; col < a.cols; col += kWarpSize) {  // [2]
    const float xhat = (to_float(x[col]) - mean) * rstd;
    const float wdy = to_float(a.weight[col]) * to_float(dy[col]);
    c1 += wdy * xhat;
    c2 += wdy;
  }
  c1 = warp_sum(c1) * inverse_cols;  // [3]
  c2 = warp_sum(c2) * inverse_cols;

  for (int64_t col = lane; col < a.cols; col += kWarpSize) {
    const float dy_col = to_float(dy[col]);
    const float xhat = (to_float(x[col]) - mean) * rstd;
    const float wdy = to_float(a.weight[col]) * dy_col;
    atomicAdd(&sums.dweight[col], dy_col * xhat);  // [4]
    atomicAdd(&sums.dbias[col], dy_col);
    dx[col] = from_float<T>(rstd * (wdy - c2 - xhat * c1));
  }
}

template <typename T>
void run(const BackwardArgs<T>& a) {
  const GradientSums sums = zero_gradient_sums(a);
  launch(layer_norm_backward<T>,
         {blocks_for(a.rows, kWarpsPerBlock), kWarpsPerBlock * kWarpSize, 0, a.stream}, a,
         sums);  // [5]
  round_gradients(a, sums);
}

const Registration registration{{
    .id = "bwd02",
    .title = "One warp per row",
    .teaches = "coalesced reads and coalesced atomics; c1 and c2 by shuffles",
    .source = "CUDA layer-norm backward progression, v2",
    .parent = "bwd01",
    .road = Road::Main,
    .kinds = {Kind::Layer},
    .needs_affine = true,
    .deterministic = false,
    .run = BackwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>},
    .predicted_bytes =
        [](const Problem& p, const Gpu& gpu) {
          return predict_bytes(p, gpu, {.inputs = 2, .walks = 2, .threads_per_row = kWarpSize});
        },
    .workspace_bytes = gradient_sums_bytes,
}};

}  // namespace bwd02
