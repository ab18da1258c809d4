// What a chapter is asked to solve, a problem, and what it is given, the arguments of a launch.
#pragma once

#include <driver_types.h>

#include <cstdint>
#include <stdexcept>
#include <string_view>
#include <type_traits>

#include "common/kernel/element_types.h"

namespace lnc {

struct Peers;  // common/kernel/peers.h

/// What a chapter's kernel does: it normalises rows, or computes the gradient of that; chapter zero
/// only copies.
enum class Direction { Copy, Forward, Backward };
enum class Kind { Layer, Rms };  ///< subtract the mean and divide by the deviation, or only scale

/// What of a problem each GPU has, if several share it: a slice of every row, or rows of its own.
enum class Split { None, Columns, Rows };

/// The type of the residual stream in a fused pass.
enum class Residual { None, Same, F32 };

/// What a fused forward pass does before and after the norm, in this order: x · rowscale, dropout,
/// + x1 (with a rowscale and a dropout of its own), + residual. That sum is rounded to the
/// residual's type and then normalised, whether or not it is stored. A fused backward pass is the
/// gradient of all that, from the rounded sum.
struct Fusion {
  bool rowscale = false;      ///< a float for each row of x, and of x1 if there is one
  float dropout = 0.0f;       ///< probability of dropping an element, 0 <= p < 1
  bool second_input = false;  ///< x1
  Residual residual = Residual::None;
  bool prenorm = false;        ///< the sum is also an output, in the residual's type
  bool second_affine = false;  ///< y1 from weight1 and bias1
  bool masks = false;          ///< the dropout masks are outputs too; a backward pass has none

  /// Whether x (and x1) are scaled or dropped before they reach the sum.
  bool changes_x() const { return rowscale || dropout > 0.0f; }

  friend bool operator==(const Fusion&, const Fusion&) = default;
};

/// Where the rows start in a matrix that is part of a wider tensor: `row_stride` elements apart, in
/// groups of `group_rows` rows that start `group_stride` elements apart. Row r starts at element
/// r / group_rows · group_stride + r % group_rows · row_stride.
struct RowStrides {
  bool apart = false;  ///< else rows are contiguous, and the other members are unused
  std::int64_t row_stride = 0;
  std::int64_t group_stride = 0;
  std::int64_t group_rows = 0;  ///< 0: all rows are one group
};

/// One problem: `rows x cols`, row-major, normalised over the columns.
struct Problem {
  Kind kind = Kind::Layer;
  DType dtype = DType::F32;  ///< of x, y, dy, dx, and of weight, bias, dweight, dbias if not mixed
  std::int64_t rows = 16 * 64;
  std::int64_t cols = 2048;
  float eps = 1e-5f;
  bool affine = true;         ///< weight and (layer norm) bias are given; else they are null
  bool mixed = false;         ///< weight, bias (and their gradients) are float, whatever dtype is
  float offset = 0.5f;        ///< the mean of x, whose deviation is 1
  float weight_scale = 1.0f;  ///< weights are random numbers around this
  int misalign = 0;           ///< elements by which tensors start past a 16-byte boundary
  int stagger = 0;            ///< elements added to misalign for each tensor after the first
  int row_gap = 0;            ///< elements between a row of x, or of dy, and the next
  int heads = 0;      ///< rows in a group, followed by a gap of `heads_gap` elements; 0 for none
  int heads_gap = 0;  ///< in q of a fused projection, the elements of k and v
  int group = 0;      ///< rows a block, buffers, …: see Chapter::group; 0 lets the chapter choose
  bool recompute_output = false;  ///< a backward pass writes y again
  bool frozen = false;            ///< the parameters' gradients are not requested: they are null
  /// A row's y, mean, rstd and dx depend on that row alone, bit for bit: not on the number of rows,
  /// nor on its own position among them, nor on where tensors start.
  bool batch_invariant = false;
  int gpus = 1;            ///< that share the problem, as Chapter::split says
  bool uneven = false;     ///< GPU r gets r + 1 parts; else all get as much, to within one part
  std::uint64_t seed = 1;  ///< of the random x, weight, bias, dy
  Fusion fusion = {};

  DType parameter_dtype() const { return mixed ? DType::F32 : dtype; }
  /// The type of the residual stream: the residual, the sum as stored, and their gradients.
  DType residual_dtype() const { return fusion.residual == Residual::F32 ? DType::F32 : dtype; }

