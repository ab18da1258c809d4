// The command line of every chapter program, including the options of a problem.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/harness/problem_sets.h"
#include "common/harness/stopwatch.h"
#include "common/kernel/registry.h"

namespace lnc {

struct CommandLine {
  std::vector<ProblemSet> sets;  ///< those of --set, or an unnamed one that holds the one problem
  bool sweep = false;            ///< from --set: print a line per result instead of a page
  Sampling sampling;
  std::optional<std::string> dump;  ///< write the tensors of the last chapter to this directory
  std::optional<std::string> json;  ///< append results to this file
  std::string_view group = {};  ///< what Problem::group counts: "buffers" for --buffers; or empty
  bool list = false;            ///< list the chapters and stop
  bool list_json = false;       ///< as JSON
};

/// Parses the command line. Prints help or the version and exits with 0 if asked to, or prints one
/// sentence about what is wrong and exits with 2.
CommandLine parse_command_line(int argc, char** argv);

/// Why `chapter` does not take the number given by --buffers, --rows-per-block or a similar option;
/// empty if it does, or if none was given.
std::string refusal_of_group(const CommandLine& line, const Chapter& chapter);

/// A chapter's refusal in the words of the command line: with the option that it concerns, and with
/// the library's kernel that takes the problem if the chapter does not.
std::string in_words(const Refusal& refusal, const Chapter& chapter, const Problem& problem);

}  // namespace lnc
