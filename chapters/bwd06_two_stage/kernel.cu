// bwd06 · Partial sums, then their sum
//
// bwd05 still ends in atomics: their order changes from run to run, and the last bits of dweight
// and dbias with it. Here nothing is added in memory. One kernel writes dx. A second gives each of
// 16 groups of rows a row of its own in a workspace, for partial sums of 32 columns a block. A
// third adds the 16 rows. Every sum has one order, so every run gives the same bits.
//
// The price: x and dy are read again for the sums. Where they do not fit in L2 that is five tensors
// for three, and at 1024 columns 512 blocks must read two of them.
#include "common/kernel/chapter.h"
#include "common/kernel/reduce.h"

namespace bwd06 {
using namespace lnc;

constexpr int kWarps = 4;  // 32 x 4 threads, as Apex has them
constexpr int kThreads = kWarps * kWarpSize;

template <typename T, typename W>
__device__ float mean_or_0(const BackwardArgs<T, W>& a, int64_t row) {
  return a.kind == Kind::Layer ? a.mean[row] : 0.0f;
}

/// dx alone, a block a row: bwd04 without its atomics.
template <typename T, typename W>
__global__ void __launch_bounds__(kThreads) input_gradient(BackwardArgs<T, W> a) {
  const int64_t row = blockIdx.x;
  const T* dy = a.dy + row * a.cols;
  const T* x = a.x + row * a.cols;
  T* dx = a.dx + row * a.cols;
  const float mean = mean_or_0(a, row);
  const float rstd = a.rstd[row];
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  const auto weight = [&](int64_t col) {
    return a.weight == nullptr ? 1.0f : to_float(__ldg(a.weight + col));
  };

  float c1 = 0.0f;
  float c2 = 0.0f;
#pragma unroll 4
  for (int64_t col = threadIdx.x; col < a.cols; col += kThreads) {
    const float wdy = weight(col) * to_float(dy[col]);
    c1 += wdy * ((to_float(x[col]) - mean) * rstd);
    c2 += wdy;
  }
  c1 = block_sum<kThreads>(c1) * inverse_cols;
  c2 = a.kind == Kind::Layer ? block_sum<kThreads>(c2) * inverse_cols : 0.0f;  // [1]

#pragma unroll 4
  for (int64_t col = threadIdx.x; col < a.cols; col += kThreads) {  // [2]
    const float xhat = (to_float(__ldg(x + col)) - mean) * rstd;
    const float wdy = weight(col) * to_float(__ldg(dy + col));
    dx[col] = from_float<T>(rstd * (wdy - c2 - xhat * c1));
  }
}

/// Sums over a part of the rows, [count, cols] each.
struct Partials {
  float* dweight;
  float* dbias;
  int count;
};

constexpr int kLaneColumns = 4;                         // neighbours in a row
constexpr int kLanesPerRow = kWarpSize / kLaneColumns;  // 8, for 32 columns
constexpr int kTileRows = kThreads / kLanesPerRow;      // 16 rows a block and step
constexpr int kTileStride = kWarpSize + 1;              // [3] a padding of 1

/// Block (c, p) adds up the rows of part p in columns 32 c to 32 c + 31.
template <typename T, typename W>
__global__ void __launch_bounds__(kThreads)
    partial_gradients(BackwardArgs<T, W> a, Partials partials, int64_t rows_per_part) {
  __shared__ float dw_tile[kTileRows * kTileStride];
  __shared__ float db_tile[kTileRows * kTileStride];
  const int tile_row = threadIdx.x / kLanesPerRow;  // [4]
  const int tile_col = threadIdx.x % kLanesPerRow * kLaneColumns;
  const int64_t start_col = int64_t{blockIdx.x} * kWarpSize;
  const int64_t first = blockIdx.y * rows_per_part;
  const int64_t end = min(first + rows_per_part, a.rows);

  float dw[kLaneColumns] = {};  // [5]
  float db[kLaneColumns] = {};
  for (int64_t row = first + tile_row; row < end; row += kTileRows) {
    const float mean = mean_or_0(a, row);
    const float rstd = a.rstd[row];
    for (int k = 0; k < kLaneColumns; ++k) {
      const int64_t col = start_col + tile_col + k;
      const float dy = col < a.cols ? to_float(a.dy[row * a.cols + col]) : 0.0f;
      const float x = col < a.cols ? to_float(a.x[row * a.cols + col]) : 0.0f;
      dw[k] += dy * ((x - mean) * rstd);
      db[k] += dy;
    }
  }
  for (int k = 0; k < kLaneColumns; ++k) {
    dw_tile[tile_row * kTileStride + tile_col + k] = dw[k];
    db_tile[tile_row * kTileStride + tile_col + k] = db[k];
  }
  __syncthreads();

  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  const int64_t col = start_col + lane;  // [6] a lane is a column now
  if (warp > 1 || col >= a.cols) return;
  const float* tile = warp == 0 ? dw_tile : db_tile;
  float* out = warp == 0 ? partials.dweight : partials.dbias;
  float sum = 0.0f;
  for (int row = 0; row < kTileRows; ++row) {
    sum += tile[row * kTileStride + lane];
  }
  out[blockIdx.y * a.cols + col] = sum;
}

constexpr int kSumWarps = 8;  // 32 x 8 threads

/// A block adds up the parts of 32 columns.
template <typename W>
__global__ void __launch_bounds__(kSumWarps* kWarpSize)
    sum_partials(Partials partials, W* dweight, W* dbias, int64_t cols) {
  __shared__ float dw_above[kSumWarps / 2][kWarpSize];
  __shared__ float db_above[kSumWarps / 2][kWarpSize];
  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  const int64_t col = int64_t{blockIdx.x} * kWarpSize + lane;
  float dw = 0.0f;
  float db = 0.0f;
  for (int part = warp; part < partials.count && col < cols; part += kSumWarps) {  // [7]
    dw += partials.dweight[part * cols + col];
    db += partials.dbias[part * cols + col];
  }
  for (int offset = kSumWarps / 2; offset > 0; offset /= 2) {  // [8]
    if (warp >= offset && warp < 2 * offset) {
      dw_above[warp - offset][lane] = dw;
      db_above[warp - offset][lane] = db;
    }
    __syncthreads();
    if (warp < offset) {
      dw += dw_above[warp][lane];
      db += db_above[warp][lane];
    }
    __syncthreads();
  }
  if (warp > 0 || col >= cols) return;
  dweight[col] = from_float<W>(dw);
  if (dbias != nullptr) dbias[col] = from_float<W>(db);
}

/// How the rows are dealt out: whole steps of 16 rows, as even as they go, and no empty part.
struct Split {
  int64_t rows_per_part = 0;
  int64_t parts = 0;

