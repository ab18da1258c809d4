// fwd02 · One warp per row
//
// In fwd01 each thread has a whole row, so the 32 lanes of a warp read addresses a row apart: 32
// sectors per request, where 4 would do for float. Here the 32 lanes walk one row together, side by
// side, and shuffles combine their partial sums in five steps.
//
// A request for x should touch an eighth of fwd01's sectors, and 32 times as many threads share the
// work. With few rows, most of the GPU is still idle: fwd03 puts more threads on a row.
#include "common/kernel/chapter.h"
#include "common/kernel/reduce.h"

namespace fwd02 {
using namespace lnc;

constexpr int kWarpsPerBlock = 4;

template <typename T>
__global__ void layer_norm_forward(ForwardArgs<T> a) {
  // exercise
  const int64_t row = int64_t{blockIdx.x} * kWarpsPerBlock + threadIdx.x / kWarpSize;  // [1]
  if (row >= a.rows) return;  // [2] a whole warp returns, so the shuffles below stay full
  const int lane = threadIdx.x % kWarpSize;
  const T* x = a.x + row * a.cols;
  T* y = a.y + row * a.cols;
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);

  float sum = 0.0f;
  for (int64_t col = lane; col < a.cols; col += kWarpSize) {  // [3]
    sum += to_float(x[col]);
  }
  const float mean = warp_sum(sum) * inverse_cols;  // [4]

  float squares = 0.0f;
  for (int64_t col = lane; col < a.cols; col += kWarpSize) {
    const float centred = to_float(x[col]) - mean;
    squares += centred * centred;
  }
  const float rstd = rsqrtf(warp_sum(squares) * inverse_cols + a.eps);

  for (int64_t col = lane; col < a.cols; col += kWarpSize) {
    const float xhat = (to_float(x[col]) - mean) * rstd;
    y[col] = from_float<T>(xhat * to_float(a.weight[col]) + to_float(a.bias[col]));
  }
  if (lane == 0) {  // [5]
    a.mean[row] = mean;
    a.rstd[row] = rstd;
  }
}

template <typename T>
void run(const ForwardArgs<T>& a) {
  launch(layer_norm_forward<T>,
         {blocks_for(a.rows, kWarpsPerBlock), kWarpsPerBlock * kWarpSize, 0, a.stream}, a);  // [6]
}

const Registration registration{{
    .id = "fwd02",
    .title = "One warp per row",
    .teaches = "coalesced access; sums by warp shuffles",
    .source = "llm.c",
    .parent = "fwd01",
    .road = Road::Main,
    .kinds = {Kind::Layer},
    .needs_affine = true,
    .max_cols = 1 << 21,
    .run = ForwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>},
    .predicted_bytes =
        [](const Problem& p, const Gpu& gpu) {
          return predict_bytes(p, gpu, {.inputs = 1, .walks = 3, .threads_per_row = kWarpSize});
        },
}};

}  // namespace fwd02
