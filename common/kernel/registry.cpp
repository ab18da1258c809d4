#include "common/kernel/registry.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <tuple>

#include "common/kernel/gpu.h"
#include "common/kernel/split.h"

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

/// The id that a kernel has by the place of its source.
std::string id_of(std::string_view file) {
  const std::filesystem::path path(file);
  if (path.filename() != "kernel.cu") return "lib_" + path.stem().string();
  const std::string directory = path.parent_path().filename().string();
  return directory.substr(0, directory.find('_'));
}

std::string words(Kind kind) { return kind == Kind::Layer ? "layer norm" : "RMS norm"; }

}  // namespace

Refusal refusal(const Chapter& chapter, const Problem& problem) {
  return refusal(chapter, problem, current_gpu());
}

Refusal refusal(const Chapter& chapter, const Problem& problem, const Gpu& gpu) {
  const auto refuse = [&](const std::string& why, std::string_view option = {}) {
    return Refusal{std::string(chapter.id) + " " + why, option};
  };
  const auto capability = [](int architecture) {
    return std::to_string(architecture / 10) + "." + std::to_string(architecture % 10);
  };
  if (gpu.architecture < chapter.min_architecture)
    return refuse("needs a GPU of compute capability " + capability(chapter.min_architecture) +
                  " or newer; this one has " + capability(gpu.architecture));
  if (problem.gpus > 1 && chapter.split == Split::None) return refuse("runs on one GPU", "gpus");
  const auto& kinds = chapter.kinds;
  if (std::find(kinds.begin(), kinds.end(), problem.kind) == kinds.end())
    return refuse("takes " + words(kinds.front()) + " only, not " + words(problem.kind), "kind");
  if (!takes_types_of(chapter, problem)) {
    const std::string type(element_type(problem.dtype).long_name);
    if (problem.mixed) return refuse("does not take " + type + " with float parameters", "mixed");
    return refuse("does not take " + type, "dtype");
  }
  if (!chapter.fused && problem.fusion != Fusion{})
    return refuse("is not a fused chapter", "fusion");
  if (chapter.residual_only) {
    const Fusion& fusion = problem.fusion;
    const auto refuse_part = [&](const std::string& part, std::string_view option) {
      return refuse("takes no " + part + ": it adds a residual and normalises the sum", option);
    };
    if (fusion.rowscale) return refuse_part("rowscale", "rowscale");
    if (fusion.dropout > 0.0f) return refuse_part("dropout", "dropout");
    if (fusion.second_input) return refuse_part("second input", "second_input");
    if (fusion.second_affine) return refuse_part("second weight and bias", "second_affine");
  }
  if (chapter.needs_affine && !problem.affine) return refuse("needs weight and bias", "affine");
  if (problem.group > 0 && chapter.group.empty())
    return refuse("cuts its work in one way only, whatever number is asked for");
  if (problem.recompute_output && !chapter.recomputes_output)
    return refuse("does not write y again", "recompute_output");
  if (problem.frozen && !chapter.takes_frozen)
    return refuse(chapter.direction() == Direction::Backward
                      ? "writes the gradients of weight and bias, frozen or not"
                      : "is no backward pass: it has no gradients to leave out",
                  "frozen");
  if (problem.heads_gap > 0 && problem.heads == 0)
    return refuse("takes a gap between groups of rows only where groups have a number of rows",
                  "heads");
  if (problem.strided() && !chapter.takes_strides)
    return refuse("takes rows that lie one behind another only", "row_gap");
  if (problem.strided() && problem.rows > kMaxStridedRows)
    return refuse("takes " + std::to_string(kMaxStridedRows) +
                      " rows that lie apart at most, not " + std::to_string(problem.rows),
                  "rows");
  if (chapter.needs_aligned && !problem.aligned()) {
    const std::string rule = "takes rows that start at 16-byte boundaries only: ";
    const std::int64_t multiple = 16 / problem.element_bytes();
    const std::string in_multiples =
        std::string(name(problem.dtype)) + " in multiples of " + std::to_string(multiple);
    if (problem.cols % multiple != 0)
      return refuse(rule + "columns of " + in_multiples + ", not " + std::to_string(problem.cols),
                    "cols");
    if (problem.row_gap % multiple != 0 || problem.heads_gap % multiple != 0)
      return refuse(rule + "gaps of " + in_multiples, "row_gap");
    return refuse(rule + "a tensor starts elsewhere", "misalign");
  }
  const Problem most_of_gpus = largest_of_gpus(problem, chapter.split);
  for (int gpu = 0; gpu < problem.gpus && chapter.split == Split::Columns; ++gpu)
    if (part_of(problem, chapter.split, gpu).count == 0)
      return refuse("gives each GPU at least one vector of 16 bytes of a row, for which " +
                        std::to_string(problem.cols) + " " + std::string(name(problem.dtype)) +
                        " on " + std::to_string(problem.gpus) + " GPUs are too few",
                    "gpus");
  if (chapter.needs_same_alignment && !problem.has_same_alignment())
    return refuse("takes tensors that start at 16-byte boundaries only", "misalign");
  if (problem.batch_invariant && chapter.shares_by_address && !problem.has_whole_vectors())
    return refuse(
        "assigns the columns of a row of " + std::to_string(problem.cols) + " " +
            std::string(name(problem.dtype)) +
            " to threads by its address, so its bits would depend on its place in the batch",
        "batch_invariant");
  const auto most = [](std::int64_t number, const char* what) {
    return "takes " + std::to_string(number) + " " + what + " at most, not ";
  };
  const std::string type(name(problem.dtype));
  if (problem.cols > chapter.max_cols)
    return refuse(most(chapter.max_cols, "columns") + std::to_string(problem.cols) + ": " +
                      std::string(chapter.max_cols_because),
                  "cols");
  const std::int64_t widest = chapter.max_row_bytes / problem.element_bytes();
  if (most_of_gpus.cols > widest)
    return refuse(
        most(widest, ("columns of " + type + (problem.gpus > 1 ? " a GPU" : "")).c_str()) +
            std::to_string(most_of_gpus.cols) + ": " + std::string(chapter.max_row_bytes_because),
        "cols");
  if (problem.rows > chapter.max_rows)
    return refuse(most(chapter.max_rows, "rows") + std::to_string(problem.rows), "rows");
  if (problem.rows > chapter.max_elements / problem.cols)
    return refuse(most(chapter.max_elements, "elements") + std::to_string(problem.rows) + " x " +
                  std::to_string(problem.cols));
  return {};
}

const std::vector<Chapter>& chapters() { return registry(); }

const Chapter* find_chapter(std::string_view id) {
  const auto& all = chapters();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Chapter& c) { return c.id == id; });
  return found == all.end() ? nullptr : &*found;
}

Registration::Registration(Chapter chapter, std::string_view file) {
  const auto refuse = [](const std::string& why) {
    std::fprintf(stderr, "%s\n", why.c_str());
    std::exit(2);  // before main, where nothing would catch an exception
  };
  const std::string id(chapter.id);
  chapter.file = file;
  if (!file.empty() && id != id_of(file))
    refuse("the kernel in " + std::string(file) + " calls itself " + id +
           ": rename its namespace and its .id");
  for (const Chapter& other : registry())
    if (other.id == chapter.id) refuse("two kernels call themselves " + id);
  const auto before = [](const Chapter& a, const Chapter& b) {
    return std::make_tuple(a.in_library(), a.direction(), a.id) <
           std::make_tuple(b.in_library(), b.direction(), b.id);
  };
  auto& all = registry();
  all.insert(std::upper_bound(all.begin(), all.end(), chapter, before), std::move(chapter));
}

}  // namespace lnc
