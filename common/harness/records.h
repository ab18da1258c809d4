// Results as records: JSON lines that state the request, what produced the result, and the result.
#pragma once

#include <fstream>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "common/harness/runner.h"

namespace lnc {

inline constexpr int kSchema = 2;  ///< of a record; common/results/records.py reads it

/// What produced a record: backend, device, driver, cuda, date, commit.
nlohmann::ordered_json made_by();

/// A result as a record. common/harness/README.md explains its fields.
nlohmann::ordered_json to_record(const Result& result);

/// Appends records to a file, one per line, each in a single write.
class RecordFile {
 public:
  /// @throws std::runtime_error, in one sentence, if `path` cannot be written
  explicit RecordFile(std::string path);
  ~RecordFile();  ///< removes the file if it is new and nothing was recorded
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
