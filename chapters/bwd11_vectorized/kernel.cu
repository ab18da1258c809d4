// bwd11 · Asynchronous copies to a thread's own ring
//
// bwd09 holds the next row in registers while it works on one: 16 of a thread's 128 registers only
// wait, and there is no room for a second row. Here two rows ahead wait in shared memory.
// Asynchronous copies bring them there without passing through registers. Each thread copies
// exactly the vectors that it will use itself, so no barrier separates a copy from its reader.
//
// It should cost what bwd09 costs: 3·M·N elements, each moved once, the blocks' sums, and a second
// launch. The lesson says where it does.
#include "common/kernel/chapter.h"
#include "common/kernel/cp_async.h"
#include "common/kernel/partial_sums.h"
#include "common/kernel/reduce.h"
#include "common/kernel/vector.h"

namespace bwd11 {
using namespace lnc;

constexpr int kVectors = 2;       // of 16 bytes, a thread's share of a row
constexpr int kMaxThreads = 512;  // [1] with 128 registers each; so rows of up to 16 KB
constexpr int kStages = 2;        // [2] of the ring, each with a slot for a row of x and one of dy

/// Block b of B has the rows b, b + B, b + 2B, …
template <typename T>
__global__ void __launch_bounds__(kMaxThreads)
    layer_norm_backward(BackwardArgs<T> a, PartialSums sums) {
  // exercise
  constexpr int kElements = kVectorElements<T>;
  const auto cols = static_cast<int>(a.cols);
  const float inverse_cols = 1.0f / static_cast<float>(cols);
  T* const ring = dynamic_shared<T>();  // [stage][x, dy][column]
  const auto col_of = [=](int i) {      // the first column of this thread's vector i
    return static_cast<int>(i * blockDim.x + threadIdx.x) * kElements;
  };

  const auto request = [&](int64_t row, T* slot) {  // this thread's part of the row
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (row >= a.rows || col_of(i) >= cols) continue;
      __pipeline_memcpy_async(slot + col_of(i), a.x + row * cols + col_of(i), 16);  // [3]
      __pipeline_memcpy_async(slot + cols + col_of(i), a.dy + row * cols + col_of(i), 16);
    }
    __pipeline_commit();  // [4] even an empty group: the wait counts them
  };

  for (int stage = 0; stage < kStages; ++stage)
    request(blockIdx.x + stage * gridDim.x, ring + stage * 2 * cols);

  Packed<T, kElements> weight[kVectors];  // as it came: in half the registers, if T has 16 bits
  float dweight[kVectors][kElements] = {};
  float dbias[kVectors][kElements] = {};
#pragma unroll
  for (int i = 0; i < kVectors; ++i)
    weight[i] = load_if<kElements>(col_of(i) < cols, a.weight, col_of(i));
  float next_mean = a.mean[blockIdx.x];
  float next_rstd = a.rstd[blockIdx.x];

  int stage = 0;
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const float mean = next_mean;
    const float rstd = next_rstd;
    const int64_t next_row = min(row + gridDim.x, a.rows - 1);
    next_mean = a.mean[next_row];
    next_rstd = a.rstd[next_row];

    T* const slot = ring + stage * 2 * cols;
    wait_for_own_copies<kStages - 1>();  // [5] this row has come, the next may not have
    Packed<T, kElements> x[kVectors], dy[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      x[i] = load_if<kElements>(col_of(i) < cols, slot, col_of(i));
      dy[i] = load_if<kElements>(col_of(i) < cols, slot + cols, col_of(i));
    }
    request(row + kStages * int64_t{gridDim.x}, slot);  // [6] whose row is now in registers

    float xhat[kVectors][kElements], wdy[kVectors][kElements];
    float2 c = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float of_dy[kElements];
      stay_packed(weight[i]);  // otherwise nvcc converts it to floats before the loop
      to_floats(x[i], xhat[i]);
      to_floats(dy[i], of_dy);
      to_floats(weight[i], wdy[i]);
      for (int k = 0; k < kElements; ++k) {
        xhat[i][k] = (xhat[i][k] - mean) * rstd;
        wdy[i][k] *= of_dy[k];
        c.x += wdy[i][k] * xhat[i][k];
        c.y += wdy[i][k];
        dweight[i][k] += of_dy[k] * xhat[i][k];
        dbias[i][k] += of_dy[k];
      }
    }

    c = block_sum<kMaxThreads>(c, blockDim.x);
    const float c1 = c.x * inverse_cols;
    const float c2 = c.y * inverse_cols;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float dx[kElements];
      for (int k = 0; k < kElements; ++k) dx[k] = rstd * (wdy[i][k] - c2 - xhat[i][k] * c1);
      if (col_of(i) < cols) store(a.dx, row * cols + col_of(i), dx);
    }
    stage = stage + 1 < kStages ? stage + 1 : 0;
  }

#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (col_of(i) >= cols) continue;
    store(sums.dweight, int64_t{blockIdx.x} * cols + col_of(i), dweight[i]);
    store(sums.dbias, int64_t{blockIdx.x} * cols + col_of(i), dbias[i]);
  }
}

/// As many threads as a row needs.
unsigned threads_of(int64_t row_bytes) {
  return blocks_for(row_bytes, kVectors * 16 * kWarpSize) * kWarpSize;
}

/// Two blocks a multiprocessor, or one where a row takes more than half of its 512 threads.
int64_t blocks_of(int64_t rows, int64_t row_bytes) {
  const int64_t each = threads_of(row_bytes) <= kMaxThreads / 2 ? 2 : 1;
  return std::min(rows, multiprocessors() * each);
}

template <typename T>
void run(const BackwardArgs<T>& a) {
  const int64_t row_bytes = a.cols * sizeof(T);
  const auto blocks = static_cast<unsigned>(blocks_of(a.rows, row_bytes));
  const std::size_t ring_bytes = kStages * 2 * row_bytes;
  const PartialSums sums = partial_sums(a, blocks);
  launch(layer_norm_backward<T>, {blocks, threads_of(row_bytes), ring_bytes, a.stream}, a, sums);
  add_partial_sums(a, sums, blocks);
}

const Registration registration{{
    .id = "bwd11",
    .title = "Asynchronous copies to a thread's own ring",
    .teaches = "each thread brings what it will use to shared memory, rows ahead, by cp.async",
    .source = "this repository",
    .parent = "bwd09",
    .road = Road::Main,
    .kinds = {Kind::Layer},
    .needs_affine = true,
    .needs_aligned = true,
    .max_row_bytes = kMaxThreads * kVectors * 16,
    .max_row_bytes_because = "a block holds a whole row, two vectors in each thread",
    .run = BackwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>},
    .predicted_bytes = [](const Problem& p, const Gpu&) -> std::int64_t {
      return 3 * p.tensor_bytes() + parameter_bytes(p);
    },
    .workspace_bytes = [](const Problem& p) -> std::int64_t {
      return partial_sums_bytes(p, blocks_of(p.rows, p.cols * p.element_bytes()));
    },
}};

}  // namespace bwd11