  Split(int64_t rows, int asked) {        // [9]
    constexpr int64_t kParts = 16;        // Apex's
    constexpr int64_t kMaxParts = 65535;  // gridDim.y's
    const int64_t wanted = asked > 0 ? std::min<int64_t>(asked, kMaxParts) : kParts;
    const int64_t steps = (rows + kTileRows - 1) / kTileRows;
    const int64_t steps_per_part = (steps + wanted - 1) / wanted;
    if (steps == 0) return;
    rows_per_part = steps_per_part * kTileRows;
    parts = (steps + steps_per_part - 1) / steps_per_part;
  }
};

template <typename T, typename W>
void run(const BackwardArgs<T, W>& a) {
  const Split split(a.rows, a.group);
  const unsigned column_blocks = blocks_for(a.cols, kWarpSize);
  auto* workspace = static_cast<float*>(a.workspace);
  const Partials partials{workspace, workspace + split.parts * a.cols,
                          static_cast<int>(split.parts)};
  launch(input_gradient<T, W>, {blocks_for(a.rows, 1), kThreads, 0, a.stream}, a);
  launch(partial_gradients<T, W>,
         {dim3(column_blocks, static_cast<unsigned>(split.parts)), kThreads, 0, a.stream}, a,
         partials, split.rows_per_part);
  launch(sum_partials<W>, {column_blocks, kSumWarps * kWarpSize, 0, a.stream}, partials, a.dweight,
         a.dbias, a.cols);
}

std::int64_t partials_bytes(const Problem& p) {
  return 2 * Split(p.rows, p.group).parts * p.cols * std::int64_t{sizeof(float)};
}

const Registration registration{{
    .id = "bwd06",
    .title = "Partial sums, then their sum",
    .teaches = "no atomics: the same bits in every run, for a second reading of x and dy",
    .source = "NVIDIA Apex",
    .parent = "bwd05",
    .road = Road::Sums,
    .group = "row groups",
    .run = BackwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>, run<__half, float>,
                             run<__nv_bfloat16, float>},
    .predicted_bytes = [](const Problem& p, const Gpu& gpu) -> std::int64_t {
      const bool still_in_l2 = 3 * p.tensor_bytes() <= gpu.l2_bytes;  // x, dy and dx
      const std::int64_t read_again = still_in_l2 ? 0 : 2 * p.tensor_bytes();
      return predict_bytes(p, gpu, {.inputs = 2, .walks = 2, .threads_per_row = kThreads}) +
             read_again + partials_bytes(p);
    },
    .workspace_bytes = partials_bytes,
}};

}  // namespace bwd06
