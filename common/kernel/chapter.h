// What a chapter says of itself, and the registry that the programs read it from.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <driver_types.h>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

namespace lnc {

enum class Direction { Forward, Backward };
enum class Kind { Layer, Rms };  ///< subtract the mean and divide by the deviation, or only scale
enum class DType { F32, F16, BF16 };  ///< the type of x, y, dy, dx, weight, bias, dweight, dbias

/// The type of the residual stream in a fused pass.
enum class Residual { None, Same, F32 };

/// What a fused forward pass does before and after the norm, in this order: x · rowscale, dropout,
/// + x1 (with a rowscale and a dropout of its own), + residual; that sum is normalised. A fused
/// backward pass is the gradient of all that.
struct Fusion {
  bool rowscale = false;      ///< a float for each row of x, and of x1 where that is there
  float dropout = 0.0f;       ///< probability of dropping an element, 0 <= p < 1
  bool second_input = false;  ///< x1
  Residual residual = Residual::None;
  bool prenorm = false;        ///< the sum itself is an output too, in the residual's type
  bool second_affine = false;  ///< y1 from weight1 and bias1
  bool masks = false;          ///< the dropout masks are outputs too; a backward pass has none

  friend bool operator==(const Fusion&, const Fusion&) = default;
};

/// One problem: `rows x cols`, row-major and contiguous, normalised over the columns.
struct Problem {
  Kind kind = Kind::Layer;
  DType dtype = DType::F32;
  std::int64_t rows = 16 * 64;
  std::int64_t cols = 2048;
  float eps = 1e-5f;
  bool affine = true;         ///< weight and (layer) bias are there; without, they are null
  bool mixed = false;         ///< weight, bias (and their gradients) are float, whatever dtype is
  float offset = 0.5f;        ///< the mean of x, whose deviation is 1
  float weight_scale = 1.0f;  ///< weights are random numbers about this
  int misalign = 0;           ///< elements by which tensors start past a 16-byte boundary
  int group = 0;  ///< rows a block, buffers, …: what Chapter::group says; 0 for its own choice
  bool recompute_output = false;  ///< a backward pass writes y again
  std::uint64_t seed = 1;         ///< of the random x, weight, bias, dy
  Fusion fusion = {};

  std::int64_t element_bytes() const { return dtype == DType::F32 ? 4 : 2; }
  std::int64_t parameter_element_bytes() const { return mixed ? 4 : element_bytes(); }
  std::int64_t tensor_bytes() const { return rows * cols * element_bytes(); }

