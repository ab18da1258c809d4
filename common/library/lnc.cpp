// The C interface of lnc.h: checks the arguments, finds the chapter, calls its launcher.
#include "common/library/lnc.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/kernel/gpu.h"
#include "common/kernel/registry.h"
#include "common/library/dispatch.h"
#include "common/library/former_ids.h"
#include "common/library/staging.h"

namespace {

using namespace lnc;

thread_local char last_error[1024] = "";

/// Thrown inside of a call, a status with its sentence.
struct Failure : std::runtime_error {
  Failure(lnc_status status, const std::string& why) : std::runtime_error(why), status(status) {}
  lnc_status status;
};

/// `why` is a sentence, or makes one.
template <typename Why>
void require(bool holds, const Why& why) {
  if (holds) return;
  if constexpr (std::is_invocable_v<Why>)
    throw Failure(LNC_BAD_ARGUMENT, why());
  else
    throw Failure(LNC_BAD_ARGUMENT, why);
}

/// Runs the body of a call. No exception leaves it.
template <typename Body>
lnc_status guarded(const Body& body) noexcept {
  const auto failed = [](lnc_status status, const char* why) {
    std::snprintf(last_error, sizeof last_error, "%s", why);
    return status;
  };
  try {
    last_error[0] = '\0';
    body();
    return LNC_OK;
  } catch (const Failure& failure) {
    return failed(failure.status, failure.what());
  } catch (const std::exception& error) {
    return failed(LNC_FAILED, error.what());
  } catch (...) {
    return failed(LNC_FAILED, "an unknown exception");
  }
}

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

/// A pointer that must be at a multiple of its element's size, and not null unless `may_be_null`.
void check_pointer(const char* name, const void* pointer, std::int64_t element_bytes,
                   bool may_be_null) {
  require(may_be_null || pointer != nullptr, [&] { return std::string(name) + " is null"; });
  require(reinterpret_cast<std::uintptr_t>(pointer) % element_bytes == 0, [&] {
    return std::string(name) + " is not aligned to its elements of " +
           std::to_string(element_bytes) + " bytes";
  });
}

bool aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0; }

/// Problem::misalign of tensors at these places: 0 where all start at 16-byte boundaries, and else
/// 1, for they need not start alike.
int misalign_of(std::initializer_list<const void*> pointers) {
  return std::all_of(pointers.begin(), pointers.end(), aligned) ? 0 : 1;
}

/// Where rows start, and rows one behind another where `given` says no more than that.
RowStrides strides_of(const lnc_rows* given, const Problem& problem) {
  if (given == nullptr) return {};
  const bool groups = given->group_rows > 0 && given->group_rows < problem.rows;
  const bool one_behind_another =
      given->row_stride == problem.cols &&
      (!groups || given->group_stride == given->group_rows * problem.cols);
  if (one_behind_another) return {};
  return {true, given->row_stride, given->group_stride, groups ? given->group_rows : 0};
}

/// Checks where the rows of a tensor start, and adds to the problem that they lie apart.
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
  // For the choice of a chapter any gap will do: what counts is whether it is one of vectors.
  if (!of_vectors) problem.row_gap = 1;
  if (problem.row_gap == 0) problem.row_gap = static_cast<int>(vector);
}

void check_dropout(float dropout) {
  require(dropout >= 0.0f && dropout < 1.0f, [&] {
    return "dropout is " + words(dropout) + "; it must be a probability, 0 <= dropout < 1";
  });
}

/// Adds what a fused pass asks to the problem, and checks its pointers.
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
      "float_residual is set, and there is no residual whose type it would be");
  const std::int64_t residual = problem.residual_element_bytes();
  const auto check_part = [&](const char* name, const void* pointer, bool wanted,
                              std::int64_t bytes) {
    if (wanted) return check_pointer(name, pointer, bytes, empty);
    require(pointer == nullptr, [&] { return std::string(name) + " must be null here"; });
  };
  check_part("rowscale", f.rowscale, scales, sizeof(float));
  check_part("rowscale1", f.rowscale1, scales && has_x1, sizeof(float));
  check_part("seeds", f.seeds, drops, sizeof(std::uint32_t));
  check_part("seeds1", f.seeds1, drops && has_x1, sizeof(std::uint32_t));
  check_pointer("x1", f.x1, element, true);
  check_pointer("residual", f.residual, residual, true);
  check_pointer("sum", f.sum, residual, true);
  check_pointer("weight1", f.weight1, parameter, true);
  check_pointer("bias1", f.bias1, parameter, true);
  check_pointer("y1", f.y1, element, true);
  require(f.y1 != nullptr || (f.weight1 == nullptr && f.bias1 == nullptr),
          "weight1 and bias1 are for y1, which is null");
  require(problem.kind == Kind::Layer || f.bias1 == nullptr, "RMS norm has no bias1");
  for (const void* pointer : {f.x1, f.residual, static_cast<const void*>(f.sum), f.weight1, f.bias1,
                              static_cast<const void*>(f.y1)})
    if (!aligned(pointer)) problem.misalign = 1;
}

