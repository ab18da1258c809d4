// bwd14 · Several rows a warp, their sums in registers
//
// bwd12 gives a row 32 threads at least. Of a row of 64 halves, eight vectors, eight of these lanes
// have work, and all rows of a block share a barrier. Here a row has a team of as many lanes as it
// has vectors, as in fwd10, and needs nobody else: c1 and c2 are sums within a warp. Blocks stay; a
// lane keeps dweight and dbias of its columns in registers over all rows of its team, and
// asynchronous copies of its own, as in bwd11, bring it the vectors of the next rows.
//
// It should run at the speed of a triad: 3·M·N elements, each moved once.
#include "common/kernel/chapter.h"
#include "common/kernel/gradient_terms.h"
#include "common/kernel/partial_sums.h"
#include "common/kernel/reduce.h"
#include "common/kernel/vector.h"

namespace bwd14 {
using namespace lnc;

constexpr int kThreads = 256;     // [1] of a block
constexpr int kMostBlocks = 3;    // of them on a multiprocessor
constexpr int kBytesAhead = 64;   // [2] that a lane has on their way of x, and of dy
constexpr int kWarpColumns = 16;  // of a lane, where a row has a whole warp
constexpr int kMaxCols = kWarpColumns * kWarpSize;

/// A row has kLanes lanes, a team, and each of them kVectors vectors of kElements elements of T. A
/// multiprocessor has registers for kBlocks blocks of such teams.
template <typename T, int kElements_, int kLanes_, int kVectors_, int kBlocks_>
struct Team {
  static constexpr int kElements = kElements_;
  static constexpr int kLanes = kLanes_;
  static constexpr int kVectors = kVectors_;
  static constexpr int kBlocks = kBlocks_;
  static_assert(kBlocks <= kMostBlocks);
  static constexpr int kWarpRows = kWarpSize / kLanes;
  static constexpr int kBlockRows = kThreads / kLanes;
  static constexpr int kColumns = kLanes * kVectors * kElements;            // of a row, at most
  static constexpr int kRowBytes = kVectors * kElements * int{sizeof(T)};   // of a lane
  static constexpr int kAhead = (kBytesAhead + kRowBytes - 1) / kRowBytes;  // rows
};

/// Sums over rows, of the columns that a lane has.
template <typename Team>
using Sums = Vector<float, Team::kElements>[Team::kVectors];

/// The columns of a team's lane: the first of its vector i.
template <typename Team>
__device__ int column(int i) {
  const int in_team = threadIdx.x % Team::kLanes;
  return (i * Team::kLanes + in_team) * Team::kElements;
}

/// Adds up the sums of the block's teams, and stores those of `cols` columns.
template <typename Team>
__device__ void add_teams(const Sums<Team>& sums, float* to, int cols) {
  __shared__ Vector<float, Team::kElements> of_team[Team::kBlockRows]
                                                   [Team::kColumns / Team::kElements];
  const int team = threadIdx.x / Team::kLanes;
#pragma unroll
  for (int i = 0; i < Team::kVectors; ++i) {
    of_team[team][column<Team>(i) / Team::kElements] = sums[i];
  }
  __syncthreads();
  for (int col = threadIdx.x; col < cols; col += kThreads) {
    float sum = 0.0f;
#pragma unroll 8
    for (int other = 0; other < Team::kBlockRows; ++other) {
      sum += of_team[other][col / Team::kElements].at[col % Team::kElements];
    }
    to[col] = sum;
  }
  __syncthreads();
}

template <typename Team, bool kLayer, typename T, typename W>
__global__ void __launch_bounds__(kThreads, Team::kBlocks)
    layer_norm_backward(BackwardArgs<T, W> a, float inverse_cols, PartialSums partial) {
  constexpr int kElements = Team::kElements;
  constexpr int kLanes = Team::kLanes;
  constexpr int kVectors = Team::kVectors;
  constexpr int kAhead = Team::kAhead;
  __shared__ Packed<T, kElements> ring[kAhead][2][kVectors][kThreads];  // [3] of x, of dy
  const int team = threadIdx.x % kWarpSize / kLanes;
  const int warp = threadIdx.x / kWarpSize;
  const int cols = static_cast<int>(a.cols);
  const int64_t first_row = int64_t{blockIdx.x} * Team::kBlockRows + warp * Team::kWarpRows;
  const int64_t stride = int64_t{gridDim.x} * Team::kBlockRows;
  const auto given = [=](int64_t row, int i) {  // [4]
    return row < a.rows && column<Team>(i) < cols;
  };
  const auto index = [=](int64_t row, int i) { return row * cols + column<Team>(i); };

  const auto begin_copies = [&](int64_t row, int stage) {  // [5]
    constexpr std::size_t kBytes = sizeof(ring[0][0][0][0]);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (!given(row, i)) continue;
      __pipeline_memcpy_async(&ring[stage][0][i][threadIdx.x], a.x + index(row, i), kBytes);
      __pipeline_memcpy_async(&ring[stage][1][i][threadIdx.x], a.dy + index(row, i), kBytes);
    }
  };
  const auto copy = [&](int64_t row, int stage) {  // [6]
    Packed<T, kElements> x[kVectors];
    Packed<T, kElements> dy[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      x[i] = load_if<kElements>(given(row, i), a.x, index(row, i));
      dy[i] = load_if<kElements>(given(row, i), a.dy, index(row, i));
    }
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      ring[stage][0][i][threadIdx.x] = x[i];
      ring[stage][1][i][threadIdx.x] = dy[i];
    }
  };
  const auto request = [&](int64_t row, int stage) {
    if constexpr (sizeof(T) * kElements >= 4) {
      begin_copies(row, stage);
    } else {
      copy(row, stage);
    }
    __pipeline_commit();
  };
  for (int stage = 0; stage < kAhead; ++stage) {
    request(first_row + stage * stride + team, stage);
  }
  const auto mean_of = [=](int64_t row) { return kLayer && row < a.rows ? a.mean[row] : 0.0f; };
  const auto rstd_of = [=](int64_t row) { return row < a.rows ? a.rstd[row] : 0.0f; };
  float next_mean = mean_of(first_row + team);  // [7]
  float next_rstd = rstd_of(first_row + team);
  Packed<W, kElements> weight[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const bool there = column<Team>(i) < cols && a.weight != nullptr;
    weight[i] = load_if<kElements>(there, a.weight, column<Team>(i), 1.0f);
  }
  Sums<Team> dweight = {};  // [8]
  Sums<Team> dbias = {};

  int stage = 0;
  for (int64_t warp_row = first_row; warp_row < a.rows; warp_row += stride) {  // [9]
    const int64_t row = warp_row + team;
    const float mean = next_mean;
    const float rstd = next_rstd;
    next_mean = mean_of(row + stride);
    next_rstd = rstd_of(row + stride);

    __pipeline_wait_prior(kAhead - 1);  // [10]
    asm volatile("" ::: "memory");
    GradientTerms<kElements> terms[kVectors];
    float2 sums = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const auto& x_slot = ring[stage][0][i][threadIdx.x];
      const auto& dy_slot = ring[stage][1][i][threadIdx.x];
      const auto x = given(row, i) ? x_slot : Packed<T, kElements>{};
      const auto dy = given(row, i) ? dy_slot : Packed<T, kElements>{};
      terms[i] = GradientTerms<kElements>(x, dy, weight[i], mean, rstd);
      terms[i].add_to(sums);
      for (int k = 0; k < kElements; ++k) {
        dweight[i].at[k] += terms[i].dy[k] * terms[i].xhat[k];
        if (kLayer) dbias[i].at[k] += terms[i].dy[k];
      }
    }
    request(row + kAhead * stride, stage);  // [11]
    stage = stage + 1 < kAhead ? stage + 1 : 0;

    const float c1 = warp_sum<kLanes>(sums.x) * inverse_cols;  // [12]
    const float c2 = kLayer ? warp_sum<kLanes>(sums.y) * inverse_cols : 0.0f;
    const float scaled_c1 = rstd * c1;
    const float scaled_c2 = kLayer ? rstd * c2 : 0.0f;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float dx[kElements];
      for (int k = 0; k < kElements; ++k) {
        dx[k] = rstd * terms[i].wdy[k] - (scaled_c1 * terms[i].xhat[k] + scaled_c2);  // [13]
      }
      if (given(row, i)) store(a.dx, index(row, i), dx);
    }
  }

  float* const of_block = partial.dweight + blockIdx.x * a.cols;
  add_teams<Team>(dweight, of_block, cols);  // [14]
  if (kLayer) add_teams<Team>(dbias, partial.dbias + blockIdx.x * a.cols, cols);
}

