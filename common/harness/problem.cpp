#include "common/harness/problem.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

namespace lnc {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLargestFloat = std::numeric_limits<float>::max();
constexpr double kMostWhole = 9007199254740992.0;  // 2^53: beyond, a JSON number loses digits
constexpr Range kAnyFloat = {-kLargestFloat, kLargestFloat, "a number that a float can hold"};

}  // namespace

// --- Options -------------------------------------------------------------------------------------

std::vector<Option> options(Problem& p) {
  Fusion& f = p.fusion;
  return {
      {"rows",
       &p.rows,
       "M",
       "rows to normalise, M",
       {0, kMostWhole, "a whole number of at least 0 and at most 9007199254740992"}},
      {"cols",
       &p.cols,
       "N",
       "columns that each row is normalised over, N",
       {1, kMostWhole, "a whole number of at least 1 and at most 9007199254740992"}},
      {"dtype", &p.dtype, "TYPE", "f32, f16 or bf16: the type of x, y, dy, dx, weight, bias"},
      {"kind", &p.kind, "KIND", "layer (mean and deviation) or rms (root mean square)"},
      {"mixed", &p.mixed, "", "float weight and bias beside f16 or bf16 x"},
      {"offset", &p.offset, "MEAN", "mean of x, whose deviation is 1", kAnyFloat},
      {"affine", &p.affine, "", "weight and bias: they are null"},
      {"weight_scale", &p.weight_scale, "SCALE", "the weights are random about SCALE", kAnyFloat},
      {"eps",
       &p.eps,
       "EPS",
       "added to the variance",
       {0, kLargestFloat, "a number above 0 that a float can hold", true}},
      {"seed",
       &p.seed,
       "SEED",
       "of the random inputs",
       {0, kMostWhole, "a whole number of at least 0 and at most 9007199254740992"}},
      {"misalign",
       &p.misalign,
       "ELEMENTS",
       "elements by which tensors start past a 16-byte boundary",
       {0, 1024, "a whole number of at least 0 and at most 1024"}},
      {"stagger",
       &p.stagger,
       "ELEMENTS",
       "elements by which each tensor starts further past a 16-byte boundary than the one before",
       {0, 1024, "a whole number of at least 0 and at most 1024"}},
      {"row_gap",
       &p.row_gap,
       "ELEMENTS",
       "elements that lie between a row of x, or of dy, and the next",
       {0, 1 << 20, "a whole number of at least 0 and at most 1048576"}},
      {"heads",
       &p.heads,
       "COUNT",
       "rows of x and dy in a group, as of a fused projection's q",
       {0, 1 << 20, "a whole number of at least 0 and at most 1048576"}},
      {"heads_gap",
       &p.heads_gap,
       "ELEMENTS",
       "elements that lie between such a group and the next, as k and v do",
       {0, 1 << 24, "a whole number of at least 0 and at most 16777216"}},
      {"group",
       &p.group,
       "COUNT",
       "how a chapter cuts its work, in what it counts (rows a block, buffers, ...); 0: its choice",
       {0, 1 << 20, "a whole number of at least 0 and at most 1048576"}},
      {"recompute_output", &p.recompute_output, "",
       "a backward pass that can writes y again, for recomputation"},
      {"frozen", &p.frozen, "",
       "weight and bias are frozen: a backward pass that can leaves out their gradients"},
      {"batch_invariant", &p.batch_invariant, "",
       "a row's bits depend on that row alone, wherever it starts and however many there are"},
      {"rowscale", &f.rowscale, "", "x (and x1) times a number for each row", {}, true},
      {"dropout",
       &f.dropout,
       "P",
       "drop elements of x (and x1) with probability P, Philox by seed and column",
       {0, 1, "at least 0 and below 1", false, true},
       true},
      {"second_input", &f.second_input, "", "a second input x1, added to x", {}, true},
      {"second_affine", &f.second_affine, "", "a second output y1 with weight1, bias1", {}, true},
      {"residual",
       &f.residual,
       "TYPE",
       "add a residual of the type of x (same) or of float (f32)",
       {},
       true},
      {"prenorm",
       &f.prenorm,
       "",
       "write the sum that is normalised, too; backward, take in its gradient",
       {},
       true},
  };
}

// --- Tensors -------------------------------------------------------------------------------------

