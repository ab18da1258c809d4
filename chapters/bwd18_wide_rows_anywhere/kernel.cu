// bwd18 · Wide rows that start anywhere, in clusters
//
// bwd15 takes rows that start anywhere up to 8184 columns: a block holds one. bwd13 takes wider
// ones in clusters, but from 16-byte boundaries on. Here is bwd13's cluster, and each of its rows
// starts alike, as in bwd15. The blocks share a row's whole vectors; the few elements before and
// behind them are single threads'. Two blocks share a multiprocessor: while one waits, the other
// works.
//
// It takes rows of up to 512 KB, and should run at the speed of a triad: 3·M·N elements, each moved
// once.
#include "common/kernel/chapter.h"
#include "common/kernel/cluster_sums.h"
#include "common/kernel/gradient_terms.h"
#include "common/kernel/partial_sums.h"
#include "common/kernel/reduce.h"
#include "common/kernel/ring.h"
#include "common/kernel/rows_anywhere.h"
#include "common/kernel/thread_columns.h"
#include "common/kernel/vector.h"

namespace bwd18 {
using namespace lnc;

constexpr int kLeastCluster = 2;  // blocks
constexpr int kPortable = 8;      // that every Hopper has room for
constexpr int kMaxCluster = 16;
constexpr int kMaxStages = 4;       // rows of a slice in shared memory
constexpr int kPortableStages = 3;  // at least, in clusters of up to kPortable blocks
constexpr int kLargeStages = 2;     // in larger ones
constexpr int kColumns = 32;        // of a thread
constexpr int kMostEdges = 2 * (kVectorElements<__half> - 1);
constexpr int64_t kStaticBytes = 2 << 10;  // of shared memory: what is static, and some to spare

/// [1] What the registers allow: kBlocks blocks of up to kThreads threads on a multiprocessor.
template <int kThreads_, int kBlocks_>
struct Variant {
  static constexpr int kThreads = kThreads_;
  static constexpr int kBlocks = kBlocks_;
  static constexpr int kWarps = kThreads / kWarpSize;
  static constexpr int64_t kSlice = int64_t{kThreads} * kColumns;  // at most
  static_assert(kWarps <= kExchangeWarps && kMaxCluster <= kExchangeBlocks);
};
using TwoBlocks = Variant<256, 2>;
using OneBlock = Variant<512, 1>;                     // for the widest rows
constexpr int64_t kPairCols = 2 * TwoBlocks::kSlice;  // of halves, that two blocks hold, or nearly

/// How a row is cut: `blocks` blocks of `slice` columns.
struct Plan {
  int64_t slice;
  int blocks;
  int threads;
  int stages;
};

/// What a thread has of a row's edges: at most one element.
template <typename T>
struct Edge {
  Packed<T, 1> x;
  Packed<T, 1> dy;
};

/// A thread's sums of its columns, by way of shared memory, to `to`. All threads of the block call
/// it.
template <int kElements, int kVectors>
__device__ void store_side_by_side(const ThreadColumns& own,
                                   const Vector<float, kElements> (&of_thread)[kVectors],
                                   float* to) {
  auto* const of_block = dynamic_shared<float>();
  store_sums(own, of_thread, of_block);
  __syncthreads();
  for (int col = threadIdx.x; col < own.cols; col += blockDim.x) {
    to[col] = of_block[col];
  }
  __syncthreads();
}

/// Sets to 0 what a part of the sums has behind its columns.
__device__ inline void set_rest(const PartialSums& sums, int64_t part, int cols) {
  const int64_t rest = cols + static_cast<int>(threadIdx.x);
  if (rest >= sums.stride) return;
  sums.dweight[part + rest] = 0.0f;
  if (sums.dbias != nullptr) sums.dbias[part + rest] = 0.0f;
}

template <typename T, typename W, Kind kKind, typename Fit>
__global__ void __launch_bounds__(Fit::kThreads, Fit::kBlocks)
    layer_norm_backward(BackwardArgs<T, W> a, Plan plan, bool alike, PartialSums sums) {
  constexpr int kElements = kVectorElements<T>;
  constexpr int kVectors = kColumns / kElements;
  constexpr bool kLayer = kKind == Kind::Layer;
  __shared__ Barrier full[kMaxStages];
  __shared__ Barrier arrived[kExchanges];
  __shared__ Exchange exchange;
  __shared__ float2 edge_sums[kMostEdges];  // [2] for dweight and dbias
  const int blocks = cluster_size();
  const int threads = blockDim.x;
  const int64_t cluster = blockIdx.x / blocks;
  const int64_t clusters = gridDim.x / blocks;
  const int64_t rows = (a.rows - cluster + clusters - 1) / clusters;  // of this cluster
  const auto thread = static_cast<int>(threadIdx.x);

  const auto row_cols = static_cast<int>(a.cols);
  const auto slice = static_cast<int>(plan.slice);
  const RowParts parts(a.dx + cluster * a.cols, row_cols);  // [3]
  const int before = cluster_rank() * slice;                // columns in whole vectors
  const int cols = max(min(parts.vectors * kElements - before, slice), 0);
  const int start = parts.head + before;
  const ThreadColumns own{thread * kElements, threads * kElements, cols};
  const bool has_edge = cluster_rank() == 0 && thread < parts.edges();  // [4]
  const int edge_col = parts.edge_col(thread, row_cols);
  const auto row_of = [=](int64_t nth) { return cluster + nth * clusters; };  // its nth row
  const auto slice_start = [=](int64_t nth) { return row_of(nth) * a.cols + start; };

  const int stages = plan.stages;
  const int slice_vectors = slice / kElements;
  Ring<T> ring{dynamic_shared<Packed<T, kElements>>(), 2 * slice_vectors, stages, full};
  const auto request = [&](int64_t nth, int stage) {
    if (nth >= rows || !alike) return;
    const auto bytes = static_cast<unsigned>(cols * sizeof(T));
    full[stage].arrive_and_expect(2 * bytes);
    if (bytes == 0) return;
    auto* const x_slice = ring.slot(stage);
    auto* const dy_slice = x_slice + slice_vectors;
    bulk_load(x_slice, a.x + slice_start(nth), bytes, full[stage]);
    bulk_load(dy_slice, a.dy + slice_start(nth), bytes, full[stage]);
  };
  const auto bring_singly = [&](int64_t nth, int stage) {  // [5] all threads
    T* const x_slice = reinterpret_cast<T*>(ring.slot(stage));
    T* const dy_slice = x_slice + slice;
#pragma unroll 1
    for (int col = thread; col < cols; col += threads) {
      x_slice[col] = a.x[slice_start(nth) + col];
      dy_slice[col] = a.dy[slice_start(nth) + col];
    }
    __syncthreads();
  };
  if (threadIdx.x == 0) {
    for (Barrier& barrier : arrived) {
      barrier.init(1);
    }
    ring.fill([&](int stage) { request(stage, stage); });
  }
  cluster_arrive_relaxed();
  W* const weights = reinterpret_cast<W*>(ring.slot(stages));
#pragma unroll 1
  for (int i = 0; own.has(i); ++i) {  // [6]
    const auto weight = load_singly<kElements>(true, a.weight, start + own.of(i), 1.0f);
    *reinterpret_cast<Packed<W, kElements>*>(weights + own.of(i)) = weight;
  }
  const auto edge_weight = load_singly<1>(has_edge, a.weight, edge_col, 1.0f);
  if (has_edge) edge_sums[thread] = {};
  cluster_wait();
  launch_dependents();

  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  const int lane = threadIdx.x % kWarpSize;
  const auto ask_for_statistics = [&](int64_t nth) {  // mean and rstd, for lane 0
    if (nth >= rows || lane > 0) return float2{};
    const float mean = kLayer ? a.mean[row_of(nth)] : 0.0f;
    return make_float2(mean, a.rstd[row_of(nth)]);
  };
  const auto ask_for_edge = [&](int64_t nth) {  // [7]
    const int64_t at = row_of(nth) * a.cols + edge_col;
    return Edge<T>{load_singly<1>(has_edge, a.x, at), load_singly<1>(has_edge, a.dy, at)};
  };
  const auto terms_of_edge = [&](const Edge<T>& edge, float2 statistics) {
    return GradientTerms<1>(edge.x, edge.dy, edge_weight, statistics.x, statistics.y);
  };
  const auto from_lane_0 = [](float2 asked) {
    const float mean = kLayer ? __shfl_sync(kFullMask, asked.x, 0) : 0.0f;
    return make_float2(mean, __shfl_sync(kFullMask, asked.y, 0));
  };
  const auto terms_of = [&](int stage, int i, float2 statistics) {
    const T* const x_slice = reinterpret_cast<const T*>(ring.slot(stage));
    const T* const dy_slice = x_slice + slice;
    const auto x = load_vector<kElements>(x_slice, own.of(i));
    const auto dy = load_vector<kElements>(dy_slice, own.of(i));
    const auto weight = load_vector<kElements>(weights, own.of(i));
    return GradientTerms<kElements>(x, dy, weight, statistics.x, statistics.y);
  };
  Vector<float, kElements> dweight[kVectors] = {};
  Vector<float, kElements> dbias[kVectors] = {};
  const auto add_up = [&](int64_t nth, int stage, float2 statistics) {
    float2 c = make_float2(0.0f, 0.0f);
    const Edge<T> edge = ask_for_edge(nth);
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
    if (has_edge) {
      const auto terms = terms_of_edge(edge, statistics);
      terms.add_to(c);
      edge_sums[thread].x += terms.dy[0] * terms.xhat[0];
      edge_sums[thread].y += terms.dy[0];
    }
    return c;
  };
  const auto store_dx = [&](int64_t nth, int stage, float2 statistics, float2 c) {
    const Edge<T> edge = ask_for_edge(nth);
    const float rstd = statistics.y;
    const float scaled_c1 = c.x * inverse_cols * rstd;
    const float scaled_c2 = kLayer ? c.y * inverse_cols * rstd : 0.0f;
    T* const dx_slice = a.dx + slice_start(nth);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (!own.has(i)) continue;
      const auto terms = terms_of(stage, i, statistics);
      float dx[kElements];
      for (int k = 0; k < kElements; ++k) {
        dx[k] = rstd * terms.wdy[k] - (terms.xhat[k] * scaled_c1 + scaled_c2);
      }
      store_vector(dx_slice + static_cast<unsigned>(own.of(i)), dx);
    }
    if (has_edge) {
      const auto terms = terms_of_edge(edge, statistics);
      const float dx = rstd * terms.wdy[0] - (terms.xhat[0] * scaled_c1 + scaled_c2);
      a.dx[row_of(nth) * a.cols + edge_col] = from_float<T>(dx);
    }
  };

