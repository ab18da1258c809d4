// What a chapter says of itself, and the registry that the programs read it from.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <driver_types.h>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <tuple>
#include <variant>
#include <vector>

namespace lnc {

enum class Direction { Forward, Backward };
enum class Kind { Layer, Rms };  ///< subtract the mean and divide by the deviation, or only scale
enum class DType { F32, F16, BF16 };  ///< the type of x, y, dy, dx, weight, bias, dweight, dbias

/// One problem: `rows x cols`, row-major and contiguous, normalised over the columns.
struct Problem {
  Kind kind = Kind::Layer;
  DType dtype = DType::F32;
  std::int64_t rows = 16 * 64;
  std::int64_t cols = 2048;
  float eps = 1e-5f;
  bool affine = true;      ///< weight and (layer) bias are there; without, they are null
  std::uint64_t seed = 1;  ///< of the random x, weight, bias, dy

  std::int64_t element_bytes() const { return dtype == DType::F32 ? 4 : 2; }
  std::int64_t tensor_bytes() const { return rows * cols * element_bytes(); }
};

/// The arguments of a forward launch: device pointers, row-major and contiguous.
template <typename T>
struct ForwardArgs {
  const T* x;       ///< [rows, cols]
  const T* weight;  ///< [cols], or null for 1
  const T* bias;    ///< [cols], or null for 0; always null for Kind::Rms
  T* y;             ///< [rows, cols]
  float* mean;      ///< [rows]; null for Kind::Rms
  float* rstd;      ///< [rows]; 1 / sqrt(variance + eps), for Kind::Rms 1 / sqrt(mean square + eps)
  std::int64_t rows;
  std::int64_t cols;
  float eps;
  Kind kind;
  void* workspace;  ///< Chapter::workspace_bytes of it, uninitialised
  cudaStream_t stream;
};

/// The arguments of a backward launch. Every output is overwritten, never accumulated into.
template <typename T>
struct BackwardArgs {
  const T* dy;        ///< [rows, cols]
  const T* x;         ///< [rows, cols]
  const T* weight;    ///< [cols], or null for 1
  const float* mean;  ///< [rows], as the forward pass wrote it; null for Kind::Rms
  const float* rstd;  ///< [rows], as the forward pass wrote it
  T* dx;              ///< [rows, cols]
  T* dweight;         ///< [cols]; summed over the rows in float, rounded once
  T* dbias;           ///< [cols], likewise; null for Kind::Rms
  std::int64_t rows;
  std::int64_t cols;
  Kind kind;
  void* workspace;
  cudaStream_t stream;
};

/// A chapter's host function for each dtype; null for one that it does not take.
template <template <typename> typename Args>
using Launchers = std::tuple<void (*)(const Args<float>&), void (*)(const Args<__half>&),
                             void (*)(const Args<__nv_bfloat16>&)>;
using ForwardLaunchers = Launchers<ForwardArgs>;
using BackwardLaunchers = Launchers<BackwardArgs>;

/// The facts about a GPU that a prediction of bytes needs.
struct Gpu {
  int multiprocessors;
  int threads_per_multiprocessor;
  std::int64_t l2_bytes;
};
inline constexpr Gpu kH100{132, 2048,
                           50 << 20};  ///< stands in where predictions are made without a GPU

inline constexpr std::int64_t kMaxGridX = std::numeric_limits<std::int32_t>::max();

/// A chapter, as data. A kernel.cu describes itself with one of these in a `Registration`.
struct Chapter {
  std::string_view id;       ///< "fwd02"; the directory is chapters/<id>_<name>
  std::string_view title;    ///< "One warp per row"
  std::string_view teaches;  ///< the one idea, in a line
  std::string_view source;   ///< the public system that it follows
  std::vector<Kind> kinds = {Kind::Layer, Kind::Rms};
  bool needs_affine = false;          ///< refuses null weight and bias
  bool deterministic = true;          ///< the same bits from run to run
  std::int64_t max_rows = kMaxGridX;  ///< where a grid of one block or warp a row ends
  std::variant<ForwardLaunchers, BackwardLaunchers> run;  ///< says the direction too

  /// Bytes that must move to and from device memory, predicted before any measurement.
  std::int64_t (*predicted_bytes)(const Problem&, const Gpu&) = nullptr;
  /// Bytes of device memory that a launch needs beside its inputs and outputs; null for none.
  std::int64_t (*workspace_bytes)(const Problem&) = nullptr;

  Direction direction() const {
    return run.index() == 0 ? Direction::Forward : Direction::Backward;
  }
};

/// Why `chapter` does not take `problem`, in one sentence; empty where it does.
std::string refusal(const Chapter& chapter, const Problem& problem);

/// All registered chapters: forward before backward, each in the order of its ids.
const std::vector<Chapter>& chapters();

/// Enters a chapter into `chapters()`; a static object of a kernel.cu.
struct Registration {
  explicit Registration(Chapter chapter);
};

std::string_view name(Direction direction);  // "forward", "backward"
std::string_view name(Kind kind);            // "layer", "rms"
std::string_view name(DType dtype);          // "f32", "f16", "bf16"

/// How often device memory sees a tensor that every row's threads walk `walks` times. Between two
/// walks the row waits in L2 with the rows of all other threads: `bytes_in_flight`. While these
/// fit, only the first walk reaches device memory; once they do not, take it that every walk does.
inline std::int64_t device_reads(int walks, std::int64_t bytes_in_flight, const Gpu& gpu) {
  return bytes_in_flight <= gpu.l2_bytes ? 1 : walks;
}

/// How many rows are on the GPU at once where each has `threads_per_row` threads.
inline std::int64_t rows_in_flight(const Problem& problem, int threads_per_row, const Gpu& gpu) {
  const std::int64_t room =
      std::int64_t{gpu.multiprocessors} * gpu.threads_per_multiprocessor / threads_per_row;
  return problem.rows < room ? problem.rows : room;
}

/// The bytes beside the tensors of M x N elements: weight, bias, mean and rstd read or written
/// once.
inline std::int64_t parameter_bytes(const Problem& problem) {
  return 2 * problem.cols * problem.element_bytes() + 2 * problem.rows * 4;
}

}  // namespace lnc
