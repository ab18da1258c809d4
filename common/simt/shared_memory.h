// A block's shared memory: its allocation for dynamic_shared(), and every `__shared__` of the
// program, which is thread-local storage of the block's core.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <vector>

#include "common/simt/watch.h"

namespace simt {

class SharedMemory {
 public:
  /// Fills all of it with 0xFF, which is NaN. @param bytes of dynamic shared memory
  explicit SharedMemory(std::size_t bytes);

  std::byte* dynamic() const { return dynamic_.get(); }
  bool holds(const std::byte* p) const {
    return (p >= dynamic() && p < dynamic() + bytes_) ||
           (p >= static_.data() && p < static_.data() + static_.size());
  }
  /// An address in 32 bits, as PTX has it: static variables first, then what is dynamic.
  std::uint32_t address(const std::byte* p) const;
  std::byte* at(std::uint32_t address) const;
  /// The address that corresponds to `p` in `other`; null if `p` is not in `other`.
  std::byte* same_place(const SharedMemory& other, const std::byte* p) const;
  /// Whether `p` is in what the compiler adds to a `__shared__` of a type with a constructor: a
  /// flag of whether it has run.
  bool is_guard(const std::byte* p) const;
  /// Whether a thread has written to the bytes past the end of the dynamic part.
  bool overrun() const;
  /// The memory that may hold a `__shared__`: all thread-local variables except CUDA's special
  /// registers. Kernels use no other thread-local variables.
  std::vector<DeviceBuffer> static_parts() const;

 private:
  static constexpr std::align_val_t kAlignment{128};
  static constexpr std::uint32_t kStaticAt = 1024;  // below it are the system's own bytes
  static constexpr std::uint32_t kDynamicAt = 1 << 25;
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
