// fwd06 · 128-bit access, the row in registers
//
// fwd05 walks a row three times and moves 2 or 4 bytes a thread and instruction. Here a thread
// moves 16 bytes at once and keeps what it has read in registers, so x is read once, whatever the
// caches do, with 4 to 8 times as many bytes an instruction. A row's width decides on its threads.
//
// It should run at the speed of a copy: 2·M·N elements, each moved once. Rows too wide for the
// registers wait in shared memory; what does not fit there is read again.
#include "common/kernel.h"

namespace fwd06 {
using namespace lnc;

/// Weight and bias of a vector's columns, where they were loaded early.
template <typename W, int kLanes>
struct Parameters {
  Packed<W, kLanes> weight, bias;
};

/// Makes y of a vector of x: xhat · weight + bias, with 1 and 0 for what is null. What was not
/// loaded early is loaded here.
template <bool kWeightEarly, bool kBiasEarly, typename T, typename W, int kLanes, bool kAligned>
__device__ void normalise(const ForwardArgs<T, W>& a, float (&x)[kLanes],
                          const Columns<T, kAligned>& columns, const Parameters<W, kLanes>& early,
                          float mean, float rstd) {
  float of_column[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) x[lane] = (x[lane] - mean) * rstd;
  if (a.weight != nullptr) {  // [1] one branch a vector
    if constexpr (kWeightEarly)
      to_floats(early.weight, of_column);
    else
      to_floats(columns.load(a.weight), of_column);
    for (int lane = 0; lane < kLanes; ++lane) x[lane] *= of_column[lane];
  }
  if (a.bias != nullptr) {
    if constexpr (kBiasEarly)
      to_floats(early.bias, of_column);
    else
      to_floats(columns.load(a.bias), of_column);
    for (int lane = 0; lane < kLanes; ++lane) x[lane] += of_column[lane];
  }
}

constexpr int kWarpsPerBlock = 4;  // where a row has one warp
template <int kRowThreads>
inline constexpr int kBlockThreads =
    kRowThreads == kWarpSize ? kWarpsPerBlock* kWarpSize : kRowThreads;

template <int kRowThreads>
__device__ float row_sum(float value) {
  if constexpr (kRowThreads == kWarpSize)
    return warp_sum(value);
  else
    return block_sum<kRowThreads>(value);
}

/// A row in registers: kVectors vectors in each of its kRowThreads threads.
template <typename T, typename W, int kRowThreads, int kVectors, bool kAligned>
__global__ void __launch_bounds__(kBlockThreads<kRowThreads>)
    layer_norm_forward(ForwardArgs<T, W> a) {
  constexpr int kLanes = kVectorElements<T>;
  constexpr int kRowsPerBlock = kBlockThreads<kRowThreads> / kRowThreads;
  const int64_t row = int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.x / kRowThreads;
  if (row >= a.rows) return;
  const int thread = threadIdx.x % kRowThreads;
  const T* x_row = a.x + row * a.cols;
  const auto columns = [&](int i) {
    return Columns<T, kAligned>(x_row, i * kRowThreads + thread, a.cols);
  };

  Packed<T, kLanes> loaded[kVectors];  // [2] all loads are issued before the first is used
#pragma unroll
  for (int i = 0; i < kVectors; ++i) loaded[i] = columns(i).load(x_row);
  constexpr bool kWeightEarly = kAligned && sizeof(W) == sizeof(T);  // [3]
  constexpr bool kBiasEarly = kWeightEarly && (sizeof(T) == sizeof(float) || kRowThreads <= 256);
  Parameters<W, kLanes> early[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (kWeightEarly && a.weight != nullptr) early[i].weight = columns(i).load(a.weight);
    if (kBiasEarly && a.bias != nullptr) early[i].bias = columns(i).load(a.bias);
  }
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  float mean = 0.0f, x[kLanes];
  if (a.kind == Kind::Layer) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      to_floats(loaded[i], x);
      for (int lane = 0; lane < kLanes; ++lane) sum += x[lane];  // [4] 0 outside of the row
    }
    mean = row_sum<kRowThreads>(sum) * inverse_cols;
  }
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    to_floats(loaded[i], x);
    for (int lane = 0; lane < kLanes; ++lane)
      if (columns(i).any() && columns(i).has(lane)) squares += (x[lane] - mean) * (x[lane] - mean);
  }
  const float rstd = rsqrtf(row_sum<kRowThreads>(squares) * inverse_cols + a.eps);

#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    to_floats(loaded[i], x);
    normalise<kWeightEarly, kBiasEarly>(a, x, columns(i), early[i], mean, rstd);
    columns(i).store(a.y + row * a.cols, x);
  }
  if (thread == 0) {
    if (a.kind == Kind::Layer) a.mean[row] = mean;
    a.rstd[row] = rstd;
  }
}

