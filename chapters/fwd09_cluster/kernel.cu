// fwd09 · A row over a cluster
//
// fwd08 fetches a row over 192 KB three times: one multiprocessor cannot hold it, and its weight
// and bias neither. Hopper lets up to 16 blocks, on as many multiprocessors, reach into each
// other's shared memory. Here such a cluster has a row. Each of its warps holds a piece, and all
// their means and squares meet in one exchange, with no barrier of a block anywhere.
//
// It should run at the speed of a copy for rows of up to 1.7 MB: 2·M·N elements, each moved once.
#include "common/kernel/bulk_rows.h"
#include "common/kernel/chapter.h"
#include "common/kernel/columns.h"
#include "common/kernel/reduce.h"
#include "common/kernel/vector.h"

namespace fwd09 {
using namespace lnc;

constexpr int kMaxBlocks = 16;          // [1] of a cluster
constexpr int kMaxWarps = 16;           // of a block
constexpr int kLaneVectors = 4;         // [2] of a lane, before a row gets another warp
constexpr int kFewestStages = 3;        // [3] rows in a ring
constexpr int kMaxStages = 8;           // likewise, where there is room
constexpr int kTurns = 4;               // [4] exchanges that may be under way
constexpr int kStaticShared = 2 << 10;  // the barriers, and what CUDA takes

/// How a row is cut into pieces, one for each warp of a cluster.
struct Cut {
  int blocks;                ///< of a cluster
  int warps;                 ///< of a block
  int vectors;               ///< of a piece
  int stages;                ///< of a warp's ring; 0: none fits, and each walk reads x again
  bool keeps;                ///< weight and bias stay in shared memory
  std::size_t shared_bytes;  ///< of a block
};

/// A warp has a piece of every row of its cluster, and a ring for these pieces. kAligned: rows
/// start and end at 16-byte boundaries, and come through the ring.
template <typename T, typename W, bool kAligned>
__global__ void __launch_bounds__(kMaxWarps* kWarpSize)
    layer_norm_forward(ForwardArgs<T, W> a, Cut cut) {
  constexpr int kElements = kVectorElements<T>;
  constexpr int kBatch = sizeof(W) == sizeof(T) ? 4 : 2;  // vectors on their way to y
  __shared__ Barrier full[kMaxWarps][kMaxStages];
  __shared__ Barrier met[kTurns];
  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  const int piece = cluster_rank() * cut.warps + warp;
  const int pieces = cut.blocks * cut.warps;
  const int64_t stride = gridDim.x / cut.blocks;  // clusters
  const BulkRows<T, kAligned> x_rows{a.x, a.rows, a.cols};

  // Dynamic shared memory: the moments, [kTurns][pieces]; each warp's ring; each warp's piece of
  // the weight and of the bias.
  auto* const moments = dynamic_shared<float2>();
  auto* const slots = reinterpret_cast<Packed<T, kElements>*>(moments + kTurns * pieces);
  const int64_t ring_vectors = int64_t{cut.stages} * cut.vectors;
  Ring<T> ring{slots + warp * ring_vectors, cut.vectors, cut.stages, full[warp]};
  auto* const parameters =
      reinterpret_cast<Packed<W, kElements>*>(slots + cut.warps * ring_vectors);
  auto* const weight = parameters + int64_t{warp} * 2 * cut.vectors;
  auto* const bias = weight + cut.vectors;

  const int64_t start = int64_t{piece} * cut.vectors;  // of the piece, in vectors
  const auto request = [&](int64_t row, int stage) {
    if (row < a.rows) x_rows.load(row, start, cut.vectors, ring.slot(stage), full[warp][stage]);
  };
  const auto columns = [&](const T* x_row, int i, int of_piece) {
    return Columns<T, kAligned>(x_row, int64_t{of_piece} * cut.vectors + i, a.cols);
  };
  const auto count = [&](const T* x_row, int of_piece) {  // [5] its columns
    const int64_t first = columns(x_row, 0, of_piece).first;
    const int64_t end = first + cut.vectors * kElements;
    const int64_t columns_there = min(end, a.cols) - max(first, int64_t{0});
    return static_cast<int>(max(columns_there, int64_t{0}));
  };
  const auto x_vector = [&](const T* x_row, const Packed<T, kElements>* slot, int i) {
    if constexpr (kAligned) return slot[i];
    if (slot != nullptr) return x_rows.take(x_row, columns(x_row, i, piece), slot + i);
    return columns(x_row, i, piece).load(x_row);
  };

  const int64_t first_row = blockIdx.x / cut.blocks;
  if (threadIdx.x == 0) {
    for (Barrier& barrier : met) barrier.init(1);
    fence_barrier_init();
  }
  if (lane == 0) {
    ring.fill([&](int i) { request(first_row + i * stride, i); });
  }
  cluster_arrive();                                                         // [6]
  const int mine = kAligned ? count(a.x, piece) / kElements : cut.vectors;  // vectors
  if (cut.keeps) {
    for (int i = lane; i < mine; i += kWarpSize) {  // [7]
      weight[i] = columns(a.x, i, piece).load_or(1.0f, a.weight);
      bias[i] = columns(a.x, i, piece).load_or(0.0f, a.bias);
    }
  }
  __syncwarp();
  cluster_wait();

  // The mean and the squares of this warp's piece of a row, to every block of the cluster.
  const auto send_moments = [&](int64_t row, int turn) {
    const T* x_row = a.x + row * a.cols;
    const auto* slot = kAligned || cut.stages > 0 ? ring.wait() : nullptr;
    float x[kElements];
    float mean = 0.0f;
    if (a.kind == Kind::Layer) {
#pragma unroll 4
      for (int i = lane; i < mine; i += kWarpSize) {
        to_floats(x_vector(x_row, slot, i), x);
        for (int k = 0; k < kElements; ++k) {
          mean += x[k];
        }
      }
      mean = warp_sum(mean) / max(count(x_row, piece), 1);
    }
    float squares = 0.0f;
#pragma unroll 4
    for (int i = lane; i < mine; i += kWarpSize) {
      to_floats(x_vector(x_row, slot, i), x);
      for (int k = 0; k < kElements; ++k) {
        if (!columns(x_row, i, piece).has(k)) continue;
        const float centred = x[k] - mean;
        squares += centred * centred;
      }
    }
    squares = warp_sum(squares);
    if (threadIdx.x == 0) met[turn].arrive_and_expect(pieces * sizeof(float2));  // [8]
    if (lane < cut.blocks) {
      float2* const place = &moments[turn * pieces + piece];
      remote_store_async(place, lane, make_float2(mean, squares), met[turn]);
    }
    ring.advance();
  };

  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  if (first_row < a.rows) send_moments(first_row, 0);
  int stage = 0;
  int exchange = 0;
  for (int64_t row = first_row; row < a.rows; row += stride) {
    if (row + stride < a.rows) send_moments(row + stride, (exchange + 1) % kTurns);  // [9]

    // The moments of all pieces: the row's mean and rstd.
    const int turn = exchange % kTurns;
    met[turn].wait_at_cluster_scope(exchange / kTurns % 2);
    const T* x_row = a.x + row * a.cols;
    const float2* const of_row = moments + turn * pieces;
    float mean = 0.0f;
#pragma unroll
    for (int i = lane; i < kMaxBlocks * kMaxWarps; i += kWarpSize) {  // [10]
      if (i < pieces) mean += count(x_row, i) * of_row[i].x;
    }
    mean = warp_sum(mean) * inverse_cols;
    float squares = 0.0f;
#pragma unroll
    for (int i = lane; i < kMaxBlocks * kMaxWarps; i += kWarpSize) {
      if (i < pieces) {
        const float distance = of_row[i].x - mean;
        squares += of_row[i].y + count(x_row, i) * distance * distance;
      }
    }
    const float rstd = rsqrtf(warp_sum(squares) * inverse_cols + a.eps);

    // This warp's piece of y, kBatch vectors of a lane at a time.
    const auto* slot = kAligned || cut.stages > 0 ? ring.slot(stage) : nullptr;
    auto* y = reinterpret_cast<Packed<T, kElements>*>(a.y) + (row * a.cols / kElements + start);
    const auto normalise = [&](const auto& weight_of, const auto& bias_of) {
      for (int begin = lane; begin < mine; begin += kBatch * kWarpSize) {
        Packed<T, kElements> arrived[kBatch];
        Packed<W, kElements> weight_arrived[kBatch];
        Packed<W, kElements> bias_arrived[kBatch];
#pragma unroll
        for (int j = 0; j < kBatch; ++j) {
          const int i = min(begin + j * kWarpSize, mine - 1);
          arrived[j] = x_vector(x_row, slot, i);
          weight_arrived[j] = weight_of(i);
          bias_arrived[j] = bias_of(i);
        }
#pragma unroll
        for (int j = 0; j < kBatch; ++j) {
          const int i = begin + j * kWarpSize;
          if (i >= mine) continue;
          float x[kElements];
          float of_weight[kElements];
          float of_bias[kElements];
          to_floats(arrived[j], x);
          to_floats(weight_arrived[j], of_weight);
          to_floats(bias_arrived[j], of_bias);
          for (int k = 0; k < kElements; ++k) {
            const float xhat = (x[k] - mean) * rstd;
            x[k] = xhat * of_weight[k] + of_bias[k];
          }
          if constexpr (kAligned)
            y[i] = from_floats<T>(x);
          else
            columns(x_row, i, piece).store(a.y + row * a.cols, x);
        }
      }
    };
    if (cut.keeps) {
      const auto kept_weight = [&](int i) { return weight[i]; };
      const auto kept_bias = [&](int i) { return bias[i]; };
      normalise(kept_weight, kept_bias);
    } else {
      const auto load_weight = [&](int i) {
        return columns(x_row, i, piece).load_or(1.0f, a.weight);
      };
      const auto load_bias = [&](int i) { return columns(x_row, i, piece).load_or(0.0f, a.bias); };
      normalise(load_weight, load_bias);
    }

    __syncwarp();  // [11]
    if (lane == 0 && cut.stages > 0) request(row + cut.stages * stride, stage);
    stage = stage + 1 < cut.stages ? stage + 1 : 0;
    ++exchange;
    if (piece == 0 && lane == 0 && a.kind == Kind::Layer) a.mean[row] = mean;
    if (piece == 0 && lane == 0) a.rstd[row] = rstd;
  }
}

/// [12] The fewest blocks, two or more, that hold some rows and the parameters, if so many do.
template <typename T, typename W>
Cut cut_row(int64_t vectors, bool aligned, int most_blocks) {
  Cut cut;
  for (cut.blocks = 2;; cut.blocks *= 2) {
    const unsigned warps = blocks_for(vectors, cut.blocks * kLaneVectors * kWarpSize);
    cut.warps = std::clamp<int>(warps, 1, kMaxWarps);
    const int pieces = cut.blocks * cut.warps;
    cut.vectors = static_cast<int>(blocks_for(vectors, pieces));
    const int64_t moments = kTurns * pieces * sizeof(float2);
    const int64_t room = max_shared_bytes() - kStaticShared - moments;
    const int64_t share = (room + kStaticShared) / (kMaxWarps / cut.warps) - kStaticShared;
    const int64_t x_bytes = int64_t{cut.warps} * cut.vectors * 16;
    const int64_t parameter_bytes = 2 * x_bytes * sizeof(W) / sizeof(T);
    cut.keeps = aligned && room - parameter_bytes >= kFewestStages * x_bytes;
    const int64_t kept_bytes = cut.keeps ? parameter_bytes : 0;
    const int64_t fit = (room - kept_bytes) / x_bytes;
    const int64_t wanted = std::max<int64_t>((share - kept_bytes) / x_bytes, kFewestStages);
    cut.stages = static_cast<int>(std::min<int64_t>({wanted, fit, kMaxStages}));
    if (cut.stages < 2) cut.stages = 0;  // [9] holds two rows
    cut.shared_bytes = moments + cut.stages * x_bytes + kept_bytes;
    const bool enough = aligned ? cut.keeps : fit >= kFewestStages;
    if (enough || cut.blocks == most_blocks) return cut;
  }
}

template <typename T, typename W>
void run(const ForwardArgs<T, W>& a) {
  constexpr int kElements = kVectorElements<T>;
  const bool aligned = a.cols % kElements == 0 && at_16_bytes(a.x, a.y, a.weight, a.bias);
  const int64_t vectors = (a.cols + (aligned ? 0 : 2 * kElements - 2)) / kElements;  // [13]
  for (int most_blocks = kMaxBlocks;; most_blocks /= 2) {
    const Cut cut = cut_row<T, W>(vectors, aligned, most_blocks);
    const auto kernel = aligned && cut.stages > 0 ? layer_norm_forward<T, W, true>
                                                  : layer_norm_forward<T, W, false>;
    const auto blocks = static_cast<unsigned>(cut.blocks);
    LaunchConfig config{blocks, cut.warps * kWarpSize, cut.shared_bytes, a.stream, blocks};
    const int64_t fit = resident_clusters(kernel, config);
    if (fit == 0 && most_blocks > 2) continue;  // [1]
    const int64_t clusters = std::min(a.group > 0 ? a.group : fit, a.rows);
    config.grid = static_cast<unsigned>(clusters) * blocks;
    launch(kernel, config, a, cut);
    return;
  }
}

const Registration registration{{
    .id = "fwd09",
    .title = "A row over a cluster",
    .teaches = "blocks share a row through distributed shared memory; one exchange of moments",
    .source = "QuACK",
    .parent = "fwd08",
    .road = Road::WideRows,
    .group = "clusters",
    .min_architecture = 90,
    .run = ForwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>, run<__half, float>,
                            run<__nv_bfloat16, float>},
    .predicted_bytes = [](const Problem& p, const Gpu& gpu) -> std::int64_t {
      const int walks = p.cols * p.element_bytes() <= kMaxBlocks * (108 << 10) ? 1 : 3;
      return predict_bytes(p, gpu,
                           {.inputs = 1,
                            .walks = walks,
                            .threads_per_row = gpu.threads_per_multiprocessor * kMaxBlocks});
    },
}};

}  // namespace fwd09
