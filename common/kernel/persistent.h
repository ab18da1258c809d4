// Persistent blocks: how they share rows and columns of any width, and their loop over the rows;
// for lib_bwd_any and lib_bwd_from_y. bwd09 explains them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "common/kernel/column_gradients.h"
#include "common/kernel/contract.h"
#include "common/kernel/description.h"
#include "common/kernel/launch.h"
#include "common/kernel/partial_sums.h"
#include "common/kernel/reduce.h"
#include "common/kernel/thread_columns.h"
#include "common/kernel/vector.h"

namespace lnc {

inline constexpr int kSmallestBlock = 256;  ///< threads
/// All threads of a multiprocessor, with 128 registers each.
inline constexpr int kLargestBlock = 512;
inline constexpr int kSliceThreads = 256;  ///< of a row that is cut in slices

/// A team: the kRowThreads threads of a row, which have kVectors vectors of kElements elements
/// each.
template <int kRowThreads_, int kVectors_, int kElements_>
struct Team {
  static constexpr int kRowThreads = kRowThreads_;
  static constexpr int kVectors = kVectors_;
  static constexpr int kElements = kElements_;
  static constexpr int kThreads = std::max(kRowThreads, kSmallestBlock);  ///< of a block
  static constexpr int kTeams = kThreads / kRowThreads;
  static constexpr int kBlocks = kLargestBlock / kThreads;  ///< on a multiprocessor at once
};

/// Adds up the teams' sums of the same columns into those of the first team.
template <typename Team>
__device__ void add_teams(Vector<float, Team::kElements> (&sums)[Team::kVectors]) {
  if constexpr (Team::kTeams > 1) {
    __shared__ Vector<float, Team::kElements> of_thread[Team::kVectors][Team::kThreads];
    __syncthreads();  // an earlier call's values have been read
#pragma unroll
    for (int i = 0; i < Team::kVectors; ++i) {
      of_thread[i][threadIdx.x] = sums[i];
    }
    __syncthreads();
    if (threadIdx.x >= Team::kRowThreads) return;
#pragma unroll
    for (int i = 0; i < Team::kVectors; ++i) {
      for (int team = 1; team < Team::kTeams; ++team) {
        const auto& more = of_thread[i][team * Team::kRowThreads + threadIdx.x];
        for (int k = 0; k < Team::kElements; ++k) {
          sums[i].at[k] += more.at[k];
        }
      }
    }
  }
}

/// c1 and c2 of a row, from its threads' sums. All threads of the block call it; `parity` is that
/// of row_sums.
template <typename Team>
__device__ float2 c1_and_c2(float2 sums, int parity, float inverse_cols, bool layer) {
  sums = row_sums<Team::kThreads, Team::kRowThreads>(sums, parity);
  const float c1 = sums.x * inverse_cols;
  const float c2 = layer ? sums.y * inverse_cols : 0.0f;
  return make_float2(c1, c2);
}

/// How the work is cut: `groups` groups of rows, with a block for each slice of their columns. A
/// row is one slice unless it does not fit in a block.
struct Shares {
  int row_threads;           ///< Team::kRowThreads
  std::int64_t slices;       ///< of a row
  std::int64_t slice_cols;   ///< columns of each but the last, which may have fewer
  std::int64_t groups;       ///< each has at least one row
  std::int64_t rows_a_step;  ///< of all groups

  dim3 grid() const { return {static_cast<unsigned>(slices), static_cast<unsigned>(groups)}; }
};

/// Which of the rows and columns a thread has.
template <typename Team>
struct OwnShare {
  int team;
  std::int64_t row_group, first_row;
  std::int64_t slice;  ///< its first column
  ThreadColumns own;   ///< of the slice
  std::int64_t first_col;

