// fwd07 · Residual, dropout and the norm in one kernel
//
// fwd06 runs the norm at the speed of a copy. But a transformer scales, drops and adds to the
// residual stream before it normalises, and as kernels of their own these steps write each sum to
// device memory for the next to read. Here they happen while an element is in a register: every
// input is read once, every output written once. Dropout stores nothing: Philox makes its mask of
// a seed and the column, here and again in the backward pass. That should hide behind memory.
#include "common/kernel/chapter.h"
#include "common/kernel/philox.h"
#include "common/kernel/reduce.h"
#include "common/kernel/vector.h"

namespace fwd07 {
using namespace lnc;

/// The columns that this thread has in a tile of kThreads · kElements of them.
template <int kElements, int kThreads, bool kAligned>
struct Place {
  int64_t tile;
  int64_t cols;

  __device__ int64_t column(int element) const {
    const int64_t first = tile * kThreads * kElements;
    if constexpr (kAligned) return first + (threadIdx.x * kElements + element);  // [1]
    return first + (element * kThreads + threadIdx.x);
  }
  __device__ bool has(int element) const { return column(kAligned ? 0 : element) < cols; }
  template <typename U>
  __device__ Vector<U, kElements> load(const U* row) const {
    if constexpr (kAligned) return *reinterpret_cast<const Vector<U, kElements>*>(row + column(0));
    Vector<U, kElements> values{};
    for (int k = 0; k < kElements; ++k) {
      if (has(k)) values.at[k] = row[column(k)];
    }
    return values;
  }
  template <typename U>
  __device__ void store(U* row, const Vector<U, kElements>& values) const {
    if constexpr (kAligned) {
      *reinterpret_cast<Vector<U, kElements>*>(row + column(0)) = values;
    } else {
      for (int k = 0; k < kElements; ++k) {
        if (has(k)) row[column(k)] = values.at[k];
      }
    }
  }
};

template <typename To, typename From, int kElements>
__device__ Vector<To, kElements> convert(const Vector<From, kElements>& from) {
  float values[kElements];
  to_floats(from, values);
  return __builtin_bit_cast(Vector<To, kElements>, from_floats<To>(values));
}

/// What a row of x, or of x1, goes through on its way into the sum.
struct Branch {
  bool drops;
  float p;
  float rowscale = 1.0f;
  uint32_t seed = 0;
  uint8_t* mask;

