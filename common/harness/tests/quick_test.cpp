// Of every chapter what kills the most faults in the least time: each kernel that it has is
// launched. Linked with one chapter; runs on either backend.
#include <algorithm>
#include <limits>
#include <random>

#include "common/harness/parts.h"
#include "common/harness/tests/chapter_checks.h"

using namespace lnc;

namespace {

constexpr int kRuns = kSanitize ? 1 : 2;  // of a problem; a second accesses no other memory

struct Types {
  DType dtype;
  bool mixed;
};
constexpr Types kTypes[] = {{DType::F32, false},
                            {DType::F16, false},
                            {DType::BF16, false},
                            {DType::F16, true},
                            {DType::BF16, true}};

/// Calls `body(problem)` with a problem of each pair of types and each kind, for it to give it a
/// shape.
template <typename Body>
void for_each_types_and_kind(const Body& body) {
  for (const auto [dtype, mixed] : kTypes)
    for (const Kind kind : {Kind::Layer, Kind::Rms}) {
      Problem problem;
      problem.dtype = dtype;
      problem.mixed = mixed;
      problem.kind = kind;
      body(problem);
    }
}

/// The problem with the kind and the parameters that chance, a number, gives it, or else with those
/// that the chapter takes.
Problem drawn(const Chapter& chapter, Problem problem, int chance) {
  for (int i = 0; i < 4; ++i) {
    problem.kind = (chance ^ i) & 1 ? Kind::Rms : Kind::Layer;
    problem.affine = ((chance ^ i) & 2) == 0;
    if (refusal(chapter, problem).empty()) break;
  }
  return problem;
}

}  // namespace

TEST_SUITE_BEGIN("quick");

TEST_CASE("every kernel of a chapter is right, in each pair of types") {
  // In each pair of types a width of every vectorised kernel, aligned and not; in each width both
  // kinds, with and without parameters.
  for (const Chapter& chapter : chapters()) {
    int chance = 0;
    for (const auto [rows, cols] :
         {Size{1, 1},     Size{3, 2},     Size{70, 33},   Size{5, 80},    Size{5, 96},
          Size{3, 200},   Size{2, 304},   Size{4, 307},   Size{5, 512},   Size{2, 900},
          Size{3, 1023},  Size{3, 1024},  Size{3, 2048},  Size{2, 3001},  Size{3, 4096},
          Size{2, 5000},  Size{2, 5003},  Size{2, 10000}, Size{2, 10003}, Size{2, 13000},
          Size{2, 15001}, Size{2, 16383}, Size{3, 20000}, Size{2, 20001}, Size{2, 33000},
          Size{2, 33001}, Size{9, 256},   Size{9, 128},   Size{9, 101},   Size{9, 320},
          Size{9, 509},   Size{70, 8},    Size{70, 16},   Size{70, 24},   Size{70, 32},
          Size{40, 40},   Size{40, 64},   Size{9, 130},   Size{9, 201},   Size{2, 4400},
          Size{2, 4401},  Size{9, 192},   Size{3, 901}}) {
      for (const auto [dtype, mixed] : kTypes) {
        Problem problem;
        problem.dtype = dtype;
        problem.mixed = mixed;
        problem.rows = rows;
        problem.cols = cols;
        const int runs = cols > 4096 ? 1 : kRuns;
        const Problem one = drawn(chapter, problem, chance);
        const Problem other = drawn(chapter, problem, chance ^ 1);  // of the other kind
        if (refusal(chapter, one).empty()) check_problem(chapter, one, runs);
        if (refusal(chapter, other).empty()) check_problem(chapter, other, 1);
        ++chance;
        if (!chapter.takes_strides) continue;
        for (Problem apart : {one, other}) {
          apart.row_gap = 16;
          apart.heads = 2;
          apart.heads_gap = 48;
          if (refusal(chapter, apart).empty()) check_problem(chapter, apart, 1);
        }
      }
    }
  }
}

