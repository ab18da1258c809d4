// dweight and dbias in parts, and the kernel that adds the parts up: explained by bwd08.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "common/kernel/contract.h"
#include "common/kernel/reduce.h"
#include "common/kernel/vector.h"

namespace lnc {

/// dweight and dbias in parts: float sums over some of the rows each, [parts, cols]. dbias is null
/// for Kind::Rms.
struct PartialSums {
  float* dweight;
  float* dbias;
};

inline std::int64_t partial_sums_bytes(const Problem& problem, std::int64_t parts) {
  return 2 * parts * problem.cols * std::int64_t{sizeof(float)};
}

/// The partial sums in a workspace of partial_sums_bytes.
template <typename T, typename W>
PartialSums partial_sums(const BackwardArgs<T, W>& a, std::int64_t parts) {
  auto* workspace = static_cast<float*>(a.workspace);
  return {workspace, a.kind == Kind::Layer ? workspace + parts * a.cols : nullptr};
}

/// A kernel that is launched when the one before it in the stream has ended.
struct OrdinaryStart {
  static constexpr bool kEarly = false;
  static __device__ void wait() {}
};

/// A block adds up 32 vectors of dweight's columns (blockIdx.y = 0) or of dbias's (1): a lane has a
/// vector, the warps share the parts. Always in the same order, so the bits are always the same.
template <typename Start, int kElements, typename W>
__global__ void __launch_bounds__(kWarpSize* kWarpSize)
    add_partial_sums_kernel(PartialSums sums, std::int64_t parts, W* dweight, W* dbias,
                            std::int64_t cols) {
  __shared__ Vector<float, kElements> of_warp[kWarpSize][kWarpSize];
  const float* partial = blockIdx.y == 0 ? sums.dweight : sums.dbias;
  const int warps = blockDim.x / kWarpSize;
  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  const std::int64_t col = (std::int64_t{blockIdx.x} * kWarpSize + lane) * kElements;

  Vector<float, kElements> sum = {};
  const auto add = [&sum](const Vector<float, kElements>& part) {
    for (int i = 0; i < kElements; ++i) {
      sum.at[i] += part.at[i];
    }
  };
  Start::wait();
  if (col < cols) {
#pragma unroll 8
    for (std::int64_t part = warp; part < parts; part += warps) {
      const float* from = partial + part * cols + col;
      add(*reinterpret_cast<const Vector<float, kElements>*>(from));
    }
  }
  of_warp[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || col >= cols) return;
  for (int other = 1; other < warps; ++other) {
    add(of_warp[other][lane]);
  }
  W* to = blockIdx.y == 0 ? dweight : dbias;
  store(to, col, sum.at);
}

/// Adds up the parts, and rounds the sums to W, into dweight and dbias. No parts give 0.
/// @tparam Start EarlyStart (common/kernel/hopper.h) where the kernel before calls
/// launch_dependents()
/// @tparam kMaxCols columns that the caller takes at most
template <typename Start = OrdinaryStart,
          std::int64_t kMaxCols = std::numeric_limits<std::int64_t>::max(), typename T, typename W>
void add_partial_sums(const BackwardArgs<T, W>& a, const PartialSums& sums, std::int64_t parts) {
  constexpr std::int64_t kPartsPerWarp = 8;  // as many loads are on their way at once
  const std::int64_t wanted = (parts + kPartsPerWarp - 1) / kPartsPerWarp;
  const auto warps = static_cast<unsigned>(std::clamp<std::int64_t>(wanted, 1, kWarpSize));
  const auto launch_vectors = [&](auto kernel, int elements) {
    const unsigned tensors = a.kind == Kind::Layer ? 2 : 1;
    const dim3 grid(blocks_for(a.cols, kWarpSize * elements), tensors);
    launch(kernel, {grid, warps * kWarpSize, 0, a.stream, 0, Start::kEarly}, sums, parts, a.dweight,
           a.dbias, a.cols);
  };
  constexpr std::int64_t kWide = 16384;  // columns: blocks of vectors for a whole GPU
  if constexpr (kMaxCols >= kWide) {
    if (a.cols >= kWide && a.cols % 4 == 0 && at_16_bytes(a.dweight, a.dbias))
      return launch_vectors(add_partial_sums_kernel<Start, 4, W>, 4);
  }
  launch_vectors(add_partial_sums_kernel<Start, 1, W>, 1);
}

}  // namespace lnc
