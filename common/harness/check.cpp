#include "common/harness/check.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <mutex>
#include <span>
#include <stdexcept>
#include <utility>

#include "common/harness/reference.h"
#include "common/harness/row_chunks.h"
#include "reference_cpu/fused_layer_norm.h"

namespace lnc {
namespace {

constexpr double kFloatRoundoff = 0x1p-24;
constexpr std::int64_t kSumTerms = 4;  // of an element of a fusion's sum, and more

double arithmetic_error(std::int64_t terms) {
  return (4.0 * std::sqrt(static_cast<double>(terms)) + 8.0) * kFloatRoundoff;
}

/// Elements of a tensor as they are in device memory now.
std::vector<double> download_elements(const Tensor& tensor, std::int64_t begin,
                                      std::int64_t count) {
  std::vector<double> values(count);
  with_element_type(tensor.dtype(), [&]<typename T>() {
    std::vector<T> host(count);
    download(host.data(), reinterpret_cast<const T*>(tensor.data()) + begin, count * sizeof(T));
    for (std::int64_t i = 0; i < count; ++i) {
      if constexpr (std::is_integral_v<T>)
        values[i] = host[i];
      else
        values[i] = static_cast<float>(host[i]);
    }
  });
  return values;
}

/// Compares an output piece by piece.
class Comparison {
 public:
  /// @param tensor the output; null where the pass has none
  /// @param terms in the longest sum of an element
  Comparison(const Tensors& tensors, std::string_view tensor, std::int64_t terms)
      : tensor_(tensors.find(tensor)), arithmetic_(arithmetic_error(terms)) {
    result_.output = tensor;
    if (tensor_ != nullptr) type_ = element_type(tensor_->dtype());
  }

  /// Elements in device memory against `reference`; `magnitude(i)` is the sum of the absolute
  /// values of the terms of element i, and `leeway(i)` what the reference itself leaves open.
  /// `begin` is the index of the first element in the whole output. Safe to call from several
  /// threads.
  template <typename Magnitude, typename Leeway>
  void add(const std::vector<double>& reference, std::int64_t begin, const Magnitude& magnitude,
           const Leeway& leeway) {
    if (tensor_ == nullptr) return;
    const auto count = static_cast<std::int64_t>(reference.size());
    const std::vector<double> host = download_elements(*tensor_, begin, count);
    double squared_error = 0.0;
    double squared_reference = 0.0;
    double squared_terms = 0.0;
    double squared_leeway = 0.0;
    double max_error = 0.0;
    double worst = -1.0;
    std::int64_t worst_index = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const double got = host[i];
      const double want = reference[i];
      const double terms = std::abs(magnitude(i));
      double error = std::abs(got - want);
      if (!(error < std::numeric_limits<double>::infinity()))
        error = std::numeric_limits<double>::infinity();  // NaN too: nobody wrote the element
      const double open = leeway(i);
      const double bound =
          type_.roundoff * std::abs(want) + type_.smallest + arithmetic_ * terms + open;
      squared_error += error * error;
      squared_reference += want * want;
      squared_terms += terms * terms;
      squared_leeway += open * open;
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
    squared_leeway_ += squared_leeway;
    count_ += static_cast<double>(count);
    result_.max_abs_error = std::max(result_.max_abs_error, max_error);
    const bool earlier = begin + worst_index < result_.worst_index;  // chunks come in any order
    if (worst > result_.worst_of_bound || (worst == result_.worst_of_bound && earlier)) {
      result_.worst_of_bound = worst;
      result_.worst_index = begin + worst_index;
    }
  }

  /// Likewise against a reference that leaves nothing open.
  template <typename Magnitude>
  void add(const std::vector<double>& reference, std::int64_t begin, const Magnitude& magnitude) {
    add(reference, begin, magnitude, [](std::int64_t) { return 0.0; });
  }

  /// Whether the pass has this output. One without elements is there, and passes.
  bool there() const { return tensor_ != nullptr; }

