#include "reference_cpu/fused_layer_norm.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "reference_cpu/philox.h"

namespace reference {
namespace {

template <typename... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::ostringstream sentence;
  (sentence << ... << parts);
  throw std::invalid_argument(sentence.str());
}

template <typename T>
void require_size_or_empty(const char* name, std::span<const T> values, std::int64_t size,
                           const char* size_name) {
  if (values.empty() || std::ssize(values) == size) return;
  fail(name, " has ", values.size(), " values, but it must have ", size_name, " = ", size,
       ", or none.");
}

// Checks what both directions have.
template <typename Input>
void require_valid_parts(const Input& in) {
  if (in.rows < 0) fail("rows is ", in.rows, ", but it must be 0 or more.");
  if (in.cols < 1) fail("cols is ", in.cols, ", but it must be 1 or more.");
  if (in.rows > std::numeric_limits<std::int64_t>::max() / in.cols) {
    fail("rows is ", in.rows, ", but rows × cols with cols = ", in.cols, " must fit in 63 bits.");
  }
  constexpr std::int64_t kCounters = std::int64_t{1} << 32;
  if (in.cols > kCounters && !(in.seeds.empty() && in.seeds1.empty())) {
    fail("cols is ", in.cols, ", but with dropout it must be ", kCounters, " or less.");
  }
  require_size_or_empty("rowscale", in.rowscale, in.rows, "rows");
  require_size_or_empty("seeds", in.seeds, in.rows, "rows");
  require_size_or_empty("rowscale1", in.rowscale1, in.rows, "rows");
  require_size_or_empty("seeds1", in.seeds1, in.rows, "rows");
  require_size_or_empty("weight", in.weight, in.cols, "cols");
  require_size_or_empty("weight1", in.weight1, in.cols, "cols");
  if (!(in.dropout >= 0 && in.dropout < 1)) {
    fail("dropout is ", in.dropout, ", but it must be at least 0 and below 1.");
  }
}

void require_valid(const FusedForwardInput& in) {
  require_valid_parts(in);
  const std::int64_t size = in.rows * in.cols;
  if (std::ssize(in.x) != size) {
    fail("x has ", in.x.size(), " values, but it must have rows × cols = ", size, ".");
  }
  require_size_or_empty("x1", in.x1, size, "rows × cols");
  if (in.x1.empty() && !in.rowscale1.empty()) fail("rowscale1 is given, but x1 is not.");
  if (in.x1.empty() && !in.seeds1.empty()) fail("seeds1 is given, but x1 is not.");
  require_size_or_empty("residual", in.residual, size, "rows × cols");
  require_size_or_empty("bias", in.bias, in.cols, "cols");
  require_size_or_empty("bias1", in.bias1, in.cols, "cols");
  if (!(in.eps > 0) || !std::isfinite(in.eps)) {
    fail("eps is ", in.eps, ", but it must be a finite number above 0.");
  }
}

// backward() checks the others.
void require_valid(const FusedBackwardInput& in) {
  require_valid_parts(in);
  if (std::ssize(in.sum) != in.rows * in.cols) {
    fail("sum has ", in.sum.size(), " values, but it must have rows × cols = ", in.rows * in.cols,
         ".");
  }
  require_size_or_empty("dy1", in.dy1, in.rows * in.cols, "rows × cols");
  require_size_or_empty("dsum", in.dsum, in.rows * in.cols, "rows × cols");
  if (in.dy1.empty() && !in.weight1.empty() && in.rows > 0) {
    fail("weight1 is given, but dy1 is not.");
  }
  if (!in.second_input && !in.rowscale1.empty()) {
    fail("rowscale1 is given, but there is no second input.");
  }
  if (!in.second_input && !in.seeds1.empty()) {
    fail("seeds1 is given, but there is no second input.");
  }
}

void multiply(double* row, std::int64_t cols, double factor) {
  for (std::int64_t j = 0; j < cols; ++j) row[j] *= factor;
}

void add(double* row, std::int64_t cols, const double* addend) {
  for (std::int64_t j = 0; j < cols; ++j) row[j] += addend[j];
}

void drop(double* row, std::int64_t cols, std::uint32_t seed, float p, std::uint8_t* mask) {
  const double scale = 1 / (1 - static_cast<double>(p));  // keeps the expected value
  for (std::int64_t j = 0; j < cols; ++j) {
    const bool keep = triton_uniform(seed, static_cast<std::uint32_t>(j)) > p;
    row[j] = keep ? row[j] * scale : 0;
    mask[j] = keep;
  }
}

}  // namespace