namespace {

/// A pointer of the arguments: an input where it points to const. A void* has the type `dtype`.
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
  const bool from_sum = fusion != Fusion{};  // a fused backward pass has the sum in place of x
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
      // A fusion's: x · rowscale, dropout, + x1 (likewise), + residual = the sum, residual_out.
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

ReferenceForward::ReferenceForward(const Problem& problem, RowRange rows, bool absolute)
    : seeds_(dropout_seeds(problem, "seeds", rows)),
      seeds1_(dropout_seeds(problem, "seeds1", rows)) {
  const auto of = [&](std::string_view name) -> const std::vector<double>& {
    auto& values = kept_.emplace_back(reference_rows(problem, name, rows));
    if (absolute)
      for (double& value : values) value = std::abs(value);
    return values;
  };
  in = {.norm = reference_norm(problem.kind),
        .rows = rows.count,
        .cols = problem.cols,
        .x = of("x"),
        .rowscale = of("rowscale"),
        .x1 = of("x1"),
        .rowscale1 = of("rowscale1"),
        .residual = of("residual"),
        .weight = of("weight"),
        .bias = of("bias"),
        .weight1 = of("weight1"),
        .bias1 = of("bias1"),
        .eps = problem.eps,
        .rounded = absolute ? nullptr : rounding_to(problem.residual_dtype()),
        .dropout = problem.fusion.dropout,
        .seeds = seeds_,
        .seeds1 = seeds1_};
}

ReferenceBackward::ReferenceBackward(const Problem& problem, RowRange rows)
    : saved_(saved_forward(problem, rows)),
      seeds_(dropout_seeds(problem, "seeds", rows)),
      seeds1_(dropout_seeds(problem, "seeds1", rows)) {
  const auto of = [&](std::string_view name) -> const std::vector<double>& {
    return kept_.emplace_back(reference_rows(problem, name, rows));
  };
  in = {.norm = reference_norm(problem.kind),
        .rows = rows.count,
        .cols = problem.cols,
        .dy = of("dy"),
        .dy1 = of("dy1"),
        .dsum = of("dresidual_out"),
        .sum = saved_.sum,
        .mean = saved_.mean,
        .rstd = saved_.rstd,
        .weight = of("weight"),
        .weight1 = of("weight1"),
        .rowscale = of("rowscale"),
        .rowscale1 = of("rowscale1"),
        .second_input = problem.fusion.second_input,
        .dropout = problem.fusion.dropout,
        .seeds = seeds_,
        .seeds1 = seeds1_};
}

// ------------------------------------------------------------------------------------------------
// What follows is made from the two lists above and knows no option and no tensor by name.

namespace {

/// The values of an enumeration, with their names.
template <typename E>
struct Names;
template <>
struct Names<Kind> {
  static constexpr std::array<std::pair<std::string_view, Kind>, 2> kAll = {
      {{name(Kind::Layer), Kind::Layer}, {name(Kind::Rms), Kind::Rms}}};
};
template <>
struct Names<Residual> {
  static constexpr std::array<std::pair<std::string_view, Residual>, 3> kAll = {
      {{"none", Residual::None}, {"same", Residual::Same}, {"f32", Residual::F32}}};
};
#define LNC_COUNT(T) +1
#define LNC_NAME(T) std::pair{kElementType<T>.name, kElementType<T>.dtype},
template <>
struct Names<DType> {
  static constexpr std::array<std::pair<std::string_view, DType>, 0 LNC_ELEMENT_TYPES(LNC_COUNT)>
      kAll = {{LNC_ELEMENT_TYPES(LNC_NAME)}};
};
#undef LNC_COUNT
#undef LNC_NAME

template <typename E>
std::string_view name_of(E value) {
  for (const auto& [name, known] : Names<E>::kAll)
    if (known == value) return name;
  return "?";
}

std::string number(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%g", value);
  return text.data();
}

/// Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators": the output mix.
std::uint64_t splitmix64(std::uint64_t state) {
  state += 0x9e3779b97f4a7c15u;
  state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9u;
  state = (state ^ (state >> 27)) * 0x94d049bb133111ebu;
  return state ^ (state >> 31);
}

/// Mean 0, variance 1: the sum of four uniform numbers (Irwin and Hall), within 3.5 deviations.
float nearly_normal(std::uint64_t bits) {
  float sum = 0.0f;
  for (int i = 0; i < 4; ++i) sum += static_cast<float>((bits >> (16 * i)) & 0xffff);
  constexpr float kSqrt3 = 1.7320508f;
  return (sum * (1.0f / 65536.0f) - 2.0f) * kSqrt3;
}

/// Random bits by seed, stream and index.
class Bits {
 public:
  Bits(const Problem& problem, int stream)
      : key_(splitmix64(problem.seed * 16 + static_cast<std::uint64_t>(stream))) {}
  std::uint64_t at(std::int64_t index) const {
    return splitmix64(key_ ^ static_cast<std::uint64_t>(index));
  }

