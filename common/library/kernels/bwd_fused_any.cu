// lib_bwd_fused_any · The gradient of residual, dropout and the norm in one pass
//
// The general fused backward kernel, for everything that lib_fwd_fused_any does: residual (of x's
// type or float), dropout, rowscale, a second input, a second weight and bias, a gradient that
// bypasses the norm; every width and alignment, on every GPU. Persistent blocks keep dweight and
// dbias in registers; the masks are computed again from their seeds while the gradient is in a
// register. Wide rows are cut into slices, and a first kernel computes their sums.
//
// Parts: branch.h and philox.h (fwd07, backward bwd10), gradient_terms.h (bwd01's formulas),
// partial_sums.h (bwd06), reduce.h's team_sums, vector.h (fwd06). bwd09 teaches the blocks.
//
// Measured on an H100, layer norm with residual and prenorm; in brackets, % of a triad's speed:
// - bf16 16384 × 4096: 218 µs (85 %), where lib_bwd_ring takes 191; with a float residual 383 (96
//   %). At 131072 × 4096, 2311 µs (76 %) with dropout and 1636 (86 %) without.
// - Groups: f32 1024 × 2048 takes 21.4 µs with 4 rows per block and 26.0 with 8; bf16 16384 × 4096
//   is fastest with 64 rows, 193 µs, and the plan uses 62.
// - made_anew: without it the 16-byte variants spill up to 208 bytes per thread, and bf16 131072 ×
//   4096 takes 1749 µs, or 2531 with dropout.
// - kAhead: with a float residual and one pair of weight and bias, loading a row ahead would spill
//   132 to 236 bytes.
#include "common/kernel/branch.h"
#include "common/kernel/chapter.h"
#include "common/kernel/gradient_terms.h"
#include "common/kernel/partial_sums.h"
#include "common/kernel/reduce.h"
#include "common/kernel/vector.h"

namespace lib_bwd_fused_any {
using namespace lnc;

constexpr int kMaxThreads = 512;
constexpr int kColumnSums = 16;  // of dweight in a thread, over all pairs; as many of dbias
constexpr int kRowsAGroup = 4;   // at least: fastest where rows are few

/// A thread's loads for one vector of a row. Stream is the type of z as the forward pass stored it.
template <typename T, typename W, typename Stream, int kElements, int kPairs>
struct Loaded {
  Packed<Stream, kElements> z;
  Packed<Stream, kElements> past_norm;
  Packed<T, kElements> dy[kPairs];
  Packed<W, kElements> weight[kPairs];
  float mean;
  float rstd;

  __device__ void load(const BackwardArgs<T, W>& a, int64_t row, int64_t col) {
    // A null tensor, or a column past the end, loads as 0.
    const auto part_of = [&](const auto* tensor) {
      return load_if<kElements>(tensor != nullptr && col < a.cols, tensor, row * a.cols + col);
    };
    z = part_of(static_cast<const Stream*>(a.fused.residual_out));
    past_norm = part_of(static_cast<const Stream*>(a.fused.dresidual_out));
    for (int pair = 0; pair < kPairs; ++pair) {
      const W* const weights = pair == 0 ? a.weight : a.fused.weight1;
      const T* const gradients = pair == 0 ? a.dy : a.fused.dy1;
      weight[pair] = load_if<kElements>(weights != nullptr && col < a.cols, weights, col, 1.0f);
      dy[pair] = part_of(gradients);
    }
    mean = a.mean == nullptr ? 0.0f : a.mean[row];
    rstd = a.rstd[row];
  }
  __device__ GradientTerms<kElements> terms(int pair) const {
    return {z, dy[pair], weight[pair], mean, rstd};
  }
};

/// The gradients of one pair's weight and bias, in a thread's columns.
template <int kVectors, int kElements>
struct PairSums {
  float dweight[kVectors][kElements];
  float dbias[kVectors][kElements];

