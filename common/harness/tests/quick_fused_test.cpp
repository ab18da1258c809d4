// Quick tests of what a chapter fuses with the norm, and of the same parts as separate kernels.
#include "common/harness/parts.h"
#include "common/harness/tests/chapter_checks.h"

using namespace lnc;

TEST_SUITE_BEGIN("quick");

TEST_CASE("every kernel of a fused chapter is right, in each pair of types") {
  for (const Chapter& chapter : chapters()) {
    if (!chapter.fused) continue;
    int chance = 0;
    for (const std::int64_t cols : {200, 203, 1003, 2000, 2003, 8000, 8003, 8200, 20001})
      for (const auto [dtype, mixed] : kTypes)
        for (const Residual residual : {Residual::Same, Residual::F32})
          for (const bool second_affine : {false, true}) {
            Problem problem{.dtype = dtype,
                            .rows = 2,
                            .cols = cols,
                            .mixed = mixed,
                            .fusion = {.dropout = 0.3f, .residual = residual, .prenorm = true}};
            problem.fusion.second_affine = second_affine;
            problem = drawn(chapter, problem, chance++);
            const int runs = cols > 4096 ? 1 : kQuickRuns;
            if (refusal(chapter, problem).empty()) check_problem(chapter, problem, runs);
          }
  }
}

TEST_CASE("every kernel of a chapter that adds a residual is right, in each pair of types") {
  for (const Chapter& chapter : chapters()) {
    if (!chapter.residual_only) continue;
    int chance = 0;
    for (const auto [rows, cols] : {Size{9, 200}, Size{70, 40}, Size{5, 904}, Size{3, 2000},
                                    Size{3, 4000}, Size{2, 8000}, Size{2, 16000}})
      for (const auto [dtype, mixed] : kTypes)
        for (const Residual residual : {Residual::None, Residual::Same, Residual::F32})
          for (const Kind kind : {Kind::Layer, Kind::Rms}) {
            Problem problem{.kind = kind,
                            .dtype = dtype,
                            .rows = rows,
                            .cols = cols,
                            .affine = chance++ % 4 != 1,
                            .mixed = mixed,
                            .fusion = {.residual = residual, .prenorm = chance % 3 != 0}};
            const int runs = cols > 2048 ? 1 : kQuickRuns;
            if (refusal(chapter, problem).empty()) check_problem(chapter, problem, runs);
          }
    // several rows for each persistent block
    Problem turns{.dtype = DType::BF16,
                  .rows = 150,
                  .cols = 520,
                  .group = chapter.group.empty() ? 0 : 3,
                  .fusion = {.residual = Residual::F32, .prenorm = true}};
    check_problem(chapter, turns, kQuickRuns);
  }
}

TEST_CASE("a chapter that adds a residual refuses each other part of a fusion, in a sentence") {
  for (const Chapter& chapter : chapters()) {
    if (!chapter.residual_only) continue;
    for (const std::string_view name : fused_options())
      for (const Problem& problem : with_option(Problem{}, name)) {
        const bool takes = name == "residual" || name == "prenorm";
        const Refusal why = refusal(chapter, problem);
        CHECK(why.empty() == takes);
        if (takes) continue;
        CHECK(why.sentence.starts_with(std::string(chapter.id) + " takes no "));
        CHECK(why.option == name);
      }
  }
}

TEST_CASE("a fused chapter is right with each of its parts, and with all") {
  for (const Chapter& chapter : chapters())
    for (const Fusion& fusion : fusions())
      for (const std::int64_t cols : {1, 33, 1000, 1024, 4097})
        for (const int misalign : {0, 1}) {
          Problem problem{.kind = cols == 1024 ? Kind::Rms : Kind::Layer,
                          .dtype = cols % 2 == 0 ? DType::BF16 : DType::F16,
                          .rows = 5,
                          .cols = cols,
                          .mixed = cols % 3 == 0,
                          .misalign = misalign,
                          .fusion = fusion};
          if (refusal(chapter, problem).empty()) check_problem(chapter, problem, kQuickRuns);
          problem.dtype = DType::F32;
          problem.affine = false;
          problem.mixed = false;
          if (refusal(chapter, problem).empty()) check_problem(chapter, problem, kQuickRuns);
        }
}

