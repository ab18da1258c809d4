// The program of every chapter, and of all of them: parse, make the problem, run, check, time,
// report.
#include <cstdio>
#include <exception>
#include <iostream>
#include <map>
#include <memory>

#include "common/program/command_line.h"
#include "common/harness/parts.h"
#include "common/harness/registry.h"
#include "common/harness/report.h"
#include "common/harness/run.h"

namespace lnc {
namespace {

constexpr int kFailed = 1, kWrongRequest = 2;

std::string gigabytes(double bytes) {
  char text[64];
  std::snprintf(text, sizeof text, "%.2f GB", bytes / 1e9);
  return text;
}

/// Why `chapter` cannot run `problem` here, in one sentence; empty where it can.
std::string obstacle(const Chapter& chapter, const Problem& problem, double free_bytes) {
  if (std::string why = refusal(chapter, problem); !why.empty()) return why;
  const double needed = needed_device_bytes(chapter, problem);
  const double host_needed = needed_host_bytes(problem) + (device().emulated ? needed : 0.0);
  const auto host_free = static_cast<double>(free_host_bytes());
  const auto sentence = [&](const char* memory, double bytes, double free) {
    return std::string(chapter.id) + " needs " + gigabytes(bytes) + " of " + memory +
           " memory for " + std::to_string(problem.rows) + " x " + std::to_string(problem.cols) +
           " " + std::string(name(problem.dtype)) + ", and " + gigabytes(free) + " are free";
  };
  if (needed > free_bytes) return sentence("device", needed, free_bytes);
  if (host_needed > host_free) return sentence("host", host_needed, host_free);
  return {};
}

/// The roofs of this run, each measured once.
class Roofs {
 public:
  std::optional<double> us(Direction direction, const Problem& problem, const Sampling& sampling) {
    constexpr int kCount = 30;
    const auto key = std::make_pair(direction, problem.tensor_bytes());
    if (const auto found = roofs_.find(key); found != roofs_.end()) return found->second;
    return roofs_[key] = roof_us(direction, problem.tensor_bytes(), sampling.cold, kCount);
  }

 private:
  std::map<std::pair<Direction, std::int64_t>, std::optional<double>> roofs_;
};

/// The parts of the problem's fusion, as kernels of their own; none where it has no fusion, or
/// where what lies between them does not fit in device memory.
template <typename T, typename W>
std::optional<PartsResult> run_parts(const Chapter& chapter, const Instance<T, W>& instance,
                                     const Sampling& sampling) {
  const Problem& problem = instance.problem();
  if (!has_parts(chapter, problem) || parts_scratch_bytes(problem) > free_device_bytes())
    return std::nullopt;
  const Parts<T, W> parts(chapter, problem, instance.forward_args({}));
  PartsResult result{parts.kernels(), parts.predicted_bytes(), {}};
  if (sampling.samples > 0 && problem.rows > 0 && !device().emulated) {
    const auto launch = [&] { parts.launch(); };
    launch();  // warms up
    result.median_us = time_chapter(launch, sampling).median_us;
  }
  return result;
}

/// Runs one chapter on an instance of the problem: once for the check, then for the time.
template <typename T, typename W>
Result run_chapter(const Chapter& chapter, const Instance<T, W>& instance,
                   const Sampling& sampling) {
  const Problem& problem = instance.problem();
  Result result{.chapter = &chapter,
                .problem = problem,
                .checks = {},
                .timing = {},
                .roof_us = {},
                .predicted_bytes = chapter.predicted_bytes(problem, device().gpu),
                .parts = {},
                .error = {}};
  try {
    result.parts =
        run_parts(chapter, instance, sampling);  // first: the outputs are to be the chapter's
    const Run<T, W> run(chapter, instance);
    run.launch();
    result.checks = run.check();
    if (sampling.samples > 0 && problem.rows > 0)
      result.timing = time_chapter(run.launcher(), sampling);
  } catch (const std::exception& error) {
    result.error = error.what();
  }
  return result;
}

/// Runs chapters that share their inputs on one problem.
std::vector<Result> run_problem(const std::vector<const Chapter*>& chapters, const Problem& problem,
                                const Options& options, Roofs& roofs, Progress& progress,
                                const std::function<void(const Result&)>& report) {
  const Direction direction = chapters.front()->direction();
  std::vector<Result> results;
  with_types(problem, [&]<typename T, typename W>() {
    const Instance<T, W> instance(problem, *chapters.front());
    for (const Chapter* chapter : chapters) {
      progress.step(std::string(chapter->id) + ": " + describe(problem));
      Result result = run_chapter(*chapter, instance, options.sampling);
      if (result.timing) result.roof_us = roofs.us(direction, problem, options.sampling);
      report(result);
      if (options.dump && result.error.empty()) instance.dump(*options.dump);
      results.push_back(std::move(result));
    }
  });
  return results;
}

int list_chapters() {
  for (const Chapter& chapter : chapters())
    std::printf("%-6s %-40s %s\n", std::string(chapter.id).c_str(),
                std::string(chapter.title).c_str(), std::string(chapter.teaches).c_str());
  return 0;
}

int run(const Options& options) {
  if (options.list) return list_chapters();
  device();  // without a usable one, nothing is written
  std::unique_ptr<JsonLines> json;
  if (options.json) json = std::make_unique<JsonLines>(*options.json);
  Progress progress(options.problems.size() * chapters().size());
  Roofs roofs;
  std::vector<std::string> obstacles;
  std::vector<Result> results;
  bool all_passed = true;
  const auto report = [&](const Result& result) {
    progress.clear();
    if (json) json->record(result);
    if (options.sweep)
      print_line(result);
    else
      print_page(result);
    all_passed = all_passed && result.passed();
  };
  for (const Problem& problem : options.problems) {
    const auto free_bytes = static_cast<double>(free_device_bytes());
    for (auto next = chapters().begin(); next != chapters().end();) {
      const Chapter& first = *next;
      std::vector<const Chapter*> runnable;
      for (; next != chapters().end() && share_inputs(first, *next); ++next) {
        const std::string why = obstacle(*next, problem, free_bytes);
        if (why.empty())
          runnable.push_back(&*next);
        else
          obstacles.push_back(why);
      }
      if (runnable.empty()) continue;
      if (results.empty()) std::cout << describe(device()) << '\n';
      if (results.empty() && !options.sweep) std::cout << describe(problem) << '\n';
      for (auto& result : run_problem(runnable, problem, options, roofs, progress, report))
        results.push_back(std::move(result));
    }
  }
  if (!options.sweep && results.size() > 1) print_progression(results);
  if (results.empty()) {
    std::cerr << obstacles.front();
    if (obstacles.size() > 1) std::cerr << "; the other chapters cannot run it either";
    std::cerr << '\n';
    return kWrongRequest;
  }
  for (std::size_t i = 0; i < obstacles.size(); ++i)
    if (!options.sweep || i == 0) std::cout << "not run: " << obstacles[i] << '\n';
  if (options.sweep && obstacles.size() > 1)
    std::cout << "not run: " << obstacles.size() - 1 << " more that a chapter does not take\n";
  return all_passed ? 0 : kFailed;
}

}  // namespace
}  // namespace lnc

int main(int argc, char** argv) {
  try {
    const int status = lnc::run(lnc::parse_options(argc, argv));
    std::cout.flush();
    if (std::fflush(stdout) == 0 && std::cout) return status;
    std::cerr << "writing the results to standard output failed: is the disk full?\n";
    return lnc::kFailed;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return lnc::kWrongRequest;
  }
}
