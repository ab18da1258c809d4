#include "common/library/arguments.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <initializer_list>
#include <limits>

#include "common/kernel/gpu.h"
#include "common/library/dispatch.h"

namespace lnc {
namespace {

std::string words(float number) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", static_cast<double>(number));
  return text;
}

Problem problem_of(const lnc_problem& given, bool affine) {
  const auto is_dtype = [](std::int32_t dtype) { return dtype >= LNC_F32 && dtype <= LNC_BF16; };
  const auto require_field = [](bool holds, const char* field, std::int64_t number,
                                const char* what) {
    require(holds,
            [&] { return field + (" is " + std::to_string(number)) + "; it must be " + what; });
  };
  require_field(given.kind == LNC_LAYER || given.kind == LNC_RMS, "kind", given.kind,
                "LNC_LAYER (0) or LNC_RMS (1)");
  require_field(is_dtype(given.dtype), "dtype", given.dtype,
                "LNC_F32 (0), LNC_F16 (1) or LNC_BF16 (2)");
  require_field(given.parameter_dtype == given.dtype || given.parameter_dtype == LNC_F32,
                "parameter_dtype", given.parameter_dtype, "dtype or LNC_F32 (0)");
  require_field(given.rows >= 0, "rows", given.rows, "0 or more");
  require_field(given.cols >= 1, "cols", given.cols, "1 or more");
  require_field(given.batch_invariant == 0 || given.batch_invariant == 1, "batch_invariant",
                given.batch_invariant, "0 or 1");
  constexpr auto kMostBytes = std::numeric_limits<std::int64_t>::max();
  require(given.rows <= kMostBytes / 16 / given.cols, [&] {
    return "rows x cols is " + std::to_string(given.rows) + " x " + std::to_string(given.cols) +
           "; it must be below 2^59 elements";
  });
  require(given.eps >= 0.0f && std::isfinite(given.eps),
          [&] { return "eps is " + words(given.eps) + "; it must be finite, and 0 or more"; });
  constexpr DType kDTypes[] = {DType::F32, DType::F16, DType::BF16};
  Problem problem;
  problem.kind = given.kind == LNC_LAYER ? Kind::Layer : Kind::Rms;
  problem.dtype = kDTypes[given.dtype];
  problem.mixed = given.parameter_dtype != given.dtype;
  problem.rows = given.rows;
  problem.cols = given.cols;
  problem.eps = given.eps;
  problem.affine = affine;
  problem.batch_invariant = given.batch_invariant != 0;
  return problem;
}

/// Checks that a pointer is a multiple of its element's size, and not null unless `may_be_null`.
void check_pointer(const char* name, const void* pointer, std::int64_t element_bytes,
                   bool may_be_null) {
  require(may_be_null || pointer != nullptr, [&] { return std::string(name) + " is null"; });
  require(reinterpret_cast<std::uintptr_t>(pointer) % element_bytes == 0, [&] {
    return std::string(name) + " is not aligned to its elements of " +
           std::to_string(element_bytes) + " bytes";
  });
}

/// Problem::misalign of tensors at these addresses: 0 if all start at 16-byte boundaries, else 1,
/// since they need not start alike.
int misalign_of(std::initializer_list<const void*> pointers) {
  return std::all_of(pointers.begin(), pointers.end(), at_boundary) ? 0 : 1;
}

}  // namespace

RowStrides strides_of(const lnc_rows* given, const Problem& problem) {
  if (given == nullptr) return {};
  const bool groups = given->group_rows > 0 && given->group_rows < problem.rows;
  const bool one_behind_another =
      given->row_stride == problem.cols &&
      (!groups || given->group_stride == given->group_rows * problem.cols);
  if (one_behind_another) return {};
  return {true, given->row_stride, given->group_stride, groups ? given->group_rows : 0};
}

