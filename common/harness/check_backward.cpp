#include <cmath>
#include <cstdint>
#include <iterator>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/harness/comparison.h"
#include "common/harness/reference.h"
#include "common/harness/row_chunks.h"

namespace lnc {
namespace {

/// The gradients of the parameters, which are sums over columns, and the sums of their terms'
/// absolute values; accumulated chunk by chunk.
struct ColumnSums {
  std::vector<double> dweight, dbias, abs_dweight, abs_dbias;

  explicit ColumnSums(std::int64_t cols)
      : dweight(cols), dbias(cols), abs_dweight(cols), abs_dbias(cols) {}

  void add_gradients(const std::vector<double>& dw, const std::vector<double>& db) {
    add(dweight, dw);
    add(dbias, db);
  }
  /// @param abs_xhat gives the sum of the absolute values of xhat's terms for element i
  template <typename AbsXhat>
  void add_magnitudes(const std::vector<double>& dy, const AbsXhat& abs_xhat) {
    const std::size_t cols = abs_dweight.size();
    for (std::size_t i = 0; i < dy.size(); ++i) {
      abs_dweight[i % cols] += std::abs(dy[i]) * abs_xhat(static_cast<std::int64_t>(i));
      abs_dbias[i % cols] += std::abs(dy[i]);
    }
  }
  void add_all(const ColumnSums& other) {
    add(dweight, other.dweight);
    add(dbias, other.dbias);
    add(abs_dweight, other.abs_dweight);
    add(abs_dbias, other.abs_dbias);
  }

