// bwd08 · Sums in buffers under a lock
//
// bwd04 adds each element's part of dweight and dbias with an atomic of its own, and all rows meet
// at 2·N addresses. Here rows share F buffers of [N] sums instead: a block computes the dx of its
// row, takes the lock of buffer row % F, adds its row to that buffer with plain loads and stores,
// and lets go. A second kernel adds up the buffers. One atomic pair a row replaces 2·N.
//
// The rows of a buffer wait for each other: M / F turns of one lock, some 2 µs each, are a time
// that no bandwidth shortens.
#include "common/kernel/chapter.h"
#include "common/kernel/gradient_sums.h"
#include "common/kernel/gradient_terms.h"
#include "common/kernel/partial_sums.h"
#include "common/kernel/reduce.h"
#include "common/kernel/vector.h"

namespace bwd08 {
using namespace lnc;

/// What the word of a buffer's lock says. A launch begins with all of them free and empty.
enum LockState : int { kFreeAndEmpty, kFreeAndFull, kHeld };

/// Takes the buffer for this block, and says whether it holds sums already. All threads call it.
__device__ bool acquire(int* lock) {
  __shared__ int before;
  if (threadIdx.x == 0) {
    do {
      before = atomicExch(lock, kHeld);  // [1]
    } while (before == kHeld);
    __threadfence();  // [2]
  }
  __syncthreads();  // [3] no thread reads the buffer before thread 0 has the lock
  return before == kFreeAndFull;
}

/// Gives the buffer back. All threads call it.
__device__ void release(int* lock) {
  __syncthreads();  // [4] every warp has stored its columns before thread 0 lets go
  if (threadIdx.x == 0) {
    __threadfence();  // [5] and what they stored is seen before the lock is seen free
    atomicExch(lock, kFreeAndFull);
  }
}

/// Floats of the buffer, from L2.
template <int kElements>
__device__ Vector<float, kElements> load_past_l1(const float* at) {
  using Access = std::conditional_t<kElements == 4, float4, float>;
  return __builtin_bit_cast(Vector<float, kElements>, __ldcg(reinterpret_cast<const Access*>(at)));
}

/// A block a row. What a thread reads of it stays in kVectors vectors; with 0, each walk reads it
/// again.
template <typename T, typename W, int kThreads, int kVectors, int kElements>
__global__ void __launch_bounds__(kThreads)
    layer_norm_backward(BackwardArgs<T, W> a, PartialSums sums, int* locks, int buffers) {
  constexpr bool kWide = kVectors == 0;
  const int64_t row = blockIdx.x;
  const int64_t start = row * a.cols;
  const bool layer = a.kind == Kind::Layer;
  const float mean = layer ? a.mean[row] : 0.0f;
  const float rstd = a.rstd[row];

  struct {
    Packed<T, kElements> x, dy;
    Packed<W, kElements> weight;
  } kept[kWide ? 1 : kVectors];
  const auto column = [](int64_t tile) { return (tile * kThreads + threadIdx.x) * kElements; };
  const auto load = [&](int64_t tile) {
    const int64_t col = column(tile);
    auto& part = kept[kWide ? 0 : tile];
    part.x = load_if<kElements>(col < a.cols, a.x, start + col);
    part.dy = load_if<kElements>(col < a.cols, a.dy, start + col);
    part.weight = load_if<kElements>(col < a.cols && a.weight != nullptr, a.weight, col, 1.0f);
  };
  const auto walk = [&](auto&& body) {
    const int64_t tiles = kWide ? (a.cols - 1) / (kThreads * kElements) + 1 : kVectors;
#pragma unroll(kWide ? 1 : kVectors)
    for (int64_t tile = 0; tile < tiles; ++tile) {
      if (kWide) load(tile);
      const auto& part = kept[kWide ? 0 : tile];
      body(tile, GradientTerms<kElements>(part.x, part.dy, part.weight, mean, rstd));
    }
  };
#pragma unroll
  for (int tile = 0; tile < kVectors; ++tile) {
    load(tile);  // [6] all loads before the first use
  }

  float2 c = make_float2(0.0f, 0.0f);
  walk([&](int64_t, const GradientTerms<kElements>& t) { t.add_to(c); });
  c = row_sums<kThreads, kThreads>(c, 0);
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  const float c1 = c.x * inverse_cols;
  const float c2 = layer ? c.y * inverse_cols : 0.0f;

  const auto store_dx = [&](int64_t tile, const GradientTerms<kElements>& t) {
    if (column(tile) >= a.cols) return;
    Vector<T, kElements> dx;
    for (int k = 0; k < kElements; ++k) {
      dx.at[k] = from_float<T>(rstd * (t.wdy[k] - c2 - t.xhat[k] * c1));
    }
    *reinterpret_cast<Vector<T, kElements>*>(a.dx + start + column(tile)) = dx;
  };
  if (!kWide) walk(store_dx);  // [7] before the lock: nobody should wait for it

  const int64_t buffer = blockIdx.x % static_cast<unsigned>(buffers);  // [8]
  float* const dweight = sums.dweight + buffer * a.cols;
  float* const dbias = layer ? sums.dbias + buffer * a.cols : nullptr;
  const bool full = acquire(locks + buffer);
  struct {
    Vector<float, kElements> dweight, dbias;
  } found[kWide ? 1 : kVectors];
  const auto fetch = [&](int64_t tile) {
    auto& part = found[kWide ? 0 : tile];
    part = {};
    const int64_t col = column(tile);
    if (!full || col >= a.cols) return;
    part.dweight = load_past_l1<kElements>(dweight + col);  // [9]
    if (layer) part.dbias = load_past_l1<kElements>(dbias + col);
  };
#pragma unroll
  for (int tile = 0; tile < kVectors; ++tile) {
    fetch(tile);
  }
  walk([&](int64_t tile, const GradientTerms<kElements>& t) {
    if (kWide) {
      fetch(tile);
      store_dx(tile, t);
    }
    if (column(tile) >= a.cols) return;
    auto& part = found[kWide ? 0 : tile];
    for (int k = 0; k < kElements; ++k) {
      part.dweight.at[k] += t.dy[k] * t.xhat[k];
      part.dbias.at[k] += t.dy[k];
    }
    *reinterpret_cast<Vector<float, kElements>*>(dweight + column(tile)) = part.dweight;
    if (layer) *reinterpret_cast<Vector<float, kElements>*>(dbias + column(tile)) = part.dbias;
  });
  release(locks + buffer);
}

__global__ void free_locks(int* locks, int buffers) {
  const int buffer = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (buffer < buffers) locks[buffer] = kFreeAndEmpty;
}

/// The source's table, which --buffers overrides; never more buffers than rows.
int64_t buffers_for(int64_t rows, int64_t cols, int group) {
  int64_t buffers = 64;
  if (cols <= 8192) buffers = 96;
  if (cols <= 4096) buffers = 128;
  if (cols <= 1024) buffers = 256;
  if (group > 0) buffers = group;
  return std::min(rows, buffers);
}

/// kColumns of a row stay in registers; with 0, none do.
template <int kThreads, int kColumns, int kElements, typename T, typename W>
void launch_rows(const BackwardArgs<T, W>& a, const PartialSums& sums, int* locks, int buffers) {
  constexpr int kVectors = kColumns / kThreads / kElements;
  launch(layer_norm_backward<T, W, kThreads, kVectors, kElements>,
         {blocks_for(a.rows, 1), kThreads, 0, a.stream}, a, sums, locks, buffers);
}

template <int kThreads, int kColumns, int kElements, typename T, typename W>
bool run_if_it_fits(const BackwardArgs<T, W>& a, const PartialSums& sums, int* locks, int buffers) {
  if (a.cols > kColumns) return false;
  launch_rows<kThreads, kColumns, kElements>(a, sums, locks, buffers);
  return true;
}

template <int kElements, typename T, typename W>
void run_rows(const BackwardArgs<T, W>& a, const PartialSums& sums, int* locks, int buffers) {
  constexpr int kWidest = 1024 * 32 / sizeof(T);  // [10]
  const bool fits = run_if_it_fits<64, 512, kElements>(a, sums, locks, buffers) ||
                    run_if_it_fits<128, 1024, kElements>(a, sums, locks, buffers) ||
                    run_if_it_fits<256, 2048, kElements>(a, sums, locks, buffers) ||
                    run_if_it_fits<512, 4096, kElements>(a, sums, locks, buffers) ||
                    run_if_it_fits<1024, 8192, kElements>(a, sums, locks, buffers) ||
                    run_if_it_fits<1024, kWidest, kElements>(a, sums, locks, buffers);
  if (!fits) launch_rows<1024, 0, kElements>(a, sums, locks, buffers);
}

template <typename T, typename W>
void run(const BackwardArgs<T, W>& a) {
  const auto buffers = static_cast<int>(buffers_for(a.rows, a.cols, a.group));
  const PartialSums sums = partial_sums(a, buffers);
  int* locks = reinterpret_cast<int*>(static_cast<float*>(a.workspace) + 2 * a.cols * buffers);
  launch(free_locks, {blocks_for(buffers, kColumnThreads), kColumnThreads, 0, a.stream}, locks,
         buffers);  // [11]
  if (a.cols % 4 == 0 && at_16_bytes(a.x, a.dy, a.dx, a.weight))
    run_rows<4>(a, sums, locks, buffers);
  else
    run_rows<1>(a, sums, locks, buffers);
  add_partial_sums(a, sums, buffers);
}

const Registration registration{{
    .id = "bwd08",
    .title = "Sums in buffers under a lock",
    .teaches = "a lock between blocks; what acquire and release must wait for",
    .source = "Triton tutorial 05",
    .parent = "bwd06",
    .road = Road::Sums,
    .group = "buffers",
    .deterministic = false,
    .run = BackwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>, run<__half, float>,
                             run<__nv_bfloat16, float>},
    .predicted_bytes = [](const Problem& p, const Gpu& gpu) -> std::int64_t {
      const int walks = p.cols <= 1024 * 32 / p.element_bytes() ? 1 : 2;
      const int64_t in_l2 = partial_sums_bytes(p, buffers_for(p.rows, p.cols, p.group));
      const int64_t sums = in_l2 <= gpu.l2_bytes ? 0 : 16 * p.rows * p.cols;
      return predict_bytes(p, gpu, {.inputs = 2, .walks = walks, .threads_per_row = 1024}) + sums;
    },
    .workspace_bytes = [](const Problem& p) -> std::int64_t {
      const int64_t buffers = buffers_for(p.rows, p.cols, p.group);
      return partial_sums_bytes(p, buffers) + buffers * std::int64_t{sizeof(int)};
    },
}};

}  // namespace bwd08
