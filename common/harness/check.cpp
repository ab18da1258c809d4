#include "common/harness/check.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>

#include "reference_cpu/fused_layer_norm.h"

namespace lnc {
namespace {

constexpr double kFloatRoundoff = 0x1p-24;

/// Half an ulp relative to a normal number, and half the distance between two subnormal ones.
struct Rounding {
  double relative, absolute, norm_limit;
};
template <typename T>
constexpr Rounding kRounding = {kFloatRoundoff, 0x1p-150, 1e-5};
template <>
constexpr Rounding kRounding<__half> = {0x1p-11, 0x1p-25, 6e-4};
template <>
constexpr Rounding kRounding<__nv_bfloat16> = {0x1p-8, 0x1p-134, 4e-3};

double arithmetic_error(std::int64_t terms) {
  return (4.0 * std::sqrt(static_cast<double>(terms)) + 8.0) * kFloatRoundoff;
}

/// Compares an output piece by piece.
class Comparison {
 public:
  Comparison(std::string output, Rounding rounding, std::int64_t terms)
      : rounding_(rounding), arithmetic_(arithmetic_error(terms)) {
    result_.output = std::move(output);
  }

  /// `out` in device memory against `reference`; `magnitude(i)` is the sum of the absolute values
  /// of the terms of element i. `begin` is the index of the first element in the whole output.
  /// Safe to call from several threads.
  template <typename T, typename Magnitude>
  void add(const T* out, const std::vector<double>& reference, std::int64_t begin,
           const Magnitude& magnitude) {
    const auto count = static_cast<std::int64_t>(reference.size());
    std::vector<T> host(count);
    download(host.data(), out, count * sizeof(T));
    double squared_error = 0.0, squared_reference = 0.0, squared_terms = 0.0, max_error = 0.0;
    double worst = -1.0;
    std::int64_t worst_index = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const double got = static_cast<float>(host[i]), want = reference[i];
      const double terms = std::abs(magnitude(i));
      double error = std::abs(got - want);
      if (!(error < std::numeric_limits<double>::infinity()))
        error = std::numeric_limits<double>::infinity();  // NaN too: nobody wrote the element
      const double bound =
          rounding_.relative * std::abs(want) + rounding_.absolute + arithmetic_ * terms;
      squared_error += error * error;
      squared_reference += want * want;
      squared_terms += terms * terms;
      max_error = std::max(max_error, error);
      if (error / bound > worst) {
        worst = error / bound;
        worst_index = i;
      }
    }
    const std::lock_guard lock(mutex_);
    squared_error_ += squared_error;
    squared_reference_ += squared_reference;
    squared_terms_ += squared_terms;
    count_ += static_cast<double>(count);
    result_.max_abs_error = std::max(result_.max_abs_error, max_error);
    if (worst > result_.worst_of_bound) {
      result_.worst_of_bound = worst;
      result_.worst_index = begin + worst_index;
    }
  }

  OutputCheck result() const {
    OutputCheck result = result_;
    const double norm = std::sqrt(squared_reference_);
    const double floor = norm > 0.0 ? norm : 1.0;  // an all-zero reference: the absolute error
    result.relative_error = std::sqrt(squared_error_) / floor;
    result.limit =
        std::max(rounding_.norm_limit, 4.0 * kFloatRoundoff * std::sqrt(squared_terms_) / floor) +
        rounding_.absolute * std::sqrt(count_) / floor;
    return result;
  }
  OutputCheck result_without_limit() const {
    OutputCheck result = this->result();
    result.limit = std::numeric_limits<double>::infinity();
    result.worst_of_bound = 0.0;
    return result;
  }