  __device__ OwnShare(const Shares& shares, std::int64_t cols)
      : team(threadIdx.x / Team::kRowThreads),
        row_group(blockIdx.y),
        first_row(row_group * Team::kTeams),
        slice(blockIdx.x * shares.slice_cols) {
    const int thread = threadIdx.x % Team::kRowThreads;
    own = {thread * Team::kElements, Team::kRowThreads * Team::kElements,
           static_cast<int>(min(shares.slice_cols, cols - slice))};
    first_col = slice + own.first;
  }
  /// The column of the row where vector i begins. With `slice + own.of(i)` nvcc takes up to 21 more
  /// registers.
  __device__ std::int64_t column(int i) const { return first_col + i * own.apart; }
  /// Vector i of a parameter, or `otherwise` where it is null.
  template <typename W>
  __device__ auto parameter(const W* tensor, int i, float otherwise) const {
    const bool given = tensor != nullptr && own.has(i);
    return load_if<Team::kElements>(given, tensor, column(i), otherwise);
  }
};

/// A thread's part of a backward pass: it walks over its team's rows and loads the next one while
/// it works on a row. `source` says what a row consists of:
///
///   Source::Row                    what a thread has of a row, with its rstd
///   Source::Terms                  GradientTerms, or a type with the same members
///   load(row, there)               a Row; zeros past the last, which add nothing to any sum
///   terms(row, i)                  the Terms of its vector i
///   stored(at, i, terms)           dx of vector i has been stored from element `at` on
///
/// @param c_of_rows c1 and c2 of each row if rows are cut in slices, else null
template <typename Team, typename Source, typename T, typename W>
__device__ void walk_rows(const BackwardArgs<T, W>& a, const Shares& shares,
                          const OwnShare<Team>& share, const Source& source,
                          const float2* c_of_rows, const PartialSums& sums) {
  constexpr int kElements = Team::kElements;
  constexpr int kVectors = Team::kVectors;
  const bool layer = a.kind == Kind::Layer;
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  ColumnGradients<kElements, kVectors> gradients;
  const auto load = [&](std::int64_t row) { return source.load(row, row < a.rows); };
  typename Source::Row next = load(share.first_row + share.team);
  int parity = 0;
  // Loops over steps, not over a team's own rows: all threads of the block must reach the barrier
  // equally often.
  for (std::int64_t step_row = share.first_row; step_row < a.rows; step_row += shares.rows_a_step) {
    const std::int64_t row = step_row + share.team;
    const bool there = row < a.rows;
    const typename Source::Row now = next;
    next = load(row + shares.rows_a_step);  // used one step later

    typename Source::Terms terms[kVectors];  // kept for dx: the tensors are read once
    float2 sums_of_row = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      terms[i] = source.terms(now, i);
      terms[i].add_to(sums_of_row);
      gradients.add(i, terms[i]);
    }
    // c1_and_c2 alternates between two sets of partial sums by parity, so it needs one barrier.
    const float2 c = c_of_rows == nullptr
                         ? c1_and_c2<Team>(sums_of_row, parity, inverse_cols, layer)
                         : c_of_rows[row];
    parity ^= 1;

#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (!there || !share.own.has(i)) continue;
      const std::int64_t at = row * a.cols + share.column(i);
      float dx[kElements];
      for (int k = 0; k < kElements; ++k) {
        dx[k] = now.rstd * (terms[i].wdy[k] - c.y - terms[i].xhat[k] * c.x);
      }
      store(a.dx, at, dx);
      source.stored(at, i, terms[i]);
    }
  }

  if (a.dweight == nullptr) return;  // frozen parameters: no sums to store
  add_teams<Team>(gradients.dweight);
  add_teams<Team>(gradients.dbias);
  if (share.team > 0) return;
  gradients.store(share.own, sums, share.row_group * a.cols + share.slice, layer);
}

inline constexpr int kThreadVectors = 2;  ///< of 16 bytes, that a thread has of a row
inline constexpr int kThreadSingles = 8;  ///< single columns, of unaligned rows