  std::int64_t element_bytes() const { return element_type(dtype).bytes; }
  std::int64_t parameter_element_bytes() const { return element_type(parameter_dtype()).bytes; }
  std::int64_t residual_element_bytes() const { return element_type(residual_dtype()).bytes; }
  std::int64_t tensor_bytes() const { return rows * cols * element_bytes(); }
  /// Whether a row is a whole number of 16-byte vectors.
  bool has_whole_vectors() const { return cols * element_bytes() % 16 == 0; }
  /// Whether every row of every tensor starts and ends at a 16-byte boundary.
  bool aligned() const {
    const auto whole = [&](std::int64_t count) { return count * element_bytes() % 16 == 0; };
    return whole(misalign) && whole(stagger) && whole(cols) && whole(row_gap) && whole(heads_gap);
  }
  /// Whether every tensor starts at a 16-byte boundary, so that row m of each starts alike.
  bool has_same_alignment() const {
    return misalign * element_bytes() % 16 == 0 && stagger * element_bytes() % 16 == 0;
  }
  /// Whether there are gaps between the rows of x and dy.
  bool strided() const { return row_gap != 0 || (heads > 0 && heads_gap != 0); }
  /// Where these rows start.
  RowStrides row_strides() const {
    if (!strided()) return {};
    const std::int64_t row_stride = cols + row_gap;
    return {true, row_stride, heads * row_stride + heads_gap, heads};
  }

  /// Whether a fused backward pass writes dx1, dresidual. If nothing scales or drops x and the
  /// types are the same, each would equal dx bit for bit, and only dx is written.
  bool writes_dx1() const { return fusion.second_input && fusion.changes_x(); }
  bool writes_dresidual() const {
    return fusion.residual != Residual::None && (fusion.changes_x() || residual_dtype() != dtype);
  }

  friend bool operator==(const Problem&, const Problem&) = default;
};

/// The arguments of a copy of x to y, bit for bit. A copy needs only a problem's size and type, not
/// its row length or W.
template <typename T, typename W = T>
struct CopyArgs {
  const T* x;          ///< [count]
  T* y;                ///< [count]
  std::int64_t count;  ///< elements: rows · cols
  cudaStream_t stream;
};

/// The additional arguments of a fused forward launch; null for an absent part. T is the type of x,
/// W of the parameters.
template <typename T, typename W>
struct FusedForward {
  const float* rowscale;        ///< [rows]
  const std::uint32_t* seeds;   ///< [rows], of the dropout; null for none
  const T* x1;                  ///< [rows, cols]
  const float* rowscale1;       ///< [rows], of x1
  const std::uint32_t* seeds1;  ///< [rows], of x1
  const void* residual;         ///< [rows, cols] of float where residual_is_float, else of T
  void* residual_out;           ///< [rows, cols], the sum that is normalised, of the same type
  const W* weight1;             ///< [cols]
  const W* bias1;               ///< [cols]
  T* y1;                        ///< [rows, cols], of weight1 and bias1
  std::uint8_t* mask;           ///< [rows, cols], 1 where x was kept
  std::uint8_t* mask1;          ///< [rows, cols], 1 where x1 was kept
  float dropout;                ///< the probability of dropping an element
  bool residual_is_float;
};

/// The arguments of a forward launch: device pointers, row-major; all but x contiguous.
template <typename T, typename W = T>
struct ForwardArgs {
  const T* x;       ///< [rows, cols]
  const W* weight;  ///< [cols], or null for 1
  const W* bias;    ///< [cols], or null for 0; always null for Kind::Rms
  T* y;             ///< [rows, cols]
  float* mean;      ///< [rows]; null for Kind::Rms
  float* rstd;      ///< [rows]; 1 / sqrt(variance + eps), for Kind::Rms 1 / sqrt(mean square + eps)
  std::int64_t rows;
  std::int64_t cols;
  float eps;
  int group;  ///< Problem::group
  Kind kind;
  void* workspace;  ///< of Chapter::workspace_bytes, uninitialised
  cudaStream_t stream;
  FusedForward<T, W> fused;
  RowStrides x_rows;     ///< of x; `apart` only for Chapter::takes_strides
  bool batch_invariant;  ///< Problem::batch_invariant
  const Peers* peers;    ///< in host memory; null unless Chapter::split
};

/// The additional arguments of a fused backward launch; null for an absent part, and all null in a
/// plain pass. The rowscales have no gradient.
template <typename T, typename W>
struct FusedBackward {
  const T* dy1;                 ///< [rows, cols], the gradient of y1
  const void* residual_out;     ///< [rows, cols], the sum as the forward pass stored it, of float
                                ///< where residual_is_float, else of T; never null if fused
  const void* dresidual_out;    ///< [rows, cols], its gradient that bypasses the norm, same type
  const W* weight1;             ///< [cols], or null for 1
  const float* rowscale;        ///< [rows]
  const std::uint32_t* seeds;   ///< [rows], of the dropout, as in the forward pass
  const float* rowscale1;       ///< [rows], of x1
  const std::uint32_t* seeds1;  ///< [rows], of x1
  T* dx1;                       ///< [rows, cols]; also null where it equals dx (writes_dx1)
  void* dresidual;              ///< [rows, cols], the gradient of the whole sum, in the type of
                                ///< residual_out; also null where it equals dx (writes_dresidual)
  W* dweight1;                  ///< [cols]
  W* dbias1;                    ///< [cols]; null for Kind::Rms
  float dropout;                ///< the probability of dropping an element
  bool residual_is_float;
};

/// The arguments of a backward launch. Every output is overwritten, never accumulated into.
template <typename T, typename W = T>
struct BackwardArgs {
  const T* dy;        ///< [rows, cols]
  const T* x;         ///< [rows, cols]; null for Chapter::from_y, and in a fused pass, which has
                      ///< fused.residual_out
  const T* y;         ///< [rows, cols], as the forward pass wrote it; null unless Chapter::from_y
  const W* weight;    ///< [cols], or null for 1
  const float* mean;  ///< [rows], from the forward pass; null for Kind::Rms and Chapter::from_y
  const float* rstd;  ///< [rows], from the forward pass
  const W* bias;      ///< [cols], or null for 0; read only if y is needed
  T* dx;              ///< [rows, cols]
  W* dweight;         ///< [cols]; summed over the rows in float, rounded once; null where
                      ///< Problem::frozen, as are all gradients of parameters
  W* dbias;           ///< [cols], summed the same way; also null for Kind::Rms
  T* y_again;         ///< [rows, cols], y recomputed; null where not asked for
  std::int64_t rows;
  std::int64_t cols;
  float eps;  ///< of the forward pass; already part of rstd
  int group;  ///< Problem::group
  Kind kind;
  void* workspace;
  cudaStream_t stream;
  FusedBackward<T, W> fused;
  RowStrides x_rows;   ///< of x; `apart` only for Chapter::takes_strides
  RowStrides dy_rows;  ///< of dy; the same
  const Peers* peers;  ///< in host memory; null unless Chapter::split
};

/// The arguments of a launch that follow from the problem; all pointers are null.
template <typename Args>
Args arguments_of(const Problem& problem) {
  Args args = {};
  args.rows = problem.rows;
  args.cols = problem.cols;
  args.eps = problem.eps;
  args.group = problem.group;
  args.kind = problem.kind;
  args.fused.dropout = problem.fusion.dropout;
  args.fused.residual_is_float = problem.residual_dtype() == DType::F32;
  args.x_rows = problem.row_strides();
  if constexpr (requires { args.dy; }) {
    args.dy_rows = problem.row_strides();
  } else {
    args.batch_invariant = problem.batch_invariant;
  }
  return args;
}

/// A chapter's host function for each pair of types; null for one that it does not take. In a
/// registration: {run<float>, run<__half>, run<__nv_bfloat16>}, or every() where it takes mixed
/// types too.
template <template <typename, typename> typename Args>
struct Launchers {
#define LNC_MEMBER(name, T, W) void (*name)(const Args<T, W>&) = nullptr;
  LNC_TYPE_PAIRS(LNC_MEMBER)
#undef LNC_MEMBER

