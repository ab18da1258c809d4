// bwd13 · Rows in clusters
//
// A block of bwd12 has room for a row of 16 KB, 8192 halves. Here a cluster of up to 16 blocks has
// a row, and each block a slice of up to 16 KB. The ring, the sums in registers and the early last
// sum are bwd12's. What is new is how c1 and c2 cross the cluster: each block sends its two sums, 8
// bytes, to every block. While they are on their way, it computes the sums of the next row, and
// only then dx of the current one.
//
// It should run at the speed of a triad for wide rows of up to 256 KB: 3·M·N elements, each moved
// once. On narrow rows the exchange, not memory, should limit the speed.
#include "common/kernel/chapter.h"
#include "common/kernel/gradient_terms.h"
#include "common/kernel/hopper.h"
#include "common/kernel/partial_sums.h"
#include "common/kernel/reduce.h"
#include "common/kernel/vector.h"

namespace bwd13 {
using namespace lnc;

constexpr int kVectors = 2;  // of 16 bytes, of a thread in x and in dy
constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kSliceVectors = kThreads * kVectors;  // [1] of a row: 16 KB of x
constexpr int kMostBlocks = 16;                     // of a cluster
constexpr int kSlots = 4;                           // [2] of the ring, and of the exchange

/// A block's slice of a row.
template <typename T>
struct Slice {
  Packed<T, kVectorElements<T>> x[kSliceVectors];
  Packed<T, kVectorElements<T>> dy[kSliceVectors];
};

/// What a thread keeps of a row from its sums to its dx.
template <typename T>
struct Part {
  Packed<T, kVectorElements<T>> x[kVectors], dy[kVectors];
  float mean, rstd;
};

/// Cluster q of Q has the rows q, q + Q, q + 2Q, … of the tensor: its rows 0, 1, 2, …
template <typename T>
__global__ void __launch_bounds__(kThreads, 1)
    layer_norm_backward(BackwardArgs<T> a, int slice_vectors, PartialSums sums) {
  // exercise
  constexpr int kElements = kVectorElements<T>;
  using V = Packed<T, kElements>;
  __shared__ Barrier full[kSlots];     // of the ring: x and dy have arrived
  __shared__ Barrier arrived[kSlots];  // of the exchange: so have all pairs
  __shared__ float2 from_block[kSlots][kMostBlocks];
  __shared__ float2 from_warp[kSlots][kWarps];
  Slice<T>* ring = dynamic_shared<Slice<T>>();

  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  const int blocks = cluster_size();
  const int64_t cluster = blockIdx.x / blocks;
  const int64_t clusters = gridDim.x / blocks;
  const int rows = static_cast<int>((a.rows - cluster + clusters - 1) / clusters);
  const int row_vectors = static_cast<int>(a.cols) / kElements;
  const int first = cluster_rank() * slice_vectors;  // the slice's first vector of the row
  const int vectors = max(min(row_vectors - first, slice_vectors), 0);
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);

  // This thread's vector i of the slice.
  const auto at = [](int i) { return i * kThreads + static_cast<int>(threadIdx.x); };
  // The tensor's row that is this cluster's row n, and where its slice begins, in vectors.
  const auto row_of = [=](int n) { return cluster + n * clusters; };
  const auto slice_of = [=](int n) { return row_of(n) * row_vectors + first; };

  const auto request = [&](int n) {  // one thread requests x and dy of row n
    if (n >= rows) return;
    const auto bytes = static_cast<unsigned>(vectors * sizeof(V));
    Barrier& barrier = full[n % kSlots];
    barrier.arrive_and_expect(2 * bytes);
    if (bytes == 0) return;  // an empty slice
    bulk_load(ring[n % kSlots].x, reinterpret_cast<const V*>(a.x) + slice_of(n), bytes, barrier);
    bulk_load(ring[n % kSlots].dy, reinterpret_cast<const V*>(a.dy) + slice_of(n), bytes, barrier);
  };

  if (threadIdx.x == 0) {
    for (int slot = 0; slot < kSlots; ++slot) {
      full[slot].init(1);
      arrived[slot].init(1 + blocks);  // [3] thread 0's expectation, and each block's
    }
    fence_barrier_init();
    for (int n = 0; n < kSlots; ++n) request(n);
  }
  cluster_sync();  // [4] every block has started, and its Barriers are ready
  launch_dependents();

