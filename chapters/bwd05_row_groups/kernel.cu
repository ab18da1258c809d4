// bwd05 · A block takes many rows
//
// bwd04 sends 2·M·N atomics: each row adds each of its columns to dweight and dbias in L2. Here a
// block walks a group of rows with the same columns in the same threads. Their sums stay in
// registers, and one atomic a column and block carries them away at the end: 2·N·M/G for groups of
// G rows. With fixed columns xhat and wdy fit in registers too: x and dy are read once.
//
// The fewer blocks, the fewer atomics, but blocks must fill the GPU: G is M over the blocks that it
// holds at a time. Rows wider than the registers are read twice, and L2 limits G.
#include "common/kernel/chapter.h"
#include "common/kernel/gradient_sums.h"
#include "common/kernel/reduce.h"

namespace bwd05 {
using namespace lnc;

constexpr int kColumns = 8;                      // of a thread, four registers each
constexpr int kThreadsPerMultiprocessor = 1024;  // [1] with 64 registers each
constexpr int kMultiprocessors = kH100.multiprocessors;

/// The columns of one thread, kThreads apart: their sums over the rows so far, and the row at hand.
template <int kThreads, int kCount>
struct ThreadColumns {
  int64_t first;          // column
  int left;               // from there to the row's end, as far as it matters
  float dw[kCount] = {};  // [2] the sums, over the group's rows
  float db[kCount] = {};
  float xhat[kCount], wdy[kCount], rstd;  // [3] of the row at hand

  __device__ ThreadColumns(int64_t first, int64_t cols)
      : first(first), left(static_cast<int>(min(cols - first, int64_t{kThreads} * kCount))) {}
  __device__ bool has(int i) const { return i * kThreads < left; }

  template <typename T, typename W>
  __device__ void take_in(const BackwardArgs<T, W>& a, int64_t row) {
    const T* dy_row = a.dy + row * a.cols + first;
    const T* x_row = a.x + row * a.cols + first;
    const float mean = a.kind == Kind::Layer ? a.mean[row] : 0.0f;  // [4]
    rstd = a.rstd[row];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float dy = has(i) ? to_float(dy_row[i * kThreads]) : 0.0f;  // [5]
      const float x = has(i) ? to_float(x_row[i * kThreads]) : 0.0f;
      float weight = 1.0f;
      if (has(i) && a.weight != nullptr) weight = to_float(a.weight[first + i * kThreads]);
      xhat[i] = (x - mean) * rstd;
      wdy[i] = weight * dy;
      dw[i] += dy * xhat[i];
      db[i] += dy;
    }
  }
  __device__ void add_row_sums(float& c1, float& c2) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      c1 += wdy[i] * xhat[i];
      c2 += wdy[i];
    }
  }
  template <typename T>
  __device__ void store_dx(T* dx_row, float c1, float c2) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (!has(i)) continue;
      const float dx = rstd * (wdy[i] - c2 - xhat[i] * c1);
      dx_row[first + i * kThreads] = from_float<T>(dx);
    }
  }
  __device__ void add_to(const GradientSums& sums) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {  // [6]
      const int64_t col = first + i * kThreads;
      if (!has(i)) continue;
      atomicAdd(&sums.dweight[col], dw[i]);
      if (sums.dbias != nullptr) atomicAdd(&sums.dbias[col], db[i]);
    }
  }
};

/// A block walks `group` rows of at most kThreads · kColumns columns.
template <typename T, typename W, int kThreads>
__global__ void __launch_bounds__(kThreads, kThreadsPerMultiprocessor / kThreads)
    layer_norm_backward(BackwardArgs<T, W> a, GradientSums sums, int64_t group) {
  const int64_t first = blockIdx.x * group;
  const int64_t end = min(first + group, a.rows);
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  ThreadColumns<kThreads, kColumns> columns(threadIdx.x, a.cols);
  for (int64_t row = first; row < end; ++row) {
    float c1 = 0.0f;
    float c2 = 0.0f;
    columns.take_in(a, row);
    columns.add_row_sums(c1, c2);
    c1 = block_sum<kThreads>(c1) * inverse_cols;
    c2 = a.kind == Kind::Layer ? block_sum<kThreads>(c2) * inverse_cols : 0.0f;
    columns.store_dx(a.dx + row * a.cols, c1, c2);
  }
  columns.add_to(sums);
}

constexpr int kWideThreads = 1024;
constexpr int kWideColumns = 4;
constexpr int kMaxWideGroup = 64;