TEST_CASE("the widest rows that a chapter takes are right, in each pair of types") {
  constexpr std::int64_t kNoLimit = 1 << 20;  // columns; beyond it, a quick test ends here
  constexpr std::int64_t kLong = 1 << 17;     // of more than these a quick test takes one row
  for (const Chapter& chapter : chapters()) {
    for_each_types_and_kind([&](Problem problem) {
      problem.cols = std::min(chapter.max_cols, chapter.max_row_bytes / problem.element_bytes());
      problem.rows = problem.cols > kLong ? 1 : 3;
      if (problem.cols > kNoLimit) return;
      if (refusal(chapter, problem).empty()) check_problem(chapter, problem, 1);
    });
  }
}

TEST_CASE("a forward chapter that shares rows out by their width is right for each share") {
  for (const Chapter& chapter : chapters()) {
    if (chapter.direction() != Direction::Forward || !chapter.takes_strides) continue;
    for (const std::int64_t cols :
         {640, 768, 800, 1280, 1600, 1792, 3584, 5376, 16000, 28000, 32000})
      for_each_variant(chapter, 5, cols,
                       [&](const Problem& problem) { check_problem(chapter, problem, 1); });
  }
}

TEST_CASE("every kernel of a fused chapter is right, in each pair of types") {
  for (const Chapter& chapter : chapters()) {
    if (!chapter.fused) continue;
    int chance = 0;
    for (const std::int64_t cols : {200, 203, 1003, 2000, 2003, 8000, 8003, 8200, 20001})
      for (const auto [dtype, mixed] : kTypes)
        for (const Residual residual : {Residual::Same, Residual::F32})
          for (const bool second_affine : {false, true}) {
            Problem problem;
            problem.dtype = dtype;
            problem.mixed = mixed;
            problem.rows = 2;
            problem.cols = cols;
            problem.fusion = {.dropout = 0.3f, .residual = residual, .prenorm = true};
            problem.fusion.second_affine = second_affine;
            problem = drawn(chapter, problem, chance++);
            const int runs = cols > 4096 ? 1 : kRuns;
            if (refusal(chapter, problem).empty()) check_problem(chapter, problem, runs);
          }
  }
}

