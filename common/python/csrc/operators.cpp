#include "common/python/csrc/operators.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "common/python/csrc/arguments.h"
#include "common/python/csrc/kernels.h"
#include "common/python/csrc/memory_overlap.h"
#include "common/python/csrc/words.h"

namespace layernorm_chapters {
namespace {

using Shape = at::IntArrayRef;

c10::SymIntArrayRef symbols(Shape shape) { return c10::fromIntArrayRefSlow(shape); }

/// @param cols the width of x's rows
Norm norm_of(const at::Tensor& x, Shape shape, double eps, bool rms, MaybeName chapter,
             bool batch_invariant) {
  TORCH_CHECK_VALUE(eps >= 0.0 && std::isfinite(static_cast<float>(eps)), "eps is ", words(eps),
                    "; it must be finite in float32, and 0 or more");
  std::int64_t cols = 1;
  for (const std::int64_t size : shape) cols *= size;
  return {x.numel() / cols, cols, eps, rms, text(chapter), batch_invariant};
}

/// The shape of `statistics`; the sizes may be symbols.
template <typename Sizes>
auto statistics_shape(const Sizes& sizes, std::size_t dims, bool rms) {
  using Size = typename Sizes::value_type;
  std::vector<Size> shape{Size(rms ? 1 : 2)};
  shape.insert(shape.end(), sizes.begin(), sizes.end() - static_cast<std::ptrdiff_t>(dims));
  return shape;
}

float* mean_in(const at::Tensor& statistics, const Norm& norm) {
  return norm.rms ? nullptr : statistics.data_ptr<float>();
}
float* rstd_in(const at::Tensor& statistics, const Norm& norm) {
  return statistics.data_ptr<float>() + (norm.rms ? 0 : norm.rows);
}

/// A new tensor of another's shape if wanted; otherwise one of no elements.
at::Tensor new_if(bool wanted, const at::Tensor& like, at::ScalarType type) {
  return wanted ? allocate(like.sizes(), type, like.device()) : allocate({0}, type, like.device());
}

/// Converts a gradient to its parameter's type, or without a parameter to the rows' type.
at::Tensor in_type_of(const at::Tensor& gradient, const MaybeTensor& parameter,
                      at::ScalarType row_type) {
  return gradient.to(is_there(parameter) ? parameter->scalar_type() : row_type);
}

void* pointer_if(bool wanted, const at::Tensor& tensor) {
  return wanted ? tensor.data_ptr() : nullptr;
}

// --- The plain pass ---

void check_norm(const at::Tensor& x, c10::SymIntArrayRef shape, const MaybeTensor& weight,
                const MaybeTensor& bias) {
  check_rows("x", x, shape);
  check_parameter("weight", weight, x, shape);
  check_parameter("bias", bias, x, shape);
}

Two norm(const at::Tensor& x, Shape shape, const MaybeTensor& weight, const MaybeTensor& bias,
         double eps, bool rms, bool, bool zero_centred, MaybeName chapter, MaybeName,
         bool batch_invariant) {
  check_norm(x, symbols(shape), weight, bias);
  check_device(x);
  const Norm of = norm_of(x, shape, eps, rms, chapter, batch_invariant);
  const Parameters parameters(x.scalar_type(), zero_centred, {weight, bias});
  const Rows x_rows(x, shape.size(), of.chapter.empty());
  const at::Tensor w = parameters.weight(weight);
  const at::Tensor b = parameters.bias(bias);
  at::Tensor y = allocate(x.sizes(), x.scalar_type(), x.device());
  at::Tensor statistics =
      allocate(statistics_shape(x.sizes(), shape.size(), rms), at::kFloat, x.device());
  lnc_forward_args args{};
  args.problem = of.problem(x.scalar_type(), parameters.type());
  args.x = x_rows.pointer();
  args.x_rows = x_rows.where();
  args.weight = pointer(w);
  args.bias = pointer(b);
  args.y = pointer(y);
  args.mean = mean_in(statistics, of);
  args.rstd = rstd_in(statistics, of);
  run(args, of, x);
  return {y, statistics};
}

Two norm_meta(const at::Tensor& x, c10::SymIntArrayRef shape, const MaybeTensor& weight,
              const MaybeTensor& bias, double, bool rms, bool, bool, MaybeName, MaybeName, bool) {
  check_norm(x, shape, weight, bias);
  return {at::empty_like(x, at::MemoryFormat::Contiguous),
          at::empty_symint(statistics_shape(x.sym_sizes(), shape.size(), rms),
                           x.options().dtype(at::kFloat))};
}

void check_norm_backward(const at::Tensor& dy, const at::Tensor& saved, c10::SymIntArrayRef shape,
                         const MaybeTensor& weight, const MaybeTensor& bias,
                         const at::Tensor& statistics, bool rms) {
  check_rows("dy", dy, shape);
  check_like("saved", saved, dy, {at::kFloat, at::kHalf, at::kBFloat16});
  check_parameter("weight", weight, dy, shape);
  check_parameter("bias", bias, dy, shape);
  const c10::SymInt rows = rows_and_cols(dy, shape).first;
  check_each_row("statistics", statistics, dy, rms ? rows : rows * 2, at::kFloat);
}

Three norm_backward(const at::Tensor& dy, const at::Tensor& saved, Shape shape,
                    const MaybeTensor& weight, const MaybeTensor& bias,
                    const at::Tensor& statistics, double eps, bool rms, bool memory_efficient,
                    bool zero_centred, bool wants_dweight, bool wants_dbias, MaybeName chapter,
                    bool batch_invariant) {
  check_norm_backward(dy, saved, symbols(shape), weight, bias, statistics, rms);
  check_device(dy);
  const Norm of = norm_of(dy, shape, eps, rms, chapter, batch_invariant);
  const at::ScalarType type = saved.scalar_type();
  const Parameters parameters(type, zero_centred, {weight, bias});
  const bool may_lie_apart = of.chapter.empty() && !memory_efficient;
  const Rows dy_rows(dy.scalar_type() == type ? dy : dy.to(type), shape.size(), may_lie_apart);
  const Rows saved_rows(saved, shape.size(), may_lie_apart);
  const at::Tensor statistics_dense = dense(statistics);
  const at::Tensor w = parameters.weight(weight);
  const at::Tensor b = parameters.bias(bias);
  at::Tensor dx = allocate(dy.sizes(), type, dy.device());
  const auto new_gradient = [&](bool wanted) {
    return allocate(wanted ? shape : Shape{0}, parameters.type(), dy.device());
  };
  at::Tensor dweight = new_gradient(wants_dweight);
  at::Tensor dbias = new_gradient(wants_dbias);
  lnc_backward_args args{};
  args.problem = of.problem(type, parameters.type());
  args.dy = dy_rows.pointer();
  args.dy_rows = dy_rows.where();
  (memory_efficient ? args.y : args.x) = saved_rows.pointer();
  args.x_rows = saved_rows.where();
  args.weight = pointer(w);
  args.bias = memory_efficient ? pointer(b) : nullptr;
  args.mean = memory_efficient ? nullptr : mean_in(statistics_dense, of);
  args.rstd = rstd_in(statistics_dense, of);
  args.dx = pointer(dx);
  args.dweight = pointer_if(wants_dweight, dweight);
  args.dbias = pointer_if(wants_dbias, dbias);
  run(args, of, dy);
  return {dx, in_type_of(dweight, weight, type), in_type_of(dbias, bias, type)};
}

/// A parameter's gradient for the meta device: its shape may have symbols, and its type is the
/// parameter's, or without a parameter the rows'.
at::Tensor new_gradient_meta(bool wanted, c10::SymIntArrayRef shape, const MaybeTensor& parameter,
                             const at::Tensor& rows) {
  const auto options = is_there(parameter) ? parameter->options() : rows.options();
  return wanted ? at::empty_symint(shape, options) : at::empty({0}, options);
}

Three norm_backward_meta(const at::Tensor& dy, const at::Tensor& saved, c10::SymIntArrayRef shape,
                         const MaybeTensor& weight, const MaybeTensor& bias,
                         const at::Tensor& statistics, double, bool rms, bool, bool,
                         bool wants_dweight, bool wants_dbias, MaybeName, bool) {
  check_norm_backward(dy, saved, shape, weight, bias, statistics, rms);

  return {at::empty_like(saved, at::MemoryFormat::Contiguous),
          new_gradient_meta(wants_dweight, shape, weight, saved),
          new_gradient_meta(wants_dbias, shape, bias, saved)};
}

// --- The fused pass ---

/// Checks what is applied to x, and to x1 if given, before they are added.
void check_branches(const at::Tensor& x, c10::SymIntArrayRef shape, bool has_x1,
                    const MaybeTensor& rowscale, const MaybeTensor& rowscale1,
                    const MaybeTensor& seeds, const MaybeTensor& seeds1, double dropout) {
  const c10::SymInt rows = rows_and_cols(x, shape).first;
  check_each_row("rowscale", rowscale, x, rows, at::kFloat);
  check_each_row("rowscale1", rowscale1, x, rows, at::kFloat);
  check_each_row("seeds", seeds, x, rows, at::kInt);
  check_each_row("seeds1", seeds1, x, rows, at::kInt);
  TORCH_CHECK_VALUE(dropout >= 0.0 && dropout < 1.0, "dropout is ", words(dropout),
                    "; it must be a probability, 0 <= dropout < 1");
  TORCH_CHECK_VALUE(dropout == 0.0 || static_cast<float>(dropout) > 0.0f, "dropout is ",
                    words(dropout), ", which float32 rounds to 0: give 0 or a larger probability");
  const bool drops = dropout > 0.0;
  const auto check_given = [](const char* name, const MaybeTensor& tensor, bool needed,
                              const char* where) {
    TORCH_CHECK_VALUE(is_there(tensor) == needed, name, " is ", needed ? "None" : "given",
                      "; give it exactly where ", where);
  };
  check_given("seeds", seeds, drops, "dropout is above 0");
  check_given("seeds1", seeds1, drops && has_x1, "x1 is and dropout is above 0");
  check_given("rowscale1", rowscale1, is_there(rowscale) && has_x1, "x1 and rowscale are");
}

/// Checks the inputs of a fused forward pass.
void check_add_norm(const at::Tensor& x, const MaybeTensor& residual, c10::SymIntArrayRef shape,
                    const MaybeTensor& weight, const MaybeTensor& bias, const MaybeTensor& x1,
                    const MaybeTensor& weight1, const MaybeTensor& bias1,
                    const MaybeTensor& rowscale, const MaybeTensor& rowscale1,
                    const MaybeTensor& seeds, const MaybeTensor& seeds1, double dropout,
                    bool float_sum) {
  check_norm(x, shape, weight, bias);
  check_parameter("weight1", weight1, x, shape);
  check_parameter("bias1", bias1, x, shape);
  check_like("residual", residual, x, {x.scalar_type(), at::kFloat});
  check_like("x1", x1, x, {x.scalar_type()});
  check_branches(x, shape, is_there(x1), rowscale, rowscale1, seeds, seeds1, dropout);
  TORCH_CHECK_VALUE(is_there(residual) || !float_sum || x.scalar_type() == at::kFloat,
                    "float_sum is true, but residual is None: without one the sum has x's type, ",
                    words(x.scalar_type()));
}

Four add_norm(const at::Tensor& x, const MaybeTensor& residual, Shape shape,
              const MaybeTensor& weight, const MaybeTensor& bias, const MaybeTensor& x1,
              const MaybeTensor& weight1, const MaybeTensor& bias1, const MaybeTensor& rowscale,
              const MaybeTensor& rowscale1, const MaybeTensor& seeds, const MaybeTensor& seeds1,
              double dropout, double eps, bool rms, bool zero_centred, bool float_sum,
              MaybeName chapter, MaybeName, bool batch_invariant) {
  check_add_norm(x, residual, symbols(shape), weight, bias, x1, weight1, bias1, rowscale, rowscale1,
                 seeds, seeds1, dropout, float_sum);
  check_device(x);
  const Norm of = norm_of(x, shape, eps, rms, chapter, batch_invariant);
  const Parameters parameters(x.scalar_type(), zero_centred, {weight, bias, weight1, bias1});
  const at::ScalarType sum_type = float_sum ? at::kFloat : x.scalar_type();
  const bool second = is_there(weight1) || is_there(bias1);
  const at::Tensor x_dense = dense(x);
  const at::Tensor x1_dense = dense(x1);
  const at::Tensor r = is_there(residual) ? dense(residual->to(sum_type)) : at::Tensor();
  const at::Tensor w = parameters.weight(weight);
  const at::Tensor b = parameters.bias(bias);
  const at::Tensor w1 = parameters.weight(weight1);
  const at::Tensor b1 = parameters.bias(bias1);
  const at::Tensor scale = dense(rowscale);
  const at::Tensor scale1 = dense(rowscale1);
  const at::Tensor seeds_dense = dense(seeds);
  const at::Tensor seeds1_dense = dense(seeds1);
  at::Tensor y = allocate(x.sizes(), x.scalar_type(), x.device());
  at::Tensor sum = allocate(x.sizes(), sum_type, x.device());
  at::Tensor statistics =
      allocate(statistics_shape(x.sizes(), shape.size(), rms), at::kFloat, x.device());
  at::Tensor y1 = new_if(second, x, x.scalar_type());
  lnc_fused_forward fused{};
  fused.rowscale = static_cast<const float*>(pointer(scale));
  fused.rowscale1 = static_cast<const float*>(pointer(scale1));
  fused.seeds = static_cast<const std::uint32_t*>(pointer(seeds_dense));
  fused.seeds1 = static_cast<const std::uint32_t*>(pointer(seeds1_dense));
  fused.x1 = pointer(x1_dense);
  fused.residual = pointer(r);
  fused.sum = pointer(sum);
  fused.weight1 = pointer(w1);
  fused.bias1 = pointer(b1);
  fused.y1 = pointer_if(second, y1);
  fused.dropout = static_cast<float>(dropout);
  fused.float_residual = sum_type == at::kFloat;
  lnc_forward_args args{};
  args.problem = of.problem(x.scalar_type(), parameters.type());
  args.x = pointer(x_dense);
  args.weight = pointer(w);
  args.bias = pointer(b);
  args.y = pointer(y);
  args.mean = mean_in(statistics, of);
  args.rstd = rstd_in(statistics, of);
  args.fused = &fused;
  if (x.numel() > 0) run(args, of, x);
  return {y, sum, statistics, y1};
}

Four add_norm_meta(const at::Tensor& x, const MaybeTensor& residual, c10::SymIntArrayRef shape,
                   const MaybeTensor& weight, const MaybeTensor& bias, const MaybeTensor& x1,
                   const MaybeTensor& weight1, const MaybeTensor& bias1,
                   const MaybeTensor& rowscale, const MaybeTensor& rowscale1,
                   const MaybeTensor& seeds, const MaybeTensor& seeds1, double dropout, double,
                   bool rms, bool, bool float_sum, MaybeName, MaybeName, bool) {
  check_add_norm(x, residual, shape, weight, bias, x1, weight1, bias1, rowscale, rowscale1, seeds,
                 seeds1, dropout, float_sum);
  const bool second = is_there(weight1) || is_there(bias1);
  const auto like_x = x.options();
  return {at::empty_like(x, at::MemoryFormat::Contiguous),
          at::empty_like(x, float_sum ? like_x.dtype(at::kFloat) : like_x,
                         at::MemoryFormat::Contiguous),
          at::empty_symint(statistics_shape(x.sym_sizes(), shape.size(), rms),
                           like_x.dtype(at::kFloat)),
          second ? at::empty_like(x, at::MemoryFormat::Contiguous) : at::empty({0}, like_x)};
}

void check_places(const at::Tensor& x, const at::Tensor& residual, const MaybeTensor& weight,
                  const MaybeTensor& bias) {
  const auto check_own = [](const char* name, const at::Tensor& written) {
    TORCH_CHECK_VALUE(has_own_memory(written), name,
                      " has elements that share memory, and inplace=True writes it: give each "
                      "element memory of its own");
  };
  const auto check_apart = [](const char* name, const at::Tensor& written, const char* other_name,
                              const at::Tensor& other) {
    TORCH_CHECK_VALUE(!may_share_memory(written, other), name, " and ", other_name,
                      " share memory, and inplace=True writes ", name,
                      ": give each memory of its own");
  };
  check_own("x", x);
  check_own("residual", residual);
  check_apart("x", x, "residual", residual);
  for (const auto& [name, parameter] : {std::pair{"weight", weight}, std::pair{"bias", bias}}) {
    if (!is_there(parameter)) continue;
    check_apart("x", x, name, *parameter);
    check_apart("residual", residual, name, *parameter);
  }
}

void check_in_place(const at::Tensor& x, const at::Tensor& residual, c10::SymIntArrayRef shape,
                    const MaybeTensor& weight, const MaybeTensor& bias) {
  check_norm(x, shape, weight, bias);
  check_like("residual", residual, x, {x.scalar_type(), at::kFloat});
}

/// Overwrites x with the norm of x + residual, and residual with that sum. No gradients.
void add_norm_in_place(const at::Tensor& x, const at::Tensor& residual, Shape shape,
                       const MaybeTensor& weight, const MaybeTensor& bias, double eps, bool rms,
                       bool zero_centred, MaybeName chapter, bool batch_invariant) {
  check_in_place(x, residual, symbols(shape), weight, bias);
  check_device(x);
  if (x.numel() == 0) return;
  check_places(x, residual, weight, bias);
  const Norm of = norm_of(x, shape, eps, rms, chapter, batch_invariant);
  const Parameters parameters(x.scalar_type(), zero_centred, {weight, bias});
  const at::Tensor w = parameters.weight(weight);
  const at::Tensor b = parameters.bias(bias);
  const at::Tensor x_dense = dense(x);
  const at::Tensor residual_dense = dense(residual);
  const at::Tensor statistics =
      allocate(statistics_shape(x.sizes(), shape.size(), rms), at::kFloat, x.device());
  lnc_fused_forward fused{};
  fused.residual = pointer(residual_dense);
  fused.float_residual = residual.scalar_type() == at::kFloat;
  lnc_forward_args args{};
  args.problem = of.problem(x.scalar_type(), parameters.type());
  args.x = pointer(x_dense);
  args.weight = pointer(w);
  args.bias = pointer(b);
  args.mean = mean_in(statistics, of);
  args.rstd = rstd_in(statistics, of);
  args.fused = &fused;
  at::Tensor y = x_dense;
  at::Tensor sum = residual_dense;
  args.y = pointer(y);
  fused.sum = pointer(sum);
  if (!run_if_taken(args, of, x)) {  // no kernel can do this in place: the rows are too wide
    y = allocate(x.sizes(), x.scalar_type(), x.device());
    sum = allocate(x.sizes(), residual.scalar_type(), x.device());
    args.y = pointer(y);
    fused.sum = pointer(sum);
    run(args, of, x);
  }
  if (!y.is_same(x)) x.copy_(y);
  if (!sum.is_same(residual)) residual.copy_(sum);
}

void add_norm_in_place_meta(const at::Tensor& x, const at::Tensor& residual,
                            c10::SymIntArrayRef shape, const MaybeTensor& weight,
                            const MaybeTensor& bias, double, bool, bool, MaybeName, bool) {
  check_in_place(x, residual, shape, weight, bias);
}

/// Whether dx1 and dresidual need their own tensors: otherwise each equals dx bit for bit.
struct OwnGradients {
  bool dx1;
  bool dresidual;
};
OwnGradients own_gradients(const at::Tensor& dy, const at::Tensor& sum, const MaybeTensor& rowscale,
                           double dropout, bool has_residual, bool has_x1) {
  const bool changes_x = is_there(rowscale) || dropout > 0.0;
  return {has_x1 && changes_x,
          has_residual && (changes_x || sum.scalar_type() != dy.scalar_type())};
}

void check_add_norm_backward(const at::Tensor& dy, const MaybeTensor& dsum, const MaybeTensor& dy1,
                             const at::Tensor& sum, c10::SymIntArrayRef shape,
                             const MaybeTensor& weight, const MaybeTensor& bias,
                             const MaybeTensor& weight1, const MaybeTensor& bias1,
                             const at::Tensor& statistics, const MaybeTensor& rowscale,
                             const MaybeTensor& rowscale1, const MaybeTensor& seeds,
                             const MaybeTensor& seeds1, double dropout, bool rms, bool has_x1) {
  check_norm_backward(dy, sum, shape, weight, bias, statistics, rms);
  check_parameter("weight1", weight1, dy, shape);
  check_parameter("bias1", bias1, dy, shape);
  check_like("sum", sum, dy, {dy.scalar_type(), at::kFloat});
  check_like("dsum", dsum, dy, {sum.scalar_type()});
  check_like("dy1", dy1, dy, {dy.scalar_type()});
  check_branches(dy, shape, has_x1, rowscale, rowscale1, seeds, seeds1, dropout);
}

Seven add_norm_backward(const at::Tensor& dy, const MaybeTensor& dsum, const MaybeTensor& dy1,
                        const at::Tensor& sum, Shape shape, const MaybeTensor& weight,
                        const MaybeTensor& bias, const MaybeTensor& weight1,
                        const MaybeTensor& bias1, const at::Tensor& statistics,
                        const MaybeTensor& rowscale, const MaybeTensor& rowscale1,
                        const MaybeTensor& seeds, const MaybeTensor& seeds1, double dropout,
                        double eps, bool rms, bool zero_centred, bool has_residual, bool has_x1,
                        MaybeName chapter, bool trains, bool batch_invariant) {
  check_add_norm_backward(dy, dsum, dy1, sum, symbols(shape), weight, bias, weight1, bias1,
                          statistics, rowscale, rowscale1, seeds, seeds1, dropout, rms, has_x1);

  check_device(dy);
  const Norm of = norm_of(dy, shape, eps, rms, chapter, batch_invariant);
  const at::ScalarType type = dy.scalar_type();
  const Parameters parameters(type, zero_centred, {weight, bias, weight1, bias1});
  const OwnGradients own = own_gradients(dy, sum, rowscale, dropout, has_residual, has_x1);
  const bool second = is_there(dy1);
  const at::Tensor dy_dense = dense(dy);
  const at::Tensor dy1_dense = dense(dy1);
  const at::Tensor sum_dense = dense(sum);
  const at::Tensor dsum_dense = dense(dsum);
  const at::Tensor statistics_dense = dense(statistics);
  const at::Tensor w = parameters.weight(weight);
  const at::Tensor w1 = parameters.weight(weight1);
  const at::Tensor scale = dense(rowscale);
  const at::Tensor scale1 = dense(rowscale1);
  const at::Tensor seeds_dense = dense(seeds);
  const at::Tensor seeds1_dense = dense(seeds1);
  at::Tensor dx = allocate(dy.sizes(), type, dy.device());
  at::Tensor dx1 = new_if(own.dx1, dy, type);
  at::Tensor dresidual = new_if(own.dresidual, dy, sum.scalar_type());
  const auto new_gradient = [&](bool wanted) {
    return allocate(wanted ? shape : Shape{0}, parameters.type(), dy.device());
  };
  const bool layer = !rms;
  at::Tensor dweight = new_gradient(trains);
  at::Tensor dbias = new_gradient(trains && layer);
  at::Tensor dweight1 = new_gradient(trains && second);
  at::Tensor dbias1 = new_gradient(trains && second && layer);
  lnc_fused_backward fused{};
  fused.rowscale = static_cast<const float*>(pointer(scale));
  fused.rowscale1 = static_cast<const float*>(pointer(scale1));
  fused.seeds = static_cast<const std::uint32_t*>(pointer(seeds_dense));
  fused.seeds1 = static_cast<const std::uint32_t*>(pointer(seeds1_dense));
  fused.sum = pointer(sum_dense);
  fused.dsum = pointer(dsum_dense);
  fused.dy1 = pointer(dy1_dense);
  fused.weight1 = pointer(w1);
  fused.dx1 = pointer_if(own.dx1, dx1);
  fused.dresidual = pointer_if(own.dresidual, dresidual);
  fused.dweight1 = pointer_if(trains && second, dweight1);
  fused.dbias1 = pointer_if(trains && second && layer, dbias1);
  fused.dropout = static_cast<float>(dropout);
  fused.float_residual = sum.scalar_type() == at::kFloat;
  fused.has_residual = has_residual;
  lnc_backward_args args{};
  args.problem = of.problem(type, parameters.type());
  args.dy = pointer(dy_dense);
  args.weight = pointer(w);
  args.mean = mean_in(statistics_dense, of);
  args.rstd = rstd_in(statistics_dense, of);
  args.dx = pointer(dx);
  args.dweight = pointer_if(trains, dweight);
  args.dbias = pointer_if(trains && layer, dbias);
  args.fused = &fused;
  if (dy.numel() > 0) {
    run(args, of, dy);
  } else {
    for (at::Tensor* gradient : {&dweight, &dbias, &dweight1, &dbias1}) gradient->zero_();
  }
  return {dx,
          dx1,
          dresidual,
          in_type_of(dweight, weight, type),
          in_type_of(dbias, bias, type),
          in_type_of(dweight1, weight1, type),
          in_type_of(dbias1, bias1, type)};
}

Seven add_norm_backward_meta(const at::Tensor& dy, const MaybeTensor& dsum, const MaybeTensor& dy1,
                             const at::Tensor& sum, c10::SymIntArrayRef shape,
                             const MaybeTensor& weight, const MaybeTensor& bias,
                             const MaybeTensor& weight1, const MaybeTensor& bias1,
                             const at::Tensor& statistics, const MaybeTensor& rowscale,
                             const MaybeTensor& rowscale1, const MaybeTensor& seeds,
                             const MaybeTensor& seeds1, double dropout, double, bool rms, bool,
                             bool has_residual, bool has_x1, MaybeName, bool trains, bool) {
  check_add_norm_backward(dy, dsum, dy1, sum, shape, weight, bias, weight1, bias1, statistics,
                          rowscale, rowscale1, seeds, seeds1, dropout, rms, has_x1);
  const OwnGradients own = own_gradients(dy, sum, rowscale, dropout, has_residual, has_x1);
  const bool second = is_there(dy1);
  const auto gradient = [&](bool wanted, const MaybeTensor& of) {
    const auto options = dy.options().dtype(is_there(of) ? of->scalar_type() : dy.scalar_type());
    return wanted ? at::empty_symint(shape, options) : at::empty({0}, options);
  };
  const auto like = [&](bool wanted, at::ScalarType type) {
    const auto options = dy.options().dtype(type);
    return wanted ? at::empty_like(dy, options, at::MemoryFormat::Contiguous)
                  : at::empty({0}, options);
  };
  return {like(true, dy.scalar_type()),
          like(own.dx1, dy.scalar_type()),
          like(own.dresidual, sum.scalar_type()),
          gradient(trains, weight),
          gradient(trains && !rms, bias),
          gradient(trains && second, weight1),
          gradient(trains && second && !rms, bias1)};
}

}  // namespace

// A call omits arguments at their defaults: each one costs the host time. New arguments come last
// and have a default, because a compiled model may outlive the build that it was compiled with.
TORCH_LIBRARY(layernorm_chapters, m) {
  m.def(
      "norm(Tensor x, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, float eps, "
      "bool rms, bool memory_efficient=False, bool zero_centred=False, str? chapter=None, "
      "str? backward_chapter=None, bool batch_invariant=False) -> (Tensor y, Tensor statistics)");
  m.def(
      "norm_backward(Tensor dy, Tensor saved, SymInt[] normalized_shape, Tensor? weight, "
      "Tensor? bias, Tensor statistics, float eps, bool rms, bool memory_efficient, "
      "bool zero_centred, bool wants_dweight, bool wants_dbias, str? chapter, "
      "bool batch_invariant=False) -> (Tensor dx, Tensor dweight, Tensor dbias)");
  m.def(
      "add_norm(Tensor x, Tensor? residual, SymInt[] normalized_shape, Tensor? weight, "
      "Tensor? bias, Tensor? x1, Tensor? weight1, Tensor? bias1, Tensor? rowscale, "
      "Tensor? rowscale1, Tensor? seeds, Tensor? seeds1, float dropout, float eps, bool rms, "
      "bool zero_centred=False, bool float_sum=False, str? chapter=None, "
      "str? backward_chapter=None, bool batch_invariant=False) -> (Tensor y, Tensor sum, Tensor "
      "statistics, Tensor y1)");
  m.def(
      "add_norm_backward(Tensor dy, Tensor? dsum, Tensor? dy1, Tensor sum, "
      "SymInt[] normalized_shape, Tensor? weight, Tensor? bias, Tensor? weight1, Tensor? bias1, "
      "Tensor statistics, Tensor? rowscale, Tensor? rowscale1, Tensor? seeds, Tensor? seeds1, "
      "float dropout, float eps, bool rms, bool zero_centred, bool has_residual, bool has_x1, "
      "str? chapter, bool trains=True, bool batch_invariant=False) -> (Tensor dx, Tensor dx1, "
      "Tensor dresidual, Tensor dweight, Tensor dbias, Tensor dweight1, Tensor dbias1)");
  m.def(
      "add_norm_(Tensor(a!) x, Tensor(b!) residual, SymInt[] normalized_shape, Tensor? weight, "
      "Tensor? bias, float eps, bool rms, bool zero_centred=False, str? chapter=None, "
      "bool batch_invariant=False) -> ()");
  m.def("load(str library) -> ()", [](c10::string_view path) { load(std::string(path)); });
}

// For every backend, so that a tensor on one without kernels is refused in a sentence.
TORCH_LIBRARY_IMPL(layernorm_chapters, CompositeExplicitAutograd, m) {
  m.impl("norm", norm);
  m.impl("norm_backward", norm_backward);
  m.impl("add_norm", add_norm);
  m.impl("add_norm_backward", add_norm_backward);
  m.impl("add_norm_", add_norm_in_place);
}

/// Replaces PyTorch's message about nested tensors, which only names the operator.
void refuse_nested(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& given = torch::jit::peek(*stack, i, arguments.size());
    if (!given.isTensor() || !given.toTensor().is_nested()) continue;
    const std::string& name = arguments[i].name();
    TORCH_CHECK_TYPE(name == "x" || name == "dy", name,
                     " is a nested tensor; it must be a dense one");
    TORCH_CHECK_TYPE(false, name, " is a nested tensor of layout ",
                     words(given.toTensor().layout()),
                     "; it must be one of layout torch.jagged, or a tensor that is not nested");
  }
}
#define LNC_REFUSE_NESTED(key)                                                    \
  TORCH_LIBRARY_IMPL(layernorm_chapters, key, m) {                                \
    for (const char* name :                                                       \
         {"norm", "norm_backward", "add_norm", "add_norm_backward", "add_norm_"}) \
      m.impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse_nested>());  \
  }
LNC_REFUSE_NESTED(NestedTensorCPU)
LNC_REFUSE_NESTED(NestedTensorCUDA)
LNC_REFUSE_NESTED(AutogradNestedTensor)
#undef LNC_REFUSE_NESTED

TORCH_LIBRARY_IMPL(layernorm_chapters, Meta, m) {
  m.impl("norm", norm_meta);
  m.impl("norm_backward", norm_backward_meta);
  m.impl("add_norm", add_norm_meta);
  m.impl("add_norm_backward", add_norm_backward_meta);
  m.impl("add_norm_", add_norm_in_place_meta);
}

}  // namespace layernorm_chapters