 private:
  std::mutex mutex_;
  OutputCheck result_;
  Rounding rounding_;
  double arithmetic_;
  double squared_error_ = 0.0, squared_reference_ = 0.0, squared_terms_ = 0.0, count_ = 0.0;
};

double value_or(const std::vector<double>& values, std::int64_t index, double otherwise) {
  return values.empty() ? otherwise : values[index];
}

/// Means over each row of `term(i)`, i running over the elements of the rows.
template <typename Term>
std::vector<double> row_means(std::int64_t rows, std::int64_t cols, const Term& term) {
  std::vector<double> means(rows);
  for (std::int64_t row = 0; row < rows; ++row) {
    double sum = 0.0;
    for (std::int64_t i = row * cols; i < (row + 1) * cols; ++i) sum += term(i);
    means[row] = sum / static_cast<double>(cols);
  }
  return means;
}

template <typename T, typename W>
std::vector<OutputCheck> check_plain_forward(const Problem& problem,
                                             const ForwardArgs<T, W>& args) {
  const std::int64_t cols = problem.cols;
  const bool layer = problem.kind == Kind::Layer;
  const auto weight = reference_elements<W>(problem, Input::Weight, 0, cols);
  const auto bias = reference_elements<W>(problem, Input::Bias, 0, cols);
  Comparison y("y", kRounding<T>, cols);
  Comparison mean("mean", kRounding<float>, cols), rstd("rstd", kRounding<float>, cols);
  for_each_row_chunk(problem, [&](RowRange rows) {
    const std::int64_t begin = rows.begin * cols;
    const auto x = reference_elements<T>(problem, Input::X, begin, rows.count * cols);
    const auto want = reference::forward(reference_norm(problem.kind), rows.count, cols, x, weight,
                                         bias, problem.eps);
    const auto mean_abs =
        row_means(rows.count, cols, [&](std::int64_t i) { return std::abs(x[i]); });
    // y = (x - mean) rstd w + b: an error of mean weighs as much as mean|x|, one of rstd as xhat.
    y.add(args.y + begin, want.y, begin, [&](std::int64_t i) {
      const std::int64_t row = i / cols, col = i % cols;
      const double centre = layer ? want.mean[row] : 0.0;
      const double offset = layer ? mean_abs[row] : 0.0;
      return std::abs(value_or(weight, col, 1.0)) * want.rstd[row] *
                 (offset + std::abs(x[i] - centre)) +
             std::abs(value_or(bias, col, 0.0));
    });
    if (layer)
      mean.add(args.mean + rows.begin, want.mean, rows.begin,
               [&](std::int64_t row) { return mean_abs[row]; });
    // With kappa = mean|x| / deviation: a one-pass variance errs with kappa, one about a computed
    // mean with the square of that mean's own error; E[x^2] - E[x]^2, which errs with kappa^2,
    // fails.
    rstd.add(args.rstd + rows.begin, want.rstd, rows.begin, [&](std::int64_t row) {
      const double kappa = layer ? mean_abs[row] * want.rstd[row] : 0.0;
      return want.rstd[row] * (1.0 + kappa + arithmetic_error(cols) * kappa * kappa);
    });
  });
  if (layer) return {y.result(), mean.result(), rstd.result()};
  return {y.result(), rstd.result()};
}

/// A dropout mask has no rounding: every byte must be the reference's.
class MaskComparison {
 public:
  explicit MaskComparison(std::string output) { result_.output = std::move(output); }

  void add(const std::uint8_t* out, const std::vector<std::uint8_t>& reference,
           std::int64_t begin) {
    std::vector<std::uint8_t> host(reference.size());
    download(host.data(), out, host.size());
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < host.size(); ++i) {
      if (host[i] == reference[i]) continue;
      result_.max_abs_error = result_.relative_error = 1.0;
      result_.worst_of_bound = std::numeric_limits<double>::infinity();
      result_.worst_index = begin + static_cast<std::int64_t>(i);
    }
  }
  OutputCheck result() const { return result_; }

 private:
  std::mutex mutex_;
  OutputCheck result_;
};