  /// Of the residual stream: the residual, the sum as it is stored, and their gradients.
  std::int64_t residual_element_bytes() const {
    return fusion.residual == Residual::F32 ? 4 : element_bytes();
  }
  /// Whether a fused backward pass writes dx1, dresidual. Where nothing scales or drops x and the
  /// types are the same, each would be dx bit for bit, and dx stands for it.
  bool writes_dx1() const {
    return fusion.second_input && (fusion.rowscale || fusion.dropout > 0.0f);
  }
  bool writes_dresidual() const {
    return fusion.residual != Residual::None && (fusion.rowscale || fusion.dropout > 0.0f ||
                                                 residual_element_bytes() != element_bytes());
  }
};

/// The further arguments of a fused forward launch; all null where a part is absent. T is the type
/// of x, W of the parameters.
template <typename T, typename W>
struct FusedForward {
  const float* rowscale;        ///< [rows]
  const std::uint32_t* seeds;   ///< [rows], the dropout's; null for none
  const T* x1;                  ///< [rows, cols]
  const float* rowscale1;       ///< [rows], of x1
  const std::uint32_t* seeds1;  ///< [rows], of x1
  const void* residual;         ///< [rows, cols] of float where residual_is_float, else of T
  void* residual_out;           ///< [rows, cols], the normalised sum, likewise
  const W* weight1;             ///< [cols]
  const W* bias1;               ///< [cols]
  T* y1;                        ///< [rows, cols], of weight1 and bias1
  std::uint8_t* mask;           ///< [rows, cols], 1 where x was kept
  std::uint8_t* mask1;          ///< [rows, cols], 1 where x1 was kept
  float dropout;                ///< the probability of dropping an element
  bool residual_is_float;
};

/// The arguments of a forward launch: device pointers, row-major and contiguous.
template <typename T, typename W = T>
struct ForwardArgs {
  const T* x;       ///< [rows, cols]
  const W* weight;  ///< [cols], or null for 1
  const W* bias;    ///< [cols], or null for 0; always null for Kind::Rms
  T* y;             ///< [rows, cols]
  float* mean;      ///< [rows]; null for Kind::Rms
  float* rstd;      ///< [rows]; 1 / sqrt(variance + eps), for Kind::Rms 1 / sqrt(mean square + eps)
  std::int64_t rows;
  std::int64_t cols;
  float eps;
  int group;  ///< Problem::group
  Kind kind;
  void* workspace;  ///< Chapter::workspace_bytes of it, uninitialised
  cudaStream_t stream;
  FusedForward<T, W> fused;
};

/// The further arguments of a fused backward launch; all null where a part is absent, and in a
/// plain pass. There is no gradient of the rowscales.
template <typename T, typename W>
struct FusedBackward {
  const T* dy1;                 ///< [rows, cols], the gradient of y1
  const void* residual_out;     ///< [rows, cols], the sum as the forward pass stored it, of float
                                ///< where residual_is_float, else of T; never null if fused
  const void* dresidual_out;    ///< [rows, cols], the gradient that reaches it past the norm,
                                ///< likewise
  const W* weight1;             ///< [cols], or null for 1
  const float* rowscale;        ///< [rows]
  const std::uint32_t* seeds;   ///< [rows], the dropout's, as in the forward pass
  const float* rowscale1;       ///< [rows], of x1
  const std::uint32_t* seeds1;  ///< [rows], of x1
  T* dx1;                       ///< [rows, cols]; null, too, where it is dx (writes_dx1)
  void* dresidual;              ///< [rows, cols], the gradient of the whole sum, in the type of
                                ///< residual_out; null, too, where it is dx (writes_dresidual)
  W* dweight1;                  ///< [cols]
  W* dbias1;                    ///< [cols]; null for Kind::Rms
  float dropout;                ///< the probability of dropping an element
  bool residual_is_float;
};

/// The arguments of a backward launch. Every output is overwritten, never accumulated into.
template <typename T, typename W = T>
struct BackwardArgs {
  const T* dy;        ///< [rows, cols]
  const T* x;         ///< [rows, cols]; null for Chapter::from_y, and in a fused pass, which has
                      ///< fused.residual_out
  const T* y;         ///< [rows, cols], as the forward pass wrote it; null but for Chapter::from_y
  const W* weight;    ///< [cols], or null for 1
  const float* mean;  ///< [rows], likewise; null for Kind::Rms and for Chapter::from_y
  const float* rstd;  ///< [rows], likewise
  const W* bias;      ///< [cols], or null for 0; only for what needs y
  T* dx;              ///< [rows, cols]
  W* dweight;         ///< [cols]; summed over the rows in float, rounded once
  W* dbias;           ///< [cols], likewise; null for Kind::Rms
  T* y_again;         ///< [rows, cols], y recomputed; null where not asked for
  std::int64_t rows;
  std::int64_t cols;
  float eps;  ///< the forward pass's; part of rstd already
  int group;  ///< Problem::group
  Kind kind;
  void* workspace;
  cudaStream_t stream;
  FusedBackward<T, W> fused;
};

/// A chapter's host function for each type of x and of the parameters; null for one that it does
/// not take. In a registration: {run<float>, run<__half>, run<__nv_bfloat16>}, and behind these
/// run<__half, float>, run<__nv_bfloat16, float> where it takes mixed types.
template <template <typename, typename> typename Args>
struct Launchers {
  void (*f32)(const Args<float, float>&) = nullptr;
  void (*f16)(const Args<__half, __half>&) = nullptr;
  void (*bf16)(const Args<__nv_bfloat16, __nv_bfloat16>&) = nullptr;
  void (*f16_mixed)(const Args<__half, float>&) = nullptr;
  void (*bf16_mixed)(const Args<__nv_bfloat16, float>&) = nullptr;

