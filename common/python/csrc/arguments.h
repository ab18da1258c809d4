// What the operators are given, checked, and made ready for the kernels. A wrong argument raises
// TypeError, ValueError or RuntimeError, with a sentence that names it and says what it was.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>

#include <initializer_list>
#include <optional>
#include <utility>

#include "common/library/lnc.h"
#include "common/python/csrc/operators.h"

namespace layernorm_chapters {

/// Checks that x ends in `shape` and has a type that the kernels take. Works on symbols.
void check_rows(const char* name, const at::Tensor& x, c10::SymIntArrayRef shape);

/// Checks a weight or bias, where it is there: its shape, its device, and that it has floats.
void check_parameter(const char* name, const MaybeTensor& parameter, const at::Tensor& x,
                     c10::SymIntArrayRef shape);

/// Checks that `other`, where it is there, has x's shape and device, and one of these types.
void check_like(const char* name, const MaybeTensor& other, const at::Tensor& x,
                std::initializer_list<at::ScalarType> types);

/// Checks a tensor of one number for each row of x, where it is there.
void check_each_row(const char* name, const MaybeTensor& tensor, const at::Tensor& x,
                    const c10::SymInt& rows, at::ScalarType type);

/// Raises RuntimeError, with what to do, where x is not where the loaded library's tensors are.
void check_device(const at::Tensor& x);

/// x's rows, columns.
std::pair<c10::SymInt, c10::SymInt> rows_and_cols(const at::Tensor& x, c10::SymIntArrayRef shape);

/// The parameters of one norm as the kernels take them: all of one type, x's or float.
class Parameters {
 public:
  /// @param zero_centred the weights are what they differ from 1 by, and 1 is added in float
  Parameters(at::ScalarType row_type, bool zero_centred, std::initializer_list<MaybeTensor> all);

  at::Tensor weight(const MaybeTensor& given) const;
  at::Tensor bias(const MaybeTensor& given) const;
  at::ScalarType type() const { return type_; }

 private:
  at::ScalarType type_;
  bool zero_centred_;
};

/// A tensor of rows as the kernels take it: where its rows lie apart, as those of a part of a wider
/// tensor do, and in two dimensions at most, the tensor itself, and else a dense one.
class Rows {
 public:
  /// @param dims the dimensions that a row has
  /// @param may_lie_apart whether the kernels that will run take such rows
  Rows(const at::Tensor& given, std::size_t dims, bool may_lie_apart);

  void* pointer() const { return tensor_.data_ptr(); }
  /// Null where rows lie one behind another.
  const lnc_rows* where() const { return where_.has_value() ? &*where_ : nullptr; }

 private:
  at::Tensor tensor_;
  std::optional<lnc_rows> where_;
};

/// The tensor itself where its elements lie one behind another, else a copy of which that holds.
inline at::Tensor dense(const at::Tensor& tensor) {
  return !tensor.defined() || tensor.is_contiguous() ? tensor : tensor.contiguous();
}
inline at::Tensor dense(const MaybeTensor& tensor) { return dense(value(tensor)); }

}  // namespace layernorm_chapters
