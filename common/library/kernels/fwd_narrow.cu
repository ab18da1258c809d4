// lib_fwd_narrow · Narrow rows: teams of lanes, several rows a warp
//
// Rows of up to 512 columns, layer and RMS norm, every type and alignment, strided x, on every GPU.
// A team of 4 to 32 lanes has a row, so a warp has several rows side by side, and each lane
// requests its part of several rows before it uses the first. Rows of whole vectors move 16 bytes
// at a time; other rows move element by element.
//
// Parts: own_vectors.h (fwd06), moments.h (fwd04), reduce.h's warp_sum over part of a warp (fwd02),
// rows.h (strides). fwd10 teaches the teams.
//
// Measurements behind the constants, on an H100 with a cold L2, layer norm / RMS norm:
// - Lanes for a row of single elements, bf16: 1032444 × 65 takes 144 / 123 µs with 16 lanes, 220 /
//   192 with 32, 144 / 142 with 8; 528416 × 127 takes 132 / 108 with 16, 215 / 166 with 8; 300000 ×
//   33 takes 40 with 8 and 41 with 16; 300000 × 255 takes 125 with 32 and 170 with 16. Hence 8
//   lanes up to 32 columns, 16 up to 128, then 32.
// - Registers, bf16: 56 for RMS norm and 71 for layer norm, which allow 36 and 28 warps per
//   multiprocessor.
// - Three vectors per lane for 65 to 96 columns of 16 bits, layer norm: 932067 × 72 takes 102 µs
//   with 4 lanes and 110 with 16; 838860 × 80 takes 98 and 105; at 96 columns they are equal. RMS
//   norm takes up to 6 % longer with 4. Other teams without idle lanes are within 1.6 % at 192 and
//   256 columns.
// - The result, 128 MiB of bf16: 98 / 96 µs at 64 columns, 97 / 95 at 128, 97 / 96 at 256; a copy
//   takes 94.
#include "common/kernel/chapter.h"
#include "common/kernel/kinds.h"
#include "common/kernel/moments.h"
#include "common/kernel/own_vectors.h"
#include "common/kernel/reduce.h"
#include "common/kernel/rows.h"
#include "common/kernel/shapes.h"
#include "common/kernel/vector.h"

namespace lib_fwd_narrow {
using namespace lnc;

constexpr int kThreads = 128;         // of a block
constexpr int kRegistersAhead = 16;   // of x, that a lane requests at once: four vectors
constexpr int kMostLaneColumns = 16;  // of a row, in one lane
constexpr int kMaxCols = kMostLaneColumns * kWarpSize;

/// A row has kLanes lanes, a team, and each of them kVectors vectors of kElements elements of T.
template <typename T, int kElements_, int kLanes_, int kVectors_>
struct Team {
  static constexpr int kElements = kElements_;
  static constexpr int kLanes = kLanes_;
  static constexpr int kVectors = kVectors_;
  static constexpr int kWarpTeams = kWarpSize / kLanes;
  using Loaded = Packed<T, kElements>;
  static constexpr int kRegisters = kVectors * sizeof(Loaded::at) / sizeof(typename Loaded::Word);
  static constexpr int kSteps = kRegisters < kRegistersAhead ? kRegistersAhead / kRegisters : 1;
  static constexpr int kWarpRows = kWarpTeams * kSteps;
  static constexpr bool holds(int64_t cols) { return cols <= kLanes * kVectors * kElements; }

  /// The vectors of a row that a lane has.
  struct Own {
    int in_team;  // the lane's number
    int cols;
    __device__ int of(int i) const { return (i * kLanes + in_team) * kElements; }
    __device__ bool has(int i) const { return of(i) < cols; }
  };
};

/// Like deviations_of, but tests each element: with one test a vector, nvcc generates other code.
template <Kind kKind, typename T, int kElements, int kVectors, typename Own>
__device__ Deviations<kKind> deviations_in(const Packed<T, kElements> (&x)[kVectors], float near,
                                           const Own& own) {
  Deviations<kKind> sums{};
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    float values[kElements];
    to_floats(x[i], values);
    for (int k = 0; k < kElements; ++k) {
      if (own.has(i)) add_deviation(sums, values[k] - near);
    }
  }
  return sums;
}

