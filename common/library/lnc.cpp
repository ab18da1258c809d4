// The C interface of lnc.h: plans a call, and runs it.
#include "common/library/lnc.h"

#include <cstdio>
#include <exception>
#include <string>
#include <type_traits>

#include "common/kernel/gpu.h"
#include "common/kernel/registry.h"
#include "common/library/arguments.h"
#include "common/library/plan.h"
#include "common/library/staging.h"

namespace {

using namespace lnc;

thread_local char last_error[1024] = "";

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

/// Replaces by copies those tensors of a batch-invariant pass whose rows are whole vectors but not
/// 16-byte aligned, and strided rows that the chapter does not take.
/// @param fused *a.fused, if that is not null
template <typename Args>
void stage(const Plan& plan, Args& a, FusedOf<Args>* fused, Staging& staging) {
  const Problem& p = plan.problem;
  const bool vectors = p.has_whole_vectors();
  for_each_tensor(
      p, a, fused, [&]<typename U>(U*& tensor, StagedShape shape, const lnc_rows** rows = nullptr) {
        if (tensor == nullptr) return;
        if (rows != nullptr) shape.strides = strides_of(*rows, p);
        const bool apart = shape.strides.apart && !p.strided();  // the plan has them staged
        if (!apart && (!vectors || at_boundary(tensor))) return;
        if constexpr (std::is_const_v<U>) {
          tensor = staging.in(tensor, shape);
          if (rows != nullptr) *rows = nullptr;
        } else {
          tensor = staging.out(tensor, shape);
        }
      });
}

/// Where the workspace's parts start: the chapter's own, then gradients that the caller did not
/// request but the chapter writes, then the copies of a batch-invariant pass.
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

/// Launches a backward pass.
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
    if (chapter.direction() == Direction::Copy) continue;  // not a norm: nothing here would call it
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
