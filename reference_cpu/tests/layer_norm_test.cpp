// The truth needs a second witness. Two of them here: arithmetic done by hand, and identities that
// the formulas imply. The third, finite differences of forward against backward, is in
// fused_layer_norm_test.cpp, whose passes without any part are these, bit for bit.
#include "reference_cpu/layer_norm.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <stdexcept>
#include <vector>

#include "reference_cpu/tests/threads.h"

namespace {

using reference::Backward;
using reference::backward;
using reference::backward_from_y;
using reference::clamp_by_magnitude;
using reference::Forward;
using reference::forward;
using reference::Norm;
using Values = std::vector<double>;

constexpr Norm kNorms[] = {Norm::Layer, Norm::Rms};
constexpr double kUnitRoundoff = std::numeric_limits<double>::epsilon() / 2;

struct Problem {
  Norm norm;
  std::int64_t rows;
  std::int64_t cols;
  double eps;
  Values x, weight, bias, dy;  // weight and bias may be empty
};

Values uniform(std::int64_t size, double low, double high, std::mt19937_64& random) {
  std::uniform_real_distribution<double> draw(low, high);
  Values values(size);
  std::generate(values.begin(), values.end(), [&] { return draw(random); });
  return values;
}

Problem random_problem(Norm norm, std::int64_t rows, std::int64_t cols, double eps,
                       bool has_weight = true, bool has_bias = true, unsigned seed = 1) {
  std::mt19937_64 random(seed);
  Problem p{norm, rows, cols, eps, {}, {}, {}, {}};
  p.x = uniform(rows * cols, -1.5, 2.5, random);  // the mean is not 0, so that it matters
  p.dy = uniform(rows * cols, -2, 2, random);
  if (has_weight) p.weight = uniform(cols, -2, 2, random);
  if (has_bias) p.bias = uniform(cols, -2, 2, random);
  return p;
}

reference::Forward run_forward(const Problem& p) {
  return forward(p.norm, p.rows, p.cols, p.x, p.weight, p.bias, p.eps);
}

reference::Backward run_backward(const Problem& p) {
  const auto saved = run_forward(p);
  return backward(p.norm, p.rows, p.cols, p.dy, p.x, p.weight, saved.mean, saved.rstd);
}

std::span<const double> row_of(const Values& matrix, std::int64_t row, std::int64_t cols) {
  return std::span(matrix).subspan(row * cols, cols);
}

double mean_of_products(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (std::size_t j = 0; j < a.size(); ++j) sum += a[j] * b[j];
  return sum / static_cast<double>(a.size());
}

double mean_of(std::span<const double> a) { return mean_of_products(a, Values(a.size(), 1.0)); }

double largest_difference(const Values& a, const Values& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    // A NaN must not hide: std::max would drop it.
    if (!std::isfinite(a[i]) || !std::isfinite(b[i])) return HUGE_VAL;
    largest = std::max(largest, std::abs(a[i] - b[i]));
  }
  return largest;
}

}  // namespace

// ---------------------------------------------------------------------------------- by hand
//
// In these cases every intermediate number has a short binary expansion, so the results are exact
// and are compared with ==.

TEST_CASE("layer forward gives the numbers worked out by hand") {
  // eps = 3
  // row 0: x = [1 3]  mean 2  var 1  rstd = 1/sqrt(1 + 3) = 1/2  xhat = [-1/2  1/2]
  // row 1: x = [5 3]  mean 4  var 1  rstd = 1/2                  xhat = [ 1/2 -1/2]
  // y = xhat · [2 4] + [10 20] = [9 22]
  //                              [11 18]
  const auto out = forward(Norm::Layer, 2, 2, Values{1, 3, 5, 3}, Values{2, 4}, Values{10, 20}, 3);
  CHECK(out == Forward{.y = {9, 22, 11, 18}, .mean = {2, 4}, .rstd = {0.5, 0.5}});
}

