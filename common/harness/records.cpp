#include "common/harness/records.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "common/harness/options.h"

namespace lnc {
namespace {

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

/// Rounds to three significant digits.
double significant(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3g", value);
  return std::strtod(text.data(), nullptr);
}

}  // namespace

nlohmann::ordered_json made_by() {
  static const std::string made_from = commit();
  const Device& d = device();
  return {{"device", d.name},     {"driver", d.driver}, {"cuda", d.cuda},
          {"backend", d.backend}, {"date", today()},    {"commit", made_from}};
}

nlohmann::ordered_json to_record(const Result& r) {
  using Json = nlohmann::ordered_json;
  double max_abs_error = 0.0;
  double relative_error = 0.0;
  Json distances = Json::object();
  for (const OutputCheck& check : r.checks) {
    if (!check.has_limit()) {
      std::string key = check.output;  // dx_from_x
      std::replace(key.begin(), key.end(), ' ', '_');
      distances[key] = significant(check.relative_error);
      continue;
    }
    max_abs_error = std::max(max_abs_error, check.max_abs_error);
    relative_error = std::max(relative_error, check.relative_error);
  }
  Json record{{"schema", kSchema},
              {"chapter", r.chapter->id},
              {"direction", name(r.chapter->direction())},
              {"problem", to_json(r.problem)},
              {"set", r.set.empty() ? Json() : Json(r.set)},
              {"l2", r.cold ? "cold" : "warm"},
              {"clock", kClock}};
  record.update(made_by());
  record["passed"] = r.passed();
  record["max_abs_err"] = r.error.empty() ? Json(significant(max_abs_error)) : Json();
  record["rel_err"] = r.error.empty() ? Json(significant(relative_error)) : Json();
  if (!distances.empty()) record["distances"] = distances;
  if (!r.error.empty()) record["error"] = r.error;
  if (r.timing) {
    const Timing& t = *r.timing;
    record["median_us"] = rounded(t.median_us, 2);
    record["p10_us"] = rounded(t.p10_us, 2);
    record["p90_us"] = rounded(t.p90_us, 2);
    record["samples"] = t.samples;
    record["cut_short"] = t.cut_short;
    if (t.cycles) record["cycles"] = std::llround(*t.cycles);
  }
  record["operator_bytes"] = r.operator_bytes;
  record["predicted_bytes"] = r.predicted_bytes;
  record["roof_bytes"] = r.roof_bytes;
  if (r.roof_us) record["roof_us"] = rounded(*r.roof_us, 3);
  if (r.parts) {
    if (r.parts->median_us) record["parts_us"] = rounded(*r.parts->median_us, 2);
    record["parts_bytes"] = r.parts->predicted_bytes;
    record["parts_kernels"] = r.parts->kernels;
  }
  return record;
}

RecordFile::RecordFile(std::string path)
    : path_(std::move(path)), existed_(std::filesystem::exists(path_)) {
  if (path_.ends_with(".csv"))
    throw std::runtime_error(
        "'" + path_ +
        "' is a table, and --json writes JSON lines; give it a file '….jsonl', "
        "which common/results/archive.py adds to a table");
  errno = 0;
  out_.open(path_, std::ios::app);
  if (!out_)
    throw std::runtime_error("cannot write '" + path_ + "': " + std::strerror(errno) +
                             "; give --json a file in a directory that exists and is yours");
}

RecordFile::~RecordFile() {
  out_.close();
  std::error_code ignored;
  if (!existed_ && !written_) std::filesystem::remove(path_, ignored);
}

void RecordFile::write_line(const std::string& line) {
  out_ << line + '\n' << std::flush;
  if (!out_) throw std::runtime_error("writing to '" + path_ + "' failed: is the disk full?");
}

void RecordFile::append(const Result& result) {
  if (!written_ && ends_in_the_middle_of_a_line(path_)) write_line("");  // left by a killed run
  write_line(to_record(result).dump());
  written_ = true;
}

}  // namespace lnc
