// lib_bwd_ring · Rows of up to 8192 columns through a ring
//
// Aligned rows, dense or strided; layer and RMS norm; with an optional residual and prenorm; frozen
// parameters. The code has two parts. A Streams class says what is loaded for a row and where its
// gradient goes: PlainStreams loads x and dy; ResidualStreams loads z = x + residual, dy, and the
// gradient of z that bypasses the norm, which it adds to dx. The kernel walks over the rows, with
// the ring of fwd08, the persistent sums of bwd09 and the early last sum of bwd12.
//
// Shapes, measured on an H100 with a cold L2. Up to 12 MiB per tensor: two blocks of 256 threads
// for up to 2048 columns, because their threads need the registers; three stages, because two are
// 4 % slower, and four leave too little L1. Larger tensors are faster with fewer rows at a time.
// From the shape above to that of launch_long(), the times change as follows: bf16 29127 x 2304
// 159.6 to 151.2 us, 14563 x 4608 160.7 to 153.1, RMS norm of 43690 x 1536 145.5 to 142.3; f32
// 16384 x 2048 146.4 to 141.8, 8192 x 4096 145.5 to 143.1. launch_long() returns false where its
// shape is slower: bf16 58254 x 1152 takes 156.2 us against 152.8, 1024 x 8192 34.9 against 34.4;
// f32 14563 x 2304 148.8 against 144.0, 4096 x 8192 149.6 against 148.3.
//
// RMS norm of large 16-bit tensors is faster if threads request the next row's rstd after the
// barrier of the current row, provided that rows fill at least 13/16 of their threads' columns:
// 32768 x 2048 146.2 to 142.6 us, 18724 x 3584 146.7 to 143.8, 16384 x 4096 146.8 to 143.7, 10082 x
// 6656 146.4 to 144.7, 8192 x 8192 147.6 to 144.9. Narrower rows would take up to 7 % longer, layer
// norm up to 9 %, and 2048 x 8192 2 %; float does not change.
//
// Up to 12 MiB, loads are EvictFirst, because nothing that they push out of L2 is read again.
#include "common/kernel/chapter.h"
#include "common/kernel/column_gradients.h"
#include "common/kernel/gradient_terms.h"
#include "common/kernel/kinds.h"
#include "common/kernel/partial_sums.h"
#include "common/kernel/reduce.h"
#include "common/kernel/ring.h"
#include "common/kernel/rows.h"
#include "common/kernel/thread_columns.h"
#include "common/kernel/vector.h"

namespace lib_bwd_ring {
using namespace lnc;

constexpr int kMostBlocks = 3;                  // of a multiprocessor
constexpr int kFewStages = 3, kMostStages = 6;  // of a block's ring
constexpr int64_t kMostCols = 8192;
constexpr int64_t kSmallBytes = 12 << 20;  // of a tensor
constexpr int kSpareBytes = 10 << 10;      // of a multiprocessor's shared memory

/// How a multiprocessor is divided: kBlocks blocks of kThreads threads, of which kRowThreads share
/// a row, each with up to kThreadCols of its columns. A block's ring has up to kStages stages.
/// kLateStatistics: mean and rstd of the next row are requested after a row's barrier, not before
/// it.
template <int kThreads_, int kBlocks_, int kRowThreads_, int kThreadCols_, int kStages_,
          bool kLateStatistics_ = false>
struct Shape {
  static constexpr bool kLateStatistics = kLateStatistics_;
  static constexpr int kThreads = kThreads_, kBlocks = kBlocks_, kRowThreads = kRowThreads_;
  static constexpr int kThreadCols = kThreadCols_, kStages = kStages_;
  static constexpr int kRows = kThreads / kRowThreads;  ///< that a block takes at a time
};

/// x and dy of an ordinary pass. A stage of the ring has a step's rows of x, then those of dy.
template <typename T, typename Rows>
struct PlainStreams {
  static constexpr int kElements = kVectorElements<T>;
  static constexpr bool kHasLong = std::is_same_v<Rows, DenseRows>;  // else fewer kernels
  static constexpr bool kFewFit = true;  // kFewStages fit in every shape
  InputRows<Rows> rows;
  L2Policy policy;

