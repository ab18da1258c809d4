// A problem in words and in numbers: its options, its tensors, the values of its inputs. Each
// option and each tensor is described once, in problem.cpp; the command line, sets, records,
// allocation, checks, byte counts and dumps are made from that.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/kernel/description.h"
#include "reference_cpu/fused_layer_norm.h"

namespace lnc {

/// Something that a user asked for and that means nothing; the message is a sentence.
struct RequestError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// --- Options -------------------------------------------------------------------------------------

/// What an option's number may be.
struct Range {
  double least;
  double most;
  std::string_view words;      ///< "a number above 0 that a float can hold"
  bool without_least = false;  ///< `least` itself is too little
  bool without_most = false;   ///< `most` itself is too much
};

/// An option of a problem.
struct Option {
  using Field =
      std::variant<bool*, int*, std::int64_t*, std::uint64_t*, float*, Kind*, DType*, Residual*>;
  std::string_view name;   ///< in sets and records; --name on the command line, with - for _
  Field field;             ///< of the problem that options() was given
  std::string_view value;  ///< what stands for its value in a help text: "M"; of a bool nothing
  std::string_view help;
  Range range = {};    ///< of a number
  bool fused = false;  ///< only fused chapters take it
};

/// Every option of `problem`, in the order of a help text.
std::vector<Option> options(Problem& problem);

/// The names that an option of a type may be given: "layer", "rms".
std::vector<std::string> names_of(const Option::Field& field);

/// An option's value, as a record has it.
nlohmann::ordered_json value_of(const Option& option);

/// "layer, rms"
std::string list_of(const std::vector<std::string>& names);

/// Sets an option that has names. @return false where `name` is none of them
bool set_by_name(const Option::Field& field, std::string_view name);

/// Whether `value` is a number that the option takes.
bool within(const Range& range, double value);

/// "layer f32, 1024 x 2048, weight and bias, eps 1e-05, seed 1, buffers 8", where `group` is
/// "buffers": what Problem::group counts. Of a copy "f32, 1024 x 2048, seed 1".
std::string describe(const Problem& problem, Direction direction = Direction::Forward,
                     std::string_view group = "group");

/// The problem as a record has it: kind, dtype, rows, cols, eps, seed, and in "options" whatever
/// else is not as usual.
nlohmann::ordered_json to_json(const Problem& problem);

/// `like` with the options that a JSON object names.
/// @throws RequestError that names an unknown option, or one that has no such value
Problem from_json(const nlohmann::json& object, Problem like);

// --- Tensors -------------------------------------------------------------------------------------

enum class Shape { Matrix, Rows, Columns };  ///< [rows, cols], [rows], [cols]

/// Random elements, near to normally distributed. Each is a function of the problem's seed, the
/// stream and the element's index alone.
struct Random {
  int stream;
  float centre;
  float deviation;
};
struct Seeds {  ///< of a dropout, likewise
  int stream;
};
enum class Saved { Y, Mean, Rstd, Sum };  ///< what a perfect forward pass stores, rounded

/// A pointer among the arguments of a launch.
struct Slot {
  bool there = false;  ///< whether a pass in this direction has the tensor
  bool output = false;
  DType dtype = DType::F32;
  std::function<void(void*)> set = {};  ///< gives the pointer its value
};

/// A tensor, described.
struct TensorDescription {
  std::string_view name;
  Shape shape;
  std::variant<std::monostate, Random, Seeds, Saved> source;  ///< of an input's elements
  bool there;                                                 ///< whether the problem has it at all
  Slot forward, backward;
  Slot copy = {};
  RowStrides rows = {};  ///< of a matrix

