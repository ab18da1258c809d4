// lib_fwd_ring · Persistent blocks with a ring of bulk copies
//
// Aligned rows of up to 16 384 columns, layer and RMS norm, on Hopper. Each block walks over many
// rows. One thread requests the next rows from the copy engine, up to four rows ahead, and weight
// and bias stay in registers.
//
// Parts: ring.h and hopper.h (slots, mbarriers, bulk copies; fwd08), own_vectors.h (a thread's
// vectors of a row; fwd06), moments.h (fwd04), reduce.h's row_sums (one barrier a sum).
//
// Measurements behind the constants, on an H100, layer norm with a cold L2:
// - kMostStages: two, three, four and six stages are within 2 % of each other at 4096 columns; one
//   stage takes 7 % longer. Rows of 64 KB use three stages, because four do not fit.
// - Blocks: as many as fit. bf16 16384 × 4096 takes 137 µs with 128 blocks, 106 with 256, 104 with
//   512.
// - The ring starts at a 128-byte line: bf16 32768 × 2048 takes 107 µs, against 118 if it starts 32
//   bytes after one.
// - The result: 7.9 µs at bf16 128 × 8192, against lib_fwd_registers's 8.3. With many rows it is
//   slower: 785 µs at bf16 131072 × 4096, against 717. On an H200 it is faster at f16 4096 × 14848,
//   70 µs against 76.
#include "common/kernel/chapter.h"
#include "common/kernel/kinds.h"
#include "common/kernel/moments.h"
#include "common/kernel/own_vectors.h"
#include "common/kernel/reduce.h"
#include "common/kernel/ring.h"
#include "common/kernel/shapes.h"
#include "common/kernel/vector.h"

namespace lib_fwd_ring {
using namespace lnc;

constexpr int kMostStages = 4;     // rows that a ring holds
constexpr int kMostColumns = 32;   // of a thread: x, weight and bias in registers
constexpr int kMostThreads = 512;  // of a block

/// The vectors of a row that a thread has, each kThreads vectors after the one before.
template <int kThreads, int kElements>
struct OwnVectors {
  int row_vectors;

  __device__ int number(int i) const { return i * kThreads + static_cast<int>(threadIdx.x); }
  __device__ bool has(int i) const { return number(i) < row_vectors; }
  __device__ int64_t of(int i) const { return int64_t{number(i)} * kElements; }
};

/// A block has a ring, and every gridDim.x-th row.
template <typename T, typename W, Kind kKind, int kThreads, int kVectors>
__global__ void __launch_bounds__(kThreads) layer_norm_forward(ForwardArgs<T, W> a, int stages) {
  constexpr int kElements = kVectorElements<T>;
  using Vec = Packed<T, kElements>;
  static_assert(kThreads > kWarpSize);  // for one warp row_sums has no barrier
  __shared__ Barrier full[kMostStages];
  const int row_vectors = static_cast<int>(a.cols / kElements);
  const auto row_bytes = static_cast<unsigned>(a.cols * sizeof(T));
  const int64_t stride = gridDim.x;
  const OwnVectors<kThreads, kElements> own{row_vectors};

  Ring<T> ring{dynamic_shared<Vec>(), row_vectors, stages, full};
  const auto request = [&](int64_t row, int stage) {
    if (row >= a.rows) return;
    full[stage].arrive_and_expect(row_bytes);
    bulk_load(ring.slot(stage), a.x + row * a.cols, row_bytes, full[stage]);
  };
  if (threadIdx.x == 0) {  // the mbarriers, the fence and the first requests
    ring.fill([&](int stage) { request(blockIdx.x + stage * stride, stage); });
  }
  Packed<W, kElements> weight[kVectors];  // loaded while the first rows arrive; kept for all rows
  Packed<W, kElements> bias[kVectors];
  load_vectors(weight, a.weight, 0, own, 1.0f);
  load_vectors(bias, a.bias, 0, own);
  __syncthreads();  // no thread may wait before the mbarriers are initialised

  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  int turn = 0;
  for (int64_t row = blockIdx.x; row < a.rows; row += stride) {
    Vec x[kVectors];
    const Vec* const slot = ring.wait();
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      x[i] = own.has(i) ? slot[own.number(i)] : Vec{};
    }

    float near = 0.0f;
    if (kKind == Kind::Layer) {
      near = row_sums<kThreads, kThreads>(sum_of(x, own), turn) * inverse_cols;
      // row_sums has two slots for the partial sums and alternates between them: past the barrier
      // of one sum every thread has read the slot of the sum before, so a sum needs one barrier.
      turn ^= 1;
    }
    const auto deviations = deviations_of<kKind>(x, near, own);
    ring.release();
    const auto sums = row_sums<kThreads, kThreads>(deviations, turn);
    turn ^= 1;
    const Normaliser of_row = normaliser(near, sums, inverse_cols, a.eps);

    if (threadIdx.x == 0) {
      // Every thread released the stage before the barrier of the last sum, so it is free.
      // Requested before y is computed.
      request(row + stages * stride, ring.stage);
      store_statistics<kKind>(a, row, of_row);
    }
    ring.advance();

    auto* y = reinterpret_cast<Vec*>(a.y + row * a.cols);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      // Otherwise nvcc converts 16-bit weight and bias to float outside the loop: 64 registers
      // instead of 32.
      stay_packed(weight[i]);
      stay_packed(bias[i]);
      float values[kElements];
      normalise(x[i], of_row, weight[i], bias[i], values);
      // Plain stores: no thread waits for them, so a bulk store would only add a trip through
      // shared memory.
      if (own.has(i)) y[own.number(i)] = from_floats<T>(values);
    }
  }
}

