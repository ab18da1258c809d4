// fwd08 · Persistent blocks, bulk copies in a ring
//
// A block of fwd06 asks for its row, has nothing to do until it is there, and ends; the next one
// starts with nothing on its way. Here blocks stay and walk over rows, and the next rows are on
// their way to a ring in shared memory all the while. A row is one request of one thread to
// Hopper's copy engine; no register waits for it, and weight and bias stay in registers.
//
// It should run at the speed of a copy: 2·M·N elements, each moved once.
#include "common/kernel/bulk_rows.h"
#include "common/kernel/chapter.h"
#include "common/kernel/columns.h"
#include "common/kernel/reduce.h"
#include "common/kernel/vector.h"

namespace fwd08 {
using namespace lnc;

constexpr int kMaxStages = 4;        // [1] rows on their way for each row at work
constexpr int kWarpTeams = 4;        // [2] rows at a time in a block, where a row has one warp
constexpr int kFewVectors = 4;       // [3] of a thread, before a row gets more threads
constexpr int kStayingColumns = 32;  // [4] of weight and bias in a thread's registers
constexpr int kMaxTeam = 512;        // threads
constexpr int kMaxVectors = 8;       // of a thread of the largest team
constexpr int kWideThreads = 512;
constexpr int kWideStages = 8;
constexpr int kPiece = 3 * kWideThreads;  // [5] in vectors

/// Teams of kTeam threads that a block has.
template <int kTeam>
constexpr int kTeamsPerBlock = kTeam == kWarpSize ? kWarpTeams : 1;
template <int kTeam>
constexpr int kBlockThreads = kTeam* kTeamsPerBlock<kTeam>;

/// Makes y of a vector of x.
template <typename W, int kElements>
__device__ void normalise(float (&x)[kElements], float mean, float rstd,
                          const Packed<W, kElements>& weight, const Packed<W, kElements>& bias) {
  float of_weight[kElements];
  float of_bias[kElements];
  to_floats(weight, of_weight);
  to_floats(bias, of_bias);
  for (int k = 0; k < kElements; ++k) {
    const float xhat = (x[k] - mean) * rstd;
    x[k] = xhat * of_weight[k] + of_bias[k];
  }
}

/// A team of kTeam threads has a ring of its own, and every gridDim.x · kTeams-th row.
template <typename T, typename W, int kTeam, int kVectors, bool kAligned>
__global__ void __launch_bounds__(kBlockThreads<kTeam>)
    layer_norm_forward(ForwardArgs<T, W> a, int stages, int vectors) {
  constexpr int kThreads = kBlockThreads<kTeam>;
  constexpr int kTeams = kTeamsPerBlock<kTeam>;
  constexpr int kElements = kVectorElements<T>;
  constexpr bool kStay = kAligned && kVectors * kElements <= kStayingColumns;
  __shared__ Barrier full[kTeams][kMaxStages];
  const int team = threadIdx.x / kTeam;
  const int thread = threadIdx.x % kTeam;
  const BulkRows<T, kAligned> x_rows{a.x, a.rows, a.cols};
  auto* const slots = dynamic_shared<Packed<T, kElements>>() + int64_t{team} * stages * vectors;
  Ring<T> ring{slots, vectors, stages, full[team]};
  const int64_t first_row = int64_t{blockIdx.x} * kTeams + team;
  const int64_t stride = int64_t{gridDim.x} * kTeams;
  const auto request = [&](int64_t row, int stage) {
    if (row < a.rows) x_rows.load(row, 0, vectors, ring.slot(stage), full[team][stage]);
  };
  const auto columns = [&](const T* x_row, int i) {
    return Columns<T, kAligned>(x_row, i * kTeam + thread, a.cols);
  };

  if (thread == 0) {  // [6]
    ring.fill([&](int stage) { request(first_row + stage * stride, stage); });
  }
  Packed<W, kElements> weight[kVectors], bias[kVectors];
  if constexpr (kStay) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      weight[i] = columns(a.x, i).load_or(1.0f, a.weight);
      bias[i] = columns(a.x, i).load_or(0.0f, a.bias);
    }
  }
  __syncthreads();  // [7]

  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  int turn = 0;  // of row_sums
  for (int64_t row = first_row; row < a.rows; row += stride) {
    const T* x_row = a.x + row * a.cols;
    const auto* slot = ring.wait();
    Packed<T, kElements> arrived[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      arrived[i] = x_rows.take(x_row, columns(x_row, i), slot + i * kTeam + thread);
    }
    float mean = 0.0f;
    float x[kElements];
    if (a.kind == Kind::Layer) {
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        to_floats(arrived[i], x);
        for (int k = 0; k < kElements; ++k) {
          sum += x[k];
        }
      }
      turn ^= 1;  // [8]
      mean = row_sums<kThreads, kTeam>(sum, turn) * inverse_cols;
    }
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      to_floats(arrived[i], x);
      for (int k = 0; k < kElements; ++k) {
        if (!columns(x_row, i).any() || !columns(x_row, i).has(k)) continue;
        const float centred = x[k] - mean;
        squares += centred * centred;
      }
    }
    turn ^= 1;
    squares = row_sums<kThreads, kTeam>(squares, turn);
    if (kTeam == kWarpSize) __syncwarp();
    if (thread == 0) request(row + stages * stride, ring.stage);  // [9]
    ring.advance();
    const float rstd = rsqrtf(squares * inverse_cols + a.eps);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      to_floats(arrived[i], x);
      if constexpr (kStay) {
        stay_packed(weight[i]);  // [10]
        stay_packed(bias[i]);
      } else {
        weight[i] = columns(x_row, i).load_or(1.0f, a.weight);
        bias[i] = columns(x_row, i).load_or(0.0f, a.bias);
      }
      normalise(x, mean, rstd, weight[i], bias[i]);
      columns(x_row, i).store(a.y + row * a.cols, x);  // [11]
    }
    if (thread == 0 && a.kind == Kind::Layer) a.mean[row] = mean;
    if (thread == 0) a.rstd[row] = rstd;
  }
}

