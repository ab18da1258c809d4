// lib_fwd_ring · Persistent blocks with a ring of bulk copies
//
// Aligned rows of up to 16 384 columns, layer and RMS norm, on Hopper. Each block walks over many
// rows; one thread requests the next ones from the copy engine, up to four rows ahead, while weight
// and bias stay in registers.
//
// Parts: ring.h and hopper.h (slots, mbarriers, bulk copies; fwd08), moments.h (fwd04), reduce.h's
// row_sums (one barrier a sum), vector.h (fwd06).
//
// Measurements behind the constants, on an H100, layer norm with a cold L2:
// - kMostStages: two, three, four and six stages are within 2 % at 4096 columns; one takes 7 %
//   more. Rows of 64 KB get three, since four do not fit.
// - Blocks: as many as fit. bf16 16384 × 4096 takes 137 µs with 128 blocks, 106 with 256, 104 with
//   512.
// - The ring starts at a 128-byte line: bf16 32768 × 2048 takes 107 µs, against 118 at 32 modulo
//   128.
// - The result: 7.9 µs at bf16 128 × 8192, against lib_fwd_registers's 8.3. With many rows it is
//   slower: 785 µs at bf16 131072 × 4096, against 717. On an H200, f16 4096 × 14848, it is ahead,
//   70 µs against 76.
#include "common/kernel/chapter.h"
#include "common/kernel/moments.h"
#include "common/kernel/reduce.h"
#include "common/kernel/ring.h"
#include "common/kernel/vector.h"

namespace lib_fwd_ring {
using namespace lnc;

constexpr int kMostStages = 4;     // rows that a ring holds
constexpr int kMostColumns = 32;   // of a thread: x, weight and bias in registers
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

/// Takes this thread's vectors of a row out of a slot. Elements past the row's end are 0.
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
    // Without this branch nvcc converts all vectors at once, and takes 80 registers, not 64.
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
  static_assert(kThreads > kWarpSize);  // for one warp row_sums has no barrier
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
  if (threadIdx.x == 0) {  // the mbarriers, the fence and the first requests
    ring.fill([&](int stage) { request(blockIdx.x + stage * stride, stage); });
  }
  Packed<W, kElements> weight[kVectors];  // loaded while the first rows arrive; kept for all rows
  Packed<W, kElements> bias[kVectors];
  load_parameter<kThreads>(weight, a.weight, row_vectors, 1.0f);
  load_parameter<kThreads>(bias, a.bias, row_vectors, 0.0f);
  __syncthreads();  // no thread may wait before the mbarriers are initialised

  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  int turn = 0;
  for (int64_t row = blockIdx.x; row < a.rows; row += stride) {
    Vec x[kVectors];
    take_vectors<kThreads>(x, ring.wait(), row_vectors);

    float near = 0.0f;
    if (kKind == Kind::Layer) {
      const float sum = sum_of<kThreads>(x, row_vectors);
      near = row_sums<kThreads, kThreads>(sum, turn) * inverse_cols;
      // row_sums has two slots for the partial sums and alternates between them: past the barrier
      // of one sum every thread has read the slot of the sum before, so a sum needs one barrier.
      turn ^= 1;
    }
    const auto deviations = deviations_from<kKind, kThreads>(near, x, row_vectors);
    ring.release();
    const auto sums = row_sums<kThreads, kThreads>(deviations, turn);
    turn ^= 1;
    const Normaliser of_row = normaliser(near, sums, inverse_cols, a.eps);

    if (threadIdx.x == 0) {
      // Every thread released the stage before the barrier of the last sum, so it is free.
      // Requested before y is computed.
      request(row + stages * stride, ring.stage);
      if (kKind == Kind::Layer) a.mean[row] = of_row.mean;
      a.rstd[row] = of_row.rstd;
    }
    ring.advance();

    auto* y = reinterpret_cast<Vec*>(a.y + row * a.cols);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      // Otherwise nvcc converts 16-bit weight and bias to float outside the loop: 64 registers
      // instead of 32.
      stay_packed(weight[i]);
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
      // Plain stores: no thread waits for them, so a bulk store would only add a trip through
      // shared memory.
      if (number < row_vectors) y[number] = from_floats<T>(values);
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
  const int64_t vectors = a.cols / kElements;             // of a row
  // The fewest threads that hold a row with four vectors each; 64 at least, since requesting a row
  // early relies on a sum's barrier.
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
    throw std::logic_error("lib_fwd_ring is given a row that it refuses");
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
    .id = "lib_fwd_ring",
    .title = "Persistent blocks with a ring of bulk copies",
    .teaches = "bulk copies run rows ahead: for few rows, and widths at which few blocks fit",
    .source = "this repository",
    .road = Road::Library,
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

}  // namespace lib_fwd_ring
