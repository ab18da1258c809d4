// bwd01 · One thread per row
//
// The three gradients, computed as they are defined. A thread walks its row twice: once for the two
// means c1 and c2, once for dx. dweight and dbias are sums over rows, and so over threads: for
// every element, a thread adds to both in device memory, with two atomics.
//
// It should be the slowest chapter by far: its reads are uncoalesced, as in fwd01, and it sends
// 2·M·N atomics, where the 32 lanes of a warp all add to the same address. bwd02 fixes both.
#include "common/kernel/chapter.h"
#include "common/kernel/gradient_sums.h"

namespace bwd01 {
using namespace lnc;

constexpr int kThreadsPerBlock = 256;

template <typename T>
__global__ void layer_norm_backward(BackwardArgs<T> a, GradientSums sums) {
  // exercise
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= a.rows) return;
  const T* dy = a.dy + row * a.cols;
  const T* x = a.x + row * a.cols;
  T* dx = a.dx + row * a.cols;
  const float mean = a.mean[row];  // [1]
  const float rstd = a.rstd[row];
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);

  float c1 = 0.0f;  // [2] mean of wdy * xhat
  float c2 = 0.0f;  //     mean of wdy
  for (int64_t col = 0; col < a.cols; ++col) {
    const float xhat = (to_float(x[col]) - mean) * rstd;
    const float wdy = to_float(a.weight[col]) * to_float(dy[col]);
    c1 += wdy * xhat;
    c2 += wdy;
  }
  c1 *= inverse_cols;
  c2 *= inverse_cols;

  for (int64_t col = 0; col < a.cols; ++col) {
    const float dy_col = to_float(dy[col]);
    const float xhat = (to_float(x[col]) - mean) * rstd;
    const float wdy = to_float(a.weight[col]) * dy_col;
    atomicAdd(&sums.dweight[col], dy_col * xhat);  // [3]
    atomicAdd(&sums.dbias[col], dy_col);
    dx[col] = from_float<T>(rstd * (wdy - c2 - xhat * c1));  // [4]
  }
}

template <typename T>
void run(const BackwardArgs<T>& a) {
  const GradientSums sums = zero_gradient_sums(a);  // [5]
  launch(layer_norm_backward<T>,
         {blocks_for(a.rows, kThreadsPerBlock), kThreadsPerBlock, 0, a.stream}, a, sums);  // [6]
  round_gradients(a, sums);
}

const Registration registration{{
    .id = "bwd01",
    .title = "One thread per row",
    .teaches = "dx, dw, db by definition; an atomic for every element",
    .source = "CUDA layer-norm backward progression, v1",
    .parent = "fwd01",
    .road = Road::Main,
    .kinds = {Kind::Layer},
    .needs_affine = true,
    .deterministic = false,
    .run = BackwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>},
    .predicted_bytes =
        [](const Problem& p, const Gpu& gpu) {
          return predict_bytes(p, gpu, {.inputs = 2, .walks = 2, .threads_per_row = 1});
        },
    .workspace_bytes = gradient_sums_bytes,
}};

}  // namespace bwd01