  const Slot& slot(Direction direction) const {
    switch (direction) {
      case Direction::Copy:
        return copy;
      case Direction::Forward:
        return forward;
      case Direction::Backward:
        break;
    }
    return backward;
  }
  /// Whether a pass in this direction has it.
  bool in(Direction direction) const { return there && slot(direction).there; }
};

/// The arguments of a launch, in each direction.
template <typename T, typename W>
struct Arguments {
  CopyArgs<T, W> copy = {};
  ForwardArgs<T, W> forward = {};
  BackwardArgs<T, W> backward = {};
};

/// Every tensor that a pass may have, bound to the arguments of a launch.
/// @param from_y a backward pass that is given y in place of x and mean
template <typename T, typename W>
std::vector<TensorDescription> describe_tensors(const Problem& problem, bool from_y,
                                                Arguments<T, W>& arguments);

/// The same without arguments to bind them to.
std::vector<TensorDescription> describe_tensors(const Problem& problem, bool from_y);

std::int64_t elements(const Problem& problem, Shape shape);

/// The element of a matrix at which a row starts.
std::int64_t row_start(const Problem& problem, const RowStrides& rows, std::int64_t row);

/// The elements from a tensor's first to its last, with what lies between its rows.
std::int64_t span_elements(const Problem& problem, const TensorDescription& tensor);

/// The bytes that a pass must move, whatever the kernel: each matrix read or written once.
std::int64_t operator_bytes(const Problem& problem, Direction direction, bool from_y);

/// The bytes of the roof's kernel for this problem: backward a triad of x's size, else a copy.
std::int64_t roof_bytes(const Problem& problem, Direction direction);

/// Bytes of device memory that `chapter` needs for `problem`; a double, since a mistyped problem
/// may need more than 2^63.
double needed_device_bytes(const Chapter& chapter, const Problem& problem);

// --- Values --------------------------------------------------------------------------------------

/// A range of whole rows, [begin, begin + count).
struct RowRange {
  std::int64_t begin;
  std::int64_t count;
};

/// Elements [begin, begin + count) of a random input, as floats that are rounded to its type; empty
/// where the problem does not have it.
std::vector<float> random_elements(const Problem& problem, std::string_view name,
                                   std::int64_t begin, std::int64_t count);

/// The same as doubles, for the reference.
std::vector<double> reference_elements(const Problem& problem, std::string_view name,
                                       std::int64_t begin, std::int64_t count);
std::vector<double> reference_rows(const Problem& problem, std::string_view name, RowRange rows);

/// The dropout seeds of some rows: `name` is "seeds" or "seeds1"; empty where there are none.
std::vector<std::uint32_t> dropout_seeds(const Problem& problem, std::string_view name,
                                         RowRange rows);

/// The reference's name for a kind.
inline reference::Norm reference_norm(Kind kind) {
  return kind == Kind::Layer ? reference::Norm::Layer : reference::Norm::Rms;
}

/// What a forward pass has, fused or not, in some rows; and what it gives.
class ReferenceForward {
 public:
  /// @param absolute of every input the absolute value: then `sum` adds up the terms' magnitudes,
  /// unrounded
  ReferenceForward(const Problem& problem, RowRange rows, bool absolute = false);
  ReferenceForward(const ReferenceForward&) = delete;

  reference::FusedForwardInput in;
  reference::FusedForward run() const { return reference::fused_forward(in); }
  const std::deque<std::vector<double>>& values() const { return kept_; }  ///< that `in` refers to

 private:
  std::deque<std::vector<double>> kept_;  // spans into it stay
  std::vector<std::uint32_t> seeds_, seeds1_;
};

/// What a perfect forward pass stores of some rows: y, the sum of a fusion, mean and rstd, each
/// rounded to its type. mean is empty for Kind::Rms.
struct SavedForward {
  std::vector<double> y, sum, mean, rstd;
};
SavedForward saved_forward(const Problem& problem, RowRange rows);

/// Likewise a fused backward pass, from what a perfect forward pass has saved.
class ReferenceBackward {
 public:
  ReferenceBackward(const Problem& problem, RowRange rows);
  ReferenceBackward(const ReferenceBackward&) = delete;

  reference::FusedBackwardInput in;
  reference::FusedBackward run() const { return reference::fused_backward(in); }
  const std::deque<std::vector<double>>& values() const { return kept_; }  ///< that `in` refers to

 private:
  SavedForward saved_;
  std::deque<std::vector<double>> kept_;
  std::vector<std::uint32_t> seeds_, seeds1_;
};

/// Each value rounded to the nearest of the type's; exact for F32.
void round_to(DType dtype, std::span<float> values);

/// The function that rounds a number to a float, as a kernel has it, and that to the nearest of the
/// type's.
double (*rounding_to(DType dtype))(double);

}  // namespace lnc
