// bwd07 · Gradients from y
//
// Every chapter so far has the forward pass keep x, for one purpose: xhat. But y is kept in any
// case, by the layer that reads it, and xhat = (y - bias) / weight is in it. So x and mean can be
// freed. What this costs is digits: a division by a small weight magnifies the rounding of y.
//
// It should cost no time: y takes x's place, byte for byte. And where bwd06 reads both tensors
// twice, here dx and the sums share one walk, since one product, dy · (y - bias), serves c1 and
// dweight. A division is needed only in dx, and there by the same number in every row.
#include "common/kernel/chapter.h"
#include "common/kernel/partial_sums.h"
#include "common/kernel/reduce.h"
#include "common/kernel/vector.h"

namespace bwd07 {
using namespace lnc;

/// weight, or the number of its sign with the magnitude `least`, where that is further from 0.
__device__ inline float clamp_by_magnitude(float weight, float least) {
  return copysignf(fmaxf(fabsf(weight), least), weight);  // [1]
}

/// The weight or bias from column `col` on; `otherwise` where there is none.
template <int kElements, typename W>
__device__ Packed<W, kElements> parameter_or(float otherwise, const W* tensor, int64_t col,
                                             int64_t cols) {
  return load_if<kElements>(tensor != nullptr && col < cols, tensor, col, otherwise);
}

/// What is known of one vector's columns in a row, without a division: y - bias in place of xhat.
template <int kElements>
struct Terms {
  float centred[kElements], dy[kElements], wdy[kElements];

  Terms() = default;
  template <typename T, typename W>
  __device__ Terms(const Packed<T, kElements>& y, const Packed<T, kElements>& packed_dy,
                   const BackwardArgs<T, W>& a, int64_t col) {
    float bias[kElements], weight[kElements];
    to_floats(y, centred);
    to_floats(packed_dy, dy);
    to_floats(parameter_or<kElements>(0.0f, a.bias, col, a.cols), bias);
    to_floats(parameter_or<kElements>(1.0f, a.weight, col, a.cols), weight);
    for (int k = 0; k < kElements; ++k) {
      centred[k] -= bias[k];
      wdy[k] = dy[k] * weight[k];
    }
  }
  __device__ void add_to(float2& sums) const {  // of wdy · xhat, and of wdy
    for (int k = 0; k < kElements; ++k) {
      sums.x += dy[k] * centred[k];  // [2]
      sums.y += wdy[k];
    }
  }
};

constexpr int kThreadsPerMultiprocessor = 1024;  // [3]

/// A block walks the rows group, group + groups, ... in the columns of its slice. `wide_sums` are
/// N c1 and N c2 of each row, and null where a slice is a whole row.
template <typename T, typename W, int kThreads, int kElements>
__global__ void __launch_bounds__(kThreads, kThreadsPerMultiprocessor / kThreads)
    layer_norm_backward(BackwardArgs<T, W> a, unsigned groups, PartialSums sums,
                        const float2* wide_sums) {
  constexpr int kVectors = kVectorElements<T> / kElements;         // [4]
  __shared__ float inverse_weight[kVectors][kElements][kThreads];  // [5]
  const int64_t group = blockIdx.x % groups;
  const int64_t slice = blockIdx.x / groups;
  const auto column = [=](int i) {
    return ((slice * kVectors + i) * kThreads + threadIdx.x) * kElements;
  };
  for (int i = 0; i < kVectors; ++i) {
    float weight[kElements];
    to_floats(parameter_or<kElements>(1.0f, a.weight, column(i), a.cols), weight);
    for (int k = 0; k < kElements; ++k) {
      const float least = a.weight != nullptr ? a.eps : 0.0f;
      inverse_weight[i][k][threadIdx.x] = 1.0f / clamp_by_magnitude(weight[k], least);
    }
  }

  float weighted_dweight[kVectors][kElements] = {};
  float dbias[kVectors][kElements] = {};
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  Packed<T, kElements> y[kVectors], dy[kVectors];
  float next_rstd;
  const auto load = [&](int64_t row) {
    next_rstd = row < a.rows ? a.rstd[row] : 0.0f;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const bool there = row < a.rows && column(i) < a.cols;
      y[i] = load_if<kElements>(there, a.y, row * a.cols + column(i));
      dy[i] = load_if<kElements>(there, a.dy, row * a.cols + column(i));
    }
  };
  load(group);
  int turn = 0;
  for (int64_t row = group; row < a.rows; row += groups) {
    Terms<kElements> t[kVectors];
    const float rstd = next_rstd;
    float2 c = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      t[i] = {y[i], dy[i], a, column(i)};
      t[i].add_to(c);
      for (int k = 0; k < kElements; ++k) {
        weighted_dweight[i][k] += t[i].dy[k] * t[i].centred[k];
        dbias[i][k] += t[i].dy[k];
      }
    }
    load(row + groups);  // [6]
    c = wide_sums == nullptr ? row_sums<kThreads, kThreads>(c, turn) : wide_sums[row];
    const float c1 = c.x * inverse_cols;
    const float c2 = a.kind == Kind::Layer ? c.y * inverse_cols : 0.0f;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float dx[kElements];
      for (int k = 0; k < kElements; ++k) {
        const float xhat = t[i].centred[k] * inverse_weight[i][k][threadIdx.x];
        dx[k] = rstd * (t[i].wdy[k] - c2 - xhat * c1);
      }
      if (column(i) < a.cols) store(a.dx, row * a.cols + column(i), dx);
    }
    turn ^= 1;
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (column(i) >= a.cols) continue;
    float dweight[kElements];
    for (int k = 0; k < kElements; ++k) {
      dweight[k] = weighted_dweight[i][k] * inverse_weight[i][k][threadIdx.x];  // [7]
    }
    store(sums.dweight, group * a.cols + column(i), dweight);
    if (sums.dbias != nullptr) store(sums.dbias, group * a.cols + column(i), dbias[i]);
  }
}

