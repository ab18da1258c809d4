// The C interface of lnc.h: checks the arguments, finds the chapter, calls its launcher.
#include "common/library/lnc.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "common/harness/gpu.h"
#include "common/harness/registry.h"
#include "common/library/dispatch.h"

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

Problem problem_of(const lnc_problem& given, bool affine) {
  const auto is_dtype = [](std::int32_t dtype) { return dtype >= LNC_F32 && dtype <= LNC_BF16; };
  require(given.kind == LNC_LAYER || given.kind == LNC_RMS,
          "kind is neither LNC_LAYER nor LNC_RMS");
  require(is_dtype(given.dtype), "dtype is none of LNC_F32, LNC_F16 and LNC_BF16");
  require(given.parameter_dtype == given.dtype || given.parameter_dtype == LNC_F32,
          "parameter_dtype is neither dtype nor LNC_F32");
  require(given.rows >= 0,
          [&] { return "rows is " + std::to_string(given.rows) + "; it must be 0 or more"; });
  require(given.cols >= 1,
          [&] { return "cols is " + std::to_string(given.cols) + "; it must be 1 or more"; });
  constexpr auto kMostBytes = std::numeric_limits<std::int64_t>::max();
  require(given.rows <= kMostBytes / 16 / given.cols, [&] {
    return std::to_string(given.rows) + " x " + std::to_string(given.cols) + " is no tensor's size";
  });
  require(given.eps >= 0.0f && std::isfinite(given.eps), "eps must be finite, and 0 or more");
  constexpr DType kDTypes[] = {DType::F32, DType::F16, DType::BF16};
  Problem problem;
  problem.kind = given.kind == LNC_LAYER ? Kind::Layer : Kind::Rms;
  problem.dtype = kDTypes[given.dtype];
  problem.mixed = given.parameter_dtype != given.dtype;
  problem.rows = given.rows;
  problem.cols = given.cols;
  problem.eps = given.eps;
  problem.affine = affine;
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

/// Problem::misalign of tensors at these places: 0 where all start at 16-byte boundaries, and else
/// 1, for they need not start alike.
int misalign_of(std::initializer_list<const void*> pointers) {
  const bool aligned = std::all_of(pointers.begin(), pointers.end(), [](const void* pointer) {
    return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
  });
  return aligned ? 0 : 1;
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
  return problem;
}

Problem check(const lnc_backward_args& a) {
  const bool layer = a.problem.kind == LNC_LAYER;
  Problem problem = problem_of(a.problem, a.weight != nullptr);
  const bool empty = problem.rows == 0;
  const std::int64_t element = problem.element_bytes();
  const std::int64_t parameter = problem.parameter_element_bytes();
  require(a.x == nullptr || a.y == nullptr, "x and y are both given: one of them must be null");
  check_pointer("dy", a.dy, element, empty);
  check_pointer("x", a.x, element, empty || a.y != nullptr);
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
  return problem;
}

/// What a call will run.
struct Plan {
  Problem problem;
  const Chapter* chapter;
  std::int64_t workspace_bytes;  ///< the chapter's own
};

Plan plan_for(const char* asked, const Request& request) {
  const Problem& problem = request.problem;
  const Chapter* chapter = nullptr;
  if (asked == nullptr) {
    chapter = choose(request);
    if (chapter == nullptr) throw Failure(LNC_REFUSED, "no chapter takes this problem");
  } else {
    chapter = find_chapter(asked);
    const std::string direction(name(request.direction));
    if (chapter == nullptr || chapter->direction() != request.direction)
      throw Failure(LNC_UNKNOWN_CHAPTER, "'" + std::string(asked).substr(0, 40) + "' is no " +
                                             direction + " chapter of this library");
    const Refusal why = refusal(*chapter, problem, request.gpu);
    if (!why.empty()) throw Failure(LNC_REFUSED, why.sentence);
    if (chapter->from_y != request.from_y && problem.rows > 0)
      throw Failure(LNC_REFUSED,
                    std::string(asked) +
                        (chapter->from_y ? " starts from y (memory-efficient), and x is given"
                                         : " starts from x, and y (memory-efficient) is given"));
  }
  const std::int64_t bytes =
      chapter->workspace_bytes == nullptr ? 0 : chapter->workspace_bytes(problem);
  return {problem, chapter, bytes};
}

Plan plan_for(const lnc_forward_args& a) {
  const Problem problem = check(a);
  return plan_for(a.chapter,
                  {.direction = Direction::Forward, .problem = problem, .gpu = current_gpu()});
}

Plan plan_for(const lnc_backward_args& a) {
  const Problem problem = check(a);
  return plan_for(a.chapter, {.direction = Direction::Backward,
                              .problem = problem,
                              .from_y = a.y != nullptr,
                              .gpu = current_gpu()});
}

/// Where the workspace's parts start: the chapter's own, then gradients that nobody wants but every
/// chapter writes.
struct Layout {
  static constexpr std::int64_t kAlignment = 256;
  std::int64_t dweight, dbias, end;

  static std::int64_t aligned(std::int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  Layout(const Plan& plan, const lnc_forward_args&)
      : dweight(plan.workspace_bytes), dbias(dweight), end(dweight) {}
  Layout(const Plan& plan, const lnc_backward_args& a) : Layout(plan, lnc_forward_args{}) {
    const std::int64_t gradient =
        aligned(plan.problem.cols * plan.problem.parameter_element_bytes());
    const bool wants_scratch_dbias = a.dbias == nullptr && plan.problem.kind == Kind::Layer;
    if (a.dweight != nullptr && !wants_scratch_dbias) return;
    dweight = aligned(plan.workspace_bytes);
    dbias = dweight + (a.dweight == nullptr ? gradient : 0);
    end = dbias + (wants_scratch_dbias ? gradient : 0);
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
    *to = {id, static_cast<size_t>(Layout(plan, *args).end)};
  });
}

}  // namespace

lnc_status lnc_forward_plan(const lnc_forward_args* args, lnc_plan* plan) {
  return write_plan(args, plan);
}

lnc_status lnc_backward_plan(const lnc_backward_args* args, lnc_plan* plan) {
  return write_plan(args, plan);
}

lnc_status lnc_forward(const lnc_forward_args* args) {
  return guarded([&] {
    require(args != nullptr, "args is null");
    const lnc_forward_args& a = *args;
    const Plan plan = plan_for(a);
    check_workspace(plan, Layout(plan, a).end, a.workspace, a.workspace_bytes);
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
                        .fused = {}});
    });
  });
}

lnc_status lnc_backward(const lnc_backward_args* args) {
  return guarded([&] {
    require(args != nullptr, "args is null");
    const lnc_backward_args& a = *args;
    const Plan plan = plan_for(a);
    const Layout layout(plan, a);
    check_workspace(plan, layout.end, a.workspace, a.workspace_bytes);
    const bool layer = plan.problem.kind == Kind::Layer;
    auto* const scratch = static_cast<std::byte*>(a.workspace);
    void* const dweight = a.dweight != nullptr ? a.dweight : scratch + layout.dweight;
    void* const dbias = !layer ? nullptr : a.dbias != nullptr ? a.dbias : scratch + layout.dbias;
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
                        .fused = {}});
    });
  });
}

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
