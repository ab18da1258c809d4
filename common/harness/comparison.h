// Compares an output with its reference, piece by piece. OutputCheck explains the comparison; the
// checks of the passes, check_forward.cpp and check_backward.cpp, derive the magnitudes.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/harness/check.h"

namespace lnc {

inline constexpr double kFloatRoundoff = 0x1p-24;
inline constexpr std::int64_t kSumTerms = 4;  // an upper bound for a fusion's sum

/// A bound on the error of a float sum, relative to the sum of the absolute values of its terms:
/// see OutputCheck.
inline double arithmetic_error(std::int64_t terms) {
  return (4.0 * std::sqrt(static_cast<double>(terms)) + 8.0) * kFloatRoundoff;
}

/// The current contents of a tensor in device memory.
std::vector<double> download_elements(const Tensor& tensor, std::int64_t begin, std::int64_t count);

/// Compares an output that is subject to rounding.
class Comparison {
 public:
  /// @param terms in the longest sum that forms an element
  Comparison(const Tensors& tensors, std::string_view tensor, std::int64_t terms)
      : tensor_(tensors.find(tensor)), arithmetic_(arithmetic_error(terms)) {
    result_.output = tensor;
    if (tensor_ != nullptr) type_ = element_type(tensor_->dtype());
  }

  /// Compares elements in device memory with `reference`. `magnitude(i)` is the sum of the absolute
  /// values of the terms of element i, `leeway(i)` how far the reference itself may be off, and
  /// `begin` the index of the first element in the whole output. Safe to call from several threads.
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
        error = std::numeric_limits<double>::infinity();  // also NaN: an unwritten element
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

  /// The same for an exact reference.
  template <typename Magnitude>
  void add(const std::vector<double>& reference, std::int64_t begin, const Magnitude& magnitude) {
    add(reference, begin, magnitude, [](std::int64_t) { return 0.0; });
  }

  /// Whether the pass has this output. An output without elements exists, and passes.
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
  /// The output's distance from the reference under another name, without a limit.
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

/// Compares an output without rounding, a copy or a dropout mask, bit for bit.
class ExactComparison {
 public:
  ExactComparison(const Tensors& tensors, std::string_view tensor) : tensor_(tensors.find(tensor)) {
    result_.output = tensor;
  }

  /// See Comparison::add.
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
        error = std::numeric_limits<double>::infinity();  // also NaN: an unwritten element
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

inline double value_or(const std::vector<double>& values, std::int64_t index, double otherwise) {
  return values.empty() ? otherwise : values[index];
}

/// The mean of `term(i)` over each row, where i is the row-major index of an element.
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

/// The checks of a forward and of a backward pass.
std::vector<OutputCheck> check_forward(const Tensors& tensors);
std::vector<OutputCheck> check_backward(const Tensors& tensors);

}  // namespace lnc