TEST_CASE("layer backward gives the numbers worked out by hand") {
  // The problem above, with w = [2 4].
  // row 0: dy = [1  3]  wdy = [2 12]  c1 = (2·-1/2 + 12·1/2)/2 = 5/2  c2 = (2 + 12)/2 = 7
  //        dx = 1/2 [2 + 5/4 - 7,  12 - 5/4 - 7] = [-15/8  15/8]
  // row 1: dy = [2 -1]  wdy = [4 -4]  c1 = (4·1/2 + 4·1/2)/2 = 2      c2 = 0
  //        dx = 1/2 [4 - 1, -4 + 1] = [3/2 -3/2]
  // dw = [1·-1/2 + 2·1/2,  3·1/2 + 1·1/2] = [1/2 2]
  // db = [1 + 2, 3 - 1] = [3 2]
  const auto out = backward(Norm::Layer, 2, 2, Values{1, 3, 2, -1}, Values{1, 3, 5, 3},
                            Values{2, 4}, Values{2, 4}, Values{0.5, 0.5});
  CHECK(out == Backward{.dx = {-1.875, 1.875, 1.5, -1.5}, .dweight = {0.5, 2}, .dbias = {3, 2}});
}

TEST_CASE("layer without weight and bias gives the numbers worked out by hand") {
  // eps = 2, x = [0 0 3]  mean 1  var = (1 + 1 + 4)/3 = 2  rstd = 1/sqrt(2 + 2) = 1/2
  // y = xhat = [-1/2 -1/2 1]
  const Values x{0, 0, 3};
  const auto saved = forward(Norm::Layer, 1, 3, x, {}, {}, 2);
  CHECK(saved == Forward{.y = {-0.5, -0.5, 1}, .mean = {1}, .rstd = {0.5}});

  // wdy = dy = [3 0 6]  c1 = (-3/2 + 0 + 6)/3 = 3/2  c2 = 9/3 = 3
  // dx = 1/2 [3 + 3/4 - 3,  0 + 3/4 - 3,  6 - 3/2 - 3] = [3/8 -9/8 3/4]
  const auto out = backward(Norm::Layer, 1, 3, Values{3, 0, 6}, x, {}, saved.mean, saved.rstd);
  CHECK(out == Backward{.dx = {0.375, -1.125, 0.75}, .dweight = {-1.5, 0, 6}, .dbias = {3, 0, 6}});
}

TEST_CASE("rms forward and backward give the numbers worked out by hand") {
  // eps = 6, x = [2 4]  mean(x²) = (4 + 16)/2 = 10  rstd = 1/sqrt(10 + 6) = 1/4  xhat = [1/2 1]
  // y = xhat · [2 4] + [1 1] = [2 5]
  const Values x{2, 4};
  const Values weight{2, 4};
  const auto saved = forward(Norm::Rms, 1, 2, x, weight, Values{1, 1}, 6);
  CHECK(saved == Forward{.y = {2, 5}, .mean = {}, .rstd = {0.25}});

  // dy = [1 2]  wdy = [2 8]  c1 = (2·1/2 + 8·1)/2 = 9/2, and no c2
  // dx = 1/4 [2 - 9/4,  8 - 9/2] = [-1/16 7/8]
  const auto out = backward(Norm::Rms, 1, 2, Values{1, 2}, x, weight, {}, saved.rstd);
  CHECK(out == Backward{.dx = {-0.0625, 0.875}, .dweight = {0.5, 2}, .dbias = {1, 2}});
}

TEST_CASE("backward uses the mean and rstd that it is given, right or wrong") {
  // The mean of x is 2, but the caller says mean = 1 and rstd = 2: xhat = 2 (x - 1) = [0 4].
  // wdy = dy = [1 2]  c1 = (0 + 8)/2 = 4  c2 = 3/2
  // dx = 2 [1 - 0 - 3/2,  2 - 16 - 3/2] = [-1 -31]
  const auto out =
      backward(Norm::Layer, 1, 2, Values{1, 2}, Values{1, 3}, {}, Values{1}, Values{2});
  CHECK(out == Backward{.dx = {-1, -31}, .dweight = {0, 8}, .dbias = {1, 2}});
}

