// lib_bwd_one_shot · Small tensors in one shot
//
// Aligned rows of up to 64 KB, layer and RMS norm, parameters of x's type, on Hopper; meant for
// small tensors, which fit into the shared memory of all multiprocessors at once. Every block
// requests all of its rows before it does anything else. A team of one to four warps has rows of
// its own, with a slice of each in every block of the cluster, and exchanges a row's sums while it
// adds up its next row. With few clusters there are few partial sums. Larger tensors need several
// shots.
//
// Parts: hopper.h (bulk copies, clusters, remote stores; fwd08, fwd09, bwd13), column_gradients.h
// (bwd01, bwd09), partial_sums.h (bwd06, early start bwd12), reduce.h, vector.h (fwd06).
// bwd17 teaches the shot.
//
// Measurements behind the constants, on an H100, bf16 512 × 8192 in layer norm unless stated
// otherwise. The trials are programs that contain only this kernel, which takes 20.4 µs in them:
// - Clusters of eight blocks: clusters of four take 21.8, and of 16 take 23.6 to 31.6. Teams of
//   four warps with one vector take 22.5. 24 warps per block take 20.0 here, but 21.3 against 20.4
//   at 7168 columns.
// - EvictFirst: 20.35 µs, and 20.70 without. The second kernel adds up four columns per thread:
//   20.35 µs, and 21.28 otherwise.
// - The result: 21.8 µs at 512 × 8192 (lib_bwd_ring 25.0), 21.8 at 256 × 16384 (lib_bwd_cluster
//   27.9), 22.2 at 128 × 32768 (28.0). A second shot costs 2 µs: 34.8 at 16 MiB of 8192 columns,
//   where the best other kernel takes 34.4.
#include "common/kernel/chapter.h"
#include "common/kernel/column_gradients.h"
#include "common/kernel/gradient_terms.h"
#include "common/kernel/hopper.h"
#include "common/kernel/kinds.h"
#include "common/kernel/partial_sums.h"
#include "common/kernel/reduce.h"
#include "common/kernel/thread_columns.h"
#include "common/kernel/vector.h"

namespace lib_bwd_one_shot {
using namespace lnc;

constexpr int kWarps = 16;  // of a block
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kVectors = 4;   // of a thread in a row: 64 registers of sums, 16 of weight
constexpr int kMostTeam = 4;  // warps that share a block's slice of a row
constexpr int kLeastCluster = 2;
constexpr int kMostCluster = 8;  // supported by every Hopper GPU
constexpr int kMostRows = 128;   // of a shot
constexpr int kVectorBytes = 16;
constexpr int kWarpBytes = kVectors * kWarpSize * kVectorBytes;  // of a row, for each warp

/// A block's slices of its cluster's rows, and the threads that work on them. A cluster has the
/// rows from a.rows · cluster / clusters on, and takes `shot_rows` of them at once; a small tensor
/// is one shot. A team has the rows `team`, `team` + kTeams, … of a shot.
template <typename T, typename W, int kTeam>
struct Shot {
  static constexpr int kElements = kVectorElements<T>;
  static constexpr int kTeams = kWarps / kTeam;
  const BackwardArgs<T, W>& a;
  int slice, shot_rows;
  Barrier* full;     ///< of each row of the shot; used once a shot, so all have the shot's parity
  Barrier* arrived;  ///< of each row: its sums have come from all blocks
  int blocks, rank;
  int64_t cluster, first_row, end_row, start;
  int warp, lane, team, member;  ///< `member` of the team
  ThreadColumns own;
  int pieces;           ///< of a row, each a warp's
  T *x_rows, *dy_rows;  ///< [row of the shot][column of the slice]
  float2* of_piece;     ///< [row][piece]

