// lib_bwd_cluster · Wide rows over a cluster
//
// Aligned rows of up to 262 144 columns, layer and RMS norm, on Hopper. A persistent cluster of 2
// to 16 blocks walks over rows, a slice of the columns in each block: a ring of bulk copies for x
// and dy, the weight in shared memory, dweight and dbias in registers. The blocks exchange a row's
// two sums through distributed shared memory while they add up the next row. (Where one row only
// fits, float past 185 088 columns, dx follows its own sums.)
//
// Parts: cluster_sums.h (the exchange; bwd13), ring.h (fwd08, bwd12), gradient_terms.h (bwd01),
// partial_sums.h (bwd06, early start bwd12), thread_columns.h, reduce.h, vector.h (fwd06).
//
// Measurements behind the constants, on an H100, layer norm:
// - kSliceBytes: slices of 16 to 18 KB are fastest at every width. bf16 2048 × 32768 takes 154 µs
//   in four of 16 KB, 159 in three of 21, 164 in two of 32; 1024 × 65536 152 in eight of 16, 237 in
//   twelve of 11. On an H200 32 KB would be better: 455 against 488 at 4096 × 65536.
// - Lane 0 alone loads mean and rstd: 146 µs against 154 in RMS norm of f32 2048 × 16384, where
//   nvcc put the common value in a uniform register and waited for it.
// - The result: 540 µs at bf16 16384 × 16384 (98.5 % of a triad), 544 at 4096 × 65536 (98 %), 585
//   at 1024 × 262144 (91 %). Up to 8192 columns lib_bwd_ring is ahead.
#include "common/kernel/chapter.h"
#include "common/kernel/cluster_sums.h"
#include "common/kernel/gradient_terms.h"
#include "common/kernel/partial_sums.h"
#include "common/kernel/reduce.h"
#include "common/kernel/ring.h"
#include "common/kernel/thread_columns.h"
#include "common/kernel/vector.h"

