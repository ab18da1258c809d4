#include "common/harness/registry.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <tuple>

#include "common/harness/device.h"

namespace lnc {
namespace {

std::vector<Chapter>& registry() {
  static std::vector<Chapter> chapters;
  return chapters;
}

bool takes_types_of(const Chapter& chapter, const Problem& problem) {
  return with_types(problem, [&]<typename T, typename W>() {
    return std::visit([](const auto& run) { return run.template get<T, W>() != nullptr; },
                      chapter.run);
  });
}

}  // namespace

std::string refusal(const Chapter& chapter, const Problem& problem) {
  return refusal(chapter, problem, device().gpu);
}

std::string refusal(const Chapter& chapter, const Problem& problem, const Gpu& gpu) {
  const std::string id(chapter.id);
  const auto capability = [](int architecture) {
    return std::to_string(architecture / 10) + "." + std::to_string(architecture % 10);
  };
  if (gpu.architecture < chapter.min_architecture)
    return id + " needs a GPU of compute capability " + capability(chapter.min_architecture) +
           " or newer; this one has " + capability(gpu.architecture);
  const auto& kinds = chapter.kinds;
  if (std::find(kinds.begin(), kinds.end(), problem.kind) == kinds.end())
    return id + " does not take --kind " + std::string(name(problem.kind)) + ", only --kind " +
           std::string(name(kinds.front()));
  if (!takes_types_of(chapter, problem))
    return id + " does not take --dtype " + std::string(name(problem.dtype)) +
           (problem.mixed ? " with --mixed" : "");
  if (!chapter.fused && problem.fusion != Fusion{})
    return id +
           " is not a fused chapter: it takes none of --rowscale, --dropout, --parallel, "
           "--residual and --prenorm";
  if (chapter.needs_affine && !problem.affine)
    return id + " needs weight and bias: it does not take --no-affine";
  if (problem.group > 0 && chapter.group.empty())
    return id + " groups nothing: it does not take --group";
  if (problem.recompute_output && !chapter.recomputes_output)
    return id + " does not take --recompute-output";
  if (problem.cols > chapter.max_cols)
    return id + " takes " + std::to_string(chapter.max_cols) + " columns at most, not " +
           std::to_string(problem.cols) + ": " + std::string(chapter.max_cols_because);
  if (problem.cols > chapter.max_row_bytes / problem.element_bytes())
    return id + " takes " + std::to_string(chapter.max_row_bytes / problem.element_bytes()) +
           " columns of " + std::string(name(problem.dtype)) + " at most, not " +
           std::to_string(problem.cols) + ": a block holds a whole row";
  if (problem.rows > chapter.max_rows)
    return id + " takes " + std::to_string(chapter.max_rows) + " rows at most, not " +
           std::to_string(problem.rows);
  return {};
}

const std::vector<Chapter>& chapters() { return registry(); }

const Chapter* find_chapter(std::string_view id) {
  const auto& all = chapters();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Chapter& c) { return c.id == id; });
  return found == all.end() ? nullptr : &*found;
}

Registration::Registration(Chapter chapter, std::string_view directory) {
  const auto refuse = [](const std::string& why) {
    std::fprintf(stderr, "%s\n", why.c_str());
    std::exit(2);  // before main: there is nobody to catch an exception
  };
  const std::string id(chapter.id);
  if (!directory.empty() && directory != chapter.id)
    refuse("the chapter in chapters/" + std::string(directory) + "_* calls itself " + id +
           ": rename its namespace and its .id");
  for (const Chapter& other : registry())
    if (other.id == chapter.id) refuse("two chapters call themselves " + id);
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
