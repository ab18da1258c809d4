// bwd11 · 128-bit access, one read, asynchronous copies
//
// bwd09 holds the next row in registers while it works on one. They are the scarcest store of a
// multiprocessor: from 8193 columns on rows are read twice, and one row ahead is all there is. Here
// the next rows wait in shared memory. Asynchronous copies bring them past the registers, and each
// thread fetches what it will itself use: no barrier stands between a copy and its reader.
// Registers are left for dweight, dbias and the weight.
//
// It should move 3·M·N elements up to 16384 columns, at the speed of a triad.
#include "common/kernel/chapter.h"
#include "common/kernel/gradient_terms.h"
#include "common/kernel/partial_sums.h"
#include "common/kernel/reduce.h"
#include "common/kernel/vector.h"

namespace bwd11 {
using namespace lnc;

constexpr int kFewColumns = 16;  // [1] of a thread
constexpr int kManyColumns = 32;
constexpr int kMaxWarps = 16;   // of a row; a multiprocessor has 128 registers for each thread
constexpr int kBlockWarps = 8;  // [2] of a block, where a row has fewer
constexpr int kSliceWarps = 8;  // of a slice of the columns, where a row does not fit in a block
constexpr int kAhead = 4;       // [3] vectors that a thread asks for ahead of time
constexpr int kThreadBytes = 14 * 32;  // [4] of shared memory

/// How the work is cut: blocks · slices blocks, each with `rows` rows at a time and `turns` times,
/// `warps` warps a row, `columns` columns a thread, and one slice of the columns.
struct Plan {
  int columns, warps, rows, turns, blocks, slices;
  int64_t stride, step;  ///< rows of all blocks in a turn, and their elements
  float inverse_cols;    ///< of the whole row
};

/// The sums of both values over a row, in each of its threads: row_sums for rows of `row_warps`
/// warps each, side by side in a block of at most kMaxWarps. `team` is the number of this warp's
/// row in the block.
template <int kMaxWarps>
__device__ float2 team_sums(float2 values, int team, int row_warps, int parity) {
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

/// `means` are each row's c1 and c2, where a block has a slice of the columns.
template <typename T, typename W, int kColumns, int kElements>
__global__ void __launch_bounds__(kMaxWarps* kWarpSize, 1)
    layer_norm_backward(BackwardArgs<T, W> a, Plan plan, PartialSums sums, const float2* means) {
  constexpr bool kFew = kColumns <= kFewColumns;
  constexpr int kVectors = kColumns / kElements;
  constexpr int kWarpColumns = kColumns * kWarpSize;
  constexpr int kNext = kWarpSize * kElements;  // from a thread's vector to its next
  constexpr int kWeightBytes = kFew ? 0 : kColumns * sizeof(W);
  constexpr int kMost = (kThreadBytes - kWeightBytes) / (2 * kElements * int{sizeof(T)});
  constexpr int kWanted = kVectors + kAhead * kVectorElements<T> / kElements;
  constexpr int kFit = kWanted < kMost ? kWanted : kMost;
  constexpr int kWholeRows = kFit / kVectors * kVectors;
  constexpr int kDepth = kWholeRows > kVectors ? kWholeRows : kFit;  // of the ring
  const int lane = threadIdx.x % kWarpSize;
  const int warp = threadIdx.x / kWarpSize;
  const int team = kFew ? warp / plan.warps : 0;
  const int width = plan.warps * kWarpColumns;
  const int block = kFew ? blockIdx.x / plan.slices : blockIdx.x;
  const int64_t slice = kFew ? int64_t{blockIdx.x % plan.slices} * width : 0;
  const auto cols = static_cast<int>(kFew ? min(a.cols - slice, int64_t{width}) : a.cols);
  const int column = (warp - team * plan.warps) * kWarpColumns + lane * kElements;  // [5] the first
  const auto there = [rest = cols - column](int i) { return i * kNext < rest; };
  const int64_t first = kFew ? int64_t{block} * plan.rows + team : block;             // row
  const int turns = plan.turns - (first + (plan.turns - 1) * plan.stride >= a.rows);  // [6]
  const bool layer = a.kind == Kind::Layer;
  const bool sliced = kFew && means != nullptr;

  auto* const shared = dynamic_shared<unsigned char>() + warp * kWarpSize * kThreadBytes;  // [7]
  W* const weights = reinterpret_cast<W*>(shared) + lane * kElements;
  T* const ring = reinterpret_cast<T*>(shared + kWarpSize * kWeightBytes) + lane * kElements;
  int64_t here = first * a.cols + slice + column;
  const auto request = [&](int turn, int i, int place) {
    const int64_t at = here + i / kVectors * plan.step + i % kVectors * kNext;
    const bool given = turn + i / kVectors < turns && there(i % kVectors);
    if (given) {
#pragma unroll 1  // unrolled, unaligned rows of more than 8192 floats spill
      for (int tensor = 0; tensor < 2; ++tensor) {
        const T* const from = (tensor == 0 ? a.x : a.dy) + at;
        T* const to = ring + (place * 2 + tensor) * kNext;
        if constexpr (kElements * sizeof(T) < 4) {  // [8]
          *to = *from;
        } else {
          __pipeline_memcpy_async(to, from, kElements * sizeof(T));
        }
      }
    }
    __pipeline_commit();
  };
#pragma unroll
  for (int i = 0; i < kDepth; ++i) {
    request(0, i, i);
  }

  Packed<W, kElements> weight[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {  // [9]
    const bool given = a.weight != nullptr && there(i);
    weight[i] = load_if<kElements>(given, a.weight, slice + column + i * kNext, 1.0f);
    if (!kFew) reinterpret_cast<Packed<W, kElements>*>(weights)[i * kWarpSize] = weight[i];
  }
  Vector<float, kElements> dweight[kVectors] = {};
  Vector<float, kElements> dbias[kVectors] = {};
  const auto statistics_of = [&](int turn) {  // mean, rstd, c1, c2
    if (turn >= turns) return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    const int64_t row = first + turn * plan.stride;
    const float2 c = sliced ? means[row] : make_float2(0.0f, 0.0f);
    const float mean = layer ? a.mean[row] : 0.0f;
    return make_float4(mean, a.rstd[row], c.x, c.y);
  };
  float4 next = statistics_of(0);
  const int steps = kFew ? plan.turns : turns;
  int place = 0;
  for (int turn = 0; turn < steps; ++turn) {
    const float4 now = next;
    const float rstd = now.y;
    const bool mine = !kFew || turn < turns;
    float2 c = make_float2(0.0f, 0.0f);
    Packed<T, kElements> x[kVectors], dy[kVectors];
    const auto place_of = [=](int i) {
      const int sum = place + i;
      return kDepth % kVectors == 0 || sum < kDepth ? sum : sum - kDepth;
    };
    const auto terms = [&](int i, bool again) {  // [10]
      const bool given = mine && there(i);
      if (!kFew) asm volatile("" ::: "memory");
      if (!kFew || !again) {
        x[i] = load_if<kElements>(given, ring, place_of(i) * 2 * kNext);
        dy[i] = load_if<kElements>(given, ring, place_of(i) * 2 * kNext + kNext);
      }
      const auto w = kFew ? weight[i] : load_if<kElements>(given, weights, i * kNext);
      return GradientTerms<kElements>(x[i], dy[i], w, now.x, rstd);
    };
    __pipeline_wait_prior(kDepth - kVectors);  // [11]
    asm volatile("" ::: "memory");
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (kFew) stay_packed(weight[i]);
      const auto t = terms(i, false);
      t.add_to(c);
      for (int k = 0; k < kElements; ++k) {
        dweight[i].at[k] += t.dy[k] * t.xhat[k];
        dbias[i].at[k] += t.dy[k];
      }
      if (kFew) request(turn, i + kDepth, place_of(i));  // [12]
    }
    if (!sliced) c = team_sums<kMaxWarps>(c, team, plan.warps, turn % 2);
    c.x *= plan.inverse_cols;
    c.y = layer ? c.y * plan.inverse_cols : 0.0f;
    const float c1 = sliced ? now.z : c.x;
    const float c2 = sliced ? now.w : c.y;
    next = statistics_of(turn + 1);
    auto* const out = reinterpret_cast<Packed<T, kElements>*>(a.dx) + uint64_t(here) / kElements;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const auto t = terms(i, true);
      float dx[kElements];
      for (int k = 0; k < kElements; ++k) {
        dx[k] = rstd * (t.wdy[k] - c2 - t.xhat[k] * c1);
      }
      if (mine && there(i)) out[i * kWarpSize] = from_floats<T>(dx);
      if (!kFew) request(turn, i + kDepth, place_of(i));
    }
    place = place + kVectors < kDepth ? place + kVectors : place + kVectors - kDepth;
    here += plan.step;
  }
  auto* const all = dynamic_shared<float>();  // [13]
  const auto add_teams = [&](const Vector<float, kElements>(&values)[kVectors], float* to) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float* const to_row = all + team * width + column + i * kNext;
      *reinterpret_cast<Vector<float, kElements>*>(to_row) = values[i];
    }
    __syncthreads();
    for (int col = threadIdx.x; col < cols; col += blockDim.x) {
      float sum = all[col];
      for (int other = 1; other < plan.rows; ++other) {
        sum += all[other * width + col];
      }
      to[int64_t{block} * a.cols + slice + col] = sum;
    }
  };
  add_teams(dweight, sums.dweight);
  if (layer) add_teams(dbias, sums.dbias);
}

