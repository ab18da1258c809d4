// lib_bwd_registers · A ring of asynchronous copies for each thread
//
// Aligned rows of up to 16 384 columns, layer and RMS norm, on GPUs with enough shared memory (224
// KB for the widest). Each thread copies the elements that it will use itself from device memory to
// shared memory, up to four vectors ahead of its current row and bypassing registers, and reads
// them there twice. So no barrier is needed between a copy and its reader. Registers hold dweight
// and dbias, and shared memory holds the weight.
//
// Parts: cp_async.h (cp.async; bwd11), column_gradients.h (bwd01, bwd09), partial_sums.h (bwd06),
// reduce.h (fwd02), vector.h (fwd06).
//
// Measurements behind the constants, on an H100, bf16, layer norm:
// - kBlockWarps: 65536 × 2048 takes 287 µs with two blocks of 8 warps, and 306 with one of 16, in
//   which rows wait for each other.
// - kAhead: four and eight vectors take 286.5 and 287.9 µs at 131072 × 1024, and 438 and 442 at
//   16384 × 12288.
// - The result: 546 µs at 65536 × 4096 (97 % of a triad), 574 at 16384 × 16384 (93 %). With 128
//   MiB, 150 against lib_bwd_cluster's 180 at 9216 columns and 155 against 157 at 12 288; from 12
//   289 columns on lib_bwd_cluster is faster, 150 against 160 at 16 384. On an H200 this kernel is
//   still the faster one at 16 384: 115 against 127.
#include "common/kernel/chapter.h"
#include "common/kernel/column_gradients.h"
#include "common/kernel/cp_async.h"
#include "common/kernel/gradient_terms.h"
#include "common/kernel/partial_sums.h"
#include "common/kernel/reduce.h"
#include "common/kernel/thread_columns.h"
#include "common/kernel/vector.h"

namespace lib_bwd_registers {
using namespace lnc;

constexpr int kFewColumns = 16;   // of a thread: 32 registers of sums
constexpr int kManyColumns = 32;  // 64 registers
constexpr int kMaxWarps = 16;     // of a row; a multiprocessor has 128 registers for each thread
constexpr int kMostCols = kMaxWarps * kWarpSize * kManyColumns;
constexpr int kBlockWarps = 8;  // of a block, where a row has fewer
constexpr int kAhead = 4;       // vectors of x and of dy that a thread requests ahead of its row
// A thread's share of the 224 KB of shared memory on a multiprocessor: its weights and its ring.
constexpr int kThreadBytes = (224 << 10) / (kMaxWarps * kWarpSize);

/// How the work is cut: each block takes `rows` rows at a time, `turns` times, with `warps` warps a
/// row and `columns` columns a thread.
struct Plan {
  int columns, warps, rows, turns, blocks;
  int64_t stride, step;  ///< rows of all blocks in a turn, and their elements
  float inverse_cols;

  /// A team that begins with `row` has a row in all turns, or in all but the last, in which the
  /// tensor may end between the rows of a block. A team without a row then requests and adds
  /// nothing, but takes part in the barriers.
  __device__ int turns_from(int64_t row, int64_t all_rows) const {
    const int64_t last = row + (turns - 1) * stride;
    return last < all_rows ? turns : turns - 1;
  }
};

/// The sums of both values over a row, in each of its threads. A block has several rows of
/// `row_warps` warps each; `team` is the number of this warp's row among them. The same as
/// team_sums, in a form with which nvcc spills 8 bytes less.
__device__ inline float2 sums_of_row(float2 values, int team, int row_warps, int parity) {
  values = warp_sum(values);
  if (row_warps == 1) return values;
  __shared__ float2 partial[2][kMaxWarps];
  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  if (lane == 0) partial[parity][warp] = values;
  __syncthreads();
  values = make_float2(0.0f, 0.0f);
  if (lane < row_warps) values = partial[parity][team * row_warps + lane];
  return warp_sum(values);
}

/// A thread's ring in shared memory: kDepth places, each for a vector of x and one of dy. Those of
/// a warp's lanes are adjacent, after the lanes' weights.
template <typename T, typename W, int kColumns>
struct OwnRing {
  static constexpr int kElements = kVectorElements<T>;
  static constexpr int kVectors = kColumns / kElements;
  static constexpr int kWarpElements = kWarpSize * kElements;
  static constexpr int kWeightBytes = kColumns * sizeof(W);
  static constexpr int kPlaceBytes = 2 * kElements * sizeof(T);
  static constexpr int kPlacesWithRoom = (kThreadBytes - kWeightBytes) / kPlaceBytes;
  static constexpr int kDepth = std::min(kVectors + kAhead, kPlacesWithRoom);
  static constexpr bool kRowsNeverWrap =
      kDepth % kVectors == 0;  // from the ring's end to its start
  W* weights;
  T* places;
  int first_place = 0;  ///< of the row that is worked on

