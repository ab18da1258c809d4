// bwd09 · Persistent blocks
//
// A block of bwd05 takes a few rows, waits for the loads of each, and ends in atomics that all
// blocks send to the same columns. Here there are only as many blocks as the GPU runs at once. Each
// takes its share of the rows, holds weight, dweight and dbias of its columns in registers all the
// while, and writes one row of partial sums when it ends; a second kernel adds these up. While a
// block works on one row, the loads of its next are on their way.
//
// It should run at the speed of a triad where there are many rows, without locks or atomics.
#include "common/kernel/chapter.h"
#include "common/kernel/gradient_terms.h"
#include "common/kernel/partial_sums.h"
#include "common/kernel/persistent.h"
#include "common/kernel/reduce.h"
#include "common/kernel/rows.h"
#include "common/kernel/thread_columns.h"
#include "common/kernel/vector.h"

namespace bwd09 {
using namespace lnc;

/// What a thread has of one row.
template <typename Team, typename T>
struct Row {
  Packed<T, Team::kElements> x[Team::kVectors];
  Packed<T, Team::kElements> dy[Team::kVectors];
  float mean;
  float rstd;
};

/// Writes a vector of y again: `at` is its place in the tensor, `col` its first column.
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

/// `c_of_rows`: c1 and c2 of each row where rows are cut in slices, else null. Where the rows of x
/// and of dy start, `rows` says.
template <typename Team, typename T, typename W, typename Rows>
__global__ void __launch_bounds__(Team::kThreads, Team::kBlocks)
    layer_norm_backward(BackwardArgs<T, W> a, Shares shares, PartialSums sums,
                        const float2* c_of_rows, InputRows<Rows> rows) {
  constexpr int kElements = Team::kElements;
  constexpr int kVectors = Team::kVectors;
  const int team = threadIdx.x / Team::kRowThreads;
  const int thread = threadIdx.x % Team::kRowThreads;
  const int64_t row_group = blockIdx.y;  // [1]
  const int64_t first_row = row_group * Team::kTeams;
  const int64_t slice = blockIdx.x * shares.slice_cols;
  const auto cols = static_cast<int>(min(shares.slice_cols, a.cols - slice));
  const ThreadColumns own{thread * kElements, Team::kRowThreads * kElements, cols};
  // Of `slice + own.of(i)` nvcc makes kernels with up to 21 registers more.
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
  ColumnSums<Team> dweight = {};  // [2]
  ColumnSums<Team> dbias = {};

  const auto load = [&](int64_t row) {
    Row<Team, T> loaded;
    const bool there = row < a.rows;  // [3]
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
  for (int64_t step_row = first_row; step_row < a.rows; step_row += shares.rows_a_step) {  // [4]
    const int64_t row = step_row + team;
    const Row<Team, T> now = next;
    next = load(row + shares.rows_a_step);  // [5]

    GradientTerms<kElements> terms[kVectors];  // [6]
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
    const float2 c = c_of_rows == nullptr
                         ? c1_and_c2<Team>(sums_of_row, parity, inverse_cols, layer)  // [7]
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
      if (a.y_again != nullptr) store_y_again(a, at, column(i), terms[i].xhat);  // [8]
    }
  }

  if (a.dweight == nullptr) return;  // frozen parameters: nobody wants the sums
  add_teams<Team>(dweight);          // [9]
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
    if (c_of_rows != nullptr) {  // [10]
      launch(row_means<T, W, Team::kElements, Rows>,
             {blocks_for(a.rows, 1), kMeansThreads, 0, a.stream}, a, c_of_rows, rows);
    }
    launch(layer_norm_backward<Team, T, W, Rows>, {shares.grid(), Team::kThreads, 0, a.stream}, a,
           shares, sums, c_of_rows, rows);
  });
  add_partial_sums(a, sums, shares.groups);
}

/// Row groups that --blocks-per-multiprocessor asks for.
int64_t groups_asked(int group) { return int64_t{group} * multiprocessors(); }

template <typename T, typename W>
void run(const BackwardArgs<T, W>& a) {
  const bool aligned = a.cols % kVectorElements<T> == 0 &&  // [11]
                       rows_of_vectors<T>(a.x_rows) && rows_of_vectors<T>(a.dy_rows) &&
                       at_16_bytes(a.x, a.dy, a.dx, a.weight, a.bias, a.y_again);
  run_shares(a, aligned, groups_asked(a.group),
             [&]<typename Team>(Team, const Shares& shares) { launch_team<Team>(a, shares); });
}

const Registration registration{{
    .id = "bwd09",
    .title = "Persistent blocks",
    .teaches = "as many blocks as the GPU holds; sums stay in registers from row to row",
    .source = "FlashAttention",
    .parent = "bwd05",
    .road = Road::Main,
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

}  // namespace bwd09