/// As many blocks as the GPU holds at once, each with as many stages as fit, up to kMostStages.
template <Kind kKind, typename Shape, typename T, typename W>
void run_shape(const ForwardArgs<T, W>& a) {
  constexpr int kStaticShared = 1 << 10;  // bytes: the barriers, and what CUDA takes
  const auto kernel = layer_norm_forward<T, W, kKind, Shape::kThreads, Shape::kVectors>;
  const int64_t row_bytes = a.cols * sizeof(T);
  const int64_t room = (max_shared_bytes() - kStaticShared) / row_bytes;
  const auto stages = static_cast<int>(std::min<int64_t>(room, kMostStages));
  const auto shared = static_cast<std::size_t>(stages * row_bytes);
  const int64_t blocks = most_blocks(a.group, resident_blocks(kernel, Shape::kThreads, shared));
  const auto grid = static_cast<unsigned>(std::min(blocks, a.rows));
  launch(kernel, {grid, Shape::kThreads, shared, a.stream}, a, stages);
}

/// The fewest threads that hold a row with four vectors each; 64 at least, since requesting a row
/// early relies on a sum's barrier.
template <typename T, typename W>
void run(const ForwardArgs<T, W>& a) {
  constexpr int kElements = kVectorElements<T>;
  constexpr int kMostVectors = kMostColumns / kElements;  // of a thread: 8 of float, else 4
  with_kind(a.kind, [&](auto kind) {
    run_shapes<BlockShape<64, 1>, BlockShape<64, 2>, BlockShape<64, 4>, BlockShape<128, 4>,
               BlockShape<256, 4>, BlockShape<512, 4>, BlockShape<kMostThreads, kMostVectors>>(
        a.cols / kElements, [&](auto shape) { run_shape<kind(), decltype(shape)>(a); });
  });
}

const Registration registration{{
    .id = "lib_fwd_ring",
    .title = "Persistent blocks with a ring of bulk copies",
    .teaches = "bulk copies run rows ahead: for few rows, and widths at which few blocks fit",
    .source = "this repository",
    .road = Road::Library,
    .needs_aligned = true,
    .group = "blocks",
    .min_architecture = 90,
    .keeps_digits_at_large_means = true,
    .max_cols = kMostThreads * kMostColumns,
    .max_cols_because = "a thread keeps 32 columns of x, weight and bias in registers",
    .run = ForwardLaunchers::every([](const auto& args) { run(args); }),
    .predicted_bytes = least_bytes<Direction::Forward>,
}};

}  // namespace lib_fwd_ring