  __device__ void add(const GradientTerms<kElements>& terms, int i) {
    for (int k = 0; k < kElements; ++k) {
      dweight[i][k] += terms.dy[k] * terms.xhat[k];
      dbias[i][k] += terms.dy[k];
    }
  }
};

/// The gradient of z: the norm's plus the one that bypasses the norm.
template <typename Vectors, int kElements>
__device__ void gradient_of_z(const Vectors& loaded, const float (&wdy)[kElements], float c1,
                              float c2, float (&gradient)[kElements]) {
  float past_norm[kElements];
  to_floats(loaded.z, gradient);
  to_floats(loaded.past_norm, past_norm);
  for (int k = 0; k < kElements; ++k) {
    const float xhat = (gradient[k] - loaded.mean) * loaded.rstd;
    gradient[k] = loaded.rstd * (wdy[k] - c2 - xhat * c1) + past_norm[k];
  }
}

/// Stores the gradient of a branch, x or x1, computed from that of z.
template <typename T, int kElements>
__device__ void store_branch(T* tensor, const Branch& branch, int64_t start, int64_t col,
                             const float (&gradient)[kElements]) {
  float values[kElements];
  for (int k = 0; k < kElements; ++k) {
    values[k] = gradient[k];
  }
  branch.apply(values, col);  // the same mask as in the forward pass
  store(tensor, start + col, values);
}

/// Returns `number`, which the compiler then takes for a new one in each iteration. Otherwise it
/// keeps the addresses of up to seven tensors and two weights in registers across rows, and spills.
__device__ inline unsigned made_anew(unsigned number) {
  asm volatile("" : "+r"(number));
  return number;
}

/// A block takes the rows group, group + groups, … and the columns of one slice. If a slice is not
/// the whole row, `wide_sums` has the sums for each row's c1 and c2; else it is null.
template <typename T, typename W, typename Stream, int kElements, int kPairs>
__global__ void __launch_bounds__(kMaxThreads)
    fused_backward(BackwardArgs<T, W> a, int64_t groups, float* partials, const float2* wide_sums) {
  constexpr int kVectors = kColumnSums / kPairs / kElements;
  // Whether registers are left for the next row; if not, other blocks hide the loads.
  constexpr bool kAhead = kElements > 1 && (kPairs == 2 || sizeof(Stream) == 2);
  const FusedBackward<T, W>& f = a.fused;
  const unsigned group = blockIdx.x % groups;
  const unsigned slice = blockIdx.x / groups;
  const auto column = [&](int i) {
    const unsigned vector = made_anew(i * blockDim.x + threadIdx.x);
    return slice * int64_t{kMaxThreads * kColumnSums / kPairs} + vector * kElements;
  };
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  PairSums<kVectors, kElements> sums[kPairs] = {};
  Loaded<T, W, Stream, kElements, kPairs> loaded[kVectors];
  Loaded<T, W, Stream, kElements, kPairs> now[kVectors];
  const auto load = [&](int64_t row, int i) { loaded[i].load(a, row, column(i)); };
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (kAhead && group < a.rows) load(group, i);
  }

  int parity = 0;
  for (int64_t row = group; row < a.rows; row += groups) {
    const int64_t start = row * a.cols;
    const Branch branch(f.rowscale, f.seeds, f.dropout, row);
    const Branch branch1(f.rowscale1, f.seeds1, f.dropout, row);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (!kAhead) load(row, i);
    }
    float2 c = make_float2(0.0f, 0.0f);
    float wdy[kVectors][kElements] = {};
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      // xhat is the same for both pairs; both add to c and wdy, each to its own dweight and dbias.
      for (int pair = 0; pair < kPairs; ++pair) {
        const GradientTerms<kElements> terms = loaded[i].terms(pair);
        terms.add_to(c);
        sums[pair].add(terms, i);
        for (int k = 0; k < kElements; ++k) {
          wdy[i][k] += terms.wdy[k];
        }
      }
      // `now` keeps z and past_norm for the second half of the row, `loaded` is free for the next.
      now[i] = loaded[i];
      if (kAhead && row + groups < a.rows) load(row + groups, i);
    }
    if (wide_sums == nullptr) {
      c = team_sums<kMaxThreads, 2>(c, parity, 0, blockDim.x / kWarpSize);
    } else {
      c = wide_sums[row];
    }
    parity ^= 1;
    const float c1 = c.x * inverse_cols;
    const float c2 = a.kind == Kind::Layer ? c.y * inverse_cols : 0.0f;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int64_t col = column(i);
      if (col >= a.cols) continue;
      float gradient[kElements];
      gradient_of_z(now[i], wdy[i], c1, c2, gradient);
      if (f.dresidual != nullptr)
        store(static_cast<Stream*>(f.dresidual), start + col, gradient);  // of z itself: no factor
      if (f.dx1 != nullptr) store_branch(f.dx1, branch1, start, col, gradient);
      store_branch(a.dx, branch, start, col, gradient);
    }
  }
  if (a.dweight == nullptr) return;  // frozen parameters: no sums to store
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (column(i) >= a.cols) continue;
    for (int pair = 0; pair < kPairs; ++pair) {
      const int64_t at = (2 * pair * groups + group) * a.cols + column(i);
      store(partials, at, sums[pair].dweight[i]);
      if (a.kind == Kind::Layer) store(partials, at + groups * a.cols, sums[pair].dbias[i]);
    }
  }
}

/// The sums of rows that are too wide for a block's registers.
template <typename T, typename W, typename Stream, int kElements, int kPairs>
__global__ void __launch_bounds__(kMaxThreads) sum_rows(BackwardArgs<T, W> a, float2* wide_sums) {
  float2 c = make_float2(0.0f, 0.0f);
#pragma unroll 2
  for (int64_t col = threadIdx.x * kElements; col < a.cols; col += kMaxThreads * kElements) {
    Loaded<T, W, Stream, kElements, kPairs> loaded;
    loaded.load(a, blockIdx.x, col);
    for (int pair = 0; pair < kPairs; ++pair) {
      loaded.terms(pair).add_to(c);
    }
  }
  c = block_sum<kMaxThreads>(c);
  if (threadIdx.x == 0) wide_sums[blockIdx.x] = c;
}

