// fwd08 · Persistent blocks, bulk copies in a ring
//
// A block of fwd06 requests its row, waits for it, computes, and retires; its successor starts with
// nothing in flight. Here blocks stay and walk over many rows. While a block computes one row, the
// copy engine brings its next rows to a ring in shared memory. One thread requests a whole row with
// one instruction, and no register waits for it, so weight and bias stay in registers for all rows.
//
// It should cost what a copy costs: 2·M·N elements, each moved once. On small tensors it should
// also save fwd06's waits for weight and bias, and it does; on large tensors fwd06 is faster.
#include "common/kernel/chapter.h"
#include "common/kernel/hopper.h"
#include "common/kernel/reduce.h"
#include "common/kernel/vector.h"

namespace fwd08 {
using namespace lnc;

constexpr int kStages = 3;        // [1] slots of the ring, a row each
constexpr int kVectors = 4;       // 16-byte vectors of x, weight and bias each, in registers
constexpr int kMaxThreads = 512;  // so rows of up to 32 KB

// exercise
/// Asks the copy engine for a row. The phase of `full` is complete when all its bytes have come.
template <typename T>
__device__ void request_row(const ForwardArgs<T>& a, int64_t row, void* slot, Barrier& full) {
  if (row >= a.rows) return;
  const auto row_bytes = static_cast<unsigned>(a.cols * sizeof(T));
  full.arrive_and_expect(row_bytes);  // [2]
  bulk_load(slot, a.x + row * a.cols, row_bytes, full);
}
// end of exercise

template <typename T>
__global__ void __launch_bounds__(kMaxThreads, 2) layer_norm_forward(ForwardArgs<T> a) {
  // exercise
  constexpr int kElements = kVectorElements<T>;
  using V = Packed<T, kElements>;
  const int row_vectors = static_cast<int>(a.cols) / kElements;
  const int64_t stride = gridDim.x;  // rows from one row of this block to the next
  const int warp = threadIdx.x / kWarpSize;
  const int first = warp * kVectors * kWarpSize + threadIdx.x % kWarpSize;  // [3]

  V* ring = dynamic_shared<V>();  // kStages slots of row_vectors vectors
  __shared__ Barrier full[kStages];
  if (threadIdx.x == 0) {
    for (Barrier& barrier : full) barrier.init(1);  // [4] one arrival a phase: this thread's
    fence_barrier_init();
    for (int stage = 0; stage < kStages; ++stage)
      request_row(a, blockIdx.x + stage * stride, ring + stage * row_vectors, full[stage]);
  }

  V weight[kVectors];  // loaded while the first rows are in flight, and kept
  V bias[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int at = first + i * kWarpSize;
    weight[i] = at < row_vectors ? reinterpret_cast<const V*>(a.weight)[at] : V{};
    bias[i] = at < row_vectors ? reinterpret_cast<const V*>(a.bias)[at] : V{};
  }
  __syncthreads();  // [5]

  int stage = 0;
  unsigned parity = 0;
  for (int64_t row = blockIdx.x; row < a.rows; row += stride) {
    V* const slot = ring + stage * row_vectors;
    full[stage].wait(parity);  // [6]

    V x[kVectors];
    float values[kElements];
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int at = first + i * kWarpSize;
      x[i] = at < row_vectors ? slot[at] : V{};
      to_floats(x[i], values);
      for (const float value : values) sum += value;  // zeros beyond the row
    }
    fence_proxy_async();  // [7] before the copy engine, another proxy, overwrites what was read
    const float mean = block_sum<kMaxThreads>(sum, blockDim.x) / static_cast<float>(a.cols);

    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (first + i * kWarpSize >= row_vectors) continue;
      to_floats(x[i], values);
      for (const float value : values) squares += (value - mean) * (value - mean);
    }
    const float variance = block_sum<kMaxThreads>(squares, blockDim.x) / static_cast<float>(a.cols);
    const float rstd = rsqrtf(variance + a.eps);

    if (threadIdx.x == 0) {
      request_row(a, row + kStages * stride, slot, full[stage]);  // [8] all met in block_sum
      a.mean[row] = mean;
      a.rstd[row] = rstd;
    }

    V* y = reinterpret_cast<V*>(a.y + row * a.cols);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int at = first + i * kWarpSize;
      if (at >= row_vectors) continue;
      stay_packed(weight[i]);  // [9]
      stay_packed(bias[i]);
      float w[kElements];
      float b[kElements];
      to_floats(x[i], values);
      to_floats(weight[i], w);
      to_floats(bias[i], b);
      for (int k = 0; k < kElements; ++k) values[k] = (values[k] - mean) * rstd * w[k] + b[k];
      y[at] = from_floats<T>(values);
    }

    stage = (stage + 1) % kStages;
    parity ^= stage == 0;  // [10] once around, every mbarrier is a phase further
  }
}

/// As many blocks as the GPU holds at once, if there are rows for them, each with as many warps as
/// a row needs.
template <typename T>
void run(const ForwardArgs<T>& a) {
  const auto kernel = layer_norm_forward<T>;
  const int64_t row_vectors = a.cols / kVectorElements<T>;
  const unsigned threads = blocks_for(row_vectors, kVectors * kWarpSize) * kWarpSize;
  const std::size_t ring_bytes = kStages * a.cols * sizeof(T);
  const int64_t places = most_blocks(a.group, resident_blocks(kernel, threads, ring_bytes));
  const auto blocks = static_cast<unsigned>(std::min(places, a.rows));
  launch(kernel, {blocks, threads, ring_bytes, a.stream}, a);
}

const Registration registration{{
    .id = "fwd08",
    .title = "Persistent blocks, bulk copies in a ring",
    .teaches = "the copy engine brings the next rows while a block works on one",
    .source = "this repository",
    .parent = "fwd06",
    .road = Road::Main,
    .before = "bwd12",
    .kinds = {Kind::Layer},
    .needs_affine = true,
    .needs_aligned = true,
    .group = "blocks",
    .min_architecture = 90,
    .max_row_bytes = kMaxThreads * kVectors * 16,
    .max_row_bytes_because = "512 threads keep four vectors of 16 bytes each in registers",
    .run = ForwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>},
    .predicted_bytes =
        [](const Problem& p, const Gpu& gpu) {
          return predict_bytes(
              p, gpu, {.inputs = 1, .walks = 1, .threads_per_row = gpu.threads_per_multiprocessor});
        },
}};

}  // namespace fwd08
