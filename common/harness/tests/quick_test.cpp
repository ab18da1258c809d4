// The tests of a chapter that find the most faults in the least time: they launch each of its
// kernels, on rows of every shape and alignment. Linked with one chapter; runs on either backend.
#include <algorithm>
#include <bit>
#include <memory>

#include "common/harness/tests/chapter_checks.h"

using namespace lnc;

TEST_SUITE_BEGIN("quick");

TEST_CASE("every kernel of a chapter is right, in each pair of types") {
  // For each pair of types a width of every vectorised kernel, aligned and not; for each width both
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
        Problem problem{.dtype = dtype, .rows = rows, .cols = cols, .mixed = mixed};
        const int runs = cols > 4096 ? 1 : kQuickRuns;
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
  constexpr std::int64_t kNoLimit = 1 << 20;  // columns; a quick test skips wider rows
  constexpr std::int64_t kLong = 1 << 17;     // columns; a quick test takes one row if wider
  for (const Chapter& chapter : chapters()) {
    for_each_types_and_kind([&](Problem problem) {
      problem.cols = std::min(chapter.max_cols, chapter.max_row_bytes / problem.element_bytes());
      problem.rows = problem.cols > kLong ? 1 : 3;
      if (problem.cols > kNoLimit) return;
      if (refusal(chapter, problem).empty()) check_problem(chapter, problem, 1);
    });
  }
}

TEST_CASE("a forward chapter that divides rows by their width is right for each division") {
  for (const Chapter& chapter : chapters()) {
    if (chapter.direction() != Direction::Forward || !chapter.takes_strides) continue;
    for (const std::int64_t cols :
         {640, 768, 800, 1280, 1600, 1792, 3584, 5376, 16000, 28000, 32000})
      for_each_variant(chapter, 5, cols,
                       [&](const Problem& problem) { check_problem(chapter, problem, 1); });
  }
}

TEST_CASE("a kernel that counts its blocks is right where one block has many rows") {
  struct Size {
    std::int64_t rows, cols;
  };
  for (const Chapter& chapter : chapters()) {
    if (chapter.group != "blocks") continue;
    for (const auto [rows, cols] : {Size{300, 1536}, Size{200, 2048}, Size{64, 3072},
                                    Size{60, 3584}, Size{27, 6144}, Size{30, 7168}})
      for (const Kind kind : {Kind::Layer, Kind::Rms})
        for (const auto [dtype, mixed] : kTypes) {
          Problem problem{
              .kind = kind, .dtype = dtype, .rows = rows, .cols = cols, .mixed = mixed, .group = 1};
          if (refusal(chapter, problem).empty()) check_problem(chapter, problem, 1);
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
        const auto [dtype, mixed] = kTypes[chance % 5];
        const Problem problem = drawn(
            chapter, {.dtype = dtype, .rows = rows, .cols = cols, .mixed = mixed, .group = group},
            chance++);
        if (refusal(chapter, problem).empty()) check_problem(chapter, problem, kQuickRuns);
      }
    for (const auto [rows, cols] :
         {Size{1100, 40}, Size{300, 520}, Size{280, chapter.needs_aligned ? 1512 : 1500},
          Size{140, 8200}}) {
      // several rows for each persistent block
      const Problem several = drawn(chapter,
                                    {.dtype = cols % 16 == 0 ? DType::F32 : DType::BF16,
                                     .rows = rows,
                                     .cols = cols,
                                     .group = 1},
                                    chance++);
      if (refusal(chapter, several).empty()) check_problem(chapter, several, 1);
    }
    // more blocks' sums than are added at once
    Problem many{.rows = 1600, .cols = 40, .group = 400};
    if (chapter.group == "blocks") check_problem(chapter, many, 1);
  }
}

TEST_CASE("rows that leave no room for the parameters in a cluster's shared memory are right") {
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
    Problem problem{.dtype = DType::BF16, .rows = 3, .cols = 1'000'003, .group = 1};
    if (chapter.min_architecture < 90) continue;  // it has no clusters
    if (!refusal(chapter, problem).empty()) problem.group = 0;
    if (refusal(chapter, problem).empty()) check_problem(chapter, problem, 1);
  }
}

