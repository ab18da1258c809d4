// The command line of every chapter program: it spells the options of a problem.
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
  std::vector<ProblemSet>
      sets;            ///< those of --set, or one without a name that holds the one problem
  bool sweep = false;  ///< from --set: a line for each result instead of a page
  Sampling sampling;
  std::optional<std::string> dump;  ///< write the tensors of the last chapter into this directory
  std::optional<std::string> json;  ///< append results to this file
  std::string_view group =
      {};                  ///< what the number asked for counts: "buffers", of --buffers; or empty
  bool list = false;       ///< list the chapters and stop
  bool list_json = false;  ///< as JSON
};

/// Parses the command line. Prints help or the version, or one sentence about what is wrong, and
/// exits (0, or 2) where there is nothing to run.
CommandLine parse_command_line(int argc, char** argv);

/// Why `chapter` does not take the number that --buffers, --rows-per-block or another of their kind
/// gave; empty where it does, or where none was given.
std::string refusal_of_group(const CommandLine& line, const Chapter& chapter);

/// A refusal by `chapter` for the command line: with the option that it is about, and with the
/// library's kernel that takes the problem, where a chapter does not.
std::string in_words(const Refusal& refusal, const Chapter& chapter, const Problem& problem);

}  // namespace lnc