 private:
  std::uint64_t key_;
};

/// A tensor of any direction, by its name.
TensorDescription find_tensor(const Problem& problem, std::string_view name) {
  for (TensorDescription& tensor : describe_tensors(problem, false))
    if (tensor.name == name) return std::move(tensor);
  throw std::logic_error("there is no tensor '" + std::string(name) + "'");
}

}  // namespace

nlohmann::ordered_json value_of(const Option& option) {
  return std::visit(
      []<typename V>(V* field) -> nlohmann::ordered_json {
        if constexpr (std::is_enum_v<V>)
          return name_of(*field);
        else if constexpr (std::is_same_v<V, float>)
          return std::strtod(number(*field).c_str(), nullptr);  // 1e-05, not 9.99999974738e-06
        else
          return *field;
      },
      option.field);
}

std::vector<std::string> names_of(const Option::Field& field) {
  return std::visit(
      []<typename V>(V*) {
        std::vector<std::string> names;
        if constexpr (std::is_enum_v<V>)
          for (const auto& [name, value] : Names<V>::kAll) names.emplace_back(name);
        return names;
      },
      field);
}

std::string list_of(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

bool set_by_name(const Option::Field& field, std::string_view name) {
  return std::visit(
      [name]<typename V>(V* to) {
        if constexpr (std::is_enum_v<V>) {
          for (const auto& [known, value] : Names<V>::kAll) {
            if (known != name) continue;
            *to = value;
            return true;
          }
        }
        return false;
      },
      field);
}

bool within(const Range& range, double value) {
  const bool enough = range.without_least ? value > range.least : value >= range.least;
  const bool not_too_much = range.without_most ? value < range.most : value <= range.most;
  return enough && not_too_much;
}

std::string describe(const Problem& p, Direction direction, std::string_view group) {
  const bool norm = direction != Direction::Copy;
  std::string text = norm ? std::string(name(p.kind)) + " " : "";
  text += std::string(name(p.dtype)) + ", " + std::to_string(p.rows) + " x " +
          std::to_string(p.cols) + ", ";
  if (norm) {
    if (!p.affine)
      text += "no weight or bias";
    else
      text += p.kind == Kind::Layer ? "weight and bias" : "weight";
    text += ", eps " + number(p.eps) + ", ";
  }
  text += "seed " + std::to_string(p.seed);
  const nlohmann::ordered_json json = to_json(p);
  for (const auto& [key, value] : json["options"].items()) {
    if (key == "affine") continue;
    std::string words = key == "group" ? std::string(group) : key;
    std::replace(words.begin(), words.end(), '_', ' ');
    text += ", " + words;
    if (value.is_string()) text += " " + value.get<std::string>();
    if (value.is_number()) text += " " + number(value.get<double>());
  }
  return text;
}

nlohmann::ordered_json to_json(const Problem& given) {
  constexpr std::string_view kAlways[] = {"kind", "dtype", "rows", "cols", "eps", "seed"};
  Problem problem = given, usual;
  const std::vector<Option> all = options(problem), usual_options = options(usual);
  nlohmann::ordered_json json, others = nlohmann::ordered_json::object();
  for (const std::string_view name : kAlways)
    for (const Option& option : all)
      if (option.name == name) json[std::string(name)] = value_of(option);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::string key(all[i].name);
    if (!json.contains(key) && value_of(all[i]) != value_of(usual_options[i]))
      others[key] = value_of(all[i]);
  }
  json["options"] = others;
  return json;
}

Problem from_json(const nlohmann::json& object, Problem like) {
  const std::vector<Option> all = options(like);
  for (const auto& [key, value] : object.items()) {
    const auto option =
        std::find_if(all.begin(), all.end(), [&](const Option& o) { return o.name == key; });
    if (option == all.end()) {
      std::vector<std::string> known;
      for (const Option& each : all) known.emplace_back(each.name);
      throw RequestError("there is no option '" + key + "' of a problem; there are " +
                         list_of(known));
    }
    const auto refuse = [&](const std::string& rule) {
      throw RequestError("'" + key + "' must be " + rule + ", not " + value.dump());
    };
    std::visit(
        [&]<typename V>(V* field) {
          if constexpr (std::is_enum_v<V>) {
            if (value.is_string() && set_by_name(field, value.get<std::string>())) return;
            refuse("one of " + list_of(names_of(field)));
          } else if constexpr (std::is_same_v<V, bool>) {
            if (!value.is_boolean()) refuse("true or false");
            *field = value.get<bool>();
          } else {
            const bool fits = std::is_integral_v<V> ? value.is_number_integer() : value.is_number();
            if (!fits || !within(option->range, value.get<double>()))
              refuse(std::string(option->range.words));
            *field = value.get<V>();
          }
        },
        option->field);
  }
  return like;
}

std::vector<TensorDescription> describe_tensors(const Problem& problem, bool from_y) {
  return with_types(problem, [&]<typename T, typename W>() {
    Arguments<T, W> arguments;
    auto all = describe_tensors<T, W>(problem, from_y, arguments);
    for (TensorDescription& tensor : all) {  // these arguments end here
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

void round_to(DType dtype, std::span<float> values) {
  if (dtype == DType::F32) return;
  with_element_type(dtype, [&]<typename T>() {
    if constexpr (!std::is_integral_v<T>)
      for (float& value : values) value = static_cast<float>(T(value));
  });
}

double (*rounding_to(DType dtype))(double) {
  return with_element_type(dtype, []<typename T>() -> double (*)(double) {
    return [](double value) -> double {
      return static_cast<float>(static_cast<T>(static_cast<float>(value)));
    };
  });
}

std::vector<float> random_elements(const Problem& problem, std::string_view name,
                                   std::int64_t begin, std::int64_t count) {
  const TensorDescription tensor = find_tensor(problem, name);
  if (!tensor.there) return {};
  const auto& random = std::get<Random>(tensor.source);
  const Bits bits(problem, random.stream);
  std::vector<float> values(count);
  for (std::int64_t i = 0; i < count; ++i)
    values[i] = random.centre + random.deviation * nearly_normal(bits.at(begin + i));
  const bool forward = tensor.forward.there;
  round_to(forward ? tensor.forward.dtype : tensor.backward.dtype, values);
  return values;
}

std::vector<double> reference_elements(const Problem& problem, std::string_view name,
                                       std::int64_t begin, std::int64_t count) {
  const auto values = random_elements(problem, name, begin, count);
  return {values.begin(), values.end()};
}

std::vector<double> reference_rows(const Problem& problem, std::string_view name, RowRange rows) {
  switch (find_tensor(problem, name).shape) {
    case Shape::Matrix:
      return reference_elements(problem, name, rows.begin * problem.cols,
                                rows.count * problem.cols);
    case Shape::Rows:
      return reference_elements(problem, name, rows.begin, rows.count);
    case Shape::Columns:
      break;
  }
  return reference_elements(problem, name, 0, problem.cols);
}

std::vector<std::uint32_t> dropout_seeds(const Problem& problem, std::string_view name,
                                         RowRange rows) {
  const TensorDescription tensor = find_tensor(problem, name);
  if (!tensor.there) return {};
  const Bits bits(problem, std::get<Seeds>(tensor.source).stream);
  std::vector<std::uint32_t> seeds(rows.count);
  for (std::int64_t row = 0; row < rows.count; ++row)
    seeds[row] = static_cast<std::uint32_t>(bits.at(rows.begin + row));
  return seeds;
}

SavedForward saved_forward(const Problem& problem, RowRange rows) {
  const ReferenceForward forward(problem, rows);
  reference::FusedForward exact = forward.run();
  const auto round = [](DType dtype, std::vector<double>& values) {
    std::transform(values.begin(), values.end(), values.begin(), rounding_to(dtype));
  };
  round(problem.dtype, exact.y);
  round(DType::F32, exact.mean);
  round(DType::F32, exact.rstd);
  return {std::move(exact.y), std::move(exact.sum), std::move(exact.mean), std::move(exact.rstd)};
}

#define LNC_INSTANTIATE(name, T, W)                                                    \
  template std::vector<TensorDescription> describe_tensors<T, W>(const Problem&, bool, \
                                                                 Arguments<T, W>&);
LNC_TYPE_PAIRS(LNC_INSTANTIATE)
#undef LNC_INSTANTIATE

}  // namespace lnc
