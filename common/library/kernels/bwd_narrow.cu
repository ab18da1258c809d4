// lib_bwd_narrow · Narrow rows: teams of lanes with their own sums
//
// Rows of up to 512 columns, layer and RMS norm, every type and alignment, strided x and dy, on
// every GPU. A team of lanes within a warp processes a row, so c1 and c2 need a few shuffles and no
// barrier. Blocks are persistent: each lane keeps dweight and dbias of its columns in registers
// over all rows of its team, and its own asynchronous copies bring the next rows. Unaligned rows
// move element by element through registers.
//
// Parts: cp_async.h (cp.async; bwd11), column_gradients.h (bwd01, bwd09), partial_sums.h (bwd06),
// reduce.h's warp_sum over a team (fwd02), rows.h (strides), vector.h (fwd06).
// bwd14 teaches the teams, after fwd10.
//
// Measurements behind the constants, on an H100, 128 MiB per tensor, layer norm / RMS norm:
// - Teams without idle lanes: bf16 takes 153 / 150 µs at 96 columns, against 160 / 155 with one
//   16-byte vector per lane; at 192 columns 150 / 147 against 157 / 152.
// - Lanes for a row of single elements, bf16: 1032444 × 65 takes 197 / 197 µs with 8, 240 / 227
//   with 16, 411 / 341 with 32; 528416 × 127 188 / 185 with 16, 218 / 206 with 8.
// - kBlocks: three blocks leave 80 registers per thread; nvcc uses 56 for RMS norm and up to 72 for
//   layer norm of 16-bit types.
// - The result, bf16: 150 µs at 64 columns (92 % of a triad), 148 at 128, 147 at 256. At 16384 ×
//   256 lib_bwd_ring is faster, 18.2 against 19.5, because its last sum starts early.
#include "common/kernel/chapter.h"
#include "common/kernel/column_gradients.h"
#include "common/kernel/cp_async.h"
#include "common/kernel/gradient_terms.h"
#include "common/kernel/partial_sums.h"
#include "common/kernel/reduce.h"
#include "common/kernel/rows.h"
#include "common/kernel/thread_columns.h"
#include "common/kernel/vector.h"

namespace lib_bwd_narrow {
using namespace lnc;

constexpr int kThreads = 256;           // of a block
constexpr int kMostBlocks = 3;          // of them on a multiprocessor
constexpr int kSharedBytes = 48 << 10;  // the most that static shared memory may be
constexpr int kBytesAhead = 64;         // that a lane has in flight of x, and of dy, at least
constexpr int kWarpColumns = 16;        // of a lane, where a row has a whole warp
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
  static constexpr int kColumns = kLanes * kVectors * kElements;           // of a row, at most
  static constexpr int kRowBytes = kVectors * kElements * int{sizeof(T)};  // of a lane
  static constexpr int kSumBytes = kBlockRows * kColumns * int{sizeof(float)};
  static constexpr int kRoom = (kSharedBytes - kSumBytes) / (2 * kRowBytes * kThreads);  // for rows
  static constexpr int kWanted = (kBytesAhead + kRowBytes - 1) / kRowBytes;
  static constexpr int kAhead = std::min(kWanted, kRoom);  // rows
  static constexpr int kRingBytes = 2 * kAhead * kRowBytes * kThreads;
  static_assert(kRingBytes + kSumBytes <= kSharedBytes);
};

/// The ring's places for a row: each thread has its own, for its vectors of x and of dy. Those of
/// neighbouring lanes are adjacent: no bank conflicts.
template <typename T, typename Team>
struct Stage {
  Packed<T, Team::kElements> x[Team::kVectors][kThreads];
  Packed<T, Team::kElements> dy[Team::kVectors][kThreads];
};

