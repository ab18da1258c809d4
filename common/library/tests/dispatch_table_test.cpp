// The dispatch's table: every problem has a kernel, and no rule is in vain.
#include <doctest/doctest.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "common/kernel/registry.h"
#include "common/library/dispatch.h"

using namespace lnc;

namespace {

/// GPUs that the table was not measured on.
constexpr Gpu kT4{40, 1024, 4 << 20, 75, 320};
constexpr Gpu kA100{108, 2048, 40 << 20, 80, 2039};
constexpr Gpu kRtx4090{128, 1536, 72 << 20, 89, 1008};
constexpr Gpu kH100Pcie{114, 2048, 50 << 20, 90, 2039};
constexpr Gpu kH20{78, 2048, 60 << 20, 90, 4000};
constexpr Gpu kB200{148, 2048, 126 << 20, 100, 8000};
constexpr Gpu kRtx5090{170, 1536, 96 << 20, 120, 1792};
constexpr Gpu kOthers[] = {kT4, kA100, kRtx4090, kH100Pcie, kH20, kB200, kRtx5090};

/// Calls `body(request)` for every combination of what the dispatch looks at, with these sizes.
template <typename Body>
void for_each_request(const std::vector<std::int64_t>& rows, const std::vector<std::int64_t>& cols,
                      const std::vector<Gpu>& gpus, const Body& body) {
  for (const auto& [direction, from_y] :
       {std::pair{Direction::Forward, false}, std::pair{Direction::Backward, false},
        std::pair{Direction::Backward, true}})
    for (const DType dtype : {DType::F32, DType::F16, DType::BF16})
      for (const Kind kind : {Kind::Layer, Kind::Rms})
        for (const bool mixed : {false, true})
          for (const bool aligned : {false, true})
            for (const Gpu& gpu : gpus)
              for (const std::int64_t m : rows)
                for (const std::int64_t n : cols) {
                  Request request{.direction = direction,
                                  .problem = {.kind = kind,
                                              .dtype = dtype,
                                              .rows = m,
                                              .cols = n,
                                              .mixed = mixed && dtype != DType::F32,
                                              .misalign = aligned ? 0 : 1},
                                  .from_y = from_y,
                                  .gpu = gpu};
                  body(request);
                  if (from_y) continue;
                  request.problem.fusion = {.residual = Residual::Same, .prenorm = true};
                  body(request);
                  request.problem.fusion.rowscale = true;
                  body(request);
                }
}

}  // namespace

TEST_CASE("the dispatch has a chapter for every problem on every GPU, with or without parameters") {
  for_each_request({0, 1, 65536, 1 << 24}, {1, 33, 1024, 50257, 50264, 1 << 22},
                   {kT4, kA100, kRtx4090, kH100, kH200, kRtx5090}, [](Request request) {
                     for (const bool affine : {true, false}) {
                       request.problem.affine = affine;
                       const Chapter* chapter = choose(request).chapter;
                       CAPTURE(request.problem.rows);
                       CAPTURE(request.problem.cols);
                       REQUIRE(chapter != nullptr);
                       CHECK(chapter->direction() == request.direction);
                       CHECK(chapter->from_y == request.from_y);
                       if (request.gpu.architecture >= 120)  // 99 KB of shared memory a block
                         CHECK(chapter->min_architecture < 90);
                       if (request.from_y || request.problem.fusion != Fusion{}) continue;
                       Request apart = request;
                       apart.problem.row_gap = request.problem.aligned() ? 8 : 1;
                       const Chapter* of_rows_apart = choose(apart).chapter;
                       REQUIRE(of_rows_apart != nullptr);
                       CHECK(of_rows_apart->takes_strides);
                     }
                   });
}

