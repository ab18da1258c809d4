#include "common/check.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>

#include "reference_cpu/layer_norm.h"

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
        std::max(rounding_.norm_limit, 4.0 * kFloatRoundoff * std::sqrt(squared_terms_) / floor);
    return result;
  }

 private:
  std::mutex mutex_;
  OutputCheck result_;
  Rounding rounding_;
  double arithmetic_;
  double squared_error_ = 0.0, squared_reference_ = 0.0, squared_terms_ = 0.0;
};

reference::Norm norm(Kind kind) {
  return kind == Kind::Layer ? reference::Norm::Layer : reference::Norm::Rms;
}

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

}  // namespace

std::string OutputCheck::place(std::int64_t cols) const {
  if (output == "mean" || output == "rstd") return "row " + std::to_string(worst_index);
  if (output.starts_with("dw") || output.starts_with("db"))
    return "column " + std::to_string(worst_index);
  return "row " + std::to_string(worst_index / cols) + ", column " +
         std::to_string(worst_index % cols);
}

template <typename T>
std::vector<OutputCheck> check_forward(const Problem& problem, const ForwardArgs<T>& args) {
  const std::int64_t cols = problem.cols;
  const bool layer = problem.kind == Kind::Layer;
  const auto weight = reference_elements<T>(problem, Input::Weight, 0, cols);
  const auto bias = reference_elements<T>(problem, Input::Bias, 0, cols);
  Comparison y("y", kRounding<T>, cols);
  Comparison mean("mean", kRounding<float>, cols), rstd("rstd", kRounding<float>, cols);
  for_each_row_chunk(problem, [&](RowRange rows) {
    const std::int64_t begin = rows.begin * cols;
    const auto x = reference_elements<T>(problem, Input::X, begin, rows.count * cols);
    const auto want =
        reference::forward(norm(problem.kind), rows.count, cols, x, weight, bias, problem.eps);
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
    // The variance is about the computed mean, whose error enters relative to the deviation.
    rstd.add(args.rstd + rows.begin, want.rstd, rows.begin, [&](std::int64_t row) {
      const double offset = layer ? mean_abs[row] * want.rstd[row] : 0.0;
      return want.rstd[row] * (1.0 + arithmetic_error(cols) * offset * offset);
    });
  });
  if (layer) return {y.result(), mean.result(), rstd.result()};
  return {y.result(), rstd.result()};
}

template <typename T>
std::vector<OutputCheck> check_backward(const Problem& problem, const BackwardArgs<T>& args) {
  const std::int64_t cols = problem.cols;
  const bool layer = problem.kind == Kind::Layer;
  const auto weight = reference_elements<T>(problem, Input::Weight, 0, cols);
  Comparison dx("dx", kRounding<T>, cols);
  std::vector<double> dweight(cols), dbias(cols), abs_dweight(cols), abs_dbias(cols);
  std::mutex column_sums;
  for_each_row_chunk(problem, [&](RowRange rows) {
    const std::int64_t begin = rows.begin * cols, count = rows.count * cols;
    const auto dy = reference_elements<T>(problem, Input::Dy, begin, count);
    const auto x = reference_elements<T>(problem, Input::X, begin, count);
    const RowStatistics given = row_statistics<T>(problem, rows);
    const std::vector<double> mean(given.mean.begin(), given.mean.end());
    const std::vector<double> rstd(given.rstd.begin(), given.rstd.end());
    const auto want =
        reference::backward(norm(problem.kind), rows.count, cols, dy, x, weight, mean, rstd);
    const auto xhat = [&](std::int64_t i) {
      const std::int64_t row = i / cols;
      return (x[i] - value_or(mean, row, 0.0)) * rstd[row];
    };
    const auto wdy = [&](std::int64_t i) { return value_or(weight, i % cols, 1.0) * dy[i]; };
    const auto abs_c1 =
        row_means(rows.count, cols, [&](std::int64_t i) { return std::abs(wdy(i) * xhat(i)); });
    const auto abs_c2 =
        row_means(rows.count, cols, [&](std::int64_t i) { return std::abs(wdy(i)); });
    // dx = rstd (wdy - c2 - xhat c1)
    dx.add(args.dx + begin, want.dx, begin, [&](std::int64_t i) {
      const std::int64_t row = i / cols;
      return rstd[row] *
             (std::abs(wdy(i)) + (layer ? abs_c2[row] : 0.0) + std::abs(xhat(i)) * abs_c1[row]);
    });
    std::vector<double> abs_dw(cols), abs_db(cols);
    for (std::int64_t row = 0, i = 0; row < rows.count; ++row)
      for (std::int64_t col = 0; col < cols; ++col, ++i) {
        abs_dw[col] += std::abs(dy[i] * xhat(i));
        abs_db[col] += std::abs(dy[i]);
      }
    const std::lock_guard lock(column_sums);
    for (std::int64_t col = 0; col < cols; ++col) {
      dweight[col] += want.dweight[col];
      dbias[col] += want.dbias[col];
      abs_dweight[col] += abs_dw[col];
      abs_dbias[col] += abs_db[col];
    }
  });
  Comparison dw("dweight", kRounding<T>, problem.rows), db("dbias", kRounding<T>, problem.rows);
  dw.add(args.dweight, dweight, 0, [&](std::int64_t col) { return abs_dweight[col]; });
  if (!layer) return {dx.result(), dw.result()};
  db.add(args.dbias, dbias, 0, [&](std::int64_t col) { return abs_dbias[col]; });
  return {dx.result(), dw.result(), db.result()};
}

#define LNC_INSTANTIATE(T)                                                                   \
  template std::vector<OutputCheck> check_forward<T>(const Problem&, const ForwardArgs<T>&); \
  template std::vector<OutputCheck> check_backward<T>(const Problem&, const BackwardArgs<T>&);
LNC_INSTANTIATE(float)
LNC_INSTANTIATE(__half)
LNC_INSTANTIATE(__nv_bfloat16)
#undef LNC_INSTANTIATE

}  // namespace lnc