/// Stores a number for each of a warp's rows, from `first_row` on. numbers[step] is that of this
/// team's row in that step, the same in all its lanes. Lane l fetches the number of the warp's row
/// l and stores it, so that neighbours store side by side.
template <typename Shape>
__device__ void store_per_row(float* to, const float (&numbers)[Shape::kSteps], int64_t first_row,
                              int64_t rows) {
  static_assert(Shape::kWarpRows <= kWarpSize, "a lane stores one");
  const int lane = threadIdx.x % kWarpSize;
  const int from_lane = lane % Shape::kWarpTeams * Shape::kLanes;  // the first of row l's team
  const int from_step = lane / Shape::kWarpTeams;
  float number = 0.0f;
#pragma unroll
  for (int step = 0; step < Shape::kSteps; ++step) {
    const float of_step = __shfl_sync(kFullMask, numbers[step], from_lane);
    if (step == from_step) number = of_step;
  }
  if (lane < Shape::kWarpRows && first_row + lane < rows) to[first_row + lane] = number;
}

/// inverse_cols is 1 / cols: a warp has so few rows that a division of its own would cost time.
/// x_rows says where the rows of x start.
template <typename Shape, Kind kKind, typename T, typename W, typename Rows>
__global__ void __launch_bounds__(kThreads)
    layer_norm_forward(ForwardArgs<T, W> a, float inverse_cols, Rows x_rows) {
  constexpr int kElements = Shape::kElements;
  constexpr int kLanes = Shape::kLanes;
  constexpr int kVectors = Shape::kVectors;
  constexpr int kSteps = Shape::kSteps;
  const int lane = threadIdx.x % kWarpSize;
  const int team = lane / kLanes;  // of the warp
  const int in_team = lane % kLanes;
  const int64_t warp = int64_t{blockIdx.x} * (kThreads / kWarpSize) + threadIdx.x / kWarpSize;
  const int64_t first_row = warp * Shape::kWarpRows;
  if (first_row >= a.rows) return;
  const int cols = static_cast<int>(a.cols);
  const typename Shape::Own own{in_team, cols};
  // Neighbouring teams have neighbouring rows; steps are a warp's teams apart.
  const auto row_of = [=](int step) { return first_row + step * Shape::kWarpTeams + team; };
  // Lanes past the row's end, and rows past the last, hold zeros: every lane shuffles.
  const auto exists = [=](int step, int i) { return own.has(i) && row_of(step) < a.rows; };

  // Requested before x: placed after it, nvcc would load them only once x has arrived.
  Packed<W, kElements> weight[kVectors];
  Packed<W, kElements> bias[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const bool has_weight = a.weight != nullptr && own.has(i);
    const bool has_bias = a.bias != nullptr && own.has(i);
    weight[i] = load_if<kElements>(has_weight, a.weight, own.of(i), 1.0f);
    bias[i] = load_if<kElements>(has_bias, a.bias, own.of(i), 0.0f);
  }
  // All loads of x, packed, before the first use.
  Packed<T, kElements> x[kSteps][kVectors];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int64_t at = x_rows.start(row_of(step), cols) + own.of(i);
      x[step][i] = load_if<kElements>(exists(step, i), a.x, at);
    }
  }

  float near[kSteps] = {};
  if (kKind == Kind::Layer) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      // Independent sums: their shuffles overlap.
      near[step] = warp_sum<kLanes>(sum_of(x[step])) * inverse_cols;
    }
  }
  Normaliser of_row[kSteps];
  float mean[kSteps];
  float rstd[kSteps];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const auto sums = warp_sum<kLanes>(deviations_in<kKind>(x[step], near[step], own));
    of_row[step] = normaliser(near[step], sums, inverse_cols, a.eps);  // the sums correct `near`
    mean[step] = of_row[step].mean;
    rstd[step] = of_row[step].rstd;
  }
  if (kKind == Kind::Layer) store_per_row<Shape>(a.mean, mean, first_row, a.rows);
  store_per_row<Shape>(a.rstd, rstd, first_row, a.rows);

