#include "common/harness/report.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>

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

double gigabytes_per_second(double bytes, double microseconds) {
  return bytes / microseconds / 1e3;
}

const char* roof_name(Direction direction) {
  return direction == Direction::Forward ? "copy" : "triad";
}

std::string commit() {
  if (const char* given = std::getenv("LNC_COMMIT")) return given;
  std::array<char, 128> line{};
  if (FILE* pipe =
          popen("git -C '" LNC_SOURCE_DIR "' describe --always --dirty 2>/dev/null", "r")) {
    if (std::fgets(line.data(), line.size(), pipe) == nullptr) line[0] = '\0';
    pclose(pipe);
  }
  std::string text = line.data();
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.empty() ? "unknown" : text;
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::array<char, 16> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d", std::gmtime(&now));
  return text.data();
}

bool ends_in_the_middle_of_a_line(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file || file.tellg() == std::streampos(0)) return false;
  file.seekg(-1, std::ios::end);
  return file.get() != '\n';
}

double rounded(double value, int digits) {
  const double scale = std::pow(10.0, digits);
  return std::round(value * scale) / scale;
}

double significant(double value) { return std::strtod(format("%.3g", value).c_str(), nullptr); }

/// The parts of a fusion, beside the chapter that does them all.
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

}  // namespace

bool Result::passed() const {
  return error.empty() && std::all_of(checks.begin(), checks.end(),
                                      [](const OutputCheck& check) { return check.passed(); });
}

std::int64_t Result::roof_bytes() const {
  return (chapter->direction() == Direction::Forward ? 2 : 3) * problem.tensor_bytes();
}

std::int64_t Result::operator_bytes() const {
  const Fusion& fusion = problem.fusion;
  if (chapter->direction() == Direction::Backward)
    return backward_tensor_bytes(problem) + problem.recompute_output * problem.tensor_bytes();
  const std::int64_t residual = problem.rows * problem.cols * problem.residual_element_bytes();
  return roof_bytes() + (fusion.second_input + fusion.second_affine) * problem.tensor_bytes() +
         ((fusion.residual != Residual::None) + fusion.prenorm) * residual;
}

std::optional<double> Result::roof_gbps() const {
  if (!roof_us) return std::nullopt;
  return gigabytes_per_second(static_cast<double>(roof_bytes()), *roof_us);
}

std::optional<double> Result::percent_of_roof() const {
  if (!roof_us || !timing) return std::nullopt;
  return 100.0 * gigabytes_per_second(static_cast<double>(operator_bytes()), timing->median_us) /
         *roof_gbps();
}

std::string variant(const Problem& p) {
  const Fusion& f = p.fusion;
  std::string text;
  const auto add = [&text](const std::string& word) { text += (text.empty() ? "" : ", ") + word; };
  if (p.mixed) add("mixed");
  if (p.offset != Problem{}.offset) add(format("offset %g", p.offset));
  if (p.weight_scale != Problem{}.weight_scale) add(format("weight scale %g", p.weight_scale));
  if (p.group > 0) add(format("group %d", p.group));
  if (p.recompute_output) add("recompute output");
  if (f.rowscale) add("rowscale");
  if (f.dropout > 0.0f) add(format("dropout %g", f.dropout));
  if (f.second_input || f.second_affine) add("parallel");
  if (f.residual != Residual::None) add(f.residual == Residual::F32 ? "residual f32" : "residual");
  if (f.prenorm) add("prenorm");
  return text;
}

std::string describe(const Problem& p) {
  const std::string more = variant(p);
  return format("%s %s, %lld x %lld, %s, eps %g, seed %llu%s%s", std::string(name(p.kind)).c_str(),
                std::string(name(p.dtype)).c_str(), static_cast<long long>(p.rows),
                static_cast<long long>(p.cols),
                !p.affine               ? "no weight or bias"
                : p.kind == Kind::Layer ? "weight and bias"
                                        : "weight",
                p.eps, static_cast<unsigned long long>(p.seed), more.empty() ? "" : ", ",
                more.c_str());
}