/// A row of any width, in pieces. Where all of them fit in the ring they stay there for the three
/// walks over a row; else each walk fetches them again.
template <typename T, typename W, bool kAligned>
__global__ void __launch_bounds__(kWideThreads)
    layer_norm_forward_wide(ForwardArgs<T, W> a, int stages, int64_t pieces) {
  constexpr int kElements = kVectorElements<T>;
  __shared__ Barrier full[kWideStages];
  const BulkRows<T, kAligned> x_rows{a.x, a.rows, a.cols};
  Ring<T> ring{dynamic_shared<Packed<T, kElements>>(), kPiece, stages, full};
  const bool stay = pieces <= stages;  // [12]
  const int64_t requests = stay ? pieces : 3 * pieces;
  const auto request = [&](int64_t number, int stage) {
    const int64_t row = blockIdx.x + number / requests * gridDim.x;
    if (row >= a.rows) return;
    const int64_t first = number % pieces * kPiece;  // vector of the row
    x_rows.load(row, first, kPiece, ring.slot(stage), full[stage]);
  };
  if (threadIdx.x == 0) {
    ring.fill([&](int stage) { request(stage, stage); });
  }
  __syncthreads();
  int64_t next_request = stages;
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const T* x_row = a.x + row * a.cols;
    const Ring<T> at_start = ring;
    const auto walk = [&](bool last, auto&& body) {
      if (stay) ring = at_start;
      for (int64_t piece = 0; piece < pieces; ++piece) {
        const auto* slot = ring.wait();
#pragma unroll
        for (int i = threadIdx.x; i < kPiece; i += kWideThreads) {
          const Columns<T, kAligned> columns(x_row, piece * kPiece + i, a.cols);
          float x[kElements];
          to_floats(x_rows.take(x_row, columns, slot + i), x);
          if (columns.any()) body(columns, x);
        }
        if (last || !stay) {  // [13]
          __syncthreads();
          if (threadIdx.x == 0) request(next_request, ring.stage);
          ++next_request;
        }
        ring.advance();
      }
    };
    float sum = 0.0f;
    walk(false, [&](const auto&, const auto& x) {
      for (int k = 0; k < kElements; ++k) {
        sum += x[k];
      }
    });
    sum = row_sums<kWideThreads, kWideThreads>(sum, 0);
    const float mean = a.kind == Kind::Layer ? sum / a.cols : 0.0f;
    float squares = 0.0f;
    walk(false, [&](const auto& columns, const auto& x) {
      for (int k = 0; k < kElements; ++k) {
        if (columns.has(k)) squares += (x[k] - mean) * (x[k] - mean);
      }
    });
    squares = row_sums<kWideThreads, kWideThreads>(squares, 1);
    const float rstd = rsqrtf(squares / a.cols + a.eps);
    walk(true, [&](const auto& columns, auto& x) {
      const auto weight = columns.load_or(1.0f, a.weight);
      const auto bias = columns.load_or(0.0f, a.bias);
      normalise(x, mean, rstd, weight, bias);
      columns.store(a.y + row * a.cols, x);
    });
    if (threadIdx.x == 0 && a.kind == Kind::Layer) a.mean[row] = mean;
    if (threadIdx.x == 0) a.rstd[row] = rstd;
  }
}

