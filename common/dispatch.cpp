#include "common/dispatch.h"

#include <algorithm>

namespace lnc {
namespace {

// common/tests/dispatch_test.py compares this table with notebooks/data/h100.jsonl: at each
// measured shape its choice must be within 3 % of the fastest chapter. With --table it shows every
// shape, its choice and the next; a new line goes above those that take more.
//
// That file has layer norm with weight and bias on an H100: float at 1024 x 2048, half at 4096 rows
// of 1024 to 15872 columns, bfloat16 at 8192 to 131072 rows of 1024 to 16384 columns. For RMS norm,
// mixed types, null parameters, other alignments, wider rows and other GPUs nothing is measured;
// they get the same chapters, which take every problem. Each chapter finds its launch shape itself.
constexpr Choice kChoices[] = {
    {.chapter = "fwd06",
     .because = "the fastest at each of the 37 forward shapes; the next needs 11 % more time at "
                "f32 1024 x 2048, 18 to 82 % more at the others",
     .direction = Direction::Forward},
    {.chapter = "bwd09",
     .because = "the fastest at each of the 37 backward shapes; the next needs 7 % more time at "
                "f32 1024 x 2048, 13 to 60 % more at the others",
     .direction = Direction::Backward},
    {.chapter = "bwd07",
     .because = "the only chapter that starts from y",
     .direction = Direction::Backward,
     .from_y = true},
};

}  // namespace

std::span<const Choice> choices() { return kChoices; }

bool takes(const Choice& choice, const Request& request) {
  const auto within = [](auto least, auto value, auto most) {
    return least <= value && value <= most;
  };
  const Problem& problem = request.problem;
  return choice.direction == request.direction && choice.from_y == request.from_y &&
         (request.aligned || !choice.needs_aligned) &&
         choice.kind.value_or(problem.kind) == problem.kind &&
         choice.dtype.value_or(problem.dtype) == problem.dtype &&
         within(choice.min_cols, problem.cols, choice.max_cols) &&
         within(choice.min_rows, problem.rows, choice.max_rows) &&
         within(choice.min_architecture, request.gpu.architecture, choice.max_architecture);
}

const Chapter* choose(const Request& request, std::span<const Choice> table) {
  for (const Choice& choice : table) {
    const Chapter* chapter = takes(choice, request) ? find_chapter(choice.chapter) : nullptr;
    if (chapter != nullptr && refusal(*chapter, request.problem, request.gpu).empty())
      return chapter;
  }
  return nullptr;
}

const Chapter* find_chapter(std::string_view id) {
  const auto& all = chapters();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Chapter& c) { return c.id == id; });
  return found == all.end() ? nullptr : &*found;
}

}  // namespace lnc
