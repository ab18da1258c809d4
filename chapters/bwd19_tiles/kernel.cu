// bwd19 · Narrow rows that start anywhere, by rows and by columns
//
// bwd14 needs rows of whole vectors. Here rows of 65 halves come in tiles, as in fwd15: the copy
// engine brings a tile of x and one of dy, and stores dx. In shared memory threads can walk a tile
// by rows or by columns, and they walk it three times: by rows for c1 and c2, two threads per row;
// by columns for dweight and dbias, one thread per column; and by rows again for dx. No sum needs a
// shuffle: c1 and c2 meet in shared memory, and one thread keeps a column's sums until all tiles
// are done.
//
// It should run at the speed of a triad, 3·M·N elements, each moved once, if the walks of one block
// overlap the copies of the others. The lesson says how far they do.
#include "common/kernel/chapter.h"
#include "common/kernel/hopper.h"
#include "common/kernel/partial_sums.h"
#include "common/kernel/tile.h"

namespace bwd19 {
using namespace lnc;

constexpr int kTileRows = 64;
constexpr int kThreads = 2 * kTileRows;  // [1] two for a row, or one for a column
constexpr int kSmBlocks = std::min(9, kSmThreads / kThreads);  // some wait, others compute
constexpr int kMostSmBlocks = 2048 / kThreads;                 // if registers were no limit

/// A block has every gridDim.x-th tile: kTileRows neighbouring rows of x, and of dy.
template <typename T>
__global__ void __launch_bounds__(kThreads, kSmBlocks)
    layer_norm_backward(BackwardArgs<T> a, PartialSums sums) {
  // exercise
  __shared__ Barrier full;
  __shared__ float2 mean_rstd[kTileRows];
  __shared__ float2 c_of_half[2][kTileRows];  // half a row's sums of wdy · (x - mean), and of wdy

  const int thread = static_cast<int>(threadIdx.x);
  const int cols = static_cast<int>(a.cols);
  const float inverse_cols = 1.0f / static_cast<float>(cols);
  T* x = dynamic_shared<T>();  // later dx
  T* dy = x + kTileRows * cols;
  float* weight = reinterpret_cast<float*>(dy + kTileRows * cols);

  if (thread < cols) weight[thread] = to_float(a.weight[thread]);
  if (thread == 0) {
    full.init(1);
    fence_barrier_init();
  }
  launch_dependents();  // [2]
  __syncthreads();

  const int half = thread / kTileRows;  // of a row: its even columns, or its odd ones
  const int row = own_row_of_tile<T>(thread % kTileRows, cols);  // [3]
  T* row_x = x + row * cols;
  const T* row_dy = dy + row * cols;

  float dweight = 0.0f;  // [4] of column `thread`, over all tiles of the block
  float dbias = 0.0f;
  unsigned parity = 0;
  const int64_t stride = int64_t{gridDim.x} * kTileRows;
  for (int64_t first = int64_t{blockIdx.x} * kTileRows; first < a.rows; first += stride) {
    const int rows = static_cast<int>(min(a.rows - first, int64_t{kTileRows}));
    const Tile<T> x_tile(x, rows * cols, /*at_boundary=*/true);  // as in fwd15
    const Tile<T> dy_tile(dy, rows * cols, /*at_boundary=*/true);

    if (thread == 0) {
      wait_bulk_stores_read<0>();  // [5] dx of the tile before
      full.arrive_and_expect(2 * x_tile.bytes_to_copy());
      x_tile.ask_for(a.x + first * cols, full);
      dy_tile.ask_for(a.dy + first * cols, full);
    }

    const bool exists = row < rows;
    const float mean = exists ? a.mean[first + row] : 0.0f;
    const float rstd = exists ? a.rstd[first + row] : 0.0f;
    if (half == 0) mean_rstd[row] = make_float2(mean, rstd);
    full.wait(parity);
    parity ^= 1;

    if (x_tile.to_copy < x_tile.elements) {  // [6] in the tensor's last tile
      x_tile.bring_rest(a.x + first * cols);
      dy_tile.bring_rest(a.dy + first * cols);
      __syncthreads();
    }

    if (exists) {  // [7] by rows: c1 and c2
      float2 c = make_float2(0.0f, 0.0f);
      for (int col = half; col < cols; col += 2) {
        const float wdy = weight[col] * to_float(row_dy[col]);
        c.x += wdy * (to_float(row_x[col]) - mean);
        c.y += wdy;
      }
      c_of_half[half][row] = c;
    }
    __syncthreads();

    if (thread < cols) {  // [8] by columns: dweight and dbias
#pragma unroll 4
      for (int r = 0; r < rows; ++r) {
        const float2 of_row = mean_rstd[r];
        const float xhat = (to_float(x[r * cols + thread]) - of_row.x) * of_row.y;
        const float of_dy = to_float(dy[r * cols + thread]);
        dweight += of_dy * xhat;
        dbias += of_dy;
      }
    }
    __syncthreads();

    if (exists) {  // [9] by rows: dx, in place of x
      const float c1 = (c_of_half[0][row].x + c_of_half[1][row].x) * rstd * inverse_cols;
      const float c2 = (c_of_half[0][row].y + c_of_half[1][row].y) * inverse_cols;
      for (int col = half; col < cols; col += 2) {
        const float wdy = weight[col] * to_float(row_dy[col]);
        const float centred = to_float(row_x[col]) - mean;
        row_x[col] = from_float<T>(rstd * wdy - (rstd * rstd * c1 * centred + rstd * c2));
      }
    }

    fence_proxy_async();  // before the copy engine reads dx and overwrites x
    __syncthreads();
    if (thread == 0) x_tile.take_away(a.dx + first * cols);
    x_tile.take_rest(a.dx + first * cols);
  }

  if (thread == 0) wait_bulk_stores_read<0>();
  if (thread >= cols) return;
  sums.dweight[blockIdx.x * a.cols + thread] = dweight;
  sums.dbias[blockIdx.x * a.cols + thread] = dbias;
}

template <typename T>
void run(const BackwardArgs<T>& a) {
  const auto kernel = layer_norm_backward<T>;
  const std::size_t shared_bytes = 2 * kTileRows * a.cols * sizeof(T) + a.cols * sizeof(float);
  const unsigned most = multiprocessors() * resident_blocks(kernel, kThreads, shared_bytes);
  const unsigned blocks = std::min(most, blocks_for(a.rows, kTileRows));
  const PartialSums sums = partial_sums(a, blocks);
  launch(kernel, {blocks, kThreads, shared_bytes, a.stream}, a, sums);
  add_partial_sums<EarlyStart, kThreads>(a, sums, blocks);
}

const Registration registration{{
    .id = "bwd19",
    .title = "Narrow rows that start anywhere, by rows and by columns",
    .teaches = "a tile in shared memory is walked over by rows, and by columns",
    .source = "this repository",
    .parent = "bwd14",
    .road = Road::NarrowRows,
    .usual_cols = 127,
    .kinds = {Kind::Layer},
    .needs_affine = true,
    .needs_same_alignment = true,
    .min_architecture = 90,
    .max_cols = kThreads,
    .max_cols_because = "each thread of a block adds up one column",
    .run = BackwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>},
    .predicted_bytes = [](const Problem& p, const Gpu&) -> std::int64_t {
      return 3 * p.tensor_bytes() + parameter_bytes(p);
    },
    .workspace_bytes = [](const Problem& p) -> std::int64_t {
      return partial_sums_bytes(p, std::min<int64_t>(p.rows, multiprocessors() * kMostSmBlocks));
    },
}};

}  // namespace bwd19
