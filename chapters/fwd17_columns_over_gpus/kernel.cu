// fwd17 · Columns over GPUs
//
// fwd09 spreads a row over the blocks of a cluster, which exchange moments through shared memory.
// A cluster ends at the edge of its GPU. Here each GPU has a slice of every row, as a model has it
// whose hidden dimension is sharded; usually the slices are gathered first. Instead, each GPU sends
// the mean and the squares of its slice, a word of 16 bytes per row, to every other GPU, and
// computes y for its own slice.
//
// Such a message takes about 2 µs, as long as a block takes for a row. So a block, which walks over
// many rows as in fwd18, has a warp that only exchanges: two rows lie between a row's message and
// its answer. It should cost what fwd18 costs on one GPU's slice, plus one message at the end.
#include "common/kernel/chapter.h"
#include "common/kernel/hopper.h"
#include "common/kernel/peers.h"
#include "common/kernel/reduce.h"
#include "common/kernel/vector.h"

namespace fwd17 {
using namespace lnc;

constexpr int kWarps = 4;    // that compute; one more exchanges
constexpr int kVectors = 4;  // 16-byte vectors of a slice in a thread: slices of up to 8 KB
constexpr int kPiece = kVectors * kWarpSize;  // vectors of a warp
constexpr int kThreads = (kWarps + 1) * kWarpSize;
constexpr int kResident = 4;          // blocks of a multiprocessor
constexpr int kAnswer = 2;            // [1] rows between a message and its answer
constexpr int kBehind = kAnswer + 1;  // rows between a row's moments and its y
constexpr int kStages = 6;            // of the ring: kBehind + 1 rows in use, two in flight

struct Moments {
  float mean;
  float squares;  ///< of the distances from that mean, summed
};
struct Statistics {
  float mean;
  float rstd;
};

template <typename T>
__global__ void __launch_bounds__(kThreads, kResident)
    layer_norm_forward(ForwardArgs<T> a, Peers peers) {
  // exercise
  constexpr int kElements = kVectorElements<T>;
  using V = Packed<T, kElements>;
  __shared__ Barrier full[kStages];   // the row has arrived
  __shared__ Barrier told[kStages];   // the warps have left their moments of it
  __shared__ Barrier known[kStages];  // its statistics are there
  __shared__ Moments moments[kStages][kWarps];
  __shared__ Statistics statistics[kStages];
  V* const ring = dynamic_shared<V>();

  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  const int row_vectors = static_cast<int>(a.cols) / kElements;  // of the slice
  const int rows = static_cast<int>((a.rows - blockIdx.x + gridDim.x - 1) / gridDim.x);
  const auto row_of = [&](int n) { return blockIdx.x + n * int64_t{gridDim.x}; };
  const auto parity_of = [](int n) { return n / kStages % 2; };
  const auto columns_of = [&](int w) {  // that warp w has
    return max(min(row_vectors - w * kPiece, kPiece), 0) * kElements;
  };
  const auto request = [&](int n) {  // the block's row n, by one thread
    if (n >= rows) return;
    const auto bytes = static_cast<unsigned>(a.cols * sizeof(T));
    const int stage = n % kStages;
    full[stage].arrive_and_expect(bytes);
    bulk_load(ring + stage * row_vectors, a.x + row_of(n) * a.cols, bytes, full[stage]);
  };

  if (threadIdx.x == kWarps * kWarpSize) {
    for (Barrier& barrier : full) barrier.init(1);
    for (Barrier& barrier : told) barrier.init(kWarps);
    for (Barrier& barrier : known) barrier.init(1);
    fence_barrier_init();
    for (int n = 0; n < kStages; ++n) request(n);
  }
  __syncthreads();

  if (warp == kWarps) {  // [2] the warp that exchanges
    const unsigned epoch = epoch_of_launch(peers);
    __syncwarp();
    if (lane == 0) advance_epoch(peers, epoch);
    for (int n = 0; n < rows + kAnswer; ++n) {
      if (n < rows) {
        const int stage = n % kStages;
        told[stage].wait(parity_of(n));
        __syncwarp();  // every lane has read the earlier rows' moments, which request() lets go
        if (lane == 0 && n > kBehind) request(n - kBehind - 1 + kStages);  // [3]
        const Moments piece = lane < kWarps ? moments[stage][lane] : Moments{};
        const float count = lane < kWarps ? columns_of(lane) : 0;
        const float mean = warp_sum(count * piece.mean) / a.cols;
        const float distance = piece.mean - mean;
        const float squares = warp_sum(piece.squares + count * distance * distance);
        const Word word{mean, squares, static_cast<float>(a.cols)};
        if (lane < peers.ranks) send(peers, epoch, row_of(n), lane, word);  // [4]
      }

      if (n >= kAnswer) {
        const int64_t row = row_of(n - kAnswer);
        const int stage = (n - kAnswer) % kStages;
        const Word slice = lane < peers.ranks ? receive(peers, epoch, row, lane) : Word{};  // [5]
        const float cols = warp_sum(slice.third);  // of the whole row
        const float mean = warp_sum(slice.third * slice.first) / cols;
        const float distance = slice.first - mean;
        const float squares = warp_sum(slice.second + slice.third * distance * distance);
        const float rstd = rsqrtf(squares / cols + a.eps);
        if (lane == 0) {
          statistics[stage] = {mean, rstd};
          known[stage].arrive();
          a.mean[row] = mean;
          a.rstd[row] = rstd;
        }
      }
    }
    return;
  }

  const int first = warp * kPiece + lane;
  const V* const w = reinterpret_cast<const V*>(a.weight);
  const V* const b = reinterpret_cast<const V*>(a.bias);
  V weight[kVectors], bias[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int at = first + i * kWarpSize;
    weight[i] = at < row_vectors ? w[at] : V{};
    bias[i] = at < row_vectors ? b[at] : V{};
  }
  const float inverse_count = 1.0f / static_cast<float>(max(columns_of(warp), 1));

  for (int n = 0; n < rows + kBehind; ++n) {
    if (n < rows) {  // the moments of row n
      const int stage = n % kStages;
      full[stage].wait(parity_of(n));
      const V* const slot = ring + stage * row_vectors;
      V x[kVectors];
      float value[kElements];
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        const int at = first + i * kWarpSize;
        x[i] = at < row_vectors ? slot[at] : V{};
        to_floats(x[i], value);
        for (int k = 0; k < kElements; ++k) sum += value[k];
      }
      const float mean = warp_sum(sum) * inverse_count;
      float squares = 0.0f;
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        if (first + i * kWarpSize >= row_vectors) continue;
        to_floats(x[i], value);
        for (int k = 0; k < kElements; ++k) squares += (value[k] - mean) * (value[k] - mean);
      }
      squares = warp_sum(squares);
      if (lane == 0) {
        moments[stage][warp] = {mean, squares};
        told[stage].arrive();
      }
    }