TEST_CASE("each line of the dispatch's table names a chapter, says why, and is not in vain") {
  std::vector<std::int64_t> rows, cols;
  for (const Choice& line : choices()) {
    rows.insert(rows.end(), {line.min_rows, std::int64_t{1} << 20});
    cols.insert(cols.end(), {line.min_cols, std::min<std::int64_t>(line.max_cols, 1 << 20)});
    const std::int64_t least = (line.min_cols + 7) / 8 * 8;
    for (const int bytes : {2, 4}) {
      const std::int64_t most_rows = line.max_tensor_bytes / (least * bytes);
      rows.push_back(std::min<std::int64_t>(most_rows, 1 << 20));
    }
  }
  std::vector<std::int64_t> aligned;  // the first such width from there on, in every type
  for (const std::int64_t n : cols) aligned.push_back((n + 7) / 8 * 8);
  cols.insert(cols.end(), aligned.begin(), aligned.end());
  for (auto* sizes : {&rows, &cols}) {
    std::sort(sizes->begin(), sizes->end());
    sizes->erase(std::unique(sizes->begin(), sizes->end()), sizes->end());
  }
  for (std::size_t i = 0; i < choices().size(); ++i) {
    const Choice& line = choices()[i];
    CAPTURE(line.chapter);
    CAPTURE(line.because);
    CHECK_FALSE(line.because.empty());
    const Chapter* chapter = find_chapter(line.chapter);
    REQUIRE(chapter != nullptr);
    CHECK(chapter->direction() == line.direction);
    CHECK(chapter->from_y == line.from_y);
    std::vector<Choice> others(choices().begin(), choices().end());
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
    bool matters = false;
    for_each_request(rows, cols, {kA100, kH100, kH200, kB200}, [&](const Request& request) {
      matters = matters || (takes(line, request) &&
                            choose(request).chapter != choose(request, others).chapter);
    });
    CHECK(matters);
  }
}

TEST_CASE("the first line that takes a request wins, unless its chapter refuses") {
  const Choice table[] = {
      {.chapter = "fwd01", .because = "", .direction = Direction::Forward, .max_cols = 100},
      {.chapter = "no such chapter", .because = "", .direction = Direction::Forward},
      {.chapter = "fwd06",
       .because = "",
       .direction = Direction::Forward,
       .needs_aligned = true,
       .dtype = DType::BF16,
       .min_rows = 1000,
       .min_architecture = 90},
      {.chapter = "fwd04", .because = "", .direction = Direction::Forward, .kind = Kind::Layer},
  };
  Request request{.direction = Direction::Forward};
  const auto chosen = [&](const Problem& problem) {
    request.problem = problem;
    const Chapter* chapter = choose(request, table).chapter;
    return chapter == nullptr ? std::string_view("none") : chapter->id;
  };
  CHECK(chosen({.cols = 100}) == "fwd01");
  CHECK(chosen({.kind = Kind::Rms, .cols = 100}) == "none");  // fwd01 refuses
  CHECK(chosen({.cols = 104}) == "fwd04");
  const Problem third{.dtype = DType::BF16, .rows = 1000, .cols = 104};
  CHECK(chosen(third) == "fwd06");
  CHECK(chosen({.dtype = DType::BF16, .rows = 1000, .cols = 104, .misalign = 1}) == "fwd04");
  CHECK(chosen({.dtype = DType::BF16, .rows = 1000, .cols = 104, .misalign = 8}) == "fwd06");
  CHECK(chosen({.dtype = DType::BF16, .rows = 1000, .cols = 103}) == "fwd04");
  CHECK(chosen({.dtype = DType::BF16, .rows = 999, .cols = 104}) == "fwd04");
  request.gpu.architecture = 89;
  CHECK(chosen(third) == "fwd04");
  request.gpu.architecture = 90;
  request.direction = Direction::Backward;
  CHECK(chosen({.cols = 104}) == "none");
}

namespace {

bool takes_forward(const Choice& line, const Problem& problem) {
  return takes(line, {.direction = Direction::Forward, .problem = problem});
}

}  // namespace

TEST_CASE("a line for odd rows takes none of whole vectors, wherever they start") {
  const Choice line{.chapter = "fwd04",
                    .because = "",
                    .direction = Direction::Forward,
                    .needs_unaligned_row_bytes = true};
  CHECK(takes_forward(line, {.cols = 103}));
  CHECK_FALSE(takes_forward(line, {.cols = 104}));
  CHECK_FALSE(takes_forward(line, {.cols = 104, .misalign = 1}));
  CHECK(takes_forward(line, {.dtype = DType::BF16, .cols = 108, .misalign = 1}));
}