namespace lib_bwd_cluster {
using namespace lnc;

constexpr int kMaxStages = 4;          // rows of a slice in shared memory
constexpr int kLeastStages = 3;        // with fewer nothing is in flight
constexpr int kSliceBytes = 18 << 10;  // of x, at most, where a cluster may have more blocks
constexpr int kLeastCluster = 2;       // blocks
constexpr int kPortable = 8;           // that every Hopper has room for
constexpr int kMaxCluster = 16;
constexpr int kMaxThreads = 512;
constexpr int kMaxWarps = kMaxThreads / kWarpSize;
static_assert(kMaxWarps <= kExchangeWarps && kMaxCluster <= kExchangeBlocks);
constexpr int kColumns = 32;  // of a thread: dweight and dbias take 64 of its 128 registers

/// How a row is cut: `cluster_blocks` blocks of `slice` columns.
struct Plan {
  int64_t slice;
  int cluster_blocks, threads, stages;
};

template <typename T, typename W, Kind kKind>
__global__ void __launch_bounds__(kMaxThreads)
    layer_norm_backward(BackwardArgs<T, W> a, Plan plan, PartialSums sums) {
  constexpr int kElements = kVectorElements<T>;
  constexpr int kVectors = kColumns / kElements;
  constexpr bool kLayer = kKind == Kind::Layer;
  __shared__ Barrier full[kMaxStages];
  __shared__ Exchange exchange;
  const int blocks = cluster_size();
  const int threads = blockDim.x;
  const int64_t cluster = blockIdx.x / blocks;  // the blocks of a cluster are neighbours
  const int64_t clusters = gridDim.x / blocks;
  const int64_t rows = (a.rows - cluster + clusters - 1) / clusters;  // of this cluster
  const int64_t start = cluster_rank() * plan.slice;
  const auto cols = static_cast<int>(max(min(a.cols - start, plan.slice), int64_t{0}));
  const ThreadColumns own{static_cast<int>(threadIdx.x) * kElements, threads * kElements, cols};
  const auto row_of = [=](int64_t nth) { return cluster + nth * clusters; };  // its nth row
  const auto element = [=](int64_t nth) { return row_of(nth) * a.cols + start; };

  const int stages = plan.stages;
  const auto slice_vectors = static_cast<int>(plan.slice) / kElements;
  Ring<T> ring{dynamic_shared<Packed<T, kElements>>(), 2 * slice_vectors, stages, full};
  const auto request = [&](int64_t nth, int stage) {
    if (nth >= rows) return;
    const auto bytes = static_cast<unsigned>(cols * sizeof(T));
    full[stage].arrive_and_expect(2 * bytes);
    if (bytes == 0) return;
    auto* const x_slice = ring.slot(stage);
    auto* const dy_slice = x_slice + slice_vectors;
    bulk_load(x_slice, a.x + element(nth), bytes, full[stage]);
    bulk_load(dy_slice, a.dy + element(nth), bytes, full[stage]);
  };
  if (threadIdx.x == 0) {
    exchange.init();
    ring.fill([&](int stage) { request(stage, stage); });
  }
  // No block may send before the others run and have initialised their mbarriers. No meeting at the
  // end: a block that retires has received all pairs of its last row.
  cluster_arrive_relaxed();
  W* const weights = reinterpret_cast<W*>(ring.slot(stages));
#pragma unroll 1
  for (int i = 0; own.has(i); ++i) {  // each thread reads what it wrote: no barrier
    const auto weight = load_if<kElements>(a.weight != nullptr, a.weight, start + own.of(i), 1.0f);
    *reinterpret_cast<Packed<W, kElements>*>(weights + own.of(i)) = weight;
  }
  cluster_wait();
  launch_dependents();  // of the kernel that adds up the partial sums

  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  const int lane = threadIdx.x % kWarpSize;
  // mean and rstd, loaded by lane 0 only: nvcc would move a value that all lanes load alike to a
  // uniform register, and wait for it in every step.
  const auto ask_for_statistics = [&](int64_t nth) {
    if (nth >= rows || lane > 0) return float2{};
    const float mean = kLayer ? a.mean[row_of(nth)] : 0.0f;
    return make_float2(mean, a.rstd[row_of(nth)]);
  };
  const auto from_lane_0 = [](float2 asked) {
    const float mean = kLayer ? __shfl_sync(kFullMask, asked.x, 0) : 0.0f;
    return make_float2(mean, __shfl_sync(kFullMask, asked.y, 0));
  };
  const auto terms_of = [&](int stage, int i, float2 statistics) {
    const T* const x_slice = reinterpret_cast<const T*>(ring.slot(stage));
    const T* const dy_slice = x_slice + plan.slice;
    const auto x = load_vector<kElements>(x_slice, own.of(i));
    const auto dy = load_vector<kElements>(dy_slice, own.of(i));
    const auto weight = load_vector<kElements>(weights, own.of(i));
    return GradientTerms<kElements>(x, dy, weight, statistics.x, statistics.y);
  };
  Vector<float, kElements> dweight[kVectors] = {};
  Vector<float, kElements> dbias[kVectors] = {};
  const auto add_up = [&](int stage, float2 statistics) {
    float2 c = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (!own.has(i)) continue;
      const auto terms = terms_of(stage, i, statistics);
      terms.add_to(c);
      for (int k = 0; k < kElements; ++k) {
        dweight[i].at[k] += terms.dy[k] * terms.xhat[k];
        if (kLayer) dbias[i].at[k] += terms.dy[k];
      }
    }
    return c;
  };
  const auto store_dx = [&](int64_t nth, int stage, float2 statistics, float2 c) {
    const float rstd = statistics.y;
    const float scaled_c1 = c.x * inverse_cols * rstd;
    const float scaled_c2 = kLayer ? c.y * inverse_cols * rstd : 0.0f;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (!own.has(i)) continue;
      const auto terms = terms_of(stage, i, statistics);
      float dx[kElements];
      for (int k = 0; k < kElements; ++k) {
        dx[k] = rstd * terms.wdy[k] - (terms.xhat[k] * scaled_c1 + scaled_c2);
      }
      store(a.dx, element(nth) + own.of(i), dx);
    }
  };

  // How many steps dx is behind the sums. 0: one stage, so a row's dx follows its own sums.
  const int lag = stages > 1 ? 1 : 0;
  float2 of_done = {};                     // mean and rstd of the row whose dx is next
  float2 of_row = {};                      // of the row that is added up
  float2 of_next = ask_for_statistics(0);  // of the row after that one, in lane 0
  int done_stage = 0;
  for (int64_t nth = 0; nth < rows + lag; ++nth) {
    const int64_t done = nth - lag;
    const float2 of_last = of_row;
    of_row = from_lane_0(of_next);
    of_done = lag == 0 ? of_row : of_last;
    of_next = ask_for_statistics(nth + 1);
    if (nth < rows) {
      ring.wait();
      const float2 c = add_up(ring.stage, of_row);
      ring.advance();
      send_sums(c, exchange, nth);
    }
    if (done >= 0) {
      // In the same order in every block, hence the same bits.
      const float2 c = receive_sums(exchange, done);
      store_dx(done, done_stage, of_done, c);
    }
    ring.release();
    __syncthreads();  // everyone has read the row that is done, and of_warp
    if (done < 0) continue;
    if (threadIdx.x == 0) request(done + stages, done_stage);
    done_stage = done_stage + 1 < stages ? done_stage + 1 : 0;
  }

  if (a.dweight == nullptr) return;               // frozen parameters: no sums to store
  const int64_t part = cluster * a.cols + start;  // a row of partial sums a cluster
  store_sums(own, dweight, sums.dweight + part);
  if (kLayer) store_sums(own, dbias, sums.dbias + part);
}

