#include "common/harness/report.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdarg>
#include <cstdio>

namespace lnc {
namespace {

[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...) {
  std::array<char, 512> text{};
  va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(text.data(), text.size(), pattern, arguments);
  va_end(arguments);
  return text.data();
}

/// 7482424 -> "7 482 424"
std::string grouped(double value) {
  std::string digits = format("%.0f", value);
  for (auto at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3) digits.insert(at, 1, ' ');
  return digits;
}

const char* roof_name(Direction direction) {
  return direction == Direction::Backward ? "triad" : "copy";
}

/// Prints the parts of a fusion, compared with the chapter that fuses them.
void print_parts(const Result& result) {
  if (!result.parts) return;
  const PartsResult& parts = *result.parts;
  const double bytes = static_cast<double>(parts.predicted_bytes);
  const double ratio = bytes / static_cast<double>(result.predicted_bytes);
  std::printf("  parts one after another: ");
  if (parts.median_us && result.timing)
    std::printf(
        "%.2f us (%d kernels, %.2f MB predicted), fused %.2f times faster (predicted %.2f)\n",
        *parts.median_us, parts.kernels, bytes / 1e6, *parts.median_us / result.timing->median_us,
        ratio);
  else
    std::printf("%d kernels, %.2f MB predicted, %.2f times the fused\n", parts.kernels, bytes / 1e6,
                ratio);
}

/// The result of the chapter's parent, to compare times with; null if the parent has no time or
/// is of another direction.
const Result* timed_parent(const std::vector<Result>& results, const Chapter& chapter) {
  for (const Result& result : results)
    if (result.chapter->id == chapter.parent && result.timing && result.error.empty() &&
        result.chapter->direction() == chapter.direction())
      return &result;
  return nullptr;
}

/// "main line; its parent is fwd01"
std::string place_on_the_map(const Chapter& chapter) {
  std::string words(name(chapter.road));
  if (chapter.road != Road::Main) words = "side road: " + words;
  if (!chapter.parent.empty()) words += "; its parent is " + std::string(chapter.parent);
  return words;
}

}  // namespace

std::string describe(const Device& d) {
  if (d.emulated) return d.name + ", SIMT machine (times are emulated, not a GPU's)";
  return d.name + ", driver " + d.driver + ", CUDA " + d.cuda;
}

void print_page(const Result& result) {
  const Chapter& chapter = *result.chapter;
  std::printf("\n%s · %s — %s (after %s)\n", std::string(chapter.id).c_str(),
              std::string(chapter.title).c_str(), std::string(chapter.teaches).c_str(),
              std::string(chapter.source).c_str());
  std::printf("  %s\n", place_on_the_map(chapter).c_str());
  if (!result.error.empty()) {
    std::printf("  FAILED: %s\n", result.error.c_str());
    return;
  }
  std::size_t longest = 8;
  for (const auto& check : result.checks) longest = std::max(longest, check.output.size());
  const int width = static_cast<int>(longest) + 1;
  std::printf("  %-*s %13s %13s %10s %12s\n", width, "output", "max abs error", "rel. error",
              "limit", "of its bound");
  for (const auto& check : result.checks) {
    std::printf("  %-*s %13.2e %13.2e", width, check.output.c_str(), check.max_abs_error,
                check.relative_error);
    if (!check.has_limit()) {
      std::printf("   no limit\n");
      continue;
    }
    std::printf(" %10.1e %10.0f %%  %s\n", check.limit, 100.0 * check.worst_of_bound,
                check.passed() ? "pass" : "FAIL");
    const std::string place = check.place(result.problem.cols);
    if (std::isinf(check.max_abs_error))
      std::printf("            no number at %s: was it written?\n", place.c_str());
    else if (check.worst_of_bound > 1.0)
      std::printf("            worst at %s\n", place.c_str());
  }
  const double predicted = static_cast<double>(result.predicted_bytes);
  if (!result.timing) {
    std::printf("  predicted: %.2f MB to and from device memory\n", predicted / 1e6);
    print_parts(result);
    return;
  }
  const Timing& t = *result.timing;
  const char* capped = t.cut_short ? "; the time budget ended the sampling" : "";
  if (device().emulated) {
    std::printf("  emulated: %.1f ms (p10 %.1f, p90 %.1f, %d samples%s)\n", t.median_us / 1e3,
                t.p10_us / 1e3, t.p90_us / 1e3, t.samples, capped);
    std::printf("  predicted: %.2f MB to and from an H100's device memory\n", predicted / 1e6);
    print_parts(result);
    return;
  }
  std::printf("  time: %.2f us median (p10 %.2f, p90 %.2f, %d samples%s), %s cycles\n", t.median_us,
              t.p10_us, t.p90_us, t.samples, capped, grouped(t.cycles.value_or(0)).c_str());
  if (result.roof_us)
    std::printf("  %.0f GB/s, %.1f %% of the roof (a %s of the same size: %.2f us, %.0f GB/s)\n",
                result.gbps(), *result.percent_of_roof(), roof_name(chapter.direction()),
                *result.roof_us, *result.roof_gbps());
  std::printf("  predicted: %.2f MB to and from device memory", predicted / 1e6);
  if (result.roof_us && result.operator_bytes > 0)
    std::printf(", %.2f us at the roof's speed", predicted / *result.roof_gbps() / 1e3);
  std::printf("\n");
  print_parts(result);
}

void print_line(const Result& r) {
  const Problem& p = r.problem;
  const std::string shape =
      format("%lld x %lld", static_cast<long long>(p.rows), static_cast<long long>(p.cols));
  const std::string_view kind = r.chapter->direction() == Direction::Copy ? "" : name(p.kind);
  std::printf("%-6s %-5s %-4s %16s", std::string(r.chapter->id).c_str(), std::string(kind).c_str(),
              std::string(name(p.dtype)).c_str(), shape.c_str());
  if (r.timing && device().emulated) std::printf(" %10.1f ms emulated", r.timing->median_us / 1e3);
  if (r.timing && !device().emulated) std::printf(" %12.2f us", r.timing->median_us);
  if (r.timing && r.roof_us) std::printf(" %6.1f %% of the roof", *r.percent_of_roof());
  std::printf("  %s%s%s", r.passed() ? "pass" : "FAIL", r.error.empty() ? "" : ": ",
              r.error.c_str());
  if (r.timing && r.timing->cut_short)
    std::printf("  (%d samples: the time budget ended the sampling)", r.timing->samples);
  std::printf("\n");
  std::fflush(stdout);
}

void print_progression(const std::vector<Result>& results) {
  const bool emulated = device().emulated;
  std::size_t longest = 0;
  for (const Result& r : results) longest = std::max(longest, r.chapter->title.size());
  const int width = static_cast<int>(longest);
  std::printf("\n%-7s %-*s", "chapter", width, "");
  if (emulated)
    std::printf(" %12s %12s", "emulated ms", "predicted MB");
  else
    std::printf(" %10s %9s %11s %6s %7s %12s", "median us", "speed-up", "cycles", "GB/s", "% roof",
                "predicted MB");
  std::printf("  check\n");
  for (const Result& r : results) {
    const Chapter& chapter = *r.chapter;
    std::printf("%-7s %-*s", std::string(chapter.id).c_str(), width,
                std::string(chapter.title).c_str());
    const bool timed = r.error.empty() && r.timing;
    const double predicted_mb = static_cast<double>(r.predicted_bytes) / 1e6;
    if (emulated) {
      std::printf(" %12s %12.2f", timed ? format("%.1f", r.timing->median_us / 1e3).c_str() : "-",
                  predicted_mb);
    } else if (timed) {
      const Timing& t = *r.timing;
      const Result* const parent = timed_parent(results, chapter);
      std::printf(" %10.2f %9s %11s %6.0f %7s %12.2f", t.median_us,
                  parent ? format("x %.2f", parent->timing->median_us / t.median_us).c_str() : "",
                  grouped(t.cycles.value_or(0)).c_str(), r.gbps(),
                  r.roof_us ? format("%.1f", *r.percent_of_roof()).c_str() : "-", predicted_mb);
    } else {
      std::printf(" %10s %9s %11s %6s %7s %12.2f", "-", "", "-", "-", "-", predicted_mb);
    }
    std::printf("  %s\n", r.passed() ? "pass" : "FAIL");
  }
  if (emulated)
    std::printf(
        "Emulated times are those of the SIMT machine: they say nothing about a GPU's speed.\n");
}

Progress::Progress(std::size_t total) : total_(total), terminal_(isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() { clear(); }

void Progress::clear() {
  if (terminal_) std::fprintf(stderr, "\r\033[K");
}

void Progress::step(const std::string& what) {
  if (terminal_) {
    constexpr std::size_t kWidth = 30;
    const std::size_t filled = total_ == 0 ? kWidth : kWidth * done_ / total_;
    std::fprintf(stderr, "\r\033[K[%s%s] %zu/%zu  %s", std::string(filled, '#').c_str(),
                 std::string(kWidth - filled, '.').c_str(), done_ + 1, total_, what.c_str());
  }
  ++done_;
}

}  // namespace lnc
