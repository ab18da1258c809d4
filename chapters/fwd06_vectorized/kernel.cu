// fwd06 · 128-bit access, the row in registers
//
// fwd05 reads each row three times, 2 or 4 bytes per thread and instruction. Here a thread loads 16
// bytes with each instruction and keeps them in registers until it has the statistics. So it reads
// x only once, whatever the caches do, and issues a quarter (float) or an eighth (half) as many
// loads as one of fwd05's walks.
//
// It should cost what a copy costs: 2·M·N elements, each moved once. The lesson says where it does.
#include "common/kernel/chapter.h"
#include "common/kernel/reduce.h"

namespace fwd06 {
using namespace lnc;

constexpr int kVectors = 4;       // of a thread
constexpr int kMaxThreads = 512;  // so rows of up to 8192 floats or 16384 halves

/// 16 bytes of a row, aligned to 16: nvcc loads or stores them with one instruction.
template <typename T>
struct alignas(16) Vector {  // [1]
  static constexpr int kElements = 16 / sizeof(T);
  T at[kElements];
};

template <typename T>
__global__ void __launch_bounds__(kMaxThreads, 2) layer_norm_forward(ForwardArgs<T> a) {  // [2]
  // exercise
  using V = Vector<T>;
  const int vectors = static_cast<int>(a.cols) / V::kElements;  // of a row
  const int64_t row = blockIdx.x;
  const V* x = reinterpret_cast<const V*>(a.x) + row * vectors;
  V* y = reinterpret_cast<V*>(a.y) + row * vectors;
  const V* weight = reinterpret_cast<const V*>(a.weight);
  const V* bias = reinterpret_cast<const V*>(a.bias);
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  const int threads = static_cast<int>(blockDim.x);
  const int thread = static_cast<int>(threadIdx.x);

  float values[kVectors][V::kElements];  // [3] x, in registers; later x - mean
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int index = i * threads + thread;  // [4]
    const V vector = index < vectors ? x[index] : V{};
    for (int k = 0; k < V::kElements; ++k) {
      values[i][k] = to_float(vector.at[k]);
    }
  }

  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    for (const float value : values[i]) {
      sum += value;  // past the row's end: 0
    }
  }
  const float mean = block_sum<kMaxThreads>(sum, threads) * inverse_cols;

  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (i * threads + thread >= vectors) continue;  // [5] zeros beyond the row would become -mean
    for (float& value : values[i]) {
      value -= mean;  // [6]
      squares += value * value;
    }
  }
  const float variance = block_sum<kMaxThreads>(squares, threads) * inverse_cols;
  const float rstd = rsqrtf(variance + a.eps);

#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int index = i * threads + thread;
    if (index >= vectors) continue;
    const V w = weight[index];  // [7]
    const V b = bias[index];
    V out;
    for (int k = 0; k < V::kElements; ++k) {
      const float xhat = values[i][k] * rstd;
      out.at[k] = from_float<T>(xhat * to_float(w.at[k]) + to_float(b.at[k]));
    }
    y[index] = out;
  }
  if (thread == 0) {
    a.mean[row] = mean;
    a.rstd[row] = rstd;
  }
}

/// A block has as many warps as a row needs with kVectors vectors per thread.
template <typename T>
void run(const ForwardArgs<T>& a) {
  const int64_t vectors = a.cols / Vector<T>::kElements;
  const unsigned warps = blocks_for(vectors, kVectors * kWarpSize);
  launch(layer_norm_forward<T>, {blocks_for(a.rows, 1), warps * kWarpSize, 0, a.stream}, a);
}

const Registration registration{{
    .id = "fwd06",
    .title = "128-bit access, the row in registers",
    .teaches = "16 bytes an access; each byte of x read once",
    .source = "OneFlow, PyTorch",
    .parent = "fwd05",
    .road = Road::Main,
    .kinds = {Kind::Layer},
    .needs_affine = true,
    .needs_aligned = true,
    .max_row_bytes = kMaxThreads * kVectors * 16,
    .max_row_bytes_because = "512 threads keep 4 vectors of 16 bytes each",
    .run = ForwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>},
    .predicted_bytes = [](const Problem& p, const Gpu&) -> std::int64_t {
      return 2 * p.tensor_bytes() + parameter_bytes(p);
    },
}};

}  // namespace fwd06
