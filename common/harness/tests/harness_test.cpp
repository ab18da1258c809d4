// Tests of the harness itself, without a chapter: options, sets, tensors and their bytes, the
// stopwatch's statistics, records.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "common/harness/problem_sets.h"
#include "common/harness/records.h"
#include "common/harness/reference.h"
#include "common/harness/runner.h"
#include "common/harness/statistics.h"
#include "common/harness/tensors.h"
#include "common/harness/tests/fusions.h"
#include "common/kernel/rows.h"

using namespace lnc;

namespace {

/// The message of the exception that a call throws; empty if it throws none.
template <typename Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Problem small(DType dtype = DType::BF16) {
  Problem problem{.dtype = dtype, .rows = 8, .cols = 100};
  return problem;
}

}  // namespace

// --- Options and sets

TEST_CASE("a problem survives the round trip through a record") {
  Problem problem = small();
  problem.kind = Kind::Rms;
  problem.mixed = true;
  problem.offset = 30.5f;
  problem.affine = false;
  problem.group = 7;
  problem.seed = 9;
  problem.eps = 1e-3f;
  problem.fusion = everything();
  const nlohmann::ordered_json json = to_json(problem);
  nlohmann::json flat = json;
  flat.erase("options");
  flat.update(json["options"]);
  CHECK(from_json(flat, {}) == problem);
}

TEST_CASE("a record names only options that are not at their defaults, and rounds numbers") {
  const nlohmann::ordered_json json = to_json(Problem{});
  CHECK(json["options"].empty());
  CHECK(
      json.dump() ==
      R"({"kind":"layer","dtype":"f32","rows":1024,"cols":2048,"eps":1e-05,"seed":1,"options":{}})");
}

TEST_CASE("an option that is unknown, or has no such value, is named") {
  const auto refused = [](const char* json) {
    return message_of([&] { (void)from_json(nlohmann::json::parse(json), {}); });
  };
  CHECK(contains(refused(R"({"colour": 1})"), "'colour'"));
  CHECK(contains(refused(R"({"colour": 1})"), "weight_scale"));  // the known options
  CHECK(contains(refused(R"({"cols": 0})"), "'cols' must be a whole number of at least 1"));
  CHECK(contains(refused(R"({"cols": 1.5})"), "not 1.5"));
  CHECK(contains(refused(R"({"dtype": "f64"})"), "f32, f16, bf16"));
  CHECK(contains(refused(R"({"dtype": 1})"), "'dtype'"));
  CHECK(contains(refused(R"({"dropout": 1})"), "below 1"));
  CHECK(contains(refused(R"({"eps": 0})"), "above 0"));
  CHECK(contains(refused(R"({"mixed": 1})"), "true or false"));
}

TEST_CASE("the built-in sets can be read, and contain each problem once") {
  const auto sets = parse_problem_sets(built_in_problem_sets(), "built-in", {});
  CHECK(sets.size() >= 6);
  for (const ProblemSet& set : sets) {
    CAPTURE(set.name);
    CHECK_FALSE(set.about.empty());
    CHECK_FALSE(set.problems.empty());
    std::set<std::string> different;
    for (const Problem& problem : set.problems) different.insert(describe(problem));
    CHECK(different.size() == set.problems.size());
  }
}

TEST_CASE("a list in a set gives a problem for each value; other options are as in `like`") {
  Problem like{.kind = Kind::Rms};
  const auto sets = parse_problem_sets(
      R"({"mine": {"problems": [{"dtype": ["f32", "f16"], "cols": [1, 2, 3], "rows": 5}]}})", "x",
      like);
  REQUIRE(sets.size() == 1);
  REQUIRE(sets[0].problems.size() == 6);
  CHECK(sets[0].problems[0].cols == 1);
  CHECK(sets[0].problems[1].cols == 2);
  CHECK(sets[0].problems[5].dtype == DType::F16);
  for (const Problem& problem : sets[0].problems) CHECK(problem.kind == Kind::Rms);
}