  /// Takes every pair: every([](const auto& args) { run(args); }).
  template <typename Run>
  static Launchers every(Run run) {
    Launchers launchers;
#define LNC_SET(name, T, W) launchers.name = run;
    LNC_TYPE_PAIRS(LNC_SET)
#undef LNC_SET
    return launchers;
  }
  template <typename T, typename W>
  auto get() const {
#define LNC_GET(name, T1, W1) \
  if constexpr (std::is_same_v<T, T1> && std::is_same_v<W, W1>) return name;
    LNC_TYPE_PAIRS(LNC_GET)
#undef LNC_GET
  }
};
using CopyLaunchers = Launchers<CopyArgs>;
using ForwardLaunchers = Launchers<ForwardArgs>;
using BackwardLaunchers = Launchers<BackwardArgs>;

/// Calls `body.template operator()<T, W>()` with the types of x and of the parameters.
template <typename Body>
auto with_types(const Problem& problem, Body&& body) {
#define LNC_CALL(name, T, W)                              \
  if (problem.dtype == kElementType<T>.dtype &&           \
      problem.parameter_dtype() == kElementType<W>.dtype) \
    return body.template operator()<T, W>();
  LNC_TYPE_PAIRS(LNC_CALL)
#undef LNC_CALL
  throw std::logic_error("no chapter is compiled for this pair of types");
}

/// As records and the command line spell them.
constexpr std::string_view name(Direction direction) {
  switch (direction) {
    case Direction::Copy:
      return "copy";
    case Direction::Forward:
      return "forward";
    case Direction::Backward:
      break;
  }
  return "backward";
}
constexpr std::string_view name(Kind kind) { return kind == Kind::Layer ? "layer" : "rms"; }
inline std::string_view name(DType dtype) { return element_type(dtype).name; }

}  // namespace lnc
