// fwd08 · Persistent blocks, bulk copies in a ring
//
// A block of fwd06 asks for its row, has nothing to do until it is there, and ends; the next one
// starts with nothing on its way. Here blocks stay and walk over rows, and the next rows are on
// their way to a ring in shared memory all the while. A row is one request of one thread to
// Hopper's copy engine; no register waits for it, and weight and bias stay in registers.
//
// It should run at the speed of a copy: 2·M·N elements, each moved once.
#include "common/kernel/chapter.h"
#include "common/kernel/moments.h"
#include "common/kernel/reduce.h"
#include "common/kernel/ring.h"
#include "common/kernel/vector.h"

namespace fwd08 {
using namespace lnc;

constexpr int kMostStages = 4;     // [1] rows that a ring holds
constexpr int kMostColumns = 32;   // [2] of a thread
constexpr int kMostThreads = 512;  // of a block

/// The number in its row of a thread's i-th vector.
template <int kThreads>
__device__ int vector_number(int i) {
  return i * kThreads + static_cast<int>(threadIdx.x);
}

/// Loads this thread's vectors of the weight or the bias; `otherwise` where that is null.
template <int kThreads, typename W, int kElements, int kVectors>
__device__ void load_parameter(Packed<W, kElements> (&values)[kVectors], const W* parameter,
                               int row_vectors, float otherwise) {
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int number = vector_number<kThreads>(i);
    const bool there = parameter != nullptr && number < row_vectors;
    values[i] = load_if<kElements>(there, parameter, int64_t{number} * kElements, otherwise);
  }
}

/// Takes this thread's vectors of a row out of a slot. Past the row's end stands 0.
template <int kThreads, typename Vec, int kVectors>
__device__ void take_vectors(Vec (&x)[kVectors], const Vec* slot, int row_vectors) {
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int number = vector_number<kThreads>(i);
    x[i] = number < row_vectors ? slot[number] : Vec{};
  }
}

/// The sum of this thread's elements.
template <int kThreads, typename T, int kElements, int kVectors>
__device__ float sum_of(const Packed<T, kElements> (&x)[kVectors], int row_vectors) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    // Of a straight line nvcc makes 32 floats at once, and holds 80 registers for 64.
    if (vector_number<kThreads>(i) >= row_vectors) continue;
    float values[kElements];
    to_floats(x[i], values);
    for (int k = 0; k < kElements; ++k) {
      sum += values[k];
    }
  }
  return sum;
}

/// The sums of this thread's deviations from `near`, a float near the mean.
template <Kind kKind, int kThreads, typename T, int kElements, int kVectors>
__device__ Deviations<kKind> deviations_from(float near, const Packed<T, kElements> (&x)[kVectors],
                                             int row_vectors) {
  Deviations<kKind> sums{};
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (vector_number<kThreads>(i) >= row_vectors) continue;
    float values[kElements];
    to_floats(x[i], values);
    for (int k = 0; k < kElements; ++k) {
      add_deviation(sums, values[k] - near);
    }
  }
  return sums;
}

/// A block has a ring, and every gridDim.x-th row.
template <typename T, typename W, Kind kKind, int kThreads, int kVectors>
__global__ void __launch_bounds__(kThreads) layer_norm_forward(ForwardArgs<T, W> a, int stages) {
  constexpr int kElements = kVectorElements<T>;
  using Vec = Packed<T, kElements>;
  static_assert(kThreads > kWarpSize);  // else row_sums has no barrier to wait at
  __shared__ Barrier full[kMostStages];
  const int row_vectors = static_cast<int>(a.cols / kElements);
  const auto row_bytes = static_cast<unsigned>(a.cols * sizeof(T));
  const int64_t stride = gridDim.x;

  Ring<T> ring{dynamic_shared<Vec>(), row_vectors, stages, full};
  const auto request = [&](int64_t row, int stage) {
    if (row >= a.rows) return;
    full[stage].arrive_and_expect(row_bytes);
    bulk_load(ring.slot(stage), a.x + row * a.cols, row_bytes, full[stage]);
  };
  if (threadIdx.x == 0) {  // [3]
    ring.fill([&](int stage) { request(blockIdx.x + stage * stride, stage); });
  }
  Packed<W, kElements> weight[kVectors];  // [4]
  Packed<W, kElements> bias[kVectors];
  load_parameter<kThreads>(weight, a.weight, row_vectors, 1.0f);
  load_parameter<kThreads>(bias, a.bias, row_vectors, 0.0f);
  __syncthreads();  // [5]

  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  int turn = 0;
  for (int64_t row = blockIdx.x; row < a.rows; row += stride) {
    Vec x[kVectors];
    take_vectors<kThreads>(x, ring.wait(), row_vectors);

    float near = 0.0f;
    if (kKind == Kind::Layer) {
      const float sum = sum_of<kThreads>(x, row_vectors);
      near = row_sums<kThreads, kThreads>(sum, turn) * inverse_cols;
      turn ^= 1;  // [6]
    }
    const auto deviations = deviations_from<kKind, kThreads>(near, x, row_vectors);
    ring.release();
    const auto sums = row_sums<kThreads, kThreads>(deviations, turn);
    turn ^= 1;
    const Normaliser of_row = normaliser(near, sums, inverse_cols, a.eps);

    if (threadIdx.x == 0) {
      request(row + stages * stride, ring.stage);  // [7]
      if (kKind == Kind::Layer) a.mean[row] = of_row.mean;
      a.rstd[row] = of_row.rstd;
    }
    ring.advance();

    auto* y = reinterpret_cast<Vec*>(a.y + row * a.cols);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      stay_packed(weight[i]);  // [8]
      stay_packed(bias[i]);
      float values[kElements];
      float of_weight[kElements];
      float of_bias[kElements];
      to_floats(x[i], values);
      to_floats(weight[i], of_weight);
      to_floats(bias[i], of_bias);
      for (int k = 0; k < kElements; ++k) {
        values[k] = of_row.xhat(values[k]) * of_weight[k] + of_bias[k];
      }
      const int number = vector_number<kThreads>(i);
      if (number < row_vectors) y[number] = from_floats<T>(values);  // [9]
    }
  }
}