  __device__ Shot(const BackwardArgs<T, W>& a_, int slice_, int shot_rows_, Barrier* full_,
                  Barrier* arrived_)
      : a(a_), slice(slice_), shot_rows(shot_rows_), full(full_), arrived(arrived_) {
    blocks = cluster_size();
    rank = cluster_rank();
    cluster = blockIdx.x / blocks;
    const int64_t clusters = gridDim.x / blocks;
    first_row = a.rows * cluster / clusters;
    end_row = a.rows * (cluster + 1) / clusters;
    start = int64_t{rank} * slice;
    const auto cols = static_cast<int>(max(min(a.cols - start, int64_t{slice}), int64_t{0}));
    warp = threadIdx.x / kWarpSize;
    lane = threadIdx.x % kWarpSize;
    team = warp / kTeam;
    member = warp % kTeam;
    own = {(member * kWarpSize + lane) * kElements, kTeam * kWarpSize * kElements, cols};
    pieces = blocks * kTeam;
    x_rows = dynamic_shared<T>();
    dy_rows = x_rows + shot_rows * slice;
    of_piece = reinterpret_cast<float2*>(dy_rows + shot_rows * slice);
  }
  __device__ int rows_from(int64_t shot_start) const {
    return static_cast<int>(min(end_row - shot_start, int64_t{shot_rows}));
  }
  /// A team initialises the mbarriers of its own rows, a lane each, and requests these rows: copies
  /// begin before any barrier.
  __device__ void begin() const {
    if (member > 0) return;
    for (int i = team + lane * kTeams; i < shot_rows; i += kWarpSize * kTeams) {
      full[i].init(1);
      arrived[i].init(1);
    }
    fence_barrier_init();
    __syncwarp();  // a lane may use an mbarrier that another has initialised
    request(first_row, rows_from(first_row));
  }
  __device__ void request(int64_t shot_start, int rows) const {
    const auto bytes = static_cast<unsigned>(own.cols * sizeof(T));
    for (int i = team + lane * kTeams; i < rows; i += kWarpSize * kTeams) {
      full[i].arrive_and_expect(2 * bytes);
      if (bytes == 0) continue;
      const int64_t element = (shot_start + i) * a.cols + start;
      // Read once: L2 may evict them first.
      bulk_load(x_rows + i * slice, a.x + element, bytes, full[i], L2Policy::EvictFirst);
      bulk_load(dy_rows + i * slice, a.dy + element, bytes, full[i], L2Policy::EvictFirst);
    }
  }
  /// mean and rstd of the lane's row of a shot. 32 lanes are enough: 128 rows have four teams or
  /// more.
  template <bool kLayer>
  __device__ float2 lane_statistics(int64_t shot_start) const {
    const int lane_row = team + lane * kTeams;
    float2 statistics = {};
    if (lane_row < rows_from(shot_start)) {
      statistics.x = kLayer ? a.mean[shot_start + lane_row] : 0.0f;
      statistics.y = a.rstd[shot_start + lane_row];
    }
    return statistics;
  }
  __device__ GradientTerms<kElements> terms(int i, int v, Packed<W, kElements>& weight,
                                            float2 statistics) const {
    const auto x = load_vector<kElements>(x_rows + i * slice, own.of(v));
    const auto dy = load_vector<kElements>(dy_rows + i * slice, own.of(v));
    stay_packed(weight);
    return {x, dy, weight, statistics.x, statistics.y};
  }
  /// Adds up row i of the shot, and sends the warp's sums to every block of the cluster.
  template <typename Gradients>
  __device__ void send_sums(int i, Packed<W, kElements> (&weight)[kVectors], float2 statistics,
                            Gradients& gradients) const {
    float2 c = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (!own.has(v)) continue;
      const auto of_vector = terms(i, v, weight[v], statistics);
      of_vector.add_to(c);
      gradients.add(v, of_vector);
    }
    c = warp_sum(c);
    if (member == 0 && lane == 0) arrived[i].arrive_and_expect(pieces * sizeof c);
    float2* const mine = &of_piece[i * pieces + rank * kTeam + member];
    if (lane < blocks) remote_store_async(mine, lane, c, arrived[i]);
  }
  template <bool kLayer>
  __device__ void store_dx(int64_t row, int i, Packed<W, kElements> (&weight)[kVectors],
                           float2 statistics, float inverse_cols) const {
    const float2 c = warp_sum(lane < pieces ? of_piece[i * pieces + lane] : float2{});
    const float2 scaled = scaled_means<kLayer>(c, inverse_cols, statistics.y);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (!own.has(v)) continue;
      float dx[kElements];
      dx_of(terms(i, v, weight[v], statistics), statistics.y, scaled, dx);
      store(a.dx, row * a.cols + start + own.of(v), dx);
    }
  }
};

