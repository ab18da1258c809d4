// fwd12 · Residual and norm alone
//
// Each block of a transformer adds its output to the residual stream and normalises the sum:
// z = x + residual, y = norm(z). As two kernels that moves five tensors, because the norm reads the
// z that the addition has just written. fwd06 has x in registers when it sums; here the residual is
// added there, z is stored on the way, and nobody reads it again.
//
// It should run at the speed of a copy: 4·M·N elements, each moved once.
#include "common/kernel/chapter.h"
#include "common/kernel/reduce.h"
#include "common/kernel/thread_columns.h"
#include "common/kernel/vector.h"

namespace fwd12 {
using namespace lnc;

constexpr int kThreadCols = 16;  // [1] of z, in registers as floats
constexpr int kMaxThreads = 1024;

/// This thread's vectors of a row, or of the parameters; `otherwise` where the tensor is null.
template <typename U, int kElements, int kVectors>
__device__ void load_columns(Packed<U, kElements> (&values)[kVectors], const U* tensor,
                             int64_t start, const ThreadColumns& own, float otherwise = 0.0f) {
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const bool there = tensor != nullptr && own.has(i);  // [2]
    values[i] = load_if<kElements>(there, tensor, start + own.of(i), otherwise);
  }
}

/// z = x + residual, in float.
template <typename T, typename R, int kElements, int kVectors>
__device__ void add(const Packed<T, kElements> (&x)[kVectors],
                    const Packed<R, kElements> (&residual)[kVectors],
                    float (&z)[kVectors][kElements]) {
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    float addend[kElements];
    to_floats(x[i], z[i]);
    to_floats(residual[i], addend);
    for (int k = 0; k < kElements; ++k) {
      z[i][k] += addend[k];
    }
  }
}

/// Stores this thread's columns of z, in the residual's type.
template <typename R, int kElements, int kVectors>
__device__ void store_columns(R* tensor, int64_t start, const ThreadColumns& own,
                              const float (&z)[kVectors][kElements]) {
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (own.has(i)) store(tensor, start + own.of(i), z[i]);
  }
}

/// The sum of this thread's elements. Beyond the row z is 0.
template <int kElements, int kVectors>
__device__ float sum_of(const float (&z)[kVectors][kElements]) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    for (int k = 0; k < kElements; ++k) {
      sum += z[i][k];
    }
  }
  return sum;
}

/// The sum of the squares of this thread's elements, about the mean.
template <int kElements, int kVectors>
__device__ float squares_about(float mean, const float (&z)[kVectors][kElements],
                               const ThreadColumns& own) {
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (!own.has(i)) continue;
    for (int k = 0; k < kElements; ++k) {
      const float centred = z[i][k] - mean;
      squares += centred * centred;
    }
  }
  return squares;
}

/// A block has one row. R is the type of the residual: T, or float.
template <typename T, typename W, typename R>
__global__ void __launch_bounds__(kMaxThreads) residual_norm_forward(ForwardArgs<T, W> a) {
  constexpr int kElements = kVectorElements<R>;  // [3]
  constexpr int kVectors = kThreadCols / kElements;
  const auto threads = static_cast<int>(blockDim.x);
  const auto first = static_cast<int>(threadIdx.x) * kElements;
  const ThreadColumns own{first, threads * kElements, static_cast<int>(a.cols)};
  const int64_t row = blockIdx.x;
  const int64_t start = row * a.cols;

  Packed<T, kElements> x[kVectors];
  Packed<R, kElements> residual[kVectors];
  load_columns(x, a.x, start, own);  // [4]
  load_columns(residual, static_cast<const R*>(a.fused.residual), start, own);

  float z[kVectors][kElements];
  add(x, residual, z);
  auto* const z_out = static_cast<R*>(a.fused.residual_out);
  if (z_out != nullptr) store_columns(z_out, start, own, z);  // [5]

  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  float mean = 0.0f;
  if (a.kind == Kind::Layer) {
    mean = block_sum<kMaxThreads>(sum_of(z), threads) * inverse_cols;  // [6]
  }
  const float squares = block_sum<kMaxThreads>(squares_about(mean, z, own), threads);
  const float rstd = rsqrtf(squares * inverse_cols + a.eps);

  Packed<W, kElements> weight[kVectors];
  Packed<W, kElements> bias[kVectors];
  load_columns(weight, a.weight, 0, own, 1.0f);  // [7]
  load_columns(bias, a.bias, 0, own);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    float of_weight[kElements];
    float of_bias[kElements];
    to_floats(weight[i], of_weight);
    to_floats(bias[i], of_bias);
    for (int k = 0; k < kElements; ++k) {
      const float xhat = (z[i][k] - mean) * rstd;
      z[i][k] = xhat * of_weight[k] + of_bias[k];
    }
  }
  store_columns(a.y, start, own, z);
  if (threadIdx.x == 0) {
    if (a.kind == Kind::Layer) a.mean[row] = mean;
    a.rstd[row] = rstd;
  }
}

template <typename T, typename W>
void run(const ForwardArgs<T, W>& a) {
  const bool same = sizeof(T) == sizeof(float) || !a.fused.residual_is_float;
  const auto kernel = same ? residual_norm_forward<T, W, T> : residual_norm_forward<T, W, float>;
  const unsigned threads = blocks_for(a.cols, kThreadCols * kWarpSize) * kWarpSize;  // [8]
  launch(kernel, {blocks_for(a.rows, 1), threads, 0, a.stream}, a);
}

const Registration registration{{
    .id = "fwd12",
    .title = "Residual and norm alone",
    .teaches = "the residual is added where x waits in registers: four tensors move, not five",
    .source = "FlashAttention, QuACK",
    .parent = "fwd06",
    .road = Road::Fusion,
    .needs_aligned = true,
    .fused = true,
    .residual_only = true,
    .max_cols = kMaxThreads * kThreadCols,
    .max_cols_because = "a block holds a whole row",
    .run = ForwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>, run<__half, float>,
                            run<__nv_bfloat16, float>},
    .predicted_bytes = [](const Problem& p, const Gpu&) -> std::int64_t {
      const bool residual = p.fusion.residual != Residual::None;
      const std::int64_t streams = residual + p.fusion.prenorm;
      const std::int64_t element_bytes =
          2 * p.element_bytes() + streams * p.residual_element_bytes();
      return p.rows * p.cols * element_bytes + parameter_bytes(p);
    },
}};

}  // namespace fwd12