/// The fused forward pass: the plain one's bounds, about a sum that has an error of its own.
template <typename T, typename W>
std::vector<OutputCheck> check_fused_forward(const Problem& problem,
                                             const ForwardArgs<T, W>& args) {
  const std::int64_t cols = problem.cols;
  const bool layer = problem.kind == Kind::Layer;
  const Fusion& fusion = problem.fusion;
  const auto parameter = [&](Input input) {
    return reference_elements<W>(problem, input, 0, cols);
  };
  const auto weight = parameter(Input::Weight), bias = parameter(Input::Bias);
  const auto weight1 = parameter(Input::Weight1), bias1 = parameter(Input::Bias1);
  const bool residual_is_float = fusion.residual == Residual::F32;
  Comparison y("y", kRounding<T>, cols), y1("y1", kRounding<T>, cols);
  Comparison sum("sum", residual_is_float ? kRounding<float> : kRounding<T>, 4);
  Comparison mean("mean", kRounding<float>, cols), rstd("rstd", kRounding<float>, cols);
  MaskComparison mask("mask"), mask1("mask1");
  for_each_row_chunk(problem, [&](RowRange rows) {
    const std::int64_t begin = rows.begin * cols, count = rows.count * cols;
    const FusedInputs<T> inputs(problem, rows);
    const auto& [x, x1, residual, rowscale, rowscale1, seeds, seeds1] = inputs;
    auto in = inputs.without_parameters(problem, rows);
    in.weight = weight;
    in.bias = bias;
    in.weight1 = weight1;
    in.bias1 = bias1;
    const auto want = reference::fused_forward(in);
    // The absolute values of what is added up to the sum.
    const double keep = 1.0 / (1.0 - static_cast<double>(fusion.dropout));
    std::vector<double> terms(count);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t row = i / cols;
      terms[i] = std::abs(x[i] * value_or(rowscale, row, 1.0)) * (seeds.empty() ? 1.0 : keep) +
                 std::abs(value_or(x1, i, 0.0) * value_or(rowscale1, row, 1.0)) *
                     (seeds1.empty() ? 1.0 : keep) +
                 std::abs(value_or(residual, i, 0.0));
    }
    const auto mean_terms = row_means(rows.count, cols, [&](std::int64_t i) { return terms[i]; });
    const auto magnitude = [&](const std::vector<double>& w, const std::vector<double>& b) {
      return [&](std::int64_t i) {
        const std::int64_t row = i / cols, col = i % cols;
        return std::abs(value_or(w, col, 1.0)) * want.rstd[row] *
                   (2.0 * mean_terms[row] + terms[i] + std::abs(want.sum[i])) +
               std::abs(value_or(b, col, 0.0));
      };
    };
    y.add(args.y + begin, want.y, begin, magnitude(weight, bias));
    if (fusion.second_affine)
      y1.add(args.fused.y1 + begin, want.y1, begin, magnitude(weight1, bias1));
    if (fusion.prenorm) {
      const auto of_element = [&](std::int64_t i) { return terms[i]; };
      if (residual_is_float)
        sum.add(static_cast<const float*>(args.fused.residual_out) + begin, want.sum, begin,
                of_element);
      else
        sum.add(static_cast<const T*>(args.fused.residual_out) + begin, want.sum, begin,
                of_element);
    }
    if (layer)
      mean.add(args.mean + rows.begin, want.mean, rows.begin,
               [&](std::int64_t row) { return mean_terms[row]; });
    rstd.add(args.rstd + rows.begin, want.rstd, rows.begin, [&](std::int64_t row) {
      const double offset = mean_terms[row] * want.rstd[row];
      return want.rstd[row] * (1.0 + offset + arithmetic_error(cols) * offset * offset);
    });
    if (fusion.masks && !seeds.empty()) mask.add(args.fused.mask + begin, want.mask, begin);
    if (fusion.masks && !seeds1.empty()) mask1.add(args.fused.mask1 + begin, want.mask1, begin);
  });
  std::vector<OutputCheck> checks{y.result()};
  if (fusion.second_affine) checks.push_back(y1.result());
  if (fusion.prenorm) checks.push_back(sum.result());
  if (layer) checks.push_back(mean.result());
  checks.push_back(rstd.result());
  if (fusion.masks && fusion.dropout > 0.0f) {
    checks.push_back(mask.result());
    if (fusion.second_input) checks.push_back(mask1.result());
  }
  return checks;
}

