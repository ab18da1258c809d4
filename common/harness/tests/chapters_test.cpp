// Every chapter against the reference: dtypes, kinds, awkward shapes, schedules; and the check
// itself, which must be able to fail. Runs on either backend.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "common/harness/parts.h"
#include "common/harness/registry.h"
#include "common/harness/run.h"
#include "common/harness/tests/fusions.h"
#include "common/library/dispatch.h"
#if defined(LNC_CPU_BACKEND)
#include "common/simt/machine.h"
#endif

using namespace lnc;

void launch_too_many_threads();  // bad_launch.cu

namespace {

constexpr DType kDTypes[] = {DType::F32, DType::F16, DType::BF16};

/// Calls `body(what)` once for each order in which the backend can run threads and blocks.
template <typename Body>
void for_each_schedule(const Body& body) {
#if defined(LNC_CPU_BACKEND)
  const simt::Schedule before = simt::schedule();
  for (const simt::Schedule schedule :
       {simt::Schedule{simt::Order::Forward, 0}, simt::Schedule{simt::Order::Reverse, 0},
        simt::Schedule{simt::Order::Random, 7}}) {
    simt::set_schedule(schedule);
    body("schedule " + std::to_string(static_cast<int>(schedule.order)));
  }
  simt::set_schedule(before);
#else
  for (int i = 1; i <= 3; ++i) body("run " + std::to_string(i));  // the GPU picks its own
#endif
}

/// Calls `body()` `count` times; on the CPU backend each has an order of its own.
template <typename Body>
void for_each_run(int count, const Body& body) {
  for (int i = 0; i < count; ++i) {
#if defined(LNC_CPU_BACKEND)
    const simt::Schedule before = simt::schedule();
    simt::set_schedule({simt::Order::Random, static_cast<unsigned>(i)});
    body();
    simt::set_schedule(before);
#else
    body();
#endif
  }
}

using Outputs = std::vector<std::pair<std::string, std::vector<std::byte>>>;

const std::vector<std::byte>& output(const Outputs& outputs, std::string_view name) {
  for (const auto& [key, bytes] : outputs)
    if (key == name) return bytes;
  throw std::logic_error("there is no such output");
}

/// || a - b || / || b ||, of tensors of float.
double relative_distance(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  double distance = 0.0, norm = 0.0;
  for (std::size_t at = 0; at < b.size(); at += sizeof(float)) {
    float x, y;
    std::memcpy(&x, a.data() + at, sizeof x);
    std::memcpy(&y, b.data() + at, sizeof y);
    distance += (double{x} - y) * (double{x} - y);
    norm += double{y} * y;
  }
  return std::sqrt(distance / norm);
}

void require_right(const std::vector<OutputCheck>& checks) {
  for (const auto& check : checks) {
    CAPTURE(check.output);
    CAPTURE(check.max_abs_error);
    CAPTURE(check.worst_index);
    CHECK(check.relative_error <= check.limit);
    CHECK(check.worst_of_bound <= 1.0);
  }
}

/// Checks `chapter` on `problem` in several schedules. Without atomics the bits must not depend on
/// the schedule; dx and y never do.
void check_problem(const Chapter& chapter, const Problem& problem) {
  INFO(chapter.id << ": " << describe(problem));
  const Tensors tensors(problem, chapter);
  Outputs first;
  for_each_schedule([&](const std::string& schedule) {
    CAPTURE(schedule);
    const Run run(chapter, tensors);
    run.launch();
    const Outputs outputs = tensors.outputs();
    if (first.empty()) {
      require_right(run.check());
      first = outputs;
      return;
    }
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const std::string& name = outputs[i].first;
      CAPTURE(name);
      if (chapter.deterministic || name == "y" || name == "dx") CHECK(outputs[i] == first[i]);
    }
    if (!chapter.deterministic) require_right(run.check());
  });
}

