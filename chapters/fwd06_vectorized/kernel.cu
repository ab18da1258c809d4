// fwd06 · 128-bit access, the row in registers
//
// fwd05 walks a row three times and moves 2 or 4 bytes a thread and instruction. Here a thread
// moves 16 bytes at once and keeps what it has read in registers, so x is read once, whatever the
// caches do, with 4 to 8 times as many bytes an instruction. A row's width decides on its threads.
//
// It should run at the speed of a copy: 2·M·N elements, each moved once. Rows too wide for the
// registers wait in shared memory; what does not fit there is read again.
#include "common/kernel/chapter.h"
#include "common/kernel/columns.h"
#include "common/kernel/reduce.h"
#include "common/kernel/vector.h"

namespace fwd06 {
using namespace lnc;

/// Makes y of a vector of x: xhat · weight + bias, with 1 and 0 for what is null. What was not
/// loaded early is loaded here.
template <bool kWeightEarly, bool kBiasEarly, typename T, typename W, int kElements, bool kAligned>
__device__ void normalise(const ForwardArgs<T, W>& a, float (&x)[kElements],
                          const Columns<T, kAligned>& columns, const Packed<W, kElements>& weight,
                          const Packed<W, kElements>& bias, float mean, float rstd) {
  float of_column[kElements];
  for (int k = 0; k < kElements; ++k) {
    x[k] = (x[k] - mean) * rstd;
  }
  if (a.weight != nullptr) {  // [1] one branch a vector
    if constexpr (kWeightEarly)
      to_floats(weight, of_column);
    else
      to_floats(columns.load(a.weight), of_column);
    for (int k = 0; k < kElements; ++k) {
      x[k] *= of_column[k];
    }
  }
  if (a.bias != nullptr) {
    if constexpr (kBiasEarly)
      to_floats(bias, of_column);
    else
      to_floats(columns.load(a.bias), of_column);
    for (int k = 0; k < kElements; ++k) {
      x[k] += of_column[k];
    }
  }
}

/// What a row is given: kMaxThreads threads, each with kVectors vectors of 16 bytes. kEarly
/// parameters (the weight, and the bias) are loaded before the sums. With kBlocks a row has no more
/// threads than it needs, and nvcc takes so few registers that a multiprocessor holds kBlocks.
template <int kMaxThreads_, int kVectors_, int kEarly_ = 2, int kBlocks_ = 0>
struct Variant {
  static constexpr int kMaxThreads = kMaxThreads_;
  static constexpr int kVectors = kVectors_;
  static constexpr int kEarly = kEarly_;
  static constexpr int kBlocks = std::min(kBlocks_, kSmThreads / kMaxThreads);
  static constexpr bool kOneWarp = kMaxThreads == kWarpSize;
  static constexpr bool kFewer = kBlocks_ > 0;
  static constexpr int kRowsPerBlock = kOneWarp ? 4 : 1;
};

template <typename V>
__device__ float row_sum(float value, int row_threads) {
  if constexpr (V::kOneWarp) return warp_sum(value);
  return block_sum<V::kMaxThreads>(value, row_threads);
}

/// A row in registers. One of more than a warp has a block.
template <typename T, typename W, typename V, bool kAligned>
__global__ void __launch_bounds__(V::kMaxThreads* V::kRowsPerBlock, kAligned ? V::kBlocks : 0)
    layer_norm_forward(ForwardArgs<T, W> a) {
  constexpr int kElements = kVectorElements<T>;
  constexpr int kVectors = V::kVectors;
  const int row_threads = V::kFewer ? blockDim.x : V::kMaxThreads;
  const int in_block = V::kFewer ? 0 : threadIdx.x / V::kMaxThreads;  // rows before this one
  const int thread = V::kFewer ? threadIdx.x : threadIdx.x % V::kMaxThreads;
  const int64_t row = int64_t{blockIdx.x} * V::kRowsPerBlock + in_block;
  if (row >= a.rows) return;
  const T* x_row = a.x + row * a.cols;
  const auto columns = [&](int i) {
    return Columns<T, kAligned>(x_row, i * row_threads + thread, a.cols);
  };

  Packed<T, kElements> loaded[kVectors];  // [2] all loads are issued before the first is used
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    loaded[i] = columns(i).load(x_row);
  }
  constexpr bool kSame = kAligned && sizeof(W) == sizeof(T);  // [3]
  constexpr bool kWeightEarly = kSame && V::kEarly >= 1;
  constexpr bool kBiasEarly = kSame && V::kEarly == 2;
  Packed<W, kElements> weight[kVectors], bias[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (kWeightEarly && a.weight != nullptr) weight[i] = columns(i).load(a.weight);
    if (kBiasEarly && a.bias != nullptr) bias[i] = columns(i).load(a.bias);
  }
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  float mean = 0.0f;
  float x[kElements];
  if (a.kind == Kind::Layer) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      to_floats(loaded[i], x);
      for (int k = 0; k < kElements; ++k) {
        sum += x[k];  // [4] 0 outside of the row
      }
    }
    mean = row_sum<V>(sum, row_threads) * inverse_cols;
  }
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    to_floats(loaded[i], x);
    for (int k = 0; k < kElements; ++k) {
      if (!columns(i).any() || !columns(i).has(k)) continue;
      const float centred = x[k] - mean;
      squares += centred * centred;
    }
  }
  const float rstd = rsqrtf(row_sum<V>(squares, row_threads) * inverse_cols + a.eps);

