// fwd16 · Rows that start anywhere, their weight shifted
//
// fwd06 needs rows that start at 16-byte boundaries; of rows of 4097 halves only one in eight does.
// Here a row's vectors start at y's boundaries, wherever the row starts. The elements of x, weight
// and bias that belong to such a vector are in two aligned vectors: a thread loads both and shifts
// what it needs into place. The few columns before and after a row's whole vectors are its edges;
// single lanes process them.
//
// It should cost what a copy costs: 2·M·N elements, each moved once. Loads from L1 double, and a
// vector needs up to 45 instructions more than in fwd06; both should hide behind device memory.
#include "common/kernel/chapter.h"
#include "common/kernel/reduce.h"
#include "common/kernel/vector.h"

namespace fwd16 {
using namespace lnc;

constexpr int kVectors = 4;       // of a thread
constexpr int kMaxThreads = 576;  // so rows of up to 9216 floats or 18432 halves

/// 16 bytes in four words of 32 bits.
template <typename T>
using Vector = Packed<T, kVectorElements<T>>;

// exercise
/// How many elements past a 16-byte boundary an element lies.
template <typename T>
__device__ int past_boundary(const T* element) {
  return static_cast<int>(reinterpret_cast<std::uintptr_t>(element) % 16 / sizeof(T));
}

/// The 32 bits of high:low from bit `shift` on. nvcc makes one instruction of it: SHF.
__device__ inline std::uint32_t funnel_shift(std::uint32_t low, std::uint32_t high, int shift) {
  return static_cast<std::uint32_t>((std::uint64_t{high} << 32 | low) >> shift);
}

/// The vector that begins `past` elements into `low`; `high` is the next in memory.
template <typename T>
__device__ Vector<T> shifted(const Vector<T>& low, const Vector<T>& high, int past) {
  std::uint32_t words[8];
  for (int i = 0; i < 4; ++i) {
    words[i] = low.at[i];
    words[4 + i] = high.at[i];
  }
  const int bytes = past * static_cast<int>(sizeof(T));
  for (int i = 0; i < 6; ++i) words[i] = bytes & 8 ? words[i + 2] : words[i];  // [1]
  for (int i = 0; i < 5; ++i) words[i] = bytes & 4 ? words[i + 1] : words[i];
  Vector<T> vector;
  for (int i = 0; i < 4; ++i) {
    vector.at[i] = funnel_shift(words[i], words[i + 1], bytes % 4 * 8);  // [2]
  }
  return vector;
}
// end of exercise

template <typename T>
__global__ void __launch_bounds__(kMaxThreads, kSmThreads / kMaxThreads)
    layer_norm_forward(ForwardArgs<T> a) {
  // exercise
  constexpr int kElements = kVectorElements<T>;
  using V = Vector<T>;
  const int64_t row = blockIdx.x;
  const T* x_row = a.x + row * a.cols;
  T* y_row = a.y + row * a.cols;
  const int cols = static_cast<int>(a.cols);
  const float inverse_cols = 1.0f / static_cast<float>(cols);
  const int threads = static_cast<int>(blockDim.x);
  const int thread = static_cast<int>(threadIdx.x);

  const int head = (kElements - past_boundary(y_row)) % kElements;
  const int first = head + kElements;  // [3] a vector is left at each end: `low` stays in the row
  const int vectors = max((cols - first - kElements) / kElements, 0);
  const bool has_edge = thread < cols - vectors * kElements;  // [4] at most 30: a lane each
  const int edge_col = thread < first ? thread : thread + vectors * kElements;

  const int x_past = past_boundary(x_row + first);  // [5]
  const V* x = reinterpret_cast<const V*>(x_row + first - x_past);

  V low[kVectors];  // [6] in a loop of their own: no shift comes between two loads
  V high[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int index = i * threads + thread;
    low[i] = index < vectors ? x[index] : V{};
    high[i] = index < vectors ? x[index + 1] : V{};
  }
  float edge = has_edge ? to_float(x_row[edge_col]) : 0.0f;

  float values[kVectors][kElements];
  float sum = edge;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    to_floats(shifted<T>(low[i], high[i], x_past), values[i]);
    for (const float value : values[i]) sum += value;
  }
  const float mean = block_sum<kMaxThreads>(sum, threads) * inverse_cols;

  edge -= mean;
  float squares = has_edge ? edge * edge : 0.0f;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (i * threads + thread >= vectors) continue;
    for (float& value : values[i]) {
      value -= mean;
      squares += value * value;
    }
  }
  const float variance = block_sum<kMaxThreads>(squares, threads) * inverse_cols;
  const float rstd = rsqrtf(variance + a.eps);

  const int weight_past = past_boundary(a.weight + first);  // [7]
  const int bias_past = past_boundary(a.bias + first);
  const V* weight = reinterpret_cast<const V*>(a.weight + first - weight_past);
  const V* bias = reinterpret_cast<const V*>(a.bias + first - bias_past);
  V* y = reinterpret_cast<V*>(y_row + first);

#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int index = i * threads + thread;
    if (index >= vectors) continue;
    const V weight_low = weight[index];
    const V weight_high = weight[index + 1];
    const V bias_low = bias[index];
    const V bias_high = bias[index + 1];
    float w[kElements];
    float b[kElements];
    to_floats(shifted<T>(weight_low, weight_high, weight_past), w);
    to_floats(shifted<T>(bias_low, bias_high, bias_past), b);
    for (int k = 0; k < kElements; ++k) {
      values[i][k] = values[i][k] * rstd * w[k] + b[k];
    }
    y[index] = from_floats<T>(values[i]);
  }

  if (has_edge) {
    const float weighted = edge * rstd * to_float(a.weight[edge_col]);
    y_row[edge_col] = from_float<T>(weighted + to_float(a.bias[edge_col]));
  }
  if (thread == 0) {
    a.mean[row] = mean;
    a.rstd[row] = rstd;
  }
}

/// A block has as many warps as a row needs with kVectors vectors per thread. Wherever a row
/// starts, two vectors' worth of columns at least are edges.
template <typename T>
void run(const ForwardArgs<T>& a) {
  const int64_t vectors = a.cols / kVectorElements<T> - 2;
  const unsigned warps = std::max(blocks_for(vectors, kVectors * kWarpSize), 1u);
  launch(layer_norm_forward<T>, {blocks_for(a.rows, 1), warps * kWarpSize, 0, a.stream}, a);
}

const Registration registration{{
    .id = "fwd16",
    .title = "Rows that start anywhere, their weight shifted",
    .teaches = "two whole vectors and a shift in place of eight elements",
    .source = "this repository",
    .parent = "fwd06",
    .road = Road::UnalignedRows,
    .usual_cols = 2049,
    .kinds = {Kind::Layer},
    .needs_affine = true,
    .shares_by_address = true,
    .max_row_bytes = kMaxThreads * kVectors * 16,
    .max_row_bytes_because = "a multiprocessor has registers for two such rows",
    .run = ForwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>},
    .predicted_bytes = [](const Problem& p, const Gpu&) -> std::int64_t {
      return 2 * p.tensor_bytes() + parameter_bytes(p);
    },
}};

}  // namespace fwd16
