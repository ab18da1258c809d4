// bwd13 · Rows in clusters
//
// From 16 385 columns on no block of bwd09 sees a whole row, and x and dy are read twice. Here a
// cluster of up to 16 blocks has a row, each a slice: weight and the next rows in shared memory,
// dweight and dbias in registers. A row's two sums go from every block to every other, past device
// memory; while they are on their way, the blocks add up the next row.
//
// It should run at the speed of a triad up to 131 072 columns: 3·M·N elements, each moved once.
#include "common/kernel/bulk_rows.h"
#include "common/kernel/chapter.h"
#include "common/kernel/gradient_terms.h"
#include "common/kernel/partial_sums.h"
#include "common/kernel/reduce.h"
#include "common/kernel/vector.h"

namespace bwd13 {
using namespace lnc;

constexpr int kMaxStages = 4;  // [1] rows of a block in shared memory
constexpr int kLeastStages = 3;
constexpr int kSliceBytes = 32 << 10;  // [2] of a block, while clusters may grow
constexpr int kPortable = 8;           // blocks of a cluster that every Hopper has room for
constexpr int kMaxCluster = 16;
constexpr int kMaxThreads = 512;
constexpr int kColumns = 32;   // [3] of a thread
constexpr int kExchanges = 4;  // [4] rows whose sums may be on their way

/// How a row is cut: `cluster` blocks of `slice` columns, `share` blocks a multiprocessor.
struct Plan {
  int64_t element_bytes, weight_bytes;
  int64_t slice = 0;
  int cluster = 1;
  int share = 1;
  int threads = 0;
  int stages = 0;