/// Starts the copies of a lane's columns of a row, if the row is `there`.
template <typename T, typename Team>
__device__ void begin_copies(bool there, const T* x_row, const T* dy_row, const ThreadColumns& own,
                             Stage<T, Team>& stage) {
  constexpr std::size_t kBytes = sizeof(Packed<T, Team::kElements>);
#pragma unroll
  for (int i = 0; i < Team::kVectors; ++i) {
    if (!there || !own.has(i)) continue;
    __pipeline_memcpy_async(&stage.x[i][threadIdx.x], x_row + own.of(i), kBytes);
    __pipeline_memcpy_async(&stage.dy[i][threadIdx.x], dy_row + own.of(i), kBytes);
  }
}

/// The same through registers, for elements of 2 bytes: an asynchronous copy has at least 4. All
/// loads come first, then all stores.
template <typename T, typename Team>
__device__ void copy_through_registers(bool there, const T* x_row, const T* dy_row,
                                       const ThreadColumns& own, Stage<T, Team>& stage) {
  constexpr int kElements = Team::kElements;
  Packed<T, kElements> x[Team::kVectors];
  Packed<T, kElements> dy[Team::kVectors];
#pragma unroll
  for (int i = 0; i < Team::kVectors; ++i) {
    const bool given = there && own.has(i);
    x[i] = load_if<kElements>(given, x_row, own.of(i));
    dy[i] = load_if<kElements>(given, dy_row, own.of(i));
  }
#pragma unroll
  for (int i = 0; i < Team::kVectors; ++i) {
    stage.x[i][threadIdx.x] = x[i];
    stage.dy[i][threadIdx.x] = dy[i];
  }
}

/// Requests a lane's columns of a row. No other lane reads their places, so no barrier is needed.
template <typename T, typename Team>
__device__ void request_row(bool there, const T* x_row, const T* dy_row, const ThreadColumns& own,
                            Stage<T, Team>& stage) {
  if constexpr (sizeof(T) * Team::kElements < 4) {
    copy_through_registers(there, x_row, dy_row, own, stage);
  } else {
    begin_copies(there, x_row, dy_row, own, stage);
  }
  __pipeline_commit();
}

/// The block's ring, shared by kernels that differ in the norm, the weights or the rows' starts.
template <typename T, typename Team>
__device__ auto& ring_of_block() {
  __shared__ Stage<T, Team> ring[Team::kAhead];
  return ring;
}

/// Adds up the sums of the block's teams, column by column, and stores them.
template <typename Team>
__device__ void store_sum_of_teams(const ThreadColumns& own,
                                   const Vector<float, Team::kElements> (&sums)[Team::kVectors],
                                   float* to) {
  alignas(16) __shared__ float of_team[Team::kBlockRows][Team::kColumns];
  const int team = threadIdx.x / Team::kLanes;
  store_sums(own, sums, of_team[team]);
  __syncthreads();
  for (int col = threadIdx.x; col < own.cols; col += kThreads) {
    float sum = 0.0f;
#pragma unroll 8
    for (int other = 0; other < Team::kBlockRows; ++other) {
      sum += of_team[other][col];
    }
    to[col] = sum;
  }
  __syncthreads();
}