std::string describe(const Device& d) {
  if (d.emulated) return d.name + ", SIMT machine (times are emulated, not a GPU's)";
  return d.name + ", driver " + d.driver + ", CUDA " + d.cuda;
}

void print_page(const Result& result) {
  const Chapter& chapter = *result.chapter;
  std::printf("\n%s · %s — %s (after %s)\n", std::string(chapter.id).c_str(),
              std::string(chapter.title).c_str(), std::string(chapter.teaches).c_str(),
              std::string(chapter.source).c_str());
  if (!result.error.empty()) {
    std::printf("  FAILED: %s\n", result.error.c_str());
    return;
  }
  const bool long_names = std::any_of(result.checks.begin(), result.checks.end(),
                                      [](const auto& check) { return !check.has_limit(); });
  const int width = long_names ? 14 : 9;
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
    if (check.worst_of_bound > 1.0)
      std::printf("            worst at %s\n", check.place(result.problem.cols).c_str());
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
  const double bytes = static_cast<double>(result.operator_bytes());
  std::printf("  time: %.2f us median (p10 %.2f, p90 %.2f, %d samples%s), %s cycles\n", t.median_us,
              t.p10_us, t.p90_us, t.samples, capped, grouped(t.cycles.value_or(0)).c_str());
  if (result.roof_us)
    std::printf("  %.0f GB/s, %.1f %% of the roof (a %s of the same size: %.2f us, %.0f GB/s)\n",
                gigabytes_per_second(bytes, t.median_us), *result.percent_of_roof(),
                roof_name(chapter.direction()), *result.roof_us, *result.roof_gbps());
  std::printf("  predicted: %.2f MB to and from device memory", predicted / 1e6);
  if (result.roof_us && bytes > 0)
    std::printf(", %.2f us at the roof's speed", predicted / *result.roof_gbps() / 1e3);
  std::printf("\n");
  print_parts(result);
}

void print_line(const Result& r) {
  const Problem& p = r.problem;
  const std::string shape =
      format("%lld x %lld", static_cast<long long>(p.rows), static_cast<long long>(p.cols));
  std::printf("%-6s %-5s %-4s %16s", std::string(r.chapter->id).c_str(),
              std::string(name(p.kind)).c_str(), std::string(name(p.dtype)).c_str(), shape.c_str());
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
  std::printf("\n%-7s %-40s", "chapter", "");
  if (emulated)
    std::printf(" %12s %12s", "emulated ms", "predicted MB");
  else
    std::printf(" %10s %9s %11s %6s %7s %12s", "median us", "speed-up", "cycles", "GB/s", "% roof",
                "predicted MB");
  std::printf("  check\n");
  const Result* before = nullptr;
  for (const Result& r : results) {
    const Chapter& chapter = *r.chapter;
    std::printf("%-7s %-40s", std::string(chapter.id).c_str(), std::string(chapter.title).c_str());
    const bool timed = r.error.empty() && r.timing;
    const double predicted_mb = static_cast<double>(r.predicted_bytes) / 1e6;
    if (emulated) {
      std::printf(" %12s %12.2f", timed ? format("%.1f", r.timing->median_us / 1e3).c_str() : "-",
                  predicted_mb);
    } else if (timed) {
      const Timing& t = *r.timing;
      const bool follows = before != nullptr && before->chapter->direction() == chapter.direction();
      std::printf(" %10.2f %9s %11s %6.0f %7s %12.2f", t.median_us,
                  follows ? format("x %.2f", before->timing->median_us / t.median_us).c_str() : "",
                  grouped(t.cycles.value_or(0)).c_str(),
                  gigabytes_per_second(static_cast<double>(r.operator_bytes()), t.median_us),
                  r.roof_us ? format("%.1f", *r.percent_of_roof()).c_str() : "-", predicted_mb);
      before = &r;
    } else {
      std::printf(" %10s %9s %11s %6s %7s %12.2f", "-", "", "-", "-", "-", predicted_mb);
    }
    std::printf("  %s\n", r.passed() ? "pass" : "FAIL");
  }
  if (emulated) std::printf("Emulated times are the SIMT machine's: they rank nothing on a GPU.\n");
}