/// The fused backward pass. The gradient of the sum has the plain pass's bound, of two pairs of
/// dy and weight, and what reaches the sum past the norm on top; dx and dx1 are that times a
/// factor. Where dropped the factor is 0, and so is the bound: dx must be 0 there exactly.
template <typename T, typename W>
std::vector<OutputCheck> check_fused_backward(const Problem& problem,
                                              const BackwardArgs<T, W>& args) {
  const std::int64_t cols = problem.cols;
  const bool layer = problem.kind == Kind::Layer;
  const Fusion& fusion = problem.fusion;
  const bool residual_is_float = problem.residual_element_bytes() == 4;
  const auto weight = reference_elements<W>(problem, Input::Weight, 0, cols);
  const auto weight1 = reference_elements<W>(problem, Input::Weight1, 0, cols);
  Comparison dx("dx", kRounding<T>, cols), dx1("dx1", kRounding<T>, cols);
  Comparison dresidual("dresidual", residual_is_float ? kRounding<float> : kRounding<T>, cols);
  /// The sums down the columns of one pair of parameters, and of their terms' absolute values.
  struct ColumnSums {
    std::vector<double> dweight, dbias, abs_dweight, abs_dbias;
    explicit ColumnSums(std::int64_t cols)
        : dweight(cols), dbias(cols), abs_dweight(cols), abs_dbias(cols) {}
  };
  ColumnSums first(cols), second(fusion.second_affine ? cols : 0);
  std::mutex column_sums;
  for_each_row_chunk(problem, [&](RowRange rows) {
    const std::int64_t begin = rows.begin * cols, count = rows.count * cols;
    const auto saved = fused_rows<T>(problem, rows);
    const std::vector<double> mean(saved.statistics.mean.begin(), saved.statistics.mean.end());
    const std::vector<double> rstd(saved.statistics.rstd.begin(), saved.statistics.rstd.end());
    const auto dy = reference_elements<T>(problem, Input::Dy, begin, count);
    const auto dy1 = reference_elements<T>(problem, Input::Dy1, begin, count);
    const auto dsum = residual_is_float
                          ? reference_elements<float>(problem, Input::DresidualOut, begin, count)
                          : reference_elements<T>(problem, Input::DresidualOut, begin, count);
    const auto rowscale =
        reference_elements<float>(problem, Input::Rowscale, rows.begin, rows.count);
    const auto rowscale1 =
        reference_elements<float>(problem, Input::Rowscale1, rows.begin, rows.count);
    const auto seeds = dropout_seeds(problem, Input::X, rows.begin, rows.count);
    const auto seeds1 = dropout_seeds(problem, Input::X1, rows.begin, rows.count);
    const auto want = reference::fused_backward({.norm = reference_norm(problem.kind),
                                                 .rows = rows.count,
                                                 .cols = cols,
                                                 .dy = dy,
                                                 .dy1 = dy1,
                                                 .dsum = dsum,
                                                 .sum = saved.sum,
                                                 .mean = mean,
                                                 .rstd = rstd,
                                                 .weight = weight,
                                                 .weight1 = weight1,
                                                 .rowscale = rowscale,
                                                 .rowscale1 = rowscale1,
                                                 .second_input = fusion.second_input,
                                                 .dropout = fusion.dropout,
                                                 .seeds = seeds,
                                                 .seeds1 = seeds1});
    const auto xhat = [&](std::int64_t i) {
      return (saved.sum[i] - value_or(mean, i / cols, 0.0)) * rstd[i / cols];
    };
    const auto abs_wdy = [&](std::int64_t i) {
      return std::abs(value_or(weight, i % cols, 1.0) * dy[i]) +
             std::abs(value_or(weight1, i % cols, 1.0) * value_or(dy1, i, 0.0));
    };
    const auto abs_c1 =
        row_means(rows.count, cols, [&](std::int64_t i) { return abs_wdy(i) * std::abs(xhat(i)); });
    const auto abs_c2 = row_means(rows.count, cols, abs_wdy);
    // dresidual = rstd (wdy - c2 - xhat c1) + dsum
    std::vector<double> terms(count);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t row = i / cols;
      terms[i] =
          rstd[row] * (abs_wdy(i) + (layer ? abs_c2[row] : 0.0) + std::abs(xhat(i)) * abs_c1[row]) +
          std::abs(value_or(dsum, i, 0.0));
    }
    const double keep = 1.0 / (1.0 - static_cast<double>(fusion.dropout));
    const auto through = [&](const std::vector<double>& scales,
                             const std::vector<std::uint8_t>& mask) {
      return [&](std::int64_t i) {
        return terms[i] * value_or(scales, i / cols, 1.0) * (mask.empty() ? 1.0 : mask[i] * keep);
      };
    };
    dx.add(args.dx + begin, want.dx, begin, through(rowscale, want.mask));
    if (problem.writes_dx1())
      dx1.add(args.fused.dx1 + begin, want.dx1, begin, through(rowscale1, want.mask1));
    if (problem.writes_dresidual()) {
      const auto of_element = [&](std::int64_t i) { return terms[i]; };
      if (residual_is_float)
        dresidual.add(static_cast<const float*>(args.fused.dresidual) + begin, want.dresidual,
                      begin, of_element);
      else
        dresidual.add(static_cast<const T*>(args.fused.dresidual) + begin, want.dresidual, begin,
                      of_element);
    }
    ColumnSums chunk(cols), chunk1(second.dweight.size());
    for (std::int64_t i = 0; i < count; ++i) {
      chunk.abs_dweight[i % cols] += std::abs(dy[i] * xhat(i));
      chunk.abs_dbias[i % cols] += std::abs(dy[i]);
      if (dy1.empty()) continue;
      chunk1.abs_dweight[i % cols] += std::abs(dy1[i] * xhat(i));
      chunk1.abs_dbias[i % cols] += std::abs(dy1[i]);
    }
    const std::lock_guard lock(column_sums);
    const auto add = [](std::vector<double>& to, const std::vector<double>& from) {
      for (std::size_t col = 0; col < to.size(); ++col) to[col] += from[col];
    };
    add(first.dweight, want.dweight);
    add(first.dbias, want.dbias);
    add(first.abs_dweight, chunk.abs_dweight);
    add(first.abs_dbias, chunk.abs_dbias);
    add(second.dweight, want.dweight1);
    add(second.dbias, want.dbias1);
    add(second.abs_dweight, chunk1.abs_dweight);
    add(second.abs_dbias, chunk1.abs_dbias);
  });
  const auto of_columns = [&](const char* name, const W* out, const std::vector<double>& reference,
                              const std::vector<double>& terms) {
    Comparison comparison(name, kRounding<W>, problem.rows);
    comparison.add(out, reference, 0, [&](std::int64_t col) { return terms[col]; });
    return comparison.result();
  };
  std::vector<OutputCheck> checks{
      dx.result(), of_columns("dweight", args.dweight, first.dweight, first.abs_dweight)};
  if (layer) checks.push_back(of_columns("dbias", args.dbias, first.dbias, first.abs_dbias));
  if (problem.writes_dx1()) checks.push_back(dx1.result());
  if (problem.writes_dresidual()) checks.push_back(dresidual.result());
  if (fusion.second_affine)
    checks.push_back(
        of_columns("dweight1", args.fused.dweight1, second.dweight, second.abs_dweight));
  if (fusion.second_affine && layer)
    checks.push_back(of_columns("dbias1", args.fused.dbias1, second.dbias, second.abs_dbias));
  return checks;
}

}  // namespace