/// How many rows of x and dy have room in a block beside the weight. 1 KB is left for what is
/// static.
int rows_with_room(int64_t slice, int64_t element_bytes, int64_t weight_bytes) {
  const int64_t column_bytes = (max_shared_bytes() - (1 << 10)) / slice;
  return static_cast<int>((column_bytes - weight_bytes) / (2 * element_bytes));
}

/// A row of so many columns over so many blocks.
Plan cut_over(int blocks, int64_t cols, int64_t element_bytes, int64_t weight_bytes) {
  const int64_t elements = 16 / element_bytes;
  Plan plan{};
  plan.cluster_blocks = blocks;
  plan.slice = blocks_for(blocks_for(cols, elements), blocks) * elements;
  const int rows = rows_with_room(plan.slice, element_bytes, weight_bytes);
  plan.stages = std::clamp(rows, 1, kMaxStages);
  const auto warps = static_cast<int>(blocks_for(plan.slice / elements, kWarpSize));
  plan.threads = std::min(warps, kMaxWarps) * kWarpSize;
  return plan;
}

/// As few blocks as have no more than kSliceBytes each, or `group`; past kPortable all
/// `most_blocks`, since a cluster of more fills a GPC anyway. The blocks double while a slice does
/// not fit. A row that does not fit in `most_blocks` is too wide.
Plan plan_for(int64_t cols, int64_t element_bytes, int64_t weight_bytes, int group,
              int most_blocks) {
  const int64_t needed = blocks_for(cols * element_bytes, kSliceBytes);
  const int64_t wanted = std::max<int64_t>(group > 0 ? group : needed, kLeastCluster);
  int blocks = wanted > kPortable ? most_blocks : static_cast<int>(wanted);
  while (true) {
    const Plan plan = cut_over(blocks, cols, element_bytes, weight_bytes);
    const bool fits = plan.slice <= kMaxThreads * kColumns && plan.stages >= kLeastStages;
    if (fits || blocks == most_blocks) return plan;
    blocks = std::min(2 * blocks, most_blocks);
  }
}

