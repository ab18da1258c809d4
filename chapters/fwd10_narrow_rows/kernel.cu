// fwd10 · Several rows a warp
//
// fwd06 assigns at least one warp to a row. A row of 64 halves is 128 bytes, eight vectors: 24 of
// the 32 lanes have nothing to load, and the warp requests 128 bytes, waits for them, and ends.
// Here a team of lanes has a row: as many lanes as the row has vectors, rounded up to a power of
// two. A warp holds several teams. Each lane requests the vectors of four rows before it uses the
// first, so that a warp has up to 2 KB in flight.
//
// It should cost what a copy costs: 2·M·N elements, each moved once, and 8 bytes of statistics per
// row, which matter when rows are this short.
#include "common/kernel/chapter.h"
#include "common/kernel/reduce.h"
#include "common/kernel/vector.h"

namespace fwd10 {
using namespace lnc;

constexpr int kThreads = 128;
constexpr int kRows = 4;  // [1] of a team, all loaded before the first is used

/// A row has a team of kLanes lanes, a power of two from 4 to 32, and each lane one vector of it;
/// lanes beyond the row have none.
template <typename T, int kLanes>
__global__ void __launch_bounds__(kThreads) layer_norm_forward(ForwardArgs<T> a) {
  // exercise
  constexpr int kElements = kVectorElements<T>;
  using V = Packed<T, kElements>;             // [2]
  constexpr int kTeams = kWarpSize / kLanes;  // of a warp
  const int team = threadIdx.x % kWarpSize / kLanes;
  const int lane = threadIdx.x % kLanes;  // of the team
  const int row_vectors = static_cast<int>(a.cols) / kElements;
  const bool in_row = lane < row_vectors;

  const int64_t warp = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarpSize;
  const int64_t first_row = warp * (kTeams * kRows) + team;  // [3] then every kTeams-th
  const int step = kTeams * row_vectors;                     // in vectors, to the team's next row
  const V* x = reinterpret_cast<const V*>(a.x) + first_row * row_vectors + lane;
  V* y = reinterpret_cast<V*>(a.y) + first_row * row_vectors + lane;

  V mine[kRows];  // [4]
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const bool exists = in_row && first_row + i * kTeams < a.rows;
    mine[i] = exists ? x[i * step] : V{};
  }

  const V weight = in_row ? reinterpret_cast<const V*>(a.weight)[lane] : V{};  // [5]
  const V bias = in_row ? reinterpret_cast<const V*>(a.bias)[lane] : V{};

  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  float values[kElements];
  float mean[kRows];
  float rstd[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    to_floats(mine[i], values);
    float sum = 0.0f;
    for (const float value : values) sum += value;
    mean[i] = warp_sum<kLanes>(sum) * inverse_cols;  // [6]
  }

#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    to_floats(mine[i], values);
    float squares = 0.0f;
    for (const float value : values) {
      const float centred = value - mean[i];
      squares += in_row ? centred * centred : 0.0f;  // [7] else mean² is added
    }
    rstd[i] = rsqrtf(warp_sum<kLanes>(squares) * inverse_cols + a.eps);
  }

  float of_weight[kElements];
  float of_bias[kElements];
  to_floats(weight, of_weight);
  to_floats(bias, of_bias);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    to_floats(mine[i], values);
    for (int k = 0; k < kElements; ++k) {
      const float xhat = (values[k] - mean[i]) * rstd[i];
      values[k] = xhat * of_weight[k] + of_bias[k];
    }
    const bool exists = in_row && first_row + i * kTeams < a.rows;
    if (exists) y[i * step] = from_floats<T>(values);
  }

  float own_mean = mean[0];  // [8] lane i stores what the team's row i was normalised by
  float own_rstd = rstd[0];
#pragma unroll
  for (int i = 1; i < kRows; ++i) {
    own_mean = lane == i ? mean[i] : own_mean;
    own_rstd = lane == i ? rstd[i] : own_rstd;
  }
  const int64_t own_row = first_row + lane * kTeams;
  if (lane < kRows && own_row < a.rows) {
    a.mean[own_row] = own_mean;
    a.rstd[own_row] = own_rstd;
  }
}

template <typename T, int kLanes>
void run_with(const ForwardArgs<T>& a) {
  constexpr int kBlockRows = kThreads / kLanes * kRows;
  launch(layer_norm_forward<T, kLanes>, {blocks_for(a.rows, kBlockRows), kThreads, 0, a.stream}, a);
}

template <typename T>
void run(const ForwardArgs<T>& a) {
  const int64_t row_vectors = a.cols / kVectorElements<T>;
  if (row_vectors <= 4) {
    run_with<T, 4>(a);
  } else if (row_vectors <= 8) {
    run_with<T, 8>(a);
  } else if (row_vectors <= 16) {
    run_with<T, 16>(a);
  } else {
    run_with<T, 32>(a);
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
    .kinds = {Kind::Layer},
    .needs_affine = true,
    .needs_aligned = true,
    .max_row_bytes = kWarpSize * 16,
    .max_row_bytes_because = "a row has 32 lanes at most, a vector each",
    .run = ForwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>},
    .predicted_bytes = [](const Problem& p, const Gpu&) -> std::int64_t {
      return 2 * p.tensor_bytes() + parameter_bytes(p);
    },
}};

}  // namespace fwd10
