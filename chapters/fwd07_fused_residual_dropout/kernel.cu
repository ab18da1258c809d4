// fwd07 · Residual, dropout and the norm in one kernel
//
// fwd06 runs the norm at the speed of a copy. But before the norm, a transformer scales x, drops
// elements and adds the residual stream. As separate kernels, these steps write each sum to device
// memory for the next to read. Here they happen while an element is in a register: the kernel reads
// every input once and writes every output once. Dropout stores no mask: Philox computes it from a
// seed and the column, here and again in the backward pass.
//
// It should cost its own bytes. Philox doubles the number of instructions, but going by that number
// they should still hide behind memory.
#include "common/kernel/branch.h"
#include "common/kernel/chapter.h"
#include "common/kernel/reduce.h"
#include "common/kernel/vector.h"

namespace fwd07 {
using namespace lnc;

constexpr int kThreadCols = 16;    // [1] of z, in a thread's registers as floats
constexpr int kMaxThreads = 1024;  // so rows of up to 16384 columns
constexpr int kMaskThreads = 256;

template <typename T>
constexpr int kElements = kVectorElements<T>;  // of a vector: 16 bytes of T
template <typename T>
constexpr int kVectors = kThreadCols / kElements<T>;
/// A thread's columns of a row: vectors that lie blockDim.x vectors apart, as in fwd06.
template <typename T>
using Floats = float[kVectors<T>][kElements<T>];

// exercise
/// The first column of this thread's vector i.
template <typename T>
__device__ int column(int i) {
  return static_cast<int>(i * blockDim.x + threadIdx.x) * kElements<T>;
}

/// Adds a branch, x or x1, to z: 0 for each element that dropout drops, the others times
/// branch.scale, which is the row's scale over 1 - p.
template <typename T>
__device__ void add_branch(float (&z)[kElements<T>], const Packed<T, kElements<T>>& x,
                           const Branch& branch, int col) {
  float values[kElements<T>];
  to_floats(x, values);
  for (float& value : values) value *= branch.scale;
  if (branch.drops) {  // [2]
    for (int k = 0; k < kElements<T>; ++k) {
      if (!branch.keeps(col + k)) values[k] = 0.0f;  // [3]
    }
  }
  for (int k = 0; k < kElements<T>; ++k) z[k] += values[k];
}

/// z = residual + x + x1, rounded to U, the type of the residual, and stored if it is an output.
template <typename T, typename U>
__device__ void make_sum(Floats<T>& z, const ForwardArgs<T>& a, int64_t row) {
  const FusedForward<T, T>& f = a.fused;
  const int cols = static_cast<int>(a.cols);
  const int64_t start = row * cols;
  const auto* const residual = static_cast<const U*>(f.residual);
  auto* const residual_out = static_cast<U*>(f.residual_out);

  Packed<T, kElements<T>> x[kVectors<T>];
  Packed<U, kElements<T>> addend[kVectors<T>];
#pragma unroll
  for (int i = 0; i < kVectors<T>; ++i) {
    const int col = column<T>(i);
    const bool there = col < cols;
    x[i] = load_if<kElements<T>>(there, a.x + start, col);  // [4]
    addend[i] = load_if<kElements<T>>(there && residual != nullptr, residual + start, col);
  }

  const Branch branch(f.rowscale, f.seeds, f.dropout, row);
  const Branch branch1(f.rowscale1, f.seeds1, f.dropout, row);
#pragma unroll
  for (int i = 0; i < kVectors<T>; ++i) {
    const int col = column<T>(i);
    const bool there = col < cols;
    to_floats(addend[i], z[i]);
    add_branch<T>(z[i], x[i], branch, col);
    if (f.x1 != nullptr) {  // [5]
      add_branch<T>(z[i], load_if<kElements<T>>(there, f.x1 + start, col), branch1, col);
    }
    round_to<U>(z[i]);  // [6]
    if (there && residual_out != nullptr) store(residual_out + start, col, z[i]);
  }
}

/// y = xhat · weight + bias
template <typename T>
__device__ void store_output(T* y, const T* weight, const T* bias, int cols,
                             const Floats<T>& xhat) {
#pragma unroll
  for (int i = 0; i < kVectors<T>; ++i) {
    const int col = column<T>(i);
    if (col >= cols) continue;
    float values[kElements<T>];
    float of_bias[kElements<T>];
    to_floats(load_vector<kElements<T>>(weight, col), values);  // [7]
    to_floats(load_vector<kElements<T>>(bias, col), of_bias);
    for (int k = 0; k < kElements<T>; ++k) values[k] = xhat[i][k] * values[k] + of_bias[k];
    store(y, col, values);
  }
}
// end of exercise

template <typename T>
__global__ void __launch_bounds__(kMaxThreads) fused_forward(ForwardArgs<T> a) {
  // exercise
  const FusedForward<T, T>& f = a.fused;
  const int cols = static_cast<int>(a.cols);
  const int64_t row = blockIdx.x;
  Floats<T> z;
  if (f.residual_is_float) {  // [8] known at run time only: a copy of make_sum for each
    make_sum<T, float>(z, a, row);
  } else {
    make_sum<T, T>(z, a, row);
  }

  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kVectors<T>; ++i) {
    for (const float value : z[i]) sum += value;
  }
  const float inverse_cols = 1.0f / static_cast<float>(cols);
  const float mean = block_sum<kMaxThreads>(sum, blockDim.x) * inverse_cols;

  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kVectors<T>; ++i) {
    if (column<T>(i) >= cols) continue;  // [9]
    for (float& value : z[i]) {
      value -= mean;
      squares += value * value;
    }
  }
  const float variance = block_sum<kMaxThreads>(squares, blockDim.x) * inverse_cols;
  const float rstd = rsqrtf(variance + a.eps);

