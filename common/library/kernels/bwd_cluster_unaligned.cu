// lib_bwd_cluster_unaligned · Wide unaligned rows over a cluster
//
// Rows of nearly 512 KB that start anywhere, layer and RMS norm, on Hopper; meant for those too
// wide for lib_bwd_unaligned. lib_bwd_cluster's persistent cluster, whose rows all start alike. The
// blocks share the vectors that a row lies in. The first and last of these may be partly another
// row's: each is the first vector of some thread, and only a thread's first vector is masked. Where
// x, dy and dx start differently, threads load all elements: correct, but slow.
//
// Parts: cluster_sums.h (the exchange; bwd13), rows_anywhere.h (rows that start alike; bwd15),
// ring.h (fwd08, bwd12), gradient_terms.h (bwd01), partial_sums.h (bwd06, early start bwd12),
// thread_columns.h, reduce.h, vector.h (fwd06).
//
// Measurements behind the constants, on an H100, 128 MiB, layer norm, µs:
// - Cuts: bf16 of 12 289 columns takes 166 in two blocks of 256 threads a multiprocessor, 181 of
//   512; of 20 001 156 in two of 512, 160 to 191 in three to five of 256; f32 of 12 289 156 in
//   three of 512, 151 to 168 in four to eight of 256.
// - Masks: 155 at f32 667 × 50257, 162 at bf16 1335 × 50257; edges in single threads of block 0 165
//   and 160.
// - The result: 165 at bf16 5460 × 12289 and 162 at 1335 × 50257 (84 and 85 % of a triad), 155 at
//   f32 2730 × 12289 (89 %), where lib_bwd_any takes 349, 355 and 275.
#include "common/kernel/chapter.h"
#include "common/kernel/cluster_sums.h"
#include "common/kernel/gradient_terms.h"
#include "common/kernel/partial_sums.h"
#include "common/kernel/reduce.h"
#include "common/kernel/ring.h"
#include "common/kernel/rows_anywhere.h"
#include "common/kernel/thread_columns.h"
#include "common/kernel/vector.h"

namespace lib_bwd_cluster_unaligned {
using namespace lnc;

constexpr int kLeastCluster = 2;  // blocks
constexpr int kPortable = 8;      // that every Hopper has room for
constexpr int kMaxCluster = 16;
constexpr int kMaxStages = 4;           // rows of a slice in shared memory
constexpr int kOverlapStages = 3;       // the fewest with a row always in flight
constexpr int kLeastStages = 2;         // of the widest rows
constexpr int kColumns = 32;            // of a thread
constexpr int kSliceBytes = 24 << 10;   // of x in a block of 512 threads, where eight hold a row
constexpr int kWideBytes = 32 << 10;    // rows from here on have such blocks
constexpr int64_t kOtherBytes = 1536;   // of shared memory, a block: static, or the system's
constexpr int64_t kManyCols = 1 << 14;  // up to here, rows of halves have many parts

/// What the registers allow: kBlocks blocks of up to kThreads threads on a multiprocessor.
template <int kThreads_, int kBlocks_>
struct Variant {
  static constexpr int kThreads = kThreads_;
  static constexpr int kBlocks = kBlocks_;
  static constexpr int kWarps = kThreads / kWarpSize;
  static constexpr int64_t kSlice = int64_t{kThreads} * kColumns;  // at most
  static_assert(kWarps <= kExchangeWarps && kMaxCluster <= kExchangeBlocks);
};
using OneBlock = Variant<512, 1>;
using TwoBlocks = Variant<256, 2>;

/// How a row is cut: `blocks` blocks have `slice` elements each of the vectors that it lies in.
struct Plan {
  int64_t slice;
  int blocks;
  int threads;
  int stages;
  int end_rows;  ///< at each end of a tensor
};

/// Elements begin … end - 1 of a slice.
struct Span {
  int begin;
  int end;

  __device__ bool has(int at) const { return at >= begin && at < end; }
  __device__ int size() const { return end - begin; }
};

/// Where a slice of a row's x and dy lies in shared memory.
template <typename T>
struct Slices {
  T* x;
  T* dy;
};

/// The elements of a slice that a thread has: whole vectors, each `apart` elements after the one
/// before; a negative `apart` counts down.
struct SliceVectors {
  int first;  ///< element at which its first vector begins
  int apart;
  int size;  ///< of the slice

