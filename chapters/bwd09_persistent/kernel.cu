// bwd09 · Persistent blocks
//
// A block of bwd05 loads a row, waits for it, works on it, and only then loads the next. It loads
// the weight again for each row, and ends in atomics that all blocks send to the same columns. Here
// a block loads its next row before it works on the current one, keeps weight, dweight and dbias of
// its columns in registers for the whole launch, and ends by writing one row of partial sums. A
// second kernel adds up these rows.
//
// It should cost what a triad costs, plus the partial sums through L2 and a second launch: too
// little to notice with many rows, but a fifth of the time with 1024.
#include "common/kernel/chapter.h"
#include "common/kernel/reduce.h"
#include "common/kernel/vector.h"

namespace bwd09 {
using namespace lnc;

constexpr int kThreads = 256;
constexpr int kBlocks = 2;     // [1] on a multiprocessor: 512 threads with 128 registers each
constexpr int kVectors = 2;    // of 16 bytes, that a thread has of a row
constexpr int kSumWarps = 32;  // of a block of the second kernel

/// What a thread has of one row.  [2]
template <typename T>
struct Row {
  Packed<T, kVectorElements<T>> x[kVectors];
  Packed<T, kVectorElements<T>> dy[kVectors];
  float mean;
  float rstd;
};

/// Block b takes the rows b, b + gridDim.x, … and leaves its sums in row b of `partials`: first
/// those for dweight, then those for dbias.
template <typename T>
__global__ void __launch_bounds__(kThreads, kBlocks)
    layer_norm_backward(BackwardArgs<T> a, float* partials) {
  // exercise
  constexpr int kElements = kVectorElements<T>;
  const auto col = [](int i) { return static_cast<int>(i * kThreads + threadIdx.x) * kElements; };
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);

  Packed<T, kElements> weight[kVectors];  // [3] loaded once, for all rows
  for (int i = 0; i < kVectors; ++i) {
    weight[i] = load_if<kElements>(col(i) < a.cols, a.weight, col(i));
  }
  float dweight[kVectors][kElements] = {};  // over all rows of this block
  float dbias[kVectors][kElements] = {};

  const auto load = [&](int64_t row) {
    Row<T> loaded;
    for (int i = 0; i < kVectors; ++i) {
      loaded.x[i] = load_if<kElements>(col(i) < a.cols, a.x, row * a.cols + col(i));
      loaded.dy[i] = load_if<kElements>(col(i) < a.cols, a.dy, row * a.cols + col(i));
    }
    loaded.mean = a.mean[row];
    loaded.rstd = a.rstd[row];
    return loaded;
  };

  Row<T> next = load(blockIdx.x);
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {  // [4]
    const Row<T> now = next;
    if (row + gridDim.x < a.rows) next = load(row + gridDim.x);  // [5]

    float xhat[kVectors][kElements];
    float wdy[kVectors][kElements];
    float2 sums = make_float2(0.0f, 0.0f);  // of wdy · xhat, and of wdy
    for (int i = 0; i < kVectors; ++i) {
      float dy[kElements];
      to_floats(now.x[i], xhat[i]);
      to_floats(now.dy[i], dy);
      to_floats(weight[i], wdy[i]);
      for (int k = 0; k < kElements; ++k) {
        xhat[i][k] = (xhat[i][k] - now.mean) * now.rstd;
        wdy[i][k] *= dy[k];
        sums.x += wdy[i][k] * xhat[i][k];
        sums.y += wdy[i][k];
        dweight[i][k] += dy[k] * xhat[i][k];
        dbias[i][k] += dy[k];
      }
    }
    sums = block_sum<kThreads>(sums);  // [6]
    const float c1 = sums.x * inverse_cols;
    const float c2 = sums.y * inverse_cols;

    for (int i = 0; i < kVectors; ++i) {
      float dx[kElements];
      for (int k = 0; k < kElements; ++k) {
        dx[k] = now.rstd * (wdy[i][k] - c2 - xhat[i][k] * c1);
      }
      if (col(i) < a.cols) store(a.dx, row * a.cols + col(i), dx);
    }
  }

  float* partial = partials + blockIdx.x * 2 * a.cols;
  for (int i = 0; i < kVectors; ++i) {  // [7]
    if (col(i) >= a.cols) continue;
    store(partial, col(i), dweight[i]);
    store(partial + a.cols, col(i), dbias[i]);
  }
}

/// Adds the blocks' rows of partial sums: a lane has a column, the warps share the rows.
template <typename T>
__global__ void __launch_bounds__(kSumWarps* kWarpSize)
    add_partials(const float* partials, int blocks, T* dweight, T* dbias, int cols) {
  // exercise
  __shared__ float of_warp[kSumWarps][kWarpSize];
  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  const int col = blockIdx.x * kWarpSize + lane;
  const float* partial = partials + min(col, 2 * cols - 1);  // a lane past the last reads that one

  float sum = 0.0f;  // [8]
#pragma unroll 8
  for (int block = warp; block < blocks; block += kSumWarps) sum += partial[block * 2 * cols];

  of_warp[warp][lane] = sum;  // [9]
  __syncthreads();
  if (warp > 0 || col >= 2 * cols) return;
  for (int other = 1; other < kSumWarps; ++other) sum += of_warp[other][lane];
  T* const to = col < cols ? dweight + col : dbias + col - cols;
  *to = from_float<T>(sum);
}

/// The fewest blocks with which no block has more rows than on a full GPU.
int64_t blocks_of(int64_t rows) {
  const int64_t rows_per_block = std::max(blocks_for(rows, kBlocks * multiprocessors()), 1u);
  return blocks_for(rows, rows_per_block);
}

template <typename T>
void run(const BackwardArgs<T>& a) {  // [10]
  const auto blocks = static_cast<unsigned>(blocks_of(a.rows));
  auto* partials = static_cast<float*>(a.workspace);  // blocks × 2·cols
  launch(layer_norm_backward<T>, {blocks, kThreads, 0, a.stream}, a, partials);
  launch(add_partials<T>, {blocks_for(2 * a.cols, kWarpSize), kSumWarps * kWarpSize, 0, a.stream},
         partials, static_cast<int>(blocks), a.dweight, a.dbias, static_cast<int>(a.cols));
}

const Registration registration{{
    .id = "bwd09",
    .title = "Persistent blocks",
    .teaches = "as many blocks as the GPU holds; sums stay in registers from row to row",
    .source = "FlashAttention",
    .parent = "bwd05",
    .road = Road::Main,
    .kinds = {Kind::Layer},
    .needs_affine = true,
    .needs_aligned = true,
    .max_row_bytes = kThreads * kVectors * 16,
    .max_row_bytes_because = "a thread keeps two vectors of 16 bytes in registers",
    .run = BackwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>},
    .predicted_bytes = [](const Problem& p, const Gpu&) -> std::int64_t {
      return 3 * p.tensor_bytes() + parameter_bytes(p);
    },
    .workspace_bytes = [](const Problem& p) -> std::int64_t {
      return blocks_of(p.rows) * 2 * p.cols * std::int64_t{sizeof(float)};
    },
}};

}  // namespace bwd09
