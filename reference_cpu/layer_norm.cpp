#include "reference_cpu/layer_norm.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <stdexcept>

// How to read the loops: threads share the rows, and within a row everything is a plain loop over
// the columns, summed in double.

namespace reference {
namespace {

template <typename... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::ostringstream sentence;
  (sentence << ... << parts);
  throw std::invalid_argument(sentence.str());
}

void require_shape(std::int64_t rows, std::int64_t cols) {
  if (rows < 0) fail("rows is ", rows, ", but it must be 0 or more.");
  if (cols < 1) fail("cols is ", cols, ", but it must be 1 or more.");
  if (rows > std::numeric_limits<std::int64_t>::max() / cols) {
    fail("rows is ", rows, ", but rows × cols with cols = ", cols, " must fit in 63 bits.");
  }
}

void require_size(const char* name, std::span<const double> values, std::int64_t size,
                  const char* size_name) {
  if (std::ssize(values) == size) return;
  fail(name, " has ", values.size(), " values, but it must have ", size_name, " = ", size, ".");
}

void require_size_or_empty(const char* name, std::span<const double> values, std::int64_t size,
                           const char* size_name) {
  if (values.empty() || std::ssize(values) == size) return;
  fail(name, " has ", values.size(), " values, but it must have ", size_name, " = ", size,
       ", or none.");
}

void require_eps(double eps) {
  if (!(eps > 0) || !std::isfinite(eps)) {
    fail("eps is ", eps, ", but it must be a finite number above 0.");
  }
}

// An absent weight is a row of ones and an absent bias a row of zeros, so that one loop serves all.
std::vector<double> values_or(std::span<const double> values, std::int64_t cols, double otherwise) {
  if (values.empty()) return std::vector<double>(cols, otherwise);
  return {values.begin(), values.end()};
}

}  // namespace

// For each row, with N = cols:
//
//   mean = 1/N Σ x_j                          (Rms: no mean is subtracted, mean = 0)
//   var  = 1/N Σ (x_j - mean)²                (Rms: this is then the mean of x²)
//   rstd = 1 / sqrt(var + eps)
//   xhat_j = (x_j - mean) · rstd
//   y_j  = xhat_j · w_j + b_j
//
// So Rms is Layer with the mean held at zero, and the code is written that way.
Forward forward(Norm norm, std::int64_t rows, std::int64_t cols, std::span<const double> x,
                std::span<const double> weight, std::span<const double> bias, double eps) {
  require_shape(rows, cols);
  require_size("x", x, rows * cols, "rows × cols");
  require_size_or_empty("weight", weight, cols, "cols");
  require_size_or_empty("bias", bias, cols, "cols");
  require_eps(eps);

  const bool has_mean = norm == Norm::Layer;
  const std::vector<double> weight_or_ones = values_or(weight, cols, 1.0);
  const std::vector<double> bias_or_zeros = values_or(bias, cols, 0.0);
  const double* const w = weight_or_ones.data();
  const double* const b = bias_or_zeros.data();

  Forward out;
  out.y.resize(rows * cols);
  out.mean.resize(has_mean ? rows : 0);
  out.rstd.resize(rows);

#pragma omp parallel for schedule(static)
  for (std::int64_t row = 0; row < rows; ++row) {
    const double* const x_row = x.data() + row * cols;
    double* const y_row = out.y.data() + row * cols;

    double mean = 0;
    if (has_mean) {
      double sum = 0;
      for (std::int64_t j = 0; j < cols; ++j) sum += x_row[j];
      mean = sum / cols;
      out.mean[row] = mean;
    }

    double sum_of_squares = 0;
    for (std::int64_t j = 0; j < cols; ++j) {
      const double centred = x_row[j] - mean;
      sum_of_squares += centred * centred;
    }
    const double rstd = 1 / std::sqrt(sum_of_squares / cols + eps);
    out.rstd[row] = rstd;

    for (std::int64_t j = 0; j < cols; ++j) {
      const double xhat = (x_row[j] - mean) * rstd;
      y_row[j] = xhat * w[j] + b[j];
    }
  }
  return out;
}

