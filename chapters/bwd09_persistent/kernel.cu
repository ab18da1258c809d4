// bwd09 · Persistent blocks
//
// A block of bwd05 takes a few rows, waits for the loads of each, and ends in atomics that all
// blocks send to the same columns. Here there are only as many blocks as the GPU runs at once. Each
// takes its share of the rows, holds weight, dweight and dbias of its columns in registers all the
// while, and writes one row of partial sums when it ends; a second kernel adds these up. While a
// block works on one row, the loads of its next are on their way.
//
// It should run at the speed of a triad where there are many rows, without locks or atomics.
#include "common/kernel/chapter.h"
#include "common/kernel/gradient_terms.h"
#include "common/kernel/partial_sums.h"
#include "common/kernel/reduce.h"
#include "common/kernel/vector.h"

namespace bwd09 {
using namespace lnc;

constexpr bool kConsecutive = true;  // [1] a block's rows: neighbours, or a grid apart
constexpr int kMinThreads = 256;     // [2] of a block
constexpr int kMaxThreads = 512;
constexpr int kMaxPerThread = 32;  // columns
template <int kRowThreads>
constexpr int kBlockThreads = kRowThreads < kMinThreads ? kMinThreads : kRowThreads;

/// The sum of a vector over the rows of a step, in the first row's threads.
template <int kTeams, int kRowThreads, int kElements>
__device__ void add_teams(Vector<float, kElements>& value, int team, int thread) {
  __shared__ Vector<float, kElements> of_team[kTeams][kRowThreads];
  __syncthreads();
  of_team[team][thread] = value;
  __syncthreads();
  if (team == 0) {
    for (int other = 1; other < kTeams; ++other) {
      for (int k = 0; k < kElements; ++k) {
        value.at[k] += of_team[other][thread].at[k];
      }
    }
  }
}

/// How the work is cut: blocks · slices blocks, each for rows_per_block rows and one slice of the
/// columns. There is more than one slice where a row does not fit in a block.
struct Plan {
  int row_threads, vectors;
  int64_t slices, rows_per_block, blocks;
};

/// kRowThreads threads a row, kTeams rows at a time. `means` are each row's c1 and c2, for slices.
template <typename T, typename W, int kRowThreads, int kVectors, int kElements, bool kSlices>
__global__ void __launch_bounds__(kBlockThreads<kRowThreads>,
                                  kMaxThreads / kBlockThreads<kRowThreads>)
    layer_norm_backward(BackwardArgs<T, W> a, Plan plan, PartialSums sums, const float2* means) {
  constexpr int kThreads = kBlockThreads<kRowThreads>;
  constexpr int kTeams = kThreads / kRowThreads;
  constexpr int kColumns = kRowThreads * kVectors * kElements;
  constexpr bool kKept = kVectors <= 2;  // [3] else x, dy and weight are read twice
  const int team = threadIdx.x / kRowThreads;
  const int thread = threadIdx.x % kRowThreads;
  const int64_t block = kSlices ? blockIdx.x / plan.slices : blockIdx.x;
  const int64_t slice = kSlices ? blockIdx.x % plan.slices * kColumns : 0;
  const auto cols = static_cast<int>(min(a.cols - slice, int64_t{kColumns}));
  const auto column = [=](int i) { return (i * kRowThreads + thread) * kElements; };
  const int64_t first = block * (kConsecutive ? plan.rows_per_block : kTeams);
  const int64_t stride = kConsecutive ? kTeams : plan.blocks * kTeams;
  const int64_t end = kConsecutive ? min(first + plan.rows_per_block, a.rows) : a.rows;
  const bool layer = a.kind == Kind::Layer;
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);

  const auto load = [=](const T* tensor, int64_t row, int i) {  // [4] 0 without such a row
    const bool there = row < end && column(i) < cols;
    return load_if<kElements>(there, tensor, row * a.cols + slice + column(i));
  };
  const auto load_parameter = [=](const W* tensor, int i, float otherwise) {
    const bool there = tensor != nullptr && column(i) < cols;
    return load_if<kElements>(there, tensor, slice + column(i), otherwise);
  };
  Packed<W, kElements> weight[kVectors];
  Vector<float, kElements> dweight[kVectors] = {};
  Vector<float, kElements> dbias[kVectors] = {};
  if constexpr (kKept) {
    for (int i = 0; i < kVectors; ++i) {
      weight[i] = load_parameter(a.weight, i, 1.0f);
    }
  }

