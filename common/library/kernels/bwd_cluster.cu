// lib_bwd_cluster · Wide rows over a cluster
//
// Aligned rows of up to 262 144 columns, layer and RMS norm, on Hopper. A persistent cluster of 2
// to 16 blocks walks over rows, and each block has a slice of the columns: a ring of bulk copies
// brings x and dy, the weight is in shared memory, and dweight and dbias are in registers. The
// blocks exchange a row's two sums through distributed shared memory while they add up the next
// row. (If only one row fits, which is so for floats beyond 185 088 columns, the blocks compute dx
// of a row right after its own sums.)
//
// Parts: cluster_backward.h (the walk, the exchange; bwd13), ring.h (fwd08, bwd12),
// column_gradients.h (bwd01, bwd09), partial_sums.h (bwd06, early start bwd12), vector.h (fwd06).
//
// Measurements behind the constants, on an H100, layer norm:
// - kSliceBytes: slices of 16 to 18 KB are the fastest at every width. bf16 2048 × 32768 takes 154
//   µs with four slices of 16 KB, 159 with three of 21, 164 with two of 32; 1024 × 65536 takes 152
//   with eight of 16 and 237 with twelve of 11. On an H200 32 KB would be better: 455 µs against
//   488 at 4096 × 65536.
// - Only lane 0 loads mean and rstd: 146 µs in RMS norm of f32 2048 × 16384. When all lanes loaded
//   them, nvcc put the common value in a uniform register and waited for it: 154 µs.
// - The result: 540 µs at bf16 16384 × 16384 (98.5 % of a triad), 544 at 4096 × 65536 (98 %), 585
//   at 1024 × 262144 (91 %). Up to 8192 columns lib_bwd_ring is faster.
#include "common/kernel/chapter.h"
#include "common/kernel/cluster_backward.h"
#include "common/kernel/column_gradients.h"
#include "common/kernel/gradient_terms.h"
#include "common/kernel/kinds.h"
#include "common/kernel/partial_sums.h"
#include "common/kernel/ring.h"
#include "common/kernel/thread_columns.h"
#include "common/kernel/vector.h"

namespace lib_bwd_cluster {
using namespace lnc;

constexpr int kMaxStages = 4;          // rows of a slice in shared memory
constexpr int kLeastStages = 3;        // with fewer nothing is in flight
constexpr int kSliceBytes = 18 << 10;  // of x, at most, while a cluster may have more blocks
constexpr int kLeastCluster = 2;       // blocks
constexpr int kPortable = 8;           // supported by every Hopper GPU
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

/// A block's slices of its cluster's rows cluster, cluster + clusters, …
template <typename T, typename W>
struct AlignedSlices {
  static constexpr int kElements = kVectorElements<T>;
  using Count = int64_t;
  struct Slot {
    const T* x;
    const T* dy;
  };
  const BackwardArgs<T, W>& a;
  int64_t cluster, clusters, rows;
  int64_t slice, start;  ///< columns of a slice; the block's first
  ThreadColumns own;
  Ring<T> ring;