  OutputCheck result() const {
    OutputCheck result = result_;
    const double norm = std::sqrt(squared_reference_);
    const double floor = norm > 0.0 ? norm : 1.0;  // an all-zero reference: the absolute error
    result.relative_error = std::sqrt(squared_error_) / floor;
    result.limit =
        std::max(type_.error_limit, 4.0 * kFloatRoundoff * std::sqrt(squared_terms_) / floor) +
        (type_.smallest * std::sqrt(count_) + std::sqrt(squared_leeway_)) / floor;
    return result;
  }
  /// How far the output is from the reference, for information, under another name.
  OutputCheck distance(std::string name) const {
    OutputCheck result = this->result();
    result.output = std::move(name);
    result.limit = std::numeric_limits<double>::infinity();
    result.worst_of_bound = 0.0;
    return result;
  }

 private:
  std::mutex mutex_;
  OutputCheck result_;
  const Tensor* tensor_;
  ElementType type_ = kElementType<float>;
  double arithmetic_;
  double squared_error_ = 0.0;
  double squared_reference_ = 0.0;
  double squared_terms_ = 0.0;
  double squared_leeway_ = 0.0;
  double count_ = 0.0;
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

/// An output without rounding, a copy or a dropout mask: every bit must be the reference's.
class ExactComparison {
 public:
  ExactComparison(const Tensors& tensors, std::string_view tensor) : tensor_(tensors.find(tensor)) {
    result_.output = tensor;
  }

  /// Numbers in device memory against `reference`, as in Comparison::add.
  template <typename Number>
  void add(const std::vector<Number>& reference, std::int64_t begin) {
    if (tensor_ == nullptr) return;
    const auto count = static_cast<std::int64_t>(reference.size());
    const std::vector<double> host = download_elements(*tensor_, begin, count);
    const std::lock_guard lock(mutex_);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto want = static_cast<double>(reference[i]);
      squared_reference_ += want * want;
      if (host[i] == want && std::signbit(host[i]) == std::signbit(want)) continue;
      double error = std::abs(host[i] - want);
      if (!(error < std::numeric_limits<double>::infinity()))
        error = std::numeric_limits<double>::infinity();  // NaN too: nobody wrote the element
      squared_error_ += error * error;
      const bool first = result_.worst_of_bound == 0.0 || begin + i < result_.worst_index;
      if (first) result_.worst_index = begin + i;
      result_.max_abs_error = std::max(result_.max_abs_error, error);
      result_.worst_of_bound = std::numeric_limits<double>::infinity();
    }
  }
  bool there() const { return tensor_ != nullptr; }
  OutputCheck result() const {
    OutputCheck result = result_;
    const double norm = std::sqrt(squared_reference_);
    result.relative_error = std::sqrt(squared_error_) / (norm > 0.0 ? norm : 1.0);
    return result;
  }

 private:
  std::mutex mutex_;
  OutputCheck result_;
  const Tensor* tensor_;
  double squared_error_ = 0.0;
  double squared_reference_ = 0.0;
};

/// A copy of x.
std::vector<OutputCheck> check_copy(const Tensors& tensors) {
  const Problem& problem = tensors.problem();
  ExactComparison y(tensors, "y");
  for_each_row_chunk(problem, [&](RowRange rows) {
    y.add(reference_rows(problem, "x", rows), rows.begin * problem.cols);
  });
  return {y.result()};
}

/// The sums down the columns that a gradient of the parameters is, piece by piece, and what their
/// terms' absolute values add up to.
struct ColumnSums {
  std::vector<double> dweight, dbias, abs_dweight, abs_dbias;

  explicit ColumnSums(std::int64_t cols)
      : dweight(cols), dbias(cols), abs_dweight(cols), abs_dbias(cols) {}

