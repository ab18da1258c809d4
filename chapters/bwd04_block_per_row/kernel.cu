// bwd04 · One block of 1024 threads per row
//
// bwd02 has one warp per row: with 1024 rows, a multiprocessor of an H100 has 8 warps where 64 fit,
// and in its second walk each warp takes 64 steps, one after another. Here 1024 threads share a row
// of 2048: two elements per thread, and 64 warps per multiprocessor that all wait at once. Only two
// rows per multiprocessor are in flight, so the second walk finds x and dy in a cache.
//
// It should be faster than bwd02 with few rows, which now fill the GPU, and with many, where bwd02
// reads x and dy twice. The 2·M·N atomics stay, and each sum now needs two barriers: bwd05 attacks
// the atomics.
#include "common/kernel/chapter.h"
#include "common/kernel/gradient_sums.h"
#include "common/kernel/reduce.h"

namespace bwd04 {
using namespace lnc;

constexpr int kThreadsPerBlock = 1024;  // [1]

template <typename T>
__global__ void __launch_bounds__(kThreadsPerBlock)
    layer_norm_backward(BackwardArgs<T> a, GradientSums sums) {
  // exercise
  const int64_t row = blockIdx.x;  // [2]
  const T* dy = a.dy + row * a.cols;
  const T* x = a.x + row * a.cols;
  T* dx = a.dx + row * a.cols;
  const float mean = a.mean[row];
  const float rstd = a.rstd[row];
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);

  float c1 = 0.0f;
  float c2 = 0.0f;
  for (int64_t col = threadIdx.x; col < a.cols; col += kThreadsPerBlock) {
    const float xhat = (to_float(x[col]) - mean) * rstd;
    const float wdy = to_float(a.weight[col]) * to_float(dy[col]);
    c1 += wdy * xhat;
    c2 += wdy;
  }
  c1 = block_sum<kThreadsPerBlock>(c1) * inverse_cols;  // [3]
  c2 = block_sum<kThreadsPerBlock>(c2) * inverse_cols;

  for (int64_t col = threadIdx.x; col < a.cols; col += kThreadsPerBlock) {
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
  launch(layer_norm_backward<T>, {blocks_for(a.rows, 1), kThreadsPerBlock, 0, a.stream}, a, sums);
  round_gradients(a, sums);
}

const Registration registration{{
    .id = "bwd04",
    .title = "One block of 1024 threads per row",
    .teaches = "enough warps to hide latency; few rows in flight at a time",
    .source = "CUDA layer-norm backward progression, v4",
    .parent = "bwd02",
    .road = Road::Main,
    .kinds = {Kind::Layer},
    .needs_affine = true,
    .deterministic = false,
    .run = BackwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>},
    .predicted_bytes =
        [](const Problem& p, const Gpu& gpu) {
          return predict_bytes(p, gpu,
                               {.inputs = 2, .walks = 2, .threads_per_row = kThreadsPerBlock});
        },
    .workspace_bytes = gradient_sums_bytes,
}};

}  // namespace bwd04