#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    to_floats(loaded[i], x);
    normalise<kWeightEarly, kBiasEarly>(a, x, columns(i), weight[i], bias[i], mean, rstd);
    columns(i).store(a.y + row * a.cols, x);
  }
  if (thread == 0) {
    if (a.kind == Kind::Layer) a.mean[row] = mean;
    a.rstd[row] = rstd;
  }
}

constexpr int kWideThreads = 1024;
constexpr int64_t kSharedBytes = 64 << 10;  // every GPU from Turing on has them

/// A row of any width: `kept` vectors wait in shared memory, what is beyond is read again.
template <typename T, typename W, bool kAligned>
__global__ void __launch_bounds__(kWideThreads)
    layer_norm_forward_wide(ForwardArgs<T, W> a, int64_t vectors, int64_t kept) {
  constexpr int kElements = kVectorElements<T>;
  auto* waiting = dynamic_shared<Packed<T, kElements>>();
  const int64_t row = blockIdx.x;
  const T* x_row = a.x + row * a.cols;
  const auto walk = [&](auto&& body) {  // [5] a thread's own slots: no barrier between the walks
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < vectors; i += kWideThreads) {
      const Columns<T, kAligned> columns(x_row, i, a.cols);
      float x[kElements];
      to_floats(i < kept ? waiting[i] : columns.load(x_row), x);
      body(columns, x);
    }
  };
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < kept; i += kWideThreads) {
    const Columns<T, kAligned> columns(x_row, i, a.cols);
    waiting[i] = columns.load(x_row);
  }

  float sum = 0.0f;
  if (a.kind == Kind::Layer) {
    walk([&](const auto&, const auto& x) {
      for (int k = 0; k < kElements; ++k) {
        sum += x[k];
      }
    });
  }
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  const float mean = block_sum<kWideThreads>(sum) * inverse_cols;
  float squares = 0.0f;
  walk([&](const auto& columns, const auto& x) {
    for (int k = 0; k < kElements; ++k) {
      if (!columns.has(k)) continue;
      const float centred = x[k] - mean;
      squares += centred * centred;
    }
  });
  const float rstd = rsqrtf(block_sum<kWideThreads>(squares) * inverse_cols + a.eps);
  walk([&](const auto& columns, auto& x) {
    normalise<false, false, T, W>(a, x, columns, {}, {}, mean, rstd);
    columns.store(a.y + row * a.cols, x);
  });
  if (threadIdx.x == 0) {
    if (a.kind == Kind::Layer) a.mean[row] = mean;
    a.rstd[row] = rstd;
  }
}

