// fwd04 · Welford
//
// fwd03 walks a row three times, because the variance waits for the mean. Here one walk brings
// both: each thread keeps a running mean and the squares about it, and Chan's formula merges these
// partial results over 32 lanes and 4 warps. RMS is the same kernel with a mean of 0.
//
// A row costs two walks and two barriers instead of three and four. The price is a reciprocal for
// each element: where L1 or L2 would have served the third walk, expect no gain.
#include "common/kernel/chapter.h"

namespace fwd04 {
using namespace lnc;

constexpr int kWarpsPerBlock = 4;
constexpr int kThreadsPerBlock = kWarpsPerBlock * kWarpSize;
constexpr int kAhead = 4;                // columns that a thread loads before it adds the first
constexpr int kMinBlocks = 8;            // [1] on a multiprocessor
constexpr int64_t kMaxBlocks = 1 << 16;  // [2] 31 times what an H100 holds; any number is right

/// What is known of some elements: their mean, and the sum of their squared distances from it. For
/// Kind::Rms the mean counts as 0 and `squares` are the squares themselves.
struct Moments {
  float count;
  float mean;
  float squares;
};

/// Welford's update: takes in x as element number 1 / inverse_count.
template <Kind kKind>
__device__ void add(Moments& m, float x, float inverse_count) {
  if constexpr (kKind == Kind::Rms) {  // [3]
    m.squares += x * x;
  } else {
    const float before = x - m.mean;
    m.mean += before * inverse_count;
    m.squares += before * (x - m.mean);  // [4]
    m.count += 1.0f;
  }
}

/// Chan's merge of two sets without a common element. Where one is empty, it must be b.
template <Kind kKind>
__device__ Moments merge(const Moments& a, const Moments& b) {
  if constexpr (kKind == Kind::Rms) return {0.0f, 0.0f, a.squares + b.squares};
  if (b.count == 0.0f) return a;  // [5] both may be empty, and 0 / 0 is NaN
  const float count = a.count + b.count;
  const float share = b.count / count;
  const float delta = b.mean - a.mean;
  const float mean = a.mean + delta * share;
  const float squares = a.squares + b.squares + delta * delta * a.count * share;
  return {count, mean, squares};
}

/// The moments of the whole row, the same bits in every thread. All threads must call it.
template <Kind kKind>
__device__ Moments merge_block(Moments m) {
  __shared__ Moments partial[kWarpsPerBlock];
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {  // [6]
    const Moments above{__shfl_down_sync(kFullMask, m.count, offset),
                        __shfl_down_sync(kFullMask, m.mean, offset),
                        __shfl_down_sync(kFullMask, m.squares, offset)};
    m = merge<kKind>(m, above);
  }
  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  if (lane == 0) partial[warp] = m;  // [7]
  __syncthreads();
  m = partial[0];
  for (int other = 1; other < kWarpsPerBlock; ++other) {
    m = merge<kKind>(m, partial[other]);
  }
  __syncthreads();  // [8] every partial is read before the next row writes one
  return m;
}

template <typename W>
__device__ float element_or(const W* values, int64_t col, float otherwise) {
  return values == nullptr ? otherwise : to_float(values[col]);  // [9]
}

template <Kind kKind, typename T, typename W>
__global__ void __launch_bounds__(kThreadsPerBlock, kMinBlocks) norm_forward(ForwardArgs<T, W> a) {
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {  // [10]
    const T* x = a.x + row * a.cols;
    T* y = a.y + row * a.cols;

    Moments m{0.0f, 0.0f, 0.0f};
    int64_t col = threadIdx.x;
    for (; col + (kAhead - 1) * kThreadsPerBlock < a.cols; col += kAhead * kThreadsPerBlock) {
      float inverse_count[kAhead];  // [11]
      for (int i = 0; i < kAhead; ++i) {
        inverse_count[i] = 1.0f / (m.count + static_cast<float>(i + 1));
      }
      float ahead[kAhead];
      for (int i = 0; i < kAhead; ++i) {
        ahead[i] = to_float(x[col + i * kThreadsPerBlock]);
      }
      for (int i = 0; i < kAhead; ++i) {
        add<kKind>(m, ahead[i], inverse_count[i]);
      }
    }
    for (; col < a.cols; col += kThreadsPerBlock) {
      const float value = to_float(x[col]);
      const float inverse_count = 1.0f / (m.count + 1.0f);
      add<kKind>(m, value, inverse_count);
    }
    m = merge_block<kKind>(m);
    const float rstd = rsqrtf(m.squares / static_cast<float>(a.cols) + a.eps);

    for (col = threadIdx.x; col < a.cols; col += kThreadsPerBlock) {
      const float xhat = (to_float(x[col]) - m.mean) * rstd;
      const float weight = element_or(a.weight, col, 1.0f);
      const float bias = element_or(a.bias, col, 0.0f);
      y[col] = from_float<T>(xhat * weight + bias);
    }
    if (threadIdx.x == 0) {
      if constexpr (kKind == Kind::Layer) a.mean[row] = m.mean;
      a.rstd[row] = rstd;
    }
  }
}

template <typename T, typename W = T>
void run(const ForwardArgs<T, W>& a) {
  const auto grid = static_cast<unsigned>(a.rows < kMaxBlocks ? a.rows : kMaxBlocks);
  const auto kernel =
      a.kind == Kind::Layer ? norm_forward<Kind::Layer, T, W> : norm_forward<Kind::Rms, T, W>;
  launch(kernel, {grid, kThreadsPerBlock, 0, a.stream}, a);
}

const Registration registration{{
    .id = "fwd04",
    .title = "Welford",
    .teaches = "mean and variance in one walk; merging partial results",
    .source = "NVIDIA Apex",
    .parent = "fwd03",
    .road = Road::Numerics,
    .max_rows = std::numeric_limits<int64_t>::max(),
    .run = ForwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>, run<__half, float>,
                            run<__nv_bfloat16, float>},
    .predicted_bytes = [](const Problem& p, const Gpu& gpu) -> std::int64_t {
      const std::int64_t in_flight =
          rows_in_flight(p, kThreadsPerBlock, gpu) * p.cols * p.element_bytes();
      return (device_reads(2, in_flight, gpu) + 1) * p.tensor_bytes() + parameter_bytes(p);
    },
}};

}  // namespace fwd04
