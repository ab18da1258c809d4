// Helpers for the tests of a chapter: problems, checked in several orders of threads and blocks.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/harness/run.h"
#include "common/harness/tests/fusions.h"
#include "common/kernel/registry.h"
#if defined(LNC_CPU_BACKEND)
#include "common/simt/tests/under.h"
#include "common/simt/watch.h"
#endif

namespace lnc {

inline constexpr DType kDTypes[] = {DType::F32, DType::F16, DType::BF16};

#if defined(LNC_CPU_BACKEND)
/// The orders of a problem's runs. Forward, the default, comes third: it shows the fewest faults.
inline simt::Schedule schedule_of_run(int run) {
  if (run == 0) return {simt::Order::Reverse};
  if (run == 2) return {simt::Order::Forward};
  return {simt::Order::Random, static_cast<unsigned>(run)};
}
#endif

/// Calls `body()` `count` times, on the CPU backend each time in another order of threads.
template <typename Body>
void for_each_run(int count, const Body& body) {
  for (int run = 0; run < count; ++run) {
    CAPTURE(run);
#if defined(LNC_CPU_BACKEND)
    const simt::Under under(schedule_of_run(run));
#endif
    body();
  }
}

using Outputs = std::vector<std::pair<std::string, std::vector<std::byte>>>;

inline const std::vector<std::byte>& output(const Outputs& outputs, std::string_view name) {
  for (const auto& [key, bytes] : outputs)
    if (key == name) return bytes;
  throw std::logic_error("there is no such output");
}

/// || a - b || / || b || of two float tensors.
inline double relative_distance(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
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

inline void require_right(const std::vector<OutputCheck>& checks) {
  for (const auto& check : checks) {
    CAPTURE(check.output);
    CAPTURE(check.max_abs_error);
    CAPTURE(check.worst_index);
    CHECK(check.relative_error <= check.limit);
    CHECK(check.worst_of_bound <= 1.0);
  }
}

/// Under the CPU backend's sanitizers a launch is ten times as slow: tests run only every third
/// problem, once, and skip tests that only check numbers. (Three shares no factor with the numbers
/// of types, kinds and parts of a fusion, so every combination still occurs.)
#ifdef LNC_SANITIZE
constexpr bool kSanitize = true;
#else
constexpr bool kSanitize = false;
#endif

/// Checks `chapter` on `problem` in several orders. The bits of a deterministic chapter must not
/// depend on the order; y and dx must not in any chapter.
inline void check_problem(const Chapter& chapter, const Problem& problem, int runs) {
  static int asked = 0;
  if (kSanitize && ++asked % 3 != 0) return;
  INFO(chapter.id << ": " << describe(problem));
  const Tensors tensors(problem, chapter);
  Outputs first;
  for_each_run(runs, [&] {
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

struct Types {
  DType dtype;
  bool mixed;
};
inline constexpr Types kTypes[] = {{DType::F32, false},
                                   {DType::F16, false},
                                   {DType::BF16, false},
                                   {DType::F16, true},
                                   {DType::BF16, true}};

/// Calls `body` for every problem of this shape that `chapter` accepts.
template <typename Body>
void for_each_variant(const Chapter& chapter, std::int64_t rows, std::int64_t cols,
                      const Body& body) {
  for (const auto [dtype, mixed] : kTypes)
    for (const Kind kind : {Kind::Layer, Kind::Rms})
      for (const bool affine : {true, false}) {
        const Problem problem{.kind = kind,
                              .dtype = dtype,
                              .rows = rows,
                              .cols = cols,
                              .affine = affine,
                              .mixed = mixed};
        if (refusal(chapter, problem).empty()) body(problem);
      }
}

struct Size {
  std::int64_t rows, cols;
};

inline Fusion common_in_networks() {
  return {.dropout = 0.3f, .residual = Residual::Same, .prenorm = true};
}

/// Each part of a fusion alone, some together, and all of them.
inline std::vector<Fusion> fusions() {
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

// --- Of the quick tests ---

inline constexpr int kQuickRuns =
    kSanitize ? 1 : 2;  ///< per problem; a second accesses no other memory

/// Calls `body(problem)` for each pair of types and each kind; `body` chooses the shape.
template <typename Body>
void for_each_types_and_kind(const Body& body) {
  for (const auto [dtype, mixed] : kTypes)
    for (const Kind kind : {Kind::Layer, Kind::Rms}) {
      body(Problem{.kind = kind, .dtype = dtype, .mixed = mixed});
    }
}

/// The problem with a kind, and with or without parameters, as the bits of `chance` choose; if the
/// chapter refuses that, with the next combination that it accepts.
inline Problem drawn(const Chapter& chapter, Problem problem, int chance) {
  for (int i = 0; i < 4; ++i) {
    problem.kind = (chance ^ i) & 1 ? Kind::Rms : Kind::Layer;
    problem.affine = ((chance ^ i) & 2) == 0;
    if (refusal(chapter, problem).empty()) break;
  }
  return problem;
}

}  // namespace lnc