std::string OutputCheck::place(std::int64_t cols) const {
  if (output == "mean" || output == "rstd") return "row " + std::to_string(worst_index);
  if (output.starts_with("dw") || output.starts_with("db"))
    return "column " + std::to_string(worst_index);
  return "row " + std::to_string(worst_index / cols) + ", column " +
         std::to_string(worst_index % cols);
}

template <typename T, typename W>
std::vector<OutputCheck> check_forward(const Problem& problem, const ForwardArgs<T, W>& args) {
  if (problem.fusion != Fusion{}) return check_fused_forward(problem, args);
  return check_plain_forward(problem, args);
}

template <typename T, typename W>
std::vector<OutputCheck> check_backward(const Problem& problem, const BackwardArgs<T, W>& args) {
  if (problem.fusion != Fusion{}) return check_fused_backward(problem, args);
  const std::int64_t cols = problem.cols;
  const bool layer = problem.kind == Kind::Layer, from_y = args.y != nullptr;
  const reference::Norm norm = reference_norm(problem.kind);
  const auto weight = reference_elements<W>(problem, Input::Weight, 0, cols);
  const auto bias = reference_elements<W>(problem, Input::Bias, 0, cols);
  Comparison dx("dx", kRounding<T>, cols), y("y", kRounding<T>, 1);
  Comparison dx_from_x("dx from x", kRounding<T>, cols);
  std::vector<double> dweight(cols), dbias(cols), abs_dweight(cols), abs_dbias(cols);
  std::vector<double> dweight_from_x(cols);
  std::mutex column_sums;
  for_each_row_chunk(problem, [&](RowRange rows) {
    const std::int64_t begin = rows.begin * cols, count = rows.count * cols;
    const auto dy = reference_elements<T>(problem, Input::Dy, begin, count);
    const auto x = reference_elements<T>(problem, Input::X, begin, count);
    const RowStatistics given = row_statistics<T>(problem, rows);
    const std::vector<double> mean(given.mean.begin(), given.mean.end());
    const std::vector<double> rstd(given.rstd.begin(), given.rstd.end());
    const auto gradient_from_x = [&] {
      return reference::backward(norm, rows.count, cols, dy, x, weight, mean, rstd);
    };
    std::vector<double> saved_y;
    reference::Backward from_x;  // where the kernel has y
    if (from_y) {
      const auto rounded = forward_output<T, W>(problem, rows);
      for (const T value : rounded) saved_y.push_back(static_cast<float>(value));
      from_x = gradient_from_x();
      dx_from_x.add(args.dx + begin, from_x.dx, begin, [](std::int64_t) { return 0.0; });
    }
    const auto want = from_y ? reference::backward_from_y(norm, rows.count, cols, dy, saved_y,
                                                          weight, bias, rstd, problem.eps)
                             : gradient_from_x();
    const auto xhat = [&](std::int64_t i) {
      const std::int64_t row = i / cols;
      return (x[i] - value_or(mean, row, 0.0)) * rstd[row];
    };
    const auto wdy = [&](std::int64_t i) { return value_or(weight, i % cols, 1.0) * dy[i]; };
    // The absolute values of the terms of xhat, and of wdy · xhat. From y they are y - bias, one
    // term, since a subtraction rounds nothing but its result; divided by weight for xhat alone.
    const auto abs_centred = [&](std::int64_t i) {
      return std::abs(saved_y[i] - value_or(bias, i % cols, 0.0));
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
    dx.add(args.dx + begin, want.dx, begin, [&](std::int64_t i) {
      const std::int64_t row = i / cols;
      return rstd[row] *
             (std::abs(wdy(i)) + (layer ? abs_c2[row] : 0.0) + abs_xhat(i) * abs_c1[row]);
    });
    if (problem.recompute_output) {
      std::vector<double> want_y(count);
      for (std::int64_t i = 0; i < count; ++i)
        want_y[i] = xhat(i) * value_or(weight, i % cols, 1.0) + value_or(bias, i % cols, 0.0);
      y.add(args.y_again + begin, want_y, begin, [&](std::int64_t i) {
        const double row_mean = value_or(mean, i / cols, 0.0);
        return std::abs(value_or(weight, i % cols, 1.0)) * rstd[i / cols] *
                   (std::abs(x[i]) + std::abs(row_mean)) +
               std::abs(value_or(bias, i % cols, 0.0));
      });
    }
    std::vector<double> abs_dw(cols), abs_db(cols);
    for (std::int64_t row = 0, i = 0; row < rows.count; ++row)
      for (std::int64_t col = 0; col < cols; ++col, ++i) {
        abs_dw[col] += std::abs(dy[i]) * abs_xhat(i);
        abs_db[col] += std::abs(dy[i]);
      }
    const std::lock_guard lock(column_sums);
    for (std::int64_t col = 0; col < cols; ++col) {
      dweight[col] += want.dweight[col];
      if (from_y) dweight_from_x[col] += from_x.dweight[col];
      dbias[col] += want.dbias[col];
      abs_dweight[col] += abs_dw[col];
      abs_dbias[col] += abs_db[col];
    }
  });
  Comparison dw("dweight", kRounding<W>, problem.rows), db("dbias", kRounding<W>, problem.rows);
  dw.add(args.dweight, dweight, 0, [&](std::int64_t col) { return abs_dweight[col]; });
  std::vector<OutputCheck> checks{dx.result(), dw.result()};
  if (layer) {
    db.add(args.dbias, dbias, 0, [&](std::int64_t col) { return abs_dbias[col]; });
    checks.push_back(db.result());
  }
  if (problem.recompute_output) checks.push_back(y.result());
  if (from_y) {
    Comparison dw_from_x("dweight from x", kRounding<W>, problem.rows);
    dw_from_x.add(args.dweight, dweight_from_x, 0, [](std::int64_t) { return 0.0; });
    checks.push_back(dx_from_x.result_without_limit());
    checks.push_back(dw_from_x.result_without_limit());
  }
  return checks;
}

#define LNC_INSTANTIATE(T, W)                                                                      \
  template std::vector<OutputCheck> check_forward<T, W>(const Problem&, const ForwardArgs<T, W>&); \
  template std::vector<OutputCheck> check_backward<T, W>(const Problem&, const BackwardArgs<T, W>&);
LNC_INSTANTIATE(float, float)
LNC_INSTANTIATE(__half, __half)
LNC_INSTANTIATE(__nv_bfloat16, __nv_bfloat16)
LNC_INSTANTIATE(__half, float)
LNC_INSTANTIATE(__nv_bfloat16, float)
#undef LNC_INSTANTIATE

}  // namespace lnc