/// The most clusters that a launch may have, with one block a multiprocessor or two small ones.
/// More would make more partial sums.
int64_t most_clusters_of(const Plan& plan) {
  const int blocks_each = plan.threads <= kMaxThreads / 2 ? 2 : 1;
  const int64_t blocks = int64_t{multiprocessors()} * blocks_each;
  return std::max<int64_t>(blocks / plan.cluster_blocks, 1);
}

/// Whether there is room for clusters of up to `most_blocks`: then they are launched.
template <Kind kKind, typename T, typename W>
bool launch_clusters(const BackwardArgs<T, W>& a, int most_blocks) {
  const auto kernel = layer_norm_backward<T, W, kKind>;
  const Plan plan = plan_for(a.cols, sizeof(T), sizeof(W), a.group, most_blocks);
  if (plan.slice > kMaxThreads * kColumns) return false;
  const std::size_t stage_bytes = 2 * plan.slice * sizeof(T);
  const std::size_t shared_bytes = plan.stages * stage_bytes + plan.slice * sizeof(W);
  LaunchConfig config{0, unsigned(plan.threads), shared_bytes, a.stream,
                      unsigned(plan.cluster_blocks)};
  const int64_t fit = resident_clusters(kernel, config);
  if (fit == 0) return false;
  const int64_t clusters = std::min({fit, most_clusters_of(plan), a.rows});
  config.grid = static_cast<unsigned>(clusters * plan.cluster_blocks);
  const PartialSums sums = partial_sums(a, clusters);
  launch(kernel, config, a, plan, sums);
  add_partial_sums<EarlyStart>(a, sums, clusters);
  return true;
}

template <Kind kKind, typename T, typename W>
void run_kind(const BackwardArgs<T, W>& a) {
  if (launch_clusters<kKind>(a, kMaxCluster)) return;
  if (launch_clusters<kKind>(a, kPortable)) return;  // where no GPC holds 16 such blocks
  throw std::runtime_error(
      "lib_bwd_cluster: this GPU has no room for the cluster of blocks that a row of " +
      std::to_string(a.cols) + " columns takes");
}

template <typename T, typename W>
void run(const BackwardArgs<T, W>& a) {
  if (a.kind == Kind::Layer) {
    run_kind<Kind::Layer>(a);
  } else {
    run_kind<Kind::Rms>(a);
  }
}

/// A row for each cluster that a launch may have; of the smaller, portable clusters there are more.
int64_t most_partial_sums(const Problem& p) {
  const auto clusters_with = [&](int most_blocks) {
    return most_clusters_of(
        plan_for(p.cols, p.element_bytes(), p.parameter_element_bytes(), p.group, most_blocks));
  };
  return std::min(p.rows, std::max(clusters_with(kMaxCluster), clusters_with(kPortable)));
}

const Registration registration{{
    .id = "lib_bwd_cluster",
    .title = "Wide rows over a cluster",
    .teaches = "rows of 12 289 to 262 144 columns at the speed of a triad",
    .source = "this repository, QuACK",
    .road = Road::Library,
    .needs_aligned = true,
    .takes_frozen = true,
    .group = "blocks a cluster",
    .min_architecture = 90,
    .max_cols = kMaxCluster * kMaxThreads * kColumns,
    .max_cols_because = "a cluster holds a whole row",
    .run = BackwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>, run<__half, float>,
                             run<__nv_bfloat16, float>},
    .predicted_bytes = [](const Problem& p, const Gpu&) -> std::int64_t {
      return 3 * p.tensor_bytes() + parameter_bytes(p);
    },
    .workspace_bytes = [](const Problem& p) -> std::int64_t {
      return partial_sums_bytes(p, most_partial_sums(p));
    },
}};

}  // namespace lib_bwd_cluster