namespace {

/// Checks where the rows of a tensor start, and records in the problem whether they are strided.
void check_rows(const char* name, const lnc_rows* given, Problem& problem) {
  if (given == nullptr) return;
  const auto require_natural = [&](const char* field, std::int64_t number) {
    require(number >= 0, [&] {
      return std::string(name) + "->" + field + " is " + std::to_string(number) +
             "; it must be 0 or more";
    });
  };
  require_natural("row_stride", given->row_stride);
  require_natural("group_rows", given->group_rows);
  require_natural("group_stride", given->group_stride);
  const RowStrides rows = strides_of(given, problem);
  if (!rows.apart) return;
  const std::int64_t vector = 16 / problem.element_bytes();
  const bool of_vectors = rows.row_stride % vector == 0 && rows.group_stride % vector == 0;
  // For the choice of a chapter any gap will do: what matters is whether it is of whole vectors.
  if (!of_vectors) problem.row_gap = 1;
  if (problem.row_gap == 0) problem.row_gap = static_cast<int>(vector);
}

void check_dropout(float dropout) {
  require(dropout >= 0.0f && dropout < 1.0f, [&] {
    return "dropout is " + words(dropout) + "; it must be a probability, 0 <= dropout < 1";
  });
}

/// Checks a pointer that must not be null where it is wanted, unless `may_be_null`, and must be
/// null where it is not.
void check_part(const char* name, const void* pointer, std::int64_t element_bytes, bool wanted,
                bool may_be_null) {
  if (wanted) return check_pointer(name, pointer, element_bytes, may_be_null);
  require(pointer == nullptr, [&] { return std::string(name) + " must be null here"; });
}

/// Adds a fused pass's options to the problem, and checks its pointers.
void check_fused(const lnc_fused_forward& f, Problem& problem) {
  const bool empty = problem.rows == 0;
  const std::int64_t element = problem.element_bytes();
  const std::int64_t parameter = problem.parameter_element_bytes();
  check_dropout(f.dropout);
  const bool scales = f.rowscale != nullptr;
  const bool drops = f.dropout > 0.0f;
  const bool has_x1 = f.x1 != nullptr;
  problem.fusion = {.rowscale = scales,
                    .dropout = f.dropout,
                    .second_input = has_x1,
                    .residual = f.residual == nullptr ? Residual::None
                                : f.float_residual    ? Residual::F32
                                                      : Residual::Same,
                    .prenorm = f.sum != nullptr,
                    .second_affine = f.y1 != nullptr};
  require(problem.fusion != Fusion{}, "fused is there, and each part of it is null");
  require(
      f.residual != nullptr || f.sum == nullptr || !f.float_residual || problem.dtype == DType::F32,
      "float_residual is set, but there is no residual");
  const std::int64_t residual = problem.residual_element_bytes();
  check_part("rowscale", f.rowscale, sizeof(float), scales, empty);
  check_part("rowscale1", f.rowscale1, sizeof(float), scales && has_x1, empty);
  check_part("seeds", f.seeds, sizeof(std::uint32_t), drops, empty);
  check_part("seeds1", f.seeds1, sizeof(std::uint32_t), drops && has_x1, empty);
  check_pointer("x1", f.x1, element, true);
  check_pointer("residual", f.residual, residual, true);
  check_pointer("sum", f.sum, residual, true);
  check_pointer("weight1", f.weight1, parameter, true);
  check_pointer("bias1", f.bias1, parameter, true);
  check_pointer("y1", f.y1, element, true);
  require(f.y1 != nullptr || (f.weight1 == nullptr && f.bias1 == nullptr),
          "weight1 and bias1 are for y1, which is null");
  require(problem.kind == Kind::Layer || f.bias1 == nullptr, "RMS norm has no bias1");
  problem.misalign |= misalign_of({f.x1, f.residual, f.sum, f.weight1, f.bias1, f.y1});
}

/// Whether no gradient of a parameter is requested.
bool wants_no_parameters(const lnc_backward_args& a) {
  const bool wants_second =
      a.fused != nullptr && (a.fused->dweight1 != nullptr || a.fused->dbias1 != nullptr);
  return a.dweight == nullptr && a.dbias == nullptr && !wants_second;
}

/// The same for a backward pass.
void check_fused(const lnc_fused_backward& f, bool frozen, Problem& problem) {
  const bool empty = problem.rows == 0;
  const std::int64_t element = problem.element_bytes();
  const std::int64_t parameter = problem.parameter_element_bytes();
  check_dropout(f.dropout);
  const bool scales = f.rowscale != nullptr;
  const bool drops = f.dropout > 0.0f;
  const bool layer = problem.kind == Kind::Layer;
  const bool has_x1 = f.dx1 != nullptr || f.rowscale1 != nullptr || f.seeds1 != nullptr;
  const bool has_y1 = f.dy1 != nullptr;
  problem.fusion = {.rowscale = scales,
                    .dropout = f.dropout,
                    .second_input = has_x1,
                    .residual = !f.has_residual    ? Residual::None
                                : f.float_residual ? Residual::F32
                                                   : Residual::Same,
                    .prenorm = f.dsum != nullptr,
                    .second_affine = has_y1};
  // If nothing else distinguishes this pass from a plain one: the sum is x and has a gradient.
  if (problem.fusion == Fusion{}) problem.fusion.prenorm = true;
  const std::int64_t residual = problem.residual_element_bytes();
  check_part("rowscale1", f.rowscale1, sizeof(float), scales && has_x1, empty);
  check_part("seeds", f.seeds, sizeof(std::uint32_t), drops, empty);
  check_part("seeds1", f.seeds1, sizeof(std::uint32_t), drops && has_x1, empty);
  check_pointer("sum", f.sum, residual, empty);
  check_pointer("dsum", f.dsum, residual, true);
  check_pointer("dy1", f.dy1, element, true);
  check_pointer("weight1", f.weight1, parameter, true);
  check_part("dx1", f.dx1, element, problem.writes_dx1(), empty);
  check_part("dresidual", f.dresidual, residual, problem.writes_dresidual(), empty);
  check_part("dweight1", f.dweight1, parameter, has_y1 && !frozen, empty);
  check_part("dbias1", f.dbias1, parameter, has_y1 && layer && !frozen, empty);
  problem.misalign |= misalign_of({f.sum, f.dsum, f.dy1, f.weight1, f.dx1, f.dresidual});
}

}  // namespace