TEST_CASE("a gradient from y gives the numbers worked out by hand") {
  // The layer problem above, of which y = [9 22] and [11 18] and rstd = [1/2 1/2] were kept.
  // y - b = [-1 2] and [1 -2], and xhat = [-1/2 1/2] and [1/2 -1/2] again.
  const auto out = backward_from_y(Norm::Layer, 2, 2, Values{1, 3, 2, -1}, Values{9, 22, 11, 18},
                                   Values{2, 4}, Values{10, 20}, Values{0.5, 0.5}, 1);
  CHECK(out == Backward{.dx = {-1.875, 1.875, 1.5, -1.5}, .dweight = {0.5, 2}, .dbias = {3, 2}});

  // The rms problem, with bias [1 1], y = [2 5] and rstd = 1/4.
  const auto rms = backward_from_y(Norm::Rms, 1, 2, Values{1, 2}, Values{2, 5}, Values{2, 4},
                                   Values{1, 1}, Values{0.25}, 1);
  CHECK(rms == Backward{.dx = {-0.0625, 0.875}, .dweight = {0.5, 2}, .dbias = {1, 2}});
}

TEST_CASE("a gradient from y divides by weights clamped away from zero, and only in xhat") {
  CHECK(clamp_by_magnitude(3, 0.5) == 3);
  CHECK(clamp_by_magnitude(-3, 0.5) == -3);
  CHECK(clamp_by_magnitude(0.25, 0.5) == 0.5);
  CHECK(clamp_by_magnitude(-0.25, 0.5) == -0.5);
  CHECK(clamp_by_magnitude(0, 0.5) == 0.5);
  CHECK(std::isnan(clamp_by_magnitude(NAN, 0.5)));

  // eps = 1/2, w = [1/4 -1/4], b = [1 1], y = [2 2], rstd = 2, dy = [1 2]
  // y - b = [1 1]  xhat = [1/(1/2) 1/(-1/2)] = [2 -2], where a division by w would give [4 -4]
  // wdy = [1/4 -1/2]  c2 = -1/8, c1 = (1·1 + 2·1)/2 = 3/2: neither has seen the clamp
  // dx = 2 [1/4 + 1/8 - 3, -1/2 + 1/8 + 3] = [-21/4 21/4]
  // dw = [1·2, 2·-2] = [2 -4]
  const auto out = backward_from_y(Norm::Layer, 1, 2, Values{1, 2}, Values{2, 2},
                                   Values{0.25, -0.25}, Values{1, 1}, Values{2}, 0.5);
  CHECK(out == Backward{.dx = {-5.25, 5.25}, .dweight = {2, -4}, .dbias = {1, 2}});

  // eps = 0, w = [0 1], b = [1 1], y = [1 3]: xhat = [0 2]
  // wdy = [0 2]  c2 = 1, c1 = (1·0 + 2·2)/2 = 2  dx = 2 [0 - 1 - 0, 2 - 1 - 4] = [-2 -6]
  const auto without_clamp = backward_from_y(Norm::Layer, 1, 2, Values{1, 2}, Values{1, 3},
                                             Values{0, 1}, Values{1, 1}, Values{2}, 0);
  CHECK(without_clamp.dx == Values{-2, -6});
  CHECK(without_clamp.dweight == Values{0, 4});
}

TEST_CASE("one column leaves layer with its bias and no gradient for x") {
  // x - mean = 0, whatever x is: xhat = 0, y = b, and dx = rstd (wdy - 0 - wdy) = 0.
  const Problem p = random_problem(Norm::Layer, 5, 1, 1e-5);
  CHECK(run_forward(p).y == Values(5, p.bias[0]));
  CHECK(run_backward(p).dx == Values(5, 0.0));
  CHECK(run_backward(p).dweight == Values{0});
}