/// Whether nobody wants a gradient of a parameter.
bool wants_no_parameters(const lnc_backward_args& a) {
  const bool wants_second =
      a.fused != nullptr && (a.fused->dweight1 != nullptr || a.fused->dbias1 != nullptr);
  return a.dweight == nullptr && a.dbias == nullptr && !wants_second;
}

/// Likewise of a backward pass.
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
  // Where nothing else tells this pass from a plain one: the sum is x itself, and has a gradient.
  if (problem.fusion == Fusion{}) problem.fusion.prenorm = true;
  const std::int64_t residual = problem.residual_element_bytes();
  const auto check_part = [&](const char* name, const void* pointer, bool wanted,
                              std::int64_t bytes) {
    if (wanted) return check_pointer(name, pointer, bytes, empty);
    require(pointer == nullptr, [&] { return std::string(name) + " must be null here"; });
  };
  check_part("rowscale1", f.rowscale1, scales && has_x1, sizeof(float));
  check_part("seeds", f.seeds, drops, sizeof(std::uint32_t));
  check_part("seeds1", f.seeds1, drops && has_x1, sizeof(std::uint32_t));
  check_pointer("sum", f.sum, residual, empty);
  check_pointer("dsum", f.dsum, residual, true);
  check_pointer("dy1", f.dy1, element, true);
  check_pointer("weight1", f.weight1, parameter, true);
  check_part("dx1", f.dx1, problem.writes_dx1(), element);
  check_part("dresidual", f.dresidual, problem.writes_dresidual(), residual);
  check_part("dweight1", f.dweight1, has_y1 && !frozen, parameter);
  check_part("dbias1", f.dbias1, has_y1 && layer && !frozen, parameter);
  for (const void* pointer : {f.sum, f.dsum, f.dy1, f.weight1, static_cast<const void*>(f.dx1),
                              static_cast<const void*>(f.dresidual)})
    if (!aligned(pointer)) problem.misalign = 1;
}

/// Whether a pass writes y where x is, or the sum where the residual is.
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
  const bool needs_bias = layer && a.y != nullptr;  // x is made from y by them
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

/// What a call will run. The problem is frozen only if the chapter can leave out what is.
struct Plan {
  Problem problem;  ///< as the chapter sees it, after staging
  const Chapter* chapter;
  const Choice* line;            ///< of the dispatch's table; null where the chapter was asked for
  std::int64_t workspace_bytes;  ///< the chapter's own
};

/// Whether strided rows of x and dy are copied first.
bool stages_rows(const Problem& problem, const Chapter& chapter) {
  constexpr std::int64_t kBoundary = 16;
  const auto whole = [&](std::int64_t elements) {
    return elements * problem.element_bytes() % kBoundary == 0;
  };
  const bool of_vectors = whole(problem.row_gap) && whole(problem.heads_gap);
  const std::int64_t row_bytes = problem.cols * problem.element_bytes();
  const bool like_dense = of_vectors && row_bytes <= chapter.strided_like_dense_bytes;
  return !chapter.takes_strides || (problem.has_whole_vectors() && !like_dense);
}

/// A batch-invariant problem as its chapter gets it, with aligned copies in place of tensors that
/// start elsewhere. Where rows are no whole vectors, the chapter takes them wherever they start.
Problem staged(Problem problem, const Chapter& chapter) {
  if (!problem.batch_invariant) return problem;
  if (problem.has_whole_vectors()) problem.misalign = problem.stagger = 0;
  if (stages_rows(problem, chapter)) problem.row_gap = problem.heads = problem.heads_gap = 0;
  return problem;
}

