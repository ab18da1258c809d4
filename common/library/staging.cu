#include <algorithm>
#include <stdexcept>

#include "common/kernel/launch.h"
#include "common/kernel/rows.h"
#include "common/library/staging.h"

namespace lnc {
namespace {

constexpr int kThreads = 256;

template <typename Element, typename Rows>
__global__ void __launch_bounds__(kThreads)
    copy_rows(const Element* from, Rows from_rows, Element* to, int64_t rows, int64_t cols) {
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const Element* const source = from + from_rows.start(row, cols);
    for (int64_t col = threadIdx.x; col < cols; col += kThreads) {
      to[row * cols + col] = source[col];
    }
  }
}

template <typename Element>
void copy_elements(const void* from, void* to, const StagedShape& shape, cudaStream_t stream) {
  if (shape.rows == 0) return;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(shape.rows, 1 << 16));
  const auto run = [&]<typename Rows>(const Rows& rows) {
    launch(copy_rows<Element, Rows>, {blocks, kThreads, 0, stream},
           static_cast<const Element*>(from), rows, static_cast<Element*>(to), shape.rows,
           shape.cols);
  };
  if (shape.strides.apart) {
    run(StridedRows(shape.strides));
  } else {
    run(DenseRows{});
  }
}

void copy(const void* from, void* to, const StagedShape& shape, cudaStream_t stream) {
  if (shape.element_bytes == 2) return copy_elements<std::uint16_t>(from, to, shape, stream);
  if (shape.element_bytes == 4) return copy_elements<std::uint32_t>(from, to, shape, stream);
  throw std::logic_error("a staged element has 2 or 4 bytes");
}

}  // namespace

void* Staging::place_for(const StagedShape& shape) {
  void* const place = memory_ == nullptr ? nullptr : memory_ + bytes_;
  const std::int64_t bytes = shape.rows * shape.cols * shape.element_bytes;
  bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return place;
}

const void* Staging::in(const void* tensor, const StagedShape& shape) {
  void* const place = place_for(shape);
  if (place != nullptr) copy(tensor, place, shape, stream_);
  return place;
}

void* Staging::out(void* tensor, const StagedShape& shape) {
  void* const place = place_for(shape);
  if (place != nullptr) outputs_.push_back({place, tensor, shape});
  return place;
}

void Staging::copy_back() const {
  for (const Copy& output : outputs_) copy(output.from, output.to, output.shape, stream_);
}

}  // namespace lnc
