// bwd17 · A small tensor in one shot
//
// bwd13 walks through a tensor: a ring has room for a few rows of a slice, and each row waits for
// its cluster's exchange. Where x and dy are small, all of them have room in the multiprocessors'
// shared memory at once. Here every block asks for all that it will ever need before it does
// anything else. Each warp works on rows of its own, so that nobody waits at a barrier, and a few
// clusters leave few partial sums.
//
// It should take up to 12 MB of x at 1.4 times a triad's time: 3·M·N elements, each moved once.
#include "common/kernel/chapter.h"
#include "common/kernel/gradient_terms.h"
#include "common/kernel/hopper.h"
#include "common/kernel/partial_sums.h"
#include "common/kernel/reduce.h"
#include "common/kernel/thread_columns.h"
#include "common/kernel/vector.h"

namespace bwd17 {
using namespace lnc;

constexpr int kWarps = 16;  // of a block
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kVectors = 4;   // [1] of a thread, in its part of a row
constexpr int kMostTeam = 4;  // warps that share a block's slice of a row
constexpr int kLeastCluster = 2;
constexpr int kMostCluster = 8;                        // that every Hopper has room for
constexpr int kMostRows = 128;                         // of a shot
constexpr int kWarpBytes = kVectors * kWarpSize * 16;  // of a row, for each warp

/// How a row is cut: `cluster` blocks of `slice` columns, `team` warps for each slice.
struct Cut {
  int team, cluster, slice;
};

/// A launch's rows: each cluster has `each` neighbouring ones, and the first `longer` clusters have
/// one more. It takes `shot` of them at once. A small tensor is one shot.
struct Rows {
  int64_t each, longer;
  int shot;
};

template <typename T, typename W, Kind kKind>
__global__ void __launch_bounds__(kThreads, 1)
    layer_norm_backward(BackwardArgs<T, W> a, Cut cut, Rows rows_of, float inverse_cols,
                        PartialSums sums) {
  constexpr int kElements = kVectorElements<T>;
  constexpr bool kLayer = kKind == Kind::Layer;
  __shared__ Barrier full[kMostRows];     // [2]
  __shared__ Barrier arrived[kMostRows];  // likewise
  const int blocks = cut.cluster;
  const int slice = cut.slice;
  const int teams = kWarps / cut.team;
  const int64_t cluster = blockIdx.x / blocks;
  int64_t first_row = cluster * rows_of.each + min(cluster, rows_of.longer);  // of the shot
  auto rows_left = static_cast<int>(rows_of.each + (cluster < rows_of.longer));
  const int start = cluster_rank() * slice;  // its first column
  const int cols = max(min(static_cast<int>(a.cols) - start, slice), 0);
  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  const int team = warp / cut.team;
  const int member = warp % cut.team;                    // of the team
  const int piece = cluster_rank() * cut.team + member;  // of a row
  const ThreadColumns own{(member * kWarpSize + lane) * kElements, cut.team * kWarpSize * kElements,
                          cols};

  T* const x_rows = dynamic_shared<T>();  // [row of the shot][column of the slice]
  T* const dy_rows = x_rows + rows_of.shot * slice;
  const int pieces = blocks * cut.team;  // of a row, each a warp's
  auto* const of_piece = reinterpret_cast<float2*>(dy_rows + rows_of.shot * slice);  // [row][piece]
  W* const weights = reinterpret_cast<W*>(of_piece + rows_of.shot * pieces);

  // [3] A team asks for its own rows: `team`, `team` + teams, ... of the shot, each by a lane.
  const auto request = [&] {
    const int rows = min(rows_left, rows_of.shot);
    const auto bytes = static_cast<unsigned>(cols * sizeof(T));
#pragma unroll 1
    for (int i = team + lane * teams; i < rows; i += kWarpSize * teams) {
      full[i].arrive_and_expect(2 * bytes);
      if (bytes == 0) continue;
      const int64_t element = (first_row + i) * a.cols + start;
      bulk_load(x_rows + i * slice, a.x + element, bytes, full[i], L2Policy::EvictFirst);  // [4]
      bulk_load(dy_rows + i * slice, a.dy + element, bytes, full[i], L2Policy::EvictFirst);
    }
  };
  if (member == 0) {
#pragma unroll 1
    for (int i = team + lane * teams; i < rows_of.shot; i += kWarpSize * teams) {
      full[i].init(1);
      arrived[i].init(cut.team);
    }
    fence_barrier_init();
    __syncwarp();  // a barrier's other users are other lanes
    request();
  }
  cluster_arrive_relaxed();  // [5]
  launch_dependents();

  Vector<float, kElements> dweight[kVectors] = {};
  Vector<float, kElements> dbias[kVectors] = {};
  if (team == 0) {  // the teams' columns are the same
    for (int v = 0; own.has(v); ++v) {
      const auto weight =
          load_if<kElements>(a.weight != nullptr, a.weight, start + own.of(v), 1.0f);
      *reinterpret_cast<Packed<W, kElements>*>(weights + own.of(v)) = weight;
    }
  }
  const auto statistics_of_lane = [&] {  // [6] mean and rstd of the team's row number `lane`
    const int i = team + lane * teams;
    if (i >= min(rows_left, rows_of.shot)) return float2{};
    const float mean = kLayer ? a.mean[first_row + i] : 0.0f;
    return make_float2(mean, a.rstd[first_row + i]);
  };
  float2 of_lane = statistics_of_lane();
  __syncthreads();
  cluster_wait();

  const auto terms_of = [&](int i, int v, float2 statistics) {
    const auto x = load_vector<kElements>(x_rows + i * slice, own.of(v));
    const auto dy = load_vector<kElements>(dy_rows + i * slice, own.of(v));
    const auto weight = load_vector<kElements>(weights, own.of(v));
    return GradientTerms<kElements>(x, dy, weight, statistics.x, statistics.y);
  };
  const auto send_sums = [&](int i, float2 statistics) {
    float2 c = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (!own.has(v)) continue;
      const auto terms = terms_of(i, v, statistics);
      terms.add_to(c);
      for (int k = 0; k < kElements; ++k) {
        dweight[v].at[k] += terms.dy[k] * terms.xhat[k];
        if (kLayer) dbias[v].at[k] += terms.dy[k];
      }
    }
    c = warp_sum(c);
    if (lane == 0) arrived[i].arrive_and_expect(blocks * sizeof c);
    float2* const mine = &of_piece[i * pieces + piece];
    if (lane < blocks) remote_store_async(mine, lane, c, arrived[i]);
  };
  const auto store_dx = [&](int i, float2 statistics) {
    const float2 c = warp_sum(lane < pieces ? of_piece[i * pieces + lane] : float2{});
    const float rstd = statistics.y;
    const float scaled_c1 = c.x * inverse_cols * rstd;
    const float scaled_c2 = kLayer ? c.y * inverse_cols * rstd : 0.0f;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (!own.has(v)) continue;
      const auto terms = terms_of(i, v, statistics);
      float dx[kElements];
      for (int k = 0; k < kElements; ++k) {
        dx[k] = rstd * terms.wdy[k] - (terms.xhat[k] * scaled_c1 + scaled_c2);
      }
      store(a.dx, (first_row + i) * a.cols + start + own.of(v), dx);
    }
  };

  unsigned parity = 0;  // of the shot
  while (true) {
    const auto statistics_of = [&](int nth) {
      return make_float2(__shfl_sync(kFullMask, of_lane.x, nth),
                         __shfl_sync(kFullMask, of_lane.y, nth));
    };
    const int team_rows = (min(rows_left, rows_of.shot) - team + teams - 1) / teams;
    for (int nth = 0; nth <= team_rows; ++nth) {  // [7] dx is a row behind the sums
      const int i = team + nth * teams;
      if (nth < team_rows) {
        full[i].wait(parity);
        send_sums(i, statistics_of(nth));
      }
      if (nth == 0) continue;
      arrived[i - teams].wait_at_cluster_scope(parity);
      store_dx(i - teams, statistics_of(nth - 1));
    }
    cluster_sync();  // [8]
    rows_left -= rows_of.shot;
    if (rows_left <= 0) break;
    first_row += rows_of.shot;
    parity ^= 1;
    if (member == 0) request();
    of_lane = statistics_of_lane();
  }

  if (a.dweight == nullptr) return;  // frozen parameters: nobody wants the sums
  const int64_t part = cluster * a.cols + start;
  auto* const of_teams = dynamic_shared<float>();  // [9]
  auto* const dbias_of_teams = of_teams + teams * cols;
  store_sums(own, dweight, of_teams + team * cols);
  if (kLayer) store_sums(own, dbias, dbias_of_teams + team * cols);
  __syncthreads();
  add_rows(of_teams, teams, cols, sums.dweight + part);
  if (kLayer) add_rows(dbias_of_teams, teams, cols, sums.dbias + part);
}

