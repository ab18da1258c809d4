// bwd14 · Several rows a warp, their sums in registers
//
// In bwd12 a row occupies at least 32 lanes. A row of 64 halves is eight vectors: 8 lanes have
// work, all 32 take part in the shuffles, and after every row the block meets at a barrier. Here a
// team of lanes within a warp has a row, as in fwd10, so c1 and c2 need no other warp. Blocks stay:
// a lane keeps dweight and dbias of its columns in registers over all rows of its team, and
// asynchronous copies of its own, as in bwd11, bring it the vectors of the next rows.
//
// It should run at the speed of a triad: 3·M·N elements, each moved once.
#include "common/kernel/chapter.h"
#include "common/kernel/cp_async.h"
#include "common/kernel/partial_sums.h"
#include "common/kernel/reduce.h"
#include "common/kernel/vector.h"

namespace bwd14 {
using namespace lnc;

constexpr int kThreads = 256;
constexpr int kSmBlocks = 3;  // [1] blocks of a multiprocessor, with 80 registers a thread
constexpr int kAhead = 4;     // [2] rows of a team in flight
constexpr int kMaxRowBytes = kWarpSize * 16;

// exercise
/// The teams' sums meet: adds them up column by column, and stores the block's.
template <int kLanes, int kElements>
__device__ void store_sum_of_teams(const float (&of_lane)[kElements], int64_t cols, float* to) {
  constexpr int kTeams = kThreads / kLanes;
  __shared__ float of_team[kTeams][kLanes * kElements];
  const int thread = static_cast<int>(threadIdx.x);
  for (int k = 0; k < kElements; ++k) {
    of_team[thread / kLanes][thread % kLanes * kElements + k] = of_lane[k];
  }
  __syncthreads();
  if (thread < cols) {
    float sum = 0.0f;
    for (const auto& team : of_team) sum += team[thread];
    to[thread] = sum;
  }
  __syncthreads();
}
// end of exercise

/// A row has a team of kLanes lanes, a power of two, each with one vector of it, or none beyond the
/// row. In each step a block takes kTeams neighbouring rows, one a team.
template <typename T, int kLanes>
__global__ void __launch_bounds__(kThreads, kSmBlocks)
    layer_norm_backward(BackwardArgs<T> a, PartialSums sums) {
  // exercise
  constexpr int kElements = kVectorElements<T>;
  constexpr int kTeams = kThreads / kLanes;
  using V = Packed<T, kElements>;
  __shared__ V x_ring[kAhead][kThreads];  // [3] each thread has its own slots
  __shared__ V dy_ring[kAhead][kThreads];

  const int thread = static_cast<int>(threadIdx.x);
  const int team = thread / kLanes;
  const int lane = thread % kLanes;  // of the team
  const int row_vectors = static_cast<int>(a.cols) / kElements;
  const bool in_row = lane < row_vectors;
  const V* from_x = reinterpret_cast<const V*>(a.x) + lane;  // this lane's vector of row 0
  const V* from_dy = reinterpret_cast<const V*>(a.dy) + lane;
  V* to_dx = reinterpret_cast<V*>(a.dx) + lane;

  const auto request = [&](int64_t row, int stage) {  // of this lane's vectors
    if (in_row && row < a.rows) {
      __pipeline_memcpy_async(&x_ring[stage][thread], from_x + row * row_vectors, sizeof(V));
      __pipeline_memcpy_async(&dy_ring[stage][thread], from_dy + row * row_vectors, sizeof(V));
    }
    __pipeline_commit();
  };
  const int64_t first_row = int64_t{blockIdx.x} * kTeams;  // of the block
  const int64_t stride = int64_t{gridDim.x} * kTeams;
  for (int i = 0; i < kAhead; ++i) request(first_row + team + i * stride, i);

  float weight[kElements];
  to_floats(load_if<kElements>(in_row, a.weight, lane * kElements), weight);
  float dweight[kElements] = {};  // [4] of this lane's columns, over all rows of its team
  float dbias[kElements] = {};
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);

  int stage = 0;
  for (int64_t block_row = first_row; block_row < a.rows; block_row += stride) {  // [5]
    const int64_t row = block_row + team;  // beyond the last row all lanes go on, with zeros
    const bool exists = in_row && row < a.rows;
    const float mean = exists ? a.mean[row] : 0.0f;
    const float rstd = exists ? a.rstd[row] : 0.0f;

    wait_for_own_copies<kAhead - 1>();  // [6]
    float xhat[kElements], dy[kElements], wdy[kElements], dx[kElements];
    to_floats(exists ? x_ring[stage][thread] : V{}, xhat);  // [7]
    to_floats(exists ? dy_ring[stage][thread] : V{}, dy);
    request(row + kAhead * stride, stage);  // [8]
    stage = (stage + 1) % kAhead;

    float2 c = make_float2(0.0f, 0.0f);
    for (int k = 0; k < kElements; ++k) {
      xhat[k] = (xhat[k] - mean) * rstd;
      wdy[k] = weight[k] * dy[k];
      c.x += wdy[k] * xhat[k];
      c.y += wdy[k];
      dweight[k] += dy[k] * xhat[k];
      dbias[k] += dy[k];
    }

    c = warp_sum<kLanes>(c);  // [9]
    const float c1 = c.x * inverse_cols;
    const float c2 = c.y * inverse_cols;
    for (int k = 0; k < kElements; ++k) dx[k] = rstd * (wdy[k] - c2 - xhat[k] * c1);
    if (exists) to_dx[row * row_vectors] = from_floats<T>(dx);
  }

  store_sum_of_teams<kLanes>(dweight, a.cols, sums.dweight + blockIdx.x * a.cols);  // [10]
  store_sum_of_teams<kLanes>(dbias, a.cols, sums.dbias + blockIdx.x * a.cols);
}

template <typename T, int kLanes>
void run_with(const BackwardArgs<T>& a) {
  const unsigned most = multiprocessors() * kSmBlocks;
  const unsigned blocks = std::min(most, blocks_for(a.rows, kThreads / kLanes));
  const PartialSums sums = partial_sums(a, blocks);
  launch(layer_norm_backward<T, kLanes>, {blocks, kThreads, 0, a.stream}, a, sums);
  add_partial_sums<OrdinaryStart, kMaxRowBytes / 2>(a, sums, blocks);  // [11]
}

template <typename T>
void run(const BackwardArgs<T>& a) {
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
    .id = "bwd14",
    .title = "Several rows a warp, their sums in registers",
    .teaches = "teams of lanes with sums of their own, which meet when all rows are done",
    .source = "this repository",
    .parent = "bwd12",
    .road = Road::NarrowRows,
    .usual_cols = 128,
    .kinds = {Kind::Layer},
    .needs_affine = true,
    .needs_aligned = true,
    .max_row_bytes = kMaxRowBytes,
    .max_row_bytes_because = "a row has 32 lanes at most, a vector each",
    .run = BackwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>},
    .predicted_bytes = [](const Problem& p, const Gpu&) -> std::int64_t {
      return 3 * p.tensor_bytes() + parameter_bytes(p);
    },
    .workspace_bytes = [](const Problem& p) -> std::int64_t {
      return partial_sums_bytes(p, std::min<int64_t>(p.rows, multiprocessors() * kSmBlocks));
    },
}};

}  // namespace bwd14
