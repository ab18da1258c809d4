// A pass's tensors in device memory: random inputs, outputs, and several copies of the inputs for
// the stopwatch, all derived from the list in tensor_descriptions.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/harness/device.h"
#include "common/harness/tensor_descriptions.h"
#include "common/harness/values.h"

namespace lnc {

/// Bytes of host memory that the reference and the check need: a few rows of doubles per thread.
double needed_host_bytes(const Problem& problem);

/// Whether two chapters take the same inputs, so that they can share tensors.
inline bool share_inputs(const Chapter& a, const Chapter& b) {
  return a.direction() == b.direction() && a.from_y == b.from_y;
}

/// A tensor in device memory. It may start past a 16-byte boundary, as Problem::misalign and
/// Problem::stagger say.
class Tensor {
 public:
  /// @param number how many tensors subject to Problem::stagger come before it
  Tensor(TensorDescription description, Direction direction, const Problem& problem, int number);

  std::string_view name() const { return description_.name; }
  bool there() const { return there_; }  ///< whether the pass has it; it may have no elements
  Shape shape() const { return description_.shape; }
  const auto& source() const { return description_.source; }
  bool is_output() const { return slot_.output; }
  /// Whether its elements are those that a perfect forward pass stores.
  bool stores(Saved what) const {
    const auto* saved = std::get_if<Saved>(&description_.source);
    return saved != nullptr && *saved == what;
  }
  DType dtype() const { return slot_.dtype; }
  std::int64_t count() const { return count_; }  ///< of elements
  const RowStrides& rows() const { return description_.rows; }
  /// From its first element to its last, including the gaps between the rows of an input.
  std::int64_t bytes() const { return span_ * element_type(slot_.dtype).bytes; }
  /// Null if the pass has no such tensor or the tensor has no elements.
  std::byte* data() const { return count_ == 0 ? nullptr : buffer_.as<std::byte>() + offset_; }
  const Buffer& buffer() const { return buffer_; }
  int number() const { return number_; }

 private:
  TensorDescription description_;
  Slot slot_;
  int number_;
  bool there_;
  std::int64_t count_;
  std::int64_t span_;    // in elements
  std::int64_t offset_;  // in bytes
  Buffer buffer_;
};

/// The tensors of one pass. Its inputs hold random numbers; its outputs are poisoned.
class Tensors {
 public:
  /// @param from_y the inputs of a backward pass hold y instead of x and mean
  /// @param copies of the inputs, for launches to use in turn; fewer if memory does not suffice
  Tensors(const Problem& problem, Direction direction, bool from_y = false, int copies = 1)
      : Tensors(problem, direction, from_y, copies, {0, problem.rows}) {}
  Tensors(const Problem& problem, const Chapter& chapter, int copies = 1)
      : Tensors(problem, chapter.direction(), chapter.from_y, copies) {}
  /// Only `rows` hold random numbers or are poisoned. On the CPU backend all other rows are 0, and
  /// take up no memory until a kernel writes to them.
  Tensors(const Problem& problem, const Chapter& chapter, RowRange rows)
      : Tensors(problem, chapter.direction(), chapter.from_y, 1, rows) {}

  const Problem& problem() const { return problem_; }
  RowRange rows() const { return rows_; }  ///< that are there, and checked
  bool are_whole() const { return rows_.count == problem_.rows; }
  Direction direction() const { return direction_; }
  bool from_y() const { return from_y_; }
  int copies() const { return 1 + static_cast<int>(more_inputs_.size()); }

  const std::vector<Tensor>& all() const { return tensors_; }
  /// A tensor by its name; null if the pass does not have it.
  const Tensor* find(std::string_view name) const;
  /// Its address in device memory, or null. @param copy of an input, below copies()
  std::byte* data(std::string_view name, int copy = 0) const;

  void poison_outputs() const;
  /// The current contents of the outputs, by name.
  std::vector<std::pair<std::string, std::vector<std::byte>>> outputs() const;
  /// Writes every input and output as DIRECTORY/<name>.npy, for NumPy; bfloat16 as its 16 bits.
  /// @throws std::runtime_error if a file cannot be written
  void dump(const std::string& directory) const;

 private:
  Tensors(const Problem& problem, Direction direction, bool from_y, int copies, RowRange rows);
  void poison(const Tensor& tensor) const;
  void fill(RowRange rows) const;
  void copy_inputs(int copies);

  Problem problem_;
  RowRange rows_;
  Direction direction_;
  bool from_y_;
  std::vector<Tensor> tensors_;
  std::vector<std::vector<Tensor>> more_inputs_;
};

/// The arguments of a launch on these tensors.
template <typename T, typename W>
CopyArgs<T, W> copy_args(const Tensors& tensors, int copy = 0);
template <typename T, typename W>
ForwardArgs<T, W> forward_args(const Tensors& tensors, void* workspace = nullptr, int copy = 0);
template <typename T, typename W>
BackwardArgs<T, W> backward_args(const Tensors& tensors, void* workspace = nullptr, int copy = 0);

}  // namespace lnc
