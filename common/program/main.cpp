// The program of every chapter, and of all of them: parses the command line, then runs, checks,
// times and reports.
#include <cstdio>
#include <exception>
#include <iostream>
#include <memory>

#include "common/harness/gpus.h"
#include "common/harness/records.h"
#include "common/harness/report.h"
#include "common/program/command_line.h"
#include "common/program/list.h"

namespace lnc {
namespace {

constexpr int kFailed = 1, kWrongRequest = 2;

/// A run of the program: runs chapters on problems and reports as it goes.
class Session {
 public:
  explicit Session(const CommandLine& line) : line_(line), progress_(count_of(line)) {
    device();  // fails before any file is written if there is no usable device
    if (line.json) records_ = std::make_unique<RecordFile>(*line.json);
  }

  int run() {
    for (const ProblemSet& set : line_.sets)
      for (const Problem& problem : set.problems) run_problem(set.name, problem);
    if (!line_.sweep && results_.size() > 1) print_progression(results_);
    if (results_.empty()) return refuse_all();
    report_obstacles();
    return all_passed_ ? 0 : kFailed;
  }

 private:
  static std::size_t count_of(const CommandLine& line) {
    std::size_t problems = 0;
    for (const ProblemSet& set : line.sets) problems += set.problems.size();
    return problems * chapters().size();
  }

  /// Runs the chapters on a problem. Consecutive ones with the same inputs share their tensors.
  void run_problem(const std::string& set, const Problem& problem) {
    for (auto next = chapters().begin(); next != chapters().end();) {
      const Chapter& first = *next;
      std::vector<const Chapter*> runnable;
      for (; next != chapters().end() && share_inputs(first, *next); ++next) {
        const std::string why = obstacle_to(*next, problem);
        if (why.empty())
          runnable.push_back(&*next);
        else
          obstacles_.push_back(why);
      }
      if (!runnable.empty()) run_chapters(runnable, set, problem);
    }
  }

  /// Why a chapter cannot run, as a sentence; empty if it can.
  std::string obstacle_to(const Chapter& chapter, const Problem& problem) const {
    const std::string why = refusal_of_group(line_, chapter);
    if (!why.empty()) return why;
    const Refusal refusal = obstacle(chapter, problem);
    return refusal.empty() ? "" : in_words(refusal, chapter, problem);
  }

  void run_chapters(const std::vector<const Chapter*>& runnable, const std::string& set,
                    const Problem& problem) {
    if (results_.empty()) std::cout << describe(device()) << '\n';
    if (problem.gpus > 1) std::cout << describe_gpus(problem.gpus) << '\n';
    const Direction direction = runnable.front()->direction();
    const std::string words = describe(problem, direction, line_.group);
    if (!line_.sweep && words != said_)
      std::cout << (results_.empty() ? "" : "\n") << (said_ = words) << '\n';
    const Tensors tensors(problem, *runnable.front(), input_copies(problem, line_.sampling));
    for (const Chapter* chapter : runnable) {
      progress_.step(std::string(chapter->id) + ": " +
                     describe(problem, direction, chapter->group));
      Result result = run_chapter(*chapter, tensors, line_.sampling, roofs_);
      result.set = set;
      report(result);
      if (line_.dump && result.error.empty()) tensors.dump(*line_.dump);
      results_.push_back(std::move(result));
    }
  }

  void report(const Result& result) {
    progress_.clear();
    if (records_) records_->append(result);
    if (line_.sweep)
      print_line(result);
    else
      print_page(result);
    all_passed_ = all_passed_ && result.passed();
  }

  int refuse_all() const {
    if (obstacles_.empty()) {
      std::cerr << "the requested sets contain no problems\n";
      return kWrongRequest;
    }
    std::cerr << obstacles_.front();
    if (obstacles_.size() > 1) std::cerr << "; the other chapters cannot run it either";
    std::cerr << '\n';
    return kWrongRequest;
  }

  void report_obstacles() const {
    for (std::size_t i = 0; i < obstacles_.size(); ++i)
      if (!line_.sweep || i == 0) std::cout << "not run: " << obstacles_[i] << '\n';
    if (line_.sweep && obstacles_.size() > 1)
      std::cout << "not run: " << obstacles_.size() - 1 << " more that a chapter does not take\n";
  }

  const CommandLine& line_;
  std::unique_ptr<RecordFile> records_;
  Progress progress_;
  Roofs roofs_;
  std::string said_;  // the description of the problem that was printed last
  std::vector<std::string> obstacles_;
  std::vector<Result> results_;
  bool all_passed_ = true;
};

int run(const CommandLine& line) {
  if (!line.list) return Session(line).run();
  if (line.list_json)
    std::cout << list_as_json() << '\n';
  else
    print_list(line.sets.front().problems.front());
  return 0;
}

}  // namespace
}  // namespace lnc

int main(int argc, char** argv) {
  try {
    const int status = lnc::run(lnc::parse_command_line(argc, argv));
    std::cout.flush();
    if (std::fflush(stdout) == 0 && std::cout) return status;
    std::cerr << "writing the results to standard output failed: is the disk full?\n";
    return lnc::kFailed;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return lnc::kWrongRequest;
  }
}