  struct {
    Packed<T, kElements> x[kVectors], dy[kVectors];
    float mean, rstd;
  } next, now;
  const auto load_next = [&](int64_t row) {
    if constexpr (kKept) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        next.x[i] = load(a.x, row, i);
        next.dy[i] = load(a.dy, row, i);
      }
    }
    next.mean = row < end && layer ? a.mean[row] : 0.0f;
    next.rstd = row < end ? a.rstd[row] : 0.0f;
  };
  load_next(first + team);
  int64_t turn = 0;
  for (int64_t step = first; step < end; step += stride) {  // [5]
    const int64_t row = step + team;
    now = next;
    load_next(row + stride);  // [6]
    const auto terms = [&](int i) {
      if constexpr (kKept) {
        return GradientTerms<kElements>(now.x[i], now.dy[i], weight[i], now.mean, now.rstd);
      } else {
        const auto x = load(a.x, row, i);
        const auto dy = load(a.dy, row, i);
        const auto w = load_parameter(a.weight, i, 1.0f);
        return GradientTerms<kElements>(x, dy, w, now.mean, now.rstd);
      }
    };
    float2 c = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const auto t = terms(i);
      t.add_to(c);
      for (int k = 0; k < kElements; ++k) {
        dweight[i].at[k] += t.dy[k] * t.xhat[k];
        dbias[i].at[k] += t.dy[k];
      }
    }
    if constexpr (kSlices) {
      c = means[row];
    } else {
      c = row_sums<kThreads, kRowThreads>(c, turn % 2);  // [7]
      c.x *= inverse_cols;
      c.y = layer ? c.y * inverse_cols : 0.0f;
    }
    const float c1 = c.x;
    const float c2 = c.y;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (row >= end || column(i) >= cols) continue;
      const int64_t at = row * a.cols + slice + column(i);
      const auto t = terms(i);
      Vector<T, kElements> out;
      for (int k = 0; k < kElements; ++k) {
        out.at[k] = from_float<T>(now.rstd * (t.wdy[k] - c2 - t.xhat[k] * c1));
      }
      *reinterpret_cast<Vector<T, kElements>*>(a.dx + at) = out;
      if (a.y_again == nullptr) continue;  // [8]
      float w[kElements], b[kElements];
      to_floats(load_parameter(a.weight, i, 1.0f), w);
      to_floats(load_parameter(a.bias, i, 0.0f), b);
      for (int k = 0; k < kElements; ++k) {
        out.at[k] = from_float<T>(t.xhat[k] * w[k] + b[k]);
      }
      *reinterpret_cast<Vector<T, kElements>*>(a.y_again + at) = out;
    }
    ++turn;
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if constexpr (kTeams > 1) {  // [9]
      add_teams<kTeams, kRowThreads>(dweight[i], team, thread);
      add_teams<kTeams, kRowThreads>(dbias[i], team, thread);
    }
    if (team > 0 || column(i) >= cols) continue;
    const int64_t at = block * a.cols + slice + column(i);
    *reinterpret_cast<Vector<float, kElements>*>(sums.dweight + at) = dweight[i];
    if (layer) *reinterpret_cast<Vector<float, kElements>*>(sums.dbias + at) = dbias[i];
  }
}

Plan plan_for(int64_t rows, int64_t cols, int64_t element_bytes, int group) {
  const int64_t elements = 16 / element_bytes;
  Plan plan{.row_threads = kWarpSize, .vectors = 2, .slices = 1, .rows_per_block = 0, .blocks = 0};
  while (elements * plan.row_threads * plan.vectors < cols &&
         plan.vectors * elements <= kMaxPerThread) {
    if (plan.row_threads < kMaxThreads) {
      plan.row_threads *= 2;
    } else {
      plan.vectors *= 2;
    }
  }
  if (plan.vectors * elements > kMaxPerThread) {
    plan.row_threads = kMinThreads;
    plan.vectors = 2;
    plan.slices = (cols - 1) / (kMinThreads * plan.vectors * elements) + 1;
  }
  const int threads = std::max(plan.row_threads, kMinThreads);
  const int teams = threads / plan.row_threads;
  const int blocks_each = group > 0 ? group : kMaxThreads / threads;  // a multiprocessor
  const int64_t places = int64_t{multiprocessors()} * blocks_each;
  const int64_t blocks = std::max<int64_t>(places / plan.slices, 1);
  plan.rows_per_block = std::max<int64_t>(blocks_for(rows, blocks * teams), 1) * teams;
  plan.blocks = blocks_for(rows, plan.rows_per_block);
  return plan;
}