/// A row of any width: `kept` vectors wait in shared memory, what is beyond is read again.
constexpr int kWideThreads = 1024;
template <typename T, typename W, bool kAligned>
__global__ void __launch_bounds__(kWideThreads)
    layer_norm_forward_wide(ForwardArgs<T, W> a, int64_t vectors, int64_t kept) {
  constexpr int kLanes = kVectorElements<T>;
  auto* waiting = dynamic_shared<Packed<T, kLanes>>();
  const int64_t row = blockIdx.x;
  const T* x_row = a.x + row * a.cols;
  const auto walk = [&](auto&& body) {  // [5] a thread's own slots: no barrier between the walks
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < vectors; i += kWideThreads) {
      const Columns<T, kAligned> columns(x_row, i, a.cols);
      float x[kLanes];
      to_floats(i < kept ? waiting[i] : columns.load(x_row), x);
      body(columns, x);
    }
  };
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < kept; i += kWideThreads)
    waiting[i] = Columns<T, kAligned>(x_row, i, a.cols).load(x_row);

  float sum = 0.0f, squares = 0.0f;
  if (a.kind == Kind::Layer)
    walk([&](const auto&, const auto& x) {
      for (int lane = 0; lane < kLanes; ++lane) sum += x[lane];
    });
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  const float mean = block_sum<kWideThreads>(sum) * inverse_cols;
  walk([&](const auto& columns, const auto& x) {
    for (int lane = 0; lane < kLanes; ++lane)
      if (columns.has(lane)) squares += (x[lane] - mean) * (x[lane] - mean);
  });
  const float rstd = rsqrtf(block_sum<kWideThreads>(squares) * inverse_cols + a.eps);
  walk([&](const auto& columns, auto& x) {
    normalise<false, false>(a, x, columns, {}, mean, rstd);
    columns.store(a.y + row * a.cols, x);
  });
  if (threadIdx.x == 0) {
    if (a.kind == Kind::Layer) a.mean[row] = mean;
    a.rstd[row] = rstd;
  }
}

template <int kRowThreads, int kVectors>
struct Variant {
  template <bool kAligned, typename T, typename W>
  static bool run(const ForwardArgs<T, W>& a, int64_t vectors) {
    if (vectors > kRowThreads * kVectors) return false;
    constexpr int kThreads = kBlockThreads<kRowThreads>;
    launch(layer_norm_forward<T, W, kRowThreads, kVectors, kAligned>,
           {blocks_for(a.rows, kThreads / kRowThreads), kThreads, 0, a.stream}, a);
    return true;
  }
};

template <bool kAligned, typename T, typename W, typename... Variants>
void run_first_that_fits(const ForwardArgs<T, W>& a) {
  constexpr int kLanes = kVectorElements<T>;
  // A row that starts inside of a vector may touch one more.
  const int64_t vectors = (a.cols + (kAligned ? 0 : kLanes - 1) + kLanes - 1) / kLanes;
  if ((Variants::template run<kAligned>(a, vectors) || ...)) return;
  constexpr int64_t kSharedBytes = 64 << 10;  // every GPU from Turing on has them
  const int64_t kept = std::min<int64_t>(vectors, kSharedBytes / 16);
  launch(layer_norm_forward_wide<T, W, kAligned>,
         {blocks_for(a.rows, 1), kWideThreads, static_cast<std::size_t>(kept) * 16, a.stream}, a,
         vectors, kept);
}

template <bool kAligned, typename T, typename W>
void run_aligned(const ForwardArgs<T, W>& a) {  // [6]
  if constexpr (sizeof(T) == sizeof(float))
    run_first_that_fits<kAligned, T, W, Variant<32, 1>, Variant<32, 4>, Variant<64, 4>,
                        Variant<128, 4>, Variant<256, 4>, Variant<512, 4>, Variant<768, 4>,
                        Variant<1024, 4>>(a);
  else
    run_first_that_fits<kAligned, T, W, Variant<32, 1>, Variant<32, 2>, Variant<64, 2>,
                        Variant<128, 2>, Variant<256, 2>, Variant<512, 2>, Variant<384, 4>,
                        Variant<512, 4>>(a);
}

template <typename T, typename W>
void run(const ForwardArgs<T, W>& a) {
  const auto starts_aligned = [](const void* p) {
    return reinterpret_cast<uintptr_t>(p) % 16 == 0;
  };
  if (a.cols % kVectorElements<T> == 0 && starts_aligned(a.x) && starts_aligned(a.y) &&
      starts_aligned(a.weight) && starts_aligned(a.bias))
    run_aligned<true>(a);
  else
    run_aligned<false>(a);
}

const Registration registration{{
    .id = "fwd06",
    .title = "128-bit access, the row in registers",
    .teaches = "16 bytes an access; each byte read once",
    .source = "OneFlow, PyTorch",
    .run = ForwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>, run<__half, float>,
                            run<__nv_bfloat16, float>},
    .predicted_bytes = [](const Problem& p, const Gpu&) -> std::int64_t {
      return 2 * p.tensor_bytes() + parameter_bytes(p);
    },
}};

}  // namespace fwd06