bool is_in_place(const lnc_forward_args& a) {
  const bool in_x = a.y != nullptr && a.y == a.x;
  const bool in_residual =
      a.fused != nullptr && a.fused->sum != nullptr && a.fused->sum == a.fused->residual;
  return in_x || in_residual;
}

Problem check(const lnc_forward_args& a) {
  const bool layer = a.problem.kind == LNC_LAYER;
  Problem problem = problem_of(a.problem, a.weight != nullptr && (!layer || a.bias != nullptr));
  const bool empty = problem.rows == 0;
  const std::int64_t element = problem.element_bytes();
  const std::int64_t parameter = problem.parameter_element_bytes();
  check_pointer("x", a.x, element, empty);
  check_pointer("weight", a.weight, parameter, true);
  check_pointer("bias", a.bias, parameter, true);
  check_pointer("y", a.y, element, empty);
  if (layer) check_pointer("mean", a.mean, sizeof(float), empty);
  check_pointer("rstd", a.rstd, sizeof(float), empty);
  require(layer || a.bias == nullptr, "RMS norm has no bias: it must be null");
  problem.misalign = misalign_of({a.x, a.weight, a.bias, a.y});
  require(a.fused != nullptr || !is_in_place(a),
          "y is x: only a fused pass may write where it reads");
  require(a.fused == nullptr || a.x_rows == nullptr,
          "a fused pass takes rows that lie one behind another: x_rows must be null");
  check_rows("x_rows", a.x_rows, problem);
  if (a.fused != nullptr) check_fused(*a.fused, problem);
  return problem;
}

Problem check(const lnc_backward_args& a) {
  const bool layer = a.problem.kind == LNC_LAYER;
  const bool needs_bias = layer && a.y != nullptr;  // xhat is recovered with it
  Problem problem =
      problem_of(a.problem, a.weight != nullptr && (!needs_bias || a.bias != nullptr));
  const bool empty = problem.rows == 0;
  const std::int64_t element = problem.element_bytes();
  const std::int64_t parameter = problem.parameter_element_bytes();
  require(a.x == nullptr || a.y == nullptr, "x and y are both given: one of them must be null");
  check_pointer("dy", a.dy, element, empty);
  require(a.fused == nullptr || (a.x == nullptr && a.y == nullptr),
          "a fused backward pass has fused->sum in place of x and y: they must be null");
  check_pointer("x", a.x, element, empty || a.y != nullptr || a.fused != nullptr);
  check_pointer("y", a.y, element, true);
  check_pointer("weight", a.weight, parameter, true);
  check_pointer("bias", a.bias, parameter, true);
  if (layer && a.y == nullptr) check_pointer("mean", a.mean, sizeof(float), empty);
  check_pointer("rstd", a.rstd, sizeof(float), empty);
  check_pointer("dx", a.dx, element, empty);
  check_pointer("dweight", a.dweight, parameter, true);
  check_pointer("dbias", a.dbias, parameter, true);
  require(layer || (a.bias == nullptr && a.dbias == nullptr),
          "RMS norm has no bias: bias and dbias must be null");
  problem.misalign = misalign_of({a.dy, a.x, a.y, a.weight, a.bias, a.dx});
  require(
      (a.fused == nullptr && a.y == nullptr) || (a.x_rows == nullptr && a.dy_rows == nullptr),
      "a pass that is fused or starts from y takes rows that lie one behind another: x_rows and "
      "dy_rows must be null");
  check_rows("x_rows", a.x_rows, problem);
  check_rows("dy_rows", a.dy_rows, problem);
  if (a.fused != nullptr) check_fused(*a.fused, wants_no_parameters(a), problem);
  problem.frozen = wants_no_parameters(a);
  return problem;
}

