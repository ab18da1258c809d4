// Where the rows of an input start: the only code that knows about strides. lib_fwd_registers,
// lib_fwd_narrow, lib_bwd_any, lib_bwd_narrow and lib_bwd_ring take inputs that are part of a wider
// tensor, such as q and k in the output of a fused projection. They are compiled once for
// contiguous rows and once for strided ones, so that contiguous rows pay nothing for strides.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "common/kernel/contract.h"
#include "common/kernel/launch.h"
#include "common/kernel/vector.h"

namespace lnc {

/// Contiguous rows.
struct DenseRows {
  /// The element at which a row starts.
  template <typename Cols>
  __device__ std::int64_t start(std::int64_t row, Cols cols) const {
    return row * cols;
  }
};

/// Division of numbers below 2^31 by a divisor known before the launch: a multiplication, an
/// addition and a shift, where a GPU's own division takes dozens of instructions.
///
/// Granlund, Montgomery 1994, "Division by invariant integers using multiplication", figure 4.1.
class Divisor {
 public:
  /// @param divisor from 1 to 2^31 - 1
  explicit Divisor(std::uint32_t divisor)
      : divisor_(divisor),
        shift_(std::bit_width(divisor - 1)),
        multiplier_(static_cast<std::uint32_t>(
            (((std::uint64_t{1} << shift_) - divisor) << 32) / divisor + 1)) {}

  __host__ __device__ std::uint32_t quotient(std::uint32_t number) const {
    const std::uint64_t product = std::uint64_t{number} * multiplier_;
    return (static_cast<std::uint32_t>(product >> 32) + number) >> shift_;
  }
  __host__ __device__ std::uint32_t remainder(std::uint32_t number) const {
    return number - quotient(number) * divisor_;
  }

 private:
  std::uint32_t divisor_;
  int shift_;
  std::uint32_t multiplier_;
};

/// Strided rows, as RowStrides describes them; fewer than 2^31.
class StridedRows {
 public:
  explicit StridedRows(const RowStrides& strides)
      : row_stride_(strides.row_stride),
        group_stride_(strides.group_stride),
        group_(strides.group_rows > 0 ? static_cast<std::uint32_t>(strides.group_rows)
                                      : std::numeric_limits<std::int32_t>::max()) {}

  /// The element at which a row starts.
  __host__ __device__ std::int64_t start(std::int64_t row, std::int64_t = 0) const {
    const auto number = static_cast<std::uint32_t>(row);
    return group_.quotient(number) * group_stride_ + group_.remainder(number) * row_stride_;
  }

 private:
  std::int64_t row_stride_;
  std::int64_t group_stride_;
  Divisor group_;
};

/// The rows of a backward pass's two inputs, both of the same type.
template <typename Rows>
struct InputRows {
  Rows x, dy;
};

/// Calls `body` with the rows of x.
template <typename T, typename W, typename Body>
void with_rows(const ForwardArgs<T, W>& a, const Body& body) {
  if (a.x_rows.apart) {
    body(StridedRows(a.x_rows));
  } else {
    body(DenseRows{});
  }
}

/// Calls `body` with the InputRows of x and dy.
template <typename T, typename W, typename Body>
void with_rows(const BackwardArgs<T, W>& a, const Body& body) {
  if (!a.x_rows.apart && !a.dy_rows.apart) return body(InputRows<DenseRows>{});
  const RowStrides dense{.apart = true, .row_stride = a.cols};
  body(InputRows<StridedRows>{StridedRows(a.x_rows.apart ? a.x_rows : dense),
                              StridedRows(a.dy_rows.apart ? a.dy_rows : dense)});
}

/// Whether each row starts a whole number of 16-byte vectors after the first.
template <typename T>
bool rows_of_vectors(const RowStrides& rows) {
  constexpr int kElements = 16 / static_cast<int>(sizeof(T));
  return !rows.apart || (rows.row_stride % kElements == 0 && rows.group_stride % kElements == 0);
}

/// Whether every row and parameter, and every tensor of `others`, consists of whole vectors that
/// start at 16-byte boundaries.
template <typename T, typename W, typename... Others>
bool in_whole_vectors(const ForwardArgs<T, W>& a, const Others*... others) {
  return a.cols % kVectorElements<T> == 0 && rows_of_vectors<T>(a.x_rows) &&
         at_16_bytes(a.x, a.y, a.weight, a.bias, others...);
}

}  // namespace lnc
