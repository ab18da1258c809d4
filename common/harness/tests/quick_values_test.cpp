// Quick tests of the values that a tensor may have: NaN, equal numbers, large means, weights near
// 0, no rows, frozen parameters; and that the check sees a wrong element.
#include <algorithm>
#include <limits>
#include <random>

#include "common/harness/tests/chapter_checks.h"

using namespace lnc;

TEST_SUITE_BEGIN("quick");

namespace {

/// `count` elements of random bytes: numbers, NaNs with a payload, both zeros, subnormals.
std::vector<std::byte> any_bits(std::int64_t count, std::int64_t element_bytes) {
  std::mt19937 chance{1};
  std::vector<std::byte> bytes(count * element_bytes);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(chance());
  return bytes;
}

}  // namespace

TEST_CASE("a copy keeps every bit, and its check sees one that differs") {
  for (const Chapter& chapter : chapters()) {
    if (chapter.direction() != Direction::Copy) continue;
    for (const DType dtype : kDTypes) {
      Problem problem{.dtype = dtype, .rows = 70, .cols = 1001};
      INFO(chapter.id << ": " << describe(problem));
      const Tensors tensors(problem, chapter);
      const Run run(chapter, tensors);
      run.launch();
      synchronize();
      require_right(run.check());
      std::byte* const last = tensors.data("y") + problem.tensor_bytes() - 1;  // has the sign bit
      std::byte right{};
      download(&right, last, 1);
      for (const int bit : {0, 7}) {
        const std::byte wrong = right ^ static_cast<std::byte>(1 << bit);
        upload(last, &wrong, 1);
        CHECK_FALSE(run.check().front().passed());
        CHECK(run.check().front().worst_index == 70 * 1001 - 1);
      }
      upload(last, &right, 1);
      CHECK(run.check().front().passed());

      const auto bits = any_bits(problem.rows * problem.cols, problem.element_bytes());
      upload(tensors.data("x"), bits.data(), bits.size());
      run.launch();
      CHECK(output(tensors.outputs(), "y") == bits);
    }
  }
}

TEST_CASE("a copy writes exactly as many elements as requested") {
  for (const Chapter& chapter : chapters()) {
    if (chapter.direction() != Direction::Copy) continue;
    for (const DType dtype : kDTypes) {
      Problem problem{.dtype = dtype, .rows = 1, .cols = 2000};
      const Tensors tensors(problem, chapter);
      const std::size_t element = problem.element_bytes();
      std::vector<std::byte> x(problem.tensor_bytes());
      download(x.data(), tensors.data("x"), x.size());
      for (const std::int64_t count : {0, 1, 2, 31, 255, 256, 257, 1023, 1999}) {
        INFO(chapter.id << ": " << count << " of " << describe(problem));
        tensors.poison_outputs();
        const Outputs before = tensors.outputs();
        with_types(problem, [&]<typename T, typename W>() {
          auto args = copy_args<T, W>(tensors);
          args.count = count;
          std::get<CopyLaunchers>(chapter.run).get<T, W>()(args);
        });
        auto expected = output(before, "y");
        std::copy_n(x.begin(), count * element, expected.begin());
        CHECK(output(tensors.outputs(), "y") == expected);
      }
    }
  }
}

TEST_CASE("NaN or infinity in a row of x changes no other row of y") {
  for (const Chapter& chapter : chapters()) {
    if (chapter.direction() != Direction::Forward) continue;
    Problem problem{.rows = 9};
    for (const std::int64_t cols : {100, 3000}) {
      problem.cols = cols;
      if (!refusal(chapter, problem).empty()) continue;  // takes only narrow rows
      const Tensors tensors(problem, Direction::Forward);
      const Run run(chapter, tensors);
      run.launch();
      const Outputs clean = tensors.outputs();
      for (const float bad :
           {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
            -std::numeric_limits<float>::infinity()}) {
        INFO(chapter.id << ", " << bad << ", " << cols << " columns");
        upload(tensors.data("x") + (4 * cols + 50) * sizeof(float), &bad, sizeof bad);
        run.launch();
        const Outputs dirty = tensors.outputs();
        const auto same = [&](const char* name, std::int64_t begin, std::int64_t count) {
          return std::memcmp(&output(clean, name)[begin * 4], &output(dirty, name)[begin * 4],
                             count * 4) == 0;
        };
        CHECK(same("y", 0, 4 * cols));
        CHECK(same("y", 5 * cols, 4 * cols));
        CHECK_FALSE(same("y", 4 * cols, cols));
        CHECK(same("rstd", 0, 4));
        CHECK(same("rstd", 5, 4));
      }
    }
  }
}

