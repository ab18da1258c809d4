// The norm and what a transformer block does just before it, forward and backward, in one function
// each on the CPU, in double precision: the reference for chapters that fuse these parts into one
// kernel.
//
// The order of the parts follows FlashAttention's Triton layer_norm. Two points differ. A rowscale
// together with a second input is refused there, here they work together. The sum is rounded for
// its store only there, here for the norm too.
//
// As in layer_norm.h: matrices are row-major and contiguous, rows = 0 is a valid, empty problem,
// rows are independent, and the results are bitwise the same for any number of OpenMP threads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "reference_cpu/layer_norm.h"

namespace reference {

// An empty span is an absent part. An absent part costs no operation, so with all of them absent
// y, mean and rstd are those of forward(), bit for bit.
struct FusedForwardInput {
  Norm norm = Norm::Layer;
  std::int64_t rows = 0;
  std::int64_t cols = 1;

  std::span<const double> x = {};          // [rows, cols]; never absent
  std::span<const double> rowscale = {};   // [rows], a factor for each row of x
  std::span<const double> x1 = {};         // [rows, cols], the second input
  std::span<const double> rowscale1 = {};  // [rows], a factor for each row of x1
  std::span<const double> residual = {};   // [rows, cols]
  std::span<const double> weight = {};     // [cols]
  std::span<const double> bias = {};       // [cols]
  std::span<const double> weight1 = {};    // [cols], of the second output y1
  std::span<const double> bias1 = {};      // [cols], of y1
  double eps = 1e-5;                       // finite and > 0, in the units of sum²

  double (*rounded)(double) = nullptr;  // rounds an element of sum to its type; null: no rounding

  float dropout = 0;                           // p, the probability of dropping, 0 <= p < 1
  std::span<const std::uint32_t> seeds = {};   // [rows]; absent: x has no dropout, whatever p is
  std::span<const std::uint32_t> seeds1 = {};  // [rows]; absent: x1 has none
};

struct FusedForward {
  std::vector<double> y = {};     // [rows, cols], with weight and bias
  std::vector<double> y1 = {};    // [rows, cols], with weight1 and bias1; empty without both
  std::vector<double> sum = {};   // [rows, cols], what was normalised: rounded
  std::vector<double> mean = {};  // [rows], of sum; empty for Norm::Rms
  std::vector<double> rstd = {};  // [rows], of sum
  std::vector<std::uint8_t> mask =
      {};  // [rows, cols], 1 where x was kept, else 0; empty without seeds
  std::vector<std::uint8_t> mask1 = {};  // [rows, cols], the same for x1; empty without seeds1

  friend bool operator==(const FusedForward&, const FusedForward&) = default;
};

//   sum = rounded(dropout(x · rowscale) + dropout1(x1 · rowscale1) + residual)
//   y   = norm(sum) · weight  + bias
//   y1  = norm(sum) · weight1 + bias1
//
// dropout keeps an element where u > p and then multiplies it by 1 / (1 - p); a dropped element
// becomes 0, even if NaN or infinite. u is triton_uniform(seeds[row], column) of philox.h, 7
// rounds, and both sides of u > p are floats, so the masks are those of a kernel, bit for bit. A p
// of 0 is not a special case: u itself can be 0, for two words in 2³².
//
// The norm takes the sum as it is stored, rounded once to the type of its tensor, whether or not
// that tensor is requested. So the result is that of an addition and then a norm, and the backward
// pass, which starts from the stored sum, is the gradient of just what was computed. With the
// statistics of the unrounded sum, the deviations in a row of equal elements would be its rounding
// error, magnified by rstd, which is 1 / sqrt(eps) there.
//
// Throws std::invalid_argument, naming the argument, where rows < 0, cols < 1, cols > 2³² with
// seeds (the column is a 32-bit counter), a span has another size than stated, rowscale1 or seeds1
// come without x1, eps is not a finite number above zero, or dropout is outside [0, 1).
FusedForward fused_forward(const FusedForwardInput& in);

// What the backward pass is given: the gradients of the outputs, and what forward saved. Again, an
// empty span is an absent part.
struct FusedBackwardInput {
  Norm norm = Norm::Layer;
  std::int64_t rows = 0;
  std::int64_t cols = 1;

  std::span<const double> dy = {};      // [rows, cols], the gradient of y; never absent
  std::span<const double> dy1 = {};     // [rows, cols], the gradient of y1
  std::span<const double> dsum = {};    // [rows, cols], the gradient of sum where that is an output
  std::span<const double> sum = {};     // [rows, cols], as saved: rounded or not; never absent
  std::span<const double> mean = {};    // [rows], as saved; empty for Norm::Rms
  std::span<const double> rstd = {};    // [rows], as saved
  std::span<const double> weight = {};  // [cols]
  std::span<const double> weight1 = {};    // [cols]; only with dy1
  std::span<const double> rowscale = {};   // [rows]
  std::span<const double> rowscale1 = {};  // [rows]; only with a second input

  bool second_input = false;                   // whether there was an x1
  float dropout = 0;                           // p, as in forward
  std::span<const std::uint32_t> seeds = {};   // [rows], as in forward
  std::span<const std::uint32_t> seeds1 = {};  // [rows]; only with a second input
};

struct FusedBackward {
  std::vector<double> dx = {};           // [rows, cols]
  std::vector<double> dx1 = {};          // [rows, cols]; empty without a second input
  std::vector<double> dresidual = {};    // [rows, cols], the whole gradient of sum
  std::vector<double> dweight = {};      // [cols]
  std::vector<double> dbias = {};        // [cols]
  std::vector<double> dweight1 = {};     // [cols]; empty without dy1
  std::vector<double> dbias1 = {};       // [cols]; empty without dy1
  std::vector<std::uint8_t> mask = {};   // [rows, cols], drawn again; empty without seeds
  std::vector<std::uint8_t> mask1 = {};  // [rows, cols], the same for x1; empty without seeds1

  friend bool operator==(const FusedBackward&, const FusedBackward&) = default;
};

// The gradients of a scalar loss with respect to x, x1, residual and the four parameters, given dy,
// dy1 and dsum, its gradients with respect to y, y1 and sum. They are derived in
// fused_layer_norm.cpp. dweight and dbias are always computed, as backward() does, and dresidual
// too, whether or not there was a residual. There is no gradient of the rowscales: they are
// constants here, as masks are.
//
// sum, mean and rstd are used as given, so the result holds for exactly the numbers that a kernel
// was given. With dy alone it is backward(), bit for bit.
//
// Throws std::invalid_argument as fused_forward() and backward() do; and where weight1 comes
// without dy1, or rowscale1 or seeds1 without a second input.
FusedBackward fused_backward(const FusedBackwardInput& in);

}  // namespace reference