#pragma unroll
  for (int i = 0; i < kVectors<T>; ++i) {
    for (float& value : z[i]) value *= rstd;
  }
  const int64_t start = row * cols;
  store_output<T>(a.y + start, a.weight, a.bias, cols, z);
  if (f.y1 != nullptr) store_output<T>(f.y1 + start, f.weight1, f.bias1, cols, z);
  if (threadIdx.x == 0) {
    a.mean[row] = mean;
    a.rstd[row] = rstd;
  }
}

/// Stores a branch's mask for callers that request it [10]. No kernel reads it.
__global__ void __launch_bounds__(kMaskThreads)
    store_mask(const uint32_t* seeds, float dropout, int64_t cols, uint8_t* mask) {
  // exercise
  const int64_t row = blockIdx.x;
  const Branch branch(nullptr, seeds, dropout, row);
  for (int64_t col = threadIdx.x; col < cols; col += kMaskThreads) {
    mask[row * cols + col] = branch.keeps(col);
  }
}

/// A block has as many warps as a row needs with kThreadCols columns a thread.
template <typename T>
void run(const ForwardArgs<T>& a) {
  const FusedForward<T, T>& f = a.fused;
  const unsigned rows = blocks_for(a.rows, 1);
  const unsigned threads = blocks_for(a.cols, kThreadCols * kWarpSize) * kWarpSize;
  launch(fused_forward<T>, {rows, threads, 0, a.stream}, a);
  if (f.mask != nullptr) {
    launch(store_mask, {rows, kMaskThreads, 0, a.stream}, f.seeds, f.dropout, a.cols, f.mask);
  }
  if (f.mask1 != nullptr) {
    launch(store_mask, {rows, kMaskThreads, 0, a.stream}, f.seeds1, f.dropout, a.cols, f.mask1);
  }
}

const Registration registration{{
    .id = "fwd07",
    .title = "Residual, dropout and the norm in one kernel",
    .teaches = "what comes before the norm costs nothing more than its own bytes",
    .source = "FlashAttention",
    .parent = "fwd06",
    .road = Road::Fusion,
    .kinds = {Kind::Layer},
    .needs_affine = true,
    .needs_aligned = true,
    .fused = true,
    .in_place_cols = kMaxThreads * kThreadCols,
    .max_cols = kMaxThreads * kThreadCols,
    .max_cols_because = "a block holds a whole row",
    .run = ForwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>},
    .predicted_bytes = [](const Problem& p, const Gpu&) -> std::int64_t {
      const Fusion& f = p.fusion;
      const std::int64_t branches = 1 + f.second_input;
      const std::int64_t drops = f.dropout > 0.0f;
      const std::int64_t x_bytes = p.element_bytes();  // of each element, as z_bytes, in and out
      const std::int64_t z_bytes = p.residual_element_bytes();
      const auto in = branches * x_bytes + (f.residual != Residual::None) * z_bytes;
      const auto out =
          (1 + f.second_affine) * x_bytes + f.prenorm * z_bytes + f.masks * drops * branches;
      return p.rows * p.cols * (in + out) + 4 * p.rows * branches * (f.rowscale + drops) +
             parameter_bytes(p) + f.second_affine * 2 * p.cols * p.parameter_element_bytes();
    },
}};

}  // namespace fwd07