  float2 of_done = {};                     // mean and rstd of the row whose dx is next
  float2 of_row = {};                      // of the row that is added up
  float2 of_next = ask_for_statistics(0);  // of the row behind that one, in lane 0
  int done_stage = 0;
  for (int64_t nth = 0; nth <= rows; ++nth) {  // dx is a row behind the sums
    of_done = of_row;
    of_row = from_lane_0(of_next);
    of_next = ask_for_statistics(nth + 1);
    if (nth < rows) {
      const int place = nth % kExchanges;
      if (alike) {
        ring.wait();
      } else {
        bring_singly(nth, ring.stage);
      }
      const float2 c = add_up(nth, ring.stage, of_row);
      ring.advance();
      send_sums(c, exchange, place, arrived[place]);
    }
    const int64_t done = nth - 1;
    if (done >= 0) {
      const int place = done % kExchanges;
      const int parity = done / kExchanges % 2;
      const float2 c = receive_sums(exchange, place, arrived[place], parity);
      store_dx(done, done_stage, of_done, c);
    }
    __syncthreads();
    if (done < 0) continue;
    if (thread == 0) request(done + stages, done_stage);
    done_stage = done_stage + 1 < stages ? done_stage + 1 : 0;
  }

  if (a.dweight == nullptr) return;  // frozen parameters: nobody wants the sums
  const int64_t part = cluster * sums.stride;
  store_side_by_side(own, dweight, sums.dweight + part + start);
  if (kLayer) store_side_by_side(own, dbias, sums.dbias + part + start);
  if (cluster_rank() == 0) set_rest(sums, part, row_cols);
  if (!has_edge) return;
  sums.dweight[part + edge_col] = edge_sums[thread].x;
  if (kLayer) sums.dbias[part + edge_col] = edge_sums[thread].y;
}

