// lib_bwd_any · Persistent blocks, partial sums in registers
//
// The general backward kernel: layer and RMS norm, every type, width and alignment, strided x and
// dy, y recomputed on request, on every GPU. As many blocks as the GPU runs at once share the rows.
// Each block keeps weight, dweight and dbias of its columns in registers, loads its next row while
// it works on the current one, and stores one row of partial sums. Rows too wide for a block are
// cut into slices of columns, and a first kernel computes their c1 and c2, so x and dy are read
// twice.
//
// Parts: persistent.h (teams, shares, slices, the walk over the rows; bwd09), partial_sums.h
// (bwd06), gradient_terms.h (bwd01's formulas), rows.h (strides), vector.h (fwd06). This file
// defines what a row is.
//
// Measured on an H100, layer norm; in brackets, % of a triad's speed:
// - Two blocks per multiprocessor, of 512 threads with 128 registers each: 161 µs at bf16 16384 ×
//   4096; one block takes 206, four take 170.
// - 1152 µs at bf16 131072 × 4096 (92 %), 19.5 at f32 1024 × 2048 (71 %); cut into slices, 913 at
//   bf16 16384 × 16384 (58 %), where lib_bwd_cluster takes 540.
// - Unaligned rows move element by element: 378 µs at bf16 16384 × 4097, where lib_bwd_unaligned
//   takes 156.
#include "common/kernel/chapter.h"
#include "common/kernel/gradient_terms.h"
#include "common/kernel/partial_sums.h"
#include "common/kernel/persistent.h"
#include "common/kernel/rows.h"
#include "common/kernel/vector.h"

namespace lib_bwd_any {
using namespace lnc;

/// The rows of x and dy, with mean and rstd. `rows` says where they start.
template <typename Team, typename T, typename W, typename Rows>
struct RowsOfX {
  static constexpr int kElements = Team::kElements;
  using Terms = GradientTerms<kElements>;
  struct Row {
    Packed<T, kElements> x[Team::kVectors];
    Packed<T, kElements> dy[Team::kVectors];
    float mean, rstd;
  };
  const BackwardArgs<T, W>& a;
  const OwnShare<Team>& share;
  const InputRows<Rows>& rows;
  Packed<W, kElements> weight[Team::kVectors];

  __device__ RowsOfX(const BackwardArgs<T, W>& a_, const OwnShare<Team>& share_,
                     const InputRows<Rows>& rows_)
      : a(a_), share(share_), rows(rows_) {
#pragma unroll
    for (int i = 0; i < Team::kVectors; ++i) weight[i] = share.parameter(a.weight, i, 1.0f);
  }
  __device__ Row load(int64_t row, bool there) const {
    Row loaded;
    const int64_t x_row = rows.x.start(row, a.cols);
    const int64_t dy_row = rows.dy.start(row, a.cols);
#pragma unroll
    for (int i = 0; i < Team::kVectors; ++i) {
      const bool given = there && share.own.has(i);
      loaded.x[i] = load_if<kElements>(given, a.x, x_row + share.column(i));
      loaded.dy[i] = load_if<kElements>(given, a.dy, dy_row + share.column(i));
    }
    loaded.mean = there && a.kind == Kind::Layer ? a.mean[row] : 0.0f;
    loaded.rstd = there ? a.rstd[row] : 0.0f;
    return loaded;
  }
  __device__ Terms terms(const Row& row, int i) const {
    return {row.x[i], row.dy[i], weight[i], row.mean, row.rstd};
  }
  /// Recomputes and stores y, if it is asked for.
  __device__ void stored(int64_t at, int i, const Terms& terms) const {
    if (a.y_again == nullptr) return;
    float weights[kElements], biases[kElements], y[kElements];
    to_floats(load_if<kElements>(a.weight != nullptr, a.weight, share.column(i), 1.0f), weights);
    to_floats(load_if<kElements>(a.bias != nullptr, a.bias, share.column(i), 0.0f), biases);
    for (int k = 0; k < kElements; ++k) y[k] = terms.xhat[k] * weights[k] + biases[k];
    store(a.y_again, at, y);
  }
};

template <typename Team, typename T, typename W, typename Rows>
__global__ void __launch_bounds__(Team::kThreads, Team::kBlocks)
    layer_norm_backward(BackwardArgs<T, W> a, Shares shares, PartialSums sums,
                        const float2* c_of_rows, InputRows<Rows> rows) {
  const OwnShare<Team> share(shares, a.cols);
  walk_rows<Team>(a, shares, share, RowsOfX<Team, T, W, Rows>(a, share, rows), c_of_rows, sums);
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
    .run = BackwardLaunchers::every([](const auto& args) { run(args); }),
    .predicted_bytes = [](const Problem& p, const Gpu& gpu) -> std::int64_t {
      return shares_predicted_bytes(p, gpu) + p.recompute_output * p.tensor_bytes();
    },
    .workspace_bytes = [](const Problem& p) -> std::int64_t {
      return shares_bytes(p, groups_asked(p.group));
    },
}};

}  // namespace lib_bwd_any