  V weight[kVectors];
  float dweight[kVectors][kElements] = {};
  float dbias[kVectors][kElements] = {};
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    weight[i] = at(i) < vectors ? reinterpret_cast<const V*>(a.weight)[first + at(i)] : V{};
  }

  const auto terms_of = [&](const Part<T>& part, int i) {  // xhat, dy and wdy of vector i
    return GradientTerms<kElements>(part.x[i], part.dy[i], weight[i], part.mean, part.rstd);
  };
  const auto statistics_of = [&](int n) {  // requested a step before they are used
    return n < rows ? make_float2(a.mean[row_of(n)], a.rstd[row_of(n)]) : float2{};
  };

  Part<T> now{};
  float2 next = statistics_of(0);
  for (int n = 0; n <= rows; ++n) {  // [5] a step: the sums of row n, then dx of row n - 1
    const Part<T> before = now;
    if (n < rows) {
      const int slot = n % kSlots;
      now.mean = next.x;
      now.rstd = next.y;
      next = statistics_of(n + 1);
      full[slot].wait(n / kSlots % 2);

      float2 c{};  // sums of wdy · xhat and of wdy
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        now.x[i] = at(i) < vectors ? ring[slot].x[at(i)] : V{};
        now.dy[i] = at(i) < vectors ? ring[slot].dy[at(i)] : V{};
        const auto terms = terms_of(now, i);
        terms.add_to(c);
        for (int k = 0; k < kElements; ++k) {
          dweight[i][k] += terms.dy[k] * terms.xhat[k];
          dbias[i][k] += terms.dy[k];
        }
      }

      c = warp_sum(c);
      if (lane == 0) from_warp[slot][warp] = c;
      fence_proxy_async();  // before the copy engine overwrites what was read
      __syncthreads();      // [6] all have read the slot, and from_block of row n - 2

      if (warp == 0) {
        c = warp_sum(lane < kWarps ? from_warp[slot][lane] : float2{});
        if (lane == 0) arrived[slot].arrive_and_expect(blocks * sizeof c);
        if (lane < blocks) {  // [7] lane 0 sends to block 0, lane 1 to block 1, …
          remote_store_async(&from_block[slot][cluster_rank()], lane, c, arrived[slot]);
          remote_arrive(arrived[slot], lane);  // [8] row n - 2 is read here
        }
      }
      if (threadIdx.x == 0) request(n + kSlots);
    }
    if (n == 0) continue;

    const int slot = (n - 1) % kSlots;
    arrived[slot].wait_at_cluster_scope((n - 1) / kSlots % 2);
    const float2 c = warp_sum(lane < blocks ? from_block[slot][lane] : float2{});
    const float c1 = c.x * inverse_cols;
    const float c2 = c.y * inverse_cols;

    V* dx = reinterpret_cast<V*>(a.dx) + slice_of(n - 1);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (at(i) >= vectors) continue;
      const auto terms = terms_of(before, i);
      float values[kElements];
      for (int k = 0; k < kElements; ++k) {
        values[k] = before.rstd * (terms.wdy[k] - c2 - terms.xhat[k] * c1);
      }
      dx[at(i)] = from_floats<T>(values);
    }
  }

#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (at(i) >= vectors) continue;
    const int64_t to = cluster * a.cols + int64_t{first + at(i)} * kElements;
    store(sums.dweight, to, dweight[i]);  // [9]
    store(sums.dbias, to, dbias[i]);
  }
}

/// A cluster has as many blocks as its row needs, and two at least.
unsigned blocks_of(int64_t row_vectors) {
  return std::max(blocks_for(row_vectors, kSliceVectors), 2u);
}

/// The ring's 128 KB leave room for a block a multiprocessor.
int64_t most_clusters(int64_t row_vectors) {
  return std::max<int64_t>(multiprocessors() / blocks_of(row_vectors), 1);
}

template <typename T>
void run(const BackwardArgs<T>& a) {
  const int64_t row_vectors = a.cols / kVectorElements<T>;
  const unsigned blocks = blocks_of(row_vectors);
  const auto slice_vectors = static_cast<int>(blocks_for(row_vectors, blocks));
  const auto kernel = layer_norm_backward<T>;
  LaunchConfig config{0, kThreads, kSlots * sizeof(Slice<T>), a.stream, blocks};
  const int64_t fit = std::max(resident_clusters(kernel, config), 1);  // where 0, launch() throws
  const int64_t clusters = std::min({fit, most_clusters(row_vectors), a.rows});
  config.grid = static_cast<unsigned>(clusters) * blocks;
  const PartialSums sums = partial_sums(a, clusters);
  launch(kernel, config, a, slice_vectors, sums);
  add_partial_sums<EarlyStart>(a, sums, clusters);
}

const Registration registration{{
    .id = "bwd13",
    .title = "Rows in clusters",
    .teaches = "a wide row in several blocks; their sums meet in distributed shared memory",
    .source = "this repository, QuACK",
    .parent = "bwd12",
    .road = Road::WideRows,
    .kinds = {Kind::Layer},
    .needs_affine = true,
    .needs_aligned = true,
    .min_architecture = 90,
    .max_row_bytes = int64_t{kMostBlocks} * kSliceVectors * 16,
    .max_row_bytes_because = "a cluster holds a whole row",
    .run = BackwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>},
    .predicted_bytes = [](const Problem& p, const Gpu&) -> std::int64_t {
      return 3 * p.tensor_bytes() + parameter_bytes(p);
    },
    .workspace_bytes = [](const Problem& p) -> std::int64_t {
      const int64_t row_vectors = p.cols * p.element_bytes() / 16;
      return partial_sums_bytes(p, std::min(p.rows, most_clusters(row_vectors)));
    },
}};

}  // namespace bwd13
