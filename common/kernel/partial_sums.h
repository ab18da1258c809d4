// Partial sums of dweight and dbias, and the kernel that adds them up: explained by bwd06, its
// early start by bwd12.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "common/kernel/contract.h"
#include "common/kernel/reduce.h"
#include "common/kernel/vector.h"

namespace lnc {

/// Parts of dweight and dbias, [parts, stride] floats: each is the sum over some of the rows, in
/// the first columns of its stride. dbias is null for Kind::Rms.
struct PartialSums {
  float* dweight;
  float* dbias;
  std::int64_t stride;  ///< floats from a part to the next
};

/// The stride of parts that begin and end at a sector's boundary, so that parts of any width can be
/// added up in vectors (lib_bwd_cluster_unaligned). Up to seven floats then follow a part's
/// columns; the kernel sets them to 0.
inline std::int64_t whole_sectors(std::int64_t cols) {
  constexpr std::int64_t kFloats = 32 / sizeof(float);
  return (cols + kFloats - 1) / kFloats * kFloats;
}

inline std::int64_t partial_sums_bytes(const Problem& problem, std::int64_t parts,
                                       std::int64_t stride) {
  if (problem.frozen) return 0;
  return 2 * parts * stride * std::int64_t{sizeof(float)};
}
inline std::int64_t partial_sums_bytes(const Problem& problem, std::int64_t parts) {
  return partial_sums_bytes(problem, parts, problem.cols);
}

/// The partial sums in a workspace of partial_sums_bytes, with the same stride.
template <typename T, typename W>
PartialSums partial_sums(const BackwardArgs<T, W>& a, std::int64_t parts, std::int64_t stride) {
  auto* workspace = static_cast<float*>(a.workspace);
  return {workspace, a.kind == Kind::Layer ? workspace + parts * stride : nullptr, stride};
}
template <typename T, typename W>
PartialSums partial_sums(const BackwardArgs<T, W>& a, std::int64_t parts) {
  return partial_sums(a, parts, a.cols);
}

/// A kernel that is launched when the one before it in the stream has ended.
struct OrdinaryStart {
  static constexpr bool kEarly = false;
  static __device__ void wait() {}
};

/// How a block adds up parts. A group is kLanes neighbouring threads with kElements columns each,
/// and kGroups groups share the parts: group g has the parts g, g + kGroups, … A thread requests
/// kAtOnce of them before it adds one. Then group 0 adds up the sums of all groups.
struct SumOfColumns {
  static constexpr int kElements = 1, kLanes = 16, kGroups = 32;
  static constexpr int kAtOnce = 9;  // 32 · 9 is more than the 2 · 132 parts of two blocks an SM
};
/// For enough columns to fill the GPU, or few parts.
struct SumOfVectors {
  static constexpr int kElements = 4, kLanes = 32, kGroups = 8;
  static constexpr int kAtOnce = 3;
};
/// For both many columns and many parts: rows that one or two blocks hold.
struct SumOfManyVectors {
  static constexpr int kElements = 4, kLanes = 16, kGroups = 32;
  static constexpr int kAtOnce = 5;  // 32 · 5 is more than the 132 parts of a block an SM
};

/// Adds up `rows` consecutive rows of `cols` floats, which threads of this block have stored in
/// shared memory, into `to`. All threads call it, after a __syncthreads(). cols: a multiple of 4.
__device__ inline void add_rows(const float* of_rows, int rows, int cols, float* to) {
  using Four = Vector<float, 4>;
#pragma unroll 4
  for (int col = threadIdx.x * 4; col < cols; col += blockDim.x * 4) {
    Four sum = {};
    for (int row = 0; row < rows; ++row) {
      const Four part = *reinterpret_cast<const Four*>(of_rows + row * cols + col);
      for (int k = 0; k < 4; ++k) {
        sum.at[k] += part.at[k];
      }
    }
    *reinterpret_cast<Four*>(to + col) = sum;
  }
}

/// Adds up columns of dweight (blockIdx.y = 0) or of dbias (1). Always in the same order, so the
/// bits are always the same.
template <typename Start, typename Cut, typename W>
__global__ void __launch_bounds__(Cut::kLanes* Cut::kGroups)
    add_partial_sums_kernel(PartialSums sums, int parts, W* dweight, W* dbias, unsigned cols) {
  constexpr int kElements = Cut::kElements;
  constexpr int kGroups = Cut::kGroups;
  using Part = Vector<float, kElements>;
  __shared__ Part of_group[kGroups][Cut::kLanes];
  const int group = threadIdx.x / Cut::kLanes;
  const int lane = threadIdx.x % Cut::kLanes;
  const unsigned col = (blockIdx.x * Cut::kLanes + lane) * kElements;
  const auto stride = static_cast<unsigned>(sums.stride);
  // A thread past the last column reads a part's last floats, and stores nothing.
  const float* const partial = blockIdx.y == 0 ? sums.dweight : sums.dbias;
  const float* from = partial + std::uint64_t{stride} * group + min(col, stride - kElements);

  float sum[kElements] = {};
  Start::wait();
  for (int left = parts - group; left > 0; left -= kGroups * Cut::kAtOnce) {
    Part part[Cut::kAtOnce];
#pragma unroll
    for (int i = 0; i < Cut::kAtOnce; ++i) {
      // Past the last part this loads the last one again, which is not added. A condition on the
      // load itself would make nvcc wait for each value before it requests the next.
      const auto further = static_cast<unsigned>(min(i * kGroups, left - 1));
      part[i] = *reinterpret_cast<const Part*>(from + std::uint64_t{stride} * further);
    }
#pragma unroll
    for (int i = 0; i < Cut::kAtOnce; ++i) {
      const bool there = i * kGroups < left;
      for (int k = 0; k < kElements; ++k) {
        sum[k] += there ? part[i].at[k] : 0.0f;
      }
    }
    from += std::uint64_t{stride} * (kGroups * Cut::kAtOnce);
  }
  for (int k = 0; k < kElements; ++k) {
    of_group[group][lane].at[k] = sum[k];
  }
  __syncthreads();
  if (group > 0 || col >= cols) return;
  for (int other = 1; other < kGroups; ++other) {
    for (int k = 0; k < kElements; ++k) {
      sum[k] += of_group[other][lane].at[k];
    }
  }
  W* const to = blockIdx.y == 0 ? dweight : dbias;
  if (col + kElements <= cols) return store(to, col, sum);
  for (unsigned k = 0; col + k < cols; ++k) {
    to[col + k] = from_float<W>(sum[k]);
  }
}

/// Adds up the parts and stores the sums, rounded to W, in dweight and dbias. No parts give 0.
/// Launches nothing if dweight is null, as for frozen parameters.
/// @tparam Start EarlyStart (common/kernel/hopper.h) if the previous kernel calls
/// launch_dependents()
/// @tparam kMaxCols the most columns that the caller takes
template <typename Start = OrdinaryStart,
          std::int64_t kMaxCols = std::numeric_limits<std::int64_t>::max(), typename T, typename W>
void add_partial_sums(const BackwardArgs<T, W>& a, const PartialSums& sums, std::int64_t parts) {
  if (a.dweight == nullptr) return;
  const auto launch_sum = [&]<typename Cut>(Cut) {
    const unsigned tensors = a.kind == Kind::Layer ? 2 : 1;
    const dim3 grid(blocks_for(a.cols, Cut::kLanes * Cut::kElements), tensors);
    constexpr unsigned kThreads = Cut::kLanes * Cut::kGroups;
    launch(add_partial_sums_kernel<Start, Cut, W>, {grid, kThreads, 0, a.stream, 0, Start::kEarly},
           sums, static_cast<int>(parts), a.dweight, a.dbias, static_cast<unsigned>(a.cols));
  };
  constexpr std::int64_t kWide = 8192;  // columns: enough blocks of vectors for a whole GPU
  if constexpr (kMaxCols > kWide) {
    constexpr bool kManyParts = kMaxCols <= 2 * kWide;  // each multiprocessor holds whole rows
    using Cut = std::conditional_t<kManyParts, SumOfManyVectors, SumOfVectors>;
    const bool few_parts = !kManyParts && parts <= Cut::kGroups * Cut::kAtOnce;
    const bool in_vectors = sums.stride % 4 == 0 && at_16_bytes(a.dweight, a.dbias);
    if (in_vectors && (a.cols > kWide || few_parts)) return launch_sum(Cut{});
  }
  launch_sum(SumOfColumns{});
}

}  // namespace lnc