TEST_CASE("a chapter for several GPUs is right on one to four, in equal parts and in others") {
  for (const Chapter& chapter : chapters()) {
    if (chapter.split == Split::None) continue;
    int chance = 0;
    for (const int gpus : {1, 2, 3, 4}) {
      if (gpus > gpu_count()) {
        MESSAGE("skipped: this machine does not have " << gpus << " GPUs");
        continue;
      }
      for (const auto [rows, cols] :
           {Size{1, 128}, Size{2, 72}, Size{7, 1000}, Size{61, 520}, Size{40, 2048}, Size{0, 64}})
        for (const bool uneven : {false, true}) {
          const Problem problem{.dtype = kDTypes[chance++ % 3],
                                .rows = rows,
                                .cols = cols,
                                .gpus = gpus,
                                .uneven = uneven};
          if (refusal(chapter, problem).empty()) check_problem(chapter, problem, kQuickRuns);
        }
    }
  }
}

TEST_CASE("a launch on several GPUs follows another, with the words of the last still there") {
  for (const Chapter& chapter : chapters()) {
    if (chapter.split == Split::None) continue;
    const Problem problem{.rows = 23, .cols = 512, .gpus = std::min(gpu_count(), 3)};
    const Tensors tensors(problem, chapter);
    const Run run(chapter, tensors);
    for (int launch = 0; launch < 5; ++launch) {  // each slot is used at least twice
      CAPTURE(launch);
      tensors.poison_outputs();
      run.launch();
      require_right(run.check());
    }
  }
}

TEST_CASE("several GPUs are for chapters that share a problem, and each gets some of it") {
  for (const Chapter& chapter : chapters()) {
    Problem problem{.kind = chapter.kinds.front(), .rows = 5, .cols = 64, .gpus = 3};
    CHECK(refusal(chapter, problem).empty() == (chapter.split != Split::None));
    if (chapter.split == Split::None) CHECK(refusal(chapter, problem).option == "gpus");
    problem.cols = 8;  // two vectors of float
    CHECK(refusal(chapter, problem).empty() == (chapter.split == Split::Rows));
  }
}

TEST_CASE("every chapter is right where no tensor starts at a 16-byte boundary, or refuses it") {
  for (const Chapter& chapter : chapters()) {
    for (const std::int64_t cols : {1, 8, 1000, 1023, 2048})
      for (const DType dtype : kDTypes) {
        Problem problem{.dtype = dtype, .rows = 7, .cols = cols, .misalign = 3};
        CHECK_FALSE((chapter.needs_aligned && refusal(chapter, problem).empty()));
        if (refusal(chapter, problem).empty()) check_problem(chapter, problem, kQuickRuns);
      }
  }
}

TEST_CASE("a chapter that takes rows anywhere is right wherever its tensors start") {
  for (const Chapter& chapter : chapters()) {
    if (chapter.road != Road::UnalignedRows && !chapter.shares_by_address) continue;
    int chance = 0;
    for (const std::int64_t cols : {1, 3, 250, 1000, 1023, 4097})
      for (const int misalign : {0, 1, 2, 5, 7})
        for (const int stagger : {0, 1, 3}) {  // 0: all tensors start at the same offset
          const auto [dtype, mixed] = kTypes[chance % 5];
          Problem problem{
              .dtype = dtype,
              .rows = 1 + chance % 19,
              .cols = cols,
              .mixed = mixed,
              .misalign = misalign,
              .stagger = stagger,
              .group = chance % 3,  // the chapter's choice, one block, two
          };
          problem = drawn(chapter, problem, chance++);
          if (refusal(chapter, problem).empty()) check_problem(chapter, problem, kQuickRuns);
        }
  }
}

TEST_CASE("a chapter that takes strided rows is right for any strides; the others refuse them") {
  struct Gaps {
    int row, heads, between_heads;
  };
  for (const Chapter& chapter : chapters()) {
    int chance = 0;
    for (const std::int64_t cols : {1, 31, 64, 128, 520, 1023, 1024, 3000, 9008})
      for (const auto [row, heads, between_heads] :
           {Gaps{1, 0, 0}, Gaps{8, 0, 0}, Gaps{0, 3, 16}, Gaps{0, 1, 5}, Gaps{24, 5, 1000}}) {
        const auto [dtype, mixed] = kTypes[chance % 5];
        Problem problem{.dtype = dtype,
                        .rows = 1 + chance * 7 % 41,
                        .cols = cols,
                        .mixed = mixed,
                        .misalign = chance % 3 == 0 ? 1 : 0,
                        .row_gap = row,
                        .heads = heads,
                        .heads_gap = between_heads,
                        .group = chapter.group.empty() ? 0 : chance % 3};
        problem = drawn(chapter, problem, chance++);
        CHECK((chapter.takes_strides || !refusal(chapter, problem).empty()));
        if (refusal(chapter, problem).empty()) check_problem(chapter, problem, kQuickRuns);
      }
  }
}

