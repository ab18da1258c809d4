// The tensors of a problem. Each is described once, in the list in tensor_descriptions.cpp, from
// which allocation, checks, byte counts and dumps are derived.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <variant>
#include <vector>

#include "common/kernel/description.h"

namespace lnc {

enum class Shape { Matrix, Rows, Columns };  ///< [rows, cols], [rows], [cols]

/// Random elements, nearly normally distributed. Each depends only on the problem's seed, the
/// stream and the element's index.
struct Random {
  int stream;
  float centre;
  float deviation;
};
struct Seeds {  ///< dropout seeds: random bits, generated in the same way
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

struct TensorDescription {
  std::string_view name;
  Shape shape;
  std::variant<std::monostate, Random, Seeds, Saved> source;  ///< of an input's elements
  bool there;                                                 ///< whether the problem has it
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
/// @param from_y whether a backward pass gets y instead of x and mean
template <typename T, typename W>
std::vector<TensorDescription> describe_tensors(const Problem& problem, bool from_y,
                                                Arguments<T, W>& arguments);

/// The same, not bound to any arguments.
std::vector<TensorDescription> describe_tensors(const Problem& problem, bool from_y);

/// The description of one tensor, for passes from x.
/// @throws std::logic_error if there is no such tensor
TensorDescription find_tensor(const Problem& problem, std::string_view name);

std::int64_t elements(const Problem& problem, Shape shape);

/// The element of a matrix at which a row starts.
std::int64_t row_start(const Problem& problem, const RowStrides& rows, std::int64_t row);

/// The number of elements from a tensor's first to its last, including the gaps between its rows.
std::int64_t span_elements(const Problem& problem, const TensorDescription& tensor);

/// The bytes that a pass must move, whatever the kernel: each matrix read or written once.
std::int64_t operator_bytes(const Problem& problem, Direction direction, bool from_y);

/// The bytes that the roof's kernel moves for this problem: a triad of x's size for a backward
/// pass, a copy for any other.
std::int64_t roof_bytes(const Problem& problem, Direction direction);

/// Bytes of device memory that `chapter` needs for `problem`; a double, because a mistyped size
/// may need more than 2^63.
double needed_device_bytes(const Chapter& chapter, const Problem& problem);

}  // namespace lnc
