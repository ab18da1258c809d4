// fwd01 · One thread per row
//
// The definition of layer normalisation, computed by one thread for each row: first the mean, then
// the variance about that mean, then y. The thread walks its row of x three times.
//
// It should take far longer than its bytes require. The 32 lanes of a warp read 32 addresses a
// whole row apart, so one request touches 32 sectors of 32 bytes and uses 4 bytes of each. And few
// rows make few blocks, so most multiprocessors idle. fwd02 addresses both.
#include "common/kernel/chapter.h"

namespace fwd01 {
using namespace lnc;

constexpr int kThreadsPerBlock = 256;

template <typename T>
__global__ void layer_norm_forward(ForwardArgs<T> a) {
  // exercise
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;  // [1]
  if (row >= a.rows) return;                                           // [2]
  const T* x = a.x + row * a.cols;  // [3] 64-bit: row * cols exceeds 2^31 on an 80 GB card
  T* y = a.y + row * a.cols;
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);

  float sum = 0.0f;  // [4]
  for (int64_t col = 0; col < a.cols; ++col) {
    sum += to_float(x[col]);
  }
  const float mean = sum * inverse_cols;

  float squares = 0.0f;  // [5]
  for (int64_t col = 0; col < a.cols; ++col) {
    const float centred = to_float(x[col]) - mean;
    squares += centred * centred;
  }
  const float rstd = rsqrtf(squares * inverse_cols + a.eps);  // [6]

  for (int64_t col = 0; col < a.cols; ++col) {  // [7]
    const float xhat = (to_float(x[col]) - mean) * rstd;
    y[col] = from_float<T>(xhat * to_float(a.weight[col]) + to_float(a.bias[col]));
  }
  a.mean[row] = mean;
  a.rstd[row] = rstd;
}

template <typename T>
void run(const ForwardArgs<T>& a) {
  launch(layer_norm_forward<T>,
         {blocks_for(a.rows, kThreadsPerBlock), kThreadsPerBlock, 0, a.stream}, a);  // [8]
}

const Registration registration{{
    .id = "fwd01",
    .title = "One thread per row",
    .teaches = "the definition, in two walks for the statistics and one for y",
    .source = "llm.c",
    .parent = "copy00",
    .road = Road::Main,
    .kinds = {Kind::Layer},
    .needs_affine = true,
    .max_cols = 1 << 16,
    .run = ForwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>},
    .predicted_bytes =
        [](const Problem& p, const Gpu& gpu) {
          return predict_bytes(p, gpu, {.inputs = 1, .walks = 3, .threads_per_row = 1});
        },
}};

}  // namespace fwd01