  __device__ OwnRing() {
    const int lane = threadIdx.x % kWarpSize;
    const int warp = threadIdx.x / kWarpSize;
    auto* const of_warp = dynamic_shared<unsigned char>() + warp * kWarpSize * kThreadBytes;
    weights = reinterpret_cast<W*>(of_warp) + lane * kElements;
    places = reinterpret_cast<T*>(of_warp + kWarpSize * kWeightBytes) + lane * kElements;
  }
  __device__ T* x(int place) const { return places + place * 2 * kWarpElements; }
  __device__ T* dy(int place) const { return x(place) + kWarpElements; }
  /// The place of vector i of the row.
  __device__ int place(int i) const {
    const int place = first_place + i;
    return (kRowsNeverWrap || place < kDepth) ? place : place - kDepth;
  }
  __device__ void advance() {
    first_place += kVectors;
    if (first_place >= kDepth) first_place -= kDepth;
  }
  __device__ void keep_weights(const W* tensor, const ThreadColumns& own) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const bool given = tensor != nullptr && own.has(i);
      const auto weight = load_if<kElements>(given, tensor, own.of(i), 1.0f);
      *reinterpret_cast<Packed<W, kElements>*>(weights + i * kWarpElements) = weight;
    }
  }
  __device__ GradientTerms<kElements> terms(int i, bool given, float2 statistics) const {
    const auto of_x = load_if<kElements>(given, x(place(i)), 0);
    const auto of_dy = load_if<kElements>(given, dy(place(i)), 0);
    const auto weight = load_if<kElements>(given, weights, i * kWarpElements);
    return {of_x, of_dy, weight, statistics.x, statistics.y};
  }
};

template <typename T, typename W, int kColumns>
__global__ void __launch_bounds__(kMaxWarps* kWarpSize, 1)
    layer_norm_backward(BackwardArgs<T, W> a, Plan plan, PartialSums sums) {
  using Own = OwnRing<T, W, kColumns>;
  constexpr int kElements = Own::kElements;
  constexpr int kVectors = Own::kVectors;
  constexpr int kDepth = Own::kDepth;
  const int lane = threadIdx.x % kWarpSize;
  const int warp = threadIdx.x / kWarpSize;
  constexpr bool kAlone = kColumns == kManyColumns;  // a wide row has a block to itself
  const int rows = kAlone ? 1 : plan.rows;
  const int team = kAlone ? 0 : warp / plan.warps;  // which of the rows in a turn is this warp's
  const int row_warp = warp - team * plan.warps;
  const int first_column = row_warp * kWarpSize * kColumns + lane * kElements;
  const ThreadColumns own{first_column, Own::kWarpElements, static_cast<int>(a.cols)};
  const int64_t first_row = int64_t{blockIdx.x} * rows;
  int64_t row = first_row + team;
  int turns = plan.turns_from(first_row, a.rows);                       // that the block has left
  const int fewer = kAlone ? 0 : turns - plan.turns_from(row, a.rows);  // than the block: 0 or 1
  const bool layer = a.kind == Kind::Layer;

  Own ring;
  int64_t here = row * a.cols + own.first;  // the thread's element in its row
  const auto request = [&](int i, int place) {
    const int later = i / kVectors;  // turns
    const int vector = i % kVectors;
    if (turns - fewer > later && own.has(vector)) {
      const int64_t from = here + later * plan.step + vector * Own::kWarpElements;
      __pipeline_memcpy_async(ring.x(place), a.x + from, kElements * sizeof(T));
      __pipeline_memcpy_async(ring.dy(place), a.dy + from, kElements * sizeof(T));
    }
    __pipeline_commit();  // a group for each vector, even an empty one: the wait counts them
  };
#pragma unroll
  for (int i = 0; i < kDepth; ++i) request(i, i);
  ring.keep_weights(a.weight, own);  // after the first requests, whose latency a small problem pays

  ColumnGradients<kElements, kVectors> gradients;
  const auto statistics = [&](int64_t of_row, bool there) {  // mean and rstd
    if (!there) return make_float2(0.0f, 0.0f);
    const float mean = layer ? a.mean[of_row] : 0.0f;
    return make_float2(mean, a.rstd[of_row]);
  };
  float2 next = statistics(row, turns > fewer);
  for (; turns > 0; --turns) {
    const bool there = kAlone || turns > fewer;
    const float2 of_row = next;
    wait_for_own_copies<kDepth - kVectors>();  // for this row: all but the youngest groups
    float2 c = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const auto terms = ring.terms(i, there && own.has(i), of_row);
      terms.add_to(c);
      gradients.add(i, terms);
    }
    c = sums_of_row(c, team, plan.warps, turns % 2);
    const float c1 = c.x * plan.inverse_cols;
    const float c2 = layer ? c.y * plan.inverse_cols : 0.0f;
    row += plan.stride;
    next = statistics(row, turns - fewer > 1);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      forget();  // else nvcc keeps the first reading in registers
      const auto terms = ring.terms(i, there && own.has(i), of_row);
      float dx[kElements];
      for (int k = 0; k < kElements; ++k) {
        // In two multiply-adds, with c1 · rstd and c2 · rstd, 32 columns of bfloat16 with float
        // weights would spill 16 bytes instead of 8.
        dx[k] = of_row.y * (terms.wdy[k] - c2 - terms.xhat[k] * c1);
      }
      if (there && own.has(i)) store(a.dx, here + i * Own::kWarpElements, dx);
      request(i + kDepth, ring.place(i));  // this place has been read for the last time
    }
    ring.advance();
    here += plan.step;
  }

  if (a.dweight == nullptr) return;  // frozen parameters: no sums to store
  // The block's rows add up their sums in the rings' memory. A row that has a block to itself does
  // so too: storing its sums directly made nvcc spill 8 bytes in the loop.
  __syncthreads();
  gradients.store_of_teams(own, team, rows, sums, blockIdx.x * a.cols, layer);
}