TEST_CASE("a wrong set file is refused with its name, the set's and the field's") {
  const auto refused = [](const char* json) {
    return message_of([&] { (void)parse_problem_sets(json, "my.json", {}); });
  };
  CHECK(contains(refused("{"), "my.json is not valid JSON"));
  const std::string field = refused(R"({"mine": {"problems": [{"colour": 1}]}})");
  CHECK(contains(field, "my.json, set 'mine'"));
  CHECK(contains(field, "'colour'"));
  CHECK(contains(refused(R"({"mine": {"problem": []}})"), "'mine' must have a list of problems"));
  CHECK(contains(refused(R"({"mine": {"problems": [], "note": 1}})"), "'note'"));
  CHECK(contains(refused(R"([1])"), "object of sets"));
}

// --- Tensors

TEST_CASE("the operator's bytes are those of its matrices") {
  Problem p = small();
  const std::int64_t matrix = 800 * 2;
  CHECK(operator_bytes(p, Direction::Copy, false) == 2 * matrix);
  CHECK(operator_bytes(p, Direction::Forward, false) == 2 * matrix);
  CHECK(operator_bytes(p, Direction::Backward, false) == 3 * matrix);
  CHECK(operator_bytes(p, Direction::Backward, true) == 3 * matrix);  // y instead of x
  CHECK(roof_bytes(p, Direction::Copy) == 2 * matrix);
  CHECK(roof_bytes(p, Direction::Forward) == 2 * matrix);
  CHECK(roof_bytes(p, Direction::Backward) == 3 * matrix);
  p.recompute_output = true;
  CHECK(operator_bytes(p, Direction::Backward, false) == 4 * matrix);
  p = small();
  p.frozen = true;
  CHECK(operator_bytes(p, Direction::Backward, false) == 3 * matrix);
  CHECK(Tensors(p, Direction::Backward, false).find("dweight") == nullptr);
  CHECK(Tensors(p, Direction::Backward, false).find("dbias") == nullptr);
  p = small();
  p.fusion = everything();
  REQUIRE(p.fusion.residual == Residual::F32);
  // x, x1, y, y1; the residual and the sum in float
  CHECK(operator_bytes(p, Direction::Forward, false) == 4 * matrix + 2 * 2 * matrix);
  // dy, dy1, dx, dx1; the sum, its gradient and dresidual in float
  CHECK(operator_bytes(p, Direction::Backward, false) == 4 * matrix + 3 * 2 * matrix);
  p.fusion = {.residual = Residual::Same};
  CHECK(operator_bytes(p, Direction::Forward, false) == 3 * matrix);
  CHECK(operator_bytes(p, Direction::Backward, false) == 3 * matrix);  // dx is also dresidual
}

TEST_CASE("memory is counted beyond 2^63 bytes") {
  Chapter chapter;
  chapter.run = ForwardLaunchers{};
  Problem p{.rows = std::int64_t{1} << 40, .cols = std::int64_t{1} << 40};
  CHECK(needed_device_bytes(chapter, p) == doctest::Approx(2 * 4 * std::pow(2.0, 80)));
}

