// Pointers to the host's memory that a program passes to a kernel, which a GPU could not follow.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>
#include <vector>

namespace simt {

/// The pointers among a kernel's arguments to memory on the heap or the stack that is no buffer.
/// While this exists, the address sanitizer reports each access to what they point to; without the
/// sanitizer it does nothing.
class HostPointers {
 public:
  template <typename... Args>
  explicit HostPointers(const Args&... args) {
    (find_in(args), ...);
  }
  ~HostPointers();
  HostPointers(const HostPointers&) = delete;

 private:
  template <typename T>
  void find_in(const T& argument) {  // a pointer, or a struct with pointers
    if constexpr (std::is_trivially_copyable_v<T>) {
      void* words[std::max<std::size_t>(sizeof(T) / sizeof(void*), 1)] = {};
      std::memcpy(words, &argument, sizeof(T) / sizeof(void*) * sizeof(void*));
      for (void* const word : words) hide(word);
    }
  }
  void hide(void* pointer);

  struct Region {
    void* begin;
    std::size_t bytes;
  };
  std::vector<Region> hidden_;
};

}  // namespace simt
