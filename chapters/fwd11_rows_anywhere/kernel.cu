// fwd11 · Rows that start anywhere
//
// fwd08 refuses rows that do not start at 16-byte boundaries, and fwd06 moves them element by
// element. But where rows start repeats: of 4097 halves every eighth starts alike. So a block whose
// steps lead to rows that start alike has the same whole vectors in each, counted from the boundary
// before the row. Only a row's first and last vector are shared with its neighbours.
//
// It should take as long as the same kernel with the next aligned width.
#include "common/kernel/chapter.h"
#include "common/kernel/reduce.h"
#include "common/kernel/ring.h"
#include "common/kernel/rows_anywhere.h"

namespace fwd11 {
using namespace lnc;

constexpr int kMostStages = 4;     // rows that a ring holds
constexpr int kMostThreads = 512;  // [1] of a block
constexpr int kFewVectors = 2;     // of a thread, where so many threads are enough
constexpr int kManyVectors = 4;
constexpr int64_t kMostRowBytes =
    kMostThreads * kManyVectors * 16 - 16;  // the rest is before a row

/// Blocks of kMostThreads threads for whose registers a multiprocessor has room.
template <typename T, typename W, int kVectors>
constexpr int kBlocks = kVectors == kFewVectors && sizeof(W) == sizeof(T) ? 2 : 1;

/// Takes a thread's vectors of a row out of a slot. What is not the row's is 0.
template <typename Taking, typename T, int kElements, int kVectors>
__device__ void take_vectors(Packed<T, kElements> (&x)[kVectors], const OwnColumns& own,
                             const T* row) {
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    x[i] = Packed<T, kElements>{};
    if (own.has(i)) x[i] = Taking::take(own, i, row);
  }
}

/// The sum of this thread's elements.
template <typename T, int kElements, int kVectors>
__device__ float sum_of(const Packed<T, kElements> (&x)[kVectors]) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    float values[kElements];
    to_floats(x[i], values);
    for (int k = 0; k < kElements; ++k) {
      sum += values[k];
    }
  }
  return sum;
}

/// The sum of the squares of this thread's elements, about the mean.
template <typename T, int kElements, int kVectors>
__device__ float squares_about(float mean, Packed<T, kElements> (&x)[kVectors],
                               const OwnColumns& own) {
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    stay_packed(x[i]);
    float values[kElements];
    to_floats(x[i], values);
    own.fill_others(i, values, mean);  // [2]
    for (int k = 0; k < kElements; ++k) {
      const float centred = values[k] - mean;
      squares += centred * centred;
    }
  }
  return squares;
}

/// A block has a ring, and every gridDim.x-th row. These start alike.
template <typename T, typename W, Kind kKind, int kVectors, typename Taking>
__global__ void __launch_bounds__(kMostThreads, kBlocks<T, W, kVectors>)
    layer_norm_forward(ForwardArgs<T, W> a, int stages, int slot_vectors, unsigned end_rows,
                       float inverse_cols) {
  constexpr int kElements = kVectorElements<T>;
  constexpr bool kLayer = kKind == Kind::Layer;
  __shared__ Barrier full[kMostStages];
  const auto cols = static_cast<int>(a.cols);
  const int thread = threadIdx.x;
  const int threads = blockDim.x;
  const int64_t stride = gridDim.x;

  const int64_t first_element = blockIdx.x * a.cols;  // [3]
  const int start = start_in_vector(a.y + first_element);
  const OwnColumns own{thread * kElements - start, threads * kElements, cols};
  const int x_start = start_in_vector(a.x + first_element);

  Ring<T> ring{dynamic_shared<Packed<T, kElements>>(), slot_vectors, stages, full};
  const auto row_of_x = [&](int64_t row) {
    return TensorPiece<T>(a.x, a.rows * a.cols, row * a.cols, cols);
  };
  const auto request = [&](int64_t row, int stage) {  // [4]
    if (row >= a.rows) return;
    const auto x = row_of_x(row);
    full[stage].arrive_and_expect(x.copy_bytes());
    x.copy(reinterpret_cast<T*>(ring.slot(stage)), full[stage]);
  };
  if (thread == 0) {
    ring.fill([&](int stage) { request(blockIdx.x + stage * stride, stage); });
  }
  Packed<W, kElements> weight[kVectors];  // [5]
  Packed<W, kElements> bias[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    weight[i] = own.load<kElements>(i, a.weight, 1.0f);
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    bias[i] = own.load<kElements>(i, a.bias, 0.0f);
  }

  int place = 0;
  for (int64_t row = blockIdx.x; row < a.rows; row += stride) {
    T* const slot = reinterpret_cast<T*>(ring.wait());
    if (row < end_rows || row + end_rows >= a.rows) {  // [6]
      row_of_x(row).bring_ends(slot);
      __syncthreads();
    }
    Packed<T, kElements> x[kVectors];
    take_vectors<Taking>(x, own, slot + x_start);  // [7]

    float mean = 0.0f;
    if (kLayer) {
      place ^= 1;
      mean = team_sums<kMostThreads, 2>(sum_of(x), place, 0, threads / kWarpSize);  // [8]
      mean *= inverse_cols;
    }
    place ^= 1;
    float squares = squares_about(mean, x, own);
    squares = team_sums<kMostThreads, 2>(squares, place, 0, threads / kWarpSize);
    const float rstd = rsqrtf(squares * inverse_cols + a.eps);

    if (thread == 0) request(row + stages * stride, ring.stage);
    ring.advance();

    T* const y_row = a.y + row * a.cols;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      stay_packed(x[i]);
      stay_packed(weight[i]);
      stay_packed(bias[i]);
      float values[kElements];
      float of_weight[kElements];
      float of_bias[kElements];
      to_floats(x[i], values);
      to_floats(weight[i], of_weight);
      to_floats(bias[i], of_bias);
      for (int k = 0; k < kElements; ++k) {
        const float xhat = (values[k] - mean) * rstd;
        values[k] = kLayer ? xhat * of_weight[k] + of_bias[k] : xhat * of_weight[k];
      }
      if (own.has(i)) own.store(i, y_row, values);  // [9]
    }
    if (thread == 0) {
      if (kLayer) a.mean[row] = mean;
      a.rstd[row] = rstd;
    }
  }
}

