// fwd10 · Several rows a warp
//
// fwd06 gives a row one warp at least. A row of 64 halves is 128 bytes, eight vectors: 24 of the 32
// lanes have nothing to load, and a warp asks for 128 bytes, waits, and ends. Here a row has a team
// of as many lanes as it has vectors, and a warp has several teams. Each lane asks for the vectors
// of several rows before it needs the first, so that 2 KB a warp are on their way.
//
// It should run at the speed of a copy: 2·M·N elements, each moved once.
#include "common/kernel/chapter.h"
#include "common/kernel/moments.h"
#include "common/kernel/reduce.h"
#include "common/kernel/vector.h"

namespace fwd10 {
using namespace lnc;

constexpr int kThreads = 128;     // of a block
constexpr int kWordsAhead = 16;   // [1] of 4 bytes, that a lane asks for at once
constexpr int kWarpColumns = 16;  // of a lane, where a row has a whole warp
constexpr int kMaxCols = kWarpColumns * kWarpSize;

/// A row has kLanes lanes, a team, and each of them kVectors vectors of kElements elements of T.
template <typename T, int kElements_, int kLanes_, int kVectors_>
struct Team {
  static constexpr int kElements = kElements_;
  static constexpr int kLanes = kLanes_;
  static constexpr int kVectors = kVectors_;
  static constexpr int kTeams = kWarpSize / kLanes;  // of a warp
  using Loaded = Packed<T, kElements>;
  static constexpr int kWords = kVectors * sizeof(Loaded::at) / sizeof(typename Loaded::Word);
  static constexpr int kSteps = kWords < kWordsAhead ? kWordsAhead / kWords : 1;
  static constexpr int kWarpRows = kTeams * kSteps;
  static constexpr int kColumns = kLanes * kVectors * kElements;  // of a row, at most
};

/// The sum of a lane's elements of a row.
template <typename T, int kElements, int kVectors>
__device__ float sum_of(const Packed<T, kElements> (&x)[kVectors]) {
  float sum = 0.0f;
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

/// The sums of a lane's deviations from `near`, a float near the mean, in the vectors that are
/// `there(i)`.
template <Kind kKind, typename T, int kElements, int kVectors, typename There>
__device__ Deviations<kKind> deviations_of(const Packed<T, kElements> (&x)[kVectors],
                                           const There& there, float near) {
  Deviations<kKind> sums{};
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    float values[kElements];
    to_floats(x[i], values);
    for (int k = 0; k < kElements; ++k) {
      if (there(i)) add_deviation(sums, values[k] - near);
    }
  }
  return sums;
}

/// Stores a number of each of a warp's rows. `of_row` has those of this lane's team, a row a step.
template <typename Team>
__device__ void store_of_rows(float* to, const Normaliser (&of_row)[Team::kSteps],
                              float Normaliser::*number, int64_t first_row, int64_t rows) {
  static_assert(Team::kWarpRows <= kWarpSize, "a lane stores one");
  const int lane = threadIdx.x % kWarpSize;
  const int from_lane = lane % Team::kTeams * Team::kLanes;
  const int from_step = lane / Team::kTeams;
  float value = 0.0f;
#pragma unroll
  for (int step = 0; step < Team::kSteps; ++step) {
    const float of_step = __shfl_sync(kFullMask, of_row[step].*number, from_lane);
    if (step == from_step) value = of_step;
  }
  if (lane < Team::kWarpRows && first_row + lane < rows) to[first_row + lane] = value;
}

template <typename Team, Kind kKind, typename T, typename W>
__global__ void __launch_bounds__(kThreads)
    layer_norm_forward(ForwardArgs<T, W> a, float inverse_cols) {
  constexpr bool kLayer = kKind == Kind::Layer;
  constexpr int kElements = Team::kElements;
  constexpr int kLanes = Team::kLanes;
  constexpr int kVectors = Team::kVectors;
  constexpr int kSteps = Team::kSteps;
  constexpr int kWarps = kThreads / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  const int team = lane / kLanes;  // [2]
  const int in_team = lane % kLanes;
  const int64_t warp = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize;
  const int64_t first_row = warp * Team::kWarpRows;
  if (first_row >= a.rows) return;
  const int cols = static_cast<int>(a.cols);
  const auto row_of = [=](int step) { return first_row + step * Team::kTeams + team; };  // [3]
  const auto column = [=](int i) { return (i * kLanes + in_team) * kElements; };
  const auto there = [=](int i) { return column(i) < cols; };  // [4]

  Packed<W, kElements> weight[kVectors];  // [5]
  Packed<W, kElements> bias[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    weight[i] = load_if<kElements>(there(i) && a.weight != nullptr, a.weight, column(i), 1.0f);
    bias[i] = load_if<kElements>(there(i) && a.bias != nullptr, a.bias, column(i), 0.0f);
  }
  Packed<T, kElements> x[kSteps][kVectors];  // [6]
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const bool given = there(i) && row_of(step) < a.rows;
      x[step][i] = load_if<kElements>(given, a.x, row_of(step) * cols + column(i));
    }
  }

  float near[kSteps] = {};
  if constexpr (kLayer) {  // [7]
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      near[step] = warp_sum<kLanes>(sum_of(x[step])) * inverse_cols;  // [8]
    }
  }
  Normaliser of_row[kSteps];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const auto sums = warp_sum<kLanes>(deviations_of<kKind>(x[step], there, near[step]));
    of_row[step] = normaliser(near[step], sums, inverse_cols, a.eps);
  }
  if (kLayer) {  // [9]
    store_of_rows<Team>(a.mean, of_row, &Normaliser::mean, first_row, a.rows);
  }
  store_of_rows<Team>(a.rstd, of_row, &Normaliser::rstd, first_row, a.rows);

