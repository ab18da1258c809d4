// bwd10 · The gradient of residual, dropout and the norm
//
// bwd09 ends at the gradient of what the norm read. In fwd07 that is a sum, and its gradient passes
// on to the residual, and to x and x1, each with a scale and a mask of its own. As separate
// kernels, these steps read what the one before has written. Here they happen while the gradient is
// in a register, and the kernel generates the masks again from their seeds.
//
// It should cost the bytes of its tensors, each moved once. The masks need nearly as many
// instructions as all the rest, but these should hide behind the bytes.
#include "common/kernel/branch.h"
#include "common/kernel/chapter.h"
#include "common/kernel/partial_sums.h"
#include "common/kernel/reduce.h"
#include "common/kernel/vector.h"

namespace bwd10 {
using namespace lnc;

constexpr int kThreads = 256;
constexpr int kBlocks = 2;   // [1] on a multiprocessor: 512 threads with 128 registers each
constexpr int kVectors = 2;  // of 16 bytes of T, a thread's share of a row

template <typename T>
constexpr int kElements = kVectorElements<T>;  // of a vector

/// A thread's share of a row: as it was loaded from a tensor of U, and as floats. Its vectors are
/// kThreads vectors apart, as in bwd09: vector i begins at column(i).
template <typename T, typename U = T>
struct Share {
  Packed<U, kElements<T>> vector[kVectors];
};
template <typename T>
using Floats = float[kVectors][kElements<T>];

/// What a thread loads of a row: z, which the norm read; the gradient of z that bypasses the norm;
/// and dy. U is the type of z: T, or float.
template <typename T, typename U>
struct Row {
  Share<T, U> z;
  Share<T, U> past_norm;
  Share<T> dy;
  float mean;
  float rstd;
};

/// The gradients of one output's weight and bias, over a block's rows so far.
template <typename T>
struct alignas(16) Sums {
  Floats<T> dweight;
  Floats<T> dbias;
  float padding[4];  // [2] between the sums of two threads in shared memory
};

// exercise
template <typename T>
__device__ int column(int i) {
  return (i * kThreads + static_cast<int>(threadIdx.x)) * kElements<T>;
}

template <typename T, typename U>
__device__ Share<T, U> load_share(const U* row, int cols) {
  Share<T, U> share;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    share.vector[i] = load_if<kElements<T>>(column<T>(i) < cols, row, column<T>(i));
  }
  return share;
}

template <typename T, typename U>
__device__ void store_share(const Floats<T>& values, U* row, int cols) {
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (column<T>(i) < cols) store(row, column<T>(i), values[i]);
  }
}

/// Stores the gradient of a branch, x or x1: that of z, scaled and dropped as the branch was.
template <typename T>
__device__ void store_branch(const Floats<T>& dz, const Branch& branch, T* row, int cols) {
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    float values[kElements<T>];
    for (int k = 0; k < kElements<T>; ++k) values[k] = dz[i][k];
    int col = column<T>(i);
    asm volatile("" : "+r"(col));  // [3] hides from nvcc that every row has the same col
    branch.apply(values, col);
    if (col < cols) store(row, col, values);
  }
}

template <typename U, typename T>
__device__ Row<T, U> load_row(const BackwardArgs<T>& a, int64_t row) {
  const int64_t start = row * a.cols;
  const U* const z = static_cast<const U*>(a.fused.residual_out);
  const U* const past_norm = static_cast<const U*>(a.fused.dresidual_out);
  return {load_share<T>(z + start, a.cols),
          past_norm == nullptr ? Share<T, U>{} : load_share<T>(past_norm + start, a.cols),  // [4]
          load_share<T>(a.dy + start, a.cols), a.mean[row], a.rstd[row]};
}

/// Adds what comes through one output, y or y1, to wdy, to c and to its parameters' gradients.
template <typename T>
__device__ void add_output(const Share<T>& dy_share, const T* weights, int cols,
                           const Floats<T>& xhat, Floats<T>& wdy, float2& c, Sums<T>& sums) {
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    float dy[kElements<T>];
    float weight[kElements<T>];
    to_floats(dy_share.vector[i], dy);
    to_floats(load_if<kElements<T>>(column<T>(i) < cols, weights, column<T>(i)), weight);
    for (int k = 0; k < kElements<T>; ++k) {
      const float term = weight[k] * dy[k];
      wdy[i][k] += term;  // [5]
      c.x += term * xhat[i][k];
      c.y += term;
      sums.dweight[i][k] += dy[k] * xhat[i][k];
      sums.dbias[i][k] += dy[k];
    }
  }
}

