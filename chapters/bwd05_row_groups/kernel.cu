// bwd05 · A block takes many rows
//
// bwd04 sends 2·M·N atomics: each row adds each of its columns to dweight and dbias in L2. Here a
// block walks over G rows, and a thread has the same columns in each. So the thread adds up dweight
// and dbias of its columns in registers, row after row, and sends one atomic per column and sum at
// the end.
//
// The number of atomics should fall to 1 / G. And because a thread has few and fixed columns, xhat
// and wdy stay in registers between the two halves of a row: it reads x and dy once, without any
// cache.
#include "common/kernel/chapter.h"
#include "common/kernel/gradient_sums.h"
#include "common/kernel/reduce.h"

namespace bwd05 {
using namespace lnc;

constexpr int kColumns = 8;                      // [1] of a thread, at most
constexpr int kThreadsPerMultiprocessor = 1024;  // with 64 registers each
constexpr int kMostThreads = 1024;

// exercise
/// Loads this thread's columns of a row: `from[threadIdx.x + i * kThreads]`, and 0 past the row's
/// end.
template <int kThreads, typename T>
__device__ inline void load_columns(float (&values)[kColumns], const T* from, int cols) {
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const int col = i * kThreads + static_cast<int>(threadIdx.x);
    values[i] = col < cols ? to_float(from[col]) : 0.0f;
  }
}
// end of exercise

template <typename T, int kThreads>
__global__ void __launch_bounds__(kThreads, kThreadsPerMultiprocessor / kThreads)
    layer_norm_backward(BackwardArgs<T> a, GradientSums sums, int64_t rows_per_block) {
  // exercise
  const int64_t first_row = blockIdx.x * rows_per_block;
  const int64_t end_row = min(first_row + rows_per_block, a.rows);  // [2]
  const int cols = static_cast<int>(a.cols);
  const float inverse_cols = 1.0f / static_cast<float>(cols);

  float dweight[kColumns] = {};  // [3] over the block's rows so far
  float dbias[kColumns] = {};
  for (int64_t row = first_row; row < end_row; ++row) {
    T* dx = a.dx + row * a.cols;
    const float mean = a.mean[row];
    const float rstd = a.rstd[row];

    float dy[kColumns];  // [4]
    float x[kColumns];
    float weight[kColumns];
    load_columns<kThreads>(dy, a.dy + row * a.cols, cols);  // [5]
    load_columns<kThreads>(x, a.x + row * a.cols, cols);
    load_columns<kThreads>(weight, a.weight, cols);

    float xhat[kColumns];
    float wdy[kColumns];
    float c1 = 0.0f;
    float c2 = 0.0f;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      xhat[i] = (x[i] - mean) * rstd;
      wdy[i] = weight[i] * dy[i];
      c1 += wdy[i] * xhat[i];
      c2 += wdy[i];
      dweight[i] += dy[i] * xhat[i];
      dbias[i] += dy[i];
    }
    c1 = block_sum<kThreads>(c1) * inverse_cols;
    c2 = block_sum<kThreads>(c2) * inverse_cols;

#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int col = i * kThreads + static_cast<int>(threadIdx.x);
      if (col < cols) dx[col] = from_float<T>(rstd * (wdy[i] - c2 - xhat[i] * c1));
    }
  }

#pragma unroll
  for (int i = 0; i < kColumns; ++i) {  // [6]
    const int col = i * kThreads + static_cast<int>(threadIdx.x);
    if (col < cols) {
      atomicAdd(&sums.dweight[col], dweight[i]);
      atomicAdd(&sums.dbias[col], dbias[i]);
    }
  }
}

/// G: the fewest rows per block with which all blocks fit on the GPU at once.
constexpr int64_t rows_that_fill(int64_t rows, int64_t room) {  // [7]
  return std::max<int64_t>((rows + room - 1) / room, 1);
}

template <typename T, int kThreads>
void run_with(const BackwardArgs<T>& a, const GradientSums& sums) {
  const int64_t room = int64_t{multiprocessors()} * (kThreadsPerMultiprocessor / kThreads);
  const int64_t rows_per_block = a.group > 0 ? a.group : rows_that_fill(a.rows, room);
  launch(layer_norm_backward<T, kThreads>,
         {blocks_for(a.rows, rows_per_block), kThreads, 0, a.stream}, a, sums, rows_per_block);
}

template <typename T>
void run(const BackwardArgs<T>& a) {
  const GradientSums sums = zero_gradient_sums(a);
  const int64_t threads = (a.cols + kColumns - 1) / kColumns;  // [8] that the columns need
  if (threads <= 64) {
    run_with<T, 64>(a, sums);
  } else if (threads <= 128) {
    run_with<T, 128>(a, sums);
  } else if (threads <= 256) {
    run_with<T, 256>(a, sums);
  } else if (threads <= 512) {
    run_with<T, 512>(a, sums);
  } else {
    run_with<T, kMostThreads>(a, sums);
  }
  round_gradients(a, sums);
}

const Registration registration{{
    .id = "bwd05",
    .title = "A block takes many rows",
    .teaches = "column sums in registers; one atomic per column and block",
    .source = "CUDA layer-norm backward progression, v5 as described",
    .parent = "bwd04",
    .road = Road::Main,
    .kinds = {Kind::Layer},
    .needs_affine = true,
    .group = "rows a block",
    .deterministic = false,
    .max_cols = kMostThreads * kColumns,
    .max_cols_because = "a thread keeps 8 columns in registers",
    .run = BackwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>},
    .predicted_bytes =
        [](const Problem& p, const Gpu& gpu) {
          return predict_bytes(p, gpu, {.inputs = 2, .walks = 1, .threads_per_row = 1});
        },
    .workspace_bytes = gradient_sums_bytes,
}};

}  // namespace bwd05
