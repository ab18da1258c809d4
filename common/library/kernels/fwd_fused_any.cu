// lib_fwd_fused_any · Residual, dropout and the norm in one pass
//
// The general fused forward kernel: residual (of x's type or float), dropout, rowscale, a second
// input, a second weight and bias, prenorm output, in any combination, at every width and
// alignment. Everything happens while an element is in a register. A block has a row and keeps up
// to 16 384 columns in registers; for wider rows it computes z again in each of three walks (RMS
// norm: two).
//
// Parts: branch.h and philox.h (scale and dropout of an input, mask recomputed from a seed),
// columns.h (rows that start anywhere), vector.h, reduce.h. fwd07 teaches the fusion and the random
// numbers, fwd06 the 16-byte accesses.
//
// Measured on an H100, bf16 16384 × 4096 with residual and prenorm: 186 µs, 101 % of a copy's
// speed; lib_fwd_fused, which supports no other fusion, takes 184. With dropout 79 to 87 % of a
// copy's speed: 68 instructions per element, against 42 without dropout, no longer hide behind
// memory. Storing z before the next load keeps the kernel at 48 registers, against 56 with all
// stores last. Up to 4096 columns of 16 bits this allows 40 warps per multiprocessor instead of 32
// or 36.
#include "common/kernel/branch.h"
#include "common/kernel/chapter.h"
#include "common/kernel/columns.h"
#include "common/kernel/reduce.h"
#include "common/kernel/rows.h"
#include "common/kernel/shapes.h"
#include "common/kernel/vector.h"

namespace lib_fwd_fused_any {
using namespace lnc;

/// A row of a tensor, or null if the tensor is.
template <typename U>
__device__ U* row_of(U* tensor, int64_t start) {
  return tensor == nullptr ? nullptr : tensor + start;
}

/// A vector of the residual, which is of T or of float, as floats; 0 if there is none.
template <typename T, typename W, int kElements, typename Columns>
__device__ void load_residual(const FusedForward<T, W>& f, const Columns& columns, int64_t start,
                              float (&values)[kElements]) {
  if (f.residual_is_float) {  // the same branch for the whole launch
    const float* const row = row_of(static_cast<const float*>(f.residual), start);
    to_floats(columns.load_or(0.0f, row), values);
  } else {
    const T* const row = row_of(static_cast<const T*>(f.residual), start);
    to_floats(columns.load_or(0.0f, row), values);
  }
}

/// Adds a vector of a branch, x or x1, to that of z.
template <typename T, int kElements>
__device__ void add_branch(const Branch& branch, const Packed<T, kElements>& x, int64_t col,
                           float (&z)[kElements]) {
  float values[kElements];
  to_floats(x, values);
  // Branch::apply tests for dropout once a vector, so the random numbers of eight elements are
  // independent chains.
  branch.apply(values, col);
  for (int k = 0; k < kElements; ++k) {
    z[k] += values[k];
  }
}

/// A vector of z, the sum of the residual, x and x1, rounded to the residual's type. Elements
/// outside the row are 0.
template <typename T, typename W, int kElements, typename Columns>
__device__ void make_z(const ForwardArgs<T, W>& a, const Branch& branch, const Branch& branch1,
                       const Columns& columns, int64_t start, float (&z)[kElements]) {
  // x and the residual are both requested before either is used. x1 is rare, and is loaded later so
  // that its registers are not taken in every launch.
  const auto x = columns.load(a.x + start);
  load_residual(a.fused, columns, start, z);
  add_branch(branch, x, columns.first, z);
  if (a.fused.x1 != nullptr) {
    const auto x1 = columns.load(a.fused.x1 + start);
    add_branch(branch1, x1, columns.first, z);
  }
  // Rounded once, when everything is added; the store then rounds nothing.
  if (!a.fused.residual_is_float) round_to<T>(z);
}

/// Stores a vector of z, in the residual's type.
template <typename T, typename W, int kElements, typename Columns>
__device__ void store_z(const FusedForward<T, W>& f, const Columns& columns, int64_t start,
                        const float (&z)[kElements]) {
  if (f.residual_out == nullptr) return;
  if (f.residual_is_float) {
    columns.store(static_cast<float*>(f.residual_out) + start, z);
  } else {
    columns.store(static_cast<T*>(f.residual_out) + start, z);
  }
}

/// y = xhat · weight + bias of a vector, with 1 and 0 for what is null.
template <typename T, typename W, int kElements, typename Columns>
__device__ void store_affine(T* y, const W* weight, const W* bias, const Columns& columns,
                             const float (&xhat)[kElements]) {
  float values[kElements];
  float of_column[kElements];
  to_floats(columns.load_or(1.0f, weight), of_column);
  for (int k = 0; k < kElements; ++k) {
    values[k] = xhat[k] * of_column[k];
  }
  to_floats(columns.load_or(0.0f, bias), of_column);
  for (int k = 0; k < kElements; ++k) {
    values[k] += of_column[k];
  }
  columns.store(y, values);
}

/// Computes xhat of a vector of z, and from xhat y, and y1 if there is a second output.
template <typename T, typename W, int kElements, typename Columns>
__device__ void store_outputs(const ForwardArgs<T, W>& a, const Columns& columns, int64_t start,
                              float (&z)[kElements], float mean, float rstd) {
  for (float& value : z) {
    value = (value - mean) * rstd;
  }
  store_affine(a.y + start, a.weight, a.bias, columns, z);
  const FusedForward<T, W>& f = a.fused;
  if (f.y1 != nullptr) store_affine(f.y1 + start, f.weight1, f.bias1, columns, z);
}

template <int kElements>
__device__ float sum_of(const float (&values)[kElements]) {
  float sum = 0.0f;
  for (const float value : values) {
    sum += value;
  }
  return sum;
}

/// The sum of a vector's squared deviations from the mean.
template <int kElements, typename Columns>
__device__ float squares_of(const float (&values)[kElements], const Columns& columns, float mean) {
  float squares = 0.0f;
  for (int k = 0; k < kElements; ++k) {
    // Elements outside the row are 0, but their deviation is not.
    if (!columns.any() || !columns.has(k)) continue;
    const float centred = values[k] - mean;
    squares += centred * centred;
  }
  return squares;
}

/// A block has a row, and a thread kVectors vectors of its z.
template <typename T, typename W, int kThreads, int kVectors, bool kAligned>
__global__ void __launch_bounds__(kThreads) fused_forward(ForwardArgs<T, W> a) {
  constexpr int kElements = kVectorElements<T>;
  const FusedForward<T, W>& f = a.fused;
  const int64_t row = blockIdx.x;
  const int64_t start = row * a.cols;
  const Branch branch(f.rowscale, f.seeds, f.dropout, row);
  const Branch branch1(f.rowscale1, f.seeds1, f.dropout, row);
  const auto columns = [&](int i) {
    return Columns<T, kAligned>(a.x + start, i * kThreads + threadIdx.x, a.cols, a.batch_invariant);
  };

  float z[kVectors][kElements];
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    make_z(a, branch, branch1, columns(i), start, z[i]);
    store_z(f, columns(i), start, z[i]);
    sum += sum_of(z[i]);
  }

  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  float mean = 0.0f;
  // RMS norm has no mean, and one sum less.
  if (a.kind == Kind::Layer) mean = block_sum<kThreads>(sum) * inverse_cols;
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    squares += squares_of(z[i], columns(i), mean);
  }
  const float rstd = rsqrtf(block_sum<kThreads>(squares) * inverse_cols + a.eps);