/// Any width: first c1 and c2 of the group's rows, then the group once more, a slice of columns
/// after the other.
template <typename T, typename W>
__global__ void __launch_bounds__(kWideThreads)
    layer_norm_backward_wide(BackwardArgs<T, W> a, GradientSums sums, int64_t group) {
  __shared__ float c1_of[kMaxWideGroup], c2_of[kMaxWideGroup];
  constexpr int kSlice = kWideThreads * kWideColumns;
  using Columns = ThreadColumns<kWideThreads, kWideColumns>;
  const int64_t first = blockIdx.x * group;
  const int rows = static_cast<int>(min(group, a.rows - first));
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  for (int r = 0; r < rows; ++r) {
    float c1 = 0.0f;
    float c2 = 0.0f;
    for (int64_t col = threadIdx.x; col < a.cols; col += kSlice) {
      Columns columns(col, a.cols);
      columns.take_in(a, first + r);
      columns.add_row_sums(c1, c2);
    }
    c1 = block_sum<kWideThreads>(c1) * inverse_cols;
    c2 = a.kind == Kind::Layer ? block_sum<kWideThreads>(c2) * inverse_cols : 0.0f;
    if (threadIdx.x == 0) {
      c1_of[r] = c1;
      c2_of[r] = c2;
    }
  }
  __syncthreads();  // [7]
  for (int64_t col = threadIdx.x; col < a.cols; col += kSlice) {
    Columns columns(col, a.cols);
    for (int r = 0; r < rows; ++r) {
      columns.take_in(a, first + r);
      columns.store_dx(a.dx + (first + r) * a.cols, c1_of[r], c2_of[r]);
    }
    columns.add_to(sums);
  }
}

/// Rows a block: as few as the GPU's room for blocks, all at once, needs.
constexpr int64_t group_that_fills(int64_t rows, int64_t room) {  // [8]
  return rows <= room ? 1 : (rows + room - 1) / room;
}

/// The same for wide rows, where the group waits in L2 between its two walks.
constexpr int64_t wide_group(int64_t rows, int64_t cols, int64_t element_bytes, int asked) {
  const int64_t a_row_each = kMultiprocessors * 2 * cols * element_bytes;  // x and dy
  const int64_t in_l2 = kH100.l2_bytes / 2 / a_row_each;
  int64_t group = asked > 0 ? asked : group_that_fills(rows, kMultiprocessors);
  if (asked == 0 && in_l2 > 0) group = std::min(group, in_l2);  // [9]
  return std::min<int64_t>(group, kMaxWideGroup);
}

template <int kThreads, typename T, typename W>
bool run_if_it_fits(const BackwardArgs<T, W>& a, const GradientSums& sums) {
  if (a.cols > kThreads * kColumns) return false;
  constexpr int kRoom = kMultiprocessors * kThreadsPerMultiprocessor / kThreads;
  const int64_t group = a.group > 0 ? a.group : group_that_fills(a.rows, kRoom);
  launch(layer_norm_backward<T, W, kThreads>, {blocks_for(a.rows, group), kThreads, 0, a.stream}, a,
         sums, group);
  return true;
}

template <typename T, typename W>
void run_wide(const BackwardArgs<T, W>& a, const GradientSums& sums) {
  const int64_t group = wide_group(a.rows, a.cols, sizeof(T), a.group);
  launch(layer_norm_backward_wide<T, W>, {blocks_for(a.rows, group), kWideThreads, 0, a.stream}, a,
         sums, group);
}

template <typename T, typename W>
void run(const BackwardArgs<T, W>& a) {
  const GradientSums sums = zero_gradient_sums(a);
  const bool fits = run_if_it_fits<64>(a, sums) || run_if_it_fits<128>(a, sums) ||
                    run_if_it_fits<256>(a, sums) || run_if_it_fits<512>(a, sums) ||
                    run_if_it_fits<1024>(a, sums);
  if (!fits) run_wide(a, sums);
  round_gradients(a, sums);
}

const Registration registration{{
    .id = "bwd05",
    .title = "A block takes many rows",
    .teaches = "column sums in registers; an atomic a column and block",
    .source = "CUDA layer-norm backward progression, v5 as described",
    .parent = "bwd04",
    .road = Road::Main,
    .group = "rows a block",
    .deterministic = false,
    .run = BackwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>, run<__half, float>,
                             run<__nv_bfloat16, float>},
    .predicted_bytes = [](const Problem& p, const Gpu& gpu) -> std::int64_t {
      int64_t reads = 1;
      if (p.cols > kWideThreads * kColumns) {
        const auto group = wide_group(p.rows, p.cols, p.element_bytes(), p.group);
        const auto rows = std::min(p.rows, group * gpu.multiprocessors);
        reads = device_reads(2, rows * 2 * p.cols * p.element_bytes(), gpu);
      }
      return (2 * reads + 1) * p.tensor_bytes() + parameter_bytes(p);
    },
    .workspace_bytes = gradient_sums_bytes,
}};

}  // namespace bwd05