/// As many blocks as the GPU holds at once, each with as many stages as fit, up to kMostStages.
template <Kind kKind, int kThreads, int kVectors, typename T, typename W>
void run_blocks(const ForwardArgs<T, W>& a) {
  constexpr int kStaticShared = 1 << 10;  // bytes: the barriers, and what CUDA takes
  const auto kernel = layer_norm_forward<T, W, kKind, kThreads, kVectors>;
  const int64_t row_bytes = a.cols * sizeof(T);
  const int64_t room = (max_shared_bytes() - kStaticShared) / row_bytes;
  const auto stages = static_cast<int>(std::min<int64_t>(room, kMostStages));
  const auto shared = static_cast<std::size_t>(stages * row_bytes);

  int64_t blocks = a.group;
  if (blocks == 0) blocks = multiprocessors() * resident_blocks(kernel, kThreads, shared);
  const auto grid = static_cast<unsigned>(std::min(blocks, a.rows));
  launch(kernel, {grid, kThreads, shared, a.stream}, a, stages);
}

template <Kind kKind, typename T, typename W>
void run_kind(const ForwardArgs<T, W>& a) {
  constexpr int kElements = kVectorElements<T>;
  constexpr int kMostVectors = kMostColumns / kElements;  // of a thread: 8 of float, else 4
  const int64_t vectors = a.cols / kElements;             // [10] of a row
  if (vectors <= 64 * 1) {
    run_blocks<kKind, 64, 1>(a);
  } else if (vectors <= 64 * 2) {
    run_blocks<kKind, 64, 2>(a);
  } else if (vectors <= 64 * 4) {
    run_blocks<kKind, 64, 4>(a);
  } else if (vectors <= 128 * 4) {
    run_blocks<kKind, 128, 4>(a);
  } else if (vectors <= 256 * 4) {
    run_blocks<kKind, 256, 4>(a);
  } else if (vectors <= 512 * 4) {
    run_blocks<kKind, 512, 4>(a);
  } else if (vectors <= kMostThreads * kMostVectors) {
    run_blocks<kKind, kMostThreads, kMostVectors>(a);
  } else {
    throw std::logic_error("fwd08 is given a row that it refuses");
  }
}

template <typename T, typename W>
void run(const ForwardArgs<T, W>& a) {
  if (a.kind == Kind::Layer) {
    run_kind<Kind::Layer>(a);
  } else {
    run_kind<Kind::Rms>(a);
  }
}

const Registration registration{{
    .id = "fwd08",
    .title = "Persistent blocks, bulk copies in a ring",
    .teaches = "the copy engine brings the next rows while a block works on one",
    .source = "this repository",
    .parent = "fwd06",
    .road = Road::Main,
    .needs_aligned = true,
    .group = "blocks",
    .min_architecture = 90,
    .keeps_digits_at_large_means = true,
    .max_cols = kMostThreads * kMostColumns,
    .max_cols_because = "a thread keeps 32 columns of x, weight and bias in registers",
    .run = ForwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>, run<__half, float>,
                            run<__nv_bfloat16, float>},
    .predicted_bytes =
        [](const Problem& p, const Gpu& gpu) {
          return predict_bytes(
              p, gpu, {.inputs = 1, .walks = 1, .threads_per_row = gpu.threads_per_multiprocessor});
        },
}};

}  // namespace fwd08