/// N c1 and N c2 of a row, where no block of the kernel above sees the whole of it.
constexpr int kWideThreads = 512;
template <typename T, typename W, int kElements>
__global__ void __launch_bounds__(kWideThreads) wide_row_sums(BackwardArgs<T, W> a, float2* sums) {
  const int64_t start = blockIdx.x * a.cols;
  float2 c = make_float2(0.0f, 0.0f);
#pragma unroll 4
  for (int64_t col = threadIdx.x * kElements; col < a.cols; col += kWideThreads * kElements) {
    const auto y = load_if<kElements>(true, a.y, start + col);
    const auto dy = load_if<kElements>(true, a.dy, start + col);
    const Terms<kElements> terms(y, dy, a, col);
    terms.add_to(c);
  }
  c = row_sums<kWideThreads, kWideThreads>(c, 0);
  if (threadIdx.x == 0) sums[blockIdx.x] = c;
}

constexpr int kMinThreads = 64;
constexpr int kMaxThreads = 1024;
constexpr int kSliceThreads = 256;

/// How the work is cut: `slices` blocks of `threads` side by side on a row, and as many groups of
/// rows as the GPU holds blocks at once.
struct Plan {
  int threads = kMinThreads;
  int64_t slices, groups;

  Plan(int64_t rows, int64_t cols, int64_t element_bytes, int asked) {
    const int64_t elements = 16 / element_bytes;
    while (threads < kMaxThreads && threads * elements < cols) threads *= 2;
    if (threads * elements < cols) threads = kSliceThreads;  // [8]
    slices = (cols - 1) / (threads * elements) + 1;
    const int64_t places = int64_t{multiprocessors()} * kThreadsPerMultiprocessor / threads;
    const int64_t at_once = std::max<int64_t>(places / slices, 1);
    groups = std::min(rows, asked > 0 ? asked : at_once);
  }
};

template <int kElements, int kThreads, typename T, typename W>
void launch_plan(const BackwardArgs<T, W>& a, const Plan& plan) {
  const PartialSums sums = partial_sums(a, plan.groups);
  float2* wide_sums = nullptr;
  if (plan.slices > 1) {
    wide_sums = reinterpret_cast<float2*>(sums.dweight + 2 * plan.groups * a.cols);
    launch(wide_row_sums<T, W, kElements>, {blocks_for(a.rows, 1), kWideThreads, 0, a.stream}, a,
           wide_sums);
  }
  launch(layer_norm_backward<T, W, kThreads, kElements>,
         {blocks_for(plan.groups * plan.slices, 1), kThreads, 0, a.stream}, a,
         static_cast<unsigned>(plan.groups), sums, wide_sums);
  add_partial_sums(a, sums, plan.groups);
}

/// Looks for the plan's block size, from the smallest on.
template <int kElements, int kThreads, typename T, typename W>
void run_plan(const BackwardArgs<T, W>& a, const Plan& plan) {
  if (plan.threads == kThreads) {
    launch_plan<kElements, kThreads>(a, plan);
  } else if constexpr (kThreads < kMaxThreads) {
    run_plan<kElements, kThreads * 2>(a, plan);
  } else {
    throw std::logic_error("bwd07 has no kernel for blocks of " + std::to_string(plan.threads) +
                           " threads, which its plan for rows of " + std::to_string(a.cols) +
                           " columns asks for");
  }
}

template <typename T, typename W>
void run(const BackwardArgs<T, W>& a) {
  const Plan plan(a.rows, a.cols, sizeof(T), a.group);
  constexpr int kElements = kVectorElements<T>;
  if (a.cols % kElements == 0 && at_16_bytes(a.y, a.dy, a.dx, a.weight, a.bias))
    run_plan<kElements, kMinThreads>(a, plan);
  else
    run_plan<1, kMinThreads>(a, plan);  // [4]
}

Plan plan_of(const Problem& p) { return {p.rows, p.cols, p.element_bytes(), p.group}; }

const Registration registration{{
    .id = "bwd07",
    .title = "Gradients from y",
    .teaches = "keep y instead of x; what that does to the digits",
    .source = "NVIDIA Apex",
    .parent = "bwd09",
    .road = Road::Numerics,
    .from_y = true,
    .group = "row groups",
    .run = BackwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>, run<__half, float>,
                             run<__nv_bfloat16, float>},
    .predicted_bytes = [](const Problem& p, const Gpu& gpu) -> std::int64_t {
      const int walks = plan_of(p).slices > 1 ? 2 : 1;
      const std::int64_t reads = 2 * device_reads(walks, 2 * p.tensor_bytes(), gpu);
      const std::int64_t mean_bytes = 4 * p.rows;  // which is not read
      return (reads + 1) * p.tensor_bytes() + parameter_bytes(p) - mean_bytes;
    },
    .workspace_bytes = [](const Problem& p) -> std::int64_t {
      const Plan plan = plan_of(p);
      return partial_sums_bytes(p, plan.groups) + (plan.slices > 1 ? 8 * p.rows : 0);
    },
}};

}  // namespace bwd07