TEST_CASE("the parts of a fusion, one after another, do what the fused chapter does" *
          doctest::skip(kSanitize)) {
  const auto check_parts = [](const Chapter& chapter, const Problem& problem) {
    if (!refusal(chapter, problem).empty() || !has_parts(chapter, problem)) return;
    if (problem.fusion == Fusion{.prenorm = true}) return;  // the sum is x: no part writes it
    INFO(chapter.id << ": " << describe(problem) << ", misalign " << problem.misalign);
    const Tensors tensors(problem, Direction::Forward);
    tensors.poison_outputs();
    const Parts parts(chapter, tensors);
    parts.launch();
    const auto checks = check(tensors);
    if (problem.dtype == DType::F32) return require_right(checks);
    // Each part rounds to 16 bits what the fused kernel keeps in float. As a whole, each rounding
    // may add what y's limit allows for one, in the sum and so in its statistics too. The bounds on
    // single elements assume float arithmetic and do not hold. Masks are not rounded.
    const double limit = (1 + parts.kernels()) * checks.front().limit;
    for (const auto& check : checks) {
      CAPTURE(check.output);
      CHECK(check.relative_error <= (check.output.starts_with("mask") ? 0.0 : limit));
    }
  };
  for (const Chapter& chapter : chapters())
    for (const Fusion& fusion : fusions())
      for (const std::int64_t cols : {1, 33, 1000, 20000})
        for (const DType dtype : kDTypes)
          for (const int misalign : {0, 1}) {
            Problem problem{.kind = cols == 33 ? Kind::Rms : Kind::Layer,
                            .dtype = dtype,
                            .rows = 5,
                            .cols = cols,
                            .mixed = dtype == DType::BF16,
                            .misalign = misalign,
                            .fusion = fusion};
            check_parts(chapter, problem);
          }
}

TEST_CASE("the parts of a fusion are counted, with the bytes that each reads and writes") {
  for (const Chapter& chapter : chapters()) {
    Problem problem{.dtype = DType::BF16, .rows = 4, .cols = 1000};
    const auto expect = [&](const Fusion& fusion, int kernels, std::int64_t norms,
                            std::int64_t element_bytes, std::int64_t row_bytes) {
      problem.fusion = fusion;
      if (!refusal(chapter, problem).empty() || !has_parts(chapter, problem)) return;
      const Tensors tensors(problem, Direction::Forward);
      const Parts parts(chapter, tensors);
      CHECK(parts.kernels() == kernels);
      Problem plain = problem;
      plain.fusion = {};
      CHECK(parts.predicted_bytes() == norms * chapter.predicted_bytes(plain, device().gpu) +
                                           4000 * element_bytes + 4 * row_bytes);
    };
    expect({.prenorm = true}, 1, 1, 0, 0);
    expect({.residual = Residual::Same}, 2, 1, 6, 0);
    expect({.dropout = 0.1f, .residual = Residual::F32}, 3, 1, 5 + 8, 4);
    expect({.dropout = 0.1f, .residual = Residual::F32, .prenorm = true}, 3, 1, 5 + 12, 4);
    expect({.rowscale = true,
            .dropout = 0.1f,
            .second_input = true,
            .residual = Residual::Same,
            .prenorm = true,
            .second_affine = true},
           8, 2, 4 + 5 + 4 + 5 + 6 + 6, 16);
  }
}

TEST_CASE("a fused chapter is right for any number of rows and size of a group") {
  for (const Chapter& chapter : chapters())
    for (const Fusion& fusion : {everything(), common_in_networks()})
      for (const std::int64_t rows : {0, 1, 77})
        for (const int group : {0, 1, 3, 100'000})
          for (const std::int64_t cols : {130, 8200}) {
            Problem problem{.dtype = cols == 130 ? DType::F16 : DType::BF16,
                            .rows = rows,
                            .cols = cols,
                            .group = group,
                            .fusion = fusion};
            if (refusal(chapter, problem).empty()) check_problem(chapter, problem, kQuickRuns);
          }
}

TEST_CASE("the check sees one wrong element of each gradient of a fusion") {
  for (const Chapter& chapter : chapters()) {
    Problem problem{.dtype = DType::BF16, .rows = 10, .cols = 50, .fusion = everything()};
    if (chapter.direction() != Direction::Backward || !refusal(chapter, problem).empty()) continue;
    const Tensors tensors(problem, Direction::Backward);
    const Run run(chapter, tensors);
    run.launch();
    synchronize();
    require_right(run.check());
    const auto a = backward_args<__nv_bfloat16, __nv_bfloat16>(tensors);
    // Changes an element by a seventh; if it is 0, by a tiny amount.
    const auto fails_with_another = [&]<typename U>(const char* output, U* at) {
      U right{};
      download(&right, at, sizeof right);
      const auto value = static_cast<float>(right);
      const U wrong(value == 0.0f ? 1e-30f : value * (8.0f / 7.0f));
      upload(at, &wrong, sizeof wrong);
      for (const OutputCheck& check : run.check())
        CHECK(check.passed() == (check.output != output));
      upload(at, &right, sizeof right);
    };
    for (const int i : {0, 123, 499}) {
      fails_with_another("dx", a.dx + i);
      fails_with_another("dx1", a.fused.dx1 + i);
      fails_with_another("dresidual", static_cast<float*>(a.fused.dresidual) + i);
    }
    fails_with_another("dweight", a.dweight + 49);
    fails_with_another("dbias", a.dbias + 49);
    fails_with_another("dweight1", a.fused.dweight1 + 49);
    fails_with_another("dbias1", a.fused.dbias1 + 49);
  }
}

TEST_SUITE_END();
