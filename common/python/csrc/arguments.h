// Checks the operators' arguments and prepares them for the kernels. A wrong argument raises
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

/// Checks that x's shape ends in `shape` and that the kernels take its type. Works on symbols.
void check_rows(const char* name, const at::Tensor& x, c10::SymIntArrayRef shape);

/// Checks a weight or bias, if given: its shape, its device, and that its type is a floating one.
void check_parameter(const char* name, const MaybeTensor& parameter, const at::Tensor& x,
                     c10::SymIntArrayRef shape);

/// Checks that `other`, if given, has x's shape and device, and one of these types.
void check_like(const char* name, const MaybeTensor& other, const at::Tensor& x,
                std::initializer_list<at::ScalarType> types);

/// Checks that a tensor, if given, has `rows` numbers of this type, on x's device.
void check_each_row(const char* name, const MaybeTensor& tensor, const at::Tensor& x,
                    const c10::SymInt& rows, at::ScalarType type);

/// Raises RuntimeError, with a remedy, unless x is on the device type of the loaded library.
void check_device(const at::Tensor& x);

/// The numbers of x's rows and columns.
std::pair<c10::SymInt, c10::SymInt> rows_and_cols(const at::Tensor& x, c10::SymIntArrayRef shape);

/// Parameters of a norm in the form that kernels take: all of one type, x's or float.
class Parameters {
 public:
  /// @param zero_centred whether the weights are stored less 1; then 1 is added in float
  Parameters(at::ScalarType row_type, bool zero_centred, std::initializer_list<MaybeTensor> all);

  at::Tensor weight(const MaybeTensor& given) const;
  at::Tensor bias(const MaybeTensor& given) const;
  at::ScalarType type() const { return type_; }

 private:
  at::ScalarType type_;
  bool zero_centred_;
};

/// A tensor of rows in the form that kernels take: the tensor itself if it is dense, or if its rows
/// are strided in at most two dimensions, like a slice of a wider tensor; otherwise a dense copy.
class Rows {
 public:
  /// @param dims the number of dimensions of a row
  /// @param may_lie_apart whether the kernels that will run take strided rows
  Rows(const at::Tensor& given, std::size_t dims, bool may_lie_apart);

  void* pointer() const { return tensor_.data_ptr(); }
  /// Null if the rows are contiguous.
  const lnc_rows* where() const { return where_.has_value() ? &*where_ : nullptr; }

 private:
  at::Tensor tensor_;
  std::optional<lnc_rows> where_;
};

/// The tensor itself if it is contiguous, otherwise a contiguous copy.
inline at::Tensor dense(const at::Tensor& tensor) {
  return !tensor.defined() || tensor.is_contiguous() ? tensor : tensor.contiguous();
}
inline at::Tensor dense(const MaybeTensor& tensor) { return dense(value(tensor)); }

}  // namespace layernorm_chapters