/// Every problem of the shape that `chapter` takes.
template <typename Body>
void for_each_variant(const Chapter& chapter, std::int64_t rows, std::int64_t cols,
                      const Body& body) {
  for (const DType dtype : kDTypes)
    for (const Kind kind : {Kind::Layer, Kind::Rms})
      for (const bool affine : {true, false})
        for (const bool mixed : {false, true}) {
          if (mixed && dtype == DType::F32) continue;
          Problem problem;
          problem.mixed = mixed;
          problem.dtype = dtype;
          problem.kind = kind;
          problem.affine = affine;
          problem.rows = rows;
          problem.cols = cols;
          if (refusal(chapter, problem).empty()) body(problem);
        }
}

struct Size {
  std::int64_t rows, cols;
};

}  // namespace

TEST_CASE("at least one chapter of each direction is registered") {
  int forward = 0, backward = 0;
  for (const Chapter& chapter : chapters())
    ++(chapter.direction() == Direction::Forward ? forward : backward);
  CHECK(forward > 0);
  CHECK(backward > 0);
}

TEST_CASE("every chapter is right in every dtype, on shapes that fit no tile") {
  for (const Chapter& chapter : chapters())
    for (const auto [rows, cols] :
         {Size{1, 1}, Size{1, 2}, Size{1, 5000}, Size{1000, 1}, Size{1000, 2}, Size{3, 31},
          Size{5, 32}, Size{4, 33}, Size{3, 1023}, Size{37, 1025}, Size{257, 2048}})
      for_each_variant(chapter, rows, cols,
                       [&](const Problem& problem) { check_problem(chapter, problem); });
}

TEST_CASE("every chapter is right where no tensor starts at a 16-byte boundary") {
  for (const Chapter& chapter : chapters())
    for (const std::int64_t cols : {1, 8, 1000, 1023, 2048})
      for (const DType dtype : kDTypes) {
        Problem problem;
        problem.dtype = dtype;
        problem.rows = 7;
        problem.cols = cols;
        problem.misalign = 3;
        if (refusal(chapter, problem).empty()) check_problem(chapter, problem);
      }
}

TEST_CASE("every chapter is right on wide rows") {
  for (const Chapter& chapter : chapters())
    for (const std::int64_t cols : {4096, 4097, 12288, 50257, 262144})
      for_each_variant(chapter, cols > 50000 ? 2 : 5, cols, [&](const Problem& problem) {
        if (device().emulated && cols > 10000 && problem.affine != problem.mixed) return;
        check_problem(chapter, problem);
      });
}

TEST_CASE("every chapter is right on rows that no cluster's shared memory holds") {
  for (const Chapter& chapter : chapters())
    for (const std::int64_t cols : {1'000'000, 1'000'003})
      for (const DType dtype : {DType::F32, DType::BF16}) {
        Problem problem;
        problem.dtype = dtype;
        problem.rows = 2;
        problem.cols = cols;
        if (device().emulated && (dtype == DType::F32) != (cols % 2 == 0)) continue;
        if (refusal(chapter, problem).empty()) check_problem(chapter, problem);
      }
}

namespace {

Fusion common_in_networks() {
  return {.dropout = 0.3f, .residual = Residual::Same, .prenorm = true};
}

/// Each part of a fusion alone, some together, and all of them.
std::vector<Fusion> fusions() {
  std::vector<Fusion> all;
  for (const std::string_view name : fused_options())
    for (const Problem& problem : with_option(Problem{}, name)) all.push_back(problem.fusion);
  all.push_back({.residual = Residual::F32, .prenorm = true});
  all.push_back({.rowscale = true, .dropout = 0.5f, .second_input = true});
  all.push_back(common_in_networks());
  all.push_back(everything());
  for (Fusion& fusion : all) fusion.masks = fusion.dropout > 0.0f;
  return all;
}

}  // namespace

