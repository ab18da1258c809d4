// The C interface of common/library/lnc.h over the CPU backend's library: every status, every
// chapter against the reference, workspaces, threads. Linked with the library and the reference
// only.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "common/library/lnc.h"
#include "reference_cpu/layer_norm.h"

namespace {

template <typename T>
constexpr lnc_dtype kDType = std::is_same_v<T, float>    ? LNC_F32
                             : std::is_same_v<T, __half> ? LNC_F16
                                                         : LNC_BF16;
template <typename T>
constexpr double kLimit = std::is_same_v<T, float>    ? 1e-5
                          : std::is_same_v<T, __half> ? 6e-4
                                                      : 4e-3;

template <typename T>
std::vector<T> random_values(std::int64_t count, double mean, unsigned seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> draw(static_cast<float>(mean), 1.0f);
  std::vector<T> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(T(draw(random)));
  return values;
}

template <typename T>
std::vector<double> as_doubles(const std::vector<T>& values) {
  std::vector<double> doubles;
  for (const T value : values) doubles.push_back(static_cast<float>(value));
  return doubles;
}

template <typename T>
double relative_error(const std::vector<T>& ours, const std::vector<double>& reference) {
  REQUIRE(ours.size() == reference.size());
  double distance = 0.0, norm = 0.0;
  const auto values = as_doubles(ours);
  for (std::size_t i = 0; i < values.size(); ++i) {
    distance += (values[i] - reference[i]) * (values[i] - reference[i]);
    norm += reference[i] * reference[i];
  }
  return norm == 0.0 ? std::sqrt(distance) : std::sqrt(distance / norm);
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

template <typename T>
T nan_of() {
  return T(std::numeric_limits<float>::quiet_NaN());
}

/// A forward and a backward pass with memory for all they read and write: x of T, parameters of W.
template <typename T, typename W = T>
struct Case {
  lnc_problem problem;
  std::vector<T> x, dy, y, dx;
  std::vector<W> weight, bias, dweight, dbias;
  std::vector<float> mean, rstd;
  std::vector<std::max_align_t> workspace;

  Case(lnc_kind kind, std::int64_t rows, std::int64_t cols, bool has_weight = true,
       bool has_bias = true, unsigned seed = 1)
      : problem{kind, kDType<T>, kDType<W>, 1e-5f, rows, cols, 0},
        x(random_values<T>(rows * cols, 0.5, seed)),
        dy(random_values<T>(rows * cols, 0.0, seed + 1)),
        y(rows * cols, nan_of<T>()),
        dx(rows * cols, nan_of<T>()),
        weight(random_values<W>(has_weight ? cols : 0, 3.0, seed + 2)),
        bias(random_values<W>(has_bias && kind == LNC_LAYER ? cols : 0, 0.0, seed + 3)),
        dweight(cols, nan_of<W>()),
        dbias(kind == LNC_LAYER ? cols : 0, nan_of<W>()),
        mean(kind == LNC_LAYER ? rows : 0),
        rstd(rows) {}

  template <typename V>
  static V* pointer(std::vector<V>& values) {
    return values.empty() ? nullptr : values.data();
  }
  lnc_forward_args forward_args(const char* chapter = nullptr) {
    return {.chapter = chapter,
            .problem = problem,
            .x = pointer(x),
            .weight = pointer(weight),
            .bias = pointer(bias),
            .y = pointer(y),
            .mean = pointer(mean),
            .rstd = pointer(rstd),
            .workspace = nullptr,
            .workspace_bytes = 0,
            .stream = nullptr,
            .fused = nullptr,
            .x_rows = nullptr};
  }
  lnc_backward_args backward_args(const char* chapter = nullptr, bool from_y = false) {
    return {.chapter = chapter,
            .problem = problem,
            .dy = pointer(dy),
            .x = from_y ? nullptr : pointer(x),
            .y = from_y ? pointer(y) : nullptr,
            .weight = pointer(weight),
            .bias = pointer(bias),
            .mean = from_y ? nullptr : pointer(mean),
            .rstd = pointer(rstd),
            .dx = pointer(dx),
            .dweight = pointer(dweight),
            .dbias = pointer(dbias),
            .workspace = nullptr,
            .workspace_bytes = 0,
            .stream = nullptr,
            .fused = nullptr,
            .x_rows = nullptr,
            .dy_rows = nullptr};
  }
  void* allocate(std::size_t bytes) {
    workspace.assign(bytes / sizeof(std::max_align_t) + 2, {});
    std::memset(workspace.data(), 0xff, workspace.size() * sizeof(std::max_align_t));
    return workspace.data();
  }
  bool past_workspace_is_untouched(std::size_t bytes) const {
    const auto* const all = reinterpret_cast<const unsigned char*>(workspace.data());
    for (std::size_t i = bytes; i < workspace.size() * sizeof(std::max_align_t); ++i)
      if (all[i] != 0xff) return false;
    return true;
  }
  lnc_status run(lnc_forward_args args) { return run(args, lnc_forward_plan, lnc_forward); }
  lnc_status run(lnc_backward_args args) { return run(args, lnc_backward_plan, lnc_backward); }
  template <typename Args>
  lnc_status run(Args args, lnc_status (*plan_of)(const Args*, lnc_plan*),
                 lnc_status (*call)(const Args*)) {
    lnc_plan plan;
    if (const lnc_status status = plan_of(&args, &plan); status != LNC_OK) return status;
    args.workspace_bytes = plan.workspace_bytes;
    args.workspace = allocate(plan.workspace_bytes);
    const lnc_status status = call(&args);
    CHECK(past_workspace_is_untouched(plan.workspace_bytes));
    return status;
  }

  reference::Norm norm() const {
    return problem.kind == LNC_LAYER ? reference::Norm::Layer : reference::Norm::Rms;
  }
  void check_forward() const {
    const auto expected = reference::forward(norm(), problem.rows, problem.cols, as_doubles(x),
                                             as_doubles(weight), as_doubles(bias), problem.eps);
    CHECK(relative_error(y, expected.y) < kLimit<T>);
    CHECK(relative_error(mean, expected.mean) < 1e-5);
    CHECK(relative_error(rstd, expected.rstd) < 1e-5);
  }
  void check_backward(bool from_y = false) const {
    const auto expected =
        from_y
            ? reference::backward_from_y(norm(), problem.rows, problem.cols, as_doubles(dy),
                                         as_doubles(y), as_doubles(weight), as_doubles(bias),
                                         as_doubles(rstd), problem.eps)
            : reference::backward(norm(), problem.rows, problem.cols, as_doubles(dy), as_doubles(x),
                                  as_doubles(weight), as_doubles(mean), as_doubles(rstd));
    CHECK(relative_error(dx, expected.dx) < kLimit<T>);
    CHECK(relative_error(dweight, expected.dweight) < kLimit<W>);
    if (problem.kind == LNC_LAYER) CHECK(relative_error(dbias, expected.dbias) < kLimit<W>);
  }
};

std::vector<lnc_chapter> listed_chapters() {
  std::vector<lnc_chapter> list(lnc_list(nullptr, 0));
  lnc_list(list.data(), list.size());
  return list;
}

/// All but the reader's own, which may be unfinished.
std::vector<lnc_chapter> all_chapters() {
  std::vector<lnc_chapter> list = listed_chapters();
  std::erase_if(list, [](const lnc_chapter& c) { return std::string(c.id).starts_with("my"); });
  return list;
}

/// Whether a call ended with `status`, and left a sentence that has `words` in it.
bool failed_with(lnc_status expected, lnc_status status, const std::string& words) {
  const std::string why = lnc_last_error();
  CAPTURE(why);
  CHECK(status == expected);
  CHECK(why.find(words) != std::string::npos);
  return status == expected;
}

}  // namespace

// First, while the library has not yet asked for the schedule.
TEST_CASE("what goes wrong in a launch is LNC_FAILED, and the next call works") {
  Case<float> c(LNC_LAYER, 3, 8);
  setenv("SIMT_SCHEDULE", "no such schedule", 1);
  CHECK(failed_with(LNC_FAILED, c.run(c.forward_args()), "SIMT_SCHEDULE is 'no such schedule'"));
  unsetenv("SIMT_SCHEDULE");
  CHECK(c.run(c.forward_args()) == LNC_OK);
  CHECK(std::string(lnc_last_error()).empty());
  c.check_forward();
}

TEST_CASE("the library says what it is and what it has") {
  CHECK(std::string(lnc_backend()) == "cpu");
  CHECK(lnc_abi() == LNC_ABI);
  const auto list = listed_chapters();
  REQUIRE(list.size() >= 18);
  std::set<std::string> ids;
  bool has_from_y = false;
  std::pair last(false, false);  // of the library, backward
  for (std::size_t i = 0; i < list.size(); ++i) {
    CHECK(ids.insert(list[i].id).second);
    const std::string id = list[i].id;
    const bool in_library = id.starts_with("lib_");
    const std::string name = in_library ? id.substr(4) : id;
    CHECK((name.starts_with(list[i].backward ? "bwd" : "fwd") || name.starts_with("my")));
    CHECK_FALSE(std::string(list[i].title).empty());
    const std::pair key(in_library, list[i].backward != 0);
    CHECK(last <= key);
    last = key;
    has_from_y = has_from_y || list[i].from_y;
  }
  CHECK(has_from_y);

  lnc_chapter two[3] = {};
  CHECK(lnc_list(two, 2) == list.size());
  CHECK(std::string(two[1].id) == list[1].id);
  CHECK(two[2].id == nullptr);
  CHECK(lnc_list(nullptr, 5) == list.size());
}

TEST_CASE("every kernel is right through the library, whichever parameters are null") {
  for (const lnc_chapter& chapter : all_chapters())
    for (const lnc_kind kind : {LNC_LAYER, LNC_RMS})
      for (const bool has_weight : {true, false})
        for (const bool has_bias : {true, false}) {
          CAPTURE(chapter.id);
          CAPTURE(kind);
          CAPTURE(has_weight);
          CAPTURE(has_bias);
          Case<float> c(kind, 37, 100, has_weight, has_bias);
          REQUIRE(c.run(c.forward_args()) == LNC_OK);
          const lnc_status status = chapter.backward
                                        ? c.run(c.backward_args(chapter.id, chapter.from_y))
                                        : c.run(c.forward_args(chapter.id));
          if (status == LNC_REFUSED) {
            CHECK(std::string(lnc_last_error()).find(chapter.id) == 0);
            CHECK((kind == LNC_RMS || !has_weight || !has_bias));
            continue;
          }
          CHECK(status == LNC_OK);
          if (chapter.backward)
            c.check_backward(chapter.from_y);
          else
            c.check_forward();
        }
}

namespace {

template <typename T, typename W>
void check_types() {
  for (const lnc_kind kind : {LNC_LAYER, LNC_RMS})
    for (const std::int64_t cols : {1, 33, 1024})
      for (const bool from_y : {false, true}) {
        CAPTURE(cols);
        CAPTURE(from_y);
        Case<T, W> c(kind, 65, cols);
        CHECK(c.run(c.forward_args()) == LNC_OK);
        c.check_forward();
        if (from_y && cols == 1) continue;  // xhat is 0, and what is left of y is its rounding
        CHECK(c.run(c.backward_args(nullptr, from_y)) == LNC_OK);
        c.check_backward(from_y);
      }
}

}  // namespace

TEST_CASE("the dispatch has a chapter for every type, kind and start") {
  check_types<float, float>();
  check_types<__half, __half>();
  check_types<__half, float>();
  check_types<__nv_bfloat16, __nv_bfloat16>();
  check_types<__nv_bfloat16, float>();
}

namespace {

/// Where rows lie apart, and what a matrix is there; between its rows lie NaNs.
template <typename T>
std::vector<T> apart(const std::vector<T>& dense, std::int64_t cols, const lnc_rows& rows) {
  const auto start = [&](std::int64_t row) {
    if (rows.group_rows == 0) return row * rows.row_stride;
    return row / rows.group_rows * rows.group_stride + row % rows.group_rows * rows.row_stride;
  };
  const std::int64_t count = static_cast<std::int64_t>(dense.size()) / cols;
  std::vector<T> wide(start(count - 1) + cols, nan_of<T>());
  for (std::int64_t row = 0; row < count; ++row)
    std::copy_n(dense.begin() + row * cols, cols, wide.begin() + start(row));
  return wide;
}

template <typename T, typename W>
void check_rows_apart(std::int64_t cols, std::int64_t gap) {
  for (const lnc_kind kind : {LNC_LAYER, LNC_RMS})
    for (const std::int64_t heads : {0, 3}) {
      CAPTURE(cols);
      CAPTURE(gap);
      CAPTURE(heads);
      const lnc_rows rows{cols + gap, heads, 3 * heads * (cols + gap)};
      Case<T, W> c(kind, 20, cols);
      const auto x = apart(c.x, cols, rows);
      const auto dy = apart(c.dy, cols, rows);
      auto forward = c.forward_args();
      forward.x = x.data();
      forward.x_rows = &rows;
      CHECK(c.run(forward) == LNC_OK);
      c.check_forward();
      for (const bool apart_x : {true, false})
        for (const bool apart_dy : {true, false}) {
          auto backward = c.backward_args();
          backward.x = apart_x ? x.data() : c.x.data();
          backward.x_rows = apart_x ? &rows : nullptr;
          backward.dy = apart_dy ? dy.data() : c.dy.data();
          backward.dy_rows = apart_dy ? &rows : nullptr;
          CHECK(c.run(backward) == LNC_OK);
          c.check_backward();
        }
    }
}

}  // namespace

TEST_CASE("rows of x and of dy that lie apart are taken as they are") {
  for (const std::int64_t cols : {1, 33, 64, 1000, 1024, 4096, 9000})
    for (const std::int64_t gap : {1, 8}) {
      check_rows_apart<float, float>(cols, gap);
      check_rows_apart<__nv_bfloat16, float>(cols, gap);
    }
}

TEST_CASE("a gradient that is one row again and again is taken as it is") {
  Case<float> c(LNC_LAYER, 30, 256);
  REQUIRE(c.run(c.forward_args()) == LNC_OK);
  for (std::int64_t row = 1; row < 30; ++row)
    std::copy_n(c.dy.begin(), 256, c.dy.begin() + row * 256);
  const auto row = std::vector<float>(c.dy.begin(), c.dy.begin() + 256);
  const lnc_rows expanded{};
  auto args = c.backward_args();
  args.dy = row.data();
  args.dy_rows = &expanded;
  CHECK(c.run(args) == LNC_OK);
  c.check_backward();
}

TEST_CASE("rows that lie apart are refused where nothing takes them, in a sentence") {
  Case<float> c(LNC_LAYER, 6, 16);
  const lnc_rows wide{20, 0, 0};
  const auto forward = [&](lnc_status status, const char* words, const char* chapter,
                           const lnc_rows& rows) {
    auto args = c.forward_args(chapter);
    args.x_rows = &rows;
    lnc_plan plan;
    CHECK(failed_with(status, lnc_forward_plan(&args, &plan), words));
  };
  forward(LNC_REFUSED, "fwd02 takes rows that lie one behind another only", "fwd02", wide);
  forward(LNC_BAD_ARGUMENT, "x_rows->row_stride is -16; it must be 0 or more", nullptr,
          {-16, 0, 0});
  forward(LNC_BAD_ARGUMENT, "x_rows->group_rows is -1; it must be 0 or more", nullptr, {16, -1, 0});
  forward(LNC_BAD_ARGUMENT, "x_rows->group_stride is -8; it must be", nullptr, {16, 2, -8});

  auto from_y = c.backward_args(nullptr, true);
  from_y.dy_rows = &wide;
  CHECK(failed_with(LNC_BAD_ARGUMENT, lnc_backward(&from_y), "x_rows and dy_rows must be null"));
  lnc_fused_forward fused{};
  auto args = c.forward_args();
  args.fused = &fused;
  args.x_rows = &wide;
  CHECK(failed_with(LNC_BAD_ARGUMENT, lnc_forward(&args), "x_rows must be null"));
}

TEST_CASE("rows that lie one behind another have the same plan whoever says so") {
  Case<float> c(LNC_LAYER, 6, 16);
  auto args = c.forward_args("fwd02");
  for (const lnc_rows rows : {lnc_rows{16, 0, 0}, lnc_rows{16, 3, 48}, lnc_rows{16, 6, 1}}) {
    args.x_rows = &rows;
    lnc_plan plan;
    CHECK(lnc_forward_plan(&args, &plan) == LNC_OK);
  }
}

namespace {

/// The same values, `elements` past a 16-byte boundary, with `gap` elements between rows of `cols`.
template <typename T>
struct Placed {
  std::vector<std::max_align_t> memory;
  T* at;