TEST_CASE("a pass has the tensors that its problem asks for, and no others") {
  const auto names = [](const Problem& problem, Direction direction, bool from_y) {
    std::set<std::string> found;
    const Tensors tensors(problem, direction, from_y);
    for (const TensorDescription& each : describe_tensors(problem, from_y))
      if (tensors.data(each.name) != nullptr) found.emplace(each.name);
    return found;
  };
  using Set = std::set<std::string>;
  Problem p = small();
  CHECK(names(p, Direction::Copy, false) == Set{"x", "y"});
  CHECK(names(p, Direction::Forward, false) == Set{"x", "weight", "bias", "y", "mean", "rstd"});
  CHECK(names(p, Direction::Backward, false) ==
        Set{"x", "weight", "bias", "dy", "mean", "rstd", "dx", "dweight", "dbias"});
  CHECK(names(p, Direction::Backward, true) ==
        Set{"y", "weight", "bias", "dy", "rstd", "dx", "dweight", "dbias"});
  p.kind = Kind::Rms;
  p.affine = false;
  CHECK(names(p, Direction::Forward, false) == Set{"x", "y", "rstd"});
  CHECK(names(p, Direction::Backward, false) == Set{"x", "dy", "rstd", "dx", "dweight"});
  p.fusion = {.residual = Residual::Same, .prenorm = true};
  CHECK(names(p, Direction::Forward, false) == Set{"x", "y", "rstd", "residual", "residual_out"});
  CHECK(names(p, Direction::Backward, false) ==
        Set{"dy", "rstd", "dx", "dweight", "residual_out", "dresidual_out"});
}

TEST_CASE("tensors start where they should, and copies of the inputs hold the same") {
  Problem p = small();
  p.misalign = 3;
  const Tensors tensors(p, Direction::Backward, false, 3);
  REQUIRE(tensors.copies() == 3);
  for (const char* name : {"x", "dy", "weight", "rstd"}) {
    CAPTURE(name);
    const Tensor* tensor = tensors.find(name);
    REQUIRE(tensor != nullptr);
    const int shift = std::string(name) == "rstd" ? 0 : 6;
    CHECK(reinterpret_cast<std::uintptr_t>(tensor->data()) % 16 == shift);
    std::vector<char> first(tensor->bytes());
    std::vector<char> second(tensor->bytes());
    download(first.data(), tensors.data(name), first.size());
    download(second.data(), tensors.data(name, 2), second.size());
    CHECK(first == second);
    CHECK(tensors.data(name) != tensors.data(name, 2));
  }
  CHECK(tensors.data("dx") == tensors.data("dx", 2));  // outputs are shared
}

TEST_CASE("staggered tensors each start at another offset, and so do copies of the inputs") {
  Problem p = small();
  p.misalign = 1;
  p.stagger = 3;
  CHECK_FALSE(p.aligned());
  const Tensors tensors(p, Direction::Backward, false, 2);
  const auto start = [&](const char* name, int copy) {
    return reinterpret_cast<std::uintptr_t>(tensors.data(name, copy)) % 16 / p.element_bytes();
  };
  for (const int copy : {0, 1}) {
    CHECK(start("x", copy) == 1);
    CHECK(start("weight", copy) == 4);
    CHECK(start("bias", copy) == 7);
    CHECK(start("dy", copy) == 10 % 8);
  }
  CHECK(start("rstd", 0) == 0);
  CHECK(start("dx", 0) == 13 % 8);
}

TEST_CASE("strided rows of x and dy start where they should, and the gaps are not filled") {
  Problem p = small();
  p.rows = 7;
  const Tensors dense(p, Direction::Backward, false);
  p.row_gap = 3;
  p.heads = 2;
  p.heads_gap = 10;
  const Tensors tensors(p, Direction::Backward, false, 2);
  for (const char* name : {"x", "dy"}) {
    CAPTURE(name);
    const Tensor* apart = tensors.find(name);
    const Tensor* whole = dense.find(name);
    const std::int64_t element = p.element_bytes();
    CHECK(apart->count() == 7 * p.cols);
    REQUIRE(apart->bytes() == (7 * p.cols + 6 * 3 + 3 * 10) * element);
    std::vector<char> elements(whole->bytes()), found(apart->bytes());
    download(elements.data(), whole->data(), elements.size());
    for (const int copy : {0, 1}) {
      download(found.data(), tensors.data(name, copy), found.size());
      std::vector<char> expected(found.size(), static_cast<char>(0xff));
      for (std::int64_t row = 0; row < 7; ++row) {
        const std::int64_t start = row * (p.cols + 3) + row / 2 * 10;
        std::memcpy(expected.data() + start * element, elements.data() + row * p.cols * element,
                    p.cols * element);
      }
      CHECK(found == expected);
    }
  }
  CHECK(tensors.find("dx")->bytes() == dense.find("dx")->bytes());
}