#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float y[kElements], w[kElements], b[kElements];
      to_floats(x[step][i], y);
      to_floats(weight[i], w);
      to_floats(bias[i], b);
      for (int k = 0; k < kElements; ++k) {
        const float xhat = of_row[step].xhat(y[k]);
        y[k] = kLayer ? xhat * w[k] + b[k] : xhat * w[k];
      }
      const bool given = there(i) && row_of(step) < a.rows;
      if (given) store(a.y, row_of(step) * cols + column(i), y);
    }
  }
}

template <typename Team, typename T, typename W>
void launch_team(const ForwardArgs<T, W>& a) {
  constexpr int kBlockRows = kThreads / kWarpSize * Team::kWarpRows;
  const auto kernel = a.kind == Kind::Layer ? layer_norm_forward<Team, Kind::Layer, T, W>
                                            : layer_norm_forward<Team, Kind::Rms, T, W>;
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  launch(kernel, {blocks_for(a.rows, kBlockRows), kThreads, 0, a.stream}, a, inverse_cols);
}

/// Launches the first team that holds a row.
template <typename Team, typename... Wider, typename T, typename W>
void run_smallest(const ForwardArgs<T, W>& a) {
  if constexpr (sizeof...(Wider) > 0) {
    if (a.cols > Team::kColumns) return run_smallest<Wider...>(a);
  }
  launch_team<Team>(a);
}

/// Rows of whole vectors.
template <typename T, typename W>
void run_vectors(const ForwardArgs<T, W>& a) {  // [10]
  constexpr int kElements = kVectorElements<T>;
  constexpr int kWidest = kWarpColumns / kElements;
  if constexpr (kWidest == 2) {
    run_smallest<Team<T, kElements, 4, 1>, Team<T, kElements, 8, 1>, Team<T, kElements, 16, 1>,
                 Team<T, kElements, 32, 1>, Team<T, kElements, 32, 2>>(a);
  } else {
    run_smallest<Team<T, kElements, 4, 1>, Team<T, kElements, 8, 1>, Team<T, kElements, 16, 1>,
                 Team<T, kElements, 32, 1>, Team<T, kElements, 32, 2>, Team<T, kElements, 32, 4>>(
        a);
  }
}

/// Rows of any width, anywhere, element by element.
template <typename T, typename W>
void run_elements(const ForwardArgs<T, W>& a) {  // [11]
  run_smallest<Team<T, 1, 8, 4>, Team<T, 1, 32, 4>, Team<T, 1, 32, 8>, Team<T, 1, 32, 16>>(a);
}

template <typename T, typename W>
void run(const ForwardArgs<T, W>& a) {
  if (a.cols % kVectorElements<T> == 0 && at_16_bytes(a.x, a.y, a.weight, a.bias)) {
    run_vectors(a);
  } else {
    run_elements(a);
  }
}

const Registration registration{{
    .id = "fwd10",
    .title = "Several rows a warp",
    .teaches = "a team of lanes for a narrow row; several rows of each team on their way",
    .source = "this repository",
    .parent = "fwd06",
    .road = Road::NarrowRows,
    .usual_cols = 128,
    .keeps_digits_at_large_means = true,
    .max_cols = kMaxCols,
    .max_cols_because = "a warp keeps a row in registers, 16 columns a lane",
    .run = ForwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>, run<__half, float>,
                            run<__nv_bfloat16, float>},
    .predicted_bytes = [](const Problem& p, const Gpu&) -> std::int64_t {
      return 2 * p.tensor_bytes() + parameter_bytes(p);
    },
}};

}  // namespace fwd10