  __device__ AlignedSlices(const BackwardArgs<T, W>& a_, const Plan& plan, Barrier* full)
      : a(a_), slice(plan.slice) {
    const int blocks = cluster_size();
    cluster = blockIdx.x / blocks;  // the blocks of a cluster are neighbours
    clusters = gridDim.x / blocks;
    rows = (a.rows - cluster + clusters - 1) / clusters;
    start = cluster_rank() * slice;
    const auto cols = static_cast<int>(max(min(a.cols - start, slice), int64_t{0}));
    const int threads = blockDim.x;
    own = {static_cast<int>(threadIdx.x) * kElements, threads * kElements, cols};
    ring = {dynamic_shared<Packed<T, kElements>>(), 2 * (static_cast<int>(slice) / kElements),
            plan.stages, full};
  }
  __device__ int64_t row_of(int64_t nth) const { return cluster + nth * clusters; }
  __device__ int64_t element(int64_t nth) const { return row_of(nth) * a.cols + start; }
  __device__ Slot slot(int64_t, int stage) const {
    const T* const x = reinterpret_cast<const T*>(ring.slot(stage));
    return {x, x + slice};
  }
  __device__ void request(int64_t nth, int stage) const {
    if (nth >= rows) return;
    Barrier& full = ring.full[stage];
    const auto bytes = static_cast<unsigned>(own.cols * sizeof(T));
    full.arrive_and_expect(2 * bytes);
    if (bytes == 0) return;
    auto* const x_slice = ring.slot(stage);
    bulk_load(x_slice, a.x + element(nth), bytes, full);
    bulk_load(x_slice + slice / kElements, a.dy + element(nth), bytes, full);
  }
  __device__ W* weights() const { return reinterpret_cast<W*>(ring.slot(ring.stages)); }
  __device__ void keep_weights() const {
#pragma unroll 1
    for (int i = 0; own.has(i); ++i) {  // each thread reads what it wrote: no barrier
      const auto weight =
          load_if<kElements>(a.weight != nullptr, a.weight, start + own.of(i), 1.0f);
      *reinterpret_cast<Packed<W, kElements>*>(weights() + own.of(i)) = weight;
    }
  }
  __device__ void complete(int64_t, const Slot&) const {}
  __device__ GradientTerms<kElements> terms(const Slot& slot, int i, float2 statistics) const {
    return {load_vector<kElements>(slot.x, own.of(i)), load_vector<kElements>(slot.dy, own.of(i)),
            load_vector<kElements>(weights(), own.of(i)), statistics.x, statistics.y};
  }
  __device__ void store(int64_t nth, int i, const float (&dx)[kElements]) const {
    lnc::store(a.dx, element(nth) + own.of(i), dx);
  }
};

template <typename T, typename W, Kind kKind>
__global__ void __launch_bounds__(kMaxThreads)
    layer_norm_backward(BackwardArgs<T, W> a, Plan plan, PartialSums sums) {
  constexpr int kElements = kVectorElements<T>;
  __shared__ Barrier full[kMaxStages];
  __shared__ Exchange exchange;
  AlignedSlices<T, W> slices(a, plan, full);
  ColumnGradients<kElements, kColumns / kElements, kKind == Kind::Layer> gradients;
  walk_cluster(a, slices, exchange, plan.stages > 1 ? 1 : 0, 0, gradients);
  if (a.dweight == nullptr) return;  // frozen parameters: no sums to store
  // Each cluster stores a row of partial sums.
  gradients.store(slices.own, sums, slices.cluster * a.cols + slices.start);
}

/// How many rows of x and dy fit in a block besides the weight. 1 KB is left for static shared
/// memory.
int rows_with_room(int64_t slice, int64_t element_bytes, int64_t weight_bytes) {
  const int64_t column_bytes = (max_shared_bytes() - (1 << 10)) / slice;
  return static_cast<int>((column_bytes - weight_bytes) / (2 * element_bytes));
}

/// Cuts a row of `cols` columns over `blocks` blocks.
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

/// The fewest blocks with no more than kSliceBytes each, or `group`; above kPortable all
/// `most_blocks`, since a larger cluster fills a GPC anyway. The number doubles while a slice does
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
/// More would only add partial sums.
int64_t most_clusters_of(const Plan& plan) {
  const int blocks_each = plan.threads <= kMaxThreads / 2 ? 2 : 1;
  const int64_t blocks = int64_t{multiprocessors()} * blocks_each;
  return std::max<int64_t>(blocks / plan.cluster_blocks, 1);
}

/// Launches clusters of up to `most_blocks`; returns false if there is no room for them.
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
  if (launch_clusters<kKind>(a, kPortable)) return;  // if no GPC holds 16 such blocks
  throw std::runtime_error(
      "lib_bwd_cluster: this GPU has no room for the cluster of blocks that a row of " +
      std::to_string(a.cols) + " columns takes");
}

template <typename T, typename W>
void run(const BackwardArgs<T, W>& a) {
  with_kind(a.kind, [&](auto kind) { run_kind<kind()>(a); });
}

/// A row for each cluster that a launch may have; smaller, portable clusters are more numerous.
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
    .run = BackwardLaunchers::every([](const auto& args) { run(args); }),
    .predicted_bytes = least_bytes<Direction::Backward>,
    .workspace_bytes = [](const Problem& p) -> std::int64_t {
      return partial_sums_bytes(p, most_partial_sums(p));
    },
}};

}  // namespace lib_bwd_cluster
