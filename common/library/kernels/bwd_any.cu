// lib_bwd_any · Persistent blocks, partial sums in registers
//
// The general backward kernel: layer and RMS norm, every type, width and alignment, strided x and
// dy, y recomputed on request, on every GPU. As many blocks as the GPU runs at once share the rows;
// each keeps weight, dweight and dbias of its columns in registers, loads its next row while it
// works on one, and stores one row of partial sums. Rows that no block holds are cut in slices of
// columns, and a first kernel finds their c1 and c2, so x and dy are read twice.
//
// Parts: persistent.h (teams, shares of the rows, slices; bwd09), partial_sums.h (the sum of the
// partial sums; bwd06), gradient_terms.h (bwd01's formulas), thread_columns.h, reduce.h's row_sums,
// rows.h (strides), vector.h (fwd06).
//
// Measured on an H100, layer norm, in brackets % of a triad:
// - Two blocks a multiprocessor, 512 threads with 128 registers each: 161 µs at bf16 16384 × 4096;
//   one takes 206, four 170.
// - 1152 µs at bf16 131072 × 4096 (92 %), 19.5 at f32 1024 × 2048 (71 %); in slices 913 at bf16
//   16384 × 16384 (58 %), where lib_bwd_cluster takes 540.
// - Unaligned rows move element by element: 378 µs at bf16 16384 × 4097, where lib_bwd_unaligned
//   takes 156.
#include "common/kernel/chapter.h"
#include "common/kernel/gradient_terms.h"
#include "common/kernel/partial_sums.h"
#include "common/kernel/persistent.h"
#include "common/kernel/reduce.h"
#include "common/kernel/rows.h"
#include "common/kernel/thread_columns.h"
#include "common/kernel/vector.h"

namespace lib_bwd_any {
using namespace lnc;

/// What a thread has of one row.
template <typename Team, typename T>
struct Row {
  Packed<T, Team::kElements> x[Team::kVectors];
  Packed<T, Team::kElements> dy[Team::kVectors];
  float mean;
  float rstd;
};

/// Recomputes and stores a vector of y: `at` is its index in the tensor, `col` its first column.
template <int kElements, typename T, typename W>
__device__ void store_y_again(const BackwardArgs<T, W>& a, int64_t at, int64_t col,
                              const float (&xhat)[kElements]) {
  float weight[kElements];
  float bias[kElements];
  to_floats(load_if<kElements>(a.weight != nullptr, a.weight, col, 1.0f), weight);
  to_floats(load_if<kElements>(a.bias != nullptr, a.bias, col, 0.0f), bias);
  float y[kElements];
  for (int k = 0; k < kElements; ++k) {
    y[k] = xhat[k] * weight[k] + bias[k];
  }
  store(a.y_again, at, y);
}

/// `c_of_rows`: c1 and c2 of each row where rows are cut in slices, else null. `rows` says where
/// the rows of x and dy start.
template <typename Team, typename T, typename W, typename Rows>
__global__ void __launch_bounds__(Team::kThreads, Team::kBlocks)
    layer_norm_backward(BackwardArgs<T, W> a, Shares shares, PartialSums sums,
                        const float2* c_of_rows, InputRows<Rows> rows) {
  constexpr int kElements = Team::kElements;
  constexpr int kVectors = Team::kVectors;
  const int team = threadIdx.x / Team::kRowThreads;
  const int thread = threadIdx.x % Team::kRowThreads;
  const int64_t row_group = blockIdx.y;
  const int64_t first_row = row_group * Team::kTeams;
  const int64_t slice = blockIdx.x * shares.slice_cols;
  const auto cols = static_cast<int>(min(shares.slice_cols, a.cols - slice));
  const ThreadColumns own{thread * kElements, Team::kRowThreads * kElements, cols};
  // With `slice + own.of(i)` nvcc takes up to 21 more registers.
  const int64_t first_col = slice + own.first;
  const auto column = [=](int i) { return first_col + i * own.apart; };
  const bool layer = a.kind == Kind::Layer;
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);

  Packed<W, kElements> weight[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const bool given = a.weight != nullptr && own.has(i);
    weight[i] = load_if<kElements>(given, a.weight, column(i), 1.0f);
  }
  ColumnSums<Team> dweight = {};  // kept over all rows
  ColumnSums<Team> dbias = {};

