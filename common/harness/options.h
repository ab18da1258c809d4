// The options of a problem. Each is described once, in the list in options.cpp, from which the
// command line, the problem sets and the records are derived.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/kernel/description.h"

namespace lnc {

/// An invalid request by the user; the message is a sentence.
struct RequestError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The numbers that an option accepts.
struct Range {
  double least;
  double most;
  std::string_view words;      ///< "a number above 0 that a float can hold"
  bool without_least = false;  ///< `least` itself is too small
  bool without_most = false;   ///< `most` itself is too large
};

/// An option of a problem.
struct Option {
  using Field =
      std::variant<bool*, int*, std::int64_t*, std::uint64_t*, float*, Kind*, DType*, Residual*>;
  std::string_view name;   ///< in sets and records; --name on the command line, with - for _
  Field field;             ///< of the problem that was passed to options()
  std::string_view value;  ///< its value's name in a help text: "M"; empty for a bool
  std::string_view help;
  Range range = {};    ///< of a number
  bool fused = false;  ///< only fused chapters take it
};

/// Every option of `problem`, in the order of the help text.
std::vector<Option> options(Problem& problem);

/// The names of an enumeration option's values: "layer", "rms".
std::vector<std::string> names_of(const Option::Field& field);

/// An option's value as it appears in a record.
nlohmann::ordered_json value_of(const Option& option);

/// "layer, rms"
std::string list_of(const std::vector<std::string>& names);

/// Sets an enumeration option. @return false if it has no value of this name
bool set_by_name(const Option::Field& field, std::string_view name);

/// Whether `value` is in the range.
bool within(const Range& range, double value);

/// "layer f32, 1024 x 2048, weight and bias, eps 1e-05, seed 1, buffers 8", where `group`, the name
/// of what Problem::group counts, is "buffers". For a copy: "f32, 1024 x 2048, seed 1".
std::string describe(const Problem& problem, Direction direction = Direction::Forward,
                     std::string_view group = "group");

/// The problem as it appears in a record: kind, dtype, rows, cols, eps, seed, and in "options"
/// every other option whose value is not the default.
nlohmann::ordered_json to_json(const Problem& problem);

/// `like`, with the options that a JSON object names set to its values.
/// @throws RequestError that names an unknown option or an invalid value
Problem from_json(const nlohmann::json& object, Problem like);

}  // namespace lnc