 private:
  static void add(std::vector<double>& to, const std::vector<double>& from) {
    for (std::size_t col = 0; col < from.size(); ++col) to[col] += from[col];
  }
};

/// Compares the gradients of a weight and a bias; `suffix` is "1" for those of the second pair.
void add_parameters(std::vector<OutputCheck>& checks, const Tensors& tensors,
                    const ColumnSums& sums, const std::string& suffix = "") {
  const Problem& problem = tensors.problem();
  const auto add = [&](const std::string& output, const std::vector<double>& reference,
                       const std::vector<double>& terms) {
    Comparison comparison(tensors, output + suffix, problem.rows);
    comparison.add(reference, 0, [&](std::int64_t col) { return terms[col]; });
    checks.push_back(comparison.result());
  };
  if (problem.frozen) return;
  add("dweight", sums.dweight, sums.abs_dweight);
  if (problem.kind == Kind::Layer) add("dbias", sums.dbias, sums.abs_dbias);
}

/// If a pass does not write dx1 or dresidual, dx serves as both: the reference's gradients must
/// then equal its dx bit for bit.
void require_stand_ins(const Problem& problem, const reference::FusedBackward& want) {
  const auto require = [&](bool holds, const char* what) {
    if (!holds)
      throw std::logic_error(std::string("dx stands for ") + what + ", but they differ: see " +
                             "Problem::writes_" + what);
  };
  if (problem.fusion.second_input && !problem.writes_dx1()) require(want.dx1 == want.dx, "dx1");
  if (problem.fusion.residual != Residual::None && !problem.writes_dresidual())
    require(want.dresidual == want.dx, "dresidual");
}

/// A fused backward pass. The bound of the sum's gradient is that of the plain pass, for two pairs
/// of dy and weight, plus the gradient that bypasses the norm; dx and dx1 are the sum's gradient
/// times a factor. For a dropped element factor and bound are 0: dx must be exactly 0.
std::vector<OutputCheck> check_fused_backward(const Tensors& tensors) {
  const Problem& problem = tensors.problem();
  const std::int64_t cols = problem.cols;
  const bool layer = problem.kind == Kind::Layer;
  const auto weight = reference_elements(problem, "weight", 0, cols);
  const auto weight1 = reference_elements(problem, "weight1", 0, cols);
  Comparison dx(tensors, "dx", cols);
  Comparison dx1(tensors, "dx1", cols);
  Comparison dresidual(tensors, "dresidual", cols);
  ColumnSums first(cols);
  ColumnSums second(cols);
  std::mutex column_sums;
  for_each_row_chunk(tensors.rows(), cols, [&](RowRange rows) {
    const std::int64_t begin = rows.begin * cols;
    const std::int64_t count = rows.count * cols;
    const ReferenceBackward backward(problem, rows);
    const reference::FusedBackwardInput& in = backward.in;
    const std::vector<double> dy(in.dy.begin(), in.dy.end());
    const std::vector<double> dy1(in.dy1.begin(), in.dy1.end());
    const reference::FusedBackward want = backward.run();
    require_stand_ins(problem, want);
    const auto xhat = [&](std::int64_t i) {
      const std::int64_t row = i / cols;
      return (in.sum[i] - (in.mean.empty() ? 0.0 : in.mean[row])) * in.rstd[row];
    };
    const auto abs_xhat = [&](std::int64_t i) { return std::abs(xhat(i)); };
    const auto abs_wdy = [&](std::int64_t i) {
      return std::abs(value_or(weight, i % cols, 1.0) * dy[i]) +
             std::abs(value_or(weight1, i % cols, 1.0) * value_or(dy1, i, 0.0));
    };
    const auto abs_c1 =
        row_means(rows.count, cols, [&](std::int64_t i) { return abs_wdy(i) * abs_xhat(i); });
    const auto abs_c2 = row_means(rows.count, cols, abs_wdy);
    // dresidual = rstd (wdy - c2 - xhat c1) + dsum
    std::vector<double> terms(count);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t row = i / cols;
      const double past_norm = in.dsum.empty() ? 0.0 : in.dsum[i];
      terms[i] =
          in.rstd[row] * (abs_wdy(i) + (layer ? abs_c2[row] : 0.0) + abs_xhat(i) * abs_c1[row]) +
          std::abs(past_norm);
    }
    // dx and dx1 are linear in dresidual. So a pass whose only input gradient is `terms`, bypassing
    // the norm, gives their bounds, whatever a fusion multiplies them by.
    const std::vector<double> nothing(count);
    reference::FusedBackwardInput past = in;
    past.dy = nothing;
    past.dy1 = past.weight1 = {};
    past.dsum = terms;
    const reference::FusedBackward bounds = reference::fused_backward(past);
    dx.add(want.dx, begin, [&](std::int64_t i) { return bounds.dx[i]; });
    dx1.add(want.dx1, begin, [&](std::int64_t i) { return bounds.dx1[i]; });
    dresidual.add(want.dresidual, begin, [&](std::int64_t i) { return terms[i]; });
    ColumnSums of_rows(cols);
    of_rows.add_gradients(want.dweight, want.dbias);
    of_rows.add_magnitudes(dy, abs_xhat);
    ColumnSums of_rows1(cols);
    of_rows1.add_gradients(want.dweight1, want.dbias1);
    of_rows1.add_magnitudes(dy1, abs_xhat);
    const std::lock_guard lock(column_sums);
    first.add_all(of_rows);
    second.add_all(of_rows1);
  });
  std::vector<OutputCheck> checks{dx.result()};
  add_parameters(checks, tensors, first);
  if (dx1.there()) checks.push_back(dx1.result());
  if (dresidual.there()) checks.push_back(dresidual.result());
  if (problem.fusion.second_affine) add_parameters(checks, tensors, second, "1");
  return checks;
}

/// Compares y = (x - mean) rstd weight + bias, which a backward pass recomputes, in rows from
/// `first` on.
void compare_recomputed(Comparison& y, std::int64_t first, const std::vector<double>& x,
                        const SavedForward& saved, const std::vector<double>& weight,
                        const std::vector<double>& bias) {
  const auto cols = static_cast<std::int64_t>(x.size() / saved.rstd.size());
  std::vector<double> want(x.size());
  for (std::int64_t i = 0; i < std::ssize(x); ++i) {
    const std::int64_t row = i / cols;
    const double xhat = (x[i] - value_or(saved.mean, row, 0.0)) * saved.rstd[row];
    want[i] = xhat * value_or(weight, i % cols, 1.0) + value_or(bias, i % cols, 0.0);
  }
  y.add(want, first * cols, [&](std::int64_t i) {
    const double mean = value_or(saved.mean, i / cols, 0.0);
    return std::abs(value_or(weight, i % cols, 1.0)) * saved.rstd[i / cols] *
               (std::abs(x[i]) + std::abs(mean)) +
           std::abs(value_or(bias, i % cols, 0.0));
  });
}

/// A plain backward pass, from x or from y.
std::vector<OutputCheck> check_plain_backward(const Tensors& tensors) {
  const Problem& problem = tensors.problem();
  const std::int64_t cols = problem.cols;
  const bool layer = problem.kind == Kind::Layer;
  const bool from_y = tensors.from_y();
  const reference::Norm norm = reference_norm(problem.kind);
  const auto weight = reference_elements(problem, "weight", 0, cols);
  const auto bias = reference_elements(problem, "bias", 0, cols);
  Comparison dx(tensors, "dx", cols);
  Comparison dx_from_x(tensors, "dx", cols);
  Comparison y(tensors, "y", 1);
  ColumnSums sums(cols);
  ColumnSums sums_from_x(cols);
  std::mutex column_sums;
  for_each_row_chunk(tensors.rows(), cols, [&](RowRange rows) {
    const std::int64_t begin = rows.begin * cols;
    const auto dy = reference_rows(problem, "dy", rows);
    const auto x = reference_rows(problem, "x", rows);
    const SavedForward saved = saved_forward(problem, rows);
    const std::vector<double>& mean = saved.mean;
    const std::vector<double>& rstd = saved.rstd;
    const auto from_x = reference::backward(norm, rows.count, cols, dy, x, weight, mean, rstd);
    reference::Backward from_saved_y;
    if (from_y)
      from_saved_y = reference::backward_from_y(norm, rows.count, cols, dy, saved.y, weight, bias,
                                                rstd, problem.eps);
    const reference::Backward& want = from_y ? from_saved_y : from_x;
    const auto xhat = [&](std::int64_t i) {
      const std::int64_t row = i / cols;
      return (x[i] - value_or(mean, row, 0.0)) * rstd[row];
    };
    const auto wdy = [&](std::int64_t i) { return value_or(weight, i % cols, 1.0) * dy[i]; };
    // The absolute values of the terms of xhat, and of wdy · xhat. From y there is only one term,
    // y - bias, because a subtraction rounds only its result; xhat is that term over weight.
    const auto abs_centred = [&](std::int64_t i) {
      return std::abs(saved.y[i] - value_or(bias, i % cols, 0.0));
    };
    const auto abs_xhat = [&](std::int64_t i) {
      if (!from_y) return std::abs(xhat(i));
      if (weight.empty()) return abs_centred(i);
      return abs_centred(i) /
             std::abs(reference::clamp_by_magnitude(weight[i % cols], problem.eps));
    };
    const auto abs_c1 = row_means(rows.count, cols, [&](std::int64_t i) {
      return from_y ? std::abs(dy[i]) * abs_centred(i) : std::abs(wdy(i) * xhat(i));
    });
    const auto abs_c2 =
        row_means(rows.count, cols, [&](std::int64_t i) { return std::abs(wdy(i)); });
    // dx = rstd (wdy - c2 - xhat c1)
    dx.add(want.dx, begin, [&](std::int64_t i) {
      const std::int64_t row = i / cols;
      return rstd[row] *
             (std::abs(wdy(i)) + (layer ? abs_c2[row] : 0.0) + abs_xhat(i) * abs_c1[row]);
    });
    if (from_y) dx_from_x.add(from_x.dx, begin, [](std::int64_t) { return 0.0; });
    if (problem.recompute_output) compare_recomputed(y, rows.begin, x, saved, weight, bias);
    ColumnSums of_rows(cols);
    of_rows.add_gradients(want.dweight, want.dbias);
    of_rows.add_magnitudes(dy, abs_xhat);
    const std::lock_guard lock(column_sums);
    sums.add_all(of_rows);
    if (from_y) sums_from_x.add_gradients(from_x.dweight, from_x.dbias);
  });
  std::vector<OutputCheck> checks{dx.result()};
  add_parameters(checks, tensors, sums);
  if (problem.recompute_output) checks.push_back(y.result());
  if (from_y) checks.push_back(dx_from_x.distance("dx from x"));
  if (from_y && !problem.frozen) {
    Comparison dweight_from_x(tensors, "dweight", problem.rows);
    dweight_from_x.add(sums_from_x.dweight, 0, [](std::int64_t) { return 0.0; });
    checks.push_back(dweight_from_x.distance("dweight from x"));
  }
  return checks;
}

}  // namespace

std::vector<OutputCheck> check_backward(const Tensors& tensors) {
  if (tensors.problem().fusion != Fusion{}) return check_fused_backward(tensors);
  return check_plain_backward(tensors);
}

}  // namespace lnc