#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float y[kElements];
      float w[kElements];
      float b[kElements];
      to_floats(x[step][i], y);
      to_floats(weight[i], w);
      to_floats(bias[i], b);
      for (int k = 0; k < kElements; ++k) {
        const float xhat = of_row[step].xhat(y[k]);
        y[k] = kKind == Kind::Layer ? xhat * w[k] + b[k] : xhat * w[k];
      }
      if (exists(step, i)) store(a.y, row_of(step) * cols + own.of(i), y);
    }
  }
}

/// Launches the smallest of the teams that holds a row.
template <Kind kKind, typename... Teams, typename T, typename W>
void run_smallest(const ForwardArgs<T, W>& a) {
  const auto run_team = [&]<typename Shape>(Shape) {
    constexpr int kBlockRows = kThreads / kWarpSize * Shape::kWarpRows;
    const LaunchConfig config{blocks_for(a.rows, kBlockRows), kThreads, 0, a.stream};
    const float inverse_cols = 1.0f / static_cast<float>(a.cols);
    with_rows(a, [&]<typename Rows>(const Rows& x_rows) {
      launch(layer_norm_forward<Shape, kKind, T, W, Rows>, config, a, inverse_cols, x_rows);
    });
  };
  run_shapes<Teams...>(a.cols, run_team);
}

template <Kind kKind, typename T, typename W>
void run_kind(const ForwardArgs<T, W>& a) {
  constexpr int kElements = kVectorElements<T>;
  constexpr int kMostVectors = kMostLaneColumns / kElements;  // of a lane: 4 of float, else 2
  if (in_whole_vectors(a)) {
    // Up to 16 columns a lane: wider rows keep a whole warp busy. 65 to 96 columns of 16 bits are 9
    // to 12 vectors, which leave up to 7 of 16 lanes idle, but none of 4.
    constexpr bool kThree = sizeof(T) == 2 && kKind == Kind::Layer;
    using Team96 = std::conditional_t<kThree, Team<T, kElements, 4, 3>, Team<T, kElements, 16, 1>>;
    run_smallest<kKind, Team<T, kElements, 4, 1>, Team<T, kElements, 8, 1>, Team96,
                 Team<T, kElements, 16, 1>, Team<T, kElements, 32, 1>, Team<T, kElements, 32, 2>,
                 Team<T, kElements, 32, kMostVectors>>(a);
  } else {
    // Element by element: a lane's columns are a team's width apart.
    run_smallest<kKind, Team<T, 1, 8, 4>, Team<T, 1, 16, 5>, Team<T, 1, 16, 8>, Team<T, 1, 32, 8>,
                 Team<T, 1, 32, 16>>(a);
  }
}

template <typename T, typename W>
void run(const ForwardArgs<T, W>& a) {
  with_kind(a.kind, [&](auto kind) { run_kind<kind()>(a); });
}

const Registration registration{{
    .id = "lib_fwd_narrow",
    .title = "Narrow rows: teams of lanes, several rows a warp",
    .teaches = "rows of up to 512 columns at the speed of a copy",
    .source = "this repository",
    .road = Road::Library,
    .usual_cols = 128,
    .takes_strides = true,
    .keeps_digits_at_large_means = true,
    .max_cols = kMaxCols,
    .max_cols_because = "a warp keeps a row in registers, 16 columns a lane",
    .run = ForwardLaunchers::every([](const auto& args) { run(args); }),
    .predicted_bytes = least_bytes<Direction::Forward>,
}};

}  // namespace lib_fwd_narrow