// Where the backward pass comes from. y_j = xhat_j · w_j + b_j gives at once
//
//   dw_j = Σ_rows dy_j · xhat_j
//   db_j = Σ_rows dy_j
//   wdy_j = dy_j · w_j                        the gradient with respect to xhat_j
//
// For dx, differentiate xhat_j = (x_j - mean) · rstd by x_k. Three paths lead from x_k to xhat_j:
//
//   x_j itself    δ_jk · rstd
//   the mean      ∂mean/∂x_k = 1/N                            adds  -1/N · rstd
//   rstd          ∂var/∂x_k  = 2/N (x_k - mean)
//                 ∂rstd/∂var = -1/2 rstd³
//                 ∂rstd/∂x_k = -1/N rstd² xhat_k              adds  -1/N xhat_j xhat_k · rstd
//
// (var depends on x_k through the mean too, but that part is -2/N ∂mean/∂x_k Σ (x_i - mean) = 0.)
// Together:
//
//   ∂xhat_j/∂x_k = rstd (δ_jk - 1/N - 1/N xhat_j xhat_k)
//
// Multiply by wdy_j, sum over j, and the two sums over the row have names:
//
//   c1 = mean(wdy · xhat) = 1/N Σ wdy_j xhat_j
//   c2 = mean(wdy)        = 1/N Σ wdy_j       (Rms: the path through the mean is absent, c2 = 0)
//   dx_k = rstd (wdy_k - xhat_k · c1 - c2)
//
// No step needs eps to be small: it sits inside rstd, and the formula is exact for every eps > 0.

namespace {

// Two functions give an element's xhat and its wdy · xhat, so that they may come from x or from y.
template <typename Xhat, typename WdyXhat>
Backward gradients(bool has_mean, std::int64_t rows, std::int64_t cols, std::span<const double> dy,
                   std::span<const double> weight, std::span<const double> rstd, const Xhat& xhat,
                   const WdyXhat& wdy_xhat) {
  const std::vector<double> weight_or_ones = values_or(weight, cols, 1.0);
  const double* const w = weight_or_ones.data();

  Backward out;
  out.dx.resize(rows * cols);
  out.dweight.resize(cols);
  out.dbias.resize(cols);

  // dw and db are sums down the columns, across rows that different threads own. So the rows are
  // cut into groups; each group sums into a partial dw and db of its own, and the partials are
  // added up in order at the end. The number of groups follows from rows alone, never from the
  // number of threads: that fixes the order of every addition, hence the bits of the result.
  constexpr std::int64_t kMaxGroups = 64;    // work for 64 cores; more would only cost memory
  constexpr std::int64_t kRowsPerGroup = 4;  // at two, the partials would be as large as dx
  const std::int64_t groups =
      std::min(rows / kRowsPerGroup + (rows % kRowsPerGroup != 0), kMaxGroups);
  std::vector<double> partial_dweight(groups * cols);
  std::vector<double> partial_dbias(groups * cols);

#pragma omp parallel for schedule(static)
  for (std::int64_t group = 0; group < groups; ++group) {
    double* const group_dweight = partial_dweight.data() + group * cols;
    double* const group_dbias = partial_dbias.data() + group * cols;

    const std::int64_t first_row = rows * group / groups;
    const std::int64_t last_row = rows * (group + 1) / groups;
    for (std::int64_t row = first_row; row < last_row; ++row) {
      const double* const dy_row = dy.data() + row * cols;
      double* const dx_row = out.dx.data() + row * cols;

      double sum_wdy_xhat = 0;
      double sum_wdy = 0;
      for (std::int64_t j = 0; j < cols; ++j) {
        sum_wdy_xhat += wdy_xhat(row, j);
        sum_wdy += dy_row[j] * w[j];
        group_dweight[j] += dy_row[j] * xhat(row, j);
        group_dbias[j] += dy_row[j];
      }
      const double c1 = sum_wdy_xhat / cols;
      const double c2 = has_mean ? sum_wdy / cols : 0;

      for (std::int64_t j = 0; j < cols; ++j) {
        const double wdy = dy_row[j] * w[j];
        dx_row[j] = (wdy - xhat(row, j) * c1 - c2) * rstd[row];
      }
    }
  }

  for (std::int64_t group = 0; group < groups; ++group) {
    for (std::int64_t j = 0; j < cols; ++j) {
      out.dweight[j] += partial_dweight[group * cols + j];
      out.dbias[j] += partial_dbias[group * cols + j];
    }
  }
  return out;
}

}  // namespace

