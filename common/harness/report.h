// What a person reads.
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

/// The progression: a line for each result, with the speed-up over its parent.
void print_progression(const std::vector<Result>& results);

/// A progress bar on standard error where that is a terminal; silent elsewhere.
class Progress {
 public:
  explicit Progress(std::size_t total);
  ~Progress();
  void step(const std::string& what);  ///< `what` is being worked on now
  void clear();                        ///< takes the bar away, for a line of standard output

 private:
  std::size_t total_, done_ = 0;
  bool terminal_;
};

}  // namespace lnc