TEST_CASE("a row of equal numbers gives y = bias and rstd = 1 / sqrt(eps)") {
  for (const Chapter& chapter : chapters()) {
    if (chapter.direction() != Direction::Forward) continue;
    Problem problem{
        .rows = 2,
        .cols = 512,  // a power of two: the mean of equal numbers is exact
    };
    if (!refusal(chapter, problem).empty()) problem.cols = 128;
    const Tensors tensors(problem, Direction::Forward);
    const Run run(chapter, tensors);
    const std::vector<float> constant(problem.cols, 3.0f);
    upload(tensors.data("x") + problem.cols * 4, constant.data(), problem.cols * 4);
    run.launch();
    synchronize();
    std::vector<float> y(problem.cols), bias(problem.cols);
    float rstd = 0.0f;
    download(y.data(), tensors.data("y") + problem.cols * 4, problem.cols * 4);
    download(bias.data(), tensors.data("bias"), problem.cols * 4);
    download(&rstd, tensors.data("rstd") + 4, 4);
    INFO(chapter.id);
    CHECK(y == bias);
    CHECK(rstd == doctest::Approx(1.0 / std::sqrt(1e-5)).epsilon(1e-6));
  }
}

namespace {

/// Requires errors of y, mean and rstd that are typical of float without cancellation, which is
/// stricter than the check.
void require_digits(const std::vector<OutputCheck>& checks) {
  for (const auto& check : checks) {
    CAPTURE(check.output);
    CHECK(check.relative_error < (check.output == "mean" ? 0x1p-24 : 1e-6));
  }
}

}  // namespace

// Of a variance computed as E[x²] - mean², hardly any digit would be left.
TEST_CASE("rstd keeps its digits where the mean is 100 deviations" * doctest::skip(kSanitize)) {
  for (const Chapter& chapter : chapters()) {
    if (chapter.direction() != Direction::Forward) continue;
    for (const std::int64_t cols : {256, 1000, 1024, 64}) {
      Problem problem;
      problem.rows = 9;
      problem.cols = cols;
      problem.offset = 100.0f;
      if (!refusal(chapter, problem).empty()) continue;
      INFO(chapter.id << ": " << describe(problem));
      const Tensors tensors(problem, chapter);
      const Run run(chapter, tensors);
      run.launch();
      synchronize();
      for (const OutputCheck& check : run.check())
        if (check.output == "rstd") require_right({check});
    }
  }
}

TEST_CASE("a chapter that says so keeps its digits where the mean is 10 000 deviations" *
          doctest::skip(kSanitize)) {
  for (const Chapter& chapter : chapters()) {
    if (!chapter.keeps_digits_at_large_means) continue;
    for (const std::int64_t cols : {2, 64, 300, 301, 1024, 1536, 2048, 4096, 4097, 8704, 12288,
                                    16384, 20000, 65536, 65537, 262144})
      for (const float offset : {1.0f, 100.0f, 10000.0f}) {
        Problem problem{.rows = cols > 16384 ? 2 : 9, .cols = cols, .offset = offset};
        if (!refusal(chapter, problem).empty()) continue;
        INFO(chapter.id << ": " << describe(problem) << ", offset " << offset);
        const Tensors tensors(problem, Direction::Forward);
        const Run run(chapter, tensors);
        run.launch();
        synchronize();
        require_digits(run.check());
      }
  }
}

