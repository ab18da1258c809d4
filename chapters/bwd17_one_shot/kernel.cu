// bwd17 · A small tensor in one shot
//
// With few clusters there are few partial sums to add up, but each block has a narrow slice of many
// rows, and for every one of them bwd13 waits at a barrier and for an exchange. If x and dy are
// small, all of them fit into the multiprocessors' shared memory at once. Here every block requests
// all its x and dy before it does anything else, and each pair of warps works on rows of its own.
// No barrier holds up a block, and no slot is used twice.
//
// It should move bwd13's bytes, with a quarter of its partial sums where that has clusters of two,
// and wait at none of its barriers. A tensor of more than about 12 MiB needs several shots.
#include "common/kernel/chapter.h"
#include "common/kernel/gradient_terms.h"
#include "common/kernel/hopper.h"
#include "common/kernel/partial_sums.h"
#include "common/kernel/reduce.h"
#include "common/kernel/vector.h"

namespace bwd17 {
using namespace lnc;

constexpr int kCluster = 8;    // blocks, a slice of the columns each
constexpr int kThreads = 512;  // of a block
constexpr int kTeamWarps = 2;  // [1] that share a row's slice
constexpr int kTeamThreads = kTeamWarps * kWarpSize;
constexpr int kTeams = kThreads / kTeamThreads;
constexpr int kVectors = 4;                     // of 16 bytes, a thread's share of a row
constexpr int kPieces = kCluster * kTeamWarps;  // of a row, one for each warp that works on it
constexpr int kMaxRows = 128;                   // of a cluster
constexpr int kBarrierBytes = 2 * kMaxRows * sizeof(Barrier);

/// Cluster q has `cluster_rows` rows, from q · cluster_rows on; the last one has what is left. Team
/// t of each of its blocks works on the rows t, t + kTeams, … of these, in its block's slice.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    layer_norm_backward(BackwardArgs<T> a, int cluster_rows, int slice, PartialSums sums) {
  // exercise
  constexpr int kElements = kVectorElements<T>;
  __shared__ Barrier full[kMaxRows];    // [2] x and dy of a row are there
  __shared__ Barrier summed[kMaxRows];  // the pairs of all its pieces are there
  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  const int team = warp / kTeamWarps;
  const int rank = cluster_rank();
  const int64_t cluster = blockIdx.x / kCluster;
  const int64_t first_row = cluster * cluster_rows;
  const auto rows = static_cast<int>(min(a.rows - first_row, int64_t{cluster_rows}));
  const int64_t first_col = int64_t{rank} * slice;
  const auto cols = static_cast<int>(max(min(a.cols - first_col, int64_t{slice}), int64_t{0}));
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);

  const int first = static_cast<int>(threadIdx.x) % kTeamThreads * kElements;
  const auto col_of = [=](int i) { return first + i * kTeamThreads * kElements; };
  T* const x_rows = dynamic_shared<T>();  // [row][column]
  T* const dy_rows = x_rows + cluster_rows * slice;
  auto* const of_piece = reinterpret_cast<float2*>(dy_rows + cluster_rows * slice);  // [row][piece]

  const int asked = lane * (kThreads / kWarpSize) + warp;  // [3] the row that this thread requests
  if (asked < rows) {
    const auto bytes = static_cast<unsigned>(cols * sizeof(T));
    const int64_t from = (first_row + asked) * a.cols + first_col;
    full[asked].init(1);
    summed[asked].init(1);
    fence_barrier_init();
    full[asked].arrive_and_expect(2 * bytes);
    summed[asked].arrive_and_expect(kPieces * sizeof(float2));
    if (bytes > 0) {  // [4]
      bulk_load(x_rows + asked * slice, a.x + from, bytes, full[asked], L2Policy::EvictFirst);
      bulk_load(dy_rows + asked * slice, a.dy + from, bytes, full[asked], L2Policy::EvictFirst);
    }
  }

  cluster_arrive_relaxed();  // [5]
  launch_dependents();
  Packed<T, kElements> weight[kVectors];
  float dweight[kVectors][kElements] = {};
  float dbias[kVectors][kElements] = {};
