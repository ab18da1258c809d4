// Dense, aligned copies of a call's tensors: how a batch-invariant pass gives a row the same bits
// wherever the caller's tensors start.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/kernel/contract.h"

namespace lnc {

/// A matrix [rows, cols] of the caller's; a vector is one row.
struct StagedShape {
  std::int64_t rows;
  std::int64_t cols;
  std::int64_t element_bytes;  ///< 2 or 4
  RowStrides strides = {};     ///< of an input
};

/// Replaces the caller's tensors by copies in a workspace: copies inputs at once, and outputs in
/// copy_back().
class Staging {
 public:
  static constexpr std::int64_t kAlignment = 256;

  /// Only adds up the bytes that the copies take.
  Staging() = default;
  /// @param memory bytes() of a measuring Staging, at a 16-byte boundary
  Staging(std::byte* memory, cudaStream_t stream) : memory_(memory), stream_(stream) {}

  const void* in(const void* tensor, const StagedShape& shape);
  void* out(void* tensor, const StagedShape& shape);
  void copy_back() const;
  std::int64_t bytes() const { return bytes_; }

 private:
  void* place_for(const StagedShape& shape);

  struct Copy {
    const void* from;
    void* to;
    StagedShape shape;
  };
  std::byte* memory_ = nullptr;
  cudaStream_t stream_ = nullptr;
  std::int64_t bytes_ = 0;
  std::vector<Copy> outputs_;
};

}  // namespace lnc
