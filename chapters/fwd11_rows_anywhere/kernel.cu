// fwd11 · Rows that start anywhere
//
// fwd06 takes a row that starts off a 16-byte boundary in vectors counted from the boundary before
// it. But weight and bias start elsewhere, so they come element by element, for every row anew.
// Here a block stays, and steps from row to row so that all of its rows start alike: of 4097 halves
// every eighth does. So a thread has the same columns in each of them, and reads their weight and
// bias once.
//
// It should run at the speed of a copy: 2·M·N elements, each moved once.
#include "common/kernel/chapter.h"
#include "common/kernel/moments.h"
#include "common/kernel/reduce.h"
#include "common/kernel/rows_anywhere.h"
#include "common/kernel/vector.h"

namespace fwd11 {
using namespace lnc;

/// [1] A row has up to kThreads threads, with kVectors vectors each. A multiprocessor has registers
/// for kBlocks such rows.
template <int kThreads_, int kVectors_, int kBlocks_>
struct Variant {
  static constexpr int kThreads = kThreads_;
  static constexpr int kVectors = kVectors_;
  static constexpr int kBlocks = std::min(kBlocks_, kSmThreads / kThreads);  // Turing has fewer
  static constexpr int kRowVectors = kThreads * kVectors;
};
using FewVectors = Variant<576, 2, 2>;   // 36 warps of 56 registers
using ManyVectors = Variant<640, 4, 1>;  // 20 warps of 96

/// Loads this thread's vectors of a row: whole ones, where that is allowed.
template <typename T, int kElements, int kVectors>
__device__ void load_row(Packed<T, kElements> (&x)[kVectors], const T* row, const OwnColumns& own,
                         bool whole) {
  if (whole) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      x[i] = load_if<kElements>(own.has(i), row, own.of(i));  // [2]
    }
  } else {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      x[i] = own.load<kElements>(i, row, 0.0f);
    }
  }
}

/// The sum of this thread's elements.
template <typename T, int kElements, int kVectors>
__device__ float sum_of(const Packed<T, kElements> (&x)[kVectors], const OwnColumns& own) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    float values[kElements];
    to_floats(x[i], values);
    own.fill_others(i, values, 0.0f);  // [3]
    for (int k = 0; k < kElements; ++k) {
      sum += values[k];
    }
  }
  return sum;
}

/// The sums of this thread's deviations from `near`, a float near the mean.
template <Kind kKind, typename T, int kElements, int kVectors>
__device__ Deviations<kKind> deviations_from(float near, Packed<T, kElements> (&x)[kVectors],
                                             const OwnColumns& own) {
  Deviations<kKind> sums{};
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    stay_packed(x[i]);  // [4]
    float values[kElements];
    to_floats(x[i], values);
    own.fill_others(i, values, near);
    for (int k = 0; k < kElements; ++k) {
      add_deviation(sums, values[k] - near);
    }
  }
  return sums;
}

/// The sum over the row's threads, which are the block's. `turn` is 0 and 1 in turns.
template <int kMostThreads, typename Value>
__device__ Value row_sum(Value value, int turn) {
  if (blockDim.x == kWarpSize) return warp_sum(value);
  const int first_warp = 0;
  const int row_warps = blockDim.x / kWarpSize;
  return team_sums<kMostThreads, 2>(value, turn, first_warp, row_warps);  // [5]
}