/// "; lib_fwd_ring takes it": for a refusal by `chapter`. Empty where no kernel does.
std::string other_kernel(const Chapter& chapter, const Request& request) {
  const std::string_view id = kernel_for(request);
  return id.empty() || id == chapter.id ? "" : "; " + std::string(id) + " takes it";
}

Plan new_plan(const char* asked, Request request) {
  Problem& problem = request.problem;
  const bool frozen = problem.frozen;
  problem.frozen = false;  // no reason to refuse
  const Chapter* chapter = nullptr;
  const Choice* line = nullptr;
  if (asked == nullptr) {
    const Chosen chosen = choose(request);
    chapter = chosen.chapter;
    line = chosen.line;
    if (chapter == nullptr)
      throw Failure(LNC_REFUSED, request.in_place ? "no kernel takes this problem in place"
                                                  : "no kernel takes this problem");
  } else {
    chapter = find_chapter(current_id(asked));
    const std::string direction(name(request.direction));
    if (chapter == nullptr || chapter->direction() != request.direction)
      throw Failure(LNC_UNKNOWN_CHAPTER, "'" + std::string(asked).substr(0, 40) + "' is no " +
                                             direction + " kernel of this library");
    if (request.in_place && problem.cols > chapter->in_place_cols)
      throw Failure(LNC_REFUSED, std::string(asked) + " does not write where it reads in rows of " +
                                     std::to_string(problem.cols) +
                                     " columns: give y and sum memory of their own");
    if (chapter->from_y != request.from_y && problem.rows > 0)
      throw Failure(LNC_REFUSED,
                    std::string(asked) +
                        (chapter->from_y ? " starts from y (memory-efficient), and x is given"
                                         : " starts from x, and y (memory-efficient) is given"));
  }
  if (problem.strided() && problem.rows > kMaxStridedRows)
    throw Failure(LNC_REFUSED, "rows is " + std::to_string(problem.rows) + "; at most " +
                                   std::to_string(kMaxStridedRows) + " strided rows are supported");
  problem = staged(problem, *chapter);
  if (asked != nullptr || problem.batch_invariant) {
    const Refusal why = refusal(*chapter, problem, request.gpu);
    if (!why.empty()) throw Failure(LNC_REFUSED, why.sentence + other_kernel(*chapter, request));
  }
  problem.frozen = frozen && chapter->takes_frozen;
  if (frozen && !problem.frozen && problem.fusion.second_affine)
    throw Failure(LNC_REFUSED,
                  std::string(chapter->id) + " writes dweight1 and dbias1: they may not be null");
  const std::int64_t bytes =
      chapter->workspace_bytes == nullptr ? 0 : chapter->workspace_bytes(problem);
  return {problem, chapter, line, bytes};
}

/// All that a plan depends on. No chapter is the dispatch's choice.
struct PlanKey {
  std::optional<std::string> chapter;
  Direction direction;
  bool from_y;
  bool in_place;
  Gpu gpu;
  Problem problem;

  bool operator==(const PlanKey& other) const {
    return problem == other.problem && direction == other.direction && from_y == other.from_y &&
           in_place == other.in_place && gpu == other.gpu && chapter == other.chapter;
  }
};

/// The plan for a problem. Each thread caches its last ones, since a model asks for the same few
/// again and again.
Plan plan_for(const char* asked, const Request& request) {
  constexpr std::size_t kMostPlans = 32;
  struct CachedPlan {
    PlanKey key;
    Plan plan;
  };
  thread_local std::vector<CachedPlan> plans;
  thread_local std::size_t oldest = 0;
  PlanKey key{std::nullopt,     request.direction, request.from_y,
              request.in_place, request.gpu,       request.problem};
  if (asked != nullptr) key.chapter = asked;
  for (const CachedPlan& cached : plans) {
    if (cached.key == key) return cached.plan;
  }
  const Plan plan = new_plan(asked, request);
  if (plans.size() < kMostPlans) {
    plans.push_back({std::move(key), plan});
  } else {
    plans[oldest] = {std::move(key), plan};
    oldest = (oldest + 1) % kMostPlans;
  }
  return plan;
}

Plan plan_for(const lnc_forward_args& a) {
  const Problem problem = check(a);
  return plan_for(a.chapter, {.direction = Direction::Forward,
                              .problem = problem,
                              .gpu = current_gpu(),
                              .in_place = is_in_place(a)});
}

Plan plan_for(const lnc_backward_args& a) {
  const Problem problem = check(a);
  return plan_for(a.chapter, {.direction = Direction::Backward,
                              .problem = problem,
                              .from_y = a.y != nullptr,
                              .gpu = current_gpu()});
}

