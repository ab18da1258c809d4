#include "common/library/dispatch.h"

#include <algorithm>
#include <cstdlib>

#include "common/kernel/registry.h"

namespace lnc {
namespace {

// common/bench/tests/dispatch_test.py compares the table with what was measured on an H100 and on
// an H200: at each shape its choice must be within 5 % of the fastest kernel. These shapes are the
// problem sets progression, sweep, large, wide, narrow, odd and small (h100.csv), and widths that
// models have and some that none has, for both kinds, bfloat16 and float, in tensors of 128 MiB,
// and eight of them in 64 and 8 MiB (peers_h100.csv); for an H200, peers_h200.csv and the sets
// progression and sweep of h200.csv. Mixed types and null parameters are not measured and get the
// same kernels. Other GPUs get only the rules without a GPU. Each kernel chooses its own launch
// shape; those that need Hopper refuse older GPUs, and the next rule is tried.
constexpr Choice kChoices[] = {
#include "dispatch_table.inc"
};
static_assert(std::ranges::all_of(kChoices,
                                  [](const Choice& choice) {
                                    return choice.gpus.empty() || choice.measured_on() != nullptr;
                                  }),
              "dispatch.json has a rule for a GPU that is not measured");

}  // namespace

std::span<const Choice> choices() { return kChoices; }

const MeasuredGpu* measured_gpu(const Gpu& gpu) {
  for (const MeasuredGpu& measured : kMeasuredGpus) {
    const Gpu& known = measured.gpu;
    const int difference = std::abs(gpu.memory_gb_s - known.memory_gb_s);
    if (gpu.architecture == known.architecture && gpu.multiprocessors == known.multiprocessors &&
        difference <= known.memory_gb_s / 20)
      return &measured;
  }
  return nullptr;
}

namespace {

bool is_for(const Choice& choice, const Gpu& gpu) {
  const MeasuredGpu* const measured = measured_gpu(gpu);
  return choice.gpus.empty() || (measured != nullptr && choice.is_for(*measured));
}

/// A batch-invariant request as the table sees it, whatever the number and addresses of its rows.
Request normalised(Request request) {
  Problem& problem = request.problem;
  if (!problem.batch_invariant) return request;
  problem.rows = 1;
  problem.misalign = problem.stagger = 0;
  problem.row_gap = problem.heads = problem.heads_gap = 0;
  return request;
}

/// Whether a rule takes these numbers of rows and bytes; those of a batch-invariant request do not
/// matter.
bool takes_size(const Choice& choice, const Problem& problem) {
  if (problem.batch_invariant) return choice.batch_invariant;
  return choice.min_rows <= problem.rows && problem.tensor_bytes() <= choice.max_tensor_bytes;
}

}  // namespace

bool takes(const Choice& choice, const Request& request) {
  const auto within = [](auto least, auto value, auto most) {
    return least <= value && value <= most;
  };
  const Problem& problem = request.problem;
  return choice.direction == request.direction && choice.from_y == request.from_y &&
         choice.fused == (problem.fusion != Fusion{}) &&
         (problem.aligned() || !choice.needs_aligned) &&
         (problem.has_same_alignment() || !choice.needs_same_alignment) &&
         (problem.cols * problem.element_bytes() % 16 != 0 || !choice.needs_unaligned_row_bytes) &&
         choice.kind.value_or(problem.kind) == problem.kind &&
         choice.dtype.value_or(problem.dtype) == problem.dtype &&
         (problem.element_bytes() == 2 || !choice.needs_16_bit) &&
         within(choice.min_cols, problem.cols, choice.max_cols) &&
         problem.cols <= choice.max_row_bytes / problem.element_bytes() &&
         takes_size(choice, problem) &&
         within(choice.min_architecture, request.gpu.architecture, choice.max_architecture) &&
         is_for(choice, request.gpu);
}

namespace {

/// The first rule that takes a request and whose kernel does not refuse it. A rule whose kernel is
/// not linked into this program counts only if `any_kernel`.
const Choice* first_rule(const Request& request, std::span<const Choice> table, bool any_kernel) {
  for (const Choice& choice : table) {
    if (!takes(choice, request)) continue;
    const Chapter* chapter = find_chapter(choice.chapter);
    if (chapter == nullptr && any_kernel) return &choice;
    if (chapter == nullptr) continue;
    if (request.in_place && request.problem.cols > chapter->in_place_cols) continue;
    if (refusal(*chapter, request.problem, request.gpu).empty()) return &choice;
  }
  return nullptr;
}

}  // namespace

Chosen choose(const Request& request, std::span<const Choice> table) {
  const Choice* rule = first_rule(normalised(request), table, false);
  if (rule == nullptr) return {};
  return {rule, find_chapter(rule->chapter)};
}

std::string_view kernel_for(const Request& request) {
  const Choice* rule = first_rule(normalised(request), choices(), true);
  return rule == nullptr ? std::string_view() : rule->chapter;
}

}  // namespace lnc