  void add_gradients(const std::vector<double>& dw, const std::vector<double>& db) {
    add(dweight, dw);
    add(dbias, db);
  }
  /// @param abs_xhat the absolute values of xhat's terms, of element i
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

OutputCheck compare_columns(const Tensors& tensors, std::string_view output,
                            const std::vector<double>& reference,
                            const std::vector<double>& terms) {
  Comparison comparison(tensors, output, tensors.problem().rows);
  comparison.add(reference, 0, [&](std::int64_t col) { return terms[col]; });
  return comparison.result();
}

/// The sums that a fused pass normalises, in some rows, and what is not known of them: how far an
/// element may be from `values`.
struct NormalisedSums {
  std::vector<double> values;
  std::vector<double> leeway;

  /// Those that the kernel has stored, to the bit.
  explicit NormalisedSums(std::vector<double> stored)
      : values(std::move(stored)), leeway(values.size()) {}

  /// Those that it has stored nowhere: `exact` sums of numbers that have `terms` as the sums of
  /// their absolute values. Of a sum between two numbers of its type the errors of float arithmetic
  /// may decide to which of the two it is rounded.
  NormalisedSums(std::vector<double> exact, const std::vector<double>& terms,
                 double (*rounded)(double))
      : values(std::move(exact)), leeway(values.size()) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double error = arithmetic_error(kSumTerms) * terms[i];
      const double least = rounded(values[i] - error);
      const double most = rounded(values[i] + error);
      values[i] = rounded(values[i]);
      leeway[i] = std::max(most - values[i], values[i] - least);
    }
  }
};

/// What the leeway of a row's sums leaves open of its statistics.
struct OpenStatistics {
  double mean = 0.0;
  double most_rstd = 0.0;
  double relative_rstd = 0.0;

