// A problem with contents: random inputs, the same on the host and on the device.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <vector>

#include "common/chapter.h"
#include "common/device.h"

namespace lnc {

/// Bytes of device memory that `chapter` needs for `problem`; a double, since a mistyped problem
/// may need more than 2^63.
double needed_device_bytes(const Chapter& chapter, const Problem& problem);

/// Bytes of host memory that the reference and the check need: a few rows of doubles a thread.
double needed_host_bytes(const Problem& problem);
std::int64_t free_host_bytes();

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

enum class Input { X, Weight, Bias, Dy };

/// Elements [begin, begin + count) of an input, rounded to T. Each is a function of the seed and
/// its index alone, near to normally distributed: x around 0.5, weight around 1, bias and dy around
/// 0.
template <typename T>
std::vector<T> random_elements(const Problem& problem, Input input, std::int64_t begin,
                               std::int64_t count);

/// The same as doubles, for the reference. Empty for weight without affine, for bias without affine
/// and for Kind::Rms, which has none.
template <typename T>
std::vector<double> reference_elements(const Problem& problem, Input input, std::int64_t begin,
                                       std::int64_t count);

/// mean and rstd of some rows, as a perfect forward pass would store them: rounded to float.
/// mean is empty for Kind::Rms.
struct RowStatistics {
  std::vector<float> mean, rstd;
};
template <typename T>
RowStatistics row_statistics(const Problem& problem, RowRange rows);

/// A problem's inputs and outputs in device memory, for all chapters of one direction.
template <typename T>
class Instance {
 public:
  Instance(const Problem& problem, Direction direction);

  const Problem& problem() const { return problem_; }
  ForwardArgs<T> forward_args(const Buffer& workspace) const;
  BackwardArgs<T> backward_args(const Buffer& workspace) const;
  void poison_outputs() const;
  /// The outputs as they are in device memory now: y, mean, rstd, or dx, dweight, dbias.
  std::vector<std::vector<std::byte>> outputs() const;

 private:
  std::vector<const Buffer*> output_buffers() const;

  Problem problem_;
  Direction direction_;
  Buffer x_, weight_, bias_, dy_;  // bias_: forward only; dy_: backward only
  Buffer mean_, rstd_;             // forward: outputs; backward: inputs
  Buffer tensor_;                  // y or dx
  Buffer dweight_, dbias_;
};

/// Calls `body.template operator()<T>()` with the element type of `dtype`.
template <typename Body>
auto with_element_type(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::F16:
      return body.template operator()<__half>();
    case DType::BF16:
      return body.template operator()<__nv_bfloat16>();
    case DType::F32:
      break;
  }
  return body.template operator()<float>();
}

}  // namespace lnc
