// The stacks that fibers run on, and their annotations for the address sanitizer.
#pragma once

#include <boost/context/protected_fixedsize_stack.hpp>
#include <boost/context/stack_context.hpp>
#include <cstddef>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace simt {

using boost::context::stack_context;

// The address sanitizer must be told when execution switches stacks, and when a stack is free
// again: a fiber's outermost frames never return, so their red zones would remain.
#if defined(__SANITIZE_ADDRESS__)
constexpr std::size_t kStackBytes = 256 << 10;  // its red zones make frames several times larger
constexpr std::size_t kBehindShared = 0;        // the sanitizer itself reports writes past the end
inline void before_switch(void** keep, const void* bottom, std::size_t size) {
  __sanitizer_start_switch_fiber(keep, bottom, size);
}
inline void after_switch(void* kept, const void** old_bottom = nullptr,
                         std::size_t* old_size = nullptr) {
  __sanitizer_finish_switch_fiber(kept, old_bottom, old_size);
}
// The outermost frames are at the top of the stack. All deeper frames have returned or were unwound
// by an exception.
constexpr std::size_t kOutermostBytes = 16 << 10;
inline void clean(const stack_context& stack) {
  __asan_unpoison_memory_region(static_cast<char*>(stack.sp) - kOutermostBytes, kOutermostBytes);
}
#else
constexpr std::size_t kStackBytes = 64 << 10;
constexpr std::size_t kBehindShared = 64;  // guard bytes past the end of a block's shared memory
inline void before_switch(void**, const void*, std::size_t) {}
inline void after_switch(void*, const void** = nullptr, std::size_t* = nullptr) {}
inline void clean(const stack_context&) {}
#endif

// Stacks are reused, since mapping one costs more than running most threads. Below each is a guard
// page, on which a kernel that overflows its stack faults. The alignment avoids false sharing
// between the pools of two cores.
struct alignas(128) StackPool {
  boost::context::protected_fixedsize_stack source{kStackBytes};
  std::vector<stack_context> free;

  stack_context take() {
    if (free.empty()) return source.allocate();
    const stack_context stack = free.back();
    free.pop_back();
    return stack;
  }
  void unmap() {
    for (stack_context& stack : free) source.deallocate(stack);
    free.clear();
  }
  ~StackPool() { unmap(); }
};
inline thread_local StackPool* stack_pool = nullptr;  // of this core, while a grid runs

struct ReturnToPool {
  void deallocate(stack_context& stack) {
    clean(stack);  // for the next fiber, perhaps on another core
    stack_pool->free.push_back(stack);
  }
};

}  // namespace simt
