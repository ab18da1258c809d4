// What the headers in common/simt/include share. They have the names of CUDA's libraries, which
// kernels from elsewhere include and g++ cannot compile, and spell the machine's own barriers,
// shuffles, atomics and copies in those libraries' way.
//
// What a library has and these do not is SIMT_REFUSED: a use of it does not compile, and the
// message says what to use instead.
#pragma once

#include <cstring>
#include <source_location>
#include <type_traits>

#include "common/simt/cuda.h"

namespace simt {

template <typename...>
inline constexpr bool kRefused = false;

/// A function that does not compile where it is called, whatever its arguments.
#define SIMT_REFUSED(name, sentence)                \
  template <typename... Ts>                         \
  void name(Ts&&...) const {                        \
    static_assert(simt::kRefused<Ts...>, sentence); \
  }
#define SIMT_REFUSED_FUNCTION(name, sentence)       \
  template <typename... Ts>                         \
  void name(Ts&&...) {                              \
    static_assert(simt::kRefused<Ts...>, sentence); \
  }

/// The threads of the block.
inline unsigned threads_of_block() { return blockDim.x * blockDim.y * blockDim.z; }
/// This thread's number in its block, x first.
inline unsigned rank_in_block() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
/// This thread's number in its warp.
inline unsigned lane() { return rank_in_block() % 32; }

/// A shuffle of a value of any size, in words of 8 bytes.
template <typename T>
T shuffle_whole(Op op, unsigned mask, T value, int x, int width, std::source_location where) {
  static_assert(std::is_trivially_copyable_v<T>, "a shuffle moves the bytes of a value");
  if constexpr (Shuffled<T>) {
    return shuffle(op, mask, value, x, width, where);
  } else {
    std::uint64_t words[(sizeof(T) + 7) / 8] = {};
    std::memcpy(words, &value, sizeof(T));
    for (auto& word : words) word = shuffle(op, mask, word, x, width, where);
    std::memcpy(static_cast<void*>(&value), words, sizeof(T));
    return value;
  }
}

/// The lanes from the first lane of this lane's segment of `width` lanes.
inline unsigned segment_mask(unsigned width) {
  return (~0u >> (32 - width)) << (lane() & ~(width - 1));
}

namespace facades {

// Copies `count` of the units that the threads of a group of `size` share.
template <std::size_t kUnit>
void copy_units(std::byte*& to, const std::byte*& from, std::size_t& bytes, unsigned rank,
                unsigned size, std::source_location where) {
  const auto both = reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from);
  if (both % kUnit != 0) return;
  const std::size_t whole = bytes / kUnit * kUnit;
  for (std::size_t at = rank * kUnit; at < whole; at += size * kUnit)
    memcpy_async(to + at, from + at, kUnit, 0, where);
  to += whole;
  from += whole;
  bytes -= whole;
}

}  // namespace facades

/// Starts the copies of this thread, `rank` of `size`, of `bytes` that those threads copy together.
/// They arrive when it waits for them. Bytes that are not part of an aligned word arrive at once.
inline void copy_together(void* to_shared, const void* from, std::size_t bytes, unsigned rank,
                          unsigned size, std::source_location where) {
  auto* to = static_cast<std::byte*>(to_shared);
  const auto* source = static_cast<const std::byte*>(from);
  facades::copy_units<16>(to, source, bytes, rank, size, where);
  facades::copy_units<8>(to, source, bytes, rank, size, where);
  facades::copy_units<4>(to, source, bytes, rank, size, where);
  for (std::size_t at = rank; at < bytes; at += size) to[at] = source[at];
}

/// A value whose bytes are all 0xFF, NaN in every float format: what a library leaves undefined.
template <typename T>
T undefined() {
  T value;
  std::memset(static_cast<void*>(&value), 0xFF, sizeof(T));
  return value;
}

}  // namespace simt

namespace cuda {

/// A number of bytes that, like the addresses of its copy, is a multiple of `kAlignment`.
template <std::size_t kAlignment>
struct aligned_size_t {
  static constexpr std::size_t align = kAlignment;
  std::size_t value;
  explicit constexpr aligned_size_t(std::size_t bytes) : value(bytes) {}
  constexpr operator std::size_t() const { return value; }
};

}  // namespace cuda
