#include "common/harness/tensor_descriptions.h"

#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

namespace lnc {
namespace {

/// Describes a pointer among the arguments: an input if it points to const. `dtype` is the element
/// type of a void*.
template <typename P>
Slot slot(P*& pointer, bool there = true, DType dtype = DType::F32) {
  using Element = std::remove_const_t<P>;
  Slot slot{.there = there, .output = !std::is_const_v<P>, .dtype = dtype};
  if constexpr (!std::is_void_v<Element>) slot.dtype = kElementType<Element>.dtype;
  slot.set = [&pointer](void* value) { pointer = static_cast<P*>(value); };
  return slot;
}

}  // namespace

template <typename T, typename W>
std::vector<TensorDescription> describe_tensors(const Problem& p, bool from_y,
                                                Arguments<T, W>& arguments) {
  auto& [c, f, b] = arguments;
  constexpr Shape kMatrix = Shape::Matrix, kRows = Shape::Rows, kColumns = Shape::Columns;
  const Fusion& fusion = p.fusion;
  const DType stream = p.residual_dtype();
  const bool layer = p.kind == Kind::Layer;
  const bool from_sum = fusion != Fusion{};  // fused backward passes get the sum instead of x
  const bool dropout = fusion.dropout > 0.0f;
  const bool second_bias = fusion.second_affine && layer;
  const bool trains = !p.frozen;
  const bool rowscale1 = fusion.rowscale && fusion.second_input;
  const Random weights{1, p.weight_scale, 0.25f * p.weight_scale};
  const Random weights1{8, p.weight_scale, 0.25f * p.weight_scale};
  const Slot none;
  const Slot y_of_backward = from_y ? slot(b.y) : slot(b.y_again, p.recompute_output);
  return {
      {"x", kMatrix, Random{0, p.offset, 1}, true, slot(f.x), slot(b.x, !from_y && !from_sum),
       slot(c.x), p.row_strides()},
      {"weight", kColumns, weights, p.affine, slot(f.weight), slot(b.weight)},
      {"bias", kColumns, Random{2, 0, 0.25f}, p.affine && layer, slot(f.bias), slot(b.bias)},
      {"dy", kMatrix, Random{3, 0, 1}, true, none, slot(b.dy), none, p.row_strides()},
      {"y", kMatrix, Saved::Y, true, slot(f.y), y_of_backward, slot(c.y)},
      {"mean", kRows, Saved::Mean, layer, slot(f.mean), slot(b.mean, !from_y)},
      {"rstd", kRows, Saved::Rstd, true, slot(f.rstd), slot(b.rstd)},
      {"dx", kMatrix, {}, true, none, slot(b.dx)},
      {"dweight", kColumns, {}, trains, none, slot(b.dweight)},
      {"dbias", kColumns, {}, trains && layer, none, slot(b.dbias)},
      // A fusion: residual_out = dropout(x · rowscale) + dropout(x1 · rowscale1) + residual.
      {"rowscale", kRows, Random{6, 1, 0.25f}, fusion.rowscale, slot(f.fused.rowscale),
       slot(b.fused.rowscale)},
      {"seeds", kRows, Seeds{14}, dropout, slot(f.fused.seeds), slot(b.fused.seeds)},
      {"x1", kMatrix, Random{4, 0, 1}, fusion.second_input, slot(f.fused.x1), none},
      {"rowscale1", kRows, Random{7, 1, 0.25f}, rowscale1, slot(f.fused.rowscale1),
       slot(b.fused.rowscale1)},
      {"seeds1", kRows, Seeds{15}, dropout && fusion.second_input, slot(f.fused.seeds1),
       slot(b.fused.seeds1)},
      {"residual", kMatrix, Random{5, 0, 1}, fusion.residual != Residual::None,
       slot(f.fused.residual, true, stream), none},
      {"residual_out", kMatrix, Saved::Sum, true,
       slot(f.fused.residual_out, fusion.prenorm, stream),
       slot(b.fused.residual_out, from_sum, stream)},
      {"dresidual_out", kMatrix, Random{11, 0, 1}, fusion.prenorm, none,
       slot(b.fused.dresidual_out, true, stream)},
      {"weight1", kColumns, weights1, fusion.second_affine, slot(f.fused.weight1),
       slot(b.fused.weight1)},
      {"bias1", kColumns, Random{9, 0, 0.25f}, second_bias, slot(f.fused.bias1), none},
      {"y1", kMatrix, {}, fusion.second_affine, slot(f.fused.y1), none},
      {"dy1", kMatrix, Random{10, 0, 1}, fusion.second_affine, none, slot(b.fused.dy1)},
      {"mask", kMatrix, {}, dropout && fusion.masks, slot(f.fused.mask), none},
      {"mask1",
       kMatrix,
       {},
       dropout && fusion.masks && fusion.second_input,
       slot(f.fused.mask1),
       none},
      {"dx1", kMatrix, {}, p.writes_dx1(), none, slot(b.fused.dx1)},
      {"dresidual", kMatrix, {}, p.writes_dresidual(), none, slot(b.fused.dresidual, true, stream)},
      {"dweight1", kColumns, {}, trains && fusion.second_affine, none, slot(b.fused.dweight1)},
      {"dbias1", kColumns, {}, trains && second_bias, none, slot(b.fused.dbias1)},
  };
}

// --- The code below uses the list above and knows no tensor by name.

std::vector<TensorDescription> describe_tensors(const Problem& problem, bool from_y) {
  return with_types(problem, [&]<typename T, typename W>() {
    Arguments<T, W> arguments;
    auto all = describe_tensors<T, W>(problem, from_y, arguments);
    for (TensorDescription& tensor : all) {  // the arguments go out of scope
      tensor.copy.set = nullptr;
      tensor.forward.set = nullptr;
      tensor.backward.set = nullptr;
    }
    return all;
  });
}

std::int64_t elements(const Problem& problem, Shape shape) {
  if (shape == Shape::Matrix) return problem.rows * problem.cols;
  return shape == Shape::Rows ? problem.rows : problem.cols;
}

std::int64_t row_start(const Problem& problem, const RowStrides& rows, std::int64_t row) {
  if (!rows.apart) return row * problem.cols;
  if (rows.group_rows == 0) return row * rows.row_stride;
  return row / rows.group_rows * rows.group_stride + row % rows.group_rows * rows.row_stride;
}

std::int64_t span_elements(const Problem& problem, const TensorDescription& tensor) {
  if (!tensor.rows.apart || problem.rows == 0) return elements(problem, tensor.shape);
  return row_start(problem, tensor.rows, problem.rows - 1) + problem.cols;
}

std::int64_t operator_bytes(const Problem& problem, Direction direction, bool from_y) {
  std::int64_t bytes = 0;
  for (const TensorDescription& tensor : describe_tensors(problem, from_y))
    if (tensor.in(direction) && tensor.shape == Shape::Matrix)
      bytes += elements(problem, tensor.shape) * element_type(tensor.slot(direction).dtype).bytes;
  return bytes;
}

std::int64_t roof_bytes(const Problem& problem, Direction direction) {
  return (direction == Direction::Backward ? 3 : 2) * problem.tensor_bytes();
}

double needed_device_bytes(const Chapter& chapter, const Problem& problem) {
  const auto rows = static_cast<double>(problem.rows);
  const auto cols = static_cast<double>(problem.cols);
  const double groups = problem.heads > 0 ? rows / problem.heads : 0.0;
  const double between_rows = rows * problem.row_gap + groups * problem.heads_gap;
  double bytes = 0.0;
  for (const TensorDescription& tensor : describe_tensors(problem, chapter.from_y)) {
    if (!tensor.in(chapter.direction())) continue;
    double count = tensor.shape == Shape::Rows ? rows : cols;
    if (tensor.shape == Shape::Matrix) count = rows * cols;
    if (tensor.rows.apart) count += between_rows;
    bytes += count * element_type(tensor.slot(chapter.direction()).dtype).bytes;
  }
  if (chapter.workspace_bytes != nullptr)
    bytes += static_cast<double>(chapter.workspace_bytes(problem));
  return bytes;
}

TensorDescription find_tensor(const Problem& problem, std::string_view name) {
  for (TensorDescription& tensor : describe_tensors(problem, false))
    if (tensor.name == name) return std::move(tensor);
  throw std::logic_error("there is no tensor '" + std::string(name) + "'");
}

#define LNC_INSTANTIATE(name, T, W)                                                    \
  template std::vector<TensorDescription> describe_tensors<T, W>(const Problem&, bool, \
                                                                 Arguments<T, W>&);
LNC_TYPE_PAIRS(LNC_INSTANTIATE)
#undef LNC_INSTANTIATE

}  // namespace lnc