  /// Vectors of a stage with `elements` elements of each tensor.
  __host__ __device__ int stage_vectors(int elements) const { return 2 * elements / kElements; }

  template <typename W>
  __device__ void request(const BackwardArgs<T, W>& a, Packed<T, kElements>* slot, int row_places,
                          int64_t row, int count, Barrier& full) const {
    const auto cols = static_cast<int>(a.cols);
    full.arrive_and_expect(static_cast<unsigned>(2 * count * cols * sizeof(T)));
    bulk_load_rows(slot, a.x, rows.x, row, count, cols, full, policy);
    bulk_load_rows(slot + row_places * cols / kElements, a.dy, rows.dy, row, count, cols, full,
                   policy);
  }

  /// Where a row is in a stage that has `elements` of each tensor.
  struct Row {
    const T* x;
    const T* dy;
    struct Past {};  ///< no gradient bypasses the norm
    __device__ Past past(bool, int) const { return {}; }
  };
  template <typename W>
  __device__ Row row(const BackwardArgs<T, W>&, const Packed<T, kElements>* slot, int elements,
                     int at) const {
    const T* const x = reinterpret_cast<const T*>(slot) + at;
    return {x, x + elements};
  }
  __device__ static void add(typename Row::Past, float (&)[kElements]) {}
  template <typename W>
  __device__ static void store(const BackwardArgs<T, W>& a, int64_t at,
                               const float (&dx)[kElements]) {
    store_vector(a.dx + at, dx);
  }
};

/// z, dy and the gradient that bypasses the norm (or null). R is the type of the residual stream.
template <typename T, typename R>
struct ResidualStreams {
  static constexpr bool kHasLong = false;
  static constexpr bool kFewFit = false;
  static constexpr int kElements = kVectorElements<R>;  // of T, too: 8 bytes where R is float
  static constexpr int kSlotElements = kVectorElements<T>;

  __host__ __device__ static int z_vectors(int elements) { return elements / kElements; }
  __host__ __device__ static int past_at(int elements) {
    return z_vectors(elements) + elements / kSlotElements;
  }
  __host__ __device__ int stage_vectors(int elements) const {
    return past_at(elements) + z_vectors(elements);
  }

  template <typename W>
  __device__ void request(const BackwardArgs<T, W>& a, Packed<T, kSlotElements>* slot,
                          int row_places, int64_t row, int count, Barrier& full) const {
    const auto* const z = static_cast<const R*>(a.fused.residual_out);
    const auto* const past = static_cast<const R*>(a.fused.dresidual_out);
    const int elements = row_places * static_cast<int>(a.cols);
    const int64_t start = row * a.cols;
    const auto bytes = static_cast<unsigned>(count * a.cols * sizeof(T));
    const auto stream_bytes = static_cast<unsigned>(count * a.cols * sizeof(R));
    full.arrive_and_expect(bytes + (past == nullptr ? 1 : 2) * stream_bytes);
    bulk_load(slot, z + start, stream_bytes, full);
    bulk_load(slot + z_vectors(elements), a.dy + start, bytes, full);
    if (past != nullptr) bulk_load(slot + past_at(elements), past + start, stream_bytes, full);
  }

  struct Row {
    const R* x;
    const T* dy;
    const R* of_past;
    bool has_past;  ///< not a null of_past, with which nvcc spilled four bytes
    using Past = Packed<R, kElements>;
    __device__ Past past(bool given, int col) const {
      return load_if<kElements>(given && has_past, of_past, col);
    }
  };
  template <typename W>
  __device__ Row row(const BackwardArgs<T, W>& a, const Packed<T, kSlotElements>* slot,
                     int elements, int at) const {
    return {reinterpret_cast<const R*>(slot) + at,
            reinterpret_cast<const T*>(slot + z_vectors(elements)) + at,
            reinterpret_cast<const R*>(slot + past_at(elements)) + at,
            a.fused.dresidual_out != nullptr};
  }
  __device__ static void add(const typename Row::Past& past, float (&dx)[kElements]) {
    float of_past[kElements];
    to_floats(past, of_past);
    for (int k = 0; k < kElements; ++k) dx[k] += of_past[k];
  }
  template <typename W>
  __device__ static void store(const BackwardArgs<T, W>& a, int64_t at,
                               const float (&dx)[kElements]) {
    store_vector(a.dx + at, dx);
    auto* const dresidual = static_cast<R*>(a.fused.dresidual);
    if (dresidual != nullptr) store_vector(dresidual + at, dx);
  }
};

/// What a thread keeps of a row from its sums to its dx: x and dy are read once.
template <typename Streams, int kVectors>
struct OwnRow {
  static constexpr int kElements = Streams::kElements;
  GradientTerms<kElements> terms[kVectors];
  typename Streams::Row::Past past[kVectors];