Plan plan_for(int64_t rows, int64_t cols, int group) {
  const auto ceil = [](int64_t a, int64_t b) { return static_cast<int>((a + b - 1) / b); };
  const auto warps = [=](int columns) { return ceil(cols, columns * kWarpSize); };
  const int room = std::min(max_shared_bytes() / (kThreadBytes * kWarpSize), kMaxWarps);
  Plan plan;
  const bool only_many_fit = warps(kFewColumns) > room && warps(kManyColumns) <= room;
  plan.columns = only_many_fit ? kManyColumns : kFewColumns;
  const int row_warps = warps(plan.columns);
  plan.warps = row_warps <= room ? row_warps : std::min(kSliceWarps, room);
  plan.slices = ceil(row_warps, plan.warps);
  const int most_rows = std::max(std::min(kBlockWarps, room) / plan.warps, 1);
  plan.rows = std::clamp(ceil(rows, multiprocessors()), 1, most_rows);
  const int places = group > 0 ? group : room / (plan.warps * plan.rows);
  const int64_t blocks = std::max(int64_t{multiprocessors()} * places / plan.slices, int64_t{1});
  plan.turns = std::max(ceil(rows, blocks * plan.rows), 1);
  plan.blocks = ceil(rows, int64_t{plan.turns} * plan.rows);  // [14]
  plan.stride = int64_t{plan.blocks} * plan.rows;
  plan.step = plan.stride * cols;
  plan.inverse_cols = 1.0f / static_cast<float>(cols);
  return plan;
}