template <typename T, typename W, Kind kKind, int kTeam>
__global__ void __launch_bounds__(kThreads)
    layer_norm_backward(BackwardArgs<T, W> a, int slice, int shot_rows, PartialSums sums) {
  constexpr int kElements = kVectorElements<T>;
  constexpr bool kLayer = kKind == Kind::Layer;
  constexpr int kTeams = kWarps / kTeam;
  __shared__ Barrier full[kMostRows];
  __shared__ Barrier arrived[kMostRows];
  const Shot<T, W, kTeam> shot(a, slice, shot_rows, full, arrived);
  const ThreadColumns& own = shot.own;
  shot.begin();
  // No block may send before the others run and have initialised their mbarriers. Weights and
  // statistics are requested meanwhile.
  cluster_arrive_relaxed();
  launch_dependents();

  Packed<W, kElements> weight[kVectors];
  ColumnGradients<kElements, kVectors, kLayer> gradients;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const bool given = a.weight != nullptr && own.has(v);
    weight[v] = load_if<kElements>(given, a.weight, shot.start + own.of(v), 1.0f);
  }
  float2 of_lane = shot.template lane_statistics<kLayer>(shot.first_row);
  cluster_wait();

  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  unsigned parity = 0;  // of the shot
  for (int64_t shot_start = shot.first_row; shot_start < shot.end_row; shot_start += shot_rows) {
    const int rows = shot.rows_from(shot_start);
    if (shot_start > shot.first_row) {
      if (shot.member == 0) shot.request(shot_start, rows);
      of_lane = shot.template lane_statistics<kLayer>(shot_start);
    }
    const auto statistics_of = [&](int nth) {
      return make_float2(__shfl_sync(kFullMask, of_lane.x, nth),
                         __shfl_sync(kFullMask, of_lane.y, nth));
    };
    const int team_rows = (rows - shot.team + kTeams - 1) / kTeams;
    for (int nth = 0; nth <= team_rows; ++nth) {  // dx is a row behind the sums
      const int i = shot.team + nth * kTeams;
      if (nth < team_rows) {
        full[i].wait(parity);
        shot.send_sums(i, weight, statistics_of(nth), gradients);
      }
      if (nth == 0) continue;
      const int done = i - kTeams;
      arrived[done].wait_at_cluster_scope(parity);
      shot.template store_dx<kLayer>(shot_start + done, done, weight, statistics_of(nth - 1),
                                     inverse_cols);
    }
    parity ^= 1;
    // Before the next shot's copies overwrite what this thread has read.
    fence_proxy_async();
    // Pairs of the next shot overwrite of_piece in other blocks, and the sums below overwrite
    // everything: the cluster synchronises.
    cluster_sync();
  }

  if (a.dweight == nullptr) return;  // frozen parameters: no sums to store
  const int64_t part = shot.cluster * a.cols + shot.start;
  gradients.store_of_teams(own, shot.team, kTeams, sums, part);  // where the rows were
}

/// How a row is cut: `cluster` blocks of `slice` columns, `team` warps for each slice.
struct Cut {
  int team, cluster, slice;
};