  /// Reads the thread's vectors, adds them to `gradients`, and returns the thread's share of the
  /// row's two sums.
  template <typename W, typename Gradients>
  __device__ float2 read(const typename Streams::Row& in, const ThreadColumns& own, bool there,
                         Packed<W, kElements> (&weight)[kVectors], float2 statistics,
                         Gradients& gradients) {
    float2 c = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const bool given = there && own.has(i);
      const auto x = load_if<kElements>(given, in.x, own.of(i));
      const auto dy = load_if<kElements>(given, in.dy, own.of(i));
      past[i] = in.past(given, own.of(i));
      stay_packed(weight[i]);  // otherwise nvcc keeps it as floats, in twice the registers
      terms[i] = GradientTerms<kElements>(x, dy, weight[i], statistics.x, statistics.y);
      terms[i].add_to(c);
      gradients.add(i, terms[i]);
    }
    return c;
  }
  template <typename T, typename W>
  __device__ void store_dx(const Streams& streams, const BackwardArgs<T, W>& a, int64_t row,
                           const ThreadColumns& own, bool there, float rstd, float2 scaled) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float dx[kElements];
      dx_of(terms[i], rstd, scaled, dx);
      streams.add(past[i], dx);
      if (there && own.has(i)) streams.store(a, row * a.cols + own.of(i), dx);
    }
  }
};

/// A block takes a step of kRows neighbouring rows at a time, then those gridDim.x · kRows further
/// on. The kind is known to the compiler: RMS norm has no dbias, and takes fewer registers.
template <typename T, typename W, typename Streams, Kind kKind, typename S>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks)
    layer_norm_backward(BackwardArgs<T, W> a, Streams streams, int launch_stages,
                        float inverse_cols, PartialSums sums) {
  constexpr int kRowThreads = S::kRowThreads;
  constexpr int kRows = S::kRows;
  constexpr int kElements = Streams::kElements;
  constexpr int kVectors = S::kThreadCols / kElements;
  constexpr bool kLayer = kKind == Kind::Layer;
  __shared__ Barrier full[kMostStages];
  // A constant known to nvcc makes RMS norm of 8 MiB 2 % faster.
  const int stages = Streams::kFewFit && S::kStages == kFewStages ? kFewStages : launch_stages;
  const auto cols = static_cast<int>(a.cols);
  const int team = threadIdx.x / kRowThreads;  // which row of a step the thread has
  const int thread = threadIdx.x % kRowThreads;
  const ThreadColumns own{thread * kElements, kRowThreads * kElements, cols};
  const int64_t first_row = int64_t{blockIdx.x} * kRows;  // of the block's first step
  const int64_t stride = int64_t{gridDim.x} * kRows;

  Ring<T> ring{dynamic_shared<Packed<T, kVectorElements<T>>>(), streams.stage_vectors(kRows * cols),
               stages, full};
  const auto request = [&](int64_t row, int stage) {
    if (row >= a.rows) return;
    const auto count = static_cast<int>(min(a.rows - row, int64_t{kRows}));
    streams.request(a, ring.slot(stage), kRows, row, count, full[stage]);
  };
  if (threadIdx.x == 0) {
    ring.fill([&](int stage) { request(first_row + stage * stride, stage); });
  }
  launch_dependents();

  const auto statistics = [&](int64_t row) { return statistics_of<kLayer>(a, row, row < a.rows); };
  float2 next = statistics(first_row + team);  // a step ahead
  Packed<W, kElements> weight[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    weight[i] = load_if<kElements>(a.weight != nullptr && own.has(i), a.weight, own.of(i), 1.0f);
  }
  ColumnGradients<kElements, kVectors, kLayer> gradients;
  __syncthreads();

  int parity = 0;
  for (int64_t step_row = first_row; step_row < a.rows; step_row += stride) {
    const int64_t row = step_row + team;
    const bool there = kRows == 1 || row < a.rows;
    const float mean = next.x;
    const float rstd = next.y;
    if constexpr (!S::kLateStatistics) next = statistics(row + stride);
    const auto in = streams.row(a, ring.wait(), kRows * cols, team * cols);
    OwnRow<Streams, kVectors> own_row;
    float2 c = own_row.read(in, own, there, weight, make_float2(mean, rstd), gradients);
    ring.release();
    c = row_sums<S::kThreads, kRowThreads>(c, parity);
    parity ^= 1;
    if (kRowThreads == kWarpSize) __syncthreads();  // row_sums over a warp has no barrier
    if (threadIdx.x == 0) request(step_row + stages * stride, ring.stage);
    ring.advance();
    if constexpr (S::kLateStatistics) next = statistics(row + stride);

    const float2 scaled = scaled_means<kLayer>(c, inverse_cols, rstd);
    own_row.store_dx(streams, a, row, own, there, rstd, scaled);
  }
  if (a.dweight == nullptr) return;  // frozen parameters: no sums to store
  const int64_t part = int64_t{blockIdx.x} * cols;
  if constexpr (kRows == 1) {
    gradients.store(own, sums, part);
  } else {  // in the ring's memory: all of its copies have been read
    gradients.store_of_teams(own, team, kRows, sums, part);
  }
}

