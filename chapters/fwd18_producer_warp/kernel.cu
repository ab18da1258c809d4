// fwd18 · A producer warp, full and empty barriers
//
// In fwd08 all warps of a block wait for a row together and meet four times for its two sums; only
// then may a thread request another row. Here one warp, the producer, only requests rows, and the
// others, the consumers, only compute, each on a row of its own. They share only two mbarriers per
// slot: full says that the row has arrived, empty that it has been read. No consumer waits for
// another.
//
// The ring alone decides how much is in flight, so a warp per row, as in fwd02, should be enough
// again to reach the speed of a copy. The kernel beats fwd08 with many rows; with few rows, or rows
// so wide that few consumers fit, it is slower.
#include "common/kernel/chapter.h"
#include "common/kernel/hopper.h"
#include "common/kernel/reduce.h"
#include "common/kernel/vector.h"

namespace fwd18 {
using namespace lnc;

constexpr int kMaxConsumers = 8;  // warps that compute
constexpr int kDepth = 2;         // [1] slots of each: it reads one while the other is filled
constexpr int kMaxSlots = kMaxConsumers * kDepth;
constexpr int kMaxThreads = (kMaxConsumers + 1) * kWarpSize;

template <typename T>
__global__ void __launch_bounds__(kMaxThreads) layer_norm_forward(ForwardArgs<T> a) {
  // exercise
  constexpr int kElements = kVectorElements<T>;
  constexpr int kStep = kWarpSize * kElements;  // columns that a warp reads at a time
  const int cols = static_cast<int>(a.cols);
  const auto row_bytes = static_cast<unsigned>(a.cols * sizeof(T));
  const unsigned rows = (static_cast<unsigned>(a.rows) - blockIdx.x + gridDim.x - 1) / gridDim.x;
  const unsigned warp = threadIdx.x / kWarpSize;
  const unsigned lane = threadIdx.x % kWarpSize;
  const unsigned consumers = blockDim.x / kWarpSize - 1;
  const unsigned slots = consumers * kDepth;

  T* weight = dynamic_shared<T>();
  T* bias = weight + cols;
  T* ring = bias + cols;  // `slots` rows
  __shared__ Barrier parameters;
  __shared__ Barrier full[kMaxSlots];
  __shared__ Barrier empty[kMaxSlots];
  if (threadIdx.x == 0) {
    parameters.init(1);
    for (Barrier& barrier : full) barrier.init(1);   // [2] the producer arrives
    for (Barrier& barrier : empty) barrier.init(1);  // the slot's consumer arrives
    fence_barrier_init();
  }
  __syncthreads();  // [3] the last barrier of all warps

  if (warp == consumers) {  // the producer
    if (lane != 0) return;
    parameters.arrive_and_expect(2 * row_bytes);
    bulk_load(weight, a.weight, row_bytes, parameters);
    bulk_load(bias, a.bias, row_bytes, parameters);
    for (unsigned n = 0; n < rows; ++n) {
      const int64_t row = blockIdx.x + int64_t{n} * gridDim.x;
      const unsigned slot = n % slots;
      empty[slot].wait((n / slots + 1) % 2);  // [4] at a slot's first row it returns
      full[slot].arrive_and_expect(row_bytes);
      bulk_load(ring + slot * cols, a.x + row * a.cols, row_bytes, full[slot]);
    }
    return;
  }

  parameters.wait(0);
  for (unsigned n = warp; n < rows; n += consumers) {  // [5]
    const int64_t row = blockIdx.x + int64_t{n} * gridDim.x;
    const unsigned slot = n % slots;
    const T* x = ring + slot * cols;
    full[slot].wait(n / slots % 2);  // phase n / slots of the slot

    float values[kElements];
    float sum = 0.0f;
#pragma unroll 4
    for (int col = lane * kElements; col < cols; col += kStep) {
      to_floats(load_vector<kElements>(x, col), values);
      float of_vector = 0.0f;  // [6] short chains of additions
      for (const float value : values) of_vector += value;
      sum += of_vector;
    }
    const float mean = warp_sum(sum) / static_cast<float>(cols);

    float squares = 0.0f;
#pragma unroll 4
    for (int col = lane * kElements; col < cols; col += kStep) {
      to_floats(load_vector<kElements>(x, col), values);
      float of_vector = 0.0f;
      for (const float value : values) of_vector += (value - mean) * (value - mean);
      squares += of_vector;
    }
    const float variance = warp_sum(squares) / static_cast<float>(cols);
    const float rstd = rsqrtf(variance + a.eps);

#pragma unroll 4
    for (int col = lane * kElements; col < cols; col += kStep) {
      float w[kElements];
      float b[kElements];
      to_floats(load_vector<kElements>(x, col), values);
      to_floats(load_vector<kElements>(weight, col), w);
      to_floats(load_vector<kElements>(bias, col), b);
      for (int k = 0; k < kElements; ++k) values[k] = (values[k] - mean) * rstd * w[k] + b[k];
      store(a.y + row * a.cols, col, values);
    }

    fence_proxy_async();  // [7] each lane's, after its last read
    __syncwarp();
    if (lane == 0) {
      empty[slot].arrive();
      a.mean[row] = mean;
      a.rstd[row] = rstd;
    }
  }
}

/// As many blocks as the GPU holds at once, each with as many consumers as shared memory has room
/// for, up to kMaxConsumers.
template <typename T>
void run(const ForwardArgs<T>& a) {
  constexpr int kBarrierBytes = 1 << 10;  // static shared memory, rounded up
  const auto kernel = layer_norm_forward<T>;
  const int64_t row_bytes = a.cols * sizeof(T);
  const int64_t room = (max_shared_bytes() - kBarrierBytes) / row_bytes - 2;  // [8]
  const int64_t consumers = std::clamp<int64_t>(room / kDepth, 1, kMaxConsumers);
  const auto threads = static_cast<unsigned>((consumers + 1) * kWarpSize);
  const auto shared_bytes = static_cast<std::size_t>((2 + consumers * kDepth) * row_bytes);
  const int64_t places = most_blocks(a.group, resident_blocks(kernel, threads, shared_bytes));
  const auto blocks = static_cast<unsigned>(std::min(places, a.rows));
  launch(kernel, {blocks, threads, shared_bytes, a.stream}, a);
}

const Registration registration{{
    .id = "fwd18",
    .title = "A producer warp, full and empty barriers",
    .teaches = "one warp only asks for rows, the others only compute; two barriers a slot",
    .source = "Hopper, CUTLASS warp specialisation",
    .parent = "fwd08",
    .road = Road::Main,
    .before = "bwd12",
    .kinds = {Kind::Layer},
    .needs_affine = true,
    .needs_aligned = true,
    .group = "blocks",
    .min_architecture = 90,
    .max_row_bytes = 32 << 10,
    .max_row_bytes_because = "of wider rows shared memory has too few for its consumers",
    .run = ForwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>},
    .predicted_bytes =
        [](const Problem& p, const Gpu& gpu) {
          return predict_bytes(
              p, gpu, {.inputs = 1, .walks = 1, .threads_per_row = gpu.threads_per_multiprocessor});
        },
}};

}  // namespace fwd18
