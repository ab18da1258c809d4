// bwd06 · Partial sums, then their sum
//
// bwd05 ends in atomics. They add in the order in which blocks arrive, so the last bits of dweight
// and dbias change from run to run. Here only one thread writes each sum in memory. One kernel
// writes dx. A second one adds up 16 groups of rows, 32 columns per block, and stores each group's
// partial sums in a row of a workspace. A third one adds these 16 rows. Every sum has a fixed
// order, so every run gives the same bits.
//
// It should take longer than bwd05: the second kernel reads x and dy again, from L2 if they fit
// there and from device memory if not, so that five tensors move instead of three.
#include "common/kernel/chapter.h"
#include "common/kernel/reduce.h"

namespace bwd06 {
using namespace lnc;

constexpr int kThreads = 128;  // of a block, in the first two kernels
constexpr int kSmBlocks = 8;   // of the first kernel: leaves 64 registers a thread for loads
constexpr int kGroups = 16;    // of rows, as Apex has them
constexpr int kSumWarps = 8;   // of a block, in the third

constexpr int kLaneColumns = 4;                         // neighbours in a row
constexpr int kLanesPerRow = kWarpSize / kLaneColumns;  // 8, for 32 columns
constexpr int kTileRows = kThreads / kLanesPerRow;      // 16 rows a block and step
constexpr int kTileStride = kWarpSize + 1;              // [1] 33: each row one bank further

/// dx alone, a block a row: bwd04 without its atomics.
template <typename T>
__global__ void __launch_bounds__(kThreads, kSmBlocks) input_gradient(BackwardArgs<T> a) {
  // exercise
  const int64_t row = blockIdx.x;
  const T* dy = a.dy + row * a.cols;
  const T* x = a.x + row * a.cols;
  T* dx = a.dx + row * a.cols;
  const float mean = a.mean[row];
  const float rstd = a.rstd[row];
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);

  float c1 = 0.0f;
  float c2 = 0.0f;
#pragma unroll 4
  for (int64_t col = threadIdx.x; col < a.cols; col += kThreads) {
    const float wdy = to_float(a.weight[col]) * to_float(dy[col]);
    c1 += wdy * ((to_float(x[col]) - mean) * rstd);
    c2 += wdy;
  }
  c1 = block_sum<kThreads>(c1) * inverse_cols;
  c2 = block_sum<kThreads>(c2) * inverse_cols;

#pragma unroll 4
  for (int64_t col = threadIdx.x; col < a.cols; col += kThreads) {
    const float wdy = to_float(__ldg(a.weight + col)) * to_float(__ldg(dy + col));  // [2]
    const float xhat = (to_float(__ldg(x + col)) - mean) * rstd;
    dx[col] = from_float<T>(rstd * (wdy - c2 - xhat * c1));
  }
}

/// Block (s, g) adds up the rows of group g in columns 32 s to 32 s + 31. Row g of `partials` gets
/// the group's sums for dweight, then those for dbias.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    partial_gradients(BackwardArgs<T> a, float* partials, int64_t group_rows) {
  // exercise
  __shared__ float tiles[2][kTileRows * kTileStride];  // of dweight and of dbias
  const int tile_row = threadIdx.x / kLanesPerRow;     // [3]
  const int tile_col = threadIdx.x % kLanesPerRow * kLaneColumns;
  const int64_t strip = int64_t{blockIdx.x} * kWarpSize;  // its first column
  const int64_t first_row = blockIdx.y * group_rows;
  const int64_t end_row = min(first_row + group_rows, a.rows);

  float dweight[kLaneColumns] = {};  // [4]
  float dbias[kLaneColumns] = {};
  for (int64_t row = first_row + tile_row; row < end_row; row += kTileRows) {
    const float mean = a.mean[row];
    const float rstd = a.rstd[row];
    float dy[kLaneColumns], x[kLaneColumns];
    for (int k = 0; k < kLaneColumns; ++k) {
      const int64_t col = strip + tile_col + k;
      dy[k] = col < a.cols ? to_float(a.dy[row * a.cols + col]) : 0.0f;
      x[k] = col < a.cols ? to_float(a.x[row * a.cols + col]) : 0.0f;
    }
    for (int k = 0; k < kLaneColumns; ++k) {
      dweight[k] += dy[k] * ((x[k] - mean) * rstd);
      dbias[k] += dy[k];
    }
  }

  for (int k = 0; k < kLaneColumns; ++k) {
    tiles[0][tile_row * kTileStride + tile_col + k] = dweight[k];
    tiles[1][tile_row * kTileStride + tile_col + k] = dbias[k];
  }
  __syncthreads();

  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;  // [5] a column now; warp 0 has dweight, 1 dbias
  if (warp > 1 || strip + lane >= a.cols) return;
  float sum = 0.0f;
  for (int row = 0; row < kTileRows; ++row) sum += tiles[warp][row * kTileStride + lane];
  partials[(2 * blockIdx.y + warp) * a.cols + strip + lane] = sum;
}