  /// 1 / rstd is the length of the vector of the centred sums / sqrt(cols), and sqrt(eps): so it
  /// changes by the length of the change at most.
  OpenStatistics(std::span<const double> leeway, bool layer, double rstd_of_sums, double eps) {
    double squares = 0.0;
    for (const double open : leeway) {
      mean += open;
      squares += open * open;
    }
    mean = layer ? mean / static_cast<double>(leeway.size()) : 0.0;
    const double length = std::sqrt(squares / static_cast<double>(leeway.size()));
    most_rstd = 1.0 / std::max(1.0 / rstd_of_sums - length, std::sqrt(eps));
    relative_rstd = most_rstd * length;
  }
};

/// A forward pass, plain or fused. A fused one normalises the sum as it is stored: that is checked
/// against the exact sum, and all else against the norm of what the kernel has stored.
std::vector<OutputCheck> check_forward(const Tensors& tensors) {
  const Problem& problem = tensors.problem();
  const std::int64_t cols = problem.cols;
  const bool layer = problem.kind == Kind::Layer;
  const bool fused = problem.fusion != Fusion{};
  std::deque<Comparison> y;  // y, and whatever else stores it
  for (const Tensor& tensor : tensors.all())
    if (tensor.is_output() && tensor.stores(Saved::Y)) y.emplace_back(tensors, tensor.name(), cols);
  Comparison y1(tensors, "y1", cols);
  Comparison sum(tensors, "residual_out", kSumTerms);
  Comparison mean(tensors, "mean", cols);
  Comparison rstd(tensors, "rstd", cols);
  ExactComparison mask(tensors, "mask");
  ExactComparison mask1(tensors, "mask1");
  const auto parameter = [&](std::string_view name) {
    return reference_elements(problem, name, 0, cols);
  };
  const auto weight = parameter("weight");
  const auto bias = parameter("bias");
  const auto weight1 = parameter("weight1");
  const auto bias1 = parameter("bias1");
  for_each_row_chunk(problem, [&](RowRange rows) {
    const std::int64_t begin = rows.begin * cols;
    ReferenceForward exact(problem, rows);
    exact.in.rounded = nullptr;
    reference::FusedForward want = exact.run();
    mask.add(want.mask, begin);
    mask1.add(want.mask1, begin);
    std::vector<double> leeway(want.sum.size());
    if (fused) {
      // The absolute values of what is added up to an element: the same sum of absolutes.
      const std::vector<double> terms = ReferenceForward(problem, rows, true).run().sum;
      sum.add(want.sum, begin, [&](std::int64_t i) { return terms[i]; });
      NormalisedSums sums =
          sum.there()
              ? NormalisedSums(
                    download_elements(*tensors.find("residual_out"), begin, rows.count * cols))
              : NormalisedSums(std::move(want.sum), terms, rounding_to(problem.residual_dtype()));
      want = reference::fused_forward({.norm = reference_norm(problem.kind),
                                       .rows = rows.count,
                                       .cols = cols,
                                       .x = sums.values,
                                       .weight = weight,
                                       .bias = bias,
                                       .weight1 = weight1,
                                       .bias1 = bias1,
                                       .eps = problem.eps});
      leeway = std::move(sums.leeway);
    }
    std::vector<OpenStatistics> open;
    for (std::int64_t row = 0; row < rows.count; ++row)
      open.emplace_back(std::span(leeway).subspan(row * cols, cols), layer, want.rstd[row],
                        problem.eps);
    const auto mean_terms =
        row_means(rows.count, cols, [&](std::int64_t i) { return std::abs(want.sum[i]); });
    const auto centred = [&](std::int64_t i) {
      return want.sum[i] - value_or(want.mean, i / cols, 0.0);
    };
    // y = (sum - mean) rstd w + b: an error of mean weighs as much as mean|sum|, one of rstd as
    // xhat.
    const auto add_normalised = [&](Comparison& output, const std::vector<double>& reference,
                                    const std::vector<double>& w, const std::vector<double>& b) {
      const auto magnitude = [&](std::int64_t i) {
        const double terms_of_xhat = (layer ? mean_terms[i / cols] : 0.0) + std::abs(centred(i));
        return std::abs(value_or(w, i % cols, 1.0)) * want.rstd[i / cols] * terms_of_xhat +
               std::abs(value_or(b, i % cols, 0.0));
      };
      const auto left_open = [&](std::int64_t i) {
        const OpenStatistics& of_row = open[i / cols];
        const double xhat = centred(i) * want.rstd[i / cols];
        return std::abs(value_or(w, i % cols, 1.0)) *
               (of_row.most_rstd * (leeway[i] + of_row.mean) +
                of_row.relative_rstd * std::abs(xhat));
      };
      output.add(reference, begin, magnitude, left_open);
    };
    for (Comparison& each : y) add_normalised(each, want.y, weight, bias);
    add_normalised(y1, want.y1, weight1, bias1);
    mean.add(
        want.mean, rows.begin, [&](std::int64_t row) { return mean_terms[row]; },
        [&](std::int64_t row) { return open[row].mean; });
    // With kappa = mean|sum| / deviation: a one-pass variance errs with kappa, one about a computed
    // mean with the square of that mean's own error; E[x^2] - E[x]^2, which errs with kappa^2,
    // fails.
    rstd.add(
        want.rstd, rows.begin,
        [&](std::int64_t row) {
          const double kappa = layer ? mean_terms[row] * want.rstd[row] : 0.0;
          return want.rstd[row] * (1.0 + kappa + arithmetic_error(cols) * kappa * kappa);
        },
        [&](std::int64_t row) { return open[row].relative_rstd * want.rstd[row]; });
  });
  std::vector<OutputCheck> checks;
  for (const Comparison& each : y)
    if (each.there()) checks.push_back(each.result());
  for (const Comparison* comparison : {&y1, &sum, &mean, &rstd})
    if (comparison->there()) checks.push_back(comparison->result());
  for (const ExactComparison* comparison : {&mask, &mask1})
    if (comparison->there()) checks.push_back(comparison->result());
  return checks;
}

/// Where the pass does not write dx1 or dresidual, dx stands for it: then the reference's must be
/// the same, bit for bit.
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

/// A fused backward pass. The gradient of the sum has the plain pass's bound, of two pairs of dy
/// and weight, and what reaches the sum past the norm on top; dx and dx1 are that times a factor.
/// Where dropped the factor is 0, and so is the bound: dx must be 0 there exactly.
std::vector<OutputCheck> check_fused_backward(const Tensors& tensors) {
  const Problem& problem = tensors.problem();
  const std::int64_t cols = problem.cols;
  const bool layer = problem.kind == Kind::Layer;
  const Fusion& fusion = problem.fusion;
  const auto weight = reference_elements(problem, "weight", 0, cols);
  const auto weight1 = reference_elements(problem, "weight1", 0, cols);
  Comparison dx(tensors, "dx", cols);
  Comparison dx1(tensors, "dx1", cols);
  Comparison dresidual(tensors, "dresidual", cols);
  ColumnSums first(cols);
  ColumnSums second(cols);
  std::mutex column_sums;
  for_each_row_chunk(problem, [&](RowRange rows) {
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
    // dx and dx1 are linear in dresidual: a pass to which the terms alone come, past the norm,
    // gives theirs, be it what it may that is on the way.
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
  if (!problem.frozen)
    checks.push_back(compare_columns(tensors, "dweight", first.dweight, first.abs_dweight));
  if (!problem.frozen && layer)
    checks.push_back(compare_columns(tensors, "dbias", first.dbias, first.abs_dbias));
  if (dx1.there()) checks.push_back(dx1.result());
  if (dresidual.there()) checks.push_back(dresidual.result());
  if (problem.frozen) return checks;
  if (fusion.second_affine)
    checks.push_back(compare_columns(tensors, "dweight1", second.dweight, second.abs_dweight));
  if (fusion.second_affine && layer)
    checks.push_back(compare_columns(tensors, "dbias1", second.dbias, second.abs_dbias));
  return checks;
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
  for_each_row_chunk(problem, [&](RowRange rows) {
    const std::int64_t begin = rows.begin * cols;
    const std::int64_t count = rows.count * cols;
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
    // The absolute values of the terms of xhat, and of wdy · xhat. From y they are y - bias, one
    // term, since a subtraction rounds nothing but its result; divided by weight for xhat alone.
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
    if (problem.recompute_output) {
      std::vector<double> want_y(count);
      for (std::int64_t i = 0; i < count; ++i)
        want_y[i] = xhat(i) * value_or(weight, i % cols, 1.0) + value_or(bias, i % cols, 0.0);
      y.add(want_y, begin, [&](std::int64_t i) {
        const double row_mean = value_or(mean, i / cols, 0.0);
        return std::abs(value_or(weight, i % cols, 1.0)) * rstd[i / cols] *
                   (std::abs(x[i]) + std::abs(row_mean)) +
               std::abs(value_or(bias, i % cols, 0.0));
      });
    }
    ColumnSums of_rows(cols);
    of_rows.add_gradients(want.dweight, want.dbias);
    of_rows.add_magnitudes(dy, abs_xhat);
    const std::lock_guard lock(column_sums);
    sums.add_all(of_rows);
    if (from_y) sums_from_x.add_gradients(from_x.dweight, from_x.dbias);
  });
  std::vector<OutputCheck> checks{dx.result()};
  if (!problem.frozen)
    checks.push_back(compare_columns(tensors, "dweight", sums.dweight, sums.abs_dweight));
  if (!problem.frozen && layer)
    checks.push_back(compare_columns(tensors, "dbias", sums.dbias, sums.abs_dbias));
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

std::string OutputCheck::place(std::int64_t cols) const {
  if (output == "mean" || output == "rstd") return "row " + std::to_string(worst_index);
  if (output.starts_with("dw") || output.starts_with("db"))
    return "column " + std::to_string(worst_index);
  return "row " + std::to_string(worst_index / cols) + ", column " +
         std::to_string(worst_index % cols);
}

std::vector<OutputCheck> check(const Tensors& tensors) {
  synchronize();
  if (tensors.direction() == Direction::Copy) return check_copy(tensors);
  if (tensors.direction() == Direction::Forward) return check_forward(tensors);
  if (tensors.problem().fusion != Fusion{}) return check_fused_backward(tensors);
  return check_plain_backward(tensors);
}

}  // namespace lnc
