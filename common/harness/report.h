// What a person reads, and what a notebook reads.
#pragma once

#include <fstream>
#include <string>
#include <vector>

#include "common/harness/check.h"
#include "common/harness/stopwatch.h"

namespace lnc {

/// The parts of a fusion as kernels of their own, for a fused chapter to be compared with.
struct PartsResult {
  int kernels;
  std::int64_t predicted_bytes;
  std::optional<double> median_us;  ///< of all of them, one after another; none where not timed
};

/// Everything there is to say about one chapter on one problem.
struct Result {
  const Chapter* chapter;
  Problem problem;
  std::vector<OutputCheck> checks;
  std::optional<Timing> timing;   ///< none where nothing was timed
  std::optional<double> roof_us;  ///< of the same run, size and L2 state
  std::int64_t predicted_bytes;
  std::optional<PartsResult> parts;  ///< none where the problem has no fusion
  std::string error;                 ///< a launch or a kernel failed: what it said

  bool passed() const;
  /// The bytes that the operator must move, whatever the kernel: forward 2, backward 3 tensors, and
  /// those of a fusion: what this direction must read and write of it.
  std::int64_t operator_bytes() const;
  std::int64_t roof_bytes() const;  ///< that the roof's copy or triad moves
  std::optional<double> roof_gbps() const;
  std::optional<double> percent_of_roof() const;  ///< of its bytes per second
};

std::string describe(const Problem& problem);
std::string describe(const Device& device);

/// A page about one result: checks, times, prediction.
void print_page(const Result& result);

/// A line about one result, for a benchmark of many problems.
void print_line(const Result& result);

/// The progression: a line for each result, with the speed-up over the chapter before.
void print_progression(const std::vector<Result>& results);

/// Appends to a JSON-lines file: a header about the device and the commit before the first record,
/// then one record a line, each written whole.
class JsonLines {
 public:
  /// @throws std::runtime_error in one sentence where `path` cannot be written
  explicit JsonLines(std::string path);
  ~JsonLines();  ///< removes the file where it did not exist before and nothing was recorded
  JsonLines(const JsonLines&) = delete;
  JsonLines& operator=(const JsonLines&) = delete;

  void record(const Result& result);

 private:
  void write_line(const std::string& line);

  std::string path_;
  std::ofstream out_;
  bool existed_;
  bool header_written_ = false;
};

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