TEST_CASE("no rows give empty outputs and zero dweight and dbias") {
  for (const Norm norm : kNorms) {
    const Problem p = random_problem(norm, 0, 3, 1e-5);
    CHECK(run_forward(p) == Forward{});
    CHECK(run_backward(p) == Backward{.dweight = {0, 0, 0}, .dbias = {0, 0, 0}});
  }
}

// ------------------------------------------------------------------------------- properties
//
// Tolerances: a sum of 64 terms of size about 1 carries an error of some 64 roundings, 64 · 1.1e-16
// = 7e-15 at the worst. 1e-12 leaves room, and is far below what any wrong term would cause.

TEST_CASE(
    "rows of xhat have mean square s / (s + eps): of the variance, or of an rms mean square") {
  for (const Norm norm : kNorms) {
    for (const std::int64_t cols : {1, 2, 3, 17, 64}) {
      for (const double eps : {1e-12, 1e-5, 0.5, 100.0}) {
        CAPTURE(cols);
        CAPTURE(eps);
        const Problem p = random_problem(norm, 5, cols, eps, false, false);
        const auto out = run_forward(p);
        for (std::int64_t row = 0; row < p.rows; ++row) {
          const auto x = row_of(p.x, row, cols);
          const auto xhat = row_of(out.y, row, cols);
          const double mean = norm == Norm::Layer ? mean_of(x) : 0;
          double square = 0;
          for (const double value : x) square += (value - mean) * (value - mean) / cols;
          CHECK(mean_of_products(xhat, xhat) ==
                doctest::Approx(square / (square + eps)).epsilon(1e-12));
          if (norm == Norm::Rms) continue;
          CHECK(std::abs(out.mean[row] - mean) < 1e-12);
          // The mean's last bit counts rstd times in xhat, which is large where var + eps is small.
          CHECK(std::abs(mean_of(xhat)) < 1e-12 + 8 * kUnitRoundoff * out.rstd[row]);
        }
      }
    }
  }
}

TEST_CASE("layer does not see a shift of x, and rms does") {
  for (const Norm norm : kNorms) {
    const Problem p = random_problem(norm, 5, 17, 1e-5);
    Problem shifted = p;
    for (double& value : shifted.x) value += 3;
    const double forward_change = largest_difference(run_forward(p).y, run_forward(shifted).y);
    const double backward_change = largest_difference(run_backward(p).dx, run_backward(shifted).dx);
    if (norm == Norm::Layer) {
      CHECK(forward_change < 1e-12);
      CHECK(backward_change < 1e-12);
    } else {
      CHECK(forward_change > 0.1);
      CHECK(backward_change > 0.1);
    }
  }
}

TEST_CASE("scaling x by s and eps by s squared leaves y alone and divides dx by s") {
  for (const Norm norm : kNorms) {
    const Problem p = random_problem(norm, 5, 17, 0.5);
    Problem scaled = p;
    scaled.eps *= 8 * 8;
    for (double& value : scaled.x) value *= 8;  // a power of two, so nothing is rounded anew
    Values dx_times_8 = run_backward(scaled).dx;
    for (double& value : dx_times_8) value *= 8;
    CHECK(run_forward(scaled).y == run_forward(p).y);
    CHECK(dx_times_8 == run_backward(p).dx);
  }
}

TEST_CASE("a large common offset in x does not spoil the variance") {
  // mean(x²) - mean², the one-pass formula, subtracts two numbers near 1e16 here, where doubles lie
  // 2 apart, and cannot come out at 2/3.
  const auto out = forward(Norm::Layer, 1, 3, Values{1e8 - 1, 1e8, 1e8 + 1}, {}, {}, 1e-5);
  CHECK(out.mean == Values{1e8});
  CHECK(out.rstd[0] == doctest::Approx(1 / std::sqrt(2.0 / 3 + 1e-5)).epsilon(1e-14));
}