/// A row of so many columns over so many blocks.
template <typename Fit>
Plan cut_over(int blocks, int64_t cols, int64_t element_bytes, int64_t weight_bytes) {
  const int64_t elements = 16 / element_bytes;
  Plan plan{};
  plan.blocks = blocks;
  plan.slice = blocks_for(blocks_for(cols, elements), blocks) * elements;
  const int64_t room = max_shared_bytes() / Fit::kBlocks - kStaticBytes;
  const int64_t of_rows = room - plan.slice * weight_bytes;
  const int64_t rows = of_rows / (2 * plan.slice * element_bytes);  // of x and dy
  plan.stages = static_cast<int>(std::clamp<int64_t>(rows, 1, kMaxStages));
  const auto warps = static_cast<int>(blocks_for(plan.slice / elements, kWarpSize));
  plan.threads = std::min(warps, Fit::kWarps) * kWarpSize;
  return plan;
}

/// Whether a block has registers and shared memory for its slice.
template <typename Fit>
bool has_room(const Plan& plan) {
  const int least = plan.blocks > kPortable ? kLargeStages : kPortableStages;
  return plan.slice <= Fit::kSlice && plan.stages >= least;
}

template <typename T, typename W>
std::size_t shared_bytes_of(const Plan& plan) {
  const std::size_t row_bytes = 2 * plan.slice * sizeof(T);
  return plan.stages * row_bytes + plan.slice * sizeof(W);  // and so room for a slice's sums
}