  template <typename T, typename W>
  auto get() const {
    if constexpr (std::is_same_v<T, float>)
      return f32;
    else if constexpr (std::is_same_v<T, __half> && std::is_same_v<W, float>)
      return f16_mixed;
    else if constexpr (std::is_same_v<T, __half>)
      return f16;
    else if constexpr (std::is_same_v<W, float>)
      return bf16_mixed;
    else
      return bf16;
  }
};
using ForwardLaunchers = Launchers<ForwardArgs>;
using BackwardLaunchers = Launchers<BackwardArgs>;

/// Calls `body.template operator()<T, W>()` with the types of x and of the parameters.
template <typename Body>
auto with_types(const Problem& problem, Body&& body) {
  switch (problem.dtype) {
    case DType::F16:
      return problem.mixed ? body.template operator()<__half, float>()
                           : body.template operator()<__half, __half>();
    case DType::BF16:
      return problem.mixed ? body.template operator()<__nv_bfloat16, float>()
                           : body.template operator()<__nv_bfloat16, __nv_bfloat16>();
    case DType::F32:
      break;
  }
  return body.template operator()<float, float>();
}

/// The facts about a GPU that a chapter's predictions and demands need.
struct Gpu {
  int multiprocessors;
  int threads_per_multiprocessor;
  std::int64_t l2_bytes;
  int architecture;  ///< its compute capability: 90 for 9.0
};
/// Stands in where predictions are made without a GPU.
inline constexpr Gpu kH100{132, 2048, 50 << 20, 90};

inline constexpr std::int64_t kMaxGridX = std::numeric_limits<std::int32_t>::max();

/// A chapter, as data. A kernel.cu describes itself with one of these in a `Registration`.
struct Chapter {
  std::string_view id;       ///< "fwd02"; the directory is chapters/<id>_<name>
  std::string_view title;    ///< "One warp per row"
  std::string_view teaches;  ///< the one idea, in a line
  std::string_view source;   ///< the public system that it follows
  std::vector<Kind> kinds = {Kind::Layer, Kind::Rms};
  bool needs_affine = false;       ///< refuses null weight and bias
  bool fused = false;              ///< takes a Problem::fusion
  bool recomputes_output = false;  ///< takes Problem::recompute_output
  bool from_y = false;             ///< a backward pass that is given y in place of x and mean
  std::string_view group = {};  ///< what Problem::group counts, "rows a block"; empty: it has none
  int min_architecture = 0;     ///< the first that has what it uses: 90 for Hopper
  bool deterministic = true;    ///< the same bits from run to run
  std::int64_t max_cols = std::numeric_limits<std::int64_t>::max();
  std::string_view max_cols_because = "its sums would lose digits";       ///< no more than max_cols
  std::int64_t max_row_bytes = std::numeric_limits<std::int64_t>::max();  ///< that fit in a block
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

/// Why `chapter` does not run on `gpu`, or does not take `problem`, in one sentence; empty where it
/// does. Without a GPU, it is the device's.
std::string refusal(const Chapter& chapter, const Problem& problem, const Gpu& gpu);
std::string refusal(const Chapter& chapter, const Problem& problem);

/// All registered chapters: forward before backward, each in the order of its ids.
const std::vector<Chapter>& chapters();

/// Enters a chapter into `chapters()`; a static object of a kernel.cu. `directory` is the id in the
/// name of the kernel's directory, from the build: a copied chapter that still calls itself by its
/// neighbour's id, or two of one id, end the program with a sentence.
struct Registration {
#if !defined(LNC_CHAPTER_ID)
#define LNC_CHAPTER_ID ""
#endif
  explicit Registration(Chapter chapter, std::string_view directory = LNC_CHAPTER_ID);
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
  return 2 * problem.cols * problem.parameter_element_bytes() + 2 * problem.rows * 4;
}

/// The bytes of the tensors of M x N elements that a backward pass must read and write: dy, x or
/// the sum, dx, and what a fusion adds.
inline std::int64_t backward_tensor_bytes(const Problem& problem) {
  const std::int64_t residual = problem.rows * problem.cols * problem.residual_element_bytes();
  return (2 + problem.fusion.second_affine + problem.writes_dx1()) * problem.tensor_bytes() +
         (1 + problem.fusion.prenorm + problem.writes_dresidual()) * residual;
}

/// The bytes of a chapter that walks its `inputs` tensors (x; dy and x) `walks` times with
/// `threads_per_row` threads and writes one tensor.
inline std::int64_t predict_bytes(const Problem& problem, const Gpu& gpu, int threads_per_row,
                                  int inputs, int walks) {
  const std::int64_t in_flight = rows_in_flight(problem, threads_per_row, gpu) * inputs *
                                 problem.cols * problem.element_bytes();
  return (inputs * device_reads(walks, in_flight, gpu) + 1) * problem.tensor_bytes() +
         parameter_bytes(problem);
}

}  // namespace lnc