  __device__ Branch(const float* scales, const uint32_t* seeds, uint8_t* mask, float p, int64_t row)
      : drops(seeds != nullptr), p(p), mask(mask) {
    if (scales != nullptr) rowscale = scales[row];
    if (drops) seed = seeds[row];
  }
  template <typename T, int kElements, typename Place>
  __device__ void add(const Vector<T, kElements>& x, const Place& place,
                      Vector<float, kElements>& sum, int64_t start, bool store) const {
    float values[kElements];
    to_floats(x, values);
    if (!drops) {  // [2] the same for all threads, asked once a vector
      for (int k = 0; k < kElements; ++k) {
        sum.at[k] += values[k] * rowscale;
      }
      return;
    }
    const float scale = rowscale * (1.0f / (1.0f - p));  // [3]
    bool kept[kElements];
    for (int k = 0; k < kElements; ++k) {
      const float uniform = triton_uniform(seed, static_cast<uint32_t>(place.column(k)));  // [4]
      kept[k] = uniform > p;
    }
    for (int k = 0; k < kElements; ++k) {
      if (kept[k]) sum.at[k] += values[k] * scale;
    }
    if (!store || mask == nullptr) return;
    Vector<uint8_t, kElements> bytes;
    for (int k = 0; k < kElements; ++k) {
      bytes.at[k] = kept[k];
    }
    place.store(mask + start, bytes);
  }
};

/// This thread's part of a tile of the sum, 0 beyond the row. store: residual_out and masks too.
template <typename T, typename W, typename Place>
__device__ auto load_sum(const ForwardArgs<T, W>& a, const Branch& branch, const Branch& branch1,
                         const Place& place, int64_t start, bool store) {
  const FusedForward<T, W>& f = a.fused;
  Vector<float, kVectorElements<T>> sum{};
  if (!place.has(0)) return sum;
  const auto x = place.load(a.x + start);  // [5] all loads before the first sum
  Vector<T, kVectorElements<T>> x1{};
  if (f.x1 != nullptr) x1 = place.load(f.x1 + start);
  const auto load_residual = [&]() -> Vector<float, kVectorElements<T>> {
    if (f.residual_is_float) return place.load(static_cast<const float*>(f.residual) + start);
    return convert<float>(place.load(static_cast<const T*>(f.residual) + start));
  };
  if (f.residual != nullptr) sum = load_residual();
  branch.add(x, place, sum, start, store);
  if (f.x1 != nullptr) branch1.add(x1, place, sum, start, store);
  if (!store || f.residual_out == nullptr) return sum;
  if (f.residual_is_float)
    place.store(static_cast<float*>(f.residual_out) + start, sum);
  else  // [6] rounded for the store only
    place.store(static_cast<T*>(f.residual_out) + start, convert<T>(sum));
  return sum;
}

/// y = xhat · weight + bias of a tile, with 1 and 0 for what is null.
template <typename T, typename W, int kElements, typename Place>
__device__ void store_affine(T* y, const W* weight, const W* bias, const Place& place,
                             Vector<float, kElements> xhat) {
  if (weight != nullptr) {
    const auto of_weight = convert<float>(place.load(weight));
    for (int k = 0; k < kElements; ++k) {
      xhat.at[k] *= of_weight.at[k];
    }
  }
  if (bias != nullptr) {
    const auto of_bias = convert<float>(place.load(bias));
    for (int k = 0; k < kElements; ++k) {
      xhat.at[k] += of_bias.at[k];
    }
  }
  place.store(y, convert<T>(xhat));
}

/// A block a row. Its sum stays in kVectors vectors a thread; with 0, each walk makes it again.
template <typename T, typename W, int kThreads, int kVectors, bool kAligned>
__global__ void __launch_bounds__(kThreads) fused_forward(ForwardArgs<T, W> a) {
  constexpr int kElements = kVectorElements<T>;
  const FusedForward<T, W>& f = a.fused;
  const int64_t row = blockIdx.x;
  const int64_t start = row * a.cols;
  const Branch branch(f.rowscale, f.seeds, f.mask, f.dropout, row);
  const Branch branch1(f.rowscale1, f.seeds1, f.mask1, f.dropout, row);
  Vector<float, kElements> kept[kVectors > 0 ? kVectors : 1];
  const auto walk = [&](auto body) {
    const int64_t tiles = kVectors > 0 ? kVectors : (a.cols - 1) / (kThreads * kElements) + 1;
#pragma unroll(kVectors > 0 ? kVectors : 1)
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const Place<kElements, kThreads, kAligned> place{tile, a.cols};
      body(tile, place);
    }
  };
  const auto sum_again = [&](int64_t tile, const auto& place) {
    if constexpr (kVectors > 0) return kept[tile];
    return load_sum(a, branch, branch1, place, start, false);  // [7] same seed, same mask
  };

  const bool layer = a.kind == Kind::Layer;
  float total = 0.0f;  // [8] of the elements, for Kind::Rms of their squares
  walk([&](int64_t tile, const auto& place) {
    const auto sum = load_sum(a, branch, branch1, place, start, true);
    if constexpr (kVectors > 0) kept[tile] = sum;
    for (const float value : sum.at) {
      total += layer ? value : value * value;
    }
  });
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  const float average = block_sum<kThreads>(total) * inverse_cols;
  float mean = 0.0f;
  float variance = average;
  if (layer) {
    mean = average;
    float squares = 0.0f;
    walk([&](int64_t tile, const auto& place) {
      const auto sum = sum_again(tile, place);
      for (int k = 0; k < kElements; ++k) {
        if (place.has(k)) squares += (sum.at[k] - mean) * (sum.at[k] - mean);
      }
    });
    variance = block_sum<kThreads>(squares) * inverse_cols;
  }
  const float rstd = rsqrtf(variance + a.eps);

