// Which chapter a problem gets where nobody asks for one: one table, in dispatch.cpp.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string_view>

#include "common/kernel/description.h"

namespace lnc {

/// The GPUs that the table was measured on, both SXM. An H100 or H200 with fewer multiprocessors or
/// another memory, such as an H100 PCIe, is another GPU.
enum class MeasuredGpu { H100, H200, None };
MeasuredGpu measured_gpu(const Gpu& gpu);

/// Which GPUs a line of the table is for.
enum class For {
  Any,       ///< a default; most follow from what fits. Other GPUs get only these
  Measured,  ///< tuned on an H100, and held to an H200's measurements
  H200,      ///< tuned on an H200
};

/// What the choice depends on.
struct Request {
  Direction direction;
  Problem problem = {};
  bool from_y = false;  ///< a backward pass that has y in place of x and mean
  Gpu gpu = kH100;
  bool in_place = false;  ///< a forward pass whose y is x, or whose sum is the residual
};

/// A line of the table: a chapter, and the problems that get it. What a line leaves out it takes in
/// every value; a range takes both of its ends.
struct Choice {
  std::string_view chapter;
  std::string_view because;  ///< the measurement that chose it, and its limits
  Direction direction;
  bool from_y = false;
  bool fused = false;          ///< takes fused passes, and those only
  bool needs_aligned = false;  ///< takes what is Problem::aligned only
  bool needs_alike = false;    ///< takes what Problem::starts_alike only
  bool needs_odd = false;      ///< takes rows of no whole number of 16 bytes only
  bool needs_16_bit = false;   ///< takes types of 16 bits only
  std::optional<Kind> kind = {};
  std::optional<DType> dtype = {};
  std::int64_t min_cols = 1, max_cols = std::numeric_limits<std::int64_t>::max();
  std::int64_t min_rows = 0, max_rows = std::numeric_limits<std::int64_t>::max();
  std::int64_t max_tensor_bytes = std::numeric_limits<std::int64_t>::max();  ///< of x
  For gpus = For::Any;
  int min_architecture = 0, max_architecture = std::numeric_limits<int>::max();  ///< of For::Any

  /// The GPU that the line was tuned on, as CUDA names it.
  const char* measured_on() const {
    return gpus == For::H200 ? "NVIDIA H200" : "NVIDIA H100 80GB HBM3";
  }
};

/// The table. Its first line that takes a request, and whose chapter does not refuse it, wins.
std::span<const Choice> choices();

/// Whether `choice` takes `request`, whatever its chapter says.
bool takes(const Choice& choice, const Request& request);

/// A line of the table and its chapter; both null where there is none.
struct Chosen {
  const Choice* line = nullptr;
  const Chapter* chapter = nullptr;
};

/// The line for `request`. Problem::batch_invariant has it depend on columns, types and GPU alone:
/// it is that of a large tensor, densely packed, that starts at a 16-byte boundary.
Chosen choose(const Request& request, std::span<const Choice> table = choices());

}  // namespace lnc