/// As many blocks as the GPU holds at once, or nearly so: a step of all of them leads to rows that
/// start alike. A block has as few warps as hold a row, and as many stages as fit.
template <Kind kKind, int kVectors, typename Taking, typename T, typename W>
void run_blocks(const ForwardArgs<T, W>& a) {
  constexpr int kStaticShared = 1 << 10;  // bytes: the barriers, the sums, and what CUDA takes
  const auto kernel = layer_norm_forward<T, W, kKind, kVectors, Taking>;
  const int64_t vectors = row_vectors(a.y, a.cols);
  const auto threads = static_cast<int>(blocks_for(vectors, kVectors * kWarpSize) * kWarpSize);
  const int slot_elements = slot_elements_for<T>(1, static_cast<int>(a.cols));
  const auto slot_bytes = static_cast<int>(slot_elements * sizeof(T));
  const int stages = std::min((max_shared_bytes() - kStaticShared) / slot_bytes, kMostStages);
  const auto shared = static_cast<std::size_t>(stages * slot_bytes);

  int64_t most = a.group;
  if (most == 0) most = multiprocessors() * resident_blocks(kernel, threads, shared);
  const int64_t in_step = blocks_in_step<T>(most, 1, a.cols);  // [10]
  const auto grid = static_cast<unsigned>(std::min(in_step, a.rows));
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  launch(kernel, {grid, static_cast<unsigned>(threads), shared, a.stream}, a, stages,
         slot_elements / kVectorElements<T>, rows_at_end<T>(a.cols), inverse_cols);
}

template <Kind kKind, typename T, typename W>
void run_kind(const ForwardArgs<T, W>& a) {
  const bool alike = start_in_vector(a.x) == start_in_vector(a.y);
  if (!alike) {
    run_blocks<kKind, kManyVectors, TakeElements>(a);  // [11]
  } else if (row_vectors(a.y, a.cols) <= kMostThreads * kFewVectors) {
    run_blocks<kKind, kFewVectors, TakeVectors>(a);
  } else {
    run_blocks<kKind, kManyVectors, TakeVectors>(a);
  }
}

template <typename T, typename W>
void run(const ForwardArgs<T, W>& a) {
  if (a.kind == Kind::Layer) {
    run_kind<Kind::Layer>(a);
  } else {
    run_kind<Kind::Rms>(a);
  }
}

const Registration registration{{
    .id = "fwd11",
    .title = "Rows that start anywhere",
    .teaches = "a block steps to rows that start alike, so that vectors stay whole",
    .source = "this repository",
    .parent = "fwd08",
    .road = Road::UnalignedRows,
    .usual_cols = 2049,
    .group = "blocks",
    .min_architecture = 90,
    .max_row_bytes = kMostRowBytes,
    .run = ForwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>, run<__half, float>,
                            run<__nv_bfloat16, float>},
    .predicted_bytes = [](const Problem& p, const Gpu&) -> std::int64_t {
      return 2 * p.tensor_bytes() + parameter_bytes(p);
    },
}};

}  // namespace fwd11