#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    store_outputs(a, columns(i), start, z[i], mean, rstd);
  }
  if (threadIdx.x == 0) {
    if (a.kind == Kind::Layer) a.mean[row] = mean;
    a.rstd[row] = rstd;
  }
}

constexpr int kWideThreads = 1024;
constexpr int kMostFloats = 16;  // of z, in a thread's registers

/// A row that does not fit in a block's registers: each walk computes z again.
template <typename T, typename W, bool kAligned>
__global__ void __launch_bounds__(kWideThreads)
    fused_forward_wide(ForwardArgs<T, W> a, int64_t vectors) {
  constexpr int kElements = kVectorElements<T>;
  const FusedForward<T, W>& f = a.fused;
  const int64_t row = blockIdx.x;
  const int64_t start = row * a.cols;
  const Branch branch(f.rowscale, f.seeds, f.dropout, row);
  const Branch branch1(f.rowscale1, f.seeds1, f.dropout, row);
  const auto walk = [&](const auto& body) {
#pragma unroll 1
    for (int64_t vector = threadIdx.x; vector < vectors; vector += kWideThreads) {
      const Columns<T, kAligned> columns(a.x + start, vector, a.cols, a.batch_invariant);
      float z[kElements];
      // Computed again from the same loads and seeds: residual_out may be null, so z cannot be read
      // back.
      make_z(a, branch, branch1, columns, start, z);
      body(columns, z);
    }
  };

  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  float mean = 0.0f;
  if (a.kind == Kind::Layer) {
    float sum = 0.0f;
    walk([&](const auto&, const auto& z) { sum += sum_of(z); });
    mean = block_sum<kWideThreads>(sum) * inverse_cols;
  }
  float squares = 0.0f;
  walk([&](const auto& columns, const auto& z) {
    squares += squares_of(z, columns, mean);
    store_z(f, columns, start, z);
  });
  const float rstd = rsqrtf(block_sum<kWideThreads>(squares) * inverse_cols + a.eps);

  walk([&](const auto& columns, auto& z) { store_outputs(a, columns, start, z, mean, rstd); });
  if (threadIdx.x == 0) {
    if (a.kind == Kind::Layer) a.mean[row] = mean;
    a.rstd[row] = rstd;
  }
}

