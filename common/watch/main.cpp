// The program that `make count`, `make race` and `make trace` run: it watches a chapter on one
// problem and writes what it observed to a file, as JSON. count.py, race.py and trace.py turn the
// places in it into source lines, and present it.
//
//   fwd02 MODE FILE BLOCK [the arguments of a chapter's program]
//
// `trace` watches only block BLOCK; the other modes watch all blocks. With --list --json it watches
// nothing, and prints what the chapter's program would.
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "common/harness/records.h"
#include "common/harness/report.h"
#include "common/harness/run.h"
#include "common/program/command_line.h"
#include "common/program/list.h"
#include "common/watch/observer.h"

namespace lnc {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kWrongRequest = 2;

/// The one problem of the command line.
const Problem& the_problem(const CommandLine& line, const std::string& mode) {
  if (line.sweep)
    throw std::runtime_error("make " + mode +
                             " takes one problem, not a --set: choose it with "
                             "--rows, --cols and --dtype");
  return line.sets.front().problems.front();
}

std::unique_ptr<Observer> observer_of(const std::string& mode, const Tensors& tensors,
                                      const Names& names, std::uint64_t block) {
  const Problem& problem = tensors.problem();
  if (mode == "count") return count_requests(names, problem.rows * problem.cols);
  if (mode == "race") return find_races(names);
  if (mode == "trace") return trace_block(names, block);
  throw std::runtime_error("there is no mode '" + mode + "': count, race and trace are");
}

/// How many rows of such a problem fit in memory, found by halving; 0 if none do.
std::int64_t rows_that_fit(const Chapter& chapter, Problem problem) {
  while (problem.rows > 0 && !obstacle(chapter, problem).empty()) problem.rows /= 2;
  return problem.rows;
}

/// Why a chapter cannot be watched, as a sentence; empty if it can.
std::string obstacle_to(const CommandLine& line, const Chapter& chapter, const Problem& problem) {
  if (const std::string why = refusal_of_group(line, chapter); !why.empty()) return why;
  const Refusal why = obstacle(chapter, problem);
  if (why.empty()) return "";
  if (!refusal(chapter, problem).empty()) return in_words(why, chapter, problem);
  const std::int64_t rows = rows_that_fit(chapter, problem);  // only memory can be lacking now
  return in_words(why, chapter, problem) +
         (rows > 0 ? "; --rows " + std::to_string(rows) + " fits" : "");
}

/// What was observed of a chapter, as JSON.
Json watch(const std::string& mode, std::uint64_t block, const CommandLine& line,
           const Chapter& chapter, const Problem& problem) {
  const Tensors tensors(problem, chapter, 1);
  const Names names(tensors);
  const std::unique_ptr<Observer> observer = observer_of(mode, tensors, names, block);
  const Run run(chapter, tensors);
  Json seen{{"schema", kSchema},
            {"chapter", chapter.id},
            {"direction", name(chapter.direction())},
            {"problem", to_json(problem)}};
  seen.update(made_by());
  seen["mode"] = mode;
  seen["words"] = describe(problem, chapter.direction(), line.group);
  seen["source"] = chapter.file;
  seen["load_address"] = load_address();
  seen["operator_bytes"] = operator_bytes(problem, chapter.direction(), chapter.from_y);
  seen["predicted_bytes"] = chapter.predicted_bytes(problem, device().gpu);
  simt::set_watch(observer.get());
  std::string fault;
  try {
    run.launch();
  } catch (const std::exception& error) {  // still report what was observed until then
    fault = error.what();
  }
  simt::set_watch(nullptr);
  bool passed = fault.empty();
  if (passed) {
    for (const OutputCheck& check : run.check()) passed = passed && check.passed();
  }
  seen["fault"] = fault;
  seen["passed"] = passed;
  seen["seen"] = observer->seen();
  return seen;
}

void watch_all(const std::string& mode, const std::string& path, std::uint64_t block,
               const CommandLine& line) {
  const Problem& problem = the_problem(line, mode);
  device();  // a bad SIMT_SCHEDULE ends the program here
  std::ofstream file(path);
  Progress progress(chapters().size());
  bool any = false;
  std::string refused;
  for (const Chapter& chapter : chapters()) {
    if (const std::string why = obstacle_to(line, chapter, problem); !why.empty()) {
      refused += why + '\n';
      continue;
    }
    progress.step(std::string(chapter.id));
    file << watch(mode, block, line, chapter, problem) << '\n';
    any = true;
  }
  if (!any) throw std::runtime_error(refused.substr(0, refused.find('\n')));
  progress.clear();
  std::cerr << refused;
  if (!file.flush()) throw std::runtime_error("cannot write '" + path + "': is the disk full?");
}

}  // namespace
}  // namespace lnc

int main(int argc, char** argv) {
  try {
    constexpr int kOwn = 4;  // arguments, including the program's name
    if (argc < kOwn) throw std::runtime_error("run it as make count, make race or make trace");
    const std::string mode = argv[1];
    const std::string path = argv[2];
    const std::uint64_t block = std::stoull(argv[3]);
    argv[kOwn - 1] = argv[0];
    const lnc::CommandLine line = lnc::parse_command_line(argc - kOwn + 1, argv + kOwn - 1);
    if (line.list_json)
      std::cout << lnc::list_as_json() << '\n';
    else
      lnc::watch_all(mode, path, block, line);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return lnc::kWrongRequest;
  }
}