/// As many blocks as the GPU has places for, or as --blocks says.
int64_t most_blocks(int group, int places) {
  return group > 0 ? group : int64_t{multiprocessors()} * places;
}

template <typename Team, typename T, typename W>
void launch_team(const BackwardArgs<T, W>& a) {
  const auto kernel = a.kind == Kind::Layer ? layer_norm_backward<Team, true, T, W>
                                            : layer_norm_backward<Team, false, T, W>;
  const int64_t most = most_blocks(a.group, Team::kBlocks);
  const int64_t blocks = std::min<int64_t>(most, blocks_for(a.rows, Team::kBlockRows));
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  const PartialSums partial = partial_sums(a, blocks);
  launch(kernel, {static_cast<unsigned>(blocks), kThreads, 0, a.stream}, a, inverse_cols, partial);
  add_partial_sums<OrdinaryStart, kMaxCols>(a, partial, blocks);  // [15]
}

/// Launches the first team that holds a row.
template <typename Team, typename... Wider, typename T, typename W>
void run_smallest(const BackwardArgs<T, W>& a) {
  if constexpr (sizeof...(Wider) > 0) {
    if (a.cols > Team::kColumns) return run_smallest<Wider...>(a);
  }
  launch_team<Team>(a);
}

/// Rows of whole vectors.
template <typename T, typename W>
void run_vectors(const BackwardArgs<T, W>& a) {
  constexpr int kElements = kVectorElements<T>;
  if constexpr (sizeof(T) == sizeof(float)) {
    run_smallest<Team<T, kElements, 4, 1, 3>, Team<T, kElements, 8, 1, 3>,
                 Team<T, kElements, 16, 1, 3>, Team<T, kElements, 32, 1, 3>,
                 Team<T, kElements, 32, 2, 3>, Team<T, kElements, 32, 4, 2>>(a);
  } else {
    run_smallest<Team<T, 8, 4, 1, 3>,   // 32 columns
                 Team<T, 8, 8, 1, 3>,   // 64
                 Team<T, 4, 8, 3, 2>,   // 96: three vectors of 8 bytes, and no lane idle
                 Team<T, 8, 16, 1, 3>,  // 128
                 Team<T, 4, 16, 3, 2>,  // 192, likewise
                 Team<T, 8, 32, 1, 3>,  // 256
                 Team<T, 8, 32, 2, 2>>(a);
  }
}

/// Rows of any width, anywhere, element by element.
template <typename T, typename W>
void run_elements(const BackwardArgs<T, W>& a) {
  run_smallest<Team<T, 1, 8, 4, 3>, Team<T, 1, 32, 4, 3>, Team<T, 1, 32, 8, 2>,
               Team<T, 1, 32, 16, 1>>(a);
}

template <typename T, typename W>
void run(const BackwardArgs<T, W>& a) {
  if (a.cols % kVectorElements<T> == 0 && at_16_bytes(a.x, a.dy, a.dx, a.weight)) {
    run_vectors(a);
  } else {
    run_elements(a);
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
    .group = "blocks",
    .max_cols = kMaxCols,
    .max_cols_because = "a warp keeps a row in registers, 16 columns a lane",
    .run = BackwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>, run<__half, float>,
                             run<__nv_bfloat16, float>},
    .predicted_bytes = [](const Problem& p, const Gpu&) -> std::int64_t {
      return 3 * p.tensor_bytes() + parameter_bytes(p);
    },
    .workspace_bytes = [](const Problem& p) -> std::int64_t {
      return partial_sums_bytes(p, std::min(p.rows, most_blocks(p.group, kMostBlocks)));
    },
}};

}  // namespace bwd14