TEST_CASE("the quotients of a divisor known before the launch are those of a division") {
  constexpr std::uint32_t kMost = std::numeric_limits<std::int32_t>::max();
  const auto check = [](std::uint32_t number, std::uint32_t divisor) {
    const Divisor by(divisor);
    CAPTURE(number);
    CAPTURE(divisor);
    CHECK(by.quotient(number) == number / divisor);
    CHECK(by.remainder(number) == number % divisor);
  };
  std::vector<std::uint32_t> numbers = {1, 2, 3, 5, 7, 641, 65535, 65536, 65537};
  for (int bit = 2; bit < 31; ++bit)
    for (const int beside : {-1, 0, 1}) numbers.push_back((1u << bit) + beside);
  numbers.insert(numbers.end(), {kMost / 3, kMost / 2, kMost - 1, kMost});
  for (const std::uint32_t divisor : numbers) {
    check(0, divisor);
    for (const std::uint32_t number : numbers) check(number, divisor);
    for (const std::uint32_t multiple : {1u, 2u, 1000u}) {
      const std::uint64_t near = std::uint64_t{kMost} / divisor / multiple * divisor;
      check(static_cast<std::uint32_t>(near), divisor);
      if (near > 0) check(static_cast<std::uint32_t>(near - 1), divisor);
    }
  }
}

TEST_CASE("random inputs are a function of seed and index, whatever piece is asked for") {
  Problem problem;
  const auto whole = random_elements(problem, "x", 0, 1000);
  const auto piece = random_elements(problem, "x", 700, 100);
  CHECK(std::memcmp(whole.data() + 700, piece.data(), 100 * sizeof(float)) == 0);
  problem.seed = 2;
  CHECK(random_elements(problem, "x", 0, 1000) != whole);
  double sum = 0.0;
  double squares = 0.0;
  for (const float value : random_elements(problem, "dy", 0, 1'000'000)) {
    sum += value;
    squares += value * value;
  }
  CHECK(std::abs(sum / 1e6) < 0.005);
  CHECK(std::abs(squares / 1e6 - 1.0) < 0.005);
}

TEST_CASE("each random input of a fusion reaches the reference, forward or backward") {
  Problem problem = small(DType::F32);
  problem.fusion = everything();
  const RowRange rows{0, problem.rows};
  const ReferenceForward forward(problem, rows);
  const ReferenceBackward backward(problem, rows);
  std::size_t inputs = 0;
  for (const TensorDescription& tensor : describe_tensors(problem, false)) {
    if (!std::holds_alternative<Random>(tensor.source)) continue;
    CAPTURE(tensor.name);
    const auto values = reference_rows(problem, tensor.name, rows);
    REQUIRE(values.size() > 1);
    const auto is = [&](std::span<const double> span) {
      return std::equal(span.begin(), span.end(), values.begin(), values.end());
    };
    const bool reaches = std::any_of(forward.values().begin(), forward.values().end(), is) ||
                         std::any_of(backward.values().begin(), backward.values().end(), is);
    CHECK(reaches);
    ++inputs;
  }
  CHECK(inputs > 5);
}

TEST_CASE("no two random inputs are the same numbers") {
  Problem problem = small(DType::F32);
  problem.fusion = everything();
  std::set<int> streams;
  const auto check_stream = [&](int stream) {
    CHECK(streams.insert(stream).second);
    CHECK(stream < 16);  // stream 16 is stream 0 of the next seed
  };
  for (const TensorDescription& tensor : describe_tensors(problem, false)) {
    if (const auto* random = std::get_if<Random>(&tensor.source)) check_stream(random->stream);
    if (const auto* seeds = std::get_if<Seeds>(&tensor.source)) check_stream(seeds->stream);
  }
}

// --- The stopwatch, on made-up samples

