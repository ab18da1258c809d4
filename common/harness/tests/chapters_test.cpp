// Tests that concern several chapters, any chapter, or the check itself, which must be able to
// fail. Runs on either backend.
#include <algorithm>
#include <limits>

#include "common/harness/tests/chapter_checks.h"

using namespace lnc;

void launch_too_many_threads();  // bad_launch.cu

TEST_CASE("at least one chapter of each direction is registered") {
  int copy = 0, forward = 0, backward = 0;
  for (const Chapter& chapter : chapters()) {
    copy += chapter.direction() == Direction::Copy;
    forward += chapter.direction() == Direction::Forward;
    backward += chapter.direction() == Direction::Backward;
  }
  CHECK(copy > 0);
  CHECK(forward > 0);
  CHECK(backward > 0);
}

TEST_CASE("a backward chapter drops what a forward chapter dropped, from the same seeds") {
  Problem problem{
      .rows = 50, .cols = 1000, .fusion = {.dropout = 0.3f, .second_input = true, .masks = true}};
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

TEST_CASE("every chapter is right where offsets pass 2^31" * doctest::test_suite("complete")) {
  Problem problem{.dtype = DType::BF16, .rows = (std::int64_t{1} << 31) / 4096 + 3, .cols = 4096};
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

TEST_CASE("a chapter refuses what it does not take, in a sentence with its id") {
  for (const Chapter& chapter : chapters())
    for (const Kind kind : {Kind::Layer, Kind::Rms}) {
      Problem problem{.kind = kind};
      const int64_t widest = chapter.max_row_bytes / problem.element_bytes();
      problem.cols = std::min({problem.cols, chapter.max_cols, widest});
      const bool takes =
          std::find(chapter.kinds.begin(), chapter.kinds.end(), kind) != chapter.kinds.end();
      const Refusal why = refusal(chapter, problem);
      CHECK(why.empty() == takes);
      if (takes) continue;
      CHECK(why.sentence.starts_with(chapter.id));
      CHECK(why.option == "kind");
      CHECK(why.sentence.find("--") == std::string::npos);  // the caller spells the option
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
    CHECK(why.ends_with(": a block holds a whole row"));
    chapter.max_row_bytes_because = "two of them fill a cluster";
    CHECK(refusal(chapter, problem).sentence.ends_with(": two of them fill a cluster"));
    chapter.max_row_bytes_because = "a block holds a whole row";
  }
}

TEST_CASE("a chapter that needs aligned rows refuses others, and says what is wrong with them") {
  Chapter chapter = chapters().front();
  Problem problem{.dtype = DType::F16, .cols = 1001, .misalign = 1};
  CHECK(refusal(chapter, problem).empty());  // this chapter does not need aligned rows
  chapter.needs_aligned = true;
  const std::string rule =
      std::string(chapter.id) + " takes rows that start at 16-byte boundaries only: ";
  CHECK(refusal(chapter, problem).sentence == rule + "columns of f16 in multiples of 8, not 1001");
  CHECK(refusal(chapter, problem).option == "cols");
  problem.cols = 1000;
  CHECK(refusal(chapter, problem).sentence == rule + "a tensor starts elsewhere");
  CHECK(refusal(chapter, problem).option == "misalign");
  problem.misalign = 8;  // the next boundary
  CHECK(refusal(chapter, problem).empty());
  problem.misalign = 0;
  CHECK(refusal(chapter, problem).empty());
  problem.cols = 1004;
  CHECK_FALSE(refusal(chapter, problem).empty());
  problem.dtype = DType::F32;
  CHECK(refusal(chapter, problem).empty());
  problem.misalign = 2;
  CHECK(refusal(chapter, problem).option == "misalign");
}

TEST_CASE("strided rows are refused by a chapter that does not take them, and too many by any") {
  Chapter chapter = chapters().front();
  chapter.max_rows = chapter.max_elements = std::numeric_limits<std::int64_t>::max();
  const std::string id(chapter.id);
  Problem problem{.dtype = DType::F16, .cols = 1024, .heads = 4};
  CHECK(refusal(chapter, problem).empty());  // groups without a gap
  problem.heads_gap = 16;
  CHECK(refusal(chapter, problem).sentence == id + " takes rows that lie one behind another only");
  CHECK(refusal(chapter, problem).option == "row_gap");
  chapter.takes_strides = true;
  CHECK(refusal(chapter, problem).empty());
  problem.heads = 0;
  CHECK(refusal(chapter, problem).option == "heads");
  problem.heads_gap = 0;
  problem.row_gap = 4;
  CHECK(refusal(chapter, problem).empty());
  chapter.needs_aligned = true;
  CHECK(refusal(chapter, problem).sentence ==
        id + " takes rows that start at 16-byte boundaries only: gaps of f16 in multiples of 8");
  CHECK(refusal(chapter, problem).option == "row_gap");
  problem.row_gap = 8;
  CHECK(refusal(chapter, problem).empty());
  problem.rows = kMaxStridedRows;
  CHECK(refusal(chapter, problem).empty());
  ++problem.rows;
  CHECK(refusal(chapter, problem).sentence ==
        id + " takes 2147483647 rows that lie apart at most, not 2147483648");
  problem.row_gap = 0;
  CHECK(refusal(chapter, problem).empty());
}

TEST_CASE("frozen parameters are refused by a chapter that has, or writes, their gradients") {
  Problem problem{.frozen = true};
  for (Chapter chapter : chapters()) {
    const bool backward = chapter.direction() == Direction::Backward;
    chapter.takes_frozen = false;
    CHECK(refusal(chapter, problem).sentence ==
          std::string(chapter.id) +
              (backward ? " writes the gradients of weight and bias, frozen or not"
                        : " is no backward pass: it has no gradients to leave out"));
    CHECK(refusal(chapter, problem).option == "frozen");
    chapter.takes_frozen = true;
    CHECK(refusal(chapter, problem).option != "frozen");
  }
}

TEST_CASE("more elements than a chapter's launch can count are refused, without an overflow") {
  Chapter chapter = chapters().front();
  chapter.max_elements = 1000;
  Problem problem{.rows = 10, .cols = 100};
  CHECK(refusal(chapter, problem).empty());
  problem.rows = 0;
  CHECK(refusal(chapter, problem).empty());
  problem.rows = 10;
  problem.cols = 101;
  CHECK(refusal(chapter, problem).sentence ==
        std::string(chapter.id) + " takes 1000 elements at most, not 10 x 101");
  problem.rows = 4;
  problem.cols = std::int64_t{1} << 62;  // the product is 0 in 64 bits
  CHECK_FALSE(refusal(chapter, problem).empty());
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
  const Chapter& chapter =
      *std::find_if(chapters().begin(), chapters().end(),
                    [](const Chapter& each) { return each.direction() == Direction::Forward; });
  for (const DType dtype : kDTypes) {
    Problem problem{.dtype = dtype, .rows = 3, .cols = 1000};
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
      // Four units in the last place, far too small to show in the norm of 3000 elements.
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

TEST_CASE("a launch that the device cannot do names the kernel and its configuration") {
  // 2000 threads per block exceed the limit of every GPU and of the SIMT machine.

  std::string message;
  try {
    launch_too_many_threads();
  } catch (const std::exception& error) {
    message = error.what();
  }
  CHECK(message.find("does_nothing") != std::string::npos);
  CHECK(message.find("2000") != std::string::npos);
}