// The parts come one after the other, each a walk over the row, as a network without fusion would
// run them. A kernel does all of it to one element while it sits in a register.
FusedForward fused_forward(const FusedForwardInput& in) {
  require_valid(in);
  const std::int64_t cols = in.cols;
  const std::int64_t size = in.rows * cols;

  FusedForward out;
  out.sum.assign(in.x.begin(), in.x.end());
  out.mask.resize(in.seeds.empty() ? 0 : size);
  out.mask1.resize(in.seeds1.empty() ? 0 : size);
  std::vector<double> second(in.x1.begin(), in.x1.end());

#pragma omp parallel for schedule(static)
  for (std::int64_t row = 0; row < in.rows; ++row) {
    const std::int64_t start = row * cols;
    double* const sum = out.sum.data() + start;
    if (!in.rowscale.empty()) multiply(sum, cols, in.rowscale[row]);
    if (!in.seeds.empty()) drop(sum, cols, in.seeds[row], in.dropout, out.mask.data() + start);

    if (!in.x1.empty()) {
      double* const x1 = second.data() + start;
      if (!in.rowscale1.empty()) multiply(x1, cols, in.rowscale1[row]);
      if (!in.seeds1.empty()) drop(x1, cols, in.seeds1[row], in.dropout, out.mask1.data() + start);
      add(sum, cols, x1);
    }

    if (!in.residual.empty()) add(sum, cols, in.residual.data() + start);
    if (in.rounded != nullptr) std::transform(sum, sum + cols, sum, in.rounded);
  }

  Forward normed = forward(in.norm, in.rows, cols, out.sum, in.weight, in.bias, in.eps);
  out.y = std::move(normed.y);
  out.mean = std::move(normed.mean);
  out.rstd = std::move(normed.rstd);
  if (!in.weight1.empty() || !in.bias1.empty()) {
    out.y1 = forward(in.norm, in.rows, cols, out.sum, in.weight1, in.bias1, in.eps).y;
  }
  return out;
}

// The loss L depends on sum along three paths, and the gradient is the total over them:
//
//   through y       backward() of dy, with weight: that is where layer_norm.cpp's proof ends
//   through y1      backward() of dy1, with weight1; xhat is the same
//   past the norm   dsum, where sum itself is an output
//
//   dresidual = backward(dy, weight).dx + backward(dy1, weight1).dx + dsum
//
// The residual is one of the addends of sum, ∂sum/∂residual = 1, hence the name. The others were
// multiplied on their way into the sum, by constants, so their gradients are multiplied by the same
// constants on the way back:
//
//   dx  = dresidual · rowscale  · mask  / (1 - p)
//   dx1 = dresidual · rowscale1 · mask1 / (1 - p)
//
// The masks follow from the seeds as in the forward pass: drop() is its own gradient.
//
// A kernel calls the norm's backward pass once: it is linear in weight · dy, so that
// weight · dy + weight1 · dy1 can take its place. Here they are two calls, and the two ways of
// adding up check each other.
FusedBackward fused_backward(const FusedBackwardInput& in) {
  require_valid(in);
  const std::int64_t cols = in.cols;
  const std::int64_t size = in.rows * cols;

  FusedBackward out;
  Backward normed = backward(in.norm, in.rows, cols, in.dy, in.sum, in.weight, in.mean, in.rstd);
  out.dresidual = std::move(normed.dx);
  out.dweight = std::move(normed.dweight);
  out.dbias = std::move(normed.dbias);
  if (!in.dy1.empty()) {
    normed = backward(in.norm, in.rows, cols, in.dy1, in.sum, in.weight1, in.mean, in.rstd);
    add(out.dresidual.data(), size, normed.dx.data());
    out.dweight1 = std::move(normed.dweight);
    out.dbias1 = std::move(normed.dbias);
  }
  if (!in.dsum.empty()) add(out.dresidual.data(), size, in.dsum.data());

  out.dx = out.dresidual;
  if (in.second_input) out.dx1 = out.dresidual;
  out.mask.resize(in.seeds.empty() ? 0 : size);
  out.mask1.resize(in.seeds1.empty() ? 0 : size);
#pragma omp parallel for schedule(static)
  for (std::int64_t row = 0; row < in.rows; ++row) {
    const std::int64_t start = row * cols;
    double* const dx = out.dx.data() + start;
    if (!in.rowscale.empty()) multiply(dx, cols, in.rowscale[row]);
    if (!in.seeds.empty()) drop(dx, cols, in.seeds[row], in.dropout, out.mask.data() + start);

    if (in.second_input) {
      double* const dx1 = out.dx1.data() + start;
      if (!in.rowscale1.empty()) multiply(dx1, cols, in.rowscale1[row]);
      if (!in.seeds1.empty()) drop(dx1, cols, in.seeds1[row], in.dropout, out.mask1.data() + start);
    }
  }
  return out;
}

}  // namespace reference