/// As many blocks as the GPU holds, each with up to `most_stages` stages.
template <int kThreads, typename T, typename W, typename Size>
void run_blocks(void (*kernel)(ForwardArgs<T, W>, int, Size), const ForwardArgs<T, W>& a,
                int rows_at_a_time, int64_t stage_bytes, int most_stages, Size size) {
  constexpr int kStaticShared = 1 << 10;  // bytes for it
  const int64_t room = (max_shared_bytes() - kStaticShared) / stage_bytes;
  const auto stages = static_cast<int>(std::clamp<int64_t>(room, 1, most_stages));
  const auto shared = static_cast<std::size_t>(stages * stage_bytes);
  unsigned blocks = a.group;
  if (blocks == 0) blocks = multiprocessors() * resident_blocks(kernel, kThreads, shared);
  blocks = std::min(blocks, blocks_for(a.rows, rows_at_a_time));
  launch(kernel, {blocks, kThreads, shared, a.stream}, a, stages, size);
}

/// Looks for the smallest team that holds a row of so many vectors, and launches it.
template <bool kAligned, int kTeam, int kVectors, typename T, typename W>
void run_team(const ForwardArgs<T, W>& a, int64_t vectors) {
  constexpr bool kLargest = kTeam == kMaxTeam;
  if (vectors <= kTeam * kVectors) {
    constexpr int kTeams = kTeamsPerBlock<kTeam>;
    const int64_t stage_bytes = kTeams * vectors * 16;
    run_blocks<kBlockThreads<kTeam>>(layer_norm_forward<T, W, kTeam, kVectors, kAligned>, a, kTeams,
                                     stage_bytes, kMaxStages, static_cast<int>(vectors));
  } else if constexpr (kVectors < (kLargest ? kMaxVectors : kFewVectors)) {
    run_team<kAligned, kTeam, kVectors * 2>(a, vectors);
  } else if constexpr (!kLargest) {
    run_team<kAligned, kTeam * 2, kVectors>(a, vectors);
  } else {
    const int64_t pieces = (vectors + kPiece - 1) / kPiece;
    run_blocks<kWideThreads>(layer_norm_forward_wide<T, W, kAligned>, a, 1, kPiece * 16,
                             kWideStages, pieces);
  }
}

template <typename T, typename W>
void run(const ForwardArgs<T, W>& a) {
  constexpr int kElements = kVectorElements<T>;
  if (a.cols % kElements == 0 && at_16_bytes(a.x, a.y, a.weight, a.bias))
    run_team<true, kWarpSize, 1>(a, a.cols / kElements);
  else  // a row that starts inside of a vector may touch one more
    run_team<false, kWarpSize, 1>(a, (a.cols + 2 * kElements - 2) / kElements);
}

const Registration registration{{
    .id = "fwd08",
    .title = "Persistent blocks, bulk copies in a ring",
    .teaches = "the copy engine brings the next rows while a block works on one",
    .source = "this repository",
    .parent = "fwd06",
    .road = Road::Main,
    .group = "blocks",
    .min_architecture = 90,
    .run = ForwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>, run<__half, float>,
                            run<__nv_bfloat16, float>},
    .predicted_bytes = [](const Problem& p, const Gpu& gpu) -> std::int64_t {
      const bool stays = p.cols * p.element_bytes() <= kWideStages * kPiece * 16;
      return predict_bytes(p, gpu,
                           {.inputs = 1,
                            .walks = stays ? 1 : 3,  // [14]
                            .threads_per_row = gpu.threads_per_multiprocessor});
    },
}};

}  // namespace fwd08