template <typename T, typename W>
FusedForward<T, W> fused_of(const lnc_fused_forward* f) {
  if (f == nullptr) return {};
  return {.rowscale = f->rowscale,
          .seeds = f->seeds,
          .x1 = static_cast<const T*>(f->x1),
          .rowscale1 = f->rowscale1,
          .seeds1 = f->seeds1,
          .residual = f->residual,
          .residual_out = f->sum,
          .weight1 = static_cast<const W*>(f->weight1),
          .bias1 = static_cast<const W*>(f->bias1),
          .y1 = static_cast<T*>(f->y1),
          .mask = nullptr,
          .mask1 = nullptr,
          .dropout = f->dropout,
          .residual_is_float = f->residual != nullptr && f->float_residual != 0};
}

template <typename T, typename W>
FusedBackward<T, W> fused_of(const lnc_fused_backward* f) {
  if (f == nullptr) return {};
  return {.dy1 = static_cast<const T*>(f->dy1),
          .residual_out = f->sum,
          .dresidual_out = f->dsum,
          .weight1 = static_cast<const W*>(f->weight1),
          .rowscale = f->rowscale,
          .seeds = f->seeds,
          .rowscale1 = f->rowscale1,
          .seeds1 = f->seeds1,
          .dx1 = static_cast<T*>(f->dx1),
          .dresidual = f->dresidual,
          .dweight1 = static_cast<W*>(f->dweight1),
          .dbias1 = static_cast<W*>(f->dbias1),
          .dropout = f->dropout,
          .residual_is_float = f->has_residual != 0 && f->float_residual != 0};
}

/// Calls `visit(tensor, shape)` for each tensor of a pass that may start anywhere. Outputs are the
/// pointers to non-const. `visit` sets `rows` to null when it puts a dense copy in place of strided
/// rows.
template <typename Visit>
void for_each_tensor(const Problem& p, lnc_forward_args& a, lnc_fused_forward* f,
                     const Visit& visit) {
  const StagedShape matrix{p.rows, p.cols, p.element_bytes()};
  const StagedShape sum{p.rows, p.cols, p.residual_element_bytes()};
  const StagedShape vector{1, p.cols, p.parameter_element_bytes()};
  visit(a.x, matrix, &a.x_rows);
  visit(a.weight, vector);
  visit(a.bias, vector);
  if (f != nullptr) {
    visit(f->x1, matrix);
    visit(f->residual, sum);
    visit(f->weight1, vector);
    visit(f->bias1, vector);
    visit(f->sum, sum);
    visit(f->y1, matrix);
  }
  visit(a.y, matrix);
}
template <typename Visit>
void for_each_tensor(const Problem& p, lnc_backward_args& a, lnc_fused_backward* f,
                     const Visit& visit) {
  const StagedShape matrix{p.rows, p.cols, p.element_bytes()};
  const StagedShape sum{p.rows, p.cols, p.residual_element_bytes()};
  const StagedShape vector{1, p.cols, p.parameter_element_bytes()};
  visit(a.dy, matrix, &a.dy_rows);
  visit(a.x, matrix, &a.x_rows);
  visit(a.y, matrix);
  visit(a.weight, vector);
  visit(a.bias, vector);
  if (f != nullptr) {
    visit(f->sum, sum);
    visit(f->dsum, sum);
    visit(f->dy1, matrix);
    visit(f->weight1, vector);
    visit(f->dx1, matrix);
    visit(f->dresidual, sum);
  }
  visit(a.dx, matrix);
}

template <typename Args>
using FusedOf = std::conditional_t<std::is_same_v<Args, lnc_forward_args>, lnc_fused_forward,
                                   lnc_fused_backward>;

/// Puts copies in place of those tensors of a batch-invariant pass that are made of whole vectors
/// but are not 16-byte aligned, and of strided rows that the chapter does not take.
/// @param fused *a.fused, where that is there
template <typename Args>
void stage(const Plan& plan, Args& a, FusedOf<Args>* fused, Staging& staging) {
  const Problem& p = plan.problem;
  const bool vectors = p.has_whole_vectors();
  for_each_tensor(
      p, a, fused, [&]<typename U>(U*& tensor, StagedShape shape, const lnc_rows** rows = nullptr) {
        if (tensor == nullptr) return;
        if (rows != nullptr) shape.strides = strides_of(*rows, p);
        const bool apart = shape.strides.apart && !p.strided();  // the plan has them staged
        if (!apart && (!vectors || aligned(tensor))) return;
        if constexpr (std::is_const_v<U>) {
          tensor = staging.in(tensor, shape);
          if (rows != nullptr) *rows = nullptr;
        } else {
          tensor = staging.out(tensor, shape);
        }
      });
}