TEST_CASE("a kernel that counts its blocks is right where one block has many rows") {
  struct Size {
    std::int64_t rows, cols;
  };
  for (const Chapter& chapter : chapters()) {
    if (chapter.group != "blocks") continue;
    for (const auto [rows, cols] :
         {Size{300, 1536}, Size{64, 3072}, Size{27, 6144}, Size{27, 7168}})
      for (const Kind kind : {Kind::Layer, Kind::Rms})
        for (const auto [dtype, mixed] : kTypes) {
          Problem problem;
          problem.kind = kind;
          problem.dtype = dtype;
          problem.mixed = mixed;
          problem.rows = rows;
          problem.cols = cols;
          problem.group = 1;
          if (refusal(chapter, problem).empty()) check_problem(chapter, problem, 1);
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
            Problem problem;
            problem.dtype = dtype;
            problem.mixed = mixed;
            problem.kind = kind;
            problem.affine = chance++ % 4 != 1;
            problem.rows = rows;
            problem.cols = cols;
            problem.fusion = {.residual = residual, .prenorm = chance % 3 != 0};
            const int runs = cols > 2048 ? 1 : kRuns;
            if (refusal(chapter, problem).empty()) check_problem(chapter, problem, runs);
          }
    Problem turns;  // of a block that stays
    turns.dtype = DType::BF16;
    turns.rows = 150;
    turns.cols = 520;
    turns.group = chapter.group.empty() ? 0 : 3;
    turns.fusion = {.residual = Residual::F32, .prenorm = true};
    check_problem(chapter, turns, kRuns);
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

TEST_CASE("a chapter that groups rows is right where a group has one row, several, and none") {
  for (const Chapter& chapter : chapters()) {
    int chance = 0;
    const std::vector<Size> sizes = chapter.needs_aligned
                                        ? std::vector{Size{19, 136}, Size{10, 1032}, Size{7, 9008}}
                                        : std::vector{Size{19, 130}, Size{10, 1027}, Size{7, 9001}};
    for (const auto [rows, cols] : sizes)
      for (const int group : {1, 3, 64}) {
        Problem problem;
        problem.dtype = kTypes[chance % 5].dtype;
        problem.mixed = kTypes[chance % 5].mixed;
        problem.rows = rows;
        problem.cols = cols;
        problem.group = group;
        problem = drawn(chapter, problem, chance++);
        if (refusal(chapter, problem).empty()) check_problem(chapter, problem, kRuns);
      }
    for (const auto [rows, cols] :
         {Size{1100, 40}, Size{300, 520}, Size{280, chapter.needs_aligned ? 1512 : 1500},
          Size{140, 8200}}) {
      Problem several;  // turns of a block that stays
      several.dtype = cols % 16 == 0 ? DType::F32 : DType::BF16;
      several.rows = rows;
      several.cols = cols;
      several.group = 1;
      several = drawn(chapter, several, chance++);
      if (refusal(chapter, several).empty()) check_problem(chapter, several, 1);
    }
    Problem many;  // sums of more blocks than are added at once
    many.rows = 1600;
    many.cols = 40;
    many.group = 400;
    if (chapter.group == "blocks") check_problem(chapter, many, 1);
  }
}

TEST_CASE("rows beside which a cluster's shared memory has no place for the parameters are right") {
  for (const Chapter& chapter : chapters()) {
    if (chapter.min_architecture < 90) continue;  // it has no clusters
    for_each_types_and_kind([&](Problem problem) {
      problem.affine = problem.dtype != DType::F16;
      problem.rows = 3;
      problem.cols = 400'000;
      problem.group = 1;
      if (refusal(chapter, problem).empty()) check_problem(chapter, problem, 1);
    });
  }
}

TEST_CASE("rows that no cluster's shared memory holds are right, several for a cluster") {
  for (const Chapter& chapter : chapters()) {
    Problem problem;
    problem.dtype = DType::BF16;
    problem.rows = 3;
    problem.cols = 1'000'003;
    problem.group = 1;
    if (chapter.min_architecture < 90) continue;  // it has no clusters
    if (!refusal(chapter, problem).empty()) problem.group = 0;
    if (refusal(chapter, problem).empty()) check_problem(chapter, problem, 1);
  }
}

TEST_CASE("every chapter is right where no tensor starts at a 16-byte boundary, or refuses it") {
  for (const Chapter& chapter : chapters()) {
    for (const std::int64_t cols : {1, 8, 1000, 1023, 2048})
      for (const DType dtype : kDTypes) {
        Problem problem;
        problem.dtype = dtype;
        problem.rows = 7;
        problem.cols = cols;
        problem.misalign = 3;
        CHECK_FALSE((chapter.needs_aligned && refusal(chapter, problem).empty()));
        if (refusal(chapter, problem).empty()) check_problem(chapter, problem, kRuns);
      }
  }
}

TEST_CASE("a chapter that takes rows anywhere is right wherever its tensors start") {
  for (const Chapter& chapter : chapters()) {
    if (chapter.road != Road::UnalignedRows && !chapter.shares_by_address) continue;
    int chance = 0;
    for (const std::int64_t cols : {1, 3, 250, 1000, 1023, 4097})
      for (const int misalign : {0, 1, 2, 5, 7})
        for (const int stagger : {0, 1, 3}) {  // all tensors alike, and each elsewhere
          Problem problem;
          problem.dtype = kTypes[chance % 5].dtype;
          problem.mixed = kTypes[chance % 5].mixed;
          problem.rows = 1 + chance % 19;
          problem.cols = cols;
          problem.misalign = misalign;
          problem.stagger = stagger;
          problem.group = chance % 3;  // its own choice, one block, two
          problem = drawn(chapter, problem, chance++);
          if (refusal(chapter, problem).empty()) check_problem(chapter, problem, kRuns);
        }
  }
}

TEST_CASE("a chapter that takes rows apart is right wherever they lie; the others refuse them") {
  struct Gaps {
    int row, heads, between_heads;
  };
  for (const Chapter& chapter : chapters()) {
    int chance = 0;
    for (const std::int64_t cols : {1, 31, 64, 128, 520, 1023, 1024, 3000, 9008})
      for (const auto [row, heads, between_heads] :
           {Gaps{1, 0, 0}, Gaps{8, 0, 0}, Gaps{0, 3, 16}, Gaps{0, 1, 5}, Gaps{24, 5, 1000}}) {
        Problem problem;
        problem.dtype = kTypes[chance % 5].dtype;
        problem.mixed = kTypes[chance % 5].mixed;
        problem.rows = 1 + chance * 7 % 41;
        problem.cols = cols;
        problem.misalign = chance % 3 == 0 ? 1 : 0;
        problem.row_gap = row;
        problem.heads = heads;
        problem.heads_gap = between_heads;
        problem.group = chapter.group.empty() ? 0 : chance % 3;
        problem = drawn(chapter, problem, chance++);
        CHECK((chapter.takes_strides || !refusal(chapter, problem).empty()));
        if (refusal(chapter, problem).empty()) check_problem(chapter, problem, kRuns);
      }
  }
}

namespace {

/// The first `rows` rows of an output of `all` rows.
std::vector<std::byte> first_rows(const std::vector<std::byte>& bytes, std::int64_t rows,
                                  std::int64_t all) {
  const auto count = static_cast<std::ptrdiff_t>(bytes.size()) * rows / all;
  return {bytes.begin(), bytes.begin() + count};
}

Outputs outputs_of(const Chapter& chapter, const Problem& problem) {
  const Tensors tensors(problem, chapter);
  const Run run(chapter, tensors);
  run.launch();
  return tensors.outputs();
}

}  // namespace

TEST_CASE("where that is asked for a row's bits depend on the row alone, or a chapter refuses") {
  for (const Chapter& chapter : chapters()) {
    if (chapter.direction() == Direction::Copy) continue;
    for (const DType dtype : {DType::F32, DType::BF16})
      for (const std::int64_t cols : {64, 65, 1000, 1001, 2304, 4097})
        for (const Kind kind : {Kind::Layer, Kind::Rms}) {
          Problem problem;
          problem.kind = kind;
          problem.dtype = dtype;
          problem.rows = 7;
          problem.cols = cols;
          if (!refusal(chapter, problem).empty()) continue;
          problem.batch_invariant = true;
          INFO(chapter.id << ": " << describe(problem));
          const bool vectors = problem.has_whole_vectors();
          CHECK(refusal(chapter, problem).empty() == (vectors || !chapter.shares_by_address));
          if (!refusal(chapter, problem).empty()) {
            CHECK(refusal(chapter, problem).option == "batch_invariant");
            continue;
          }
          const Outputs whole = outputs_of(chapter, problem);
          Problem part = problem;
          part.rows = 3;
          if (!vectors && !chapter.needs_same_alignment)
            part.misalign = part.stagger = 1;  // of vectors the library aligns a copy
          const Outputs few = outputs_of(chapter, part);
          for (const char* name : {"y", "mean", "rstd", "dx"}) {
            CAPTURE(name);
            for (const auto& [key, bytes] : few)
              if (key == name) CHECK(bytes == first_rows(output(whole, name), 3, 7));
          }
        }
  }
}

TEST_CASE("nothing is written around an output, wherever it starts") {
  constexpr std::size_t kGuard = 64;  // bytes before an output, and behind it
  for (const Chapter& chapter : chapters()) {
    if (chapter.road != Road::UnalignedRows && !chapter.shares_by_address) continue;
    for (const std::int64_t cols : {5, 257, 1025})
      for (int misalign = 0; misalign < 8; ++misalign) {
        Problem problem;
        problem.dtype = DType::BF16;
        problem.rows = 9;
        problem.cols = cols;
        problem.misalign = misalign;
        if (!refusal(chapter, problem).empty()) continue;
        INFO(chapter.id << ": " << describe(problem));
        const Tensors tensors(problem, chapter);
        const Buffer buffer(problem.tensor_bytes() + 2 * kGuard + 16);
        poison(buffer);
        const std::size_t begin = kGuard + misalign * problem.element_bytes();
        const std::size_t end = begin + problem.tensor_bytes();
        const Buffer workspace(
            chapter.workspace_bytes == nullptr ? 0 : chapter.workspace_bytes(problem));
        with_types(problem, [&]<typename T, typename W>() {
          T* const output = reinterpret_cast<T*>(buffer.as<std::byte>() + begin);
          if (chapter.direction() == Direction::Forward) {
            auto args = forward_args<T, W>(tensors, workspace.as<void>());
            args.y = output;
            std::get<ForwardLaunchers>(chapter.run).get<T, W>()(args);
          } else {
            auto args = backward_args<T, W>(tensors, workspace.as<void>());
            args.dx = output;
            std::get<BackwardLaunchers>(chapter.run).get<T, W>()(args);
          }
        });
        synchronize();
        std::vector<std::byte> bytes(buffer.bytes());
        download(bytes.data(), buffer.as<void>(), bytes.size());
        const std::byte untouched{0xff};
        CHECK(std::all_of(bytes.begin(), bytes.begin() + begin,
                          [=](std::byte each) { return each == untouched; }));
        CHECK(std::all_of(bytes.begin() + end, bytes.end(),
                          [=](std::byte each) { return each == untouched; }));
        CHECK(bytes[begin + 1] != untouched);  // a NaN's upper byte
        CHECK(bytes[end - 1] != untouched);
      }
  }
}

TEST_CASE("a fused chapter is right with each of its parts, and with all") {
  for (const Chapter& chapter : chapters())
    for (const Fusion& fusion : fusions())
      for (const std::int64_t cols : {1, 33, 1000, 1024, 4097})
        for (const int misalign : {0, 1}) {
          Problem problem;
          problem.dtype = cols % 2 == 0 ? DType::BF16 : DType::F16;
          problem.mixed = cols % 3 == 0;
          problem.kind = cols == 1024 ? Kind::Rms : Kind::Layer;
          problem.rows = 5;
          problem.cols = cols;
          problem.misalign = misalign;
          problem.fusion = fusion;
          if (refusal(chapter, problem).empty()) check_problem(chapter, problem, kRuns);
          problem.dtype = DType::F32;
          problem.affine = false;
          problem.mixed = false;
          if (refusal(chapter, problem).empty()) check_problem(chapter, problem, kRuns);
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
            if (refusal(chapter, problem).empty()) check_problem(chapter, problem, kRuns);
          }
}

namespace {

/// `count` elements whose bytes chance gives: numbers, NaNs with a payload, both zeros, subnormals.
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
      Problem problem;
      problem.dtype = dtype;
      problem.rows = 70;
      problem.cols = 1001;
      INFO(chapter.id << ": " << describe(problem));
      const Tensors tensors(problem, chapter);
      const Run run(chapter, tensors);
      run.launch();
      synchronize();
      require_right(run.check());
      std::byte* const last = tensors.data("y") + problem.tensor_bytes() - 1;  // has its sign bit
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

TEST_CASE("a copy writes as many elements as it is told, and not one more") {
  for (const Chapter& chapter : chapters()) {
    if (chapter.direction() != Direction::Copy) continue;
    for (const DType dtype : kDTypes) {
      Problem problem;
      problem.dtype = dtype;
      problem.rows = 1;
      problem.cols = 2000;
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
    Problem problem;
    problem.rows = 9;
    for (const std::int64_t cols : {100, 3000}) {
      problem.cols = cols;
      if (!refusal(chapter, problem).empty()) continue;  // of narrow rows alone
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
    problem.cols = 512;  // a power of two: the mean of equal numbers is exact
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

/// y, mean and rstd, as float errs that has forgotten no digit, and not as the check allows.
void require_digits(const std::vector<OutputCheck>& checks) {
  for (const auto& check : checks) {
    CAPTURE(check.output);
    CHECK(check.relative_error < (check.output == "mean" ? 0x1p-24 : 1e-6));
  }
}

}  // namespace

TEST_CASE("a chapter that says so keeps its digits where the mean is 10 000 deviations" *
          doctest::skip(kSanitize)) {
  for (const Chapter& chapter : chapters()) {
    if (!chapter.keeps_digits_at_large_means) continue;
    for (const std::int64_t cols : {2, 64, 300, 301, 1024, 1536, 2048, 4096, 4097, 8704, 12288,
                                    16384, 20000, 65536, 65537, 262144})
      for (const float offset : {1.0f, 100.0f, 10000.0f}) {
        Problem problem;
        problem.rows = cols > 16384 ? 2 : 9;
        problem.cols = cols;
        problem.offset = offset;
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
      Problem problem;
      problem.rows = 1;
      problem.cols = cols;
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

TEST_CASE("a backward chapter that can writes y again") {
  for (const Chapter& chapter : chapters())
    for (const std::int64_t cols : {33, 1024, 5000})
      for_each_variant(chapter, 10, cols, [&](Problem problem) {
        problem.recompute_output = true;
        if (refusal(chapter, problem).empty()) check_problem(chapter, problem, kRuns);
      });
}

namespace {

/// Checks `problem` with its parameters frozen: its dx has the bits of a pass that trains them, and
/// its workspace no partial sums.
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
    Problem refused;
    refused.frozen = true;
    if (!chapter.takes_frozen) {
      CHECK(refusal(chapter, refused).option == "frozen");
      continue;
    }
    int chance = 0;
    for (const auto [rows, cols] :
         {Size{70, 33}, Size{40, 64}, Size{19, 520}, Size{10, 1027}, Size{5, 2048}, Size{3, 4096},
          Size{3, 9008}, Size{3, 9001}, Size{2, 33000}, Size{2, 33001}}) {
      Problem problem;
      problem.dtype = kTypes[chance % 5].dtype;
      problem.mixed = kTypes[chance % 5].mixed;
      problem.rows = rows;
      problem.cols = cols;
      problem.group = chapter.group.empty() ? 0 : chance % 2;
      problem = drawn(chapter, problem, chance++);
      if (refusal(chapter, problem).empty()) check_frozen(chapter, problem, kRuns);
      if (!chapter.fused) continue;
      for (const bool second : {false, true}) {
        problem.fusion = {.residual = Residual::Same, .prenorm = true, .second_affine = second};
        if (refusal(chapter, problem).empty()) check_frozen(chapter, problem, 1);
      }
    }
  }
}

TEST_CASE("a chapter that is given y is right where weights are near 0, and where they are 0") {
  for (const Chapter& chapter : chapters()) {
    if (!chapter.from_y) continue;
    for (const float scale : {1e-3f, -1e-3f, 1e-6f, -1e-6f, 0.0f})
      for (const std::int64_t cols : {33, 1024, 9000})
        for_each_variant(chapter, 9, cols, [&](Problem problem) {
          problem.weight_scale = scale;
          if (problem.affine) check_problem(chapter, problem, kRuns);
        });
    for (const bool affine : {true, false}) {
      Problem problem;
      problem.affine = affine;  // without, the weight is 1, and nothing is clamped
      problem.eps = 4.0f;
      problem.rows = 5;
      problem.cols = 104;
      if (refusal(chapter, problem).empty()) check_problem(chapter, problem, kRuns);
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
      Problem problem;
      problem.rows = 5;
      problem.cols = 100;
      problem.eps = eps;
      if (refusal(chapter, problem).empty()) check_problem(chapter, problem, kRuns);
    }
}

TEST_CASE("the check sees a wrong gradient of a parameter") {
  for (const Chapter& chapter : chapters()) {
    if (chapter.direction() != Direction::Backward) continue;
    Problem problem;
    problem.rows = 10;
    problem.cols = 52;
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

TEST_SUITE_END();