Plan plan_for(int64_t rows, int64_t cols, int group) {
  const int room = std::min(max_shared_bytes() / (kThreadBytes * kWarpSize), kMaxWarps);
  Plan plan;
  const auto warps_with = [&](int columns) {
    return static_cast<int>(blocks_for(cols, columns * kWarpSize));
  };
  plan.columns = warps_with(kFewColumns) <= room ? kFewColumns : kManyColumns;
  plan.warps = warps_with(plan.columns);
  if (plan.warps > room) {
    throw std::runtime_error(
        "lib_bwd_registers: the shared memory of this GPU has no room for rows of " +
        std::to_string(cols) + " columns");
  }
  const int most_rows = std::max(std::min(kBlockWarps, room) / plan.warps, 1);
  const auto rows_each = static_cast<int>(blocks_for(rows, multiprocessors()));
  plan.rows = std::clamp(rows_each, 1, most_rows);
  const int blocks_each = group > 0 ? group : room / (plan.warps * plan.rows);
  const int64_t places = int64_t{multiprocessors()} * blocks_each;
  plan.turns = std::max(static_cast<int>(blocks_for(rows, places * plan.rows)), 1);
  // No more blocks than these turns need.
  plan.blocks = static_cast<int>(blocks_for(rows, int64_t{plan.turns} * plan.rows));
  plan.stride = int64_t{plan.blocks} * plan.rows;
  plan.step = plan.stride * cols;
  plan.inverse_cols = 1.0f / static_cast<float>(cols);
  return plan;
}

template <int kColumns, typename T, typename W>
void launch_plan(const BackwardArgs<T, W>& a, const Plan& plan) {
  const auto blocks = static_cast<unsigned>(plan.blocks);
  const auto threads = static_cast<unsigned>(plan.rows * plan.warps * kWarpSize);
  const std::size_t shared_bytes = std::size_t{threads} * kThreadBytes;
  const PartialSums sums = partial_sums(a, plan.blocks);
  launch(layer_norm_backward<T, W, kColumns>, {blocks, threads, shared_bytes, a.stream}, a, plan,
         sums);
  add_partial_sums<OrdinaryStart, kMostCols>(a, sums, plan.blocks);
}

template <typename T, typename W>
void run(const BackwardArgs<T, W>& a) {
  const Plan plan = plan_for(a.rows, a.cols, a.group);
  if (plan.columns == kFewColumns) {
    launch_plan<kFewColumns>(a, plan);
  } else {
    launch_plan<kManyColumns>(a, plan);
  }
}

const Registration registration{{
    .id = "lib_bwd_registers",
    .title = "A ring of asynchronous copies for each thread",
    .teaches = "rows of 8193 to 16 384 columns read once, in one block",
    .source = "this repository",
    .road = Road::Library,
    .needs_aligned = true,
    .takes_frozen = true,
    .group = "blocks a multiprocessor",
    .max_cols = kMostCols,
    .max_cols_because = "a block holds a whole row",
    .run = BackwardLaunchers::every([](const auto& args) { run(args); }),
    .predicted_bytes = least_bytes<Direction::Backward>,
    .workspace_bytes = [](const Problem& p) -> std::int64_t {
      const Plan plan = plan_for(p.rows, p.cols, p.group);
      return partial_sums_bytes(p, plan.blocks);
    },
}};

}  // namespace lib_bwd_registers
