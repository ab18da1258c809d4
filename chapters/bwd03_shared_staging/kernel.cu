// bwd03 · Shared-memory staging that does not pay
//
// bwd02 uses dy three times in its second walk, so this chapter keeps dy in shared memory: each
// lane stores its element, waits for the warp, and reads it back. The loop advances by a whole warp
// at a time, so that all lanes meet at the barrier.
//
// It should gain nothing: a lane reads only what it wrote, and bwd02 already holds that value in a
// register. Device memory delivers the same bytes; each step adds a store, a load and a barrier.
#include "common/kernel/chapter.h"
#include "common/kernel/gradient_sums.h"
#include "common/kernel/reduce.h"

namespace bwd03 {
using namespace lnc;

constexpr int kWarpsPerBlock = 4;
constexpr int kThreadsPerBlock = kWarpsPerBlock * kWarpSize;

template <typename T>
__global__ void layer_norm_backward(BackwardArgs<T> a, GradientSums sums) {
  // exercise
  __shared__ float staged[kThreadsPerBlock];  // [1] one slot per thread
  float& mine = staged[threadIdx.x];
  const int64_t row = int64_t{blockIdx.x} * kWarpsPerBlock + threadIdx.x / kWarpSize;
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
  for (int64_t col = lane; col < a.cols; col += kWarpSize) {
    const float xhat = (to_float(x[col]) - mean) * rstd;
    const float wdy = to_float(a.weight[col]) * to_float(dy[col]);
    c1 += wdy * xhat;
    c2 += wdy;
  }
  c1 = warp_sum(c1) * inverse_cols;
  c2 = warp_sum(c2) * inverse_cols;

  for (int64_t start = 0; start < a.cols; start += kWarpSize) {  // [2]
    const int64_t col = start + lane;
    const bool inside = col < a.cols;
    if (inside) mine = to_float(dy[col]);  // [3]
    __syncwarp();                          // [4]
    if (!inside) continue;
    const float xhat = (to_float(x[col]) - mean) * rstd;
    const float wdy = to_float(a.weight[col]) * mine;
    atomicAdd(&sums.dweight[col], mine * xhat);
    atomicAdd(&sums.dbias[col], mine);
    dx[col] = from_float<T>(rstd * (wdy - c2 - xhat * c1));
  }
}

template <typename T>
void run(const BackwardArgs<T>& a) {
  const GradientSums sums = zero_gradient_sums(a);
  launch(layer_norm_backward<T>,
         {blocks_for(a.rows, kWarpsPerBlock), kThreadsPerBlock, 0, a.stream}, a, sums);
  round_gradients(a, sums);
}

const Registration registration{{
    .id = "bwd03",
    .title = "Shared-memory staging that does not pay",
    .teaches = "staging without reuse: an optimisation that isn't",
    .source = "CUDA layer-norm backward progression, v3",
    .parent = "bwd02",
    .road = Road::Sums,
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

}  // namespace bwd03
