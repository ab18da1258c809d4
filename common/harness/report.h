// Results as text for a person.
#pragma once

#include <string>
#include <vector>

#include "common/harness/runner.h"

namespace lnc {

std::string describe(const Device& device);

/// A page about one result: checks, times, prediction.
void print_page(const Result& result);

/// A line about one result, for a benchmark of many problems.
void print_line(const Result& result);

/// The progression: one line per result, with the speed-up over its parent.
void print_progression(const std::vector<Result>& results);

/// A progress bar on standard error, if that is a terminal.
class Progress {
 public:
  explicit Progress(std::size_t total);
  ~Progress();
  void step(const std::string& what);  ///< starts the next step, `what`
  void clear();                        ///< erases the bar before output to standard output

 private:
  std::size_t total_, done_ = 0;
  bool terminal_;
};

}  // namespace lnc
