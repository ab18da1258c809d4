// Outputs against the reference, two ways: element by element, and as a whole.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "common/harness/tensors.h"

namespace lnc {

/// How one output of a chapter compares with the double-precision reference.
///
/// 1. Element by element: |out - ref| <= bound, where the bound adds up what rounding may do:
///    half an ulp of the output's dtype, and for the float arithmetic before it
///    (4 sqrt(n) + 8) 2^-24 times the sum of the absolute values of the terms that form the
///    element; n is the number of terms in the longest sum (cols, for dweight and dbias rows).
///    sqrt(n) with a factor of 4 is what a sum of n terms exceeds with a probability below 1e-3 in
///    any order (Higham and Mary 2019, "A new approach to probabilistic rounding error analysis");
///    8 covers the few operations outside of the sum.
/// 2. As a whole: ||out - ref|| / ||ref|| <= limit, which is 1e-5 for float, 6e-4 for half and 4e-3
///    for bfloat16; or 4 · 2^-24 · ||terms|| / ||ref|| where that is more: where the terms cancel
///    to less than a fortieth (a row of one or two columns), no float kernel can keep the digits.
///    Numbers so small that their type runs out of exponents add half the distance between two of
///    its smallest: sqrt(count) 2^-25 / ||ref|| for half.
///
/// A fused forward pass normalises the sum as it is stored. So the reference of y, mean and rstd is
/// the norm of the sum that the kernel stored, which itself is held to the exact sum. Where none is
/// stored it is the rounded exact sum. Should float arithmetic be able to round an element to the
/// next number of its type, bound and limit grow by what that would change.
///
/// What has no rounding, a copy or a dropout mask, must be the reference bit for bit: there the
/// bound and the limit are 0.
struct OutputCheck {
  std::string output;  ///< "y", "mean", "rstd", "dx", "dweight", "dbias", …
  double max_abs_error = 0.0;
  double relative_error = 0.0;                 ///< in the Euclidean norm, over the whole output
  double limit = 0.0;                          ///< of relative_error; infinite: for information
  double worst_of_bound = 0.0;                 ///< largest |out - ref| / bound; at most 1 passes
  std::int64_t worst_index = 0;                ///< the element where that is, row-major
  std::string place(std::int64_t cols) const;  ///< worst_index in words: "row 3, column 17"

  bool has_limit() const { return limit < std::numeric_limits<double>::infinity(); }
  bool passed() const { return relative_error <= limit && worst_of_bound <= 1.0; }
};

/// The outputs of a pass as they are in device memory now, compared with the reference; waits for
/// the launches so far. An output without elements passes. Gradients from y are held to the
/// reference's from the same y; "dx from x" and "dweight from x" say, without a limit, how far they
/// are from the gradients from x.
std::vector<OutputCheck> check(const Tensors& tensors);

}  // namespace lnc