/// How the work is cut: `groups` of rows times `slices` of columns, a block each.
struct Plan {
  unsigned threads = kMaxThreads;
  int64_t slices;
  int64_t groups;

  Plan(int64_t rows, int64_t cols, int pairs, int asked) {
    slices = blocks_for(cols, kMaxThreads * kColumnSums / pairs);
    if (slices == 1) threads = blocks_for(cols, kColumnSums / pairs * kWarpSize) * kWarpSize;
    // As many groups as blocks fit at once, or fewer if rows are few: each stores partial sums.
    const int64_t at_once = int64_t{multiprocessors()} * kMaxThreads / (threads * slices);
    groups = blocks_for(rows, asked > 0 ? asked : kRowsAGroup);
    if (asked == 0) groups = std::min(groups, std::max<int64_t>(at_once, 1));
  }
};

template <typename Stream, int kElements, int kPairs, typename T, typename W>
void run_rows(BackwardArgs<T, W> a) {
  if (a.fused.residual_out == nullptr) a.fused.residual_out = a.x;  // no fusion: z is x
  const Plan plan(a.rows, a.cols, kPairs, a.group);
  const int64_t size = plan.groups * a.cols;
  auto* const partials = static_cast<float*>(a.workspace);
  float2* wide_sums = nullptr;
  if (plan.slices > 1) {
    const int64_t of_columns = a.dweight == nullptr ? 0 : 2 * kPairs * size;
    wide_sums = reinterpret_cast<float2*>(partials + of_columns);
    launch(sum_rows<T, W, Stream, kElements, kPairs>,
           {blocks_for(a.rows, 1), kMaxThreads, 0, a.stream}, a, wide_sums);
  }
  launch(fused_backward<T, W, Stream, kElements, kPairs>,
         {blocks_for(plan.groups * plan.slices, 1), plan.threads, 0, a.stream}, a, plan.groups,
         partials, wide_sums);
  add_partial_sums(a, {partials, partials + size, a.cols}, plan.groups);
  if constexpr (kPairs == 2) {
    a.dweight = a.fused.dweight1;
    a.dbias = a.fused.dbias1;
    add_partial_sums(a, {partials + 2 * size, partials + 3 * size, a.cols}, plan.groups);
  }
}

template <typename T, typename W>
void run(const BackwardArgs<T, W>& a) {
  const FusedBackward<T, W>& f = a.fused;
  constexpr int kElements = kVectorElements<T>;
  const bool aligned =
      a.cols % kElements == 0 && at_16_bytes(a.dy, a.x, a.weight, a.dx, f.dy1, f.residual_out,
                                             f.dresidual_out, f.weight1, f.dx1, f.dresidual);
  const auto run_as = [&]<typename Stream>(Stream) {
    const bool two_pairs = f.dy1 != nullptr || f.dweight1 != nullptr;  // without rows only dweight1
    if (aligned && two_pairs) {
      run_rows<Stream, kElements, 2>(a);
    } else if (aligned) {
      run_rows<Stream, kElements, 1>(a);
    } else if (two_pairs) {
      run_rows<Stream, 1, 2>(a);
    } else {
      run_rows<Stream, 1, 1>(a);
    }
  };
  if (f.residual_is_float) {
    run_as(float{});
  } else {
    run_as(T{});
  }
}

std::int64_t workspace_bytes(const Problem& p) {
  const int pairs = 1 + p.fusion.second_affine;
  const Plan plan(p.rows, p.cols, pairs, p.group);
  const std::int64_t wide_sums_bytes = plan.slices > 1 ? p.rows * std::int64_t{sizeof(float2)} : 0;
  return pairs * partial_sums_bytes(p, plan.groups) + wide_sums_bytes;
}

const Registration registration{{
    .id = "lib_bwd_fused_any",
    .title = "The gradient of residual, dropout and the norm in one pass",
    .teaches = "back through every fusion at any width and alignment, masks recomputed",
    .source = "FlashAttention",
    .road = Road::Library,
    .fused = true,
    .takes_frozen = true,
    .group = "rows a block",
    .run = BackwardLaunchers::every([](const auto& args) { run(args); }),
    .predicted_bytes = [](const Problem& p, const Gpu& gpu) -> std::int64_t {
      const Fusion& f = p.fusion;
      const int pairs = 1 + f.second_affine;
      const int inputs = 1 + f.second_input;
      const int numbers_a_row = inputs * (f.rowscale + (f.dropout > 0.0f));  // scales and seeds
      const int walks = p.cols > kMaxThreads * kColumnSums / pairs ? 2 : 1;
      const auto walked = p.rows * p.cols * p.residual_element_bytes() + pairs * p.tensor_bytes();
      const auto walked_again = (device_reads(walks, walked, gpu) - 1) * walked;
      return backward_tensor_bytes(p) + walked_again + 4 * p.rows * numbers_a_row +
             pairs * parameter_bytes(p);
    },
    .workspace_bytes = workspace_bytes,
}};

}  // namespace lib_bwd_fused_any
