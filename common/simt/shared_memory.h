// The shared memory of a block: what it allocates for dynamic_shared(), and every `__shared__` of
// the program, which is thread-local storage of the block's core.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <vector>

#include "common/simt/watch.h"

namespace simt {

class SharedMemory {
 public:
  /// @param bytes of dynamic shared memory; filled with 0xFF
  explicit SharedMemory(std::size_t bytes);

  std::byte* dynamic() const { return dynamic_.get(); }
  bool holds(const std::byte* p) const {
    return (p >= dynamic() && p < dynamic() + bytes_) ||
           (p >= static_.data() && p < static_.data() + static_.size());
  }
  /// The address here of what `other` has at `p`; null where that is not in its shared memory.
  std::byte* same_place(const SharedMemory& other, const std::byte* p) const;
  /// Whether a thread has written to the bytes past the end of the dynamic part.
  bool overrun() const;
  /// Where each `__shared__` may be: all thread-local variables but CUDA's special registers, since
  /// kernels use no others.
  std::vector<DeviceBuffer> static_parts() const;

 private:
  static constexpr std::align_val_t kAlignment{128};
  struct Delete {
    void operator()(std::byte* p) const { ::operator delete(p, kAlignment); }
  };

  const std::size_t bytes_;
  const std::unique_ptr<std::byte, Delete> dynamic_;
  const std::span<std::byte> static_;
};

/// Whether an address is in threadIdx, blockIdx, blockDim or gridDim.
bool in_special_register(const std::byte* p);

}  // namespace simt
