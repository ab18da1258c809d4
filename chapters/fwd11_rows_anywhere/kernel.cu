// fwd11 · Rows that start anywhere
//
// fwd06 takes a row that starts off a 16-byte boundary in vectors counted from the boundary before
// it. But then weight and bias, whose vectors start elsewhere, come element by element, for every
// row anew. Here blocks stay, and step from row to row so that all rows of a block start alike: of
// 4097 halves every eighth does. So a thread has the same columns in each, and its weight and bias
// wait in shared memory.
//
// It should run at the speed of a copy: 2·M·N elements, each moved once.
#include "common/kernel/chapter.h"
#include "common/kernel/reduce.h"
#include "common/kernel/rows_anywhere.h"
#include "common/kernel/vector.h"

namespace fwd11 {
using namespace lnc;

/// [1] Up to kThreads threads have a row, kVectors vectors each. A multiprocessor has registers for
/// kBlocks such blocks.
template <int kThreads_, int kVectors_, int kBlocks_>
struct Fit {
  static constexpr int kThreads = kThreads_;
  static constexpr int kVectors = kVectors_;
  static constexpr int kBlocks = kBlocks_;
};
using FewVectors = Fit<512, 2, 2>;
using ManyVectors = Fit<512, 4, 1>;
constexpr int kBlockRows = 4;  // of a block, where a row has one warp

/// The sum of this thread's elements.
template <typename T, int kElements, int kVectors>
__device__ float sum_of(const Packed<T, kElements> (&x)[kVectors], const OwnColumns& own) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    float values[kElements];
    to_floats(x[i], values);
    own.fill_others(i, values, 0.0f);  // [2]
    for (int k = 0; k < kElements; ++k) {
      sum += values[k];
    }
  }
  return sum;
}

/// The sum of the squares of this thread's elements, about the mean.
template <typename T, int kElements, int kVectors>
__device__ float squares_about(float mean, Packed<T, kElements> (&x)[kVectors],
                               const OwnColumns& own) {
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    stay_packed(x[i]);
    float values[kElements];
    to_floats(x[i], values);
    own.fill_others(i, values, mean);
    for (int k = 0; k < kElements; ++k) {
      const float centred = values[k] - mean;
      squares += centred * centred;
    }
  }
  return squares;
}

/// The sum over a row, which has a warp or a block. `place` is 0 and 1 in turns.
template <int kMostThreads>
__device__ float row_sum(float value, int place, int row_threads) {
  if (row_threads == kWarpSize) return warp_sum(value);
  return team_sums<kMostThreads, 2>(value, place, 0, row_threads / kWarpSize);
}

/// Each `row_threads` threads have a row, and then those of whole steps of the grid: these start
/// alike.
template <typename T, typename W, Kind kKind, typename Fit, typename Loading>
__global__ void __launch_bounds__(Fit::kThreads, Fit::kBlocks)
    layer_norm_forward(ForwardArgs<T, W> a, int row_threads, unsigned end_rows,
                       float inverse_cols) {
  constexpr int kElements = kVectorElements<T>;
  constexpr int kVectors = Fit::kVectors;
  constexpr bool kLayer = kKind == Kind::Layer;
  const int rows_of_block = blockDim.x / row_threads;
  const int in_block = threadIdx.x / row_threads;
  const int thread = threadIdx.x % row_threads;
  const int64_t first_row = int64_t{blockIdx.x} * rows_of_block + in_block;
  const int64_t stride = int64_t{gridDim.x} * rows_of_block;
  if (first_row >= a.rows) return;

  const int start = start_in_vector(a.y + first_row * a.cols);  // [3]
  const OwnColumns own{thread * kElements - start, row_threads * kElements,
                       static_cast<int>(a.cols)};
  const auto load_row = [&](int64_t row, Packed<T, kElements>(&x)[kVectors]) {
    const T* const x_row = a.x + row * a.cols;
    const bool inside = row >= end_rows && row + end_rows < a.rows;  // of the tensor
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      x[i] = Loading::load(own, i, x_row, inside);  // [4]
    }
  };
  Packed<T, kElements> next[kVectors];
  load_row(first_row, next);
  auto* const weights = dynamic_shared<Packed<W, kElements>>() + threadIdx.x;  // [5]
  auto* const biases = weights + kVectors * blockDim.x;
