// bwd16 · Residual and norm alone, backward
//
// fwd12 stores z = x + residual and normalises it. The loss depends on z in two ways: through the
// norm, and past it, as the residual of the next layer. So the gradient of z, which x and the
// residual take as it is, has two parts: the norm's, and the one that arrives past the norm. An
// addition behind bwd12 would read what bwd12 has just written: six tensors. Here the part past the
// norm comes in the ring, beside z and dy, and is added before dx is stored: four.
//
// It should run at the speed of a triad: 4·M·N elements, each moved once.
#include "common/kernel/chapter.h"
#include "common/kernel/gradient_terms.h"
#include "common/kernel/partial_sums.h"
#include "common/kernel/reduce.h"
#include "common/kernel/ring.h"
#include "common/kernel/thread_columns.h"
#include "common/kernel/vector.h"

namespace bwd16 {
using namespace lnc;

// A multiprocessor has two blocks of 256 threads, with 128 registers and up to 16 columns for each
// thread, or where a row has more threads one of 1024, with 64 registers and 8 columns.
template <int kRowThreads>
constexpr int kBlockThreads = kRowThreads < 256 ? 256 : 1024;
template <int kRowThreads>
constexpr int kBlocks = kRowThreads < 256 ? 2 : 1;

constexpr int kMostBlocks = 2;         // of a multiprocessor
constexpr int kMostStages = 3;         // [1] of a block's ring
constexpr int kSpareBytes = 10 << 10;  // of a multiprocessor's shared memory
constexpr int64_t kMostCols = 8192;    // 1024 threads with 8 columns each

/// How a stage is laid out that has `elements` elements of each tensor: z, then dy, then what
/// arrives past the norm. In vectors of 16 bytes, as the ring counts.
template <typename T, typename R>
struct StageLayout {
  int elements;

  __host__ __device__ int z_vectors() const { return elements / kVectorElements<R>; }
  __host__ __device__ int dy_vectors() const { return elements / kVectorElements<T>; }
  __host__ __device__ int dy_at() const { return z_vectors(); }
  __host__ __device__ int past_norm_at() const { return dy_at() + dy_vectors(); }
  __host__ __device__ int vectors() const { return past_norm_at() + z_vectors(); }
};

/// A block takes a step of kRows neighbouring rows at a time, then those gridDim.x · kRows further
/// on. R is the stream's type, T or float: of z, of the gradient past the norm and of dresidual.
/// That gradient may be null, remark 3, and dresidual, remark 6.
template <typename T, typename W, typename R, Kind kKind, int kRowThreads, int kThreadCols>
__global__ void __launch_bounds__(kBlockThreads<kRowThreads>, kBlocks<kRowThreads>)
    residual_norm_backward(BackwardArgs<T, W> a, int stages, float inverse_cols, PartialSums sums) {
  constexpr int kThreads = kBlockThreads<kRowThreads>;
  constexpr int kRows = kThreads / kRowThreads;
  constexpr int kElements = kVectorElements<R>;  // [2]
  constexpr int kVectors = kThreadCols / kElements;
  constexpr bool kLayer = kKind == Kind::Layer;
  __shared__ Barrier full[kMostStages];
  const auto* const z = static_cast<const R*>(a.fused.residual_out);
  const auto* const past_norm = static_cast<const R*>(a.fused.dresidual_out);
  auto* const dresidual = static_cast<R*>(a.fused.dresidual);
  const auto cols = static_cast<int>(a.cols);
  const int team = threadIdx.x / kRowThreads;  // the threads of a row, of those in a step
  const int thread = threadIdx.x % kRowThreads;
  const ThreadColumns own{thread * kElements, kRowThreads * kElements, cols};
  const int64_t first_row = int64_t{blockIdx.x} * kRows;  // of the block's first step
  const int64_t stride = int64_t{gridDim.x} * kRows;

  const StageLayout<T, R> layout{kRows * cols};
  Ring<T> ring{dynamic_shared<Packed<T, kVectorElements<T>>>(), layout.vectors(), stages, full};
  const auto request = [&](int64_t step_row, int stage) {
    if (step_row >= a.rows) return;
    const int64_t start = step_row * a.cols;
    const int64_t rows = min(a.rows - step_row, int64_t{kRows});
    const auto bytes = static_cast<unsigned>(rows * a.cols * sizeof(T));
    const auto stream_bytes = static_cast<unsigned>(rows * a.cols * sizeof(R));
    const unsigned streams = past_norm == nullptr ? 1 : 2;  // [3]
    auto* const slot = ring.slot(stage);
    full[stage].arrive_and_expect(bytes + streams * stream_bytes);
    bulk_load(slot, z + start, stream_bytes, full[stage]);
    bulk_load(slot + layout.dy_at(), a.dy + start, bytes, full[stage]);
    if (past_norm == nullptr) return;
    bulk_load(slot + layout.past_norm_at(), past_norm + start, stream_bytes, full[stage]);
  };
  if (threadIdx.x == 0) {
    ring.fill([&](int stage) { request(first_row + stage * stride, stage); });
  }
  launch_dependents();

  const auto statistics_of = [&](int64_t row) {  // mean and rstd
    if (row >= a.rows) return make_float2(0.0f, 0.0f);
    const float mean = kLayer ? a.mean[row] : 0.0f;
    return make_float2(mean, a.rstd[row]);
  };
  float2 next = statistics_of(first_row + team);
  Packed<W, kElements> weight[kVectors];
  Vector<float, kElements> dweight[kVectors] = {};
  Vector<float, kElements> dbias[kVectors] = {};
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const bool given = a.weight != nullptr && own.has(i);
    weight[i] = load_if<kElements>(given, a.weight, own.of(i), 1.0f);
  }
  __syncthreads();