  const auto load = [&](int64_t row) {
    Row<Team, T> loaded;
    const bool there = row < a.rows;  // a team without a row loads zeros: no effect on any sum
    const int64_t x_row = rows.x.start(row, a.cols);
    const int64_t dy_row = rows.dy.start(row, a.cols);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const bool given = there && own.has(i);
      loaded.x[i] = load_if<kElements>(given, a.x, x_row + column(i));
      loaded.dy[i] = load_if<kElements>(given, a.dy, dy_row + column(i));
    }
    loaded.mean = there && layer ? a.mean[row] : 0.0f;
    loaded.rstd = there ? a.rstd[row] : 0.0f;
    return loaded;
  };
  Row<Team, T> next = load(first_row + team);
  int parity = 0;
  // Over steps, not over a team's own rows: all threads of the block must reach the barrier equally
  // often.
  for (int64_t step_row = first_row; step_row < a.rows; step_row += shares.rows_a_step) {
    const int64_t row = step_row + team;
    const Row<Team, T> now = next;
    next = load(row + shares.rows_a_step);  // used one step later

    GradientTerms<kElements> terms[kVectors];  // kept for dx: x and dy are read once
    float2 sums_of_row = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      terms[i] = {now.x[i], now.dy[i], weight[i], now.mean, now.rstd};
      terms[i].add_to(sums_of_row);
      for (int k = 0; k < kElements; ++k) {
        dweight[i].at[k] += terms[i].dy[k] * terms[i].xhat[k];
        dbias[i].at[k] += terms[i].dy[k];
      }
    }
    // c1_and_c2 alternates between two sets of partial sums by parity, so it needs one barrier.
    const float2 c = c_of_rows == nullptr
                         ? c1_and_c2<Team>(sums_of_row, parity, inverse_cols, layer)
                         : c_of_rows[row];
    const float c1 = c.x;
    const float c2 = c.y;
    parity ^= 1;

#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (row >= a.rows || !own.has(i)) continue;
      const int64_t at = row * a.cols + column(i);
      float dx[kElements];
      for (int k = 0; k < kElements; ++k) {
        dx[k] = now.rstd * (terms[i].wdy[k] - c2 - terms[i].xhat[k] * c1);
      }
      store(a.dx, at, dx);
      if (a.y_again != nullptr) store_y_again(a, at, column(i), terms[i].xhat);
    }
  }

  if (a.dweight == nullptr) return;  // frozen parameters: no sums to store
  add_teams<Team>(dweight);
  add_teams<Team>(dbias);
  if (team > 0) return;
  const int64_t part = row_group * a.cols + slice;
  store_sums(own, dweight, sums.dweight + part);
  if (layer) store_sums(own, dbias, sums.dbias + part);
}

template <typename Team, typename T, typename W>
void launch_team(const BackwardArgs<T, W>& a, const Shares& shares) {
  const PartialSums sums = partial_sums(a, shares.groups);
  float2* const c_of_rows = c_of_rows_in_workspace(a, shares);
  with_rows(a, [&]<typename Rows>(const InputRows<Rows>& rows) {
    if (c_of_rows != nullptr) {  // rows in slices
      launch(row_means<T, W, Team::kElements, Rows>,
             {blocks_for(a.rows, 1), kMeansThreads, 0, a.stream}, a, c_of_rows, rows);
    }
    launch(layer_norm_backward<Team, T, W, Rows>, {shares.grid(), Team::kThreads, 0, a.stream}, a,
           shares, sums, c_of_rows, rows);
  });
  add_partial_sums(a, sums, shares.groups);
}

/// Row groups for a given number of blocks a multiprocessor.
int64_t groups_asked(int group) { return int64_t{group} * multiprocessors(); }

template <typename T, typename W>
void run(const BackwardArgs<T, W>& a) {
  const bool aligned = a.cols % kVectorElements<T> == 0 && rows_of_vectors<T>(a.x_rows) &&
                       rows_of_vectors<T>(a.dy_rows) &&
                       at_16_bytes(a.x, a.dy, a.dx, a.weight, a.bias, a.y_again);
  run_shares(a, aligned, groups_asked(a.group),
             [&]<typename Team>(Team, const Shares& shares) { launch_team<Team>(a, shares); });
}

const Registration registration{{
    .id = "lib_bwd_any",
    .title = "Persistent blocks, partial sums in registers",
    .teaches = "the fallback: every width, alignment and GPU, y written again on request",
    .source = "FlashAttention",
    .road = Road::Library,
    .takes_strides = true,
    .recomputes_output = true,
    .takes_frozen = true,
    .group = "blocks a multiprocessor",
    .run = BackwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>, run<__half, float>,
                             run<__nv_bfloat16, float>},
    .predicted_bytes = [](const Problem& p, const Gpu& gpu) -> std::int64_t {
      return shares_predicted_bytes(p, gpu) + p.recompute_output * p.tensor_bytes();
    },
    .workspace_bytes = [](const Problem& p) -> std::int64_t {
      return shares_bytes(p, groups_asked(p.group));
    },
}};

}  // namespace lib_bwd_any