TEST_CASE("a chapter that keeps its digits gives y = bias for large equal numbers of any width" *
          doctest::skip(kSanitize)) {
  for (const Chapter& chapter : chapters()) {
    if (!chapter.keeps_digits_at_large_means) continue;
    for (const std::int64_t cols : {3, 68, 300, 404, 5000, 20004, 50000}) {
      Problem problem{.rows = 1, .cols = cols};
      if (!refusal(chapter, problem).empty()) continue;
      INFO(chapter.id << ": " << cols << " columns");
      const Tensors tensors(problem, Direction::Forward);
      const Run run(chapter, tensors);
      const std::vector<float> equal(cols, 12345.678f);
      upload(tensors.data("x"), equal.data(), cols * 4);
      run.launch();
      const Outputs outputs = tensors.outputs();
      std::vector<float> y(cols), bias(cols);
      float mean = 0.0f;
      float rstd = 0.0f;
      std::memcpy(y.data(), output(outputs, "y").data(), cols * 4);
      std::memcpy(&mean, output(outputs, "mean").data(), 4);
      std::memcpy(&rstd, output(outputs, "rstd").data(), 4);
      download(bias.data(), tensors.data("bias"), cols * 4);
      CHECK(mean == equal[0]);
      CHECK(rstd == doctest::Approx(1.0 / std::sqrt(1e-5)).epsilon(1e-6));
      double worst = 0.0;
      for (std::int64_t col = 0; col < cols; ++col) {
        worst = std::max(worst, std::abs(double{y[col]} - bias[col]));
      }
      CHECK(worst < 1e-6);
    }
  }
}

TEST_CASE("a backward chapter that recomputes the output writes the right y") {
  for (const Chapter& chapter : chapters())
    for (const std::int64_t cols : {33, 1024, 5000})
      for_each_variant(chapter, 10, cols, [&](Problem problem) {
        problem.recompute_output = true;
        if (refusal(chapter, problem).empty()) check_problem(chapter, problem, kQuickRuns);
      });
}

namespace {

/// Checks `problem` with frozen parameters: its dx has the bits of a pass that trains them, and its
/// workspace has no partial sums.
void check_frozen(const Chapter& chapter, const Problem& problem, int runs) {
  Problem frozen = problem;
  frozen.frozen = true;
  check_problem(chapter, frozen, runs);
  if (kSanitize) return;
  INFO(chapter.id << ": " << describe(frozen));
  CHECK(chapter.workspace_bytes(frozen) < chapter.workspace_bytes(problem));
  const auto outputs = [&](const Problem& of) {
    const Tensors tensors(of, chapter);
    Run(chapter, tensors).launch();
    return tensors.outputs();
  };
  const Outputs without = outputs(frozen);
  const Outputs with = outputs(problem);
  for (const auto& [name, bytes] : without) {
    CAPTURE(name);
    CHECK_FALSE((name.starts_with("dw") || name.starts_with("db")));
    CHECK(bytes == output(with, name));
  }
}

}  // namespace

TEST_CASE("a chapter that leaves out frozen parameters' gradients; the others refuse, or say why") {
  for (const Chapter& chapter : chapters()) {
    Problem refused{.frozen = true};
    if (!chapter.takes_frozen) {
      CHECK(refusal(chapter, refused).option == "frozen");
      continue;
    }
    int chance = 0;
    for (const auto [rows, cols] :
         {Size{70, 33}, Size{40, 64}, Size{19, 520}, Size{10, 1027}, Size{5, 2048}, Size{3, 4096},
          Size{3, 9008}, Size{3, 9001}, Size{2, 33000}, Size{2, 33001}}) {
      const auto [dtype, mixed] = kTypes[chance % 5];
      Problem problem{.dtype = dtype,
                      .rows = rows,
                      .cols = cols,
                      .mixed = mixed,
                      .group = chapter.group.empty() ? 0 : chance % 2};
      problem = drawn(chapter, problem, chance++);
      if (refusal(chapter, problem).empty()) check_frozen(chapter, problem, kQuickRuns);
      if (!chapter.fused) continue;
      for (const bool second : {false, true}) {
        problem.fusion = {.residual = Residual::Same, .prenorm = true, .second_affine = second};
        if (refusal(chapter, problem).empty()) check_frozen(chapter, problem, 1);
      }
    }
  }
}