template <typename T, typename W>
LaunchConfig config_for(const BackwardArgs<T, W>& a, const Plan& plan, int64_t clusters) {
  const auto blocks = static_cast<unsigned>(plan.blocks);
  const auto threads = static_cast<unsigned>(plan.threads);
  const auto grid = static_cast<unsigned>(clusters) * blocks;
  return {grid, threads, shared_bytes_of<T, W>(plan), a.stream, blocks};
}

struct Choice {
  Plan plan;
  int64_t clusters;
  int64_t busy;  ///< places for blocks that have one; 0: no cluster has room
};

/// [8] The cut that gives the most blocks work. A larger cluster must gain a twentieth.
template <typename Fit, typename T, typename W, typename Kernel>
Choice best_cut(const BackwardArgs<T, W>& a, Kernel kernel, int least_blocks, int most_blocks) {
  Choice best{};
  for (int blocks = least_blocks; blocks <= most_blocks; ++blocks) {
    const Plan plan = cut_over<Fit>(blocks, a.cols, sizeof(T), sizeof(W));
    if (!has_room<Fit>(plan)) continue;
    const int64_t wanted = int64_t{multiprocessors()} * Fit::kBlocks / blocks;
    const int64_t resident = resident_clusters(kernel, config_for(a, plan, 1));
    const int64_t fit = std::min(wanted, resident);
    if (fit == 0) continue;
    const int64_t clusters = blocks_in_step<T>(fit, 1, a.cols);
    const int64_t turns = blocks_for(clusters, fit);
    const int64_t at_once = clusters / turns;
    const int64_t busy = at_once * blocks;
    if (busy > best.busy + best.busy / 20) best = {plan, clusters, busy};
  }
  return best;
}