/// The narrowest teams that hold a row, in the smallest cluster.
Cut cut_row(int64_t vectors) {
  constexpr int kWarpVectors = kWarpBytes / kVectorBytes;
  Cut cut{.team = 1, .cluster = kLeastCluster, .slice = 0};
  while (cut.team < kMostTeam && cut.team * kMostCluster * kWarpVectors < vectors) cut.team *= 2;
  while (cut.cluster < kMostCluster && cut.team * cut.cluster * kWarpVectors < vectors)
    cut.cluster *= 2;
  cut.slice = static_cast<int>(blocks_for(vectors, cut.cluster));  // in vectors
  return cut;
}

/// The shared memory that a block needs for a row: x, dy, and the sums of all its pieces.
std::size_t row_bytes(const Cut& cut) {
  return 2 * cut.slice * kVectorBytes + cut.cluster * cut.team * sizeof(float2);
}

/// What its teams' dweight and dbias need at the end: two floats for each column of a slice.
template <typename T>
std::size_t sums_bytes(const Cut& cut) {
  return 2 * (kWarps / cut.team) * cut.slice * kVectorElements<T> * sizeof(float);
}

template <Kind kKind, int kTeam, typename T, typename W>
void launch_clusters(const BackwardArgs<T, W>& a, const Cut& cut) {
  const auto kernel = layer_norm_backward<T, W, kKind, kTeam>;
  const std::size_t room = max_shared_bytes() - (2 << 10);  // besides the barriers
  const auto most_rows = std::min<int64_t>(room / row_bytes(cut), kMostRows);
  LaunchConfig config{0, kThreads, room, a.stream, unsigned(cut.cluster)};
  const int64_t fit = sums_bytes<T>(cut) <= room ? resident_clusters(kernel, config) : 0;
  if (fit == 0)
    throw std::runtime_error("lib_bwd_one_shot: this GPU has no room for a cluster of " +
                             std::to_string(cut.cluster) + " blocks");
  const int64_t clusters = std::min(fit, a.rows);
  const int64_t shot_rows = std::min<int64_t>(blocks_for(a.rows, fit), most_rows);
  config.grid = static_cast<unsigned>(clusters * cut.cluster);
  config.shared_bytes = std::max(shot_rows * row_bytes(cut), sums_bytes<T>(cut));
  const PartialSums sums = partial_sums(a, clusters);
  const int slice = cut.slice * kVectorElements<T>;
  launch(kernel, config, a, slice, static_cast<int>(shot_rows), sums);
  add_partial_sums<EarlyStart>(a, sums, clusters);
}

template <Kind kKind, typename T, typename W>
void run_kind(const BackwardArgs<T, W>& a) {
  const Cut cut = cut_row(a.cols / kVectorElements<T>);
  if (cut.team == 1) return launch_clusters<kKind, 1>(a, cut);
  if (cut.team == 2) return launch_clusters<kKind, 2>(a, cut);
  launch_clusters<kKind, kMostTeam>(a, cut);
}

template <typename T, typename W>
void run(const BackwardArgs<T, W>& a) {
  with_kind(a.kind, [&](auto kind) { run_kind<kind()>(a); });
}

const Registration registration{{
    .id = "lib_bwd_one_shot",
    .title = "Small tensors in one shot",
    .teaches = "wide rows of tensors up to 12 MiB: everything requested at once",
    .source = "this repository",
    .road = Road::Library,
    .needs_aligned = true,
    .takes_frozen = true,
    .min_architecture = 90,
    .max_row_bytes = int64_t{kMostCluster} * kMostTeam * kWarpBytes,
    .max_row_bytes_because = "the warps of a cluster hold its sums",
    .run = BackwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>},
    .predicted_bytes = least_bytes<Direction::Backward>,
    .workspace_bytes = [](const Problem& p) -> std::int64_t {
      const int64_t clusters = blocks_for(multiprocessors(), kLeastCluster);
      return partial_sums_bytes(p, std::min(p.rows, clusters));
    },
}};

}  // namespace lib_bwd_one_shot
