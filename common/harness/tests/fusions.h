// Fusions for tests, derived from the problem's options, so that they include every new option.
#pragma once

#include <vector>

#include "common/harness/options.h"

namespace lnc {

/// The problem with a fusion option at each value other than the default; for a number, at one.
inline std::vector<Problem> with_option(const Problem& problem, std::string_view name) {
  std::vector<Problem> problems;
  const auto add = [&](const auto& set) {
    Problem changed = problem;
    for (const Option& option : options(changed))
      if (option.name == name) set(option.field);
    if (changed.fusion != problem.fusion) problems.push_back(changed);
  };
  Problem usual = problem;
  for (const Option& option : options(usual)) {
    if (option.name != name) continue;
    if (std::holds_alternative<bool*>(option.field))
      add([](const Option::Field& field) { *std::get<bool*>(field) = true; });
    if (std::holds_alternative<float*>(option.field))
      add([](const Option::Field& field) { *std::get<float*>(field) = 0.3f; });
    for (const std::string& value : names_of(option.field))
      add([&](const Option::Field& field) { set_by_name(field, value); });
  }
  return problems;
}

/// The names of the options that a fusion has.
inline std::vector<std::string_view> fused_options() {
  Problem usual;
  std::vector<std::string_view> names;
  for (const Option& option : options(usual))
    if (option.fused) names.push_back(option.name);
  return names;
}

/// All parts together, each with the last of its values.
inline Fusion everything() {
  Problem problem;
  for (const std::string_view name : fused_options()) problem = with_option(problem, name).back();
  return problem.fusion;
}

}  // namespace lnc
