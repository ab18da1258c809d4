// lib_bwd_cluster_unaligned · Wide unaligned rows over a cluster
//
// Rows of up to nearly 512 KB that start anywhere, layer and RMS norm, on Hopper; meant for rows
// that are too wide for lib_bwd_unaligned. It uses lib_bwd_cluster's persistent clusters, and the
// rows of one cluster all start at the same offset from a 16-byte boundary. The blocks share the
// vectors that a row spans. The first and the last of these may belong partly to another row. Each
// of the two is the first vector of some thread, and only first vectors are masked. If x, dy and dx
// start at different offsets, threads load every vector element by element, which is correct but
// slow.
//
// Parts: cluster_backward.h (the walk, the exchange; bwd13), unaligned_rows.h (rows at the same
// offset; bwd15), ring.h (fwd08, bwd12), column_gradients.h (bwd01, bwd09), partial_sums.h (bwd06,
// early start bwd12), vector.h (fwd06).
//
// Measurements behind the constants, on an H100, 128 MiB, layer norm, µs:
// - Cuts: 12 289 columns of bf16 take 166 in blocks of 256 threads, two per multiprocessor, and 181
//   in blocks of 512; 20 001 columns take 156 in clusters of two blocks of 512, and 160 to 191 in
//   clusters of three to five of 256; 12 289 columns of f32 take 156 in three blocks of 512, and
//   151 to 168 in four to eight of 256.
// - Masks: 155 at f32 667 × 50257, 162 at bf16 1335 × 50257. If single threads of block 0 handle
//   the edges instead, 165 and 160.
// - The result: 165 at bf16 5460 × 12289 and 162 at 1335 × 50257 (84 and 85 % of a triad), 155 at
//   f32 2730 × 12289 (89 %), where lib_bwd_any takes 349, 355 and 275.
#include "common/kernel/chapter.h"
#include "common/kernel/cluster_backward.h"
#include "common/kernel/column_gradients.h"
#include "common/kernel/gradient_terms.h"
#include "common/kernel/kinds.h"
#include "common/kernel/partial_sums.h"
#include "common/kernel/ring.h"
#include "common/kernel/thread_columns.h"
#include "common/kernel/unaligned_rows.h"
#include "common/kernel/vector.h"

namespace lib_bwd_cluster_unaligned {
using namespace lnc;

constexpr int kLeastCluster = 2;  // blocks
constexpr int kPortable = 8;      // supported by every Hopper GPU
constexpr int kMaxCluster = 16;
constexpr int kMaxStages = 4;           // rows of a slice in shared memory
constexpr int kOverlapStages = 3;       // the fewest with a row always in flight
constexpr int kLeastStages = 2;         // of the widest rows
constexpr int kColumns = 32;            // of a thread
constexpr int kSliceBytes = 24 << 10;   // of x in a block of 512 threads, if eight hold a row
constexpr int kWideBytes = 32 << 10;    // rows from here on have such blocks
constexpr int64_t kOtherBytes = 1536;   // of a block's shared memory: static, or the system's
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

/// How a row is cut: `blocks` blocks have `slice` elements each of the vectors that it spans.
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

/// Where a row's slices of x and dy are in shared memory.
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
    return static_cast<unsigned>(of(i)) < static_cast<unsigned>(size);  // a negative one is large
  }
};

/// Clears a vector's elements of other rows: four words and four ANDs for every type. A factor of 0
/// would turn another row's infinity into NaN.
template <typename T>
class Mask {
 public:
  static constexpr int kElements = kVectorElements<T>;
  using Bits = std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint32_t>;

  Mask() = default;
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

/// A block's slices of its cluster's rows cluster, cluster + clusters, …, which all start alike. A
/// slice's elements are counted from the boundary before it.
template <typename T, typename W>
struct UnalignedSlices {
  static constexpr int kElements = kVectorElements<T>;
  using Count = int;
  using Slot = Slices<T>;
  const BackwardArgs<T, W>& a;
  const int end_rows;
  const bool alike;
  int64_t cluster, clusters;
  int rows;                        ///< of this cluster
  int size, start, slot_elements;  ///< of the slice: elements, first column, room
  Span of_row;                     ///< the elements that are the row's
  SliceVectors own;
  Mask<T> mask;
  bool whole;  ///< whether the row has all elements of the thread's first vector
  Ring<T> ring;