/// Launches clusters of so many blocks, if there is room for one.
template <Kind kKind, typename Fit, typename T, typename W>
bool launch_clusters(const BackwardArgs<T, W>& a, int least_blocks, int most_blocks) {
  const auto kernel = layer_norm_backward<T, W, kKind, Fit>;
  const Choice choice = best_cut<Fit>(a, kernel, least_blocks, most_blocks);
  if (choice.busy == 0) return false;
  const int64_t clusters = std::min(choice.clusters, a.rows);
  const int start = start_in_vector(a.dx);
  const bool alike = start_in_vector(a.x) == start && start_in_vector(a.dy) == start;
  const PartialSums sums = partial_sums(a, clusters, whole_sectors(a.cols));  // [9]
  launch(kernel, config_for(a, choice.plan, clusters), a, choice.plan, alike, sums);
  const bool pairs = sizeof(T) < sizeof(float) && a.cols <= kPairCols;
  if (pairs) {
    add_partial_sums<EarlyStart, kPairCols>(a, sums, clusters);
  } else {
    add_partial_sums<EarlyStart>(a, sums, clusters);
  }
  return true;
}

/// As --blocks-per-cluster says, if that fits; else two blocks a multiprocessor, in clusters of up
/// to eight, or else of more; else one, likewise.
template <Kind kKind, typename T, typename W>
void run_kind(const BackwardArgs<T, W>& a) {
  const int asked = std::clamp(a.group, kLeastCluster, kMaxCluster);
  if (a.group > 0 && launch_clusters<kKind, TwoBlocks>(a, asked, asked)) return;
  if (a.group > 0 && launch_clusters<kKind, OneBlock>(a, asked, asked)) return;
  if (launch_clusters<kKind, TwoBlocks>(a, kLeastCluster, kPortable)) return;
  if (launch_clusters<kKind, TwoBlocks>(a, kPortable + 1, kMaxCluster)) return;
  if (launch_clusters<kKind, OneBlock>(a, kLeastCluster, kPortable)) return;
  if (launch_clusters<kKind, OneBlock>(a, kPortable + 1, kMaxCluster)) return;
  throw std::runtime_error("bwd18: this GPU has no room for the cluster of blocks that a row of " +
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

/// A row for each cluster that a launch may have: of two blocks, two on a multiprocessor.
int64_t most_partial_sums(const Problem& p) {
  constexpr int64_t kMostPeriod = kVectorElements<__half>;
  return std::min(p.rows, std::max<int64_t>(multiprocessors(), kMostPeriod));
}

const Registration registration{{
    .id = "bwd18",
    .title = "Wide rows that start anywhere, in clusters",
    .teaches = "a cluster's rows start alike; a row's edges are single threads'",
    .source = "this repository",
    .parent = "bwd15",
    .road = Road::UnalignedRows,
    .usual_cols = 2049,
    .takes_frozen = true,
    .group = "blocks a cluster",
    .min_architecture = 90,
    .max_row_bytes = 512 << 10,
    .max_row_bytes_because = "a cluster holds two rows",
    .run = BackwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>, run<__half, float>,
                             run<__nv_bfloat16, float>},
    .predicted_bytes = [](const Problem& p, const Gpu&) -> std::int64_t {
      return 3 * p.tensor_bytes() + parameter_bytes(p);
    },
    .workspace_bytes = [](const Problem& p) -> std::int64_t {
      return partial_sums_bytes(p, most_partial_sums(p), whole_sectors(p.cols));
    },
}};

}  // namespace bwd18