  int parity = 0;
  for (int64_t step_row = first_row; step_row < a.rows; step_row += stride) {
    const int64_t row = step_row + team;
    const bool there = kRows == 1 || row < a.rows;
    const float mean = next.x;
    const float rstd = next.y;
    next = statistics_of(row + stride);
    const auto* const slot = ring.wait();
    const R* const z_row = reinterpret_cast<const R*>(slot) + team * cols;
    const T* const dy_row = reinterpret_cast<const T*>(slot + layout.dy_at()) + team * cols;
    const R* const past_norm_row =
        reinterpret_cast<const R*>(slot + layout.past_norm_at()) + team * cols;
    GradientTerms<kElements> terms[kVectors];
    Packed<R, kElements> past_norm_vector[kVectors];
    float2 c = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const bool given = there && own.has(i);
      const auto z_vector = load_if<kElements>(given, z_row, own.of(i));
      const auto dy = load_if<kElements>(given, dy_row, own.of(i));
      const bool has_past_norm = given && past_norm != nullptr;
      past_norm_vector[i] = load_if<kElements>(has_past_norm, past_norm_row, own.of(i));  // [4]
      stay_packed(weight[i]);
      terms[i] = GradientTerms<kElements>(z_vector, dy, weight[i], mean, rstd);
      terms[i].add_to(c);
      for (int k = 0; k < kElements; ++k) {
        dweight[i].at[k] += terms[i].dy[k] * terms[i].xhat[k];
        if (kLayer) dbias[i].at[k] += terms[i].dy[k];
      }
    }
    ring.release();
    c = row_sums<kThreads, kRowThreads>(c, parity);
    parity ^= 1;
    if (kRowThreads == kWarpSize) __syncthreads();
    if (threadIdx.x == 0) {
      const int64_t row_ahead = step_row + stages * stride;
      request(row_ahead, ring.stage);
    }
    ring.advance();

    const float scaled_c1 = c.x * inverse_cols * rstd;
    const float scaled_c2 = kLayer ? c.y * inverse_cols * rstd : 0.0f;
    const int64_t start = row * a.cols;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float dx[kElements];
      to_floats(past_norm_vector[i], dx);
      for (int k = 0; k < kElements; ++k) {  // [5] + rstd · (wdy − c2 − xhat · c1)
        dx[k] += rstd * terms[i].wdy[k] - (terms[i].xhat[k] * scaled_c1 + scaled_c2);
      }
      if (!there || !own.has(i)) continue;
      store_vector(a.dx + start + own.of(i), dx);
      if (dresidual != nullptr) store_vector(dresidual + start + own.of(i), dx);  // [6]
    }
  }

  if (a.dweight == nullptr) return;  // frozen parameters: nobody wants the sums
  const int64_t part = blockIdx.x * a.cols;
  if constexpr (kRows == 1) {
    store_sums(own, dweight, sums.dweight + part);
    if (kLayer) store_sums(own, dbias, sums.dbias + part);
  } else {
    auto* const of_rows = dynamic_shared<float>();
    auto* const dbias_of_rows = of_rows + kRows * cols;
    store_sums(own, dweight, of_rows + team * cols);
    if (kLayer) store_sums(own, dbias, dbias_of_rows + team * cols);
    __syncthreads();
    add_rows(of_rows, kRows, cols, sums.dweight + part);
    if (kLayer) add_rows(dbias_of_rows, kRows, cols, sums.dbias + part);
  }
}

