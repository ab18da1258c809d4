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
  for_each_tensor(p, a, fused, [&](const CallTensor& tensor) {
    if (tensor.data == nullptr) return;
    StagedShape shape = tensor.shape;
    if (tensor.rows != nullptr) shape.strides = strides_of(*tensor.rows, p);
    const bool apart = shape.strides.apart && !p.strided();  // the plan has them staged
    if (!apart && (!vectors || at_boundary(tensor.data))) return;
    if (tensor.output) {
      tensor.data = staging.out(const_cast<void*>(tensor.data), shape);
    } else {
      tensor.data = staging.in(tensor.data, shape);
      if (tensor.rows != nullptr) *tensor.rows = nullptr;
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
           .measured_here = measured_gpu(current_gpu()) != nullptr};
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

void run(const Plan& plan, const lnc_forward_args& a, const Layout&) {
  with_types(plan.problem, [&]<typename T, typename W>() {
    std::get<ForwardLaunchers>(plan.chapter->run)
        .get<T, W>()(launch_args<ForwardArgs<T, W>>(plan.problem, a));
  });
}

void run(const Plan& plan, lnc_backward_args a, const Layout& layout) {
  auto* const scratch = static_cast<std::byte*>(a.workspace);
  if (!plan.problem.frozen) {
    if (a.dweight == nullptr) a.dweight = scratch + layout.dweight;
    if (a.dbias == nullptr) a.dbias = scratch + layout.dbias;
  }
  if (plan.problem.kind == Kind::Rms) a.dbias = nullptr;
  if (plan.chapter->from_y) a.mean = nullptr;
  with_types(plan.problem, [&]<typename T, typename W>() {
    std::get<BackwardLaunchers>(plan.chapter->run)
        .get<T, W>()(launch_args<BackwardArgs<T, W>>(plan.problem, a));
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
