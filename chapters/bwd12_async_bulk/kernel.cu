// bwd12 · Bulk copies in a ring, an early last sum
//
// In bwd11 each thread fetches its own part of the next row, vector by vector. Here one thread asks
// the copy engine for whole rows of x and dy, as in fwd08, up to three steps ahead; the others only
// wait until they are there. Registers hold weight, dweight, dbias and the row at work. The kernel
// that adds up the blocks' sums is launched while this one still runs.
//
// It should run at the speed of a triad: 3·M·N elements, each moved once.
#include "common/kernel/chapter.h"
#include "common/kernel/gradient_terms.h"
#include "common/kernel/partial_sums.h"
#include "common/kernel/reduce.h"
#include "common/kernel/ring.h"
#include "common/kernel/rows.h"
#include "common/kernel/thread_columns.h"
#include "common/kernel/vector.h"

namespace bwd12 {
using namespace lnc;

// [1] A multiprocessor has two blocks of 256 threads, with 128 registers for each thread, or where
// a row has more threads one of 1024, with 64.
template <int kRowThreads>
constexpr int kBlockThreads = kRowThreads < 256 ? 256 : 1024;
template <int kRowThreads>
constexpr int kBlocks = kRowThreads < 256 ? 2 : 1;

constexpr int kMostBlocks = 2;             // of a multiprocessor
constexpr int kStages = 3;                 // [2] of a block's ring
constexpr int64_t kSmallBytes = 12 << 20;  // [3] of a tensor
constexpr int64_t kMostCols = 8192;        // 1024 threads with 8 columns each

/// A block takes a step of kRows neighbouring rows at a time, then those gridDim.x · kRows further
/// on. A stage of the ring holds these of x, then these of dy. The kind is known to the compiler:
/// RMS norm has no dbias, and takes fewer registers. Where the rows of x and of dy start, `rows`
/// says.
template <typename T, typename W, Kind kKind, int kRowThreads, int kVectors, typename Rows>
__global__ void __launch_bounds__(kBlockThreads<kRowThreads>, kBlocks<kRowThreads>)
    layer_norm_backward(BackwardArgs<T, W> a, float inverse_cols, L2Policy policy, PartialSums sums,
                        InputRows<Rows> rows) {
  constexpr int kThreads = kBlockThreads<kRowThreads>;
  constexpr int kRows = kThreads / kRowThreads;
  constexpr int kElements = kVectorElements<T>;
  constexpr bool kLayer = kKind == Kind::Layer;
  __shared__ Barrier full[kStages];
  const auto cols = static_cast<int>(a.cols);
  const int dy_offset = kRows * cols / kElements;  // where dy begins in a stage, in vectors
  const int team = threadIdx.x / kRowThreads;      // the threads of a row, of those in a step
  const int thread = threadIdx.x % kRowThreads;
  const ThreadColumns own{thread * kElements, kRowThreads * kElements, cols};
  const int64_t first_row = int64_t{blockIdx.x} * kRows;  // of the block's first step
  const int64_t stride = int64_t{gridDim.x} * kRows;

  Ring<T> ring{dynamic_shared<Packed<T, kElements>>(), 2 * dy_offset, kStages, full};
  const auto request = [&](int64_t step_row, int stage) {
    if (step_row >= a.rows) return;
    const auto count = static_cast<int>(min(a.rows - step_row, int64_t{kRows}));
    const auto bytes = static_cast<unsigned>(2 * count * cols * sizeof(T));
    auto* const x_rows = ring.slot(stage);
    auto* const dy_rows = x_rows + dy_offset;
    full[stage].arrive_and_expect(bytes);  // [4]
    bulk_load_rows(x_rows, a.x, rows.x, step_row, count, cols, full[stage], policy);
    bulk_load_rows(dy_rows, a.dy, rows.dy, step_row, count, cols, full[stage], policy);
  };
  if (threadIdx.x == 0) {
    ring.fill([&](int stage) { request(first_row + stage * stride, stage); });
  }
  launch_dependents();  // [5]

  const auto statistics_of = [&](int64_t row) {  // mean and rstd
    if (row >= a.rows) return make_float2(0.0f, 0.0f);
    const float mean = kLayer ? a.mean[row] : 0.0f;
    return make_float2(mean, a.rstd[row]);
  };
  float2 next = statistics_of(first_row + team);  // [6]
  Packed<W, kElements> weight[kVectors];
  Vector<float, kElements> dweight[kVectors] = {};
  Vector<float, kElements> dbias[kVectors] = {};
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const bool given = a.weight != nullptr && own.has(i);
    weight[i] = load_if<kElements>(given, a.weight, own.of(i), 1.0f);
  }
  __syncthreads();