/// Rows of up to kRowThreads · kThreadCols columns.
template <typename R, Kind kKind, int kRowThreads, int kThreadCols, typename T, typename W>
void launch_rows(const BackwardArgs<T, W>& a) {
  constexpr int kThreads = kBlockThreads<kRowThreads>;
  constexpr int kRows = kThreads / kRowThreads;
  const StageLayout<T, R> layout{kRows * static_cast<int>(a.cols)};
  const int stage_bytes = layout.vectors() * 16;
  const int room = (max_shared_bytes() - kSpareBytes) / kBlocks<kRowThreads> / stage_bytes;
  const int stages = std::clamp(room, 2, kMostStages);
  const auto shared_bytes = static_cast<std::size_t>(stages) * stage_bytes;
  const unsigned blocks_at_once = multiprocessors() * kBlocks<kRowThreads>;
  const unsigned most = a.group > 0 ? a.group : blocks_at_once;
  const unsigned blocks = std::min(most, blocks_for(a.rows, kRows));
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  const PartialSums sums = partial_sums(a, blocks);
  launch(residual_norm_backward<T, W, R, kKind, kRowThreads, kThreadCols>,
         {blocks, kThreads, shared_bytes, a.stream}, a, stages, inverse_cols, sums);
  add_partial_sums<EarlyStart, kMostCols>(a, sums, blocks);
}

template <typename R, Kind kKind, typename T, typename W>
void run_kind(const BackwardArgs<T, W>& a) {
  if (a.cols <= 512) {
    launch_rows<R, kKind, 32, 16>(a);
  } else if (a.cols <= 1024) {
    launch_rows<R, kKind, 64, 16>(a);
  } else if (a.cols <= 2048) {
    launch_rows<R, kKind, 128, 16>(a);
  } else if (a.cols <= 4096) {
    launch_rows<R, kKind, 512, 8>(a);
  } else if (a.cols <= kMostCols) {
    launch_rows<R, kKind, 1024, 8>(a);
  } else {
    throw std::logic_error("bwd16 has no kernel for rows of " + std::to_string(a.cols) +
                           " columns: they should have been refused");
  }
}

template <typename R, typename T, typename W>
void run_stream(BackwardArgs<T, W> a) {
  if (a.fused.residual_out == nullptr) a.fused.residual_out = a.x;  // [7]
  if (a.kind == Kind::Layer) {
    run_kind<R, Kind::Layer>(a);
  } else {
    run_kind<R, Kind::Rms>(a);
  }
}

template <typename T, typename W>
void run(const BackwardArgs<T, W>& a) {
  if (a.fused.residual_is_float) {
    run_stream<float>(a);
  } else {
    run_stream<T>(a);
  }
}

const Registration registration{{
    .id = "bwd16",
    .title = "Residual and norm alone, backward",
    .teaches = "the gradient that goes past the norm comes in the ring, and is added before dx",
    .source = "FlashAttention, QuACK",
    .parent = "bwd12",
    .road = Road::Fusion,
    .needs_aligned = true,
    .fused = true,
    .residual_only = true,
    .takes_frozen = true,
    .group = "blocks",
    .min_architecture = 90,
    .max_cols = kMostCols,
    .max_cols_because = "a block holds a whole row",
    .run = BackwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>, run<__half, float>,
                             run<__nv_bfloat16, float>},
    .predicted_bytes = [](const Problem& p, const Gpu&) -> std::int64_t {
      return backward_tensor_bytes(p) + parameter_bytes(p);
    },
    .workspace_bytes = [](const Problem& p) -> std::int64_t {
      const int64_t blocks_at_once = int64_t{multiprocessors()} * kMostBlocks;
      const int64_t blocks = p.group > 0 ? p.group : blocks_at_once;
      return partial_sums_bytes(p, std::min(p.rows, blocks));
    },
}};

}  // namespace bwd16