    if (n >= kBehind) {  // y of a row whose answer has come
      const int stage = (n - kBehind) % kStages;
      known[stage].wait(parity_of(n - kBehind));
      const auto [mean, rstd] = statistics[stage];
      const V* const slot = ring + stage * row_vectors;
      V* const y = reinterpret_cast<V*>(a.y + row_of(n - kBehind) * a.cols);
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        const int at = first + i * kWarpSize;
        if (at >= row_vectors) continue;
        stay_packed(weight[i]);
        stay_packed(bias[i]);
        float value[kElements], scale[kElements], shift[kElements];
        to_floats(slot[at], value);
        to_floats(weight[i], scale);
        to_floats(bias[i], shift);
        for (int k = 0; k < kElements; ++k) {
          value[k] = (value[k] - mean) * rstd * scale[k] + shift[k];
        }
        y[at] = from_floats<T>(value);
      }
      fence_proxy_async();  // [6] before a bulk copy overwrites the slot
      __syncwarp();
    }
  }
}

/// On each GPU as many blocks as it holds at once, if there are rows for them.  [7]
template <typename T>
void run(const ForwardArgs<T>& a) {
  const auto kernel = layer_norm_forward<T>;
  const std::size_t ring_bytes = kStages * a.cols * sizeof(T);
  const int64_t places = multiprocessors() * resident_blocks(kernel, kThreads, ring_bytes);
  const auto blocks = static_cast<unsigned>(std::min(places, a.rows));
  launch(kernel, {blocks, kThreads, ring_bytes, a.stream}, a, *a.peers);
}

const Registration registration{{
    .id = "fwd17",
    .title = "Columns over GPUs",
    .teaches = "each GPU has a slice of every row; moments cross the link while other rows load",
    .source = "NCCL's device API",
    .parent = "fwd18",
    .road = Road::Gpus,
    .kinds = {Kind::Layer},
    .split = Split::Columns,
    .needs_affine = true,
    .needs_aligned = true,
    .min_architecture = 90,
    .max_row_bytes = kWarps * kPiece * 16,
    .max_row_bytes_because = "a block's threads have four vectors of a slice each",
    .run = ForwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>},
    .predicted_bytes = [](const Problem& p, const Gpu&) -> std::int64_t {
      return 2 * p.tensor_bytes() + parameter_bytes(p);
    },
}};

}  // namespace fwd17