  __device__ int of(int i) const { return first + i * apart; }
  __device__ bool has(int i) const {
    return static_cast<unsigned>(of(i)) < static_cast<unsigned>(size);  // a number below 0 is large
  }
};

/// Clears what is another row's in a vector: four words and four ANDs for every type. A factor of 0
/// would make NaN of another row's infinity.
template <typename T>
class Mask {
 public:
  static constexpr int kElements = kVectorElements<T>;
  using Bits = std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint32_t>;

  /// For the vector at element `at` of a slice.
  __device__ Mask(const Span& of_row, int at) {
    Vector<Bits, kElements> bits;
    for (int k = 0; k < kElements; ++k) {
      bits.at[k] = of_row.has(at + k) ? static_cast<Bits>(-1) : Bits{0};
    }
    words_ = __builtin_bit_cast(uint4, bits);
  }
  __device__ Packed<T, kElements> of(const Packed<T, kElements>& vector) const {
    auto words = __builtin_bit_cast(uint4, vector);
    words.x &= words_.x;
    words.y &= words_.y;
    words.z &= words_.z;
    words.w &= words_.w;
    return __builtin_bit_cast(Packed<T, kElements>, words);
  }

 private:
  uint4 words_;
};

/// Stores a thread's sums of the row's columns at `to`, where the slice begins, through shared
/// memory so that neighbouring threads store neighbouring floats. All threads of the block call it.
template <int kElements, int kVectors>
__device__ void store_side_by_side(const SliceVectors& own, const Span& of_row,
                                   const Vector<float, kElements> (&of_thread)[kVectors],
                                   float* to) {
  auto* const of_block = dynamic_shared<float>();
  store_sums(own, of_thread, of_block);
  __syncthreads();
  for (int at = of_row.begin + threadIdx.x; at < of_row.end; at += blockDim.x) {
    to[at] = of_block[at];
  }
  __syncthreads();
}

/// Clears the floats of a part after its last column.
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
  __shared__ Exchange exchange;
  const int blocks = cluster_size();
  const int threads = blockDim.x;
  const int64_t cluster = blockIdx.x / blocks;
  const int64_t clusters = gridDim.x / blocks;
  const auto rows = static_cast<int>((a.rows - cluster + clusters - 1) / clusters);  // this one's
  const auto thread = static_cast<int>(threadIdx.x);
  const auto rank = static_cast<int>(cluster_rank());

  const auto row_cols = static_cast<int>(a.cols);
  const auto slice = static_cast<int>(plan.slice);
  // Of the cluster's first row, and so of all of its rows.
  const int row_start = start_in_vector(a.dx + cluster * a.cols);
  const int row_end = row_start + row_cols;
  const int row_size = (row_end + kElements - 1) / kElements * kElements;
  const int before = rank * slice;
  const int size = max(min(row_size - before, slice), 0);
  const int start = before - row_start;  // the slice's first column
  const Span of_row{max(-start, 0), min(row_cols - start, size)};
  // The last block counts down from the row's end. The last thread has the first vector counted:
  // warp 0 has the exchange to do, and should not also store single elements.
  const bool backwards = before + slice >= row_size;
  const int counted = (threads - 1 - thread) * kElements;
  const int apart = threads * kElements;
  const SliceVectors own{backwards ? size - kElements - counted : counted,
                         backwards ? -apart : apart, size};
  const Mask<T> mask(of_row, own.of(0));
  const bool whole = of_row.has(own.of(0)) && of_row.has(own.of(0) + kElements - 1);
  const auto row_of = [=](int nth) { return cluster + nth * clusters; };  // its nth row
  const auto slice_start = [=](int nth) { return row_of(nth) * a.cols + start; };