TEST_CASE("a chapter that starts from y is right where weights are near 0, and where they are 0") {
  for (const Chapter& chapter : chapters()) {
    if (!chapter.from_y) continue;
    for (const float scale : {1e-3f, -1e-3f, 1e-6f, -1e-6f, 0.0f})
      for (const std::int64_t cols : {33, 1024, 9000})
        for_each_variant(chapter, 9, cols, [&](Problem problem) {
          problem.weight_scale = scale;
          if (problem.affine) check_problem(chapter, problem, kQuickRuns);
        });
    for (const bool affine : {true, false}) {
      Problem problem{
          .rows = 5,
          .cols = 104,
          .eps = 4.0f,
          .affine = affine,  // if false, the weight is 1, and nothing is clamped
      };
      if (refusal(chapter, problem).empty()) check_problem(chapter, problem, kQuickRuns);
    }
  }
}

TEST_CASE("the distance of a gradient from y to the one from x is reported, and cannot fail") {
  for (const Chapter& chapter : chapters()) {
    if (!chapter.from_y) continue;
    const auto distances = [&](const Problem& problem) {
      INFO(describe(problem));
      const Tensors tensors(problem, chapter);
      const Run run(chapter, tensors);
      run.launch();
      const auto checks = run.check();
      std::vector<double> distances;
      for (const auto& check : checks) {
        CHECK(check.passed());
        if (!check.has_limit()) distances.push_back(check.relative_error);
      }
      REQUIRE(distances.size() == 2);
      CHECK(checks[checks.size() - 2].output == "dx from x");
      CHECK(checks.back().output == "dweight from x");
      return distances;
    };
    Problem problem{.dtype = DType::BF16, .rows = 64, .cols = 256};
    CHECK(distances(problem)[1] < 0.01);
    problem.weight_scale = 0x1p-10f;
    CHECK(distances(problem)[1] > 0.1);  // y is rounded to the precision of the bias
    problem.kind = Kind::Rms;            // without a bias y scales with the weight, bit for bit
    if (!refusal(chapter, problem).empty()) continue;
    const auto small = distances(problem);
    problem.weight_scale = 1.0f;
    const auto large = distances(problem);
    CHECK(small[1] == doctest::Approx(large[1]).epsilon(1e-3));
    CHECK(large[1] < 0.01);
  }
}

TEST_CASE("without rows the gradients of the parameters are zero, and nothing else is touched") {
  for (const Chapter& chapter : chapters())
    for_each_variant(chapter, 0, chapter.needs_aligned ? 80 : 77, [&](const Problem& problem) {
      INFO(chapter.id << ": " << describe(problem));
      const Tensors tensors(problem, chapter);
      const Run run(chapter, tensors);
      run.launch();
      require_right(run.check());
      if (chapter.direction() == Direction::Backward)
        for (const auto& [name, bytes] : tensors.outputs())
          for (const std::byte byte : bytes) REQUIRE(byte == std::byte{0});
    });
}

TEST_CASE("eps is used: large and small ones give right results" * doctest::skip(kSanitize)) {
  for (const Chapter& chapter : chapters())
    for (const float eps : {1e-12f, 1.0f}) {
      Problem problem{.rows = 5, .cols = 100, .eps = eps};
      if (refusal(chapter, problem).empty()) check_problem(chapter, problem, kQuickRuns);
    }
}

TEST_CASE("the check sees a wrong gradient of a parameter") {
  for (const Chapter& chapter : chapters()) {
    if (chapter.direction() != Direction::Backward) continue;
    Problem problem{.rows = 10, .cols = 52};
    if (!refusal(chapter, problem).empty()) continue;
    const Tensors tensors(problem, chapter);
    const Run run(chapter, tensors);
    run.launch();
    run.launch();  // accumulating instead of overwriting would double dweight and dbias
    require_right(run.check());
    const float wrong = 123.0f;
    upload(tensors.data("dweight") + 51 * sizeof wrong, &wrong, sizeof wrong);
    CHECK_FALSE(run.check()[1].passed());
  }
}

TEST_SUITE_END();