TEST_CASE("quantiles are linear between the two nearest samples") {
  const std::vector<double> samples{40, 10, 30, 20};
  CHECK(quantile(samples, 0.0) == 10);
  CHECK(quantile(samples, 1.0) == 40);
  CHECK(quantile(samples, 0.5) == 25);
  CHECK(quantile(samples, 0.1) == doctest::Approx(13));
  CHECK(median({7}) == 7);
}

TEST_CASE("a median is stable where the newer half agrees with all, and not before 160 samples") {
  std::vector<double> samples(159, 10.0);
  CHECK_FALSE(stable(samples));
  samples.push_back(10.0);
  CHECK(stable(samples));
  for (int i = 0; i < 160; ++i) samples.push_back(i < 100 ? 10.0 : 11.0);  // gets slower
  CHECK(stable(samples));  // the median has not moved
  std::fill(samples.begin() + 160, samples.end(), 11.0);
  CHECK_FALSE(stable(samples));
  std::vector<double> places;  // four queue slots in turn
  for (int i = 0; i < 160; ++i)
    places.push_back(std::vector<double>{10.1, 10.4, 10.4, 11.1}[i % 4]);
  CHECK(stable(places));
}

TEST_CASE(
    "sampling ends when the median is stable, the samples are enough or the budget is spent") {
  int taken = 0;
  const auto constant = [&](double us) {
    taken = 0;
    return [&taken, us](int count) {
      taken += count;
      return std::vector<double>(count, us);
    };
  };
  Timing timing = sample(constant(10.0), {.samples = 1000, .budget_ms = 1e6});
  CHECK(timing.samples == taken);
  CHECK(taken >= 160);
  CHECK(taken < 180);
  CHECK_FALSE(timing.cut_short);
  CHECK(timing.median_us == 10.0);

  timing = sample(constant(10.0), {.samples = 7, .budget_ms = 1e6});
  CHECK(taken == 7);
  CHECK_FALSE(timing.cut_short);  // took all samples that were requested

  timing = sample(constant(1000.0), {.samples = 1000, .budget_ms = 5});
  CHECK(taken == 5);
  CHECK(timing.cut_short);

  timing = sample(constant(1e6), {.samples = 1000, .budget_ms = 5});
  CHECK(taken == 1);  // one, however long it is
  CHECK(timing.cut_short);

  double us = 100.0;
  const auto slower = [&](int count) {
    std::vector<double> samples;
    for (int i = 0; i < count; ++i) samples.push_back(us += 1.0);
    return samples;
  };
  timing = sample(slower, {.samples = 200, .budget_ms = 1e6});
  CHECK(timing.samples == 200);
  CHECK(timing.p10_us < timing.median_us);
  CHECK(timing.median_us < timing.p90_us);
}

TEST_CASE("sixteen samples get each queue slot four times, whatever a launch enqueues") {
  for (int commands = 1; commands <= 9; ++commands) {  // of a launch and its two events
    CAPTURE(commands);
    FlushSchedule schedule;
    int place = 0;
    for (int round = 0; round < 20; ++round) {
      std::array<int, FlushSchedule::kSlots> count{};
      for (const int flushes : schedule.draw(FlushSchedule::kRound, true)) {
        CHECK(flushes >= FlushSchedule::kLeast);
        CHECK(flushes < FlushSchedule::kLeast + FlushSchedule::kSlots);
        place = (place + flushes) % FlushSchedule::kSlots;
        ++count[place];
        place = (place + commands) % FlushSchedule::kSlots;
      }
      CHECK(count == std::array{4, 4, 4, 4});
    }
  }
}