#pragma unroll 1
  for (int i = 0; i < kVectors; ++i) {
    weights[i * blockDim.x] = own.load<kElements>(i, a.weight, 1.0f);
    biases[i * blockDim.x] = own.load<kElements>(i, a.bias, 0.0f);
  }

  unsigned sums = 0;  // made so far
  for (int64_t row = first_row; row < a.rows; row += stride) {
    Packed<T, kElements> x[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      x[i] = next[i];
    }
    if (row + stride < a.rows) load_row(row + stride, next);  // [6]

    float mean = 0.0f;
    if (kLayer) {
      mean = row_sum<Fit::kThreads>(sum_of(x, own), sums % 2, row_threads) * inverse_cols;
      ++sums;
    }
    float squares = squares_about(mean, x, own);
    squares = row_sum<Fit::kThreads>(squares, sums % 2, row_threads);
    ++sums;
    const float rstd = rsqrtf(squares * inverse_cols + a.eps);

    T* const y_row = a.y + row * a.cols;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      stay_packed(x[i]);
      float values[kElements];
      float of_weight[kElements];
      float of_bias[kElements];
      to_floats(x[i], values);
      to_floats(weights[i * blockDim.x], of_weight);
      to_floats(biases[i * blockDim.x], of_bias);
      for (int k = 0; k < kElements; ++k) {
        const float xhat = (values[k] - mean) * rstd;
        values[k] = kLayer ? xhat * of_weight[k] + of_bias[k] : xhat * of_weight[k];
      }
      if (own.has(i)) own.store(i, y_row, values);  // [7]
    }
    if (thread == 0) {
      if (kLayer) a.mean[row] = mean;
      a.rstd[row] = rstd;
    }
  }
}

/// As many blocks as the GPU holds at once, or nearly so: a step of all of them leads to rows that
/// start alike. A row has as few warps as hold it.
template <Kind kKind, typename Fit, typename Loading, typename T, typename W>
void run_blocks(const ForwardArgs<T, W>& a) {
  const auto kernel = layer_norm_forward<T, W, kKind, Fit, Loading>;
  const int64_t vectors = row_vectors(a.y, a.cols);
  const unsigned row_threads = blocks_for(vectors, Fit::kVectors * kWarpSize) * kWarpSize;
  const unsigned rows_of_block = row_threads == kWarpSize ? kBlockRows : 1;
  const unsigned threads = rows_of_block * row_threads;
  const std::size_t shared = 2 * Fit::kVectors * threads * sizeof(Packed<W, kVectorElements<T>>);

  int64_t most = a.group;
  if (most == 0) most = multiprocessors() * resident_blocks(kernel, threads, shared);
  const int64_t in_step = blocks_in_step<T>(most, rows_of_block, a.cols);  // [8]
  const int64_t steps = blocks_for(a.rows, rows_of_block);
  const auto grid = static_cast<unsigned>(std::min(in_step, steps));
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  launch(kernel, {grid, threads, shared, a.stream}, a, static_cast<int>(row_threads),
         rows_at_end<T>(a.cols), inverse_cols);
}

template <Kind kKind, typename T, typename W>
void run_kind(const ForwardArgs<T, W>& a) {
  const bool alike = start_in_vector(a.x) == start_in_vector(a.y);
  if (!alike) {
    run_blocks<kKind, ManyVectors, LoadElements>(a);  // [9]
  } else if (row_vectors(a.y, a.cols) <= FewVectors::kThreads * FewVectors::kVectors) {
    run_blocks<kKind, FewVectors, LoadVectors>(a);
  } else {
    run_blocks<kKind, ManyVectors, LoadVectors>(a);
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
    .id = "fwd11",
    .title = "Rows that start anywhere",
    .teaches = "a block steps to rows that start alike, so that vectors stay whole",
    .source = "this repository",
    .parent = "fwd06",
    .road = Road::UnalignedRows,
    .usual_cols = 2049,
    .group = "blocks",
    .max_row_bytes = ManyVectors::kThreads * ManyVectors::kVectors * 16 - 16,
    .run = ForwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>, run<__half, float>,
                            run<__nv_bfloat16, float>},
    .predicted_bytes = [](const Problem& p, const Gpu&) -> std::int64_t {
      return 2 * p.tensor_bytes() + parameter_bytes(p);
    },
}};

}  // namespace fwd11
