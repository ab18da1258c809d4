// A problem with contents: random inputs, the same on the host and on the device.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "common/kernel/description.h"
#include "common/harness/device.h"
#include "reference_cpu/fused_layer_norm.h"

namespace lnc {

/// Bytes of device memory that `chapter` needs for `problem`; a double, since a mistyped problem
/// may need more than 2^63.
double needed_device_bytes(const Chapter& chapter, const Problem& problem);

/// Bytes of host memory that the reference and the check need: a few rows of doubles a thread.
double needed_host_bytes(const Problem& problem);
std::int64_t free_host_bytes();

/// The reference's name for a kind.
inline reference::Norm reference_norm(Kind kind) {
  return kind == Kind::Layer ? reference::Norm::Layer : reference::Norm::Rms;
}

/// A range of whole rows, [begin, begin + count).
struct RowRange {
  std::int64_t begin;
  std::int64_t count;
};

inline constexpr std::int64_t kChunkElements = 1 << 16;

/// Calls `body(RowRange)` for every piece of the rows, on several threads at once. The pieces are
/// small enough to stay in a core's cache, whatever the problem's size. What `body` throws, this
/// throws, once all threads have ended.
template <typename Body>
void for_each_row_chunk(const Problem& problem, const Body& body) {
  const std::int64_t per_chunk = std::max<std::int64_t>(1, kChunkElements / problem.cols);
  const std::int64_t chunks = (problem.rows + per_chunk - 1) / per_chunk;
  std::exception_ptr failure;
#pragma omp parallel for schedule(dynamic)
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    try {
      const std::int64_t begin = chunk * per_chunk;
      body(RowRange{begin, std::min(per_chunk, problem.rows - begin)});
    } catch (...) {
#pragma omp critical(lnc_row_chunk)
      failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

enum class Input {
  X,
  Weight,
  Bias,
  Dy,
  X1,
  Residual,
  Rowscale,
  Rowscale1,
  Weight1,
  Bias1,
  Dy1,
  DresidualOut
};

/// Whether the problem has this input.
bool has(const Problem& problem, Input input);

/// Elements [begin, begin + count) of an input, rounded to T. Each is a function of the seed and
/// its index alone, near to normally distributed: x around Problem::offset, weights and rowscales
/// around 1, all others around 0.
template <typename T>
std::vector<T> random_elements(const Problem& problem, Input input, std::int64_t begin,
                               std::int64_t count);

/// The same as doubles, for the reference; empty where the problem does not have the input.
template <typename T>
std::vector<double> reference_elements(const Problem& problem, Input input, std::int64_t begin,
                                       std::int64_t count);

/// The dropout seeds of rows [begin, begin + count) of x (or x1); empty without dropout (or x1).
std::vector<std::uint32_t> dropout_seeds(const Problem& problem, Input input, std::int64_t begin,
                                         std::int64_t count);

/// mean and rstd of some rows, as a perfect forward pass would store them: rounded to float.
/// mean is empty for Kind::Rms.
struct RowStatistics {
  std::vector<float> mean, rstd;
};
template <typename T>
RowStatistics row_statistics(const Problem& problem, RowRange rows);

/// The inputs of a fused forward pass in some rows, for the reference.
template <typename T>
struct FusedInputs {
  std::vector<double> x, x1, residual, rowscale, rowscale1;
  std::vector<std::uint32_t> seeds, seeds1;

  FusedInputs(const Problem& problem, RowRange rows);
  /// All of it but the parameters; refers to this.
  reference::FusedForwardInput without_parameters(const Problem& problem, RowRange rows) const;
};

/// What a perfect fused forward pass saves of some rows for the backward pass: their sum, rounded
/// to the residual's type, and the statistics of the sum before that.
struct FusedRows {
  std::vector<double> sum;
  RowStatistics statistics;
};
template <typename T>
FusedRows fused_rows(const Problem& problem, RowRange rows);

/// y of some rows, as a perfect forward pass would store it: rounded to T.
template <typename T, typename W>
std::vector<T> forward_output(const Problem& problem, RowRange rows);

/// An array in device memory that may start past a 16-byte boundary, as Problem::misalign says.
template <typename T>
class Tensor {
 public:
  Tensor() = default;
  Tensor(std::int64_t count, int misalign)
      : buffer_(count == 0 ? 0 : (count + misalign) * sizeof(T)),
        count_(count),
        misalign_(misalign) {}

  T* data() const { return count_ == 0 ? nullptr : buffer_.template as<T>() + misalign_; }
  std::int64_t count() const { return count_; }
  const Buffer& buffer() const { return buffer_; }

 private:
  Buffer buffer_;
  std::int64_t count_ = 0;
  int misalign_ = 0;
};

/// Whether two chapters take the same inputs, so that they can work on one instance of a problem.
inline bool share_inputs(const Chapter& a, const Chapter& b) {
  return a.direction() == b.direction() && a.from_y == b.from_y;
}

/// A problem's inputs and outputs in device memory, for all chapters that share them. T is the type
/// of x, W that of the parameters.
template <typename T, typename W = T>
class Instance {
 public:
  /// `from_y`: the inputs of a backward pass hold y in place of x and mean.
  Instance(const Problem& problem, Direction direction, bool from_y = false);
  Instance(const Problem& problem, const Chapter& chapter)
      : Instance(problem, chapter.direction(), chapter.from_y) {}

  const Problem& problem() const { return problem_; }
  ForwardArgs<T, W> forward_args(const Buffer& workspace) const;
  BackwardArgs<T, W> backward_args(const Buffer& workspace) const;
  void poison_outputs() const;
  /// The outputs as they are in device memory now: y, mean, rstd and those of a fusion, or dx,
  /// dweight, dbias, y again and those of a fusion.
  std::vector<std::vector<std::byte>> outputs() const;
  /// Writes every input and output as DIRECTORY/<name>.npy, for NumPy; bfloat16 as its 16 bits.
  /// @throws std::runtime_error where a file cannot be written
  void dump(const std::string& directory) const;

 private:
  std::vector<const Buffer*> output_buffers() const;
  void allocate_fusion();
  void allocate_fused_backward();
  void upload_rows(RowRange rows);

  Problem problem_;
  Direction direction_;
  bool from_y_;
  Tensor<T> x_, dy_, x1_;  // x_ is y where from_y_
  Tensor<W> weight_, bias_, weight1_, bias1_;
  Tensor<std::byte> residual_;
  Tensor<float> rowscale_, rowscale1_;
  Tensor<std::uint32_t> seeds_, seeds1_;
  Tensor<float> mean_, rstd_;  // forward: outputs; backward: inputs
  Tensor<T> y_, y1_;           // y, or dx
  Tensor<T> y_again_;
  Tensor<W> dweight_, dbias_;
  Tensor<std::byte> residual_out_;  // forward: an output; backward: an input
  Tensor<std::uint8_t> mask_, mask1_;
  Tensor<T> dy1_, dx1_;
  Tensor<std::byte> dresidual_out_, dresidual_;
  Tensor<W> dweight1_, dbias1_;
};

}  // namespace lnc