  const int stages = plan.stages;
  const int slot_elements = slot_elements_for<T>(slice);
  const int slot_vectors = slot_elements / kElements;
  Ring<T> ring{dynamic_shared<Packed<T, kElements>>(), 2 * slot_vectors, stages, full};
  // A slice lies as far into a 128-byte line as in global memory.
  const auto slices_in = [&](int nth, int stage) {
    T* const slot = reinterpret_cast<T*>(ring.slot(stage));
    const int x_at = start_in_line(a.x + slice_start(nth)) / kElements * kElements;
    const int dy_at = start_in_line(a.dy + slice_start(nth)) / kElements * kElements;
    return Slices<T>{slot + x_at, slot + slot_elements + dy_at};
  };
  // The vectors that lie wholly in the tensor; threads bring the others.
  const auto copied = [&](int nth) {
    const int64_t from = slice_start(nth);
    const int64_t left = a.rows * a.cols - from;
    const Span span{from < 0 ? kElements : 0, left < size ? size - kElements : size};
    return alike && span.begin < span.end ? span : Span{0, 0};
  };
  const auto request = [&](int nth, int stage) {
    if (nth >= rows) return;
    const Span span = copied(nth);
    const auto bytes = static_cast<unsigned>(span.size() * sizeof(T));
    full[stage].arrive_and_expect(2 * bytes);
    if (bytes == 0) return;
    const Slices<T> to = slices_in(nth, stage);
    const int64_t from = slice_start(nth) + span.begin;
    bulk_load(to.x + span.begin, a.x + from, bytes, full[stage]);
    bulk_load(to.dy + span.begin, a.dy + from, bytes, full[stage]);
  };
  const auto at_end = [&](int nth) {  // of the tensor, perhaps
    return nth < plan.end_rows || nth + plan.end_rows >= rows;
  };
  const auto bring_rest = [&](int nth, const Slices<T>& to) {  // all threads
    const Span span = copied(nth);
#pragma unroll 1
    for (int at = of_row.begin + thread; at < of_row.end; at += threads) {
      if (span.has(at)) continue;
      to.x[at] = a.x[slice_start(nth) + at];
      to.dy[at] = a.dy[slice_start(nth) + at];
    }
    __syncthreads();
  };
  if (threadIdx.x == 0) {
    exchange.init();
    ring.fill([&](int stage) { request(stage, stage); });
  }
  cluster_arrive_relaxed();
  W* const weights = reinterpret_cast<W*>(ring.slot(stages));
#pragma unroll 1
  for (int i = 0; own.has(i); ++i) {
    Vector<W, kElements> weight;
    for (int k = 0; k < kElements; ++k) {
      const int at = own.of(i) + k;
      const bool there = a.weight != nullptr && of_row.has(at);
      weight.at[k] = there ? a.weight[start + at] : from_float<W>(1.0f);
    }
    *reinterpret_cast<Vector<W, kElements>*>(weights + own.of(i)) = weight;
  }
  cluster_wait();
  launch_dependents();

  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  const int lane = threadIdx.x % kWarpSize;
  // A block waits for its slowest warp: warp 0 sends the sums, the last has the masked vector, and
  // one in the middle requests rows.
  const int requester = threads / kWarpSize / 2 * kWarpSize;
  const auto ask_for_statistics = [&](int nth) {  // mean and rstd, for lane 0
    if (nth >= rows || lane > 0) return float2{};
    const float mean = kLayer ? a.mean[row_of(nth)] : 0.0f;
    return make_float2(mean, a.rstd[row_of(nth)]);
  };
  const auto from_lane_0 = [](float2 asked) {
    const float mean = kLayer ? __shfl_sync(kFullMask, asked.x, 0) : 0.0f;
    return make_float2(mean, __shfl_sync(kFullMask, asked.y, 0));
  };
  const auto terms_of = [&](const Slices<T>& slices, int i, float2 statistics) {
    auto x = load_vector<kElements>(slices.x, own.of(i));
    auto dy = load_vector<kElements>(slices.dy, own.of(i));
    const auto weight = load_vector<kElements>(weights, own.of(i));
    if (i == 0) {
      x = mask.of(x);
      dy = mask.of(dy);
    }
    return GradientTerms<kElements>(x, dy, weight, statistics.x, statistics.y);
  };
  Vector<float, kElements> dweight[kVectors] = {};
  Vector<float, kElements> dbias[kVectors] = {};
  const auto add_up = [&](const Slices<T>& slices, float2 statistics) {
    float2 c = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (!own.has(i)) continue;
      const auto terms = terms_of(slices, i, statistics);
      terms.add_to(c);
      for (int k = 0; k < kElements; ++k) {
        dweight[i].at[k] += terms.dy[k] * terms.xhat[k];
        if (kLayer) dbias[i].at[k] += terms.dy[k];
      }
    }
    return c;
  };
  const auto store_dx = [&](const Slices<T>& slices, T* dx_slice, float2 statistics, float2 c) {
    const float rstd = statistics.y;
    const float scaled_c1 = c.x * inverse_cols * rstd;
    const float scaled_c2 = kLayer ? c.y * inverse_cols * rstd : 0.0f;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (!own.has(i)) continue;
      const auto terms = terms_of(slices, i, statistics);
      float dx[kElements];
      for (int k = 0; k < kElements; ++k) {
        dx[k] = rstd * terms.wdy[k] - (terms.xhat[k] * scaled_c1 + scaled_c2);
      }
      const auto at = static_cast<unsigned>(own.of(i));
      if (i > 0 || whole) {
        store_whole(dx_slice + at, from_floats<T>(dx));
        continue;
      }
      for (int k = 0; k < kElements; ++k) {
        if (of_row.has(at + k)) dx_slice[at + k] = from_float<T>(dx[k]);
      }
    }
  };

  float2 of_done = {};                     // mean and rstd of the row whose dx is next
  float2 of_this = {};                     // of the row that is added up
  float2 of_next = ask_for_statistics(0);  // of the row after that one, in lane 0
  int done_stage = 0;
  for (int nth = 0; nth <= rows; ++nth) {  // dx is a row behind the sums
    of_done = of_this;
    of_this = from_lane_0(of_next);
    of_next = ask_for_statistics(nth + 1);
    if (nth < rows) {
      ring.wait();
      const Slices<T> slices = slices_in(nth, ring.stage);
      if (!alike || at_end(nth)) bring_rest(nth, slices);
      const float2 c = add_up(slices, of_this);
      ring.advance();
      send_sums(c, exchange, nth);
    }
    const int done = nth - 1;
    if (done >= 0) {
      const float2 c = receive_sums(exchange, done);
      store_dx(slices_in(done, done_stage), a.dx + slice_start(done), of_done, c);
    }
    ring.release();
    __syncthreads();
    if (done < 0) continue;
    if (thread == requester) request(done + stages, done_stage);
    done_stage = done_stage + 1 < stages ? done_stage + 1 : 0;
  }

  if (a.dweight == nullptr) return;  // frozen parameters: no sums to store
  const int64_t part = cluster * sums.stride;
  store_side_by_side(own, of_row, dweight, sums.dweight + part + start);
  if (kLayer) store_side_by_side(own, of_row, dbias, sums.dbias + part + start);
  if (rank == 0) set_rest(sums, part, row_cols);
}

