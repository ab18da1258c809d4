// fwd16 · Rows that start anywhere, their weight shifted
//
// fwd11's blocks stay, so that weight and bias come once for all rows that start alike, and blocks
// that stay are slower than blocks that come and go. Here a row has a block, which ends with it, as
// in fwd06. Of weight and bias a thread loads two whole vectors, in which its eight elements lie,
// and shifts them into place. What is not in a row's whole vectors, 15 elements at most, is
// single lanes'.
//
// It should run at the speed of a copy: 2·M·N elements, each moved once.
#include "common/kernel/chapter.h"
#include "common/kernel/moments.h"
#include "common/kernel/reduce.h"
#include "common/kernel/rows_anywhere.h"
#include "common/kernel/vector.h"

namespace fwd16 {
using namespace lnc;

/// [1] A thread has kVectors vectors, and a row a warp, of four in a block, or a block of as many
/// warps as it needs.
template <int kVectors_, int kMostWarps>
struct Variant {
  static constexpr int kVectors = kVectors_;
  static constexpr bool kOneWarp = kMostWarps == 1;
  static constexpr int kBlockRows = kOneWarp ? 4 : 1;
  static constexpr int kThreads = kMostWarps * kBlockRows * kWarpSize;
  static constexpr int kMinBlocks = kOneWarp ? 7 : 1;  // so nvcc takes 72 or 64 registers at most
  static constexpr int kRowVectors = kVectors * kMostWarps * kWarpSize;
};
using ManyWarps = Variant<4, 32>;

/// Moves words down by `places`, fewer than 2 · kStep: by kStep or not, then by half of it or not.
template <int kStep, int kWords>
__device__ void move_down(std::uint32_t (&words)[kWords], int places) {
#pragma unroll
  for (int i = 0; i < kWords - kStep; ++i) {
    words[i] = places & kStep ? words[i + kStep] : words[i];
  }
  if constexpr (kStep > 1) move_down<kStep / 2>(words, places);
}

/// [2] kElements elements, from the element `past` on, fewer than kElements, behind `from`: of as
/// many whole vectors as they may lie in.
template <int kElements, typename W>
__device__ Packed<W, kElements> load_past(const W* from, int past) {
  constexpr int kVector = kVectorElements<W>;
  constexpr int kVectorWords = 4;
  constexpr int kWords = kElements * sizeof(W) / 4;
  const int whole = kElements > kVector ? past / kVector * kVector : 0;  // not needed at all
  std::uint32_t words[kWords + kVectorWords];
#pragma unroll
  for (int i = 0; i < kWords + kVectorWords; i += kVectorWords) {
    const auto vector = load_vector<kVector>(from + whole, i / kVectorWords * kVector);
    for (int k = 0; k < kVectorWords; ++k) {
      words[i + k] = vector.at[k];
    }
  }
  const int past_bytes = (past - whole) * static_cast<int>(sizeof(W));
  move_down<kVectorWords / 2>(words, past_bytes / 4);
  Packed<W, kElements> packed;
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    packed.at[i] = words[i];
    if constexpr (sizeof(W) == 2) {
      const std::uint64_t two_words = std::uint64_t{words[i + 1]} << 32 | words[i];
      packed.at[i] = static_cast<std::uint32_t>(two_words >> (past_bytes & 2) * 8);
    }
  }
  return packed;
}

/// The same number. But nvcc does not know any more that all lanes have it: [3].
__device__ inline int of_lane(int number) {
#if defined(__CUDA_ARCH__)
  asm("" : "+r"(number));
#endif
  return number;
}

/// What a thread has of a row.
struct Share {
  int first_col;  ///< of its first vector, counted from the row's first whole one
  int left;       ///< vectors of the row from that one on
  int head;       ///< elements before the row's first whole vector
  bool has_edge;

  /// Whether the thread's vector i is there.
  __device__ bool has(int i) const { return i * kWarpSize < left; }
};

/// Loads a thread's vectors of a row.
template <typename T, int kElements, int kVectors>
__device__ void load_row(Packed<T, kElements> (&x)[kVectors], const T* row, const Share& own,
                         bool whole) {
  constexpr int kStep = kWarpSize * kElements;  // columns from one vector of a lane to the next
  const T* const first = row + own.head + own.first_col;
  if (whole) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      x[i] = load_if<kElements>(own.has(i), first, i * kStep);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      x[i] = load_singly<kElements>(own.has(i), first, i * kStep);
    }
  }
}