  Placed(const std::vector<T>& values, std::int64_t elements, std::int64_t cols, std::int64_t gap)
      : memory((values.size() / cols * (cols + gap) + 64) * sizeof(T) / sizeof(std::max_align_t) +
               2) {
    at = reinterpret_cast<T*>(memory.data()) + elements;
    for (std::size_t i = 0; i < values.size(); ++i)
      at[i / cols * (cols + gap) + i % cols] = values[i];
  }
};

/// Compares batch-invariant passes over tensors that start elsewhere, and over fewer rows, with
/// those over all of them, aligned.
template <typename T, typename W>
void check_batch_invariance(lnc_kind kind, std::int64_t cols, std::int64_t gap) {
  constexpr std::int64_t kRows = 9, kFew = 2, kFirst = 4;
  CAPTURE(kind);
  CAPTURE(cols);
  CAPTURE(gap);
  Case<T, W> all(kind, kRows, cols);
  all.problem.batch_invariant = 1;
  REQUIRE(all.run(all.forward_args()) == LNC_OK);
  all.check_forward();
  REQUIRE(all.run(all.backward_args()) == LNC_OK);
  all.check_backward();

  const auto of_rows = [&](const std::vector<T>& values) {
    return std::vector<T>(values.begin() + kFirst * cols, values.begin() + (kFirst + kFew) * cols);
  };
  const auto statistics_of = [&](const std::vector<float>& values) {
    return std::vector<float>(values.begin() + kFirst, values.begin() + kFirst + kFew);
  };
  Case<T, W> few(kind, kFew, cols);
  few.problem.batch_invariant = 1;
  const Placed<T> x(of_rows(all.x), 1, cols, gap), dy(of_rows(all.dy), 2, cols, gap);
  Placed<T> y(few.y, 3, cols, 0), dx(few.dx, 1, cols, 0);
  const Placed<W> weight(all.weight, 1, cols, 0);
  const Placed<W> bias(all.bias.empty() ? all.weight : all.bias, 1, cols, 0);
  const lnc_rows rows{cols + gap, 0, 0};
  auto forward = few.forward_args();
  forward.x = x.at;
  forward.x_rows = gap > 0 ? &rows : nullptr;
  forward.y = y.at;
  forward.weight = weight.at;
  if (kind == LNC_LAYER) forward.bias = bias.at;
  CHECK(few.run(forward) == LNC_OK);
  auto backward = few.backward_args();
  backward.x = x.at;
  backward.dy = dy.at;
  backward.x_rows = backward.dy_rows = forward.x_rows;
  backward.weight = weight.at;
  backward.dx = dx.at;
  CHECK(few.run(backward) == LNC_OK);
  CHECK(same_bits(std::vector<T>(y.at, y.at + kFew * cols), of_rows(all.y)));
  CHECK(same_bits(std::vector<T>(dx.at, dx.at + kFew * cols), of_rows(all.dx)));
  CHECK(same_bits(few.rstd, statistics_of(all.rstd)));
  if (kind == LNC_LAYER) CHECK(same_bits(few.mean, statistics_of(all.mean)));
}

}  // namespace

TEST_CASE("a batch-invariant row has the same bits wherever it starts and however many there are") {
  for (const lnc_kind kind : {LNC_LAYER, LNC_RMS})
    for (const std::int64_t cols : {3, 64, 65, 384, 1000, 1001, 4096})
      for (const std::int64_t gap : {0, 1, 8}) {
        check_batch_invariance<float, float>(kind, cols, gap);
        check_batch_invariance<__nv_bfloat16, float>(kind, cols, gap);
        check_batch_invariance<__half, __half>(kind, cols, gap);
      }
}

TEST_CASE("a batch-invariant pass asks for room for copies where it makes some, and only there") {
  Case<float> c(LNC_LAYER, 50, 256);
  const auto workspace_of = [&](int batch_invariant, int past) {
    auto args = c.forward_args();
    args.problem.batch_invariant = batch_invariant;
    args.problem.rows = 49;
    args.x = c.x.data() + past;
    lnc_plan plan;
    REQUIRE(lnc_forward_plan(&args, &plan) == LNC_OK);
    return plan.workspace_bytes;
  };
  for (const auto* tensor : {&c.x, &c.y, &c.weight, &c.bias})
    REQUIRE(reinterpret_cast<std::uintptr_t>(tensor->data()) % 16 == 0);
  CHECK(workspace_of(0, 0) == 0);
  CHECK(workspace_of(0, 1) == 0);
  CHECK(workspace_of(1, 0) == 0);
  CHECK(workspace_of(1, 1) == 49 * 256 * sizeof(float));
}

TEST_CASE(
    "a kernel that assigns columns by a row's address refuses batch invariance of such rows") {
  Case<float> c(LNC_LAYER, 6, 1001);
  c.problem.batch_invariant = 1;
  CHECK(failed_with(
      LNC_REFUSED, c.run(c.forward_args("lib_fwd_unaligned")),
      "lib_fwd_unaligned assigns the columns of a row of 1001 f32 to threads by its address"));
  CHECK(c.run(c.forward_args("lib_fwd_registers")) == LNC_OK);
  c.check_forward();
}

TEST_CASE("a plan says by which rule it was made, and where that was measured") {
  Case<float> c(LNC_LAYER, 64, 16384);
  const auto plan_of = [&](const char* chapter) {
    const auto args = c.forward_args(chapter);
    lnc_plan plan;
    REQUIRE(lnc_forward_plan(&args, &plan) == LNC_OK);
    return plan;
  };
  const lnc_plan chosen = plan_of(nullptr);
  CHECK(std::string(chosen.chapter) == "lib_fwd_cluster");
  CHECK(std::string(chosen.because).find("2048 x 16384") != std::string::npos);
  CHECK(std::string(chosen.measured_on) == "NVIDIA H100 80GB HBM3");
  CHECK(chosen.measured_here == 1);
  const lnc_plan asked = plan_of("lib_fwd_registers");
  CHECK(std::string(asked.because).empty());
  CHECK(std::string(asked.measured_on).empty());
  REQUIRE(setenv("LNC_GPU", "b200", 1) == 0);
  const lnc_plan elsewhere = plan_of(nullptr);
  unsetenv("LNC_GPU");
  CHECK(std::string(elsewhere.chapter) == "lib_fwd_registers");  // not what was tuned on an H100
  CHECK(elsewhere.measured_here == 0);
}

TEST_CASE("the plan names the chapter that runs, which gives the same bits when asked for") {
  Case<float> chosen(LNC_LAYER, 65, 1000), named(LNC_LAYER, 65, 1000);
  for (const bool from_y : {false, true}) {
    lnc_plan forward, backward;
    const auto forward_args = chosen.forward_args();
    REQUIRE(lnc_forward_plan(&forward_args, &forward) == LNC_OK);
    const auto backward_args = chosen.backward_args(nullptr, from_y);
    REQUIRE(lnc_backward_plan(&backward_args, &backward) == LNC_OK);
    CHECK(chosen.run(chosen.forward_args()) == LNC_OK);
    CHECK(chosen.run(chosen.backward_args(nullptr, from_y)) == LNC_OK);
    CHECK(named.run(named.forward_args(forward.chapter)) == LNC_OK);
    CHECK(named.run(named.backward_args(backward.chapter, from_y)) == LNC_OK);
    CHECK(same_bits(chosen.y, named.y));
    CHECK(same_bits(chosen.rstd, named.rstd));
    CHECK(same_bits(chosen.dx, named.dx));
    CHECK(same_bits(chosen.dweight, named.dweight));
    CHECK(same_bits(chosen.dbias, named.dbias));
  }
}

TEST_CASE("gradients that are not wanted change nothing in the others") {
  for (const lnc_chapter& chapter : all_chapters()) {
    if (!chapter.backward) continue;
    CAPTURE(chapter.id);
    Case<__half> all(LNC_LAYER, 21, 72), some(LNC_LAYER, 21, 72);
    REQUIRE(all.run(all.forward_args()) == LNC_OK);
    REQUIRE(some.run(some.forward_args()) == LNC_OK);
    REQUIRE(all.run(all.backward_args(chapter.id, chapter.from_y)) == LNC_OK);
    for (const bool wants_dweight : {true, false})
      for (const bool wants_dbias : {true, false}) {
        some.dx.assign(some.dx.size(), nan_of<__half>());
        auto args = some.backward_args(chapter.id, chapter.from_y);
        if (!wants_dweight) args.dweight = nullptr;
        if (!wants_dbias) args.dbias = nullptr;
        CHECK(some.run(args) == LNC_OK);
        CHECK(same_bits(some.dx, all.dx));
        if (!chapter.deterministic) continue;
        if (wants_dweight) CHECK(same_bits(some.dweight, all.dweight));
        if (wants_dbias) CHECK(same_bits(some.dbias, all.dbias));
      }
  }
}

TEST_CASE("frozen parameters need no workspace for their gradients, whoever runs") {
  for (const std::int64_t cols : {64, 1000, 1001, 9000})
    for (const bool from_y : {false, true}) {
      CAPTURE(cols);
      CAPTURE(from_y);
      if (from_y && cols > 8192) continue;  // needs one for what its blocks share of a row
      Case<float> c(LNC_LAYER, 300, cols);
      REQUIRE(c.run(c.forward_args()) == LNC_OK);
      auto args = c.backward_args(nullptr, from_y);
      args.dweight = args.dbias = nullptr;
      lnc_plan plan;
      REQUIRE(lnc_backward_plan(&args, &plan) == LNC_OK);
      CHECK(plan.workspace_bytes == 0);
      CHECK(lnc_backward(&args) == LNC_OK);  // without any
      Case<float> trained = c;
      REQUIRE(trained.run(trained.backward_args(nullptr, from_y)) == LNC_OK);
      CHECK(same_bits(c.dx, trained.dx));
    }
  Case<float> c(LNC_LAYER, 5, 8);  // and a chapter that writes them anyway has room for them
  REQUIRE(c.run(c.forward_args()) == LNC_OK);
  auto args = c.backward_args("bwd09");
  args.dweight = args.dbias = nullptr;
  lnc_plan plan;
  REQUIRE(lnc_backward_plan(&args, &plan) == LNC_OK);
  CHECK(plan.workspace_bytes >= 8 * sizeof(float));
}

TEST_CASE("a gradient from y where eps and a weight are 0 has no NaN, and is the reference's") {
  for (const lnc_kind kind : {LNC_LAYER, LNC_RMS})
    for (const float tiny : {0.0f, -0.0f, 1e-40f}) {
      CAPTURE(tiny);
      Case<float> c(kind, 20, 33);
      c.problem.eps = 0.0f;
      c.weight[5] = tiny;
      REQUIRE(c.run(c.forward_args()) == LNC_OK);
      REQUIRE(c.run(c.backward_args(nullptr, true)) == LNC_OK);
      c.weight[5] = 0.0f;  // y says nothing of an xhat that was multiplied by so little
      c.check_backward(true);
      CHECK(c.dweight[5] == 0.0f);
    }
}

TEST_CASE("without rows the gradients of the parameters are 0, and tensors may be null") {
  for (const lnc_kind kind : {LNC_LAYER, LNC_RMS}) {
    Case<float> c(kind, 0, 70);
    CHECK(c.run(c.forward_args()) == LNC_OK);
    CHECK(c.run(c.backward_args()) == LNC_OK);
    CHECK(c.dweight == std::vector<float>(70, 0.0f));
    if (kind == LNC_LAYER) CHECK(c.dbias == std::vector<float>(70, 0.0f));
  }
}

TEST_CASE("a workspace that is too small, null or askew is refused before anything is written") {
  Case<float> c(LNC_LAYER, 500, 100);
  REQUIRE(c.run(c.forward_args()) == LNC_OK);
  auto args = c.backward_args();
  args.dbias = nullptr;  // a workspace is needed whatever the chapter
  lnc_plan plan;
  REQUIRE(lnc_backward_plan(&args, &plan) == LNC_OK);
  REQUIRE(plan.workspace_bytes > 0);
  const auto nothing_was_written = [&] { return std::isnan(c.dx[0]); };

  CHECK(failed_with(LNC_SMALL_WORKSPACE, lnc_backward(&args),
                    "needs a workspace of " + std::to_string(plan.workspace_bytes) + " bytes"));
  args.workspace = c.allocate(plan.workspace_bytes);
  args.workspace_bytes = plan.workspace_bytes - 1;
  CHECK(failed_with(LNC_SMALL_WORKSPACE, lnc_backward(&args), "and got"));
  args.workspace_bytes = plan.workspace_bytes;
  args.workspace = static_cast<char*>(args.workspace) + 4;
  CHECK(failed_with(LNC_BAD_ARGUMENT, lnc_backward(&args), "16-byte boundary"));
  args.workspace = nullptr;
  CHECK(failed_with(LNC_BAD_ARGUMENT, lnc_backward(&args), "workspace is null"));
  CHECK(nothing_was_written());
  args.workspace = c.allocate(plan.workspace_bytes);
  CHECK(lnc_backward(&args) == LNC_OK);
  CHECK_FALSE(nothing_was_written());
}

TEST_CASE("null instead of arguments") {
  lnc_plan plan;
  const lnc_forward_args no_forward = {};
  const lnc_backward_args no_backward = {};
  CHECK(failed_with(LNC_BAD_ARGUMENT, lnc_forward(nullptr), "args is null"));
  CHECK(failed_with(LNC_BAD_ARGUMENT, lnc_backward(nullptr), "args is null"));
  CHECK(failed_with(LNC_BAD_ARGUMENT, lnc_forward_plan(nullptr, &plan), "is null"));
  CHECK(failed_with(LNC_BAD_ARGUMENT, lnc_forward_plan(&no_forward, nullptr), "is null"));
  CHECK(failed_with(LNC_BAD_ARGUMENT, lnc_backward_plan(nullptr, &plan), "is null"));
  CHECK(failed_with(LNC_BAD_ARGUMENT, lnc_backward_plan(&no_backward, nullptr), "is null"));
  CHECK(failed_with(LNC_BAD_ARGUMENT, lnc_forward(&no_forward), "cols is 0"));
  CHECK(failed_with(LNC_BAD_ARGUMENT, lnc_backward(&no_backward), "cols is 0"));
}

TEST_CASE("each argument that cannot be is refused by its name") {
  Case<float> c(LNC_LAYER, 4, 8);
  const auto forward = [&](const char* words, auto&& change) {
    auto args = c.forward_args();
    change(args);
    CHECK(failed_with(LNC_BAD_ARGUMENT, lnc_forward(&args), words));
  };
  forward("kind is 2; it must be LNC_LAYER", [](auto& a) { a.problem.kind = 2; });
  forward("dtype is -1; it must be LNC_F32", [](auto& a) { a.problem.dtype = -1; });
  forward("dtype is 3; it must be", [](auto& a) { a.problem.dtype = 3; });
  forward("parameter_dtype is 1; it must be dtype or LNC_F32",
          [](auto& a) { a.problem.parameter_dtype = LNC_F16; });
  forward("batch_invariant is 2; it must be 0 or 1",
          [](auto& a) { a.problem.batch_invariant = 2; });
  forward("rows is -1", [](auto& a) { a.problem.rows = -1; });
  forward("cols is 0", [](auto& a) { a.problem.cols = 0; });
  forward("it must be below 2^59 elements",
          [](auto& a) { a.problem.rows = std::int64_t{1} << 62; });
  forward("eps is -1e-05; it must", [](auto& a) { a.problem.eps = -1e-5f; });
  forward("eps is inf; it must",
          [](auto& a) { a.problem.eps = std::numeric_limits<float>::infinity(); });
  forward("eps is nan; it must", [](auto& a) { a.problem.eps = nan_of<float>(); });
  forward("x is null", [](auto& a) { a.x = nullptr; });
  forward("y is null", [](auto& a) { a.y = nullptr; });
  forward("mean is null", [](auto& a) { a.mean = nullptr; });
  forward("rstd is null", [](auto& a) { a.rstd = nullptr; });
  forward("x is not aligned", [](auto& a) { a.x = static_cast<const char*>(a.x) + 2; });
  forward("bias is not aligned", [](auto& a) { a.bias = static_cast<const char*>(a.bias) + 1; });
  forward("RMS norm has no bias", [](auto& a) { a.problem.kind = LNC_RMS; });

  const auto backward = [&](const char* words, auto&& change) {
    auto args = c.backward_args();
    change(args);
    CHECK(failed_with(LNC_BAD_ARGUMENT, lnc_backward(&args), words));
  };
  backward("dy is null", [](auto& a) { a.dy = nullptr; });
  backward("x is null", [](auto& a) { a.x = nullptr; });
  backward("both given", [](auto& a) { a.y = a.x; });
  backward("mean is null", [](auto& a) { a.mean = nullptr; });
  backward("rstd is null", [](auto& a) { a.rstd = nullptr; });
  backward("dx is null", [](auto& a) { a.dx = nullptr; });
  backward("dweight is not aligned",
           [](auto& a) { a.dweight = static_cast<char*>(a.dweight) + 2; });
  backward("bias and dbias must be null", [](auto& a) { a.problem.kind = LNC_RMS; });
}

/// x + residual, normalised; the sum is wanted, too.
template <typename T>
lnc_fused_forward adding(const std::vector<T>& residual, std::vector<T>& sum) {
  lnc_fused_forward fused{};
  fused.residual = residual.data();
  fused.sum = sum.data();
  return fused;
}

TEST_CASE("a fused pass: the sum it normalises, its gradients, and bad arguments in one sentence") {
  constexpr std::int64_t kRows = 6, kCols = 40;
  Case<float> c(LNC_LAYER, kRows, kCols);
  Case<float> plain(LNC_LAYER, kRows, kCols);
  const auto residual = random_values<float>(kRows * kCols, 0.0, 5);
  const auto dsum = random_values<float>(kRows * kCols, 0.0, 6);
  std::vector<float> sum(kRows * kCols);
  const lnc_fused_forward fused = adding(residual, sum);
  auto forward_args = c.forward_args();
  forward_args.fused = &fused;
  REQUIRE(c.run(forward_args) == LNC_OK);
  for (std::size_t i = 0; i < sum.size(); ++i) CHECK(sum[i] == c.x[i] + residual[i]);
  plain.x = sum;
  plain.weight = c.weight;
  plain.bias = c.bias;
  plain.dy = c.dy;
  REQUIRE(plain.run(plain.forward_args()) == LNC_OK);
  CHECK(relative_error(c.y, as_doubles(plain.y)) < 1e-6);

  lnc_fused_backward gradients{};
  gradients.sum = sum.data();
  gradients.dsum = dsum.data();
  gradients.has_residual = 1;
  auto backward_args = c.backward_args();
  backward_args.x = nullptr;
  backward_args.fused = &gradients;
  REQUIRE(c.run(backward_args) == LNC_OK);
  REQUIRE(plain.run(plain.backward_args()) == LNC_OK);
  auto dx = as_doubles(plain.dx);
  for (std::size_t i = 0; i < dx.size(); ++i) dx[i] += dsum[i];
  CHECK(relative_error(c.dx, dx) < 1e-6);
  CHECK(relative_error(c.dweight, as_doubles(plain.dweight)) < 1e-6);

  const auto refused = [&](const char* words, auto&& change) {
    lnc_fused_forward wrong = fused;
    change(wrong);
    auto args = forward_args;
    args.fused = &wrong;
    CHECK(failed_with(LNC_BAD_ARGUMENT, lnc_forward(&args), words));
  };
  refused("each part of it is null", [](auto& f) { f = {}; });
  refused("dropout is 1; it must be", [](auto& f) { f.dropout = 1.0f; });
  refused("seeds is null", [](auto& f) { f.dropout = 0.5f; });
  refused("rowscale1 must be null", [&](auto& f) { f.rowscale1 = c.rstd.data(); });
  refused("residual is not aligned",
          [](auto& f) { f.residual = static_cast<const char*>(f.residual) + 1; });
  refused("weight1 and bias1 are for y1", [&](auto& f) { f.weight1 = c.weight.data(); });
  const auto refused_backward = [&](const char* words, auto&& change) {
    lnc_fused_backward wrong = gradients;
    auto args = backward_args;
    args.fused = &wrong;
    change(wrong, args);
    CHECK(failed_with(LNC_BAD_ARGUMENT, lnc_backward(&args), words));
  };
  refused_backward("in place of x and y", [&](auto&, auto& a) { a.x = c.x.data(); });
  refused_backward("sum is null", [](auto& f, auto&) { f.sum = nullptr; });
  refused_backward("dresidual must be null", [&](auto& f, auto&) { f.dresidual = c.dx.data(); });
  forward_args.chapter = "fwd06";
  CHECK(failed_with(LNC_REFUSED, lnc_forward(&forward_args), "fwd06 is not a fused chapter"));
}

template <typename T>
void check_rows_of_equal_elements(std::int64_t cols) {
  constexpr std::int64_t kRows = 5;
  Case<T> c(LNC_LAYER, kRows, cols);
  std::vector<T> residual(c.x.size());
  std::vector<T> sum(c.x.size());
  const auto of_rows = random_values<T>(2 * kRows, 1.0, 9);
  for (std::size_t i = 0; i < c.x.size(); ++i) {
    c.x[i] = of_rows[i / cols];
    residual[i] = of_rows[kRows + i / cols];
  }
  const lnc_fused_forward fused = adding(residual, sum);
  auto forward_args = c.forward_args();
  forward_args.fused = &fused;
  REQUIRE(c.run(forward_args) == LNC_OK);
  lnc_fused_backward gradients{};
  gradients.sum = sum.data();
  gradients.has_residual = 1;
  auto backward_args = c.backward_args();
  backward_args.x = nullptr;
  backward_args.fused = &gradients;
  REQUIRE(c.run(backward_args) == LNC_OK);

  bool any_rounded = false;
  for (std::size_t i = 0; i < sum.size(); ++i) {
    const float exact = static_cast<float>(c.x[i]) + static_cast<float>(residual[i]);
    any_rounded = any_rounded || static_cast<float>(sum[i]) != exact;
  }
  CHECK(any_rounded);  // else this would show nothing
  const auto norm = reference::forward(reference::Norm::Layer, kRows, cols, as_doubles(sum),
                                       as_doubles(c.weight), as_doubles(c.bias), 1e-5);
  const auto gradient =
      reference::backward(reference::Norm::Layer, kRows, cols, as_doubles(c.dy), as_doubles(sum),
                          as_doubles(c.weight), norm.mean, norm.rstd);
  CHECK(relative_error(c.y, norm.y) < kLimit<T>);
  CHECK(relative_error(c.mean, norm.mean) < 1e-6);
  CHECK(relative_error(c.dx, gradient.dx) < kLimit<T>);  // of one column it is 0
  double dweight = 0.0;
  for (const double value : as_doubles(c.dweight)) dweight = std::max(dweight, std::abs(value));
  CHECK(dweight < 1e-5 * norm.rstd[0]);  // xhat is 0, but for the roundings of a float mean
}

TEST_CASE("a fused pass normalises the sum as it is stored: rows of equal elements") {
  for (const std::int64_t cols : {1, 8, 256, 1001, 4096, 20001}) {
    CAPTURE(cols);
    check_rows_of_equal_elements<__half>(cols);
    check_rows_of_equal_elements<__nv_bfloat16>(cols);
  }
}

TEST_CASE("a fused pass may write where it reads, up to a width; a plain one may not") {
  constexpr std::int64_t kRows = 3;
  for (const std::int64_t cols : {40, 1001, 16376, 16384, 16392}) {
    CAPTURE(cols);
    Case<__half> apart(LNC_LAYER, kRows, cols);
    const auto residual = random_values<__half>(kRows * cols, 0.0, 5);
    std::vector<__half> sum(residual.size());
    lnc_fused_forward fused = adding(residual, sum);
    auto args = apart.forward_args();
    args.fused = &fused;
    REQUIRE(apart.run(args) == LNC_OK);
    for (const std::int64_t start : {0, 1}) {  // a 16-byte boundary, or none
      CAPTURE(start);
      const auto at_start = [&](const std::vector<__half>& values) {
        std::vector<__half> placed(start);
        placed.insert(placed.end(), values.begin(), values.end());
        return placed;
      };
      auto x = at_start(apart.x);
      auto stream = at_start(residual);
      args.x = args.y = x.data() + start;
      fused.residual = fused.sum = stream.data() + start;
      const lnc_status status = apart.run(args);
      if (cols > 16384 || (cols > 16376 && start > 0)) {
        CHECK(failed_with(LNC_REFUSED, status, "no kernel takes this problem in place"));
        args.chapter = "lib_fwd_fused_any";
        CHECK(failed_with(LNC_REFUSED, apart.run(args),
                          "lib_fwd_fused_any does not write where it reads in"));
        args.chapter = nullptr;
        CHECK(same_bits(x, at_start(apart.x)));  // nothing ran
        continue;
      }
      REQUIRE(status == LNC_OK);
      CHECK(relative_error(x, as_doubles(at_start(apart.y))) < kLimit<__half>);
      if (start == 0) CHECK(same_bits(x, apart.y));
      CHECK(same_bits(stream, at_start(sum)));
    }
    args.fused = nullptr;
    CHECK(failed_with(LNC_BAD_ARGUMENT, apart.run(args), "y is x: only a fused pass may"));
  }
}

TEST_CASE("chapters that are unknown, or that refuse") {
  Case<float> c(LNC_LAYER, 4, 8);
  REQUIRE(c.run(c.forward_args()) == LNC_OK);
  CHECK(failed_with(LNC_UNKNOWN_CHAPTER, c.run(c.forward_args("fwd99")),
                    "'fwd99' is no forward kernel"));
  CHECK(failed_with(LNC_UNKNOWN_CHAPTER, c.run(c.forward_args("")), "'' is no forward kernel"));
  CHECK(failed_with(LNC_UNKNOWN_CHAPTER, c.run(c.forward_args("copy00")),
                    "'copy00' is no forward kernel"));
  CHECK(failed_with(LNC_UNKNOWN_CHAPTER, c.run(c.forward_args("bwd01")),
                    "'bwd01' is no forward kernel"));
  CHECK(failed_with(LNC_UNKNOWN_CHAPTER, c.run(c.backward_args("fwd06")),
                    "'fwd06' is no backward kernel"));
  CHECK(failed_with(LNC_UNKNOWN_CHAPTER, c.run(c.forward_args(std::string(5000, 'x').c_str())),
                    "xxx' is no forward kernel"));
  CHECK(failed_with(LNC_REFUSED, c.run(c.backward_args("bwd07")), "bwd07 starts from y"));
  CHECK(failed_with(LNC_REFUSED, c.run(c.backward_args("bwd09", true)), "bwd09 starts from x"));
  Case<float> rms(LNC_RMS, 4, 8);
  CHECK(failed_with(LNC_REFUSED, rms.run(rms.forward_args("fwd01")),
                    "takes layer norm only, not RMS norm"));
  Case<float> uneven(LNC_LAYER, 4, 9);
  CHECK(failed_with(LNC_REFUSED, uneven.run(uneven.forward_args("fwd08")),
                    "columns of f32 in multiples of 4, not 9"));
  lnc_forward_args elsewhere = c.forward_args("fwd08");
  REQUIRE(c.run(elsewhere) == LNC_OK);
  elsewhere.problem.rows = 2;  // of the four that are there
  elsewhere.x = static_cast<const float*>(elsewhere.x) + 1;
  CHECK(failed_with(LNC_REFUSED, c.run(elsewhere), "fwd08 takes rows that start at 16-byte"));
}

TEST_CASE("the last error is a thread's own, and a call that works clears it") {
  CHECK(lnc_forward(nullptr) == LNC_BAD_ARGUMENT);
  std::string others = "not run";
  std::thread([&] { others = lnc_last_error(); }).join();
  CHECK(others.empty());
  CHECK_FALSE(std::string(lnc_last_error()).empty());
  Case<float> c(LNC_LAYER, 2, 2);
  CHECK(c.run(c.forward_args()) == LNC_OK);
  CHECK(std::string(lnc_last_error()).empty());
}

TEST_CASE("eight threads at once get the bits that one thread gets") {
  constexpr int kThreads = 8, kTurns = 6;
  const auto work = [](int thread) {
    Case<float> c(thread % 2 ? LNC_RMS : LNC_LAYER, 40 + thread, 500 + 100 * thread, true, true,
                  thread);
    std::vector<float> all;
    for (int turn = 0; turn < kTurns; ++turn) {
      const bool from_y = turn % 2 == 1;
      if (c.run(c.forward_args()) != LNC_OK) return std::vector<float>{};
      if (c.run(c.backward_args(nullptr, from_y)) != LNC_OK) return std::vector<float>{};
      if (lnc_forward(nullptr) != LNC_BAD_ARGUMENT) return std::vector<float>{};
      for (const auto* part : {&c.y, &c.rstd, &c.dx, &c.dweight, &c.dbias})
        all.insert(all.end(), part->begin(), part->end());
    }
    return all;
  };
  std::vector<std::vector<float>> at_once(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back([&, i] { at_once[i] = work(i); });
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < kThreads; ++i) {
    CAPTURE(i);
    CHECK_FALSE(at_once[i].empty());
    CHECK(same_bits(at_once[i], work(i)));
  }
}