/// The backward pass over the rows of a block, one after another.
template <typename U, typename T>
__device__ void walk_rows(const BackwardArgs<T>& a, Sums<T>& sums, Sums<T>& sums1) {
  constexpr bool kLoadsAhead = sizeof(U) == sizeof(T);  // [6]
  const FusedBackward<T, T>& f = a.fused;
  const int cols = static_cast<int>(a.cols);
  Row<T, U> loaded = load_row<U>(a, blockIdx.x);
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const int64_t start = row * cols;
    if (!kLoadsAhead) loaded = load_row<U>(a, row);
    const Branch branch(f.rowscale, f.seeds, f.dropout, row);
    const Branch branch1(f.rowscale1, f.seeds1, f.dropout, row);

    Floats<T> xhat;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      to_floats(loaded.z.vector[i], xhat[i]);
      for (float& value : xhat[i]) value = (value - loaded.mean) * loaded.rstd;
    }
    Floats<T> wdy = {};
    float2 c = make_float2(0.0f, 0.0f);
    add_output<T>(loaded.dy, a.weight, cols, xhat, wdy, c, sums);
    if (f.dy1 != nullptr) {
      add_output<T>(load_share<T>(f.dy1 + start, cols), f.weight1, cols, xhat, wdy, c, sums1);
    }

    const Row<T, U> now = loaded;  // [7]
    if (kLoadsAhead) loaded = load_row<U>(a, min(row + gridDim.x, a.rows - 1));
    c = block_sum<kThreads>(c);
    const float c1 = c.x / static_cast<float>(cols);
    const float c2 = c.y / static_cast<float>(cols);

    Floats<T> dz;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      to_floats(now.past_norm.vector[i], dz[i]);
      for (int k = 0; k < kElements<T>; ++k) {
        dz[i][k] += now.rstd * (wdy[i][k] - c2 - xhat[i][k] * c1);  // [8]
      }
    }

    if (f.dresidual != nullptr) store_share<T>(dz, static_cast<U*>(f.dresidual) + start, cols);
    if (f.dx1 != nullptr) store_branch<T>(dz, branch1, f.dx1 + start, cols);
    store_branch<T>(dz, branch, a.dx + start, cols);  // [9]
  }
}
// end of exercise

template <typename T>
__global__ void __launch_bounds__(kThreads, kBlocks)
    fused_backward(BackwardArgs<T> a, float* partials) {
  // exercise
  Sums<T> sums = {};
  Sums<T>& sums1 = dynamic_shared<Sums<T>>()[threadIdx.x];  // [10]
  if (a.fused.dy1 != nullptr) sums1 = {};
  if (a.fused.residual_is_float) {
    walk_rows<float>(a, sums, sums1);
  } else {
    walk_rows<T>(a, sums, sums1);
  }

  float* const partial = partials + blockIdx.x * a.cols;
  const int64_t size = gridDim.x * a.cols;
  store_share<T>(sums.dweight, partial, a.cols);
  store_share<T>(sums.dbias, partial + size, a.cols);
  if (a.fused.dy1 == nullptr) return;
  store_share<T>(sums1.dweight, partial + 2 * size, a.cols);
  store_share<T>(sums1.dbias, partial + 3 * size, a.cols);
}

/// The fewest blocks with which no block has more rows than if the GPU were full.
int64_t blocks_of(int64_t rows) {
  if (rows == 0) return 0;
  const int64_t rows_per_block = blocks_for(rows, kBlocks * multiprocessors());
  return blocks_for(rows, rows_per_block);
}

template <typename T>
void run(const BackwardArgs<T>& args) {
  BackwardArgs<T> a = args;
  if (a.fused.residual_out == nullptr) a.fused.residual_out = a.x;  // no fusion: z is x
  const int64_t blocks = blocks_of(a.rows);
  const int64_t size = blocks * a.cols;
  float* const partials = static_cast<float*>(a.workspace);
  const bool two_outputs = a.fused.dweight1 != nullptr;
  const std::size_t shared_bytes = two_outputs ? kThreads * sizeof(Sums<T>) : 0;
  launch(fused_backward<T>, {static_cast<unsigned>(blocks), kThreads, shared_bytes, a.stream}, a,
         partials);
  add_partial_sums(a, {partials, partials + size, a.cols}, blocks);
  if (!two_outputs) return;
  a.dweight = a.fused.dweight1;
  a.dbias = a.fused.dbias1;
  add_partial_sums(a, {partials + 2 * size, partials + 3 * size, a.cols}, blocks);
}

const Registration registration{{
    .id = "bwd10",
    .title = "The gradient of residual, dropout and the norm",
    .teaches = "back through every part in one kernel, with the masks drawn again",
    .source = "FlashAttention",
    .parent = "bwd09",
    .road = Road::Fusion,
    .kinds = {Kind::Layer},
    .needs_affine = true,
    .needs_aligned = true,
    .fused = true,
    .max_row_bytes = kThreads * kVectors * 16,
    .max_row_bytes_because = "a thread keeps two vectors of 16 bytes in registers",
    .run = BackwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>},
    .predicted_bytes = [](const Problem& p, const Gpu&) -> std::int64_t {
      const Fusion& f = p.fusion;
      const int outputs = 1 + f.second_affine;
      const int inputs = 1 + f.second_input;
      const int numbers_a_row = inputs * (f.rowscale + (f.dropout > 0.0f));  // scales and seeds
      return backward_tensor_bytes(p) + 4 * p.rows * numbers_a_row + outputs * parameter_bytes(p);
    },
    .workspace_bytes = [](const Problem& p) -> std::int64_t {
      return (1 + p.fusion.second_affine) * partial_sums_bytes(p, blocks_of(p.rows));
    },
}};

}  // namespace bwd10