template <Kind kKind, typename S, typename T, typename W, typename Streams>
void launch_shape(const BackwardArgs<T, W>& a, const Streams& streams) {
  const int stage_bytes = streams.stage_vectors(S::kRows * static_cast<int>(a.cols)) * 16;
  const int room = (max_shared_bytes() - kSpareBytes) / S::kBlocks / stage_bytes;
  const int stages = std::clamp(room, 2, S::kStages);
  const auto shared_bytes = static_cast<std::size_t>(stages) * stage_bytes;
  const auto most = static_cast<unsigned>(most_blocks(a.group, S::kBlocks));
  const unsigned blocks = std::min(most, blocks_for(a.rows, S::kRows));
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  const PartialSums sums = partial_sums(a, blocks);
  launch(layer_norm_backward<T, W, Streams, kKind, S>,
         {blocks, S::kThreads, shared_bytes, a.stream}, a, streams, stages, inverse_cols, sums);
  add_partial_sums<EarlyStart, kMostCols>(a, sums, blocks);
}

/// Launches the shape, with late statistics where these are faster: see the top of this file.
template <Kind kKind, int kThreads, int kBlocks, int kRowThreads, int kThreadCols, int kStages,
          typename T, typename W, typename Streams>
void launch_large(const BackwardArgs<T, W>& a, const Streams& streams, bool large) {
  if constexpr (kKind == Kind::Rms && sizeof(T) == 2) {
    if (large && 16 * a.cols >= 13 * kRowThreads * kThreadCols) {
      using Late = Shape<kThreads, kBlocks, kRowThreads, kThreadCols, kStages, true>;
      return launch_shape<kKind, Late>(a, streams);
    }
  }
  using Early = Shape<kThreads, kBlocks, kRowThreads, kThreadCols, kStages>;
  launch_shape<kKind, Early>(a, streams);
}

