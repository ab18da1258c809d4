// bwd15 · Rows that start anywhere, their sums in registers
//
// bwd12 refuses rows of 4097 halves: it reads whole vectors, and seven of eight such rows start
// between two 16-byte boundaries. But the offsets repeat: row 8 starts as row 0 does, row 9 as row
// 1. Here a block processes only rows with the same offset, and counts vectors from the boundary
// before the row, so a thread has the same columns in all of them and its sums stay in registers.
// If a row's first or last vector is not whole, the kernel loads and stores it element by element.
//
// It should take as long as bwd12 takes for aligned rows: 3·M·N elements, each moved once. The
// lesson says where it does not.
#include "common/kernel/chapter.h"
#include "common/kernel/hopper.h"
#include "common/kernel/partial_sums.h"
#include "common/kernel/reduce.h"
#include "common/kernel/unaligned_rows.h"
#include "common/kernel/vector.h"

namespace bwd15 {
using namespace lnc;

constexpr int kStages = 3;                         // of the ring
constexpr int kMaxThreads = 576;                   // a vector each: rows of nearly 9 KB
constexpr int kBlocks = kSmThreads / kMaxThreads;  // 2 such blocks fit on a multiprocessor

// exercise
/// A vector that begins in column `col` of a row, element by element; 0 outside of the row.
template <typename T>
__device__ inline Packed<T, kVectorElements<T>> load_elements(const T* row, int col, int cols) {
  Vector<T, kVectorElements<T>> vector;
  for (int k = 0; k < kVectorElements<T>; ++k) {
    const bool in_row = col + k >= 0 && col + k < cols;
    vector.at[k] = in_row ? row[col + k] : from_float<T>(0.0f);
  }
  return pack(vector);
}
// end of exercise

/// Block b of B has the rows b, b + B, b + 2B, … B is a multiple of the period: they start alike.
template <typename T>
__global__ void __launch_bounds__(kMaxThreads, kBlocks)
    layer_norm_backward(BackwardArgs<T> a, PartialSums sums) {
  // exercise
  constexpr int kElements = kVectorElements<T>;
  __shared__ Barrier full[kStages];  // a row of x and of dy is there
  __shared__ float2 from_warp[kStages][kMaxThreads / kWarpSize];
  const unsigned warp = threadIdx.x / kWarpSize;
  const unsigned lane = threadIdx.x % kWarpSize;
  const auto cols = static_cast<int>(a.cols);
  const float inverse_cols = 1.0f / static_cast<float>(cols);

  const int start = start_in_vector(a.dx + blockIdx.x * a.cols);  // [1] of all of this block's rows
  const int place = static_cast<int>(threadIdx.x) * kElements;    // [2] of this thread's vector
  const int col = place - start;                              // its first column, maybe negative
  const bool is_whole = col >= 0 && col + kElements <= cols;  // [3]

  const int head = (kElements - start) % kElements;  // [4] columns before the first whole vector
  const int inner = max(cols - head, 0) / kElements * kElements;  // columns in whole vectors
  const auto bytes = static_cast<unsigned>(inner * sizeof(T));

  T* const ring = dynamic_shared<T>();  // [stage][x, dy][place]
  const int width = static_cast<int>(blockDim.x) * kElements;
  const auto request = [&](int64_t row, int stage) {
    if (row >= a.rows) return;
    T* const slot = ring + stage * 2 * width + start + head;
    full[stage].arrive_and_expect(2 * bytes);
    if (bytes == 0) return;
    bulk_load(slot, a.x + row * cols + head, bytes, full[stage]);  // [5]
    bulk_load(slot + width, a.dy + row * cols + head, bytes, full[stage]);
  };
  if (threadIdx.x == 0) {
    for (Barrier& barrier : full) barrier.init(1);
    fence_barrier_init();
    for (int stage = 0; stage < kStages; ++stage) request(blockIdx.x + stage * gridDim.x, stage);
  }
  launch_dependents();

  Packed<T, kElements> weight = load_elements(a.weight, col, cols);
  float dweight[kElements] = {};
  float dbias[kElements] = {};
  float next_mean = a.mean[blockIdx.x];
  float next_rstd = a.rstd[blockIdx.x];
  __syncthreads();

  int stage = 0;
  unsigned parity = 0;
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const float mean = next_mean;
    const float rstd = next_rstd;
    const int64_t next_row = min(row + gridDim.x, a.rows - 1);
    next_mean = a.mean[next_row];
    next_rstd = a.rstd[next_row];
    full[stage].wait(parity);

    const T* const slot = ring + stage * 2 * width;

    Packed<T, kElements> x, dy;
    if (is_whole) {
      x = load_vector<kElements>(slot, place);
      dy = load_vector<kElements>(slot + width, place);
    } else {
      x = load_elements(a.x + row * cols, col, cols);  // [6]
      dy = load_elements(a.dy + row * cols, col, cols);
    }

    float xhat[kElements], of_dy[kElements], wdy[kElements], dx[kElements];
    to_floats(x, xhat);
    to_floats(dy, of_dy);
    stay_packed(weight);  // otherwise nvcc keeps it as floats, in twice the registers
    to_floats(weight, wdy);
    float2 c = make_float2(0.0f, 0.0f);
    for (int k = 0; k < kElements; ++k) {
      xhat[k] = (xhat[k] - mean) * rstd;
      wdy[k] *= of_dy[k];
      c.x += wdy[k] * xhat[k];
      c.y += wdy[k];
      dweight[k] += of_dy[k] * xhat[k];
      dbias[k] += of_dy[k];
    }

    fence_proxy_async();  // before the copy engine overwrites what was read
    c = warp_sum(c);
    if (lane == 0) from_warp[stage][warp] = c;
    __syncthreads();
    if (threadIdx.x == 0) request(row + kStages * int64_t{gridDim.x}, stage);
    c = warp_sum(lane < blockDim.x / kWarpSize ? from_warp[stage][lane] : float2{});
    const float c1 = c.x * inverse_cols;
    const float c2 = c.y * inverse_cols;

    T* const dx_row = a.dx + row * cols;
    for (int k = 0; k < kElements; ++k) dx[k] = rstd * (wdy[k] - c2 - xhat[k] * c1);
    if (is_whole) {
      store_whole(dx_row + col, from_floats<T>(dx));  // [7]
    } else {
      for (int k = 0; k < kElements; ++k)
        if (col + k >= 0 && col + k < cols) dx_row[col + k] = from_float<T>(dx[k]);
    }
    stage = stage + 1 < kStages ? stage + 1 : 0;
    parity ^= stage == 0;
  }

