// fwd03 · One block per row
//
// fwd02 puts 32 threads on a row: 1024 rows make 1024 warps, an eighth of what an H100 can hold,
// and each warp waits for its own loads. Here 256 threads share a row, so the same 1024 rows fill
// every multiprocessor with loads in flight. In return, each sum now crosses warps, which takes
// shared memory and two block-wide barriers.
//
// It should move as many bytes as fwd02, or fewer: only an eighth as many rows are in flight and
// must fit in L2.
#include "common/kernel/chapter.h"
#include "common/kernel/reduce.h"

namespace fwd03 {
using namespace lnc;

constexpr int kThreadsPerBlock = 256;

template <typename T>
__global__ void __launch_bounds__(kThreadsPerBlock) layer_norm_forward(ForwardArgs<T> a) {
  // exercise
  const int64_t row = blockIdx.x;  // [1]
  const T* x = a.x + row * a.cols;
  T* y = a.y + row * a.cols;
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);

  float sum = 0.0f;
  for (int64_t col = threadIdx.x; col < a.cols; col += kThreadsPerBlock) {
    sum += to_float(x[col]);
  }
  const float mean = block_sum<kThreadsPerBlock>(sum) * inverse_cols;  // [2]

  float squares = 0.0f;
  for (int64_t col = threadIdx.x; col < a.cols; col += kThreadsPerBlock) {
    const float centred = to_float(x[col]) - mean;
    squares += centred * centred;
  }
  const float rstd = rsqrtf(block_sum<kThreadsPerBlock>(squares) * inverse_cols + a.eps);  // [3]

  for (int64_t col = threadIdx.x; col < a.cols; col += kThreadsPerBlock) {
    const float xhat = (to_float(x[col]) - mean) * rstd;
    y[col] = from_float<T>(xhat * to_float(a.weight[col]) + to_float(a.bias[col]));
  }
  if (threadIdx.x == 0) {
    a.mean[row] = mean;
    a.rstd[row] = rstd;
  }
}

template <typename T>
void run(const ForwardArgs<T>& a) {
  launch(layer_norm_forward<T>, {blocks_for(a.rows, 1), kThreadsPerBlock, 0, a.stream}, a);  // [4]
}

const Registration registration{{
    .id = "fwd03",
    .title = "One block per row",
    .teaches = "block-wide sums through shared memory; enough loads in flight",
    .source = "llm.c",
    .parent = "fwd02",
    .road = Road::Main,
    .kinds = {Kind::Layer},
    .needs_affine = true,
    .run = ForwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>},
    .predicted_bytes =
        [](const Problem& p, const Gpu& gpu) {
          return predict_bytes(p, gpu,
                               {.inputs = 1, .walks = 3, .threads_per_row = kThreadsPerBlock});
        },
}};

}  // namespace fwd03
