// Results as records: JSON lines that say what was asked, what made them, and what came out.
#pragma once

#include <fstream>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "common/harness/runner.h"

namespace lnc {

inline constexpr int kSchema = 2;  ///< of a record; common/results/records.py reads it

/// What made a record: backend, device, driver, cuda, date, commit.
nlohmann::ordered_json made_by();

/// A result as a record. common/harness/README.md says what its fields are.
nlohmann::ordered_json to_record(const Result& result);

/// Appends records to a file, one a line, each written whole.
class RecordFile {
 public:
  /// @throws std::runtime_error in one sentence where `path` cannot be written
  explicit RecordFile(std::string path);
  ~RecordFile();  ///< removes the file where it did not exist before and nothing was recorded
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;

  void append(const Result& result);

 private:
  void write_line(const std::string& line);

  std::string path_;
  std::ofstream out_;
  bool existed_;
  bool written_ = false;
};

}  // namespace lnc
