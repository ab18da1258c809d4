// Which kernel runs a problem if the caller names none: one table, dispatch.json.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string_view>

#include "common/kernel/description.h"

namespace lnc {

/// A GPU that the table was measured on.
struct MeasuredGpu {
  std::string_view name;  ///< in the rules; no part of another's
  const char* cuda_name;
  Gpu gpu;
};
/// Both SXM. An H100 or H200 with fewer multiprocessors or other memory, such as an H100 PCIe,
/// counts as another GPU.
inline constexpr MeasuredGpu kMeasuredGpus[] = {{"H100", "NVIDIA H100 80GB HBM3", kH100},
                                                {"H200", "NVIDIA H200", kH200}};
/// The measured GPU that `gpu` is; null if it is none.
const MeasuredGpu* measured_gpu(const Gpu& gpu);

/// What the choice depends on.
struct Request {
  Direction direction;
  Problem problem = {};
  bool from_y = false;  ///< a backward pass that has y in place of x and mean
  Gpu gpu = kH100;
  bool in_place = false;  ///< a forward pass whose y is x, or whose sum is the residual
};

/// A rule of the table: a kernel, and the problems that get it. A field that a rule omits matches
/// every value; a range includes both of its ends. dispatch.json has a row for each:
///
///   kernel, direction   "lib_fwd_ring", "forward"
///   pass                "fused" or "from y"; else a plain pass
///   kind, types         "rms"; a type, or "16-bit"
///   starts              where rows start: "aligned" (Problem::aligned), "alike"
///                       (Problem::has_same_alignment), or "alike, odd" (and rows are not a
///                       multiple of 16 bytes)
///   cols_from, cols_to, row_bytes_to, rows_from, mib_to
///                       columns, bytes a row, rows, MiB of x
///   gpu                 "H100, H200": tuned on an H100, checked against an H200's measurements;
///                       "H100", "H200": tuned on that one alone; else a default for every GPU.
///                       Most defaults follow from what fits. Other GPUs get only these
///   architecture_from, architecture_to
///                       of such a default
///   batch_invariant     false: not for a batch-invariant pass. All other rules take such a pass,
///                       whatever its rows and bytes
///   because             the measurement that chose it, and its limits
struct Choice {
  std::string_view chapter;  ///< the kernel's id
  std::string_view because;
  Direction direction;
  bool from_y = false;
  bool fused = false;                      ///< takes only fused passes
  bool needs_aligned = false;              ///< takes only problems that are aligned()
  bool needs_same_alignment = false;       ///< takes only problems with has_same_alignment()
  bool needs_unaligned_row_bytes = false;  ///< takes only rows that are not a multiple of 16 bytes
  bool batch_invariant = true;
  std::optional<Kind> kind = {};
  bool needs_16_bit = false;  ///< takes only types of 16 bits
  std::optional<DType> dtype = {};
  std::int64_t min_cols = 1, max_cols = std::numeric_limits<std::int64_t>::max();
  std::int64_t max_row_bytes = std::numeric_limits<std::int64_t>::max();
  std::int64_t min_rows = 0;
  std::int64_t max_tensor_bytes = std::numeric_limits<std::int64_t>::max();  ///< of x
  std::string_view gpus = {};  ///< the names of those that it is for; empty: all
  int min_architecture = 0, max_architecture = std::numeric_limits<int>::max();  ///< of a default

  constexpr bool is_for(const MeasuredGpu& gpu) const { return gpus.find(gpu.name) != gpus.npos; }
  /// The GPU that the rule was tuned on, as CUDA names it: the first that it is for.
  constexpr const char* measured_on() const {
    for (const MeasuredGpu& gpu : kMeasuredGpus)
      if (gpus.empty() || is_for(gpu)) return gpu.cuda_name;
    return nullptr;
  }
};

/// The table. Its first rule that takes a request, and whose kernel does not refuse it, wins.
std::span<const Choice> choices();

/// Whether `choice` takes `request`, even if its chapter would refuse it.
bool takes(const Choice& choice, const Request& request);

/// A rule of the table and its kernel; both null where there is none.
struct Chosen {
  const Choice* line = nullptr;
  const Chapter* chapter = nullptr;
};

/// The rule for `request`. With Problem::batch_invariant it depends on columns, types and GPU
/// alone.
Chosen choose(const Request& request, std::span<const Choice> table = choices());

/// The id of the kernel that the table chooses for `request`, even in a program that was linked
/// without it; empty if there is none.
std::string_view kernel_for(const Request& request);

}  // namespace lnc