/// `rows` says where the rows of x and dy start.
template <typename Team, bool kLayer, typename T, typename W, typename Rows>
__global__ void __launch_bounds__(kThreads, Team::kBlocks)
    layer_norm_backward(BackwardArgs<T, W> a, float inverse_cols, PartialSums sums,
                        InputRows<Rows> rows) {
  constexpr int kElements = Team::kElements;
  constexpr int kLanes = Team::kLanes;
  constexpr int kVectors = Team::kVectors;
  constexpr int kAhead = Team::kAhead;
  auto& ring = ring_of_block<T, Team>();
  const int warp = threadIdx.x / kWarpSize;
  const int team_in_warp = threadIdx.x % kWarpSize / kLanes;
  const int lane = threadIdx.x % kLanes;  // of the team
  const auto cols = static_cast<int>(a.cols);
  const ThreadColumns own{lane * kElements, kLanes * kElements, cols};
  const int64_t first_row = int64_t{blockIdx.x} * Team::kBlockRows + warp * Team::kWarpRows;
  const int64_t stride = int64_t{gridDim.x} * Team::kBlockRows;

  const auto request = [&](int64_t row, Stage<T, Team>& stage) {
    const T* const x_row = a.x + rows.x.start(row, cols);
    const T* const dy_row = a.dy + rows.dy.start(row, cols);
    request_row(row < a.rows, x_row, dy_row, own, stage);
  };
  for (int ahead = 0; ahead < kAhead; ++ahead) {
    request(first_row + ahead * stride + team_in_warp, ring[ahead]);
  }
  const auto statistics = [&](int64_t row) {  // mean and rstd
    const bool there = row < a.rows;
    return make_float2(kLayer && there ? a.mean[row] : 0.0f, there ? a.rstd[row] : 0.0f);
  };
  // An iteration ahead, in registers: one of all warps lasts some 3200 cycles, more than the load.
  float2 next = statistics(first_row + team_in_warp);
  Packed<W, kElements> weight[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    weight[i] = load_if<kElements>(a.weight != nullptr && own.has(i), a.weight, own.of(i), 1.0f);
  }
  ColumnGradients<kElements, kVectors, kLayer> gradients;

  int stage = 0;
  // Loops over the warp's rows: all lanes take part in the shuffles equally often.
  for (int64_t warp_row = first_row; warp_row < a.rows; warp_row += stride) {
    const int64_t row = warp_row + team_in_warp;
    const float mean = next.x;
    const float rstd = next.y;
    next = statistics(row + stride);

    wait_for_own_copies<kAhead - 1>();  // all but the youngest rows have arrived
    GradientTerms<kElements> terms[kVectors];
    float2 c = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const bool given = row < a.rows && own.has(i);  // else zeros, which change no sum
      const auto& x_place = ring[stage].x[i][threadIdx.x];
      const auto& dy_place = ring[stage].dy[i][threadIdx.x];
      const auto x = given ? x_place : Packed<T, kElements>{};
      const auto dy = given ? dy_place : Packed<T, kElements>{};
      terms[i] = GradientTerms<kElements>(x, dy, weight[i], mean, rstd);
      terms[i].add_to(c);
      gradients.add(i, terms[i]);
    }
    // x and dy are in registers, so their places are free.
    request(row + kAhead * stride, ring[stage]);
    stage = stage + 1 < kAhead ? stage + 1 : 0;

    const float c1 = warp_sum<kLanes>(c.x) * inverse_cols;
    const float c2 = kLayer ? warp_sum<kLanes>(c.y) * inverse_cols : 0.0f;
    const float2 scaled = make_float2(rstd * c1, rstd * c2);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float dx[kElements];
      dx_of(terms[i], rstd, scaled, dx);
      if (row < a.rows && own.has(i)) store(a.dx, row * cols + own.of(i), dx);
    }
  }

  if (a.dweight == nullptr) return;  // frozen parameters: no sums to store
  const int64_t part = blockIdx.x * a.cols;
  store_sum_of_teams<Team>(own, gradients.dweight, sums.dweight + part);
  if (kLayer) store_sum_of_teams<Team>(own, gradients.dbias, sums.dbias + part);
}

template <typename Team, typename T, typename W>
void launch_team(const BackwardArgs<T, W>& a) {
  const int64_t most = most_blocks(a.group, Team::kBlocks);
  const int64_t blocks = std::min<int64_t>(most, blocks_for(a.rows, Team::kBlockRows));
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  const PartialSums sums = partial_sums(a, blocks);
  with_rows(a, [&]<typename Rows>(const InputRows<Rows>& rows) {
    const auto kernel = a.kind == Kind::Layer ? layer_norm_backward<Team, true, T, W, Rows>
                                              : layer_norm_backward<Team, false, T, W, Rows>;
    launch(kernel, {static_cast<unsigned>(blocks), kThreads, 0, a.stream}, a, inverse_cols, sums,
           rows);
  });
  // Launched in the ordinary way: an early start would need Hopper.
  add_partial_sums<OrdinaryStart, kMaxCols>(a, sums, blocks);
}