  int parity = 0;  // which of the two places of row_sums is in turn
  for (int64_t step_row = first_row; step_row < a.rows; step_row += stride) {
    const int64_t row = step_row + team;
    const bool there = kRows == 1 || row < a.rows;  // [7]
    const float mean = next.x;
    const float rstd = next.y;
    next = statistics_of(row + stride);
    const T* const x_row = reinterpret_cast<const T*>(ring.wait()) + team * cols;
    const T* const dy_row = x_row + kRows * cols;
    GradientTerms<kElements> terms[kVectors];
    float2 c = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const bool given = there && own.has(i);
      const auto x = load_if<kElements>(given, x_row, own.of(i));
      const auto dy = load_if<kElements>(given, dy_row, own.of(i));
      stay_packed(weight[i]);  // otherwise nvcc keeps it as floats, in twice the registers
      terms[i] = GradientTerms<kElements>(x, dy, weight[i], mean, rstd);
      terms[i].add_to(c);
      for (int k = 0; k < kElements; ++k) {
        dweight[i].at[k] += terms[i].dy[k] * terms[i].xhat[k];
        if (kLayer) dbias[i].at[k] += terms[i].dy[k];
      }
    }
    ring.release();
    c = row_sums<kThreads, kRowThreads>(c, parity);  // the step's barrier, but see [8]
    parity ^= 1;
    if (kRowThreads == kWarpSize) __syncthreads();  // [8]
    if (threadIdx.x == 0) {
      const int64_t row_ahead = step_row + kStages * stride;
      request(row_ahead, ring.stage);
    }
    ring.advance();

    const float scaled_c1 = c.x * inverse_cols * rstd;
    const float scaled_c2 = kLayer ? c.y * inverse_cols * rstd : 0.0f;
    T* const dx_row = a.dx + row * a.cols;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float dx[kElements];
      for (int k = 0; k < kElements; ++k) {  // rstd · (wdy − c2 − xhat · c1), in two multiply-adds
        dx[k] = rstd * terms[i].wdy[k] - (terms[i].xhat[k] * scaled_c1 + scaled_c2);
      }
      if (there && own.has(i)) store_vector(dx_row + own.of(i), dx);
    }
  }

  if (a.dweight == nullptr) return;  // frozen parameters: nobody wants the sums
  const int64_t part = blockIdx.x * a.cols;
  if constexpr (kRows == 1) {
    store_sums(own, dweight, sums.dweight + part);
    if (kLayer) store_sums(own, dbias, sums.dbias + part);
  } else {  // [9]
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
template <Kind kKind, int kRowThreads, int kThreadCols, typename T, typename W>
void launch_rows(const BackwardArgs<T, W>& a) {
  constexpr int kThreads = kBlockThreads<kRowThreads>;
  constexpr int kRows = kThreads / kRowThreads;
  const auto stage_bytes = static_cast<int>(2 * kRows * a.cols * sizeof(T));
  const auto shared_bytes = static_cast<std::size_t>(kStages) * stage_bytes;  // 192 KB at most
  const unsigned places = multiprocessors() * kBlocks<kRowThreads>;
  const unsigned most = a.group > 0 ? a.group : places;
  const unsigned blocks = std::min(most, blocks_for(a.rows, kRows));
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  const bool small = a.rows * a.cols * int64_t{sizeof(T)} <= kSmallBytes;
  const L2Policy policy = small ? L2Policy::EvictFirst : L2Policy::EvictNormal;
  const PartialSums sums = partial_sums(a, blocks);
  with_rows(a, [&]<typename Rows>(const InputRows<Rows>& rows) {
    constexpr int kVectors = kThreadCols / kVectorElements<T>;
    launch(layer_norm_backward<T, W, kKind, kRowThreads, kVectors, Rows>,
           {blocks, kThreads, shared_bytes, a.stream}, a, inverse_cols, policy, sums, rows);
  });
  add_partial_sums<EarlyStart, kMostCols>(a, sums, blocks);  // [10]
}

template <Kind kKind, typename T, typename W>
void run_kind(const BackwardArgs<T, W>& a) {
  if (a.cols <= 512) {  // [11]
    launch_rows<kKind, 32, 16>(a);
  } else if (a.cols <= 1024) {
    launch_rows<kKind, 64, 16>(a);
  } else if (a.cols <= 2048) {
    launch_rows<kKind, 128, 16>(a);
  } else if (a.cols <= 4096) {
    launch_rows<kKind, 512, 8>(a);
  } else if (a.cols <= kMostCols) {
    launch_rows<kKind, 1024, 8>(a);
  } else {
    throw std::logic_error("bwd12 has no kernel for rows of " + std::to_string(a.cols) +
                           " columns: they should have been refused");
  }
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
    .id = "bwd12",
    .title = "Bulk copies in a ring, an early last sum",
    .teaches = "the copy engine brings the next rows; the last sum is launched before it is needed",
    .source = "this repository",
    .parent = "bwd11",
    .road = Road::Main,
    .needs_aligned = true,
    .takes_strides = true,
    .takes_frozen = true,
    .group = "blocks",
    .min_architecture = 90,
    .max_cols = kMostCols,
    .max_cols_because = "a block holds a whole row",
    .run = BackwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>, run<__half, float>,
                             run<__nv_bfloat16, float>},
    .predicted_bytes = [](const Problem& p, const Gpu&) -> std::int64_t {
      return 3 * p.tensor_bytes() + parameter_bytes(p);
    },
    .workspace_bytes = [](const Problem& p) -> std::int64_t {
      const int64_t places = int64_t{multiprocessors()} * kMostBlocks;
      const int64_t blocks = p.group > 0 ? p.group : places;
      return partial_sums_bytes(p, std::min(p.rows, blocks));
    },
}};

}  // namespace bwd12
