#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "common/harness/comparison.h"
#include "common/harness/reference.h"
#include "common/harness/row_chunks.h"

namespace lnc {
namespace {

/// The sums that a fused pass normalises, in some rows; `leeway` is how far the kernel's sums may
/// be from `values`.
struct NormalisedSums {
  std::vector<double> values;
  std::vector<double> leeway;

  /// Sums that the kernel has stored are known exactly.
  explicit NormalisedSums(std::vector<double> stored)
      : values(std::move(stored)), leeway(values.size()) {}

  /// Sums that it does not store. `terms` has, for each `exact` sum, the sum of the absolute values
  /// of its terms. If a sum is between two numbers of its type, errors of float arithmetic may
  /// decide to which of them it is rounded.
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

/// How far a row's statistics may move within the leeway of its sums.
struct OpenStatistics {
  double mean = 0.0;
  double most_rstd = 0.0;
  double relative_rstd = 0.0;

  /// 1 / rstd is the length of the vector (centred sums / sqrt(cols), sqrt(eps)), so it changes by
  /// at most the length of that vector's change.
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

/// The reference for some rows, and the bounds on the errors of the outputs in them.
class ForwardRows {
 public:
  /// @param want the norm of the sums in `rows`, from which the kernel's may differ by `leeway`
  ForwardRows(const Problem& problem, RowRange rows, reference::FusedForward want,
              std::vector<double> leeway)
      : cols_(problem.cols),
        begin_(rows.begin),
        layer_(problem.kind == Kind::Layer),
        want_(std::move(want)),
        leeway_(std::move(leeway)),
        mean_terms_(
            row_means(rows.count, cols_, [&](std::int64_t i) { return std::abs(want_.sum[i]); })) {
    for (std::int64_t row = 0; row < rows.count; ++row)
      open_.emplace_back(std::span(leeway_).subspan(row * cols_, cols_), layer_, want_.rstd[row],
                         problem.eps);
  }

  const std::vector<double>& y() const { return want_.y; }
  const std::vector<double>& y1() const { return want_.y1; }

  /// y = (sum - mean) rstd w + b: an error in mean is proportional to mean|sum|, one in rstd to
  /// xhat.
  void compare(Comparison& output, const std::vector<double>& reference,
               const std::vector<double>& w, const std::vector<double>& b) const {
    const auto magnitude = [&](std::int64_t i) {
      const double terms_of_xhat = (layer_ ? mean_terms_[i / cols_] : 0.0) + std::abs(centred(i));
      return std::abs(value_or(w, i % cols_, 1.0)) * want_.rstd[i / cols_] * terms_of_xhat +
             std::abs(value_or(b, i % cols_, 0.0));
    };
    const auto left_open = [&](std::int64_t i) {
      const OpenStatistics& of_row = open_[i / cols_];
      const double xhat = centred(i) * want_.rstd[i / cols_];
      return std::abs(value_or(w, i % cols_, 1.0)) *
             (of_row.most_rstd * (leeway_[i] + of_row.mean) +
              of_row.relative_rstd * std::abs(xhat));
    };
    output.add(reference, begin_ * cols_, magnitude, left_open);
  }

  void compare_mean(Comparison& mean) const {
    mean.add(
        want_.mean, begin_, [&](std::int64_t row) { return mean_terms_[row]; },
        [&](std::int64_t row) { return open_[row].mean; });
  }

  /// With kappa = mean|sum| / deviation, the error of a one-pass variance grows with kappa, and
  /// that of a variance about a computed mean with the square of the mean's own error. The error of
  /// E[x^2] - E[x]^2 grows with kappa^2, so that formula fails the check.
  void compare_rstd(Comparison& rstd) const {
    rstd.add(
        want_.rstd, begin_,
        [&](std::int64_t row) {
          const double kappa = layer_ ? mean_terms_[row] * want_.rstd[row] : 0.0;
          return want_.rstd[row] * (1.0 + kappa + arithmetic_error(cols_) * kappa * kappa);
        },
        [&](std::int64_t row) { return open_[row].relative_rstd * want_.rstd[row]; });
  }

 private:
  double centred(std::int64_t i) const {
    return want_.sum[i] - value_or(want_.mean, i / cols_, 0.0);
  }

  std::int64_t cols_, begin_;
  bool layer_;
  reference::FusedForward want_;
  std::vector<double> leeway_;
  std::vector<double> mean_terms_;
  std::vector<OpenStatistics> open_;
};

}  // namespace

/// A fused pass normalises the sum as stored: the stored sum is compared with the exact one, and
/// all other outputs with the norm of the stored sum.
std::vector<OutputCheck> check_forward(const Tensors& tensors) {
  const Problem& problem = tensors.problem();
  const std::int64_t cols = problem.cols;
  std::deque<Comparison> y;  // of every output that stores y
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
  const auto weight = parameter("weight"), bias = parameter("bias");
  const auto weight1 = parameter("weight1"), bias1 = parameter("bias1");
  for_each_row_chunk(tensors.rows(), cols, [&](RowRange rows) {
    const std::int64_t begin = rows.begin * cols;
    ReferenceForward exact(problem, rows);
    exact.in.rounded = nullptr;
    reference::FusedForward want = exact.run();
    mask.add(want.mask, begin);
    mask1.add(want.mask1, begin);
    std::vector<double> leeway(want.sum.size());
    if (problem.fusion != Fusion{}) {
      // The same sum over absolute values gives the magnitude of an element's terms.
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
    const ForwardRows checked(problem, rows, std::move(want), std::move(leeway));
    for (Comparison& each : y) checked.compare(each, checked.y(), weight, bias);
    checked.compare(y1, checked.y1(), weight1, bias1);
    checked.compare_mean(mean);
    checked.compare_rstd(rstd);
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

}  // namespace lnc