/// [10] Of the narrowest teams that hold a row, the smallest cluster.
template <typename T>
Cut cut_row(int64_t cols) {
  constexpr int kElements = kVectorElements<T>;
  constexpr int kWarpCols = kVectors * kWarpSize * kElements;
  Cut cut{.team = 1, .cluster = kLeastCluster, .slice = 0};
  while (cut.team < kMostTeam && cut.team * kMostCluster * kWarpCols < cols) cut.team *= 2;
  while (cut.cluster < kMostCluster && cut.team * cut.cluster * kWarpCols < cols) cut.cluster *= 2;
  cut.slice = static_cast<int>(blocks_for(cols / kElements, cut.cluster)) * kElements;
  return cut;
}

template <Kind kKind, typename T, typename W>
void run_kind(const BackwardArgs<T, W>& a) {
  const auto kernel = layer_norm_backward<T, W, kKind>;
  const Cut cut = cut_row<T>(a.cols);
  // Of shared memory: each row's x, dy and sums of pieces, the weight, and in their place at the
  // end the teams' sums.
  const std::size_t room = max_shared_bytes() - (2 << 10);  // beside the barriers
  const std::size_t row_bytes = 2 * cut.slice * sizeof(T) + cut.cluster * cut.team * sizeof(float2);
  const std::size_t weight_bytes = cut.slice * sizeof(W);
  const std::size_t sums_bytes = 2 * (kWarps / cut.team) * cut.slice * sizeof(float);
  const auto most_rows = std::min<int64_t>((room - weight_bytes) / row_bytes, kMostRows);

  LaunchConfig config{0, kThreads, room, a.stream, unsigned(cut.cluster)};
  const int64_t fit = sums_bytes <= room ? resident_clusters(kernel, config) : 0;
  if (fit == 0)
    throw std::runtime_error("bwd17: this GPU has no room for a cluster of " +
                             std::to_string(cut.cluster) + " blocks");
  const int64_t clusters = std::min(fit, a.rows);
  const int64_t shot_rows = std::min<int64_t>(blocks_for(a.rows, fit), most_rows);
  config.grid = static_cast<unsigned>(clusters * cut.cluster);
  config.shared_bytes = std::max(shot_rows * row_bytes + weight_bytes, sums_bytes);
  const PartialSums sums = partial_sums(a, clusters);
  const Rows rows{a.rows / fit, a.rows % fit, static_cast<int>(shot_rows)};
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  launch(kernel, config, a, cut, rows, inverse_cols, sums);
  add_partial_sums<EarlyStart>(a, sums, clusters);
}