TEST_CASE(
    "queue slots have no fixed order, and do not depend on how a draw is split; warm: no flushes") {
  FlushSchedule schedule;
  const std::vector<int> whole = schedule.draw(160, true);
  CHECK(std::vector(whole.begin(), whole.begin() + 16) !=
        std::vector(whole.begin() + 16, whole.begin() + 32));
  FlushSchedule again;
  std::vector<int> pieces = again.draw(7, true);
  for (const int flush : again.draw(153, true)) pieces.push_back(flush);
  CHECK(pieces == whole);
  const std::vector<int> warm = schedule.draw(10, false);
  CHECK(std::count(warm.begin(), warm.end(), 0) == 10);
}

TEST_CASE("launches use copies of the inputs in turn; warm or emulated ones have one copy") {
  Problem p = small();
  if (device().emulated)
    CHECK(input_copies(p, {}) == 1);
  else
    CHECK(input_copies(p, {}) == 32);
  CHECK(input_copies(p, {.cold = false}) == 1);
  std::vector<int> calls;
  std::vector<Launch> launches;
  for (int i = 0; i < 3; ++i) launches.emplace_back([&calls, i] { calls.push_back(i); });
  Sampler sampler(launches, /*cold=*/false);
  CHECK(sampler.take(2).size() == 2);
  CHECK(sampler.take(3).size() == 3);
  CHECK(calls == std::vector<int>{0, 1, 2, 0, 1});
}

TEST_CASE("a share of the roof compares bytes per second, and shows the fastest as 100 %") {
  Chapter chapter;
  chapter.id = "fwd99";
  chapter.run = ForwardLaunchers{};
  Result result{};
  result.chapter = &chapter;
  result.operator_bytes = 4'000'000;
  result.roof_bytes = 2'000'000;
  result.timing = Timing{20.0, 19.0, 21.0, 10, false, {}};
  CHECK_FALSE(result.percent_of_roof().has_value());
  result.roof_us = 10.0;
  CHECK(result.gbps() == doctest::Approx(200.0));
  CHECK(*result.roof_gbps() == doctest::Approx(200.0));
  CHECK(*result.percent_of_roof() == doctest::Approx(100.0));
}

// --- Records

TEST_CASE("a record says what was asked, what made it, and against what") {
  Chapter chapter;
  chapter.id = "bwd99";
  chapter.run = BackwardLaunchers{};
  Result result{};
  result.chapter = &chapter;
  result.problem = small();
  result.problem.group = 4;
  result.set = "groups";
  result.cold = false;
  result.operator_bytes = 123;
  result.predicted_bytes = 456;
  result.roof_bytes = 789;
  result.checks = {{.output = "dx", .max_abs_error = 1e-3, .relative_error = 2e-4, .limit = 1.0},
                   {.output = "dx from x",
                    .relative_error = 0.5,
                    .limit = std::numeric_limits<double>::infinity()}};
  nlohmann::ordered_json record = to_record(result);
  CHECK(record["schema"] == 2);
  CHECK(record["chapter"] == "bwd99");
  CHECK(record["direction"] == "backward");
  CHECK(record["problem"]["options"]["group"] == 4);
  CHECK(record["set"] == "groups");
  CHECK(record["l2"] == "warm");
  CHECK(record["clock"] == kClock);
  CHECK(record["operator_bytes"] == 123);
  CHECK(record["predicted_bytes"] == 456);
  CHECK(record["passed"] == true);
  CHECK(record["rel_err"] == 2e-4);  // only of outputs with a limit
  CHECK(record["distances"]["dx_from_x"] == 0.5);
  CHECK_FALSE(record.contains("median_us"));
  CHECK_FALSE(record.contains("roof_us"));
  result.timing = Timing{10.123, 9.0, 11.0, 40, false, 1234.6};
  result.roof_us = 5.4321;
  result.set = "";
  record = to_record(result);
  CHECK(record["median_us"] == 10.12);
  CHECK(record["cycles"] == 1235);
  CHECK(record["roof_us"] == 5.432);
  CHECK(record["set"].is_null());
  result.error = "it failed";
  record = to_record(result);
  CHECK(record["passed"] == false);
  CHECK(record["error"] == "it failed");
  CHECK(record["rel_err"].is_null());
}