  __device__ UnalignedSlices(const BackwardArgs<T, W>& a_, const Plan& plan, bool alike_,
                             Barrier* full)
      : a(a_), end_rows(plan.end_rows), alike(alike_) {
    const int blocks = cluster_size();
    cluster = blockIdx.x / blocks;
    clusters = gridDim.x / blocks;
    rows = static_cast<int>((a.rows - cluster + clusters - 1) / clusters);
    const auto slice = static_cast<int>(plan.slice);
    const auto cols = static_cast<int>(a.cols);
    const int row_start = start_in_vector(a.dx + cluster * a.cols);
    const int row_size = (row_start + cols + kElements - 1) / kElements * kElements;
    const int before = static_cast<int>(cluster_rank()) * slice;
    size = max(min(row_size - before, slice), 0);
    start = before - row_start;
    of_row = {max(-start, 0), min(cols - start, size)};
    // The last block counts down from the row's end. The last thread has the first vector counted:
    // warp 0 does the exchange and should not also store single elements.
    const int threads = blockDim.x;
    const int counted = (threads - 1 - static_cast<int>(threadIdx.x)) * kElements;
    const int apart = threads * kElements;
    const bool backwards = before + slice >= row_size;
    own = {backwards ? size - kElements - counted : counted, backwards ? -apart : apart, size};
    mask = Mask<T>(of_row, own.of(0));
    whole = of_row.has(own.of(0)) && of_row.has(own.of(0) + kElements - 1);
    slot_elements = slot_elements_for<T>(slice);
    ring = {dynamic_shared<Packed<T, kElements>>(), 2 * (slot_elements / kElements), plan.stages,
            full};
  }
  __device__ int64_t row_of(int nth) const { return cluster + nth * clusters; }
  __device__ int64_t element(int nth) const { return row_of(nth) * a.cols + start; }
  /// A slice has the same offset in a 128-byte line as in global memory.
  __device__ Slot slot(int nth, int stage) const {
    T* const first = reinterpret_cast<T*>(ring.slot(stage));
    const int x_at = start_in_line(a.x + element(nth)) / kElements * kElements;
    const int dy_at = start_in_line(a.dy + element(nth)) / kElements * kElements;
    return {first + x_at, first + slot_elements + dy_at};
  }
  /// The vectors that are wholly inside the tensor; threads load the others.
  __device__ Span copied(int nth) const {
    const int64_t from = element(nth);
    const int64_t left = a.rows * a.cols - from;
    const Span span{from < 0 ? kElements : 0, left < size ? size - kElements : size};
    return alike && span.begin < span.end ? span : Span{0, 0};
  }
  __device__ void request(int nth, int stage) const {
    if (nth >= rows) return;
    Barrier& full = ring.full[stage];
    const Span span = copied(nth);
    const auto bytes = static_cast<unsigned>(span.size() * sizeof(T));
    full.arrive_and_expect(2 * bytes);
    if (bytes == 0) return;
    const Slot to = slot(nth, stage);
    const int64_t from = element(nth) + span.begin;
    bulk_load(to.x + span.begin, a.x + from, bytes, full);
    bulk_load(to.dy + span.begin, a.dy + from, bytes, full);
  }
  __device__ W* weights() const { return reinterpret_cast<W*>(ring.slot(ring.stages)); }
  __device__ void keep_weights() const {
#pragma unroll 1
    for (int i = 0; own.has(i); ++i) {
      Vector<W, kElements> weight;
      for (int k = 0; k < kElements; ++k) {
        const int at = own.of(i) + k;
        const bool there = a.weight != nullptr && of_row.has(at);
        weight.at[k] = there ? a.weight[start + at] : from_float<W>(1.0f);
      }
      *reinterpret_cast<Vector<W, kElements>*>(weights() + own.of(i)) = weight;
    }
  }
  __device__ void complete(int nth, const Slot& to) const {
    const bool at_end = nth < end_rows || nth + end_rows >= rows;  // of the tensor, perhaps
    if (alike && !at_end) return;
    const Span span = copied(nth);
#pragma unroll 1
    for (int at = of_row.begin + static_cast<int>(threadIdx.x); at < of_row.end; at += blockDim.x) {
      if (span.has(at)) continue;
      to.x[at] = a.x[element(nth) + at];
      to.dy[at] = a.dy[element(nth) + at];
    }
    __syncthreads();
  }
  __device__ GradientTerms<kElements> terms(const Slot& from, int i, float2 statistics) const {
    auto x = load_vector<kElements>(from.x, own.of(i));
    auto dy = load_vector<kElements>(from.dy, own.of(i));
    const auto weight = load_vector<kElements>(weights(), own.of(i));
    if (i == 0) {
      x = mask.of(x);
      dy = mask.of(dy);
    }
    return {x, dy, weight, statistics.x, statistics.y};
  }
  __device__ void store(int nth, int i, const float (&dx)[kElements]) const {
    T* const to = a.dx + element(nth);
    const auto at = static_cast<unsigned>(own.of(i));
    if (i > 0 || whole) return store_whole(to + at, from_floats<T>(dx));
    for (int k = 0; k < kElements; ++k) {
      if (of_row.has(at + k)) to[at + k] = from_float<T>(dx[k]);
    }
  }
};

template <typename T, typename W, Kind kKind, typename Fit>
__global__ void __launch_bounds__(Fit::kThreads, Fit::kBlocks)
    layer_norm_backward(BackwardArgs<T, W> a, Plan plan, bool alike, PartialSums sums) {
  constexpr bool kLayer = kKind == Kind::Layer;
  constexpr int kElements = kVectorElements<T>;
  __shared__ Barrier full[kMaxStages];
  __shared__ Exchange exchange;
  UnalignedSlices<T, W> slices(a, plan, alike, full);
  ColumnGradients<kElements, kColumns / kElements, kLayer> gradients;
  // A block waits for its slowest warp: warp 0 sends the sums, the last has the masked vector, and
  // one in the middle requests rows.
  const unsigned requester = blockDim.x / kWarpSize / 2 * kWarpSize;
  walk_cluster(a, slices, exchange, 1, requester, gradients);

  if (a.dweight == nullptr) return;  // frozen parameters: no sums to store
  const int64_t part = slices.cluster * sums.stride;
  float* const dweight = sums.dweight + part + slices.start;
  store_side_by_side(slices.own, slices.of_row, gradients.dweight, dweight);
  if (kLayer) {
    float* const dbias = sums.dbias + part + slices.start;
    store_side_by_side(slices.own, slices.of_row, gradients.dbias, dbias);
  }
  if (cluster_rank() == 0) set_rest(sums, part, static_cast<int>(a.cols));
}

/// Cuts a row that spans `vectors` vectors over `blocks` blocks.
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
  return plan.stages * row_bytes + plan.slice * sizeof(W);  // which also holds a slice's sums
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
  int64_t busy;  ///< places for blocks that are occupied; 0: no cluster fits
};

/// The cut that keeps the most blocks busy. The number of clusters must be a multiple of the period
/// with which rows start alike; if fewer fit at once, they run in turn. A larger cluster must gain
/// a twentieth.
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

/// Launches clusters of these sizes if a cut keeps `least_busy` blocks busy; else returns false.
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

/// Tries, in this order: the cluster size that the caller asked for; for wide rows as few blocks of
/// 512 threads as kSliceBytes allows, if they keep three quarters of the multiprocessors busy; up
/// to 8 blocks of 256 threads, then up to 16; blocks of 512 with larger slices, up to 8, then 16.
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
  with_kind(a.kind, [&](auto kind) { run_kind<kind()>(a); });
}

/// A row for each cluster that a launch may have: clusters of two blocks, two on a multiprocessor.
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
    .run = BackwardLaunchers::every([](const auto& args) { run(args); }),
    .predicted_bytes = least_bytes<Direction::Backward>,
    .workspace_bytes = [](const Problem& p) -> std::int64_t {
      return partial_sums_bytes(p, most_partial_sums(p), whole_sectors(p.cols));
    },
}};

}  // namespace lib_bwd_cluster_unaligned