/// Launches a variant if it holds a row of so many vectors; returns whether it does.
template <typename V, bool kAligned, typename T, typename W>
bool run_if_it_fits(const ForwardArgs<T, W>& a, int64_t vectors) {
  if (vectors > V::kMaxThreads * V::kVectors) return false;
  unsigned threads = V::kMaxThreads * V::kRowsPerBlock;
  if (V::kFewer) threads = blocks_for(vectors, V::kVectors * kWarpSize) * kWarpSize;
  launch(layer_norm_forward<T, W, V, kAligned>,
         {blocks_for(a.rows, V::kRowsPerBlock), threads, 0, a.stream}, a);
  return true;
}

template <bool kAligned, typename... Variants, typename T, typename W>
void run_first_that_fits(const ForwardArgs<T, W>& a) {
  constexpr int kElements = kVectorElements<T>;
  // A row that starts inside of a vector may touch one more.
  constexpr int kBefore = kAligned ? 0 : kElements - 1;
  const int64_t vectors = (kBefore + a.cols + kElements - 1) / kElements;
  const bool launched = (run_if_it_fits<Variants, kAligned>(a, vectors) || ...);
  if (launched) return;
  const int64_t kept = std::min<int64_t>(vectors, kSharedBytes / 16);
  const auto shared_bytes = static_cast<std::size_t>(kept) * 16;
  launch(layer_norm_forward_wide<T, W, kAligned>,
         {blocks_for(a.rows, 1), kWideThreads, shared_bytes, a.stream}, a, vectors, kept);
}

template <bool kAligned, typename T, typename W>
void run_aligned(const ForwardArgs<T, W>& a) {  // [6]
  if constexpr (sizeof(T) == sizeof(float))
    run_first_that_fits<kAligned, Variant<32, 1>, Variant<32, 4>, Variant<64, 4>, Variant<128, 4>,
                        Variant<256, 4>, Variant<512, 4, 1, 2>, Variant<1024, 4, 1, 1>>(a);
  else
    run_first_that_fits<kAligned, Variant<32, 1>, Variant<32, 2>, Variant<64, 2>, Variant<128, 2>,
                        Variant<256, 2>, Variant<512, 2, 1, 3>, Variant<384, 4, 0, 3>,
                        Variant<512, 4, 1>>(a);
}

template <typename T, typename W>
void run(const ForwardArgs<T, W>& a) {
  if (a.cols % kVectorElements<T> == 0 && at_16_bytes(a.x, a.y, a.weight, a.bias))
    run_aligned<true>(a);
  else
    run_aligned<false>(a);
}

const Registration registration{{
    .id = "fwd06",
    .title = "128-bit access, the row in registers",
    .teaches = "16 bytes an access; each byte read once",
    .source = "OneFlow, PyTorch",
    .parent = "fwd05",
    .road = Road::Main,
    .run = ForwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>, run<__half, float>,
                            run<__nv_bfloat16, float>},
    .predicted_bytes = [](const Problem& p, const Gpu& gpu) -> std::int64_t {
      const std::int64_t row_bytes = p.cols * p.element_bytes();
      const std::int64_t in_flight = rows_in_flight(p, 1024, gpu) * row_bytes;
      const auto walks = device_reads(p.kind == Kind::Layer ? 3 : 2, in_flight, gpu);
      const auto beyond = std::max<std::int64_t>(row_bytes - kSharedBytes, 0);
      const auto again = (walks - 1) * p.rows * beyond;
      return 2 * p.tensor_bytes() + again + parameter_bytes(p);
    },
}};

}  // namespace fwd06