TEST_CASE("a line for tensors that start alike takes rows of any width, and no tensor elsewhere") {
  const Choice line{.chapter = "fwd04",
                    .because = "",
                    .direction = Direction::Forward,
                    .needs_same_alignment = true};
  CHECK(takes_forward(line, {.cols = 103}));
  CHECK_FALSE(takes_forward(line, {.cols = 103, .misalign = 1}));
  CHECK(takes_forward(line, {.cols = 103, .misalign = 4}));  // floats: 16 bytes
  CHECK_FALSE(takes_forward(line, {.cols = 103, .misalign = 4, .stagger = 1}));
}

TEST_CASE("only an H100 and an H200 are GPUs that the table was measured on") {
  CHECK(measured_gpu(kH100) == &kMeasuredGpus[0]);
  CHECK(measured_gpu(kH200) == &kMeasuredGpus[1]);
  for (const Gpu& gpu : kOthers) {
    CAPTURE(gpu.architecture);
    CAPTURE(gpu.memory_gb_s);
    CHECK(measured_gpu(gpu) == nullptr);
  }
  Gpu clocked = kH100;
  clocked.memory_gb_s += 100;  // as CUDA may round a clock
  CHECK(measured_gpu(clocked) == &kMeasuredGpus[0]);
  clocked.memory_gb_s += 200;
  CHECK(measured_gpu(clocked) == nullptr);
}

TEST_CASE("another GPU gets no line that was tuned on one, and an H100 none of an H200") {
  const std::vector<Gpu> others(std::begin(kOthers), std::end(kOthers));
  const std::vector<std::int64_t> rows = {1, 128, 4096, 1 << 20};
  const std::vector<std::int64_t> cols = {65,   127,  256,   2304,  4608,
                                          7168, 8192, 12288, 16384, 131072};
  for_each_request(rows, cols, others, [](const Request& request) {
    const Chosen chosen = choose(request);
    REQUIRE(chosen.chapter != nullptr);
    CHECK(chosen.line->gpus.empty());
  });
  bool tuned = false;
  for_each_request(rows, cols, {kH100}, [&](const Request& request) {
    const std::string_view gpus = choose(request).line->gpus;
    CHECK(gpus != "H200");
    tuned = tuned || gpus == "H100, H200";
  });
  CHECK(tuned);
  const Choice of_h200{
      .chapter = "fwd06", .because = "", .direction = Direction::Forward, .gpus = "H200"};
  const Choice measured{
      .chapter = "fwd06", .because = "", .direction = Direction::Forward, .gpus = "H100, H200"};
  for (const Gpu& gpu : kOthers) {
    CHECK_FALSE(takes(of_h200, {.direction = Direction::Forward, .gpu = gpu}));
    CHECK_FALSE(takes(measured, {.direction = Direction::Forward, .gpu = gpu}));
  }
  CHECK(takes(of_h200, {.direction = Direction::Forward, .gpu = kH200}));
  CHECK(takes(measured, {.direction = Direction::Forward, .gpu = kH200}));
  CHECK(std::string(of_h200.measured_on()) == "NVIDIA H200");
  CHECK(std::string(measured.measured_on()) == "NVIDIA H100 80GB HBM3");
}

TEST_CASE("a batch-invariant choice knows columns, types and GPU alone, and keeps its promise") {
  const std::vector<std::int64_t> rows = {0, 1, 300, 70000, 1 << 22};
  for_each_request(
      rows, {1, 65, 127, 192, 256, 1000, 1001, 2304, 4097, 8192, 12289, 16384, 50257, 262144},
      {kA100, kH100, kH200, kB200, kRtx5090}, [](Request request) {
        request.problem.batch_invariant = true;
        const Chosen chosen = choose(request);
        REQUIRE(chosen.chapter != nullptr);
        Request other = request;
        other.problem.rows = 7;
        other.problem.misalign = request.problem.misalign == 0 ? 1 : 0;
        other.problem.stagger = 1;
        CHECK(choose(other).line == chosen.line);
        if (request.problem.fusion == Fusion{} && !request.from_y) {
          other.problem.row_gap = 1;
          CHECK(choose(other).line == chosen.line);
        }
        CHECK((request.problem.has_whole_vectors() || !chosen.chapter->shares_by_address));
      });
}