constexpr int kMaskThreads = 256;

/// The mask of a branch, for callers that ask for it. No kernel reads it.
__global__ void __launch_bounds__(kMaskThreads)
    store_mask(const uint32_t* seeds, float dropout, int64_t cols, uint8_t* mask) {
  const int64_t row = blockIdx.x;
  const Branch branch(nullptr, seeds, dropout, row);
  for (int64_t col = threadIdx.x; col < cols; col += kMaskThreads) {
    mask[row * cols + col] = branch.keeps(col);
  }
}

/// A block of kThreads threads, each of which holds kFloats columns of z.
template <typename T, int kThreads, int kFloats>
using Shape = BlockShape<kThreads, kFloats / kVectorElements<T>>;

/// Launches the kernel with the fewest threads that hold a row, or the wide one.
template <bool kAligned, typename T, typename W>
void run_width(const ForwardArgs<T, W>& a) {
  const unsigned rows = blocks_for(a.rows, 1);
  const int64_t vectors = vectors_of_row<T, kAligned>(a.cols);
  const bool launched =
      try_shapes<Shape<T, 32, 8>, Shape<T, 128, 8>, Shape<T, 128, 16>, Shape<T, 256, 16>,
                 Shape<T, 512, 16>, Shape<T, kWideThreads, kMostFloats>>(
          vectors, [&]<typename Fit>(Fit) {
            launch(fused_forward<T, W, Fit::kThreads, Fit::kVectors, kAligned>,
                   {rows, Fit::kThreads, 0, a.stream}, a);
          });
  if (launched) return;
  launch(fused_forward_wide<T, W, kAligned>, {rows, kWideThreads, 0, a.stream}, a, vectors);
}

template <typename T, typename W>
void run(const ForwardArgs<T, W>& a) {
  const FusedForward<T, W>& f = a.fused;
  if (in_whole_vectors(a, f.x1, f.y1, f.weight1, f.bias1, f.residual, f.residual_out)) {
    run_width<true>(a);
  } else {
    run_width<false>(a);
  }
  const auto run_mask = [&](const uint32_t* seeds, uint8_t* mask) {
    if (mask == nullptr) return;
    launch(store_mask, {blocks_for(a.rows, 1), kMaskThreads, 0, a.stream}, seeds, f.dropout, a.cols,
           mask);
  };
  run_mask(f.seeds, f.mask);
  run_mask(f.seeds1, f.mask1);
}

const Registration registration{{
    .id = "lib_fwd_fused_any",
    .title = "Residual, dropout and the norm in one pass",
    .teaches = "every fusion at any width and alignment, each tensor moved once",
    .source = "FlashAttention",
    .road = Road::Library,
    .fused = true,
    .in_place_cols = kWideThreads * kMostFloats - kVectorElements<__half>,  // wherever they start
    .run = ForwardLaunchers::every([](const auto& args) { run(args); }),
    .predicted_bytes = [](const Problem& p, const Gpu& gpu) -> std::int64_t {
      const Fusion& f = p.fusion;
      const std::int64_t branches = 1 + f.second_input;
      const std::int64_t drops = f.dropout > 0.0f;
      const std::int64_t x_bytes = p.element_bytes();  // of each element, as the next three
      const std::int64_t z_bytes = p.residual_element_bytes();
      const auto in = branches * x_bytes + (f.residual != Residual::None) * z_bytes;
      const auto out =
          (1 + f.second_affine) * x_bytes + f.prenorm * z_bytes + f.masks * drops * branches;
      const int wide_walks = p.kind == Kind::Layer ? 3 : 2;
      const int walks = p.cols <= kWideThreads * kMostFloats ? 1 : wide_walks;
      const auto rows = rows_in_flight(p, gpu.threads_per_multiprocessor, gpu);  // a block each
      const auto reads = device_reads(walks, rows * p.cols * in, gpu);
      return p.rows * p.cols * (reads * in + out) + 4 * p.rows * branches * (f.rowscale + drops) +
             parameter_bytes(p) + f.second_affine * 2 * p.cols * p.parameter_element_bytes();
    },
}};

}  // namespace lib_fwd_fused_any
