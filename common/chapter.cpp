#include "common/chapter.h"

#include <algorithm>

namespace lnc {
namespace {

std::vector<Chapter>& registry() {
  static std::vector<Chapter> chapters;
  return chapters;
}

bool takes(const Chapter& chapter, DType dtype) {
  return std::visit(
      [dtype](const auto& run) {
        switch (dtype) {
          case DType::F32:
            return std::get<0>(run) != nullptr;
          case DType::F16:
            return std::get<1>(run) != nullptr;
          case DType::BF16:
            return std::get<2>(run) != nullptr;
        }
        return false;
      },
      chapter.run);
}

}  // namespace

std::string refusal(const Chapter& chapter, const Problem& problem) {
  const std::string id(chapter.id);
  const auto& kinds = chapter.kinds;
  if (std::find(kinds.begin(), kinds.end(), problem.kind) == kinds.end())
    return id + " does not take --kind " + std::string(name(problem.kind)) + ", only --kind " +
           std::string(name(kinds.front()));
  if (!takes(chapter, problem.dtype))
    return id + " does not take --dtype " + std::string(name(problem.dtype));
  if (chapter.needs_affine && !problem.affine)
    return id + " needs weight and bias: it does not take --no-affine";
  if (problem.rows > chapter.max_rows)
    return id + " takes " + std::to_string(chapter.max_rows) + " rows at most, not " +
           std::to_string(problem.rows);
  return {};
}

const std::vector<Chapter>& chapters() { return registry(); }

Registration::Registration(Chapter chapter) {
  const auto before = [](const Chapter& a, const Chapter& b) {
    return std::make_tuple(a.direction(), a.id) < std::make_tuple(b.direction(), b.id);
  };
  auto& all = registry();
  all.insert(std::upper_bound(all.begin(), all.end(), chapter, before), std::move(chapter));
}

std::string_view name(Direction direction) {
  return direction == Direction::Forward ? "forward" : "backward";
}
std::string_view name(Kind kind) { return kind == Kind::Layer ? "layer" : "rms"; }
std::string_view name(DType dtype) {
  switch (dtype) {
    case DType::F32:
      return "f32";
    case DType::F16:
      return "f16";
    case DType::BF16:
      return "bf16";
  }
  return "?";
}

}  // namespace lnc
