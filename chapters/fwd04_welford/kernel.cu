// fwd04 · Welford
//
// fwd03 walks a row three times, because the variance has to wait for the mean. Here one walk
// computes both: each thread keeps a running mean and the sum of squares about it, and Chan's
// formula merges these partial results over 32 lanes and 4 warps. Layer norm does all of this on x
// - near, where `near` is the row's first element. The mean is thus kept in two floats, and stays
// accurate however large it is, as long as it is close to `near`. RMS norm is the same kernel with
// a mean of 0.
//
// A row needs two walks and one barrier instead of three and four. But the walk that it saves read
// from L1 or L2, and each element now needs a reciprocal: it should lose time and gain accuracy.
#include "common/kernel/chapter.h"

namespace fwd04 {
using namespace lnc;

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kAhead = 8;  // columns that a thread loads before it adds the first

/// The moments of a set of numbers: how many they are, their mean, and the sum of their squared
/// distances from it. For Kind::Rms the mean counts as 0, so `squares` is the sum of their squares.
struct Moments {
  float count;
  float mean;
  float squares;
};

// exercise
/// Welford's update: adds x to the set as its n-th number, where inverse_count is 1 / n.
template <Kind kKind>
__device__ void add(Moments& m, float x, float inverse_count) {
  const float before = x - m.mean;
  if constexpr (kKind == Kind::Layer) m.mean += before * inverse_count;  // [1]
  m.squares += before * (x - m.mean);                                    // [2]
  m.count += 1.0f;
}

/// Chan's merge of two sets of numbers. Either may be empty, or both.
template <Kind kKind>
__device__ Moments merge(const Moments& a, const Moments& b) {
  if constexpr (kKind == Kind::Rms) return {0.0f, 0.0f, a.squares + b.squares};
  if (b.count == 0.0f) return a;  // [3] both may be empty, and 0 / 0 is NaN
  const float count = a.count + b.count;
  const float share = b.count / count;
  const float delta = b.mean - a.mean;
  const float squares = a.squares + b.squares + delta * delta * a.count * share;
  return {count, a.mean + delta * share, squares};
}

/// The moments of the whole row, the same bits in every thread. All threads must call it.
template <Kind kKind>
__device__ Moments merge_block(Moments m) {
  __shared__ Moments partial[kWarps];
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {  // [4]
    const Moments above{__shfl_down_sync(kFullMask, m.count, offset),
                        __shfl_down_sync(kFullMask, m.mean, offset),
                        __shfl_down_sync(kFullMask, m.squares, offset)};
    m = merge<kKind>(m, above);
  }

  // Lane 0 has the warp's moments; the others have merged some numbers twice.
  if (threadIdx.x % kWarpSize == 0) partial[threadIdx.x / kWarpSize] = m;  // [5]
  __syncthreads();
  m = partial[0];
  for (int warp = 1; warp < kWarps; ++warp) {
    m = merge<kKind>(m, partial[warp]);
  }
  return m;
}
// end of exercise

template <Kind kKind, typename T, typename W>
__global__ void __launch_bounds__(kThreads) norm_forward(ForwardArgs<T, W> a) {
  // exercise
  const int64_t row = blockIdx.x;
  const T* x = a.x + row * a.cols;
  T* y = a.y + row * a.cols;
  const float near = kKind == Kind::Layer ? to_float(x[0]) : 0.0f;  // [6]

  Moments m{0.0f, 0.0f, 0.0f};  // of x - near
  int64_t col = threadIdx.x;
  for (; col + (kAhead - 1) * kThreads < a.cols; col += kAhead * kThreads) {
    float inverse_count[kAhead];  // [7] before the chain of updates needs them
    for (int i = 0; i < kAhead; ++i) {
      inverse_count[i] = 1.0f / (m.count + static_cast<float>(i + 1));
    }
    float ahead[kAhead];
    for (int i = 0; i < kAhead; ++i) {
      ahead[i] = to_float(x[col + i * kThreads]);
    }
    for (int i = 0; i < kAhead; ++i) {
      add<kKind>(m, ahead[i] - near, inverse_count[i]);
    }
  }
  for (; col < a.cols; col += kThreads) {  // the rest, fewer than kAhead columns
    add<kKind>(m, to_float(x[col]) - near, 1.0f / (m.count + 1.0f));
  }

  m = merge_block<kKind>(m);
  const float rstd = rsqrtf(m.squares / static_cast<float>(a.cols) + a.eps);
  const float shift = m.mean * rstd;

  for (col = threadIdx.x; col < a.cols; col += kThreads) {
    const float xhat = (to_float(x[col]) - near) * rstd - shift;  // [8]
    const float bias = kKind == Kind::Layer ? to_float(a.bias[col]) : 0.0f;
    y[col] = from_float<T>(xhat * to_float(a.weight[col]) + bias);
  }
  if (threadIdx.x == 0) {
    if constexpr (kKind == Kind::Layer) a.mean[row] = near + m.mean;
    a.rstd[row] = rstd;
  }
}

template <typename T, typename W = T>
void run(const ForwardArgs<T, W>& a) {
  const auto kernel =
      a.kind == Kind::Layer ? norm_forward<Kind::Layer, T, W> : norm_forward<Kind::Rms, T, W>;
  launch(kernel, {blocks_for(a.rows, 1), kThreads, 0, a.stream}, a);
}

const Registration registration{{
    .id = "fwd04",
    .title = "Welford",
    .teaches = "mean and variance in one walk; merging partial results",
    .source = "NVIDIA Apex",
    .parent = "fwd03",
    .road = Road::Numerics,
    .needs_affine = true,
    .run = ForwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>, run<__half, float>,
                            run<__nv_bfloat16, float>},
    .predicted_bytes = [](const Problem& p, const Gpu& gpu) -> std::int64_t {
      const std::int64_t in_flight = rows_in_flight(p, kThreads, gpu) * p.cols * p.element_bytes();
      return (device_reads(2, in_flight, gpu) + 1) * p.tensor_bytes() + parameter_bytes(p);
    },
}};

}  // namespace fwd04
