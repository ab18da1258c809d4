// Layer normalisation and RMS normalisation on the CPU, forward and backward, in double precision:
// the reference that every chapter is checked against.
//
// Sources of the formulas:
//   layer  Ba, Kiros, Hinton 2016, "Layer Normalization", arXiv:1607.06450
//   rms    Zhang, Sennrich 2019, "Root Mean Square Layer Normalization", arXiv:1910.07467
// Both papers give the forward pass, without eps; eps is added under the root, as is common today.
// The backward pass is derived in layer_norm.cpp.
//
// Every matrix is row-major and contiguous, rows × cols; normalisation runs over the columns of a
// row. All values are plain numbers without a unit. rows = 0 is a valid, empty problem.
//
// Rows are independent of each other, so a large problem may be handed over in chunks of rows: y,
// mean, rstd and dx are those of the whole, and the dweight and dbias of the chunks add up.
//
// The results are bitwise the same for any number of OpenMP threads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace reference {

enum class Norm {
  Layer,  // xhat = (x - mean) / sqrt(var + eps)
  Rms,    // xhat = x / sqrt(mean(x²) + eps)
};

struct Forward {
  std::vector<double> y = {};     // [rows, cols]
  std::vector<double> mean = {};  // [rows]; empty for Norm::Rms
  std::vector<double> rstd =
      {};  // [rows]; 1 / sqrt(var + eps), or 1 / sqrt(mean(x²) + eps) for Rms

  friend bool operator==(const Forward&, const Forward&) = default;
};

// y = xhat · weight + bias, where xhat is the row x with its mean subtracted (Norm::Layer only) and
// scaled by rstd. var is the biased variance, the mean of (x - mean)². It is summed in a second
// pass, once the mean is known, so a large common offset in x does not cancel it away.
//
//   x       [rows, cols]
//   weight  [cols], or empty: as if all ones
//   bias    [cols], or empty: as if all zeros. The RMS paper has no bias; given one, Rms adds it.
//   eps     finite and > 0, in the units of x²
//
// Throws std::invalid_argument, naming the argument, where rows < 0, cols < 1, a span has another
// size than stated, or eps is not a finite number above zero.
Forward forward(Norm norm, std::int64_t rows, std::int64_t cols, std::span<const double> x,
                std::span<const double> weight, std::span<const double> bias, double eps);

struct Backward {
  std::vector<double> dx = {};       // [rows, cols]
  std::vector<double> dweight = {};  // [cols]; sum of dy · xhat over the rows
  std::vector<double> dbias = {};    // [cols]; sum of dy over the rows

  friend bool operator==(const Backward&, const Backward&) = default;
};

// The gradient of a scalar loss with respect to x, weight and bias, given dy, its gradient with
// respect to y.
//
//   dy      [rows, cols]
//   x       [rows, cols], as given to forward
//   weight  [cols], or empty: as if all ones
//   mean    [rows] for Norm::Layer, empty for Norm::Rms
//   rstd    [rows]
//
// mean and rstd are used as given, so the result holds for exactly the numbers that a kernel was
// given, rounded or not. dweight and dbias are always computed, whether or not forward had a weight
// or a bias; with rows = 0 they are zero.
//
// Throws std::invalid_argument, naming the argument, where rows < 0, cols < 1, or a span has
// another size than stated.
Backward backward(Norm norm, std::int64_t rows, std::int64_t cols, std::span<const double> dy,
                  std::span<const double> x, std::span<const double> weight,
                  std::span<const double> mean, std::span<const double> rstd);

// w, or the number with w's sign and the magnitude `least` if w is nearer to zero than that.
double clamp_by_magnitude(double w, double least);

// The same gradient from y in place of x and mean, as NVIDIA Apex's memory_efficient computes it:
//
//   xhat = (y - bias) / clamp_by_magnitude(weight, eps), or 0 where eps and the weight are 0
//
//   y       [rows, cols], as forward returned it, rounded or not
//   weight  [cols], or empty: as if all ones, and then nothing is clamped
//   bias    [cols], or empty: as if all zeros
//   eps     as given to forward; 0 clamps nothing
//
// The other arguments are those of backward. With an exact y and |weight| >= eps the result is that
// of backward, up to the rounding of double. A rounded y has errors that the division by a small
// weight magnifies, in dweight and in dx; dbias is free of them.
//
// Throws std::invalid_argument as backward does.
Backward backward_from_y(Norm norm, std::int64_t rows, std::int64_t cols,
                         std::span<const double> dy, std::span<const double> y,
                         std::span<const double> weight, std::span<const double> bias,
                         std::span<const double> rstd, double eps);

}  // namespace reference