#pragma unroll
  for (int i = 0; i < kVectors; ++i)
    weight[i] = load_if<kElements>(col_of(i) < cols, a.weight, first_col + col_of(i));
  cluster_wait();

  for (int row = team; row < rows; row += kTeams) {  // the sums of all rows
    const float mean = a.mean[first_row + row];
    const float rstd = a.rstd[first_row + row];
    full[row].wait(0);

    float2 c = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (col_of(i) >= cols) continue;
      const auto x = load_vector<kElements>(x_rows + row * slice, col_of(i));
      const auto dy = load_vector<kElements>(dy_rows + row * slice, col_of(i));
      stay_packed(weight[i]);
      const GradientTerms<kElements> terms(x, dy, weight[i], mean, rstd);
      terms.add_to(c);
      for (int k = 0; k < kElements; ++k) {
        dweight[i][k] += terms.dy[k] * terms.xhat[k];
        dbias[i][k] += terms.dy[k];
      }
    }

    c = warp_sum(c);
    float2* const mine = &of_piece[row * kPieces + rank * kTeamWarps + warp % kTeamWarps];
    if (lane < kCluster) remote_store_async(mine, lane, c, summed[row]);  // lane r to block r
  }

  for (int row = team; row < rows; row += kTeams) {  // dx of all rows
    const float mean = a.mean[first_row + row];
    const float rstd = a.rstd[first_row + row];
    summed[row].wait_at_cluster_scope(0);
    const float2 c = warp_sum(lane < kPieces ? of_piece[row * kPieces + lane] : float2{});
    const float c1 = c.x * inverse_cols;
    const float c2 = c.y * inverse_cols;

#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (col_of(i) >= cols) continue;
      const auto x = load_vector<kElements>(x_rows + row * slice, col_of(i));
      const auto dy = load_vector<kElements>(dy_rows + row * slice, col_of(i));
      stay_packed(weight[i]);
      const GradientTerms<kElements> terms(x, dy, weight[i], mean, rstd);
      float dx[kElements];
      for (int k = 0; k < kElements; ++k) dx[k] = rstd * (terms.wdy[k] - c2 - terms.xhat[k] * c1);
      store(a.dx, (first_row + row) * a.cols + first_col + col_of(i), dx);
    }
  }

  __syncthreads();                                 // [6]
  auto* const dweights = dynamic_shared<float>();  // [team][column]
  auto* const dbiases = dweights + kTeams * cols;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (col_of(i) >= cols) continue;
    store(dweights + team * cols, col_of(i), dweight[i]);
    store(dbiases + team * cols, col_of(i), dbias[i]);
  }
  __syncthreads();
  add_rows(dweights, kTeams, cols, sums.dweight + cluster * a.cols + first_col);
  add_rows(dbiases, kTeams, cols, sums.dbias + cluster * a.cols + first_col);
}

/// How the columns are cut, and what a block needs of shared memory.
struct Cut {
  int64_t slice;      ///< columns of a block, in whole vectors
  int64_t row_bytes;  ///< x and dy of a row in the slice, and the sums of all its pieces
  int64_t most_rows;  ///< that a block has room for
};

Cut cut_of(int64_t cols, int64_t element_bytes) {
  const int64_t vectors = blocks_for(cols * element_bytes, 16 * kCluster);
  const int64_t row_bytes = 2 * vectors * 16 + kPieces * int64_t{sizeof(float2)};
  const int64_t most_rows = (max_shared_bytes() - kBarrierBytes) / row_bytes;
  return {vectors * 16 / element_bytes, row_bytes, std::min<int64_t>(most_rows, kMaxRows)};
}

template <typename T>
void run(const BackwardArgs<T>& a) {
  const Cut cut = cut_of(a.cols, sizeof(T));
  const auto kernel = layer_norm_backward<T>;
  const auto room = static_cast<std::size_t>(max_shared_bytes() - kBarrierBytes);
  LaunchConfig config{0, kThreads, room, a.stream, kCluster};
  const int64_t fit = std::max(resident_clusters(kernel, config), 1);
  const int64_t cluster_rows = std::clamp<int64_t>(blocks_for(a.rows, fit), 1, cut.most_rows);
  const int64_t clusters = blocks_for(a.rows, cluster_rows);  // [7] of a large tensor more than fit
  const int64_t sums_bytes = 2 * kTeams * cut.slice * int64_t{sizeof(float)};
  config.grid = static_cast<unsigned>(clusters * kCluster);
  config.shared_bytes = std::max(cluster_rows * cut.row_bytes, sums_bytes);
  const PartialSums sums = partial_sums(a, clusters);
  launch(kernel, config, a, static_cast<int>(cluster_rows), static_cast<int>(cut.slice), sums);

  using Vectors = SumOfVectors;  // [8] starts early; a row of its grid for dweight, one for dbias
  const dim3 grid(blocks_for(a.cols, Vectors::kLanes * Vectors::kElements), 2);
  launch(add_partial_sums_kernel<EarlyStart, Vectors, T>,
         {grid, Vectors::kLanes * Vectors::kGroups, 0, a.stream, 0, EarlyStart::kEarly}, sums,
         static_cast<int>(clusters), a.dweight, a.dbias, static_cast<unsigned>(a.cols));
}

const Registration registration{{
    .id = "bwd17",
    .title = "A small tensor in one shot",
    .teaches = "all of a small tensor is asked for at once, before the first row is used",
    .source = "this repository",
    .parent = "bwd13",
    .road = Road::WideRows,
    .kinds = {Kind::Layer},
    .needs_affine = true,
    .needs_aligned = true,
    .min_architecture = 90,
    .max_row_bytes = kCluster * kTeamThreads * kVectors * 16,
    .max_row_bytes_because = "the warps of a cluster hold its sums",
    .run = BackwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>},
    .predicted_bytes = [](const Problem& p, const Gpu&) -> std::int64_t {
      return 3 * p.tensor_bytes() + parameter_bytes(p);
    },
    .workspace_bytes = [](const Problem& p) -> std::int64_t {
      const int64_t most_fit = std::min<int64_t>(p.rows, multiprocessors() / kCluster);
      const int64_t least = blocks_for(p.rows, cut_of(p.cols, p.element_bytes()).most_rows);
      return partial_sums_bytes(p, std::max(most_fit, least));
    },
}};

}  // namespace bwd17
