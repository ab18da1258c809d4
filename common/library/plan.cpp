#include "common/library/plan.h"

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/kernel/gpu.h"
#include "common/kernel/registry.h"
#include "common/library/arguments.h"
#include "common/library/former_ids.h"

namespace lnc {
namespace {

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

/// A batch-invariant problem as its chapter gets it, with aligned copies in place of unaligned
/// tensors. If rows are not whole vectors, the chapter takes them wherever they start.
Problem staged(Problem problem, const Chapter& chapter) {
  if (!problem.batch_invariant) return problem;
  if (problem.has_whole_vectors()) problem.misalign = problem.stagger = 0;
  if (stages_rows(problem, chapter)) problem.row_gap = problem.heads = problem.heads_gap = 0;
  return problem;
}

/// "; lib_fwd_ring takes it": for a refusal by `chapter`. Empty if no kernel takes it.
std::string other_kernel(const Chapter& chapter, const Request& request) {
  const std::string_view id = kernel_for(request);
  return id.empty() || id == chapter.id ? "" : "; " + std::string(id) + " takes it";
}

Plan new_plan(const char* asked, Request request) {
  Problem& problem = request.problem;
  const bool frozen = problem.frozen;
  problem.frozen = false;  // not a reason to refuse
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

/// All that a plan depends on. Without a chapter, the dispatch chooses one.
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

}  // namespace

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

}  // namespace lnc