template <int kElements, int kRowThreads, int kVectors, typename T, typename W>
void launch_plan(const BackwardArgs<T, W>& a, const Plan& plan, const PartialSums& sums) {
  auto* means = reinterpret_cast<float2*>(sums.dweight + 2 * plan.blocks * a.cols);
  auto kernel = layer_norm_backward<T, W, kRowThreads, kVectors, kElements, false>;
  if (plan.slices > 1) {  // [10]
    constexpr bool kMaySlice = kRowThreads == kMinThreads;
    kernel = layer_norm_backward<T, W, kRowThreads, kVectors, kElements, kMaySlice>;
    launch(row_means<T, W, kElements>, {blocks_for(a.rows, 1), kMeansThreads, 0, a.stream}, a,
           means);
  }
  const unsigned blocks = blocks_for(plan.blocks * plan.slices, 1);
  launch(kernel, {blocks, kBlockThreads<kRowThreads>, 0, a.stream}, a, plan, sums, means);
}

/// Looks for the plan's shape, from the smallest on. kVectors are of 16 bytes: with kElements of 1
/// a thread has as many columns, in as many vectors.
template <int kElements, int kRowThreads, int kVectors, typename T, typename W>
void run_plan(const BackwardArgs<T, W>& a, const Plan& plan, const PartialSums& sums) {
  if (plan.row_threads == kRowThreads && plan.vectors == kVectors) {
    launch_plan<kElements, kRowThreads, kVectors * kVectorElements<T> / kElements>(a, plan, sums);
  } else if constexpr (kRowThreads < kMaxThreads) {
    run_plan<kElements, kRowThreads * 2, kVectors>(a, plan, sums);
  } else if constexpr (kVectors * kVectorElements<T> < kMaxPerThread) {
    run_plan<kElements, kRowThreads, kVectors * 2>(a, plan, sums);
  } else {
    throw std::logic_error("bwd09 has no kernel for " + std::to_string(plan.row_threads) +
                           " threads of " + std::to_string(plan.vectors) +
                           " vectors a row, which its plan for " + std::to_string(a.cols) +
                           " columns asks for");
  }
}

template <typename T, typename W>
void run(const BackwardArgs<T, W>& a) {
  const Plan plan = plan_for(a.rows, a.cols, sizeof(T), a.group);
  const PartialSums sums = partial_sums(a, plan.blocks);
  constexpr int kElements = kVectorElements<T>;
  if (a.cols % kElements == 0 && at_16_bytes(a.x, a.dy, a.dx, a.weight, a.bias, a.y_again)) {
    run_plan<kElements, kWarpSize, 2>(a, plan, sums);
  } else {
    run_plan<1, kWarpSize, 2>(a, plan, sums);  // [11]
  }
  add_partial_sums(a, sums, plan.blocks);
}

const Registration registration{{
    .id = "bwd09",
    .title = "Persistent blocks",
    .teaches = "as many blocks as the GPU holds; sums stay in registers from row to row",
    .source = "FlashAttention",
    .parent = "bwd05",
    .road = Road::Main,
    .recomputes_output = true,
    .group = "blocks a multiprocessor",
    .run = BackwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>, run<__half, float>,
                             run<__nv_bfloat16, float>},
    .predicted_bytes = [](const Problem& p, const Gpu& gpu) -> std::int64_t {
      const Plan plan = plan_for(p.rows, p.cols, p.element_bytes(), p.group);
      const int walks = plan.slices > 1 ? 2 : 1;
      const auto reads = 2 * device_reads(walks, 2 * p.tensor_bytes(), gpu);
      return (reads + 1 + p.recompute_output) * p.tensor_bytes() + parameter_bytes(p);
    },
    .workspace_bytes = [](const Problem& p) -> std::int64_t {
      const Plan plan = plan_for(p.rows, p.cols, p.element_bytes(), p.group);
      const std::int64_t means_bytes = plan.slices > 1 ? 8 * p.rows : 0;
      return partial_sums_bytes(p, plan.blocks) + means_bytes;
    },
}};

}  // namespace bwd09