TEST_CASE("a fused chapter is right with each of its parts, and with all") {
  for (const Chapter& chapter : chapters())
    for (const Fusion& fusion : fusions())
      for (const std::int64_t cols : {1, 33, 1000, 1024, 4097, 20000})
        for (const int misalign : {0, 1}) {
          Problem problem;
          problem.dtype = cols % 2 == 0 ? DType::BF16 : DType::F16;
          problem.mixed = cols % 3 == 0;
          problem.kind = cols == 1024 ? Kind::Rms : Kind::Layer;
          problem.rows = 5;
          problem.cols = cols;
          problem.misalign = misalign;
          problem.fusion = fusion;
          if (refusal(chapter, problem).empty()) check_problem(chapter, problem);
          problem.dtype = DType::F32;
          problem.affine = false;
          problem.mixed = false;
          if (refusal(chapter, problem).empty()) check_problem(chapter, problem);
        }
}

TEST_CASE("the parts of a fusion, one after another, do what the fused chapter does") {
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
    // Each part rounds to 16 bits what the fused kernel keeps in float. As a whole a rounding may
    // add what y's limit allows for one, in the sum and so in its statistics too; element by
    // element the bounds, which are of float arithmetic, do not hold. Masks have no rounding.
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
            Problem problem;
            problem.dtype = dtype;
            problem.mixed = dtype == DType::BF16;
            problem.kind = cols == 33 ? Kind::Rms : Kind::Layer;
            problem.rows = 5;
            problem.cols = cols;
            problem.misalign = misalign;
            problem.fusion = fusion;
            check_parts(chapter, problem);
          }
}

TEST_CASE("the parts of a fusion are counted, with the bytes that each reads and writes") {
  for (const Chapter& chapter : chapters()) {
    Problem problem;
    problem.dtype = DType::BF16;
    problem.rows = 4;
    problem.cols = 1000;
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
            Problem problem;
            problem.dtype = cols == 130 ? DType::F16 : DType::BF16;
            problem.rows = rows;
            problem.cols = cols;
            problem.group = group;
            problem.fusion = fusion;
            if (refusal(chapter, problem).empty()) check_problem(chapter, problem);
          }
}

TEST_CASE("a backward chapter drops what a forward chapter dropped, from the same seeds") {
  Problem problem;
  problem.rows = 50;
  problem.cols = 1000;
  problem.fusion = {.dropout = 0.3f, .second_input = true, .masks = true};
  const std::int64_t count = problem.rows * problem.cols;
  const Tensors forward(problem, Direction::Forward);
  const Tensors backward(problem, Direction::Backward);
  for (const Chapter& dropping : chapters()) {
    if (dropping.direction() != Direction::Forward || !refusal(dropping, problem).empty()) continue;
    Run(dropping, forward).launch();
    for (const Chapter& chapter : chapters()) {
      if (chapter.direction() != Direction::Backward || !refusal(chapter, problem).empty())
        continue;
      INFO(dropping.id << " and " << chapter.id);
      Run(chapter, backward).launch();
      synchronize();
      std::vector<std::uint8_t> mask(count);
      std::vector<float> gradient(count);
      const auto compare = [&](const char* kept, const char* dx) {
        download(mask.data(), forward.data(kept), count);
        download(gradient.data(), backward.data(dx), count * sizeof(float));
        std::int64_t different = 0;
        for (std::int64_t i = 0; i < count; ++i) different += (mask[i] != 0) != (gradient[i] != 0);
        CHECK(different == 0);
      };
      compare("mask", "dx");
      compare("mask1", "dx1");
    }
  }
}