#if defined(LNC_CPU_BACKEND)
namespace {

/// The largest grid of the launches to come, until the end of the scope.
class LargestGrid final : public simt::Watch {
 public:
  LargestGrid() { simt::set_watch(this); }
  ~LargestGrid() override { simt::set_watch(nullptr); }
  std::int64_t blocks() const { return blocks_; }
  void begins(const simt::Launch& launch) override {
    blocks_ = std::max(blocks_, static_cast<std::int64_t>(simt::volume(launch.grid)));
  }
  std::unique_ptr<simt::Witness> begins_block(const simt::BlockInfo&) override { return nullptr; }

 private:
  std::int64_t blocks_ = 1;
};

}  // namespace

TEST_CASE("the last row is right where offsets pass 2^31" * doctest::skip(kSanitize)) {
  // No other row of these tensors takes up memory, and only the last block runs. An offset in 32
  // bits, even of 16-byte vectors, is negative there. Where blocks walk over the rows, their
  // number divides that of the rows, so that the last block has the last row.
  constexpr std::int64_t kElements = std::int64_t{45} << 28;
  constexpr int kBlocks = 15 << 12;
  constexpr std::int64_t kMostOfBlock = 1 << 20;  // elements
  const simt::Under no_block({.only_last = 0});
  for (const Chapter& chapter : chapters()) {
    if (chapter.split != Split::None) {
      MESSAGE("skipped: each GPU has its own copy of every row, which takes up memory");
      continue;
    }
    Problem problem;
    const std::int64_t widest = chapter.max_row_bytes / problem.element_bytes();
    const std::int64_t most = chapter.direction() == Direction::Copy ? 128 : 4096;
    problem.cols = static_cast<std::int64_t>(
        std::bit_floor(static_cast<std::uint64_t>(std::min({chapter.max_cols, widest, most}))));
    problem.rows = kElements / problem.cols;
    if (chapter.group == "blocks" || chapter.group == "row groups") problem.group = kBlocks;
    if (!refusal(chapter, problem).empty()) continue;
    INFO(chapter.id << ": " << describe(problem));
    const Tensors tensors(problem, chapter, RowRange{problem.rows - 1, 1});
    const Run run(chapter, tensors);
    const LargestGrid grid;
    run.launch();
    if (kElements / grid.blocks() > kMostOfBlock) {
      MESSAGE("skipped: so few blocks would walk over too many rows");
      continue;
    }
    const simt::Under last_block({.only_last = 1});
    run.launch();
    std::vector<OutputCheck> checks = run.check();
    std::erase_if(checks, [&](const OutputCheck& check) {  // the sums of all rows
      const Tensor* const tensor = tensors.find(check.output);
      return tensor == nullptr || tensor->shape() == Shape::Columns;
    });
    const bool is_elsewhere =
        std::all_of(checks.begin(), checks.end(),
                    [](const OutputCheck& check) { return std::isinf(check.max_abs_error); });
    if (is_elsewhere && chapter.id.starts_with("my")) {  // a reader's own may do as it likes
      MESSAGE("skipped: the last block does not have the last row");
      continue;
    }
    require_right(checks);
  }
}
#endif

namespace {

/// The first `rows` rows of an output that has `all` rows.
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

TEST_CASE("batch-invariant, a row's bits depend on the row alone, or the chapter refuses") {
  for (const Chapter& chapter : chapters()) {
    if (chapter.direction() == Direction::Copy) continue;
    for (const DType dtype : {DType::F32, DType::BF16})
      for (const std::int64_t cols : {64, 65, 1000, 1001, 2304, 4097})
        for (const Kind kind : {Kind::Layer, Kind::Rms}) {
          Problem problem{.kind = kind, .dtype = dtype, .rows = 7, .cols = cols};
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
            part.misalign = part.stagger = 1;  // for whole vectors the library makes aligned copies
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
  constexpr std::size_t kGuard = 64;  // bytes before and after an output
  for (const Chapter& chapter : chapters()) {
    if (chapter.road != Road::UnalignedRows && !chapter.shares_by_address) continue;
    for (const std::int64_t cols : {5, 257, 1025})
      for (int misalign = 0; misalign < 8; ++misalign) {
        Problem problem{.dtype = DType::BF16, .rows = 9, .cols = cols, .misalign = misalign};
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

TEST_SUITE_END();