/// Launches the smallest team that holds a row.
template <typename Team, typename... Wider, typename T, typename W>
void run_smallest(const BackwardArgs<T, W>& a) {
  if constexpr (sizeof...(Wider) > 0) {
    if (a.cols > Team::kColumns) return run_smallest<Wider...>(a);
  }
  launch_team<Team>(a);
}

/// Rows of whole vectors. Of each team: elements, lanes, vectors, blocks; columns up to …
template <typename T, typename W>
void run_vectors(const BackwardArgs<T, W>& a) {
  if constexpr (sizeof(T) == sizeof(float)) {
    run_smallest<Team<T, 4, 4, 1, 3>,   // 16
                 Team<T, 4, 8, 1, 3>,   // 32
                 Team<T, 4, 16, 1, 3>,  // 64
                 Team<T, 2, 8, 5, 2>,   // 80: five vectors of 8 bytes, and no lane idle
                 Team<T, 4, 8, 3, 2>,   // 96: three of 16 bytes
                 Team<T, 4, 32, 1, 3>,  // 128
                 Team<T, 4, 32, 2, 3>,  // 256
                 Team<T, 4, 32, 4, 2>   // 512
                 >(a);
  } else {
    run_smallest<Team<T, 8, 4, 1, 3>,   // 32
                 Team<T, 8, 8, 1, 3>,   // 64
                 Team<T, 4, 8, 3, 2>,   // 96: three vectors of 8 bytes, and no lane idle
                 Team<T, 8, 16, 1, 3>,  // 128
                 Team<T, 4, 16, 3, 2>,  // 192: three of 8 bytes
                 Team<T, 8, 32, 1, 3>,  // 256
                 Team<T, 8, 32, 2, 2>   // 512
                 >(a);
  }
}

/// Rows of any width and alignment, element by element.
template <typename T, typename W>
void run_elements(const BackwardArgs<T, W>& a) {
  run_smallest<Team<T, 1, 8, 4, 3>,   // 32
               Team<T, 1, 8, 9, 2>,   // 72
               Team<T, 1, 16, 8, 2>,  // 128
               Team<T, 1, 32, 8, 2>,  // 256
               Team<T, 1, 32, 16, 1>  // 512
               >(a);
}

template <typename T, typename W>
void run(const BackwardArgs<T, W>& a) {
  const bool aligned = a.cols % kVectorElements<T> == 0 && rows_of_vectors<T>(a.x_rows) &&
                       rows_of_vectors<T>(a.dy_rows) && at_16_bytes(a.x, a.dy, a.dx, a.weight);
  if (aligned) {
    run_vectors(a);
  } else {
    run_elements(a);
  }
}

const Registration registration{{
    .id = "lib_bwd_narrow",
    .title = "Narrow rows: teams of lanes with their own sums",
    .teaches = "rows of up to 256 columns at the speed of a triad",
    .source = "this repository",
    .road = Road::Library,
    .usual_cols = 128,
    .takes_strides = true,
    .takes_frozen = true,
    .group = "blocks",
    .max_cols = kMaxCols,
    .max_cols_because = "a warp keeps a row in registers, 16 columns a lane",
    .run = BackwardLaunchers::every([](const auto& args) { run(args); }),
    .predicted_bytes = least_bytes<Direction::Backward>,
    .workspace_bytes = [](const Problem& p) -> std::int64_t {
      return partial_sums_bytes(p, std::min(p.rows, most_blocks(p.group, kMostBlocks)));
    },
}};

}  // namespace lib_bwd_narrow
