// The whole test matrix of a chapter: dtypes, kinds, awkward shapes, schedules. Linked with one
// chapter; runs on either backend.
#include <algorithm>

#include "common/harness/tests/chapter_checks.h"

using namespace lnc;

namespace {

constexpr int kRuns = 3;  // per problem

/// Runs of a problem with many similar blocks: on the SIMT machine, another order takes minutes and
/// finds nothing new.
int runs_of_many_blocks() { return device().emulated ? 1 : kRuns; }

}  // namespace

TEST_SUITE_BEGIN("complete");

TEST_CASE("every chapter is right in every dtype, on shapes that fit no tile") {
  for (const Chapter& chapter : chapters())
    for (const auto [rows, cols] :
         {Size{1, 1}, Size{1, 2}, Size{1, 5000}, Size{1000, 1}, Size{1000, 2}, Size{3, 31},
          Size{5, 32}, Size{4, 33}, Size{3, 1023}, Size{37, 1025}, Size{37, 1032}, Size{257, 2048}})
      for_each_variant(chapter, rows, cols, [&](const Problem& problem) {
        check_problem(chapter, problem, rows == 1000 ? runs_of_many_blocks() : kRuns);
      });
}

TEST_CASE("every chapter is right on wide rows") {
  for (const Chapter& chapter : chapters())
    for (const std::int64_t cols : {4096, 4097, 12288, 50257, 262144})
      for_each_variant(chapter, cols > 50000 ? 2 : 5, cols, [&](const Problem& problem) {
        if (device().emulated && cols > 10000 && problem.affine != problem.mixed) return;
        check_problem(chapter, problem, cols > 100'000 ? runs_of_many_blocks() : kRuns);
      });
}

TEST_CASE("every chapter is right on rows that no cluster's shared memory holds") {
  for (const Chapter& chapter : chapters())
    for (const std::int64_t cols : {1'000'000, 1'000'003})
      for (const DType dtype : {DType::F32, DType::BF16}) {
        Problem problem{.dtype = dtype, .rows = 2, .cols = cols};
        if (device().emulated && (dtype == DType::F32) != (cols % 2 == 0)) continue;
        if (refusal(chapter, problem).empty())
          check_problem(chapter, problem, runs_of_many_blocks());
      }
}

TEST_CASE("a chapter that groups rows is right for every size of a group") {
  for (const Chapter& chapter : chapters())
    for (const int group : {1, 3, 64})
      for_each_variant(chapter, 77, chapter.needs_aligned ? 136 : 130, [&](Problem problem) {
        problem.group = group;
        if (refusal(chapter, problem).empty()) check_problem(chapter, problem, kRuns);
      });
  for (const Chapter& chapter : chapters())
    for (const int group : {2, 100'000}) {
      Problem problem{
          .dtype = DType::F16,
          .rows = 70,
          .cols = 8200,  // just past what a block's registers hold
          .group = group,
      };
      if (refusal(chapter, problem).empty()) check_problem(chapter, problem, kRuns);
    }
}

TEST_CASE("a chapter that groups rows, or splits them, is right over many rows of a group") {
  for (const Chapter& chapter : chapters())
    for (const DType dtype : {DType::F32, DType::BF16}) {
      const int misalign = dtype == DType::F32 ? 0 : 1;
      const Problem problem{.dtype = dtype,
                            .rows = 160,
                            .cols = 512 - 3 * misalign,
                            .misalign = misalign,
                            .group = 16};
      if (refusal(chapter, problem).empty()) check_problem(chapter, problem, kRuns);
    }
}

TEST_CASE("a chapter that groups rows is right at many widths, several rows for each block") {
  for (const Chapter& chapter : chapters())
    for (const auto [rows, cols] :
         {Size{90, 96}, Size{90, 512}, Size{2200, 40}, Size{300, 5000}, Size{150, 8200},
          Size{150, 9001}, Size{45, 17000}, Size{45, 33001}, Size{9, 40000}, Size{3, 120000}})
      for (const DType dtype : {DType::F32, DType::BF16}) {
        Problem problem{.dtype = dtype,
                        .rows = rows,
                        .cols = cols,
                        .group = 1,
                        .recompute_output = chapter.recomputes_output};
        if (refusal(chapter, problem).empty()) check_problem(chapter, problem, kRuns);
      }
}

TEST_CASE("many runs give the same bits; where a chapter uses atomics, dweight varies") {
  const int runs = device().emulated ? 5 : 20;  // emulated runs all have different orders
  Problem problem{.rows = 400, .cols = 300};
  for (const Chapter& chapter : chapters()) {
    if (!refusal(chapter, problem).empty()) continue;
    INFO(chapter.id);
    const Tensors tensors(problem, chapter);
    Outputs first;
    double widest = 0.0;
    for_each_run(runs, [&] {
      const Run run(chapter, tensors);
      run.launch();
      const Outputs outputs = tensors.outputs();
      if (first.empty()) first = outputs;
      CHECK((!chapter.deterministic || outputs == first));
      if (chapter.direction() == Direction::Backward)
        widest = std::max(widest,
                          relative_distance(output(outputs, "dweight"), output(first, "dweight")));
    });
    if (chapter.deterministic) continue;
    MESSAGE(chapter.id << ": dweight varies by " << widest << " of its norm over " << runs
                       << " runs");
    CHECK(widest < 400 * 0x1p-24);  // one rounding per row
  }
}

TEST_CASE("every chapter is right past 65 535 rows") {
  for (const Chapter& chapter : chapters()) {
    Problem problem{.rows = 70000, .cols = chapter.needs_aligned ? 40 : 33};
    for (const DType dtype : kDTypes) {
      problem.dtype = dtype;
      if (device().emulated && dtype != DType::F32) continue;  // a minute per dtype on two cores
      if (!refusal(chapter, problem).empty()) continue;
      INFO(chapter.id << ": " << describe(problem));
      const Tensors tensors(problem, chapter);
      const Run run(chapter, tensors);
      run.launch();
      require_right(run.check());
    }
  }
}

TEST_SUITE_END();