Backward backward(Norm norm, std::int64_t rows, std::int64_t cols, std::span<const double> dy,
                  std::span<const double> x, std::span<const double> weight,
                  std::span<const double> mean, std::span<const double> rstd) {
  const bool has_mean = norm == Norm::Layer;
  require_shape(rows, cols);
  require_size("dy", dy, rows * cols, "rows × cols");
  require_size("x", x, rows * cols, "rows × cols");
  require_size_or_empty("weight", weight, cols, "cols");
  if (!has_mean && !mean.empty()) {
    fail("mean has ", mean.size(), " values, but it must be empty for Rms, which takes no mean.");
  }
  if (has_mean) require_size("mean", mean, rows, "rows");
  require_size("rstd", rstd, rows, "rows");

  const std::vector<double> weight_or_ones = values_or(weight, cols, 1.0);
  const auto xhat = [&](std::int64_t row, std::int64_t j) {
    return (x[row * cols + j] - (has_mean ? mean[row] : 0)) * rstd[row];
  };
  const auto wdy_xhat = [&](std::int64_t row, std::int64_t j) {
    return dy[row * cols + j] * weight_or_ones[j] * xhat(row, j);
  };
  return gradients(has_mean, rows, cols, dy, weight, rstd, xhat, wdy_xhat);
}

double clamp_by_magnitude(double w, double least) {
  return std::copysign(std::max(std::abs(w), least), w);
}

// y_j = xhat_j · w_j + b_j holds all that backward needs of x, except rstd. Solved for xhat:
//
//   xhat_j = (y_j - b_j) / w_j
//
// and in c1, where xhat_j stands beside w_j, nothing is divided at all:
//
//   wdy_j xhat_j = dy_j w_j (y_j - b_j) / w_j = dy_j (y_j - b_j)
//
// In exact arithmetic that is backward, for every w_j but 0. A w_j of 0 leaves y_j = b_j, which
// says nothing about xhat_j; a small one leaves little, once y is rounded. So xhat is divided by
// w_j clamped away from zero, in dx and in dw. wdy and c1 hold the true w_j: no division, no clamp.
// If eps is 0 too, xhat_j is taken as 0, its mean, to avoid NaN.
Backward backward_from_y(Norm norm, std::int64_t rows, std::int64_t cols,
                         std::span<const double> dy, std::span<const double> y,
                         std::span<const double> weight, std::span<const double> bias,
                         std::span<const double> rstd, double eps) {
  require_shape(rows, cols);
  require_size("dy", dy, rows * cols, "rows × cols");
  require_size("y", y, rows * cols, "rows × cols");
  require_size_or_empty("weight", weight, cols, "cols");
  require_size_or_empty("bias", bias, cols, "cols");
  require_size("rstd", rstd, rows, "rows");
  if (!(eps >= 0) || !std::isfinite(eps)) {  // 0: nothing is clamped
    fail("eps is ", eps, ", but it must be a finite number, 0 or more.");
  }

  const std::vector<double> bias_or_zeros = values_or(bias, cols, 0.0);
  std::vector<double> divisor = values_or(weight, cols, 1.0);
  if (!weight.empty()) {  // an absent weight is 1, whatever eps is
    for (double& w : divisor) w = clamp_by_magnitude(w, eps);
  }
  const auto centred = [&](std::int64_t row, std::int64_t j) {
    return y[row * cols + j] - bias_or_zeros[j];
  };
  const auto xhat = [&](std::int64_t row, std::int64_t j) {
    return divisor[j] == 0.0 ? 0.0 : centred(row, j) / divisor[j];
  };
  const auto wdy_xhat = [&](std::int64_t row, std::int64_t j) {
    return dy[row * cols + j] * centred(row, j);
  };
  return gradients(norm == Norm::Layer, rows, cols, dy, weight, rstd, xhat, wdy_xhat);
}

}  // namespace reference