/// Launches the shape for large tensors: fewer rows at a time than for small ones, further ahead.
/// Returns false where it is slower: see the top of this file.
template <Kind kKind, typename T, typename W, typename Streams>
bool launch_long(const BackwardArgs<T, W>& a, const Streams& streams) {
  constexpr bool kFloat = sizeof(T) == sizeof(float);
  constexpr bool kFloatLayer = kFloat && kKind == Kind::Layer;
  constexpr int64_t kLong = 96 << 10;  // of x, for each multiprocessor: 12 MiB on an H100
  const int64_t sharers = a.group > 0 ? a.group : multiprocessors();
  const int64_t bytes = a.rows * a.cols * static_cast<int64_t>(sizeof(T)) / sharers;
  const bool large = bytes > 4 * kLong;
  if (a.cols > 4096) {
    if (bytes <= (kFloat ? 1 : 2) * kLong || (kFloatLayer && a.cols > 6144)) return false;
    launch_large<kKind, 512, 1, 512, 16, kMostStages>(a, streams, large);
  } else if (a.cols > 2048) {
    if (bytes <= (kFloat ? 2 : 1) * kLong || (kFloatLayer && a.cols < 3072)) return false;
    if constexpr (kFloat) {
      launch_shape<kKind, Shape<256, 1, 256, 16, kMostStages>>(a, streams);
    } else {
      launch_large<kKind, 512, 1, 256, 16, 4>(a, streams, large);
    }
  } else {
    if (a.cols <= (kFloat ? 1024 : 1280) || bytes <= (kFloat ? 1 : 8) * kLong) return false;
    if constexpr (kFloat) {
      launch_shape<kKind, Shape<256, 1, 128, 16, kFewStages>>(a, streams);
    } else {
      launch_large<kKind, 128, 3, 128, 16, kFewStages>(a, streams, large);
    }
  }
  return true;
}

template <Kind kKind, typename T, typename W, typename Streams>
void run_kind(const BackwardArgs<T, W>& a, const Streams& streams) {
  if constexpr (Streams::kHasLong) {
    if (launch_long<kKind>(a, streams)) return;
  }
  if (a.cols <= 512) return launch_shape<kKind, Shape<256, 2, 32, 16, kFewStages>>(a, streams);
  if (a.cols <= 1024) return launch_shape<kKind, Shape<256, 2, 64, 16, kFewStages>>(a, streams);
  if (a.cols <= 2048) return launch_shape<kKind, Shape<256, 2, 128, 16, kFewStages>>(a, streams);
  if (a.cols <= 4096) return launch_shape<kKind, Shape<1024, 1, 512, 8, kFewStages>>(a, streams);
  launch_shape<kKind, Shape<1024, 1, 1024, 8, kFewStages>>(a, streams);  // kMostCols
}

template <typename T, typename W, typename Streams>
void run_streams(const BackwardArgs<T, W>& a, const Streams& streams) {
  with_kind(a.kind, [&](auto kind) { run_kind<kind()>(a, streams); });
}

template <typename T, typename W>
void run(const BackwardArgs<T, W>& a) {
  if (a.fused.residual_out != nullptr) {
    if (a.fused.residual_is_float) return run_streams(a, ResidualStreams<T, float>{});
    return run_streams(a, ResidualStreams<T, T>{});
  }
  const bool small = a.rows * a.cols * int64_t{sizeof(T)} <= kSmallBytes;
  const L2Policy policy = small ? L2Policy::EvictFirst : L2Policy::EvictNormal;
  with_rows(a, [&]<typename Rows>(const InputRows<Rows>& rows) {
    run_streams(a, PlainStreams<T, Rows>{rows, policy});
  });
}

const Registration registration{{
    .id = "lib_bwd_ring",
    .title = "Rows of up to 8192 columns through a ring",
    .teaches = "backward, aligned rows of up to 8192 columns, with or without a residual",
    .source = "this repository, FlashAttention, QuACK",
    .road = Road::Library,
    .needs_aligned = true,
    .takes_strides = true,
    .fused = true,
    .residual_only = true,
    .takes_frozen = true,
    .group = "blocks",
    .min_architecture = 90,
    .max_cols = kMostCols,
    .max_cols_because = "a block holds a whole row",
    .run = BackwardLaunchers::every([](const auto& args) { run(args); }),
    .predicted_bytes = least_bytes<Direction::Backward>,
    .workspace_bytes = [](const Problem& p) -> std::int64_t {
      return partial_sums_bytes(p, std::min(p.rows, most_blocks(p.group, kMostBlocks)));
    },
}};

}  // namespace lib_bwd_ring