/// Weight or bias of a vector that starts in the column `past` + `col`, where `col` is a multiple
/// of kElements. kWhole: the tensor is given, and starts at a boundary.
template <bool kWhole, int kElements, typename W>
__device__ Packed<W, kElements> load_parameter(const W* tensor, int col, int past,
                                               float otherwise) {
  if constexpr (kWhole) {
    return load_past<kElements>(tensor + col, past);
  } else {
    return load_singly<kElements>(true, tensor, past + col, otherwise);
  }
}

/// The sum of a thread's elements: those that are not there are 0.
template <typename T, int kElements, int kVectors>
__device__ float sum_of(const Packed<T, kElements> (&x)[kVectors], const Packed<T, 1>& edge) {
  float of_edge[1];
  to_floats(edge, of_edge);
  float sum = of_edge[0];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    float values[kElements];
    to_floats(x[i], values);
    for (int k = 0; k < kElements; ++k) {
      sum += values[k];
    }
  }
  return sum;
}

/// The sums of a thread's deviations from `near`, a float near the mean.
template <Kind kKind, typename T, int kElements, int kVectors>
__device__ Deviations<kKind> deviations_from(float near, const Packed<T, kElements> (&x)[kVectors],
                                             const Packed<T, 1>& edge, const Share& own) {
  Deviations<kKind> sums{};
  float of_edge[1];
  to_floats(edge, of_edge);
  if (own.has_edge) add_deviation(sums, of_edge[0] - near);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (!own.has(i)) continue;
    float values[kElements];
    to_floats(x[i], values);
    for (int k = 0; k < kElements; ++k) {
      add_deviation(sums, values[k] - near);
    }
  }
  return sums;
}

/// The sum over the threads of a row. `place` is 0 and 1 in turns.
template <typename Fit, typename Value>
__device__ Value row_sum(Value value, int place) {
  if constexpr (Fit::kOneWarp) {
    return warp_sum(value);
  } else {
    const int first_warp = 0;
    const int row_warps = blockDim.x / kWarpSize;
    return team_sums<Fit::kThreads, 2>(value, place, first_warp, row_warps);
  }
}

/// Makes y of a thread's vectors, and stores it. `bias` is null in RMS norm.
template <bool kWhole, Kind kKind, typename T, typename W, int kElements, int kVectors>
__device__ void store_row(T* y_row, const Packed<T, kElements> (&x)[kVectors],
                          const Normaliser& of_row, const W* weight, const W* bias,
                          const Share& own) {
  T* const first = y_row + own.head + own.first_col;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (!own.has(i)) break;
    constexpr bool kWholeBias = kWhole && kKind == Kind::Layer;
    const int step = i * kWarpSize * kElements;
    const int col = own.first_col + step;
    const auto of_weight = load_parameter<kWhole, kElements>(weight, col, own.head, 1.0f);
    const auto of_bias = load_parameter<kWholeBias, kElements>(bias, col, own.head, 0.0f);
    float values[kElements];
    normalise(x[i], of_row, of_weight, of_bias, values);
    store_vector(first + step, values);
  }
}

