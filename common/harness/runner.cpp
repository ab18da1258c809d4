#include "common/harness/runner.h"

#include <algorithm>
#include <cstdio>
#include <exception>

#include "common/harness/host_memory.h"
#include "common/harness/parts.h"
#include "common/harness/run.h"
#include "common/kernel/split.h"

namespace lnc {
namespace {

std::string gigabytes(double bytes) {
  char text[64];
  std::snprintf(text, sizeof text, "%.2f GB", bytes / 1e9);
  return text;
}

/// Runs the parts of the problem's fusion as separate kernels; none if has_parts is false, or if
/// their intermediate results do not fit in device memory.
std::optional<PartsResult> run_parts(const Chapter& chapter, const Tensors& tensors,
                                     const Sampling& sampling) {
  const Problem& problem = tensors.problem();
  if (!has_parts(chapter, problem) || parts_scratch_bytes(problem) > free_device_bytes())
    return std::nullopt;
  const Parts parts(chapter, tensors);
  PartsResult result{parts.kernels(), parts.predicted_bytes(), {}};
  if (sampling.samples > 0 && problem.rows > 0 && !device().emulated) {
    parts.launch();  // warms up
    result.median_us = time_launches({[&] { parts.launch(); }}, sampling).median_us;
  }
  return result;
}

double gigabytes_per_second(std::int64_t bytes, double microseconds) {
  return static_cast<double>(bytes) / microseconds / 1e3;
}

}  // namespace

bool Result::passed() const {
  return error.empty() && std::all_of(checks.begin(), checks.end(),
                                      [](const OutputCheck& check) { return check.passed(); });
}

double Result::gbps() const { return gigabytes_per_second(operator_bytes, timing->median_us); }

std::optional<double> Result::roof_gbps() const {
  if (!roof_us) return std::nullopt;
  return gigabytes_per_second(roof_bytes, *roof_us);
}

std::optional<double> Result::percent_of_roof() const {
  if (!roof_us || !timing) return std::nullopt;
  return 100.0 * gbps() / *roof_gbps();
}

Refusal obstacle(const Chapter& chapter, const Problem& problem) {
  if (Refusal why = refusal(chapter, problem, device().gpu); !why.empty()) return why;
  if (problem.gpus > gpu_count())
    return {std::string(chapter.id) + " is asked to run on " + std::to_string(problem.gpus) +
                " GPUs, and this machine has " + std::to_string(gpu_count()),
            "gpus"};
  const double needed = needed_device_bytes(chapter, problem);
  const double host_needed = needed_host_bytes(problem) + (device().emulated ? needed : 0.0);
  const auto device_free = static_cast<double>(free_device_bytes());
  const auto host_free = static_cast<double>(free_host_bytes());
  const auto refuse = [&](const char* memory, double bytes, double free) {
    return Refusal{std::string(chapter.id) + " needs " + gigabytes(bytes) + " of " + memory +
                   " memory for " + std::to_string(problem.rows) + " x " +
                   std::to_string(problem.cols) + " " + std::string(name(problem.dtype)) +
                   ", but only " + gigabytes(free) + " are free"};
  };
  if (needed > device_free) return refuse("device", needed, device_free);
  if (host_needed > host_free) return refuse("host", host_needed, host_free);
  return {};
}

std::optional<double> Roofs::us(Direction direction, const Problem& problem,
                                const Sampling& sampling) {
  const auto key = std::make_pair(direction, problem.tensor_bytes());
  if (const auto found = roofs_.find(key); found != roofs_.end()) return found->second;
  return roofs_[key] = roof_us(direction, problem.tensor_bytes(), sampling.cold);
}

Result run_chapter(const Chapter& chapter, const Tensors& tensors, const Sampling& sampling,
                   Roofs& roofs) {
  const Problem& problem = tensors.problem();
  const Direction direction = chapter.direction();
  const Problem part = largest_of_gpus(problem, chapter.split);  // each GPU has a roof of its own
  Result result{.chapter = &chapter,
                .problem = problem,
                .set = {},
                .cold = sampling.cold,
                .checks = {},
                .timing = {},
                .roof_us = {},
                .roof_bytes = roof_bytes(part, direction),
                .operator_bytes = operator_bytes(part, direction, chapter.from_y),
                .predicted_bytes = chapter.predicted_bytes(part, device().gpu),
                .parts = {},
                .error = {}};
  try {
    result.parts = run_parts(chapter, tensors, sampling);  // first: the chapter overwrites outputs
    const Run run(chapter, tensors);
    run.launch();
    result.checks = run.check();
    if (sampling.samples > 0 && problem.rows > 0) {
      result.timing = run.time(sampling);
      result.roof_us = roofs.us(direction, part, sampling);
    }
  } catch (const std::exception& error) {
    result.error = error.what();
  }
  return result;
}

}  // namespace lnc
