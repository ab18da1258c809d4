// Compares outputs with the reference in two ways: element by element, and as a whole.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "common/harness/tensors.h"

namespace lnc {

/// How one output of a chapter compares with the double-precision reference.
///
/// 1. Element by element: |out - ref| <= bound. The bound adds up the possible rounding errors:
///    half an ulp of the output's dtype, and for the float arithmetic before it
///    (4 sqrt(n) + 8) 2^-24 times the sum of the absolute values of the terms that form the
///    element; n is the number of terms in the longest sum (cols; for dweight and dbias, rows).
///    In these units the error of a sum of n terms, in any order, exceeds 4 sqrt(n) with a
///    probability below 1e-3 (Higham and Mary 2019, "A new approach to probabilistic rounding
///    error analysis"); 8 covers the few operations outside the sum.
/// 2. As a whole: ||out - ref|| / ||ref|| <= limit, which is 1e-5 for float, 6e-4 for half and 4e-3
///    for bfloat16, or 4 · 2^-24 · ||terms|| / ||ref|| if that is more: when the terms cancel to
///    less than a fortieth (a row of one or two columns), no float kernel can keep the digits.
///    To allow for subnormal numbers, the limit adds half the spacing of the type's smallest
///    numbers: sqrt(count) 2^-25 / ||ref|| for half.
///
/// A fused forward pass normalises the sum as stored. So the reference for y, mean and rstd is the
/// norm of the sum that the kernel stored, and that sum is compared with the exact one. A pass that
/// does not store the sum is compared with the norm of the rounded exact sum; if float arithmetic
/// may round one of its elements to the adjacent number of its type, bound and limit grow by what
/// that would change.
///
/// An output without rounding, a copy or a dropout mask, must equal the reference bit for bit: its
/// bound and its limit are 0.
struct OutputCheck {
  std::string output;  ///< "y", "mean", "rstd", "dx", "dweight", "dbias", …
  double max_abs_error = 0.0;
  double relative_error = 0.0;                 ///< in the Euclidean norm, over the whole output
  double limit = 0.0;                          ///< of relative_error; infinite: not judged
  double worst_of_bound = 0.0;                 ///< largest |out - ref| / bound; passes up to 1
  std::int64_t worst_index = 0;                ///< the element with that error, row-major
  std::string place(std::int64_t cols) const;  ///< worst_index in words: "row 3, column 17"

  bool has_limit() const { return limit < std::numeric_limits<double>::infinity(); }
  bool passed() const { return relative_error <= limit && worst_of_bound <= 1.0; }
};

/// Waits for all earlier launches, then compares the outputs in device memory with the reference.
/// An output without elements passes. Gradients from y are compared with the reference's gradients
/// from the same y; "dx from x" and "dweight from x" report, without a limit, their distance from
/// the gradients from x.
std::vector<OutputCheck> check(const Tensors& tensors);

}  // namespace lnc