/// A row that lies in so many vectors, over so many blocks.
template <typename Fit, typename T, typename W>
Plan cut_over(int blocks, int64_t vectors, unsigned end_rows) {
  const auto slice_vectors = blocks_for(vectors, blocks);
  Plan plan{};
  plan.blocks = blocks;
  plan.end_rows = static_cast<int>(end_rows);
  plan.slice = int64_t{slice_vectors} * kVectorElements<T>;
  const int64_t room = max_shared_bytes() / Fit::kBlocks - kOtherBytes;
  const int64_t of_rows = room - plan.slice * int64_t{sizeof(W)};
  const int64_t slot_bytes =
      slot_elements_for<T>(static_cast<int>(plan.slice)) * int64_t{sizeof(T)};
  const int64_t rows = of_rows / (2 * slot_bytes);  // of x and dy
  plan.stages = static_cast<int>(std::clamp<int64_t>(rows, 1, kMaxStages));
  const auto warps = static_cast<int>(blocks_for(slice_vectors, kWarpSize));
  plan.threads = std::min(warps, Fit::kWarps) * kWarpSize;
  return plan;
}

/// Whether a block has registers and shared memory for its slice.
template <typename Fit>
bool has_room(const Plan& plan) {
  const bool widest = Fit::kBlocks == 1 && plan.blocks == kMaxCluster;
  const int least = widest ? kLeastStages : kOverlapStages;
  return plan.slice <= Fit::kSlice && plan.stages >= least;
}