/// Where the workspace's parts start: the chapter's own, then gradients that the caller does not
/// want and the chapter writes, then the copies of a batch-invariant pass.
struct Layout {
  std::int64_t dweight, dbias, staging, end;

  static std::int64_t aligned(std::int64_t bytes) {
    constexpr std::int64_t kAlignment = Staging::kAlignment;
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  Layout(const Plan& plan, const lnc_forward_args& a)
      : dweight(plan.workspace_bytes), dbias(dweight), staging(dweight), end(dweight) {
    add_staging(plan, a);
  }
  Layout(const Plan& plan, const lnc_backward_args& a)
      : dweight(plan.workspace_bytes), dbias(dweight), staging(dweight), end(dweight) {
    const std::int64_t gradient =
        aligned(plan.problem.cols * plan.problem.parameter_element_bytes());
    const bool lacks_dweight = a.dweight == nullptr && !plan.problem.frozen;
    const bool lacks_dbias =
        a.dbias == nullptr && plan.problem.kind == Kind::Layer && !plan.problem.frozen;
    if (lacks_dweight || lacks_dbias) {
      dweight = aligned(plan.workspace_bytes);
      dbias = dweight + (lacks_dweight ? gradient : 0);
      staging = end = dbias + (lacks_dbias ? gradient : 0);
    }
    add_staging(plan, a);
  }

 private:
  template <typename Args>
  void add_staging(const Plan& plan, Args a) {
    if (!plan.problem.batch_invariant) return;
    Staging measured;
    auto fused = a.fused != nullptr ? *a.fused : FusedOf<Args>{};
    stage(plan, a, a.fused != nullptr ? &fused : nullptr, measured);
    if (measured.bytes() == 0) return;
    staging = aligned(end);
    end = staging + measured.bytes();
  }
};

void check_workspace(const Plan& plan, std::int64_t needed, const void* workspace, size_t given) {
  constexpr std::int64_t kBoundary = 16;
  if (needed == 0) return;
  if (static_cast<std::uint64_t>(needed) > given)
    throw Failure(LNC_SMALL_WORKSPACE, std::string(plan.chapter->id) + " needs a workspace of " +
                                           std::to_string(needed) +
                                           " bytes, as its plan says, and "
                                           "got " +
                                           std::to_string(given));
  require(workspace != nullptr, "workspace is null");
  require(reinterpret_cast<std::uintptr_t>(workspace) % kBoundary == 0,
          "workspace does not start at a 16-byte boundary");
}

template <typename Args>
lnc_status write_plan(const Args* args, lnc_plan* to) {
  return guarded([&] {
    require(args != nullptr && to != nullptr, "args or plan is null");
    const Plan plan = plan_for(*args);
    const char* const id = plan.chapter->id.data();  // a literal: ends with a 0
    const bool asked = plan.line == nullptr;
    *to = {.chapter = id,
           .workspace_bytes = static_cast<size_t>(Layout(plan, *args).end),
           .because = asked ? "" : plan.line->because.data(),
           .measured_on = asked ? "" : plan.line->measured_on(),
           .measured_here = measured_gpu(current_gpu()) != MeasuredGpu::None};
  });
}

}  // namespace

lnc_status lnc_forward_plan(const lnc_forward_args* args, lnc_plan* plan) {
  return write_plan(args, plan);
}

lnc_status lnc_backward_plan(const lnc_backward_args* args, lnc_plan* plan) {
  return write_plan(args, plan);
}

