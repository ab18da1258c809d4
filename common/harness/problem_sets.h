// The benchmark's problem sets. Their data are in problem_sets.json, which Python reads too.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/harness/options.h"

namespace lnc {

/// A named list of problems.
struct ProblemSet {
  std::string name;
  std::string about;
  std::vector<Problem> problems;
};

/// The sets of a JSON text: {"name": {"about": "…", "problems": [{"dtype": "f32", "cols": [1,
/// 2]}]}}. A problem names options; a list gives one problem for each of its values, and the first
/// list varies slowest. Options that a problem does not name are as in `like`.
/// @param where the text comes from, for error messages
/// @throws RequestError that names the set and the field
std::vector<ProblemSet> parse_problem_sets(std::string_view json, const std::string& where,
                                           const Problem& like);

/// The text of problem_sets.json when the program was built.
std::string_view built_in_problem_sets();

}  // namespace lnc