template <typename T, typename W>
std::size_t shared_bytes_of(const Plan& plan) {
  const std::size_t row_bytes = 2 * slot_elements_for<T>(static_cast<int>(plan.slice)) * sizeof(T);
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

/// The cut that gives the most blocks work. The number of clusters must be a multiple of the period
/// with which rows start alike; where fewer fit, they run in turns. A larger cluster must gain a
/// twentieth.
template <typename Fit, typename T, typename W, typename Kernel>
Choice best_cut(const BackwardArgs<T, W>& a, Kernel kernel, int least_blocks, int most_blocks) {
  Choice best{};
  for (int blocks = least_blocks; blocks <= most_blocks; ++blocks) {
    const Plan plan =
        cut_over<Fit, T, W>(blocks, row_vectors(a.dx, a.cols), rows_at_end<T>(a.cols));
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

/// Launches clusters of so many blocks, if a cut of them gives that many blocks work.
template <Kind kKind, typename Fit, typename T, typename W>
bool launch_clusters(const BackwardArgs<T, W>& a, int least_blocks, int most_blocks,
                     int64_t least_busy = 1) {
  const auto kernel = layer_norm_backward<T, W, kKind, Fit>;
  const Choice choice = best_cut<Fit>(a, kernel, least_blocks, most_blocks);
  if (choice.busy < least_busy) return false;
  const int64_t clusters = std::min(choice.clusters, a.rows);
  const int start = start_in_vector(a.dx);
  const bool alike = start_in_vector(a.x) == start && start_in_vector(a.dy) == start;
  const PartialSums sums = partial_sums(a, clusters, whole_sectors(a.cols));
  launch(kernel, config_for(a, choice.plan, clusters), a, choice.plan, alike, sums);
  // Clusters of two blocks leave some 130 parts, which the second kernel adds up by another cut.
  const bool many_parts = sizeof(T) < sizeof(float) && a.cols <= kManyCols;
  if (many_parts) {
    add_partial_sums<EarlyStart, kManyCols>(a, sums, clusters);
  } else {
    add_partial_sums<EarlyStart>(a, sums, clusters);
  }
  return true;
}

/// Tries, in this order: the blocks a cluster that the caller asked for; for wide rows as few
/// blocks of 512 threads as have kSliceBytes, if they keep three quarters of the multiprocessors
/// busy; up to 8 blocks of 256 threads, then up to 16; blocks of 512 with larger slices, up to 8,
/// then 16.
template <Kind kKind, typename T, typename W>
void run_kind(const BackwardArgs<T, W>& a) {
  const int asked = std::clamp(a.group, kLeastCluster, kMaxCluster);
  if (a.group > 0 && launch_clusters<kKind, TwoBlocks>(a, asked, asked)) return;
  if (a.group > 0 && launch_clusters<kKind, OneBlock>(a, asked, asked)) return;
  const int64_t row_bytes = a.cols * int64_t{sizeof(T)};
  const auto few = static_cast<int>(blocks_for(row_bytes, kSliceBytes));
  const bool wide = row_bytes >= kWideBytes;
  const int64_t least_busy = std::max(multiprocessors() * 3 / 4, 1);
  if (wide && launch_clusters<kKind, OneBlock>(a, few, kPortable, least_busy)) return;
  if (launch_clusters<kKind, TwoBlocks>(a, kLeastCluster, kPortable)) return;
  if (launch_clusters<kKind, TwoBlocks>(a, kPortable + 1, kMaxCluster)) return;
  if (launch_clusters<kKind, OneBlock>(a, kLeastCluster, kPortable)) return;
  if (launch_clusters<kKind, OneBlock>(a, kMaxCluster, kMaxCluster)) return;
  throw std::runtime_error(
      "lib_bwd_cluster_unaligned: this GPU has no room for the cluster of blocks that a row of " +
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
    .id = "lib_bwd_cluster_unaligned",
    .title = "Wide unaligned rows over a cluster",
    .teaches = "rows of up to 512 KB that start anywhere, at 84 to 89 % of a triad",
    .source = "this repository",
    .road = Road::Library,
    .usual_cols = 2049,
    .shares_by_address = true,
    .takes_frozen = true,
    .group = "blocks a cluster",
    .min_architecture = 90,
    .max_row_bytes = (512 << 10) - 16,
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

}  // namespace lib_bwd_cluster_unaligned
