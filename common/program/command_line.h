// The command line of every chapter program.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/kernel/description.h"
#include "common/harness/stopwatch.h"

namespace lnc {

struct Options {
  std::vector<Problem> problems;  ///< one, or those of the --set
  bool sweep = false;             ///< from --set: a line for each result instead of a page
  Sampling sampling;
  std::optional<std::string> dump;  ///< write the tensors of the last chapter into this directory
  std::optional<std::string> json;  ///< append results to this file
  bool list = false;                ///< list the chapters and stop
};

/// Parses the command line. Prints help, or one sentence about what is wrong, and exits (0, or 2)
/// where there is nothing to run.
Options parse_options(int argc, char** argv);

}  // namespace lnc