  walk([&](int64_t tile, const auto& place) {
    if (!place.has(0)) return;
    auto xhat = sum_again(tile, place);
    for (float& value : xhat.at) {
      value = (value - mean) * rstd;
    }
    store_affine(a.y + start, a.weight, a.bias, place, xhat);
    if (f.y1 != nullptr) store_affine(f.y1 + start, f.weight1, f.bias1, place, xhat);
  });
  if (threadIdx.x == 0 && layer) a.mean[row] = mean;
  if (threadIdx.x == 0) a.rstd[row] = rstd;
}

/// Launches the kernel with kThreads threads, each with kFloats floats of a row or, for 0, with any
/// number; returns whether a row fits.
template <int kThreads, int kFloats, typename T, typename W>
bool run_if_it_fits(const ForwardArgs<T, W>& a, bool aligned) {
  if (kFloats > 0 && a.cols > kThreads * kFloats) return false;
  constexpr int kVectors = kFloats / kVectorElements<T>;
  const auto kernel = aligned ? fused_forward<T, W, kThreads, kVectors, true>
                              : fused_forward<T, W, kThreads, kVectors, false>;
  launch(kernel, {blocks_for(a.rows, 1), kThreads, 0, a.stream}, a);
  return true;
}

template <typename T, typename W>
void run(const ForwardArgs<T, W>& a) {
  const auto& f = a.fused;
  const auto all_on_boundaries = [](const auto*... p) {
    return ((reinterpret_cast<uintptr_t>(p) % 16 == 0) && ...);  // null is, too
  };
  const bool aligned = a.cols % kVectorElements<T> == 0 &&
                       all_on_boundaries(a.x, a.y, a.weight, a.bias, f.x1, f.y1, f.weight1, f.bias1,
                                         f.residual, f.residual_out, f.mask, f.mask1);
  if (run_if_it_fits<32, 8>(a, aligned)) return;  // [9]
  if (run_if_it_fits<128, 8>(a, aligned)) return;
  if (run_if_it_fits<128, 16>(a, aligned)) return;
  if (run_if_it_fits<256, 16>(a, aligned)) return;
  if (run_if_it_fits<512, 16>(a, aligned)) return;
  if (run_if_it_fits<1024, 16>(a, aligned)) return;
  run_if_it_fits<1024, 0>(a, aligned);
}

const Registration registration{{
    .id = "fwd07",
    .title = "Residual, dropout and the norm in one kernel",
    .teaches = "what comes before the norm costs nothing more than its own bytes",
    .source = "FlashAttention",
    .parent = "fwd06",
    .road = Road::Fusion,
    .fused = true,
    .run = ForwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>, run<__half, float>,
                            run<__nv_bfloat16, float>},
    .predicted_bytes = [](const Problem& p, const Gpu& gpu) -> std::int64_t {
      const Fusion& f = p.fusion;
      const std::int64_t branches = 1 + f.second_input;
      const std::int64_t drops = f.dropout > 0.0f;
      const std::int64_t x = p.element_bytes();  // bytes for each element, as the next three
      const std::int64_t sum = f.residual == Residual::F32 ? 4 : x;
      const auto in = branches * x + (f.residual != Residual::None) * sum;
      const auto out = (1 + f.second_affine) * x + f.prenorm * sum + f.masks * drops * branches;
      int walks = p.kind == Kind::Layer ? 3 : 2;
      if (p.cols <= 1024 * 16) walks = 1;
      const auto reads = device_reads(walks, rows_in_flight(p, 2048, gpu) * p.cols * in, gpu);
      return p.rows * p.cols * (reads * in + out) + 4 * p.rows * branches * (f.rowscale + drops) +
             parameter_bytes(p) + f.second_affine * 2 * p.cols * p.parameter_element_bytes();
    },
}};

}  // namespace fwd07