  float* const of_block = dynamic_shared<float>();  // [8] the ring is free; [dweight, dbias][place]
  store(of_block, place, dweight);
  store(of_block, width + place, dbias);
  __syncthreads();
  for (int at = threadIdx.x; at < cols; at += blockDim.x) {
    sums.dweight[blockIdx.x * a.cols + at] = of_block[start + at];
    sums.dbias[blockIdx.x * a.cols + at] = of_block[width + start + at];
  }
}

/// Wherever it starts, a row of so many bytes lies in this many vectors at most; a thread each.
unsigned threads_of(int64_t row_bytes, int64_t element_bytes) {
  return blocks_for(row_bytes + 2 * (16 - element_bytes), 16 * kWarpSize) * kWarpSize;
}

/// As many blocks as a GPU holds at once, in multiples of the period.
int64_t blocks_of(int64_t rows, int64_t cols, int64_t element_bytes) {
  const int64_t threads = threads_of(cols * element_bytes, element_bytes);
  const int64_t places = multiprocessors() * (kBlocks * kMaxThreads / threads);  // [9]
  const int64_t vector = 16 / element_bytes;
  const int64_t period = vector / std::gcd(vector, cols);  // [10]
  return std::min(rows, std::max<int64_t>(places / period, 1) * period);
}

template <typename T>
void run(const BackwardArgs<T>& a) {
  const unsigned threads = threads_of(a.cols * sizeof(T), sizeof(T));
  const auto blocks = static_cast<unsigned>(blocks_of(a.rows, a.cols, sizeof(T)));
  const std::size_t ring_bytes = kStages * 2 * threads * 16;
  const PartialSums sums = partial_sums(a, blocks);
  launch(layer_norm_backward<T>, {blocks, threads, ring_bytes, a.stream}, a, sums);
  add_partial_sums<EarlyStart>(a, sums, blocks);
}

const Registration registration{{
    .id = "bwd15",
    .title = "Rows that start anywhere, their sums in registers",
    .teaches = "rows that start alike for a thread, so that its sums stay in registers",
    .source = "this repository",
    .parent = "bwd12",
    .road = Road::UnalignedRows,
    .usual_cols = 2049,
    .kinds = {Kind::Layer},
    .needs_affine = true,
    .needs_same_alignment = true,
    .shares_by_address = true,
    .min_architecture = 90,
    .max_row_bytes = (kMaxThreads - 2) * 16,
    .max_row_bytes_because = "each of a block's threads has one vector of a row",
    .run = BackwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>},
    .predicted_bytes = [](const Problem& p, const Gpu&) -> std::int64_t {
      return 3 * p.tensor_bytes() + parameter_bytes(p);
    },
    .workspace_bytes = [](const Problem& p) -> std::int64_t {
      return partial_sums_bytes(p, blocks_of(p.rows, p.cols, p.element_bytes()));
    },
}};

}  // namespace bwd15
