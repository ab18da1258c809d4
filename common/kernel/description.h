// How a kernel describes itself, in a `Registration` at the end of its source, and the bytes that
// it predicts. Chapters and the library's kernels (common/library/kernels) register the same way.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>
#include <variant>
#include <vector>

#include "common/kernel/contract.h"

namespace lnc {

/// The facts about a GPU that a chapter's predictions and requirements depend on.
struct Gpu {
  int multiprocessors;
  int threads_per_multiprocessor;
  std::int64_t l2_bytes;
  int architecture;  ///< its compute capability: 90 for 9.0
  int memory_gb_s;   ///< peak of its memory, by clock and width: reads and writes together

  bool operator==(const Gpu&) const = default;
};
/// Used for predictions without a GPU.
inline constexpr Gpu kH100{132, 2048, 50 << 20, 90, 3352};
inline constexpr Gpu kH200{132, 2048, 50 << 20, 90, 4917};

inline constexpr std::int64_t kMaxGridX = std::numeric_limits<std::int32_t>::max();
inline constexpr std::int64_t kMaxStridedRows = std::numeric_limits<std::int32_t>::max();

/// Where a chapter is on the map: on the main line, which a learner walks first, or on a side road.
/// `Library` is for the library's kernels, which are not on the map.
enum class Road {
  Main,
  Numerics,
  Fusion,
  Sums,
  WideRows,
  NarrowRows,
  UnalignedRows,
  Gpus,
  Library
};

constexpr std::string_view name(Road road) {
  switch (road) {
    case Road::Main:
      return "main line";
    case Road::Numerics:
      return "numerics";
    case Road::Fusion:
      return "fusion";
    case Road::Sums:
      return "sums";
    case Road::WideRows:
      return "wide rows";
    case Road::NarrowRows:
      return "narrow rows";
    case Road::UnalignedRows:
      return "unaligned rows";
    case Road::Gpus:
      return "several GPUs";
    case Road::Library:
      return "library";
  }
  return {};
}

/// A chapter, or a kernel of the library, as data: what its `Registration` holds.
struct Chapter {
  std::string_view id;           ///< "fwd02"; of the library "lib_fwd_ring"
  std::string_view title;        ///< "One warp per row"
  std::string_view teaches;      ///< the one idea, in a line
  std::string_view source;       ///< the public system that it follows
  std::string_view parent = {};  ///< id of the chapter that it improves on; empty for the first
  Road road = Road::Main;
  std::string_view before =
      {};  ///< the later chapter of the main line before which a learner reads it
  std::int64_t usual_cols = 2048;  ///< its program's default width
  std::vector<Kind> kinds = {Kind::Layer, Kind::Rms};
  Split split = Split::None;          ///< what each of Problem::gpus has of the problem
  bool needs_affine = false;          ///< refuses null weight and bias
  bool needs_aligned = false;         ///< refuses a problem that is not Problem::aligned
  bool needs_same_alignment = false;  ///< refuses a problem without has_same_alignment()
  bool takes_strides = false;         ///< takes strided rows of x and dy: Problem::strided
  /// Up to this many bytes, a strided row is mapped to threads like a dense one.
  std::int64_t strided_like_dense_bytes = std::numeric_limits<std::int64_t>::max();
  bool fused = false;          ///< takes a Problem::fusion
  bool residual_only = false;  ///< takes a residual and prenorm, and no other fusion
  /// The widest rows in which a fused forward pass reads every element before it overwrites it, so
  /// that y may be x, and the sum the residual; 0 if it does not.
  std::int64_t in_place_cols = 0;
  /// Which thread has a column depends on the row's address, except for rows of whole vectors. With
  /// Problem::batch_invariant it refuses other rows.
  bool shares_by_address = false;
  bool recomputes_output = false;  ///< takes Problem::recompute_output
  bool takes_frozen = false;       ///< computes no parameter gradients if Problem::frozen
  bool from_y = false;             ///< a backward pass that is given y in place of x and mean
  /// What Problem::group counts; empty if the chapter does not use it. The command line derives an
  /// option from it: "rows a block" is --rows-per-block.
  std::string_view group = {};
  int min_architecture = 0;   ///< the first that it runs on: 90 for Hopper
  bool deterministic = true;  ///< the same bits from run to run
  /// Float y and rstd have errors below 1e-6 in norm, and mean one rounding error, if the mean of x
  /// is at most 10 000 standard deviations.
  bool keeps_digits_at_large_means = false;
  std::int64_t max_cols = std::numeric_limits<std::int64_t>::max();
  std::string_view max_cols_because = "its sums would lose digits";  ///< the reason for max_cols
  std::int64_t max_row_bytes = std::numeric_limits<std::int64_t>::max();
  std::string_view max_row_bytes_because = "a block holds a whole row";  ///< for max_row_bytes
  std::int64_t max_rows = kMaxGridX;  ///< the limit of a grid of one block or warp a row
  /// The most elements of x in a launch: the limit of a copy's grid of one thread an element.
  std::int64_t max_elements = std::numeric_limits<std::int64_t>::max();
  /// Its host function for each pair of types; the alternative is the Direction, in its order.
  std::variant<CopyLaunchers, ForwardLaunchers, BackwardLaunchers> run;

