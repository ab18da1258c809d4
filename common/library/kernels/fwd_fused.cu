// lib_fwd_fused · Residual and norm alone, aligned rows
//
// Aligned rows of up to 16 384 columns, layer and RMS norm, with an optional residual (of x's type
// or float) and prenorm output, and no other fusion; on every GPU. A block has a row, and each
// thread 16 columns. It adds the residual, and rounds and stores z, while the row is in registers,
// so no kernel reads z again.
//
// Parts: thread_columns.h and own_vectors.h (which vectors a thread has, loading them, their sums;
// fwd06), moments.h (fwd04), reduce.h's block_sum (fwd03). fwd07 teaches the fusion.
//
// Measured on an H100, layer norm with residual and prenorm; in brackets, % of a copy's speed:
// - bf16 16384 × 4096: 184 µs (102 %), with a float residual 274 (103 %); two kernels take 234 and
//   372. lib_fwd_fused_any takes 186 and 276.
// - kThreadCols: 16 floats of z and packed parameters fit in 64 registers, which allow 1024 threads
//   per multiprocessor; nvcc uses 42 to 61.
// - Left out: prefetching weight and bias by block 0. It saves 0.1 to 0.6 µs with 8 MiB of bf16
//   (18.1 to 17.6 at 1024 × 4096) and nothing with larger tensors, and needs seven registers.
#include "common/kernel/chapter.h"
#include "common/kernel/kinds.h"
#include "common/kernel/moments.h"
#include "common/kernel/own_vectors.h"
#include "common/kernel/reduce.h"
#include "common/kernel/thread_columns.h"
#include "common/kernel/vector.h"

namespace lib_fwd_fused {
using namespace lnc;

constexpr int kThreadCols = 16;  // of z, in registers as floats
constexpr int kMaxThreads = 1024;

/// z = x + residual, added in float and rounded to the stream's type.
template <typename T, typename Stream, int kElements, int kVectors>
__device__ void add(const Packed<T, kElements> (&x)[kVectors],
                    const Packed<Stream, kElements> (&residual)[kVectors],
                    float (&z)[kVectors][kElements]) {
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    float addend[kElements];
    to_floats(x[i], z[i]);
    to_floats(residual[i], addend);
    for (int k = 0; k < kElements; ++k) {
      z[i][k] += addend[k];
    }
    round_to<Stream>(z[i]);
  }
}

/// Stores this thread's columns of a row, rounded to the tensor's type.
template <typename U, int kElements, int kVectors>
__device__ void store_columns(U* tensor, int64_t start, const ThreadColumns& own,
                              const float (&z)[kVectors][kElements]) {
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (own.has(i)) store(tensor, start + own.of(i), z[i]);
  }
}

/// A block has one row. Stream is the type of the residual stream: T, or float.
template <typename T, typename W, typename Stream, Kind kKind>
__global__ void __launch_bounds__(kMaxThreads) residual_norm_forward(ForwardArgs<T, W> a) {
  constexpr int kElements = kVectorElements<Stream>;  // 16 bytes of the wider type
  constexpr int kVectors = kThreadCols / kElements;
  const auto threads = static_cast<int>(blockDim.x);
  const auto first = static_cast<int>(threadIdx.x) * kElements;
  const ThreadColumns own{first, threads * kElements, static_cast<int>(a.cols)};
  const int64_t row = blockIdx.x;
  const int64_t start = row * a.cols;

  Packed<T, kElements> x[kVectors];
  Packed<Stream, kElements> residual[kVectors];
  // All loads of both inputs are issued before the first use.
  load_vectors(x, a.x, start, own);
  load_vectors(residual, static_cast<const Stream*>(a.fused.residual), start, own);

  float z[kVectors][kElements];
  add(x, residual, z);
  auto* const z_out = static_cast<Stream*>(a.fused.residual_out);
  // Stored at once, so that its bytes leave while the threads wait for each other.
  if (z_out != nullptr) store_columns(z_out, start, own, z);

  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  float near = 0.0f;
  if constexpr (kKind == Kind::Layer) {  // RMS norm has no mean
    near = block_sum<kMaxThreads>(sum_of(z), threads) * inverse_cols;
  }
  const auto sums = block_sum<kMaxThreads>(deviations_of<kKind>(z, near, own), threads);
  const Normaliser of_row = normaliser(near, sums, inverse_cols, a.eps);

  Packed<W, kElements> weight[kVectors];
  Packed<W, kElements> bias[kVectors];
  // Late, into the registers that x and the residual have freed; other blocks hide the wait.
  load_vectors(weight, a.weight, 0, own, 1.0f);
  load_vectors(bias, a.bias, 0, own);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    normalise(z[i], of_row, weight[i], bias[i]);
  }
  store_columns(a.y, start, own, z);
  if (threadIdx.x == 0) store_statistics<kKind>(a, row, of_row);
}

template <typename T, typename W>
void run(const ForwardArgs<T, W>& a) {
  // As many warps as the row needs.
  const unsigned threads = blocks_for(a.cols, kThreadCols * kWarpSize) * kWarpSize;
  const LaunchConfig config{blocks_for(a.rows, 1), threads, 0, a.stream};
  with_kind(a.kind, [&](auto kind) {
    if (a.fused.residual_is_float) {
      launch(residual_norm_forward<T, W, float, kind()>, config, a);
    } else {
      launch(residual_norm_forward<T, W, T, kind()>, config, a);
    }
  });
}

const Registration registration{{
    .id = "lib_fwd_fused",
    .title = "Residual and norm alone, aligned rows",
    .teaches = "z = x + residual and norm(z): four tensors move, not five",
    .source = "FlashAttention, QuACK",
    .road = Road::Library,
    .needs_aligned = true,
    .fused = true,
    .residual_only = true,
    .in_place_cols = kMaxThreads * kThreadCols,
    .keeps_digits_at_large_means = true,
    .max_cols = kMaxThreads * kThreadCols,
    .max_cols_because = "a block holds a whole row",
    .run = ForwardLaunchers::every([](const auto& args) { run(args); }),
    .predicted_bytes = [](const Problem& p, const Gpu&) -> std::int64_t {
      const bool residual = p.fusion.residual != Residual::None;
      const std::int64_t streams = residual + p.fusion.prenorm;
      const std::int64_t element_bytes =
          2 * p.element_bytes() + streams * p.residual_element_bytes();
      return p.rows * p.cols * element_bytes + parameter_bytes(p);
    },
}};

}  // namespace lib_fwd_fused
