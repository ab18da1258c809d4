// The benchmark's problem sets. They are data, in problem_sets.json, which Python reads too.
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
/// 2]}]}}. A problem names options; a list stands for each of its values, and the first list varies
/// slowest. What a problem leaves out is as in `like`.
/// @param where the text is from, for errors
/// @throws RequestError that names the set and the field
std::vector<ProblemSet> parse_problem_sets(std::string_view json, const std::string& where,
                                           const Problem& like);

/// The text of problem_sets.json, as it was when the program was built.
std::string_view built_in_problem_sets();

}  // namespace lnc
