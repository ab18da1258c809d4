#include "common/program/list.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <limits>
#include <nlohmann/json.hpp>

#include "common/harness/options.h"
#include "common/harness/problem_sets.h"
#include "common/kernel/gpu.h"
#include "common/kernel/registry.h"
#include "common/library/dispatch.h"

namespace lnc {
namespace {

using Json = nlohmann::ordered_json;

Json of(const Chapter& chapter) {
  Json kinds = Json::array();
  for (const Kind kind : chapter.kinds) kinds.push_back(name(kind));
  Json types = Json::array();
#define LNC_TYPES(pair, T, W)                                                         \
  if (std::visit([](const auto& run) { return run.template get<T, W>() != nullptr; }, \
                 chapter.run))                                                        \
    types.push_back({{"dtype", kElementType<T>.name}, {"parameters", kElementType<W>.name}});
  LNC_TYPE_PAIRS(LNC_TYPES)
#undef LNC_TYPES
  return {{"id", chapter.id},
          {"file", chapter.file},
          {"title", chapter.title},
          {"teaches", chapter.teaches},
          {"source", chapter.source},
          {"parent", chapter.parent},
          {"road", name(chapter.road)},
          {"before", chapter.before},
          {"direction", name(chapter.direction())},
          {"kinds", kinds},
          {"types", types},
          {"group", chapter.group},
          {"fused", chapter.fused},
          {"residual_only", chapter.residual_only},
          {"from_y", chapter.from_y},
          {"recomputes_output", chapter.recomputes_output},
          {"deterministic", chapter.deterministic},
          {"needs_affine", chapter.needs_affine},
          {"needs_aligned", chapter.needs_aligned},
          {"needs_same_alignment", chapter.needs_same_alignment},
          {"min_architecture", chapter.min_architecture}};
}

/// A rule of the dispatch, without the conditions that it leaves open.
Json of(const Choice& choice) {
  Json line{{"chapter", choice.chapter},
            {"because", choice.because},
            {"direction", name(choice.direction)}};
  if (choice.from_y) line["from_y"] = true;
  if (choice.fused) line["fused"] = true;
  if (choice.needs_aligned) line["needs_aligned"] = true;
  if (choice.needs_same_alignment) line["needs_same_alignment"] = true;
  if (choice.needs_unaligned_row_bytes) line["needs_unaligned_row_bytes"] = true;
  if (choice.needs_16_bit) line["needs_16_bit"] = true;
  if (!choice.batch_invariant) line["batch_invariant"] = false;
  if (choice.kind) line["kind"] = name(*choice.kind);
  if (choice.dtype) line["dtype"] = name(*choice.dtype);
  const auto add = [&](const char* key, auto value, auto open) {
    if (value != open) line[key] = value;
  };
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  add("min_cols", choice.min_cols, std::int64_t{1});
  add("max_cols", choice.max_cols, kMost);
  add("max_row_bytes", choice.max_row_bytes, kMost);
  add("min_rows", choice.min_rows, std::int64_t{0});
  add("max_tensor_bytes", choice.max_tensor_bytes, kMost);
  add("min_architecture", choice.min_architecture, 0);
  add("max_architecture", choice.max_architecture, std::numeric_limits<int>::max());
  add("gpus", choice.gpus, std::string_view());
  return line;
}

Json of(const ElementType& type) {
  return {{"name", type.name},
          {"long_name", type.long_name},
          {"bytes", type.bytes},
          {"numpy", type.numpy},
          {"relative_error_limit", type.error_limit}};
}

void print_choice(const char* what, const Request& request) {
  const Chosen chosen = choose(request);
  if (chosen.line == nullptr) return;
  std::printf("  %-15s %s, by a rule tuned on an %s: %s\n", what,
              std::string(chosen.chapter->id).c_str(), chosen.line->measured_on(),
              std::string(chosen.line->because).c_str());
}

/// Prints what the dispatch chooses for a problem.
void print_choices(const Problem& problem) {
  Gpu gpu{};
  try {
    gpu = current_gpu();
  } catch (const std::exception& error) {
    std::printf("\nNo choice by the dispatch: %s\n", error.what());
    return;
  }
  const char* const about =
      measured_gpu(gpu) != nullptr
          ? "tuned on this kind of GPU"
          : "not tuned on this kind of GPU: defaults; each line names the GPU of its times";
  std::printf("\nThe dispatch chooses, for %s (%s):\n", describe(problem).c_str(), about);
  print_choice("forward", {.direction = Direction::Forward, .problem = problem, .gpu = gpu});
  print_choice("backward", {.direction = Direction::Backward, .problem = problem, .gpu = gpu});
  print_choice("backward from y",
               {.direction = Direction::Backward, .problem = problem, .from_y = true, .gpu = gpu});
}

}  // namespace

void print_list(const Problem& problem) {
  int width = 0;
  for (const Chapter& chapter : chapters())
    width = std::max(width, static_cast<int>(chapter.id.size()));
  for (const Chapter& chapter : chapters())
    std::printf("%-*s %-40s %s\n", width, std::string(chapter.id).c_str(),
                std::string(chapter.title).c_str(), std::string(chapter.teaches).c_str());
  if (chapters().back().in_library() && chapters().size() > 1) print_choices(problem);
}

std::string list_as_json() {
  Json list{{"version", LNC_VERSION}, {"chapters", Json::array()}, {"library", Json::array()},
            {"types", Json::array()}, {"options", Json::array()},  {"dispatch", Json::array()}};
  for (const Chapter& chapter : chapters())
    list[chapter.in_library() ? "library" : "chapters"].push_back(of(chapter));
#define LNC_TYPE(T) list["types"].push_back(of(kElementType<T>));
  LNC_ELEMENT_TYPES(LNC_TYPE)
#undef LNC_TYPE
  Problem usual;
  for (const Option& option : options(usual))
    list["options"].push_back({{"name", option.name},
                               {"default", value_of(option)},
                               {"help", option.help},
                               {"fused", option.fused}});
  for (const Choice& choice : choices()) list["dispatch"].push_back(of(choice));
  return list.dump(2);
}

}  // namespace lnc