/// A block has every gridDim.x-th row: these start alike. At each end of the tensor, `end_rows`
/// rows are not loaded in whole vectors.
template <typename T, typename W, Kind kKind, typename Fit>
__global__ void __launch_bounds__(Fit::kThreads, Fit::kBlocks)
    layer_norm_forward(ForwardArgs<T, W> a, int64_t end_rows, float inverse_cols) {
  constexpr int kElements = kVectorElements<T>;
  constexpr int kVectors = Fit::kVectors;
  constexpr bool kLayer = kKind == Kind::Layer;
  const int64_t stride = gridDim.x;
  const int start = start_in_vector(a.y + blockIdx.x * a.cols);  // [6]
  const OwnColumns own{static_cast<int>(threadIdx.x) * kElements - start,
                       static_cast<int>(blockDim.x) * kElements, static_cast<int>(a.cols)};
  const auto ask_for = [&](int64_t row, Packed<T, kElements>(&x)[kVectors]) {
    const bool whole = row >= end_rows && row + end_rows < a.rows;
    load_row(x, a.x + row * a.cols, own, whole);
  };

  Packed<T, kElements> next[kVectors];
  ask_for(blockIdx.x, next);
  auto* const weights = dynamic_shared<Packed<W, kElements>>() + threadIdx.x;  // [7]
  auto* const biases = weights + kVectors * blockDim.x;
#pragma unroll 1
  for (int i = 0; i < kVectors; ++i) {
    weights[i * blockDim.x] = own.load<kElements>(i, a.weight, 1.0f);
    biases[i * blockDim.x] = own.load<kElements>(i, a.bias, 0.0f);
  }

  int turn = 0;
  for (int64_t row = blockIdx.x; row < a.rows; row += stride) {
    Packed<T, kElements> x[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      x[i] = next[i];
    }
    if (row + stride < a.rows) ask_for(row + stride, next);  // [8]

    float near = 0.0f;
    if (kLayer) {
      turn ^= 1;
      near = row_sum<Fit::kThreads>(sum_of(x, own), turn) * inverse_cols;
    }
    turn ^= 1;
    const auto sums = row_sum<Fit::kThreads>(deviations_from<kKind>(near, x, own), turn);
    const Normaliser of_row = normaliser(near, sums, inverse_cols, a.eps);

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
        const float xhat = of_row.xhat(values[k]);
        values[k] = kLayer ? xhat * of_weight[k] + of_bias[k] : xhat * of_weight[k];
      }
      if (own.has(i)) own.store(i, y_row, values);  // [9]
    }
    if (threadIdx.x == 0) {
      if (kLayer) a.mean[row] = of_row.mean;
      a.rstd[row] = of_row.rstd;
    }
  }
}

/// As many blocks as the GPU holds at once, or nearly so, each of as many warps as a row needs.
template <Kind kKind, typename Fit, typename T, typename W>
void run_blocks(const ForwardArgs<T, W>& a) {
  const auto kernel = layer_norm_forward<T, W, kKind, Fit>;
  const int64_t vectors = row_vectors(a.y, a.cols);
  const unsigned threads = blocks_for(vectors, Fit::kVectors * kWarpSize) * kWarpSize;
  const std::size_t shared = 2 * Fit::kVectors * threads * sizeof(Packed<W, kVectorElements<T>>);

  if (shared > static_cast<std::size_t>(max_shared_bytes())) {
    throw std::runtime_error(
        "fwd11: the shared memory of this GPU has no room for weight and bias of " +
        std::to_string(a.cols) + " columns");
  }

  int64_t most = a.group;
  if (most == 0) most = multiprocessors() * resident_blocks(kernel, threads, shared);
  const int64_t blocks = blocks_in_step<T>(most, 1, a.cols);  // [10]
  const auto grid = static_cast<unsigned>(std::min(blocks, a.rows));
  const bool alike = start_in_vector(a.x) == start_in_vector(a.y);
  // [11] Where x starts differently, each row counts as one at an end: no vector is loaded whole.
  const int64_t end_rows = alike ? rows_at_end<T>(a.cols) : a.rows;
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  launch(kernel, {grid, threads, shared, a.stream}, a, end_rows, inverse_cols);
}

template <Kind kKind, typename T, typename W>
void run_kind(const ForwardArgs<T, W>& a) {
  if (row_vectors(a.y, a.cols) <= FewVectors::kRowVectors) {
    run_blocks<kKind, FewVectors>(a);
  } else {
    run_blocks<kKind, ManyVectors>(a);
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
    .shares_by_address = true,
    .group = "blocks",
    .keeps_digits_at_large_means = true,
    .max_row_bytes = (ManyVectors::kRowVectors - 1) * 16,
    .run = ForwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>, run<__half, float>,
                            run<__nv_bfloat16, float>},
    .predicted_bytes = [](const Problem& p, const Gpu&) -> std::int64_t {
      return 2 * p.tensor_bytes() + parameter_bytes(p);
    },
}};

}  // namespace fwd11