  /// Bytes that must move to and from device memory, predicted before any measurement.
  std::int64_t (*predicted_bytes)(const Problem&, const Gpu&) = nullptr;
  /// Bytes of device memory that a launch needs beside its inputs and outputs; null for none.
  std::int64_t (*workspace_bytes)(const Problem&) = nullptr;

  std::string_view file = {};  ///< its source, from the repository's root; Registration fills it in

  bool in_library() const { return road == Road::Library; }

  Direction direction() const { return static_cast<Direction>(run.index()); }
};

/// Adds a kernel to the registry; a static object in its source. `file` comes from the build:
/// chapters/fwd02_…/kernel.cu is fwd02, and common/library/kernels/fwd_ring.cu is lib_fwd_ring. A
/// copied kernel that still has the original's id, or a second kernel of the same id, ends the
/// program with a message.
struct Registration {
#if !defined(LNC_KERNEL_FILE)
#define LNC_KERNEL_FILE ""
#endif
  explicit Registration(Chapter chapter, std::string_view file = LNC_KERNEL_FILE);
};

/// How often device memory serves a tensor over which every row's threads walk `walks` times.
/// Between two walks the row stays in L2 with all other rows in flight, `bytes_in_flight` in all.
/// If these fit, only the first walk reaches device memory; otherwise assume that every walk does.
inline std::int64_t device_reads(int walks, std::int64_t bytes_in_flight, const Gpu& gpu) {
  return bytes_in_flight <= gpu.l2_bytes ? 1 : walks;
}

/// How many rows are on the GPU at once if each has `threads_per_row` threads.
inline std::int64_t rows_in_flight(const Problem& problem, int threads_per_row, const Gpu& gpu) {
  const std::int64_t room =
      std::int64_t{gpu.multiprocessors} * gpu.threads_per_multiprocessor / threads_per_row;
  return problem.rows < room ? problem.rows : room;
}

/// The bytes besides the tensors of M x N elements: weight, bias, mean and rstd read or written
/// once.
inline std::int64_t parameter_bytes(const Problem& problem) {
  return 2 * problem.cols * problem.parameter_element_bytes() + 2 * problem.rows * 4;
}

/// The bytes of the tensors of M x N elements that a backward pass must read and write: dy, x or
/// the sum, dx, and what a fusion adds.
inline std::int64_t backward_tensor_bytes(const Problem& problem) {
  const std::int64_t residual = problem.rows * problem.cols * problem.residual_element_bytes();
  return (2 + problem.fusion.second_affine + problem.writes_dx1()) * problem.tensor_bytes() +
         (1 + problem.fusion.prenorm + problem.writes_dresidual()) * residual;
}

/// The bytes of a pass that moves each tensor and parameter once: what a fast kernel comes close
/// to.
template <Direction kDirection>
std::int64_t least_bytes(const Problem& problem, const Gpu&) {
  const std::int64_t tensors = kDirection == Direction::Backward ? backward_tensor_bytes(problem)
                                                                 : 2 * problem.tensor_bytes();
  return tensors + parameter_bytes(problem);
}

/// How a kernel reads its rows.
struct Walks {
  int inputs;           ///< tensors that it reads: 1 forward (x), 2 backward (dy and x)
  int walks;            ///< how often it reads them
  int threads_per_row;  ///< determines how many rows the GPU has in flight
};

/// The bytes to and from device memory of a chapter that reads this way and writes one tensor.
inline std::int64_t predict_bytes(const Problem& problem, const Gpu& gpu, Walks how) {
  const std::int64_t in_flight = rows_in_flight(problem, how.threads_per_row, gpu) * how.inputs *
                                 problem.cols * problem.element_bytes();
  return (how.inputs * device_reads(how.walks, in_flight, gpu) + 1) * problem.tensor_bytes() +
         parameter_bytes(problem);
}

}  // namespace lnc