template <typename T, typename W>
void run(const BackwardArgs<T, W>& a) {
  if (a.kind == Kind::Layer) {
    run_kind<Kind::Layer>(a);
  } else {
    run_kind<Kind::Rms>(a);
  }
}

const Registration registration{{
    .id = "bwd17",
    .title = "A small tensor in one shot",
    .teaches = "all of a small tensor is asked for at once; a warp's rows are its own",
    .source = "this repository",
    .parent = "bwd13",
    .road = Road::WideRows,
    .needs_aligned = true,
    .takes_frozen = true,
    .min_architecture = 90,
    .max_row_bytes = int64_t{kMostCluster} * kMostTeam * kWarpBytes,
    .max_row_bytes_because = "the warps of a cluster hold its sums",
    .run = BackwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>, run<__half, float>,
                             run<__nv_bfloat16, float>},
    .predicted_bytes = [](const Problem& p, const Gpu&) -> std::int64_t {
      return 3 * p.tensor_bytes() + parameter_bytes(p);
    },
    .workspace_bytes = [](const Problem& p) -> std::int64_t {
      const int64_t clusters = blocks_for(multiprocessors(), kLeastCluster);
      return partial_sums_bytes(p, std::min(p.rows, clusters));
    },
}};

}  // namespace bwd17
