// The dispatch's table: every problem has a chapter, and no line is in vain.
#include <doctest/doctest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "common/harness/registry.h"
#include "common/library/dispatch.h"

using namespace lnc;

namespace {

/// Calls `body(request)` for every combination of what the dispatch looks at, with these sizes.
template <typename Body>
void for_each_request(const std::vector<std::int64_t>& rows, const std::vector<std::int64_t>& cols,
                      const std::vector<int>& architectures, const Body& body) {
  for (const auto& [direction, from_y] :
       {std::pair{Direction::Forward, false}, std::pair{Direction::Backward, false},
        std::pair{Direction::Backward, true}})
    for (const DType dtype : {DType::F32, DType::F16, DType::BF16})
      for (const Kind kind : {Kind::Layer, Kind::Rms})
        for (const bool mixed : {false, true})
          for (const bool aligned : {false, true})
            for (const int architecture : architectures)
              for (const int memory_gb_s : {kH100.memory_gb_s, kH200.memory_gb_s})
                for (const std::int64_t m : rows)
                  for (const std::int64_t n : cols) {
                    Request request{.direction = direction, .from_y = from_y};
                    request.gpu.memory_gb_s = memory_gb_s;
                    request.problem.kind = kind;
                    request.problem.dtype = dtype;
                    request.problem.mixed = mixed && dtype != DType::F32;
                    request.problem.rows = m;
                    request.problem.cols = n;
                    request.problem.misalign = aligned ? 0 : 1;
                    request.gpu.architecture = architecture;
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
                   {75, 80, 86, 89, 90, 120}, [](Request request) {
                     for (const bool affine : {true, false}) {
                       request.problem.affine = affine;
                       const Chapter* chapter = choose(request);
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
                       const Chapter* of_rows_apart = choose(apart);
                       REQUIRE(of_rows_apart != nullptr);
                       CHECK(of_rows_apart->takes_strides);
                     }
                   });
}

TEST_CASE("each line of the dispatch's table names a chapter, says why, and is not in vain") {
  std::vector<std::int64_t> rows, cols;
  for (const Choice& line : choices()) {
    rows.insert(rows.end(), {line.min_rows, std::min<std::int64_t>(line.max_rows, 1 << 20)});
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
    for_each_request(rows, cols, {80, 90, 100}, [&](const Request& request) {
      matters = matters || (takes(line, request) && choose(request) != choose(request, others));
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
  const auto chosen = [&] {
    const Chapter* chapter = choose(request, table);
    return chapter == nullptr ? std::string_view("none") : chapter->id;
  };
  request.problem.cols = 100;
  CHECK(chosen() == "fwd01");
  request.problem.kind = Kind::Rms;  // fwd01 refuses
  CHECK(chosen() == "none");
  request.problem.kind = Kind::Layer;
  request.problem.cols = 104;
  CHECK(chosen() == "fwd04");
  request.problem.dtype = DType::BF16;
  request.problem.rows = 1000;
  CHECK(chosen() == "fwd06");
  request.problem.misalign = 1;
  CHECK(chosen() == "fwd04");
  request.problem.misalign = 8;
  CHECK(chosen() == "fwd06");
  request.problem.misalign = 0;
  request.problem.cols = 103;
  CHECK(chosen() == "fwd04");
  request.problem.cols = 104;
  request.gpu.architecture = 89;
  CHECK(chosen() == "fwd04");
  request.gpu.architecture = 90;
  request.problem.rows = 999;
  CHECK(chosen() == "fwd04");
  request.direction = Direction::Backward;
  CHECK(chosen() == "none");
}

TEST_CASE("a line for odd rows takes none of whole vectors, wherever they start") {
  const Choice line{
      .chapter = "fwd04", .because = "", .direction = Direction::Forward, .needs_odd = true};
  Request request{.direction = Direction::Forward};
  request.problem.cols = 103;
  CHECK(takes(line, request));
  request.problem.cols = 104;
  CHECK_FALSE(takes(line, request));
  request.problem.misalign = 1;
  CHECK_FALSE(takes(line, request));
  request.problem.dtype = DType::BF16;
  request.problem.cols = 108;
  CHECK(takes(line, request));
}

TEST_CASE("a line for tensors that start alike takes rows of any width, and no tensor elsewhere") {
  const Choice line{
      .chapter = "fwd04", .because = "", .direction = Direction::Forward, .needs_alike = true};
  Request request{.direction = Direction::Forward};
  request.problem.cols = 103;
  CHECK(takes(line, request));
  request.problem.misalign = 1;
  CHECK_FALSE(takes(line, request));
  request.problem.misalign = 4;  // floats: 16 bytes
  CHECK(takes(line, request));
  request.problem.stagger = 1;
  CHECK_FALSE(takes(line, request));
}