TEST_CASE("a layer dx is orthogonal to the row of ones") {
  // Σ dx = N rstd (c2 - c1 · mean(xhat) - c2) = 0, since mean(xhat) = 0, for every eps.
  for (const std::int64_t cols : {1, 2, 3, 17, 64}) {
    for (const double eps : {1e-5, 0.5}) {
      const Problem p = random_problem(Norm::Layer, 5, cols, eps);
      const auto dx = run_backward(p).dx;
      const auto rstd = run_forward(p).rstd;
      for (std::int64_t row = 0; row < p.rows; ++row) {
        CHECK(std::abs(mean_of(row_of(dx, row, cols))) < 1e-12 * rstd[row]);
      }
    }
  }
}

TEST_CASE("dx loses its part along xhat as eps goes to zero") {
  // mean(dx · xhat) = rstd (c1 - c1 mean(xhat²) - c2 mean(xhat)), and mean(xhat²) = 1 - eps rstd²:
  //
  //   mean(dx · xhat) = rstd · c1 · eps · rstd²
  //
  // That is zero in the limit, and an equation to check at every eps before it.
  for (const Norm norm : kNorms) {
    for (const double eps : {1e-12, 1e-5, 0.5, 100.0}) {
      const std::int64_t cols = 17;
      Problem p = random_problem(norm, 5, cols, eps, false, false);  // y = xhat, wdy = dy
      const auto saved = run_forward(p);
      const auto dx = run_backward(p).dx;
      for (std::int64_t row = 0; row < p.rows; ++row) {
        const auto xhat = row_of(saved.y, row, cols);
        const double rstd = saved.rstd[row];
        const double c1 = mean_of_products(row_of(p.dy, row, cols), xhat);
        const double along_xhat = mean_of_products(row_of(dx, row, cols), xhat);
        CHECK(std::abs(along_xhat - rstd * c1 * eps * rstd * rstd) < 1e-12);
        if (eps == 1e-12) CHECK(std::abs(along_xhat) < 1e-10);
      }
    }
  }
}

TEST_CASE("an absent weight means ones and an absent bias means zeros") {
  for (const Norm norm : kNorms) {
    const Problem absent = random_problem(norm, 5, 17, 1e-5, false, false);
    Problem present = absent;
    present.weight.assign(17, 1.0);
    present.bias.assign(17, 0.0);
    CHECK(run_forward(absent) == run_forward(present));
    CHECK(run_backward(absent) == run_backward(present));
  }
}

TEST_CASE("chunks of rows give the results of the whole") {
  // 301 rows are more than the groups that backward sums in, and are no multiple of anything.
  for (const Norm norm : kNorms) {
    const Problem whole = random_problem(norm, 301, 3, 1e-5);
    const auto saved = run_forward(whole);
    const auto expected = run_backward(whole);

    Values y, dx, dweight(3, 0.0), dbias(3, 0.0);
    for (std::int64_t first = 0; first < whole.rows; first += 50) {
      const auto part = [&](const Values& matrix) {
        const std::int64_t end = std::min(first + 50, whole.rows) * 3;
        return Values(matrix.begin() + first * 3, matrix.begin() + end);
      };
      Problem chunk = whole;
      chunk.x = part(whole.x);
      chunk.dy = part(whole.dy);
      chunk.rows = std::ssize(chunk.x) / 3;
      const Values chunk_y = run_forward(chunk).y;
      const auto grad = run_backward(chunk);
      y.insert(y.end(), chunk_y.begin(), chunk_y.end());
      dx.insert(dx.end(), grad.dx.begin(), grad.dx.end());
      for (int j = 0; j < 3; ++j) dweight[j] += grad.dweight[j];
      for (int j = 0; j < 3; ++j) dbias[j] += grad.dbias[j];
    }
    CHECK(y == saved.y);
    CHECK(dx == expected.dx);
    CHECK(largest_difference(dweight, expected.dweight) < 1e-12);
    CHECK(largest_difference(dbias, expected.dbias) < 1e-12);
  }
}

TEST_CASE("any number of threads gives the same bits") {
  for (const Norm norm : kNorms) {
    const Problem p = random_problem(norm, 301, 17, 1e-5);
    const auto saved = run_forward(p);
    check_any_number_of_threads([&] { return run_forward(p); });
    check_any_number_of_threads([&] { return run_backward(p); });
    check_any_number_of_threads([&] {
      return backward_from_y(norm, p.rows, p.cols, p.dy, saved.y, p.weight, p.bias, saved.rstd, 1);
    });
  }
}

