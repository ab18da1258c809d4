#include "common/harness/options.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

namespace lnc {
namespace {

constexpr double kLargestFloat = std::numeric_limits<float>::max();
constexpr double kMostWhole = 9007199254740992.0;  // 2^53: larger numbers lose digits in JSON
constexpr Range kAnyFloat = {-kLargestFloat, kLargestFloat, "a number that a float can hold"};

// --- The list of options

/// The options of every chapter.
std::vector<Option> options_of_all(Problem& p) {
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
      {"mixed", &p.mixed, "", "float weight and bias with f16 or bf16 x"},
      {"offset", &p.offset, "MEAN", "mean of x, whose deviation is 1", kAnyFloat},
      {"affine", &p.affine, "", "weight and bias, which are then null"},
      {"weight_scale", &p.weight_scale, "SCALE", "the weights are random about SCALE", kAnyFloat},
      {"eps",
       &p.eps,
       "EPS",
       "added to the variance",
       {0, kLargestFloat, "a number above 0 that a float can hold", true}},
      {"seed",
       &p.seed,
       "SEED",
       "seed of the random inputs",
       {0, kMostWhole, "a whole number of at least 0 and at most 9007199254740992"}},
      {"misalign",
       &p.misalign,
       "ELEMENTS",
       "elements between a 16-byte boundary and the start of each tensor",
       {0, 1024, "a whole number of at least 0 and at most 1024"}},
      {"stagger",
       &p.stagger,
       "ELEMENTS",
       "elements that --misalign grows by from each tensor to the next",
       {0, 1024, "a whole number of at least 0 and at most 1024"}},
      {"row_gap",
       &p.row_gap,
       "ELEMENTS",
       "elements between each row of x, or of dy, and the next",
       {0, 1 << 20, "a whole number of at least 0 and at most 1048576"}},
      {"heads",
       &p.heads,
       "COUNT",
       "rows of x and dy in a group, as in q of a fused projection",
       {0, 1 << 20, "a whole number of at least 0 and at most 1048576"}},
      {"heads_gap",
       &p.heads_gap,
       "ELEMENTS",
       "elements between each such group and the next, as k and v are",
       {0, 1 << 24, "a whole number of at least 0 and at most 16777216"}},
      {"group",
       &p.group,
       "COUNT",
       "how a chapter divides its work, in its unit (rows a block, buffers, ...); 0: its choice",
       {0, 1 << 20, "a whole number of at least 0 and at most 1048576"}},
      {"recompute_output", &p.recompute_output, "",
       "write y again in the backward pass, if the chapter can"},
      {"frozen", &p.frozen, "",
       "weight and bias are frozen: leave out their gradients, if the chapter can"},
      {"batch_invariant", &p.batch_invariant, "",
       "make the bits of a row independent of where it starts and of the number of rows"},
      {"gpus",
       &p.gpus,
       "COUNT",
       "GPUs that share the problem, if the chapter can",
       {1, 32, "a whole number of at least 1 and at most 32"}},
      {"uneven", &p.uneven, "", "give each of these GPUs a larger part than the one before"},
  };
}

/// The options that only fused chapters take.
std::vector<Option> options_of_fusion(Fusion& f) {
  return {
      {"rowscale", &f.rowscale, "", "multiply each row of x (and x1) by a number", {}, true},
      {"dropout",
       &f.dropout,
       "P",
       "drop elements of x (and x1) with probability P, by Philox from seed and column",
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
       "also write the sum that is normalised; backward, add its gradient",
       {},
       true},
  };
}

// --- The code below uses the list and knows no option by name.

/// An enumeration's values and their names.
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

}  // namespace

std::vector<Option> options(Problem& problem) {
  std::vector<Option> all = options_of_all(problem);
  const std::vector<Option> fused = options_of_fusion(problem.fusion);
  all.insert(all.end(), fused.begin(), fused.end());
  return all;
}

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

}  // namespace lnc