namespace {

/// Launches a forward pass.
void run(const Plan& plan, const lnc_forward_args& a, const Layout&) {
  with_types(plan.problem, [&]<typename T, typename W>() {
    std::get<ForwardLaunchers>(plan.chapter->run)
        .get<T, W>()({.x = static_cast<const T*>(a.x),
                      .weight = static_cast<const W*>(a.weight),
                      .bias = static_cast<const W*>(a.bias),
                      .y = static_cast<T*>(a.y),
                      .mean = plan.problem.kind == Kind::Layer ? a.mean : nullptr,
                      .rstd = a.rstd,
                      .rows = plan.problem.rows,
                      .cols = plan.problem.cols,
                      .eps = plan.problem.eps,
                      .group = 0,
                      .kind = plan.problem.kind,
                      .workspace = a.workspace,
                      .stream = static_cast<cudaStream_t>(a.stream),
                      .fused = fused_of<T, W>(a.fused),
                      .x_rows = strides_of(a.x_rows, plan.problem),
                      .batch_invariant = plan.problem.batch_invariant});
  });
}

/// Likewise a backward pass.
void run(const Plan& plan, const lnc_backward_args& a, const Layout& layout) {
  const bool layer = plan.problem.kind == Kind::Layer;
  auto* const scratch = static_cast<std::byte*>(a.workspace);
  const auto gradient = [&](void* wanted, std::int64_t place) -> void* {
    if (wanted != nullptr || plan.problem.frozen) return wanted;
    return scratch + place;
  };
  void* const dweight = gradient(a.dweight, layout.dweight);
  void* const dbias = layer ? gradient(a.dbias, layout.dbias) : nullptr;
  with_types(plan.problem, [&]<typename T, typename W>() {
    std::get<BackwardLaunchers>(plan.chapter->run)
        .get<T, W>()({.dy = static_cast<const T*>(a.dy),
                      .x = static_cast<const T*>(a.x),
                      .y = static_cast<const T*>(a.y),
                      .weight = static_cast<const W*>(a.weight),
                      .mean = layer && !plan.chapter->from_y ? a.mean : nullptr,
                      .rstd = a.rstd,
                      .bias = static_cast<const W*>(a.bias),
                      .dx = static_cast<T*>(a.dx),
                      .dweight = static_cast<W*>(dweight),
                      .dbias = static_cast<W*>(dbias),
                      .y_again = nullptr,
                      .rows = plan.problem.rows,
                      .cols = plan.problem.cols,
                      .eps = plan.problem.eps,
                      .group = 0,
                      .kind = plan.problem.kind,
                      .workspace = a.workspace,
                      .stream = static_cast<cudaStream_t>(a.stream),
                      .fused = fused_of<T, W>(a.fused),
                      .x_rows = strides_of(a.x_rows, plan.problem),
                      .dy_rows = strides_of(a.dy_rows, plan.problem)});
  });
}

/// Runs a batch-invariant pass, on copies of the tensors that need them.
template <typename Args>
void run_staged(const Plan& plan, Args a, const Layout& layout) {
  auto* const memory = static_cast<std::byte*>(a.workspace) + layout.staging;
  Staging staging(layout.staging < layout.end ? memory : nullptr,
                  static_cast<cudaStream_t>(a.stream));
  auto fused = a.fused != nullptr ? *a.fused : FusedOf<Args>{};
  if (layout.staging < layout.end) {
    stage(plan, a, a.fused != nullptr ? &fused : nullptr, staging);
    if (a.fused != nullptr) a.fused = &fused;
  }
  run(plan, a, layout);
  staging.copy_back();
}

template <typename Args>
lnc_status run(const Args* args) {
  return guarded([&] {
    require(args != nullptr, "args is null");
    const Plan plan = plan_for(*args);
    const Layout layout(plan, *args);
    check_workspace(plan, layout.end, args->workspace, args->workspace_bytes);
    if (plan.problem.batch_invariant) {
      run_staged(plan, *args, layout);
    } else {
      run(plan, *args, layout);
    }
  });
}

}  // namespace

lnc_status lnc_forward(const lnc_forward_args* args) { return run(args); }

lnc_status lnc_backward(const lnc_backward_args* args) { return run(args); }

size_t lnc_list(lnc_chapter* list, size_t capacity) {
  if (list == nullptr) capacity = 0;
  size_t count = 0;
  for (const Chapter& chapter : chapters()) {
    if (chapter.direction() == Direction::Copy) continue;  // no norm: nothing here would call it
    if (count < capacity)
      list[count] = {chapter.id.data(), chapter.title.data(),
                     chapter.direction() == Direction::Backward, chapter.from_y,
                     chapter.deterministic};
    ++count;
  }
  return count;
}

const char* lnc_last_error() { return last_error; }

const char* lnc_backend() { return backend_name(); }

const char* lnc_version() { return LNC_VERSION; }

int lnc_abi() { return LNC_ABI; }