TEST_CASE("a gradient from an exact y is the gradient from x") {
  // |w| between 1 and 2 is above eps and divides nothing by a small number. An absent weight is 1,
  // and not clamped, however large eps is.
  for (const Norm norm : kNorms) {
    for (const double eps : {1e-12, 1e-5, 0.5, 100.0}) {
      for (const bool has_weight : {true, false}) {
        for (const bool has_bias : {true, false}) {
          if (has_weight && eps > 1) continue;
          Problem p = random_problem(norm, 37, 17, eps, has_weight, has_bias);
          for (double& w : p.weight) w = std::copysign(1 + std::abs(w) / 2, w);
          const auto saved = run_forward(p);
          const auto expected = run_backward(p);
          const auto out = backward_from_y(norm, p.rows, p.cols, p.dy, saved.y, p.weight, p.bias,
                                           saved.rstd, eps);
          const double largest_rstd = *std::max_element(saved.rstd.begin(), saved.rstd.end());
          CHECK(largest_difference(out.dx, expected.dx) < 1e-12 * largest_rstd);
          CHECK(largest_difference(out.dweight, expected.dweight) < 1e-12);
          CHECK(out.dbias == expected.dbias);
        }
      }
    }
  }
}

TEST_CASE("a rounded y costs a gradient from y what the rounding is of the weight") {
  // y is off by delta in one element. Of dweight that is dy · delta / w; of dx, by the formula
  // rstd (wdy - xhat c1 - c2), rstd times xhat's part -delta / w · c1 in that column, and c1's part
  // -xhat · dy delta / N in every column of the row.
  const double delta = 1e-6;
  for (const Norm norm : kNorms) {
    for (const double small : {1.0, 1e-3}) {
      const std::int64_t cols = 17, row = 2, j = 5, i = row * cols + j;
      Problem p = random_problem(norm, 4, cols, 1e-5);
      for (double& w : p.weight) w = std::copysign(1 + std::abs(w) / 2, w) * small;
      const auto saved = run_forward(p);
      const auto gradient = [&](const Values& y) {
        return backward_from_y(norm, p.rows, cols, p.dy, y, p.weight, p.bias, saved.rstd, p.eps);
      };
      Values rounded = saved.y;
      rounded[i] += delta;
      const auto exact = gradient(saved.y);
      const auto out = gradient(rounded);

      CHECK(out.dweight[j] - exact.dweight[j] ==
            doctest::Approx(p.dy[i] * delta / p.weight[j]).epsilon(1e-6));
      double c1 = 0;
      for (std::int64_t k = 0; k < cols; ++k)
        c1 += p.dy[row * cols + k] * (saved.y[row * cols + k] - p.bias[k]) / cols;
      const double rstd = saved.rstd[row], c1_off = p.dy[i] * delta / cols;
      for (std::int64_t k = 0; k < cols; ++k) {
        const double xhat = (saved.y[row * cols + k] - p.bias[k]) / p.weight[k];
        const double xhat_off = k == j ? delta / p.weight[k] : 0;
        const double expected = -rstd * (xhat_off * c1 + xhat * c1_off + xhat_off * c1_off);
        CHECK(std::abs(out.dx[row * cols + k] - exact.dx[row * cols + k] - expected) < 1e-13);
      }
    }
  }
}

// -------------------------------------------------------------------------------- bad input