TEST_CASE("twenty runs give the same bits; where a chapter uses atomics, dweight varies") {
  Problem problem;
  problem.rows = 400;
  problem.cols = 300;
  for (const Chapter& chapter : chapters()) {
    if (!refusal(chapter, problem).empty()) continue;
    INFO(chapter.id);
    const Tensors tensors(problem, chapter);
    Outputs first;
    double widest = 0.0;
    for_each_run(20, [&] {
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
    MESSAGE(chapter.id << ": dweight varies by " << widest << " of its norm over 20 runs");
    CHECK(widest < 400 * 0x1p-24);  // a rounding for each row that is added
  }
}

TEST_CASE("NaN or infinity in a row of x changes no other row of y") {
  for (const Chapter& chapter : chapters()) {
    if (chapter.direction() != Direction::Forward) continue;
    Problem problem;
    problem.rows = 9;
    for (const std::int64_t cols : {100, 3000}) {
      problem.cols = cols;
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
    Problem problem;
    problem.rows = 2;
    problem.cols = 1024;  // a power of two: the mean of equal numbers is exact
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

TEST_CASE("a chapter that groups rows is right for every size of a group") {
  for (const Chapter& chapter : chapters())
    for (const int group : {1, 3, 64})
      for_each_variant(chapter, 77, 130, [&](Problem problem) {
        problem.group = group;
        if (refusal(chapter, problem).empty()) check_problem(chapter, problem);
      });
  for (const Chapter& chapter : chapters())
    for (const int group : {2, 100'000}) {
      Problem problem;
      problem.dtype = DType::F16;
      problem.rows = 70;
      problem.cols = 8200;  // just past what a block's registers hold
      problem.group = group;
      if (refusal(chapter, problem).empty()) check_problem(chapter, problem);
    }
}

TEST_CASE("a chapter that groups rows, or splits them, is right over many rows of a group") {
  for (const Chapter& chapter : chapters())
    for (const DType dtype : {DType::F32, DType::BF16}) {
      Problem problem;
      problem.dtype = dtype;
      problem.rows = 160;
      problem.misalign = dtype == DType::F32 ? 0 : 1;
      problem.cols = 512 - 3 * problem.misalign;
      problem.group = 16;
      if (refusal(chapter, problem).empty()) check_problem(chapter, problem);
    }
}

TEST_CASE("a chapter that groups rows is right at many widths, several rows for each block") {
  for (const Chapter& chapter : chapters())
    for (const auto [rows, cols] :
         {Size{90, 96}, Size{90, 512}, Size{2200, 40}, Size{300, 5000}, Size{150, 8200},
          Size{150, 9001}, Size{45, 17000}, Size{45, 33001}, Size{9, 40000}, Size{3, 120000}})
      for (const DType dtype : {DType::F32, DType::BF16}) {
        Problem problem;
        problem.dtype = dtype;
        problem.rows = rows;
        problem.cols = cols;
        problem.group = 1;
        problem.recompute_output = chapter.recomputes_output;
        if (refusal(chapter, problem).empty()) check_problem(chapter, problem);
      }
}

TEST_CASE("a backward chapter that can writes y again") {
  for (const Chapter& chapter : chapters())
    for (const std::int64_t cols : {33, 1024, 5000})
      for_each_variant(chapter, 10, cols, [&](Problem problem) {
        problem.recompute_output = true;
        if (refusal(chapter, problem).empty()) check_problem(chapter, problem);
      });
}

TEST_CASE("a chapter that is given y is right where weights are near 0, and where they are 0") {
  for (const Chapter& chapter : chapters()) {
    if (!chapter.from_y) continue;
    for (const float scale : {1e-3f, -1e-3f, 1e-6f, -1e-6f, 0.0f})
      for (const std::int64_t cols : {33, 1024, 9000})
        for_each_variant(chapter, 9, cols, [&](Problem problem) {
          problem.weight_scale = scale;
          if (problem.affine) check_problem(chapter, problem);
        });
    for (const bool affine : {true, false}) {
      Problem problem;
      problem.affine = affine;  // without, the weight is 1, and nothing is clamped
      problem.eps = 4.0f;
      problem.rows = 5;
      problem.cols = 100;
      check_problem(chapter, problem);
    }
  }
}

TEST_CASE("the distance of a gradient from y to the one from x is told, and cannot fail") {
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
    Problem problem;
    problem.rows = 64;
    problem.cols = 256;
    problem.dtype = DType::BF16;
    CHECK(distances(problem)[1] < 0.01);
    problem.weight_scale = 0x1p-10f;
    CHECK(distances(problem)[1] > 0.1);  // y is rounded to the bias's digits
    problem.kind = Kind::Rms;            // without a bias y scales with the weight, bit for bit
    const auto small = distances(problem);
    problem.weight_scale = 1.0f;
    const auto large = distances(problem);
    CHECK(small[1] == doctest::Approx(large[1]).epsilon(1e-3));
    CHECK(large[1] < 0.01);
  }
}

TEST_CASE("every chapter is right past 65 535 rows") {
  for (const Chapter& chapter : chapters()) {
    Problem problem;
    problem.rows = 70000;
    problem.cols = 33;
    for (const DType dtype : kDTypes) {
      problem.dtype = dtype;
      if (device().emulated && dtype != DType::F32) continue;  // a minute a dtype on two cores
      if (!refusal(chapter, problem).empty()) continue;
      INFO(chapter.id << ": " << describe(problem));
      const Tensors tensors(problem, chapter);
      const Run run(chapter, tensors);
      run.launch();
      require_right(run.check());
    }
  }
}

TEST_CASE("every chapter is right where offsets pass 2^31") {
  Problem problem;
  problem.dtype = DType::BF16;
  problem.rows = (std::int64_t{1} << 31) / 4096 + 3;
  problem.cols = 4096;
  if (device().emulated) {
    MESSAGE("skipped: 2^31 elements take minutes a chapter on the SIMT machine; a GPU runs this");
    return;
  }
  for (auto next = chapters().begin(); next != chapters().end();) {
    const Chapter& first = *next;
    if (needed_device_bytes(first, problem) > static_cast<double>(free_device_bytes())) {
      MESSAGE("skipped: this GPU has too little free memory for 2^31 elements a tensor");
      return;
    }
    const Tensors tensors(problem, first);
    for (; next != chapters().end() && share_inputs(first, *next); ++next) {
      if (!refusal(*next, problem).empty()) continue;
      INFO(next->id << ": " << describe(problem));
      const Run run(*next, tensors);
      run.launch();
      require_right(run.check());
    }
  }
}

TEST_CASE("without rows the gradients of the parameters are zero, and nothing else is touched") {
  for (const Chapter& chapter : chapters())
    for_each_variant(chapter, 0, 77, [&](const Problem& problem) {
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

TEST_CASE("eps is used: large and small ones give right results") {
  for (const Chapter& chapter : chapters())
    for (const float eps : {1e-12f, 1.0f}) {
      Problem problem;
      problem.rows = 5;
      problem.cols = 100;
      problem.eps = eps;
      if (refusal(chapter, problem).empty()) check_problem(chapter, problem);
    }
}

TEST_CASE("a chapter refuses what it does not take, in a sentence with its id") {
  for (const Chapter& chapter : chapters())
    for (const Kind kind : {Kind::Layer, Kind::Rms}) {
      Problem problem;
      problem.kind = kind;
      const bool takes =
          std::find(chapter.kinds.begin(), chapter.kinds.end(), kind) != chapter.kinds.end();
      const Refusal why = refusal(chapter, problem);
      CHECK(why.empty() == takes);
      if (takes) continue;
      CHECK(why.sentence.starts_with(chapter.id));
      CHECK(why.option == "kind");
      CHECK(why.sentence.find("--") == std::string::npos);  // how it is spelt is the caller's
    }
}

TEST_CASE("rows wider than a chapter's blocks hold are refused, with the width that they do hold") {
  Chapter chapter = chapters().front();
  chapter.max_row_bytes = 1000;
  Problem problem;
  for (const DType dtype : kDTypes) {
    problem.dtype = dtype;
    problem.cols = 1000 / problem.element_bytes();
    CHECK(refusal(chapter, problem).empty());
    ++problem.cols;
    const std::string why = refusal(chapter, problem).sentence;
    CHECK(why.starts_with(std::string(chapter.id) + " takes "));
    CHECK(why.find(std::to_string(problem.cols - 1) + " columns") != std::string::npos);
  }
}

TEST_CASE("a chapter that needs a newer GPU is refused on an older one, with both named") {
  Chapter chapter = chapters().front();
  Gpu gpu = kH100;
  gpu.architecture = 75;
  CHECK(refusal(chapter, {}, gpu).empty());
  chapter.min_architecture = 90;
  CHECK(refusal(chapter, {}, gpu).sentence ==
        std::string(chapter.id) +
            " needs a GPU of compute capability 9.0 or newer; this "
            "one has 7.5");
  gpu.architecture = 120;
  CHECK(refusal(chapter, {}, gpu).empty());
}

TEST_CASE("the check sees one wrong element, one unwritten element and one wrong statistic") {
  const Chapter& chapter = chapters().front();
  REQUIRE(chapter.direction() == Direction::Forward);
  for (const DType dtype : kDTypes) {
    Problem problem;
    problem.dtype = dtype;
    problem.rows = 3;
    problem.cols = 1000;
    with_types(problem, [&]<typename T, typename W>() {
      const Tensors tensors(problem, Direction::Forward);
      const Run run(chapter, tensors);
      const auto args = forward_args<T, W>(tensors);
      const auto passes_with = [&](auto* at, auto value) {
        run.launch();
        synchronize();
        upload(at, &value, sizeof value);
        for (const auto& check : run.check())
          if (!check.passed()) return false;
        return true;
      };
      run.launch();
      synchronize();
      T right{};
      download(&right, args.y + 1234, sizeof right);
      CHECK(passes_with(args.y + 1234, right));
      // Four units in the last place, far below what the norm of 3000 elements shows.
      const double ulp = dtype == DType::F32 ? 0x1p-22 : dtype == DType::F16 ? 0x1p-9 : 0x1p-6;
      const T wrong(static_cast<float>(static_cast<double>(static_cast<float>(right)) *
                                       (1.0 + (dtype == DType::F32 ? 400 : 2) * ulp)));
      CHECK_FALSE(passes_with(args.y + 1234, wrong));
      const T unwritten(std::numeric_limits<float>::quiet_NaN());
      CHECK_FALSE(passes_with(args.y + 2999, unwritten));
      CHECK_FALSE(passes_with(args.rstd + 2, 1.01f));
    });
  }
}

TEST_CASE("the check sees a wrong gradient of a parameter") {
  for (const Chapter& chapter : chapters()) {
    if (chapter.direction() != Direction::Backward) continue;
    Problem problem;
    problem.rows = 10;
    problem.cols = 50;
    if (!refusal(chapter, problem).empty()) continue;
    const Tensors tensors(problem, chapter);
    const Run run(chapter, tensors);
    run.launch();
    run.launch();  // accumulating instead of overwriting would double dweight and dbias
    require_right(run.check());
    const float wrong = 123.0f;
    upload(tensors.data("dweight") + 49 * sizeof wrong, &wrong, sizeof wrong);
    CHECK_FALSE(run.check()[1].passed());
  }
}

TEST_CASE("the check sees one wrong element of each gradient of a fusion") {
  for (const Chapter& chapter : chapters()) {
    Problem problem;
    problem.dtype = DType::BF16;
    problem.rows = 10;
    problem.cols = 50;
    problem.fusion = everything();
    if (chapter.direction() != Direction::Backward || !refusal(chapter, problem).empty()) continue;
    const Tensors tensors(problem, Direction::Backward);
    const Run run(chapter, tensors);
    run.launch();
    synchronize();
    require_right(run.check());
    const auto a = backward_args<__nv_bfloat16, __nv_bfloat16>(tensors);
    // A nudge of a seventh where there is something, and anything at all where there is nothing.
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

TEST_CASE("a launch that the device cannot do names the kernel and its configuration") {
  // 2000 threads a block: over the limit of every GPU and of the SIMT machine.

  std::string message;
  try {
    launch_too_many_threads();
  } catch (const std::exception& error) {
    message = error.what();
  }
  CHECK(message.find("does_nothing") != std::string::npos);
  CHECK(message.find("2000") != std::string::npos);
}