  /// How many rows have room in a block beside the weight, 1 KB of static and 1 KB of the system's.
  int room(int share) const {
    const int64_t bytes = (max_shared_bytes() + (1 << 10)) / share - (2 << 10);
    return static_cast<int>((bytes / slice - weight_bytes) / (2 * element_bytes));
  }
  /// Whether the threads of so many blocks a multiprocessor have registers for a slice.
  bool threads_hold_slice(int share) const { return slice <= kMaxThreads / share * kColumns; }
  bool fits(int share) const { return threads_hold_slice(share) && room(share) >= kLeastStages; }
  int64_t places() const { return std::max(multiprocessors() * share / cluster, 1); }
};

/// Of clusters of up to `most_blocks`. The last may not hold the row: threads_hold_slice says so.
Plan plan_for(int64_t cols, int64_t element_bytes, int64_t weight_bytes, int group,
              int most_blocks) {
  const int64_t elements = 16 / element_bytes;
  Plan plan{element_bytes, weight_bytes};
  while (true) {  // [5]
    plan.slice = blocks_for(blocks_for(cols, elements), plan.cluster) * elements;
    const bool wide = plan.cluster < kPortable && plan.slice * element_bytes > kSliceBytes;
    const bool grow = group > 0 ? plan.cluster < group : wide;
    if (plan.cluster == most_blocks || (!grow && plan.fits(1))) break;
    plan.cluster *= 2;
  }
  const int most_share = plan.cluster > 1 ? 2 : 16;
  while (plan.share < most_share && plan.fits(2 * plan.share)) {
    plan.share *= 2;
  }
  plan.stages = std::clamp(plan.room(plan.share), 1, kMaxStages);
  const int slice_threads = blocks_for(plan.slice / elements, kWarpSize) * kWarpSize;
  plan.threads = std::min(kMaxThreads / plan.share, slice_threads);
  return plan;
}

/// A vector of the slice that begins at element `start` of a tensor, from the slot where it came.
template <int kElements, typename T, bool kAligned>
__device__ Packed<T, kElements> take(const BulkRows<T, kAligned>& tensor, int64_t start, int column,
                                     const typename BulkRows<T, kAligned>::Slot* slot) {
  const T* from = reinterpret_cast<const T*>(slot) + column;
  if constexpr (!kAligned) {  // [6]
    const auto address = [](const T* p) { return reinterpret_cast<std::uintptr_t>(p); };
    const T* first = tensor.tensor + start;
    const T* end = tensor.tensor + tensor.rows * tensor.cols;
    const std::uintptr_t vector = address(first + column) / 16 * 16;
    const bool came = vector >= address(tensor.tensor) && vector + 16 <= address(end);
    from = came ? from + address(first) % 16 / sizeof(T) : first + column;
  }
  return *reinterpret_cast<const Packed<T, kElements>*>(from);
}

template <typename T, typename W, int kElements>
__global__ void __launch_bounds__(kMaxThreads)
    layer_norm_backward(BackwardArgs<T, W> a, Plan plan, PartialSums sums) {
  constexpr bool kAligned = kElements > 1;
  constexpr int kVectors = kColumns / kElements;
  __shared__ Barrier full[2 * kMaxStages], arrived[kExchanges];
  __shared__ float2 of_warp[kMaxThreads / kWarpSize], of_block[kExchanges][kMaxCluster];
  const int rank = cluster_rank();
  const int blocks = cluster_size();
  const int threads = blockDim.x;
  const int warp = threadIdx.x / kWarpSize;
  const int peer = threadIdx.x % kWarpSize;     // the lane, where each lane sees to another block
  const int64_t cluster = blockIdx.x / blocks;  // [7]
  const int64_t stride = gridDim.x / blocks;
  const int64_t rows = (a.rows - cluster + stride - 1) / stride;  // of this cluster
  const int64_t start = rank * plan.slice;
  const auto cols = static_cast<int>(max(min(a.cols - start, plan.slice), int64_t{0}));
  const auto column = [=](int i) -> int { return (i * threads + threadIdx.x) * kElements; };
  const auto element = [=](int64_t number) { return (cluster + number * stride) * a.cols + start; };

  const int stages = plan.stages;
  const int lag = stages > 1;    // [8]
  const int slots = 2 * stages;  // x: even, dy: odd
  const auto slot_vectors = static_cast<int>(plan.slice / kVectorElements<T>) + (kAligned ? 0 : 1);
  const BulkRows<T, kAligned> x{a.x, a.rows, a.cols};
  const BulkRows<T, kAligned> dy{a.dy, a.rows, a.cols};
  Ring<T> ring{dynamic_shared<Packed<T, kVectorElements<T>>>(), slot_vectors, slots, full};
  const auto request = [&](int64_t number, int slot) {
    const BulkRows<T, kAligned> tensor{slot % 2 == 0 ? a.x : a.dy, a.rows, a.cols};
    if (number >= rows) return;
    const int64_t row = cluster + number * stride;
    const int64_t first_vector = start / kVectorElements<T>;
    tensor.load(row, first_vector, slot_vectors, ring.slot(slot), full[slot]);
  };
  if (threadIdx.x == 0) {
    for (Barrier& barrier : arrived) {
      barrier.init(1);
    }
    ring.fill([&](int slot) { request(slot / 2, slot); });
  }
  auto* const weights = reinterpret_cast<Packed<W, kElements>*>(ring.slot(slots)) + threadIdx.x;
  const auto load_weight = [&](int i) {
    return load_if<kElements>(a.weight != nullptr, a.weight, start + column(i), 1.0f);
  };
  if constexpr (kAligned) {
    for (int i = 0; column(i) < cols; ++i) {
      weights[i * threads] = load_weight(i);  // [9]
    }
  }
  cluster_sync();       // [10]
  launch_dependents();  // [11]
  const bool layer = a.kind == Kind::Layer;
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  const auto statistics = [&](int64_t number) {  // mean and rstd
    const int64_t row = cluster + number * stride;
    if (number >= rows) return float2{};
    const float mean = layer ? a.mean[row] : 0.0f;
    return make_float2(mean, a.rstd[row]);
  };
  const auto terms = [&](int64_t number, int slot, int i, float2 row) {
    const auto* x_slot = ring.slot(slot);
    const auto* dy_slot = x_slot + slot_vectors;
    const auto packed_x = take<kElements>(x, element(number), column(i), x_slot);
    const auto packed_dy = take<kElements>(dy, element(number), column(i), dy_slot);
    const auto weight = kAligned ? weights[i * threads] : load_weight(i);
    return GradientTerms<kElements>(packed_x, packed_dy, weight, row.x, row.y);
  };
  float dweight[kVectors][kElements] = {};
  float dbias[kVectors][kElements] = {};
  float2 before = {};  // the statistics of the row of the step before, of this one, of the next
  float2 now = {};
  float2 next = statistics(0);
  int done = 0;  // x's slot of the row whose dx is next
  for (int64_t step = 0; step < rows + lag; ++step) {
    const int64_t number = step - lag;  // [12] of the row whose dx is next
    before = lag == 0 ? next : now;
    now = next;
    next = statistics(step + 1);  // [13]
    if (step < rows) {
      const int slot = ring.stage;
      for (int tensor = 0; tensor < 2; ++tensor) {
        ring.wait();
        ring.advance();
      }
      float2 c = make_float2(0.0f, 0.0f);
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        if (column(i) >= cols) continue;
        const auto t = terms(step, slot, i, now);
        t.add_to(c);
        for (int k = 0; k < kElements; ++k) {
          dweight[i][k] += t.dy[k] * t.xhat[k];
          dbias[i][k] += t.dy[k];
        }
      }
      c = warp_sum(c);
      if (peer == 0) of_warp[warp] = c;
      __syncthreads();
      if (warp == 0) {  // [14]
        c = warp_sum(peer < threads / kWarpSize ? of_warp[peer] : float2{});
        const int turn = step % kExchanges;
        if (blocks == 1 && peer == 0) {
          of_block[turn][0] = c;
          arrived[turn].arrive();
        }
        if (blocks > 1 && peer == 0) arrived[turn].arrive_and_expect(blocks * sizeof c);
        if (blocks > 1 && peer < blocks) {
          remote_store_async(&of_block[turn][rank], peer, c, arrived[turn]);
        }
      }
    }
    if (step >= lag) {
      const int turn = number % kExchanges;
      arrived[turn].wait_at_cluster_scope(number / kExchanges % 2);  // [15]
      const float2 c = warp_sum(peer < blocks ? of_block[turn][peer] : float2{});
      const float c1 = c.x * inverse_cols;
      const float c2 = layer ? c.y * inverse_cols : 0.0f;
      const float rstd = before.y;
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        if (column(i) >= cols) continue;
        const auto t = terms(number, done, i, before);
        float dx[kElements];
        for (int k = 0; k < kElements; ++k) {
          dx[k] = rstd * (t.wdy[k] - c2 - t.xhat[k] * c1);
        }
        store(a.dx, element(number) + column(i), dx);
      }
    }
    __syncthreads();  // [16]
    if (step < lag) continue;
    if (threadIdx.x == 0) {
      request(number + stages, done);
      request(number + stages, done + 1);
    }
    done = done + 2 < slots ? done + 2 : 0;
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {  // [17]
    if (column(i) >= cols) continue;
    store(sums.dweight, cluster * a.cols + start + column(i), dweight[i]);
    if (layer) store(sums.dbias, cluster * a.cols + start + column(i), dbias[i]);
  }
}