TEST_CASE("forward names the argument that it cannot take, what it got and what it needs") {
  const Values none, two(2), three(3), six(6);
  const auto refuses = [](const char* sentence, const auto&... arguments) {
    CHECK_THROWS_WITH_AS(forward(Norm::Layer, arguments...), sentence, std::invalid_argument);
  };
  refuses("rows is -1, but it must be 0 or more.", -1, 3, none, none, none, 1);
  refuses("cols is 0, but it must be 1 or more.", 2, 0, none, none, none, 1);
  refuses("rows is 4611686018427387904, but rows × cols with cols = 4 must fit in 63 bits.",
          std::int64_t{1} << 62, 4, none, none, none, 1);
  refuses("x has 0 values, but it must have rows × cols = 9223372036854775806.",
          std::int64_t{3074457345618258602}, 3, none, none, none, 1);  // the last that fits
  refuses("x has 3 values, but it must have rows × cols = 6.", 2, 3, three, none, none, 1);
  refuses("weight has 2 values, but it must have cols = 3, or none.", 2, 3, six, two, none, 1);
  refuses("bias has 6 values, but it must have cols = 3, or none.", 2, 3, six, three, six, 1);
  refuses("eps is 0, but it must be a finite number above 0.", 2, 3, six, none, none, 0);
  refuses("eps is -0.5, but it must be a finite number above 0.", 2, 3, six, none, none, -0.5);
  refuses("eps is nan, but it must be a finite number above 0.", 2, 3, six, none, none, NAN);
  refuses("eps is inf, but it must be a finite number above 0.", 2, 3, six, none, none, HUGE_VAL);
}

TEST_CASE("backward names the argument that it cannot take, what it got and what it needs") {
  const Values none, two(2), three(3), six(6);
  const auto refuses = [](const char* sentence, Norm norm, const auto&... arguments) {
    CHECK_THROWS_WITH_AS(backward(norm, arguments...), sentence, std::invalid_argument);
  };
  const Norm layer = Norm::Layer;
  const Norm rms = Norm::Rms;
  refuses("rows is -1, but it must be 0 or more.", layer, -1, 3, none, none, none, none, none);
  refuses("cols is -3, but it must be 1 or more.", layer, 2, -3, none, none, none, none, none);
  refuses("rows is 4611686018427387904, but rows × cols with cols = 4 must fit in 63 bits.", rms,
          std::int64_t{1} << 62, 4, none, none, none, none, none);
  refuses("dy has 0 values, but it must have rows × cols = 6.",  //
          layer, 2, 3, none, six, none, two, two);
  refuses("x has 3 values, but it must have rows × cols = 6.",  //
          layer, 2, 3, six, three, none, two, two);
  refuses("weight has 6 values, but it must have cols = 3, or none.",  //
          layer, 2, 3, six, six, six, two, two);
  refuses("mean has 0 values, but it must have rows = 2.",  //
          layer, 2, 3, six, six, none, none, two);
  refuses("mean has 2 values, but it must be empty for Rms, which takes no mean.",  //
          rms, 2, 3, six, six, none, two, two);
  refuses("rstd has 3 values, but it must have rows = 2.",  //
          layer, 2, 3, six, six, none, two, three);
}

TEST_CASE("backward_from_y names the argument that it cannot take, what it got and what it needs") {
  const Values none, two(2), three(3), six(6);
  const auto refuses = [](const char* sentence, const auto&... arguments) {
    CHECK_THROWS_WITH_AS(backward_from_y(Norm::Layer, arguments...), sentence,
                         std::invalid_argument);
  };
  refuses("cols is 0, but it must be 1 or more.", 2, 0, none, none, none, none, none, 1);
  refuses("dy has 3 values, but it must have rows × cols = 6.",  //
          2, 3, three, six, none, none, two, 1);
  refuses("y has 3 values, but it must have rows × cols = 6.",  //
          2, 3, six, three, none, none, two, 1);
  refuses("weight has 2 values, but it must have cols = 3, or none.",  //
          2, 3, six, six, two, none, two, 1);
  refuses("bias has 6 values, but it must have cols = 3, or none.",  //
          2, 3, six, six, three, six, two, 1);
  refuses("rstd has 3 values, but it must have rows = 2.",  //
          2, 3, six, six, none, none, three, 1);
  refuses("eps is -1, but it must be a finite number, 0 or more.",  //
          2, 3, six, six, none, none, two, -1);
}