/// @param aligned rows consist of aligned 16-byte vectors
/// @param asked the most groups; 0 for as many as the GPU runs at once
inline Shares shares_for(std::int64_t rows, std::int64_t cols, std::int64_t element_bytes,
                         bool aligned, std::int64_t asked) {
  const std::int64_t columns = aligned ? kThreadVectors * 16 / element_bytes : kThreadSingles;
  int row_threads = kWarpSize;
  while (row_threads < kLargestBlock && row_threads * columns < cols) {
    row_threads *= 2;
  }
  std::int64_t slices = 1;
  std::int64_t slice_cols = cols;
  if (row_threads * columns < cols) {
    constexpr std::int64_t kStep = 64;  // columns: whole sectors, of any type
    row_threads = kSliceThreads;
    slices = blocks_for(cols, row_threads * columns);
    slice_cols = blocks_for(cols, slices * kStep) * kStep;
    slices = blocks_for(cols, slice_cols);
  }
  const int threads = std::max(row_threads, kSmallestBlock);
  const int teams = threads / row_threads;
  const std::int64_t places = std::int64_t{multiprocessors()} * (kLargestBlock / threads);
  std::int64_t most = std::max<std::int64_t>(places / slices, 1);
  if (asked > 0) most = std::min<std::int64_t>(asked, 65535);  // gridDim.y's limit
  const std::int64_t steps = blocks_for(rows, most * teams);
  const std::int64_t groups = steps > 0 ? blocks_for(rows, steps * teams) : 0;
  return {row_threads, slices, slice_cols, groups, groups * teams};
}

/// Calls `run` with the Team of `row_threads` threads.
template <int kVectors, int kElements, int kRowThreads = kWarpSize, typename Run>
void with_team(int row_threads, const Run& run) {
  if (row_threads == kRowThreads) {
    run(Team<kRowThreads, kVectors, kElements>{});
  } else if constexpr (kRowThreads < kLargestBlock) {
    with_team<kVectors, kElements, 2 * kRowThreads>(row_threads, run);
  } else {
    throw std::logic_error("no kernel has " + std::to_string(row_threads) + " threads a row");
  }
}

/// Calls `run` with a pass's Team and Shares. `aligned` and `asked` are those of shares_for.
template <typename T, typename W, typename Run>
void run_shares(const BackwardArgs<T, W>& a, bool aligned, std::int64_t asked, const Run& run) {
  const Shares shares = shares_for(a.rows, a.cols, sizeof(T), aligned, asked);
  const auto run_team = [&](auto team) { run(team, shares); };
  if (aligned) {
    with_team<kThreadVectors, kVectorElements<T>>(shares.row_threads, run_team);
  } else {
    with_team<kThreadSingles, 1>(shares.row_threads, run_team);
  }
}

/// Bytes for the partial sums of all groups and then for c1 and c2 of each row that is cut in
/// slices: enough for the pass, wherever its tensors start.
inline std::int64_t shares_bytes(const Problem& p, std::int64_t asked) {
  std::int64_t most = 0;
  for (const bool aligned : {false, true}) {
    const Shares shares = shares_for(p.rows, p.cols, p.element_bytes(), aligned, asked);
    const std::int64_t wide_rows = shares.slices > 1 ? p.rows : 0;
    const std::int64_t bytes =
        partial_sums_bytes(p, shares.groups) + wide_rows * std::int64_t{sizeof(float2)};
    most = std::max(most, bytes);
  }
  return most;
}

/// c1 and c2 of each row in such a workspace; null if rows are not cut.
template <typename T, typename W>
float2* c_of_rows_in_workspace(const BackwardArgs<T, W>& a, const Shares& shares) {
  if (shares.slices == 1) return nullptr;
  const std::int64_t sums = a.dweight == nullptr ? 0 : 2 * shares.groups * a.cols;
  return reinterpret_cast<float2*>(static_cast<float*>(a.workspace) + sums);
}

/// Bytes that a pass moves to and from device memory. If rows are cut in slices, it reads its two
/// tensors once more, for c1 and c2.
inline std::int64_t shares_predicted_bytes(const Problem& p, const Gpu& gpu) {
  const Shares shares = shares_for(p.rows, p.cols, p.element_bytes(), p.aligned(), p.group);
  const int walks = shares.slices > 1 ? 2 : 1;
  const std::int64_t reads = 2 * device_reads(walks, 2 * p.tensor_bytes(), gpu);
  return (reads + 1) * p.tensor_bytes() + parameter_bytes(p);
}

}  // namespace lnc