JsonLines::JsonLines(std::string path)
    : path_(std::move(path)), existed_(std::filesystem::exists(path_)) {
  errno = 0;
  out_.open(path_, std::ios::app);
  if (!out_)
    throw std::runtime_error("cannot write '" + path_ + "': " + std::strerror(errno) +
                             "; give --json a file in a directory that exists and is yours");
}

JsonLines::~JsonLines() {
  out_.close();
  std::error_code ignored;
  if (!existed_ && !header_written_) std::filesystem::remove(path_, ignored);
}

void JsonLines::write_line(const std::string& line) {
  out_ << line + '\n' << std::flush;
  if (!out_) throw std::runtime_error("writing to '" + path_ + "' failed: is the disk full?");
}

void JsonLines::record(const Result& r) {
  const Device& d = device();
  using Json = nlohmann::ordered_json;
  if (!header_written_) {
    if (ends_in_the_middle_of_a_line(path_)) write_line("");  // of a run that was killed
    write_line(Json{
        {"device", d.name},
        {"driver", d.driver},
        {"cuda", d.cuda},
        {"backend", d.backend},
        {"date", today()},
        {"commit",
         commit()}}.dump());
    header_written_ = true;
  }
  double max_abs_error = 0.0, relative_error = 0.0;
  for (const auto& check : r.checks) {
    if (!check.has_limit()) continue;
    max_abs_error = std::max(max_abs_error, check.max_abs_error);
    relative_error = std::max(relative_error, check.relative_error);
  }
  Json record{{"chapter", r.chapter->id},
              {"direction", name(r.chapter->direction())},
              {"kind", name(r.problem.kind)},
              {"dtype", name(r.problem.dtype)},
              {"rows", r.problem.rows},
              {"cols", r.problem.cols},
              {"affine", r.problem.affine},
              {"device", d.name},
              {"backend", d.backend},
              {"passed", r.passed()},
              {"max_abs_err", r.error.empty() ? Json(significant(max_abs_error)) : Json()},
              {"rel_err", r.error.empty() ? Json(significant(relative_error)) : Json()},
              {"predicted_bytes", r.predicted_bytes}};
  if (const std::string more = variant(r.problem); !more.empty()) record["variant"] = more;
  for (const auto& check : r.checks) {
    if (check.has_limit()) continue;
    std::string key = check.output + " rel_err";  // dx_from_x_rel_err
    std::replace(key.begin(), key.end(), ' ', '_');
    record[key] = significant(check.relative_error);
  }
  if (r.parts) record["parts_bytes"] = r.parts->predicted_bytes;
  if (r.parts && r.parts->median_us) record["parts_us"] = rounded(*r.parts->median_us, 2);
  if (!r.error.empty()) record["error"] = r.error;
  if (r.timing) {
    const Timing& t = *r.timing;
    const double bytes = static_cast<double>(r.operator_bytes());
    record["median_us"] = rounded(t.median_us, 2);
    record["p10_us"] = rounded(t.p10_us, 2);
    record["p90_us"] = rounded(t.p90_us, 2);
    record["samples"] = t.samples;
    record["cut_short"] = t.cut_short;
    if (t.cycles) record["cycles"] = std::llround(*t.cycles);
    if (!d.emulated) record["gbps"] = rounded(gigabytes_per_second(bytes, t.median_us), 1);
    if (r.roof_us) record["roof_gbps"] = rounded(*r.roof_gbps(), 1);
  }
  write_line(record.dump());
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