/// A block adds up 32 columns of the partial sums: first those of dweight, then those of dbias.
template <typename T>
__global__ void __launch_bounds__(kSumWarps* kWarpSize)
    sum_partials(const float* partials, int64_t groups, T* dweight, T* dbias, int64_t cols) {
  // exercise
  __shared__ float of_warp[kSumWarps][kWarpSize];
  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  const int64_t col = int64_t{blockIdx.x} * kWarpSize + lane;
  float sum = 0.0f;
  for (int64_t group = warp; group < groups && col < 2 * cols; group += kSumWarps)  // [6]
    sum += partials[group * 2 * cols + col];
  of_warp[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || col >= 2 * cols) return;
  for (int other = 1; other < kSumWarps; ++other) sum += of_warp[other][lane];
  T* const to = col < cols ? dweight + col : dbias + col - cols;
  *to = from_float<T>(sum);
}

/// Rows a group: whole steps of 16, and the same for all groups but the last.
int64_t rows_of_group(int64_t rows, int asked) {
  constexpr int kMaxGroups = 65535;  // gridDim.y's limit
  const int64_t groups = std::min(asked > 0 ? asked : kGroups, kMaxGroups);
  return int64_t{blocks_for(rows, groups * kTileRows)} * kTileRows;  // [7]
}

int64_t groups_of(int64_t rows, int asked) {
  return rows == 0 ? 0 : blocks_for(rows, rows_of_group(rows, asked));
}

template <typename T>
void run(const BackwardArgs<T>& a) {
  const int64_t group_rows = rows_of_group(a.rows, a.group);
  const int64_t groups = groups_of(a.rows, a.group);
  auto* partials = static_cast<float*>(a.workspace);
  const dim3 grid(blocks_for(a.cols, kWarpSize), static_cast<unsigned>(groups));
  launch(input_gradient<T>, {blocks_for(a.rows, 1), kThreads, 0, a.stream}, a);
  launch(partial_gradients<T>, {grid, kThreads, 0, a.stream}, a, partials, group_rows);
  launch(sum_partials<T>, {blocks_for(2 * a.cols, kWarpSize), kSumWarps * kWarpSize, 0, a.stream},
         partials, groups, a.dweight, a.dbias, a.cols);
}

std::int64_t partials_bytes(const Problem& p) {
  return groups_of(p.rows, p.group) * 2 * p.cols * std::int64_t{sizeof(float)};
}

const Registration registration{{
    .id = "bwd06",
    .title = "Partial sums, then their sum",
    .teaches = "no atomics: the same bits in every run, for a second reading of x and dy",
    .source = "NVIDIA Apex",
    .parent = "bwd05",
    .road = Road::Sums,
    .kinds = {Kind::Layer},
    .needs_affine = true,
    .group = "row groups",
    .run = BackwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>},
    .predicted_bytes = [](const Problem& p, const Gpu& gpu) -> std::int64_t {
      const bool still_in_l2 = 3 * p.tensor_bytes() <= gpu.l2_bytes;  // x, dy and dx
      const std::int64_t read_again = still_in_l2 ? 0 : 2 * p.tensor_bytes();
      return predict_bytes(p, gpu, {.inputs = 2, .walks = 2, .threads_per_row = kThreads}) +
             read_again + partials_bytes(p);
    },
    .workspace_bytes = partials_bytes,
}};

}  // namespace bwd06
