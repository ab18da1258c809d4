#include "common/harness/problem_sets.h"

#include <nlohmann/json.hpp>

#include "problem_sets_json.h"  // CMake generates it from problem_sets.json

namespace lnc {
namespace {

/// Appends every problem that `object` describes, from its field `field` on.
void expand(const nlohmann::ordered_json& object, const Problem& like,
            nlohmann::ordered_json::const_iterator field, std::vector<Problem>& problems) {
  if (field == object.end()) {
    problems.push_back(like);
    return;
  }
  const auto next = std::next(field);
  const auto values = field->is_array() ? *field : nlohmann::ordered_json::array({*field});
  for (const auto& value : values)
    expand(object, from_json(nlohmann::json{{field.key(), value}}, like), next, problems);
}

}  // namespace

std::vector<ProblemSet> parse_problem_sets(std::string_view json, const std::string& where,
                                           const Problem& like) {
  nlohmann::ordered_json document;
  try {
    document = nlohmann::ordered_json::parse(json);
  } catch (const nlohmann::json::exception& error) {
    throw RequestError(where + " is not valid JSON: " + error.what());
  }
  const auto require = [&](bool holds, const std::string& what) {
    if (!holds) throw RequestError(where + ": " + what);
  };
  require(document.is_object(), "it must be an object of sets");
  std::vector<ProblemSet> sets;
  for (const auto& [name, set] : document.items()) {
    require(set.is_object() && set.contains("problems") && set["problems"].is_array(),
            "set '" + name + "' must have a list of problems");
    ProblemSet made{name, {}, {}};
    for (const auto& [key, value] : set.items()) {
      require(key == "about" || key == "problems",
              "set '" + name + "' has an unknown field '" + key + "'; there are about, problems");
      if (key == "about") made.about = value.is_string() ? value.get<std::string>() : value.dump();
    }
    for (const auto& problem : set["problems"]) {
      require(problem.is_object(), "set '" + name + "': a problem must be an object of options");
      try {
        expand(problem, like, problem.begin(), made.problems);
      } catch (const RequestError& error) {
        throw RequestError(where + ", set '" + name + "': " + error.what());
      }
    }
    sets.push_back(std::move(made));
  }
  return sets;
}

std::string_view built_in_problem_sets() { return kProblemSetsJson; }

}  // namespace lnc