namespace {

/// Outputs are the pointers to non-const.
template <typename... Data>
void visit_all(const TensorVisitor& visit, const StagedShape& shape, Data*&... data) {
  (visit({const_cast<const void*&>(data), !std::is_const_v<Data>, shape}), ...);
}

/// Sets a typed pointer of a launch to an untyped one of a call.
template <typename T, typename U>
void set(T*& to, U* from) {
  to = static_cast<T*>(from);
}

}  // namespace

template <typename Call, typename Fused>
void for_each_tensor(const Problem& p, Call& a, Fused* f, const TensorVisitor& visit) {
  constexpr bool kForward = std::is_same_v<Call, lnc_forward_args>;
  const StagedShape matrix{p.rows, p.cols, p.element_bytes()};
  const StagedShape sum{p.rows, p.cols, p.residual_element_bytes()};
  const StagedShape vector{1, p.cols, p.parameter_element_bytes()};
  visit({a.x, false, matrix, &a.x_rows});
  visit_all(visit, matrix, a.y);
  visit_all(visit, vector, a.weight, a.bias);
  if constexpr (!kForward) {
    visit({a.dy, false, matrix, &a.dy_rows});
    visit_all(visit, matrix, a.dx);
  }
  if (f == nullptr) return;
  visit_all(visit, sum, f->sum);
  visit_all(visit, vector, f->weight1);
  if constexpr (kForward) {
    visit_all(visit, matrix, f->x1, f->y1);
    visit_all(visit, sum, f->residual);
    visit_all(visit, vector, f->bias1);
  } else {
    visit_all(visit, matrix, f->dy1, f->dx1);
    visit_all(visit, sum, f->dsum, f->dresidual);
  }
}
template void for_each_tensor(const Problem&, lnc_forward_args&, lnc_fused_forward*,
                              const TensorVisitor&);
template void for_each_tensor(const Problem&, lnc_backward_args&, lnc_fused_backward*,
                              const TensorVisitor&);

template <typename Args, typename Call>
Args launch_args(const Problem& problem, const Call& a) {
  constexpr bool kForward = std::is_same_v<Call, lnc_forward_args>;
  Args to = arguments_of<Args>(problem);
  set(to.x, a.x);
  set(to.y, a.y);
  set(to.weight, a.weight);
  set(to.bias, a.bias);
  to.mean = problem.kind == Kind::Layer ? a.mean : nullptr;
  to.rstd = a.rstd;
  to.workspace = a.workspace;
  set(to.stream, a.stream);
  to.x_rows = strides_of(a.x_rows, problem);
  if constexpr (!kForward) {
    set(to.dy, a.dy);
    set(to.dx, a.dx);
    set(to.dweight, a.dweight);
    set(to.dbias, a.dbias);
    to.dy_rows = strides_of(a.dy_rows, problem);
  }
  if (a.fused == nullptr) return to;
  to.fused.rowscale = a.fused->rowscale;
  to.fused.seeds = a.fused->seeds;
  to.fused.rowscale1 = a.fused->rowscale1;
  to.fused.seeds1 = a.fused->seeds1;
  to.fused.residual_out = a.fused->sum;
  set(to.fused.weight1, a.fused->weight1);
  if constexpr (kForward) {
    set(to.fused.x1, a.fused->x1);
    to.fused.residual = a.fused->residual;
    set(to.fused.bias1, a.fused->bias1);
    set(to.fused.y1, a.fused->y1);
  } else {
    set(to.fused.dy1, a.fused->dy1);
    to.fused.dresidual_out = a.fused->dsum;
    set(to.fused.dx1, a.fused->dx1);
    to.fused.dresidual = a.fused->dresidual;
    set(to.fused.dweight1, a.fused->dweight1);
    set(to.fused.dbias1, a.fused->dbias1);
  }
  return to;
}
#define LNC_INSTANTIATE(name, T, W)                                                \
  template ForwardArgs<T, W> launch_args(const Problem&, const lnc_forward_args&); \
  template BackwardArgs<T, W> launch_args(const Problem&, const lnc_backward_args&);
LNC_TYPE_PAIRS(LNC_INSTANTIATE)
#undef LNC_INSTANTIATE

}  // namespace lnc