template <int kColumns, int kElements, typename T, typename W>
void run_plan(const BackwardArgs<T, W>& a, const Plan& plan, const PartialSums& sums) {
  const int threads = plan.rows * plan.warps * kWarpSize;
  const std::size_t shared = threads * kThreadBytes;
  float2* means = nullptr;
  if (plan.slices > 1) {  // [15]
    means = reinterpret_cast<float2*>(sums.dweight + int64_t{2} * plan.blocks * a.cols);
    launch(row_means<T, W, kElements>, {blocks_for(a.rows, 1), kMeansThreads, 0, a.stream}, a,
           means);
  }
  launch(layer_norm_backward<T, W, kColumns, kElements>,
         {blocks_for(int64_t{plan.blocks} * plan.slices, 1), threads, shared, a.stream}, a, plan,
         sums, means);
}

template <typename T, typename W>
void run(const BackwardArgs<T, W>& a) {
  const Plan plan = plan_for(a.rows, a.cols, a.group);
  const PartialSums sums = partial_sums(a, plan.blocks);
  constexpr int kElements = kVectorElements<T>;
  const bool aligned = a.cols % kElements == 0 && at_16_bytes(a.x, a.dy, a.dx, a.weight);
  const bool many = plan.columns == kManyColumns;
  if (aligned && many) {
    run_plan<kManyColumns, kElements>(a, plan, sums);
  } else if (aligned) {
    run_plan<kFewColumns, kElements>(a, plan, sums);
  } else if (many) {
    run_plan<kManyColumns, 1>(a, plan, sums);
  } else {
    run_plan<kFewColumns, 1>(a, plan, sums);
  }
  add_partial_sums(a, sums, plan.blocks);
}

const Registration registration{{
    .id = "bwd11",
    .title = "128-bit access, one read, asynchronous copies",
    .teaches = "each thread brings what it will use to shared memory, rows ahead, by cp.async",
    .source = "this repository",
    .parent = "bwd09",
    .road = Road::Main,
    .group = "blocks a multiprocessor",
    .run = BackwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>, run<__half, float>,
                             run<__nv_bfloat16, float>},
    .predicted_bytes = [](const Problem& p, const Gpu& gpu) -> std::int64_t {
      const Plan plan = plan_for(p.rows, p.cols, p.group);
      const int walks = plan.slices > 1 ? 2 : 1;
      const auto reads = 2 * device_reads(walks, 2 * p.tensor_bytes(), gpu);
      return (reads + 1) * p.tensor_bytes() + parameter_bytes(p);
    },
    .workspace_bytes = [](const Problem& p) -> std::int64_t {
      const Plan plan = plan_for(p.rows, p.cols, p.group);
      const std::int64_t means_bytes = plan.slices > 1 ? 8 * p.rows : 0;
      return partial_sums_bytes(p, plan.blocks) + means_bytes;
    },
}};

}  // namespace bwd11