template <int kElements, typename T, typename W>
void run_elements(const BackwardArgs<T, W>& a) {
  const auto kernel = layer_norm_backward<T, W, kElements>;
  for (const int most_blocks : {kMaxCluster, kPortable}) {  // [18]
    const Plan plan = plan_for(a.cols, sizeof(T), sizeof(W), a.group, most_blocks);
    if (!plan.threads_hold_slice(1)) continue;
    const std::size_t weight_bytes = plan.slice * sizeof(W);
    const std::size_t slot_bytes = plan.slice * sizeof(T) + 16;
    const std::size_t shared_bytes = 2 * plan.stages * slot_bytes + weight_bytes;
    LaunchConfig config{0, unsigned(plan.threads), shared_bytes, a.stream, unsigned(plan.cluster)};
    const int64_t fit = resident_clusters(kernel, config);
    if (fit == 0) continue;
    const int64_t clusters = std::min({fit, plan.places(), a.rows});
    config.grid = static_cast<unsigned>(clusters * plan.cluster);
    const PartialSums sums = partial_sums(a, clusters);
    launch(kernel, config, a, plan, sums);
    add_partial_sums<EarlyStart>(a, sums, clusters);
    return;
  }
  throw std::runtime_error("bwd13: this GPU has no room for the cluster of blocks that a row of " +
                           std::to_string(a.cols) + " columns takes");
}

template <typename T, typename W>
void run(const BackwardArgs<T, W>& a) {
  const bool aligned = a.cols % kVectorElements<T> == 0 && at_16_bytes(a.x, a.dy, a.dx, a.weight);
  if (aligned) {
    run_elements<kVectorElements<T>>(a);
  } else {
    run_elements<1>(a);
  }
}

/// The most clusters that a launch may have: smaller clusters, where [18] comes to them, are more.
int64_t most_clusters(const Problem& p) {
  int64_t most = 0;
  for (const int most_blocks : {kMaxCluster, kPortable}) {
    const Plan plan =
        plan_for(p.cols, p.element_bytes(), p.parameter_element_bytes(), p.group, most_blocks);
    most = std::max(most, plan.places());
  }
  return std::min(most, p.rows);
}

const Registration registration{{
    .id = "bwd13",
    .title = "Rows in clusters",
    .teaches = "a wide row in several blocks; their sums meet in distributed shared memory",
    .source = "this repository, QuACK",
    .parent = "bwd12",
    .road = Road::WideRows,
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
      return partial_sums_bytes(p, most_clusters(p));
    },
}};

}  // namespace bwd13