/// A row in registers. It has `vectors` whole vectors; the other columns are edges.
template <typename T, typename W, Kind kKind, typename Fit>
__global__ void __launch_bounds__(Fit::kThreads, Fit::kMinBlocks)
    layer_norm_forward(ForwardArgs<T, W> a, int vectors, float inverse_cols) {
  constexpr int kElements = kVectorElements<T>;
  constexpr int kVectors = Fit::kVectors;
  constexpr bool kLayer = kKind == Kind::Layer;
  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  const int64_t row = int64_t{blockIdx.x} * Fit::kBlockRows + (Fit::kOneWarp ? warp : 0);
  if (row >= a.rows) return;
  const T* const x_row = a.x + row * a.cols;
  T* const y_row = a.y + row * a.cols;

  const int row_warp = Fit::kOneWarp ? 0 : warp;
  const int row_thread = row_warp * kWarpSize + lane;
  const int first_vector = row_warp * kVectors * kWarpSize + lane;
  const auto cols = static_cast<int>(a.cols);
  const int edges = cols - vectors * kElements;  // [4]
  const int head = of_lane((kElements - start_in_vector(y_row)) % kElements);
  const int edge_col = row_thread < head ? row_thread : cols - edges + row_thread;
  const Share own{first_vector * kElements, vectors - first_vector, head, row_thread < edges};

  Packed<T, kElements> x[kVectors];
  const bool alike = start_in_vector(x_row) == start_in_vector(y_row);  // [5]
  load_row(x, x_row, own, alike);
  Packed<T, 1> edge{};
  if (own.has_edge) edge = load_vector<1>(x_row, edge_col);
  const W* const bias = kLayer ? a.bias : nullptr;
  if (blockIdx.x == 0) {  // [6]
    for (int i = 0; i < kVectors; ++i) {
      if (!own.has(i)) break;
      prefetch_to_l2(a.weight, own.first_col + i * kWarpSize * kElements);
      prefetch_to_l2(bias, own.first_col + i * kWarpSize * kElements);
    }
  }

  float near = 0.0f;
  if (kLayer) near = row_sum<Fit>(sum_of(x, edge), 0) * inverse_cols;
  const auto sums = row_sum<Fit>(deviations_from<kKind>(near, x, edge, own), 1);
  const Normaliser of_row = normaliser(near, sums, inverse_cols, a.eps);
  if (row_thread == 0) {
    if (kLayer) a.mean[row] = of_row.mean;
    a.rstd[row] = of_row.rstd;
  }

  const bool given = a.weight != nullptr && (!kLayer || bias != nullptr);
  const bool whole = given && start_in_vector(a.weight) == 0 && start_in_vector(bias) == 0;
  if (whole) {
    store_row<true, kKind>(y_row, x, of_row, a.weight, bias, own);
  } else {
    store_row<false, kKind>(y_row, x, of_row, a.weight, bias, own);
  }
  if (own.has_edge) {
    float value[1];
    normalise(edge, of_row, load_singly<1>(true, a.weight, edge_col, 1.0f),
              load_singly<1>(true, bias, edge_col, 0.0f), value);
    y_row[edge_col] = from_float<T>(value[0]);
  }
}

template <Kind kKind, typename Fit, typename T, typename W>
void run_rows(const ForwardArgs<T, W>& a, int vectors) {
  const unsigned warps = std::max(blocks_for(vectors, Fit::kVectors * kWarpSize), 1u);
  const unsigned threads = warps * Fit::kBlockRows * kWarpSize;
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  launch(layer_norm_forward<T, W, kKind, Fit>,
         {blocks_for(a.rows, Fit::kBlockRows), threads, 0, a.stream}, a, vectors, inverse_cols);
}

template <Kind kKind, typename T, typename W>
void run_kind(const ForwardArgs<T, W>& a) {
  const int64_t whole = a.cols / kVectorElements<T>;
  const auto vectors = static_cast<int>(std::max<int64_t>(whole - 1, 0));  // [4]
  if (vectors <= kWarpSize) return run_rows<kKind, Variant<1, 1>>(a, vectors);
  if (vectors <= 2 * kWarpSize) return run_rows<kKind, Variant<2, 1>>(a, vectors);
  if (vectors <= 4 * kWarpSize) return run_rows<kKind, Variant<4, 1>>(a, vectors);
  run_rows<kKind, ManyWarps>(a, vectors);
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
    .id = "fwd16",
    .title = "Rows that start anywhere, their weight shifted",
    .teaches = "two whole vectors and a shift in place of eight elements",
    .source = "this repository",
    .parent = "fwd11",
    .road = Road::UnalignedRows,
    .usual_cols = 2049,
    .keeps_digits_at_large_means = true,
    .max_row_bytes = ManyWarps::kRowVectors * 16,
    .max_row_bytes_because = "the registers of a block hold a row",
    .run = ForwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>, run<__half, float>,
                            run<__nv_bfloat16, float>},
    .predicted_bytes = [](const Problem& p, const Gpu&) -> std::int64_t {
      return 2 * p.tensor_bytes() + parameter_bytes(p);
    },
}};

}  // namespace fwd16
