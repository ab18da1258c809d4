// The stacks on which the machine's fibers run, and what the address sanitizer must know of them.
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

// The address sanitizer must be told when execution moves from one stack to another, and that a
// stack is clean again: a fiber's outermost frames end without returning, so their red zones would
// stay.
#if defined(__SANITIZE_ADDRESS__)
constexpr std::size_t kStackBytes = 256 << 10;  // its red zones make frames several times larger
constexpr std::size_t kBehindShared = 0;  // what lies behind a block's shared memory is its to see
inline void before_switch(void** keep, const void* bottom, std::size_t size) {
  __sanitizer_start_switch_fiber(keep, bottom, size);
}
inline void after_switch(void* kept, const void** old_bottom = nullptr,
                         std::size_t* old_size = nullptr) {
  __sanitizer_finish_switch_fiber(kept, old_bottom, old_size);
}
// The outermost frames lie at the stack's top. Those below have returned, or an exception has
// cleaned up behind them.
constexpr std::size_t kOutermostBytes = 16 << 10;
inline void clean(const stack_context& stack) {
  __asan_unpoison_memory_region(static_cast<char*>(stack.sp) - kOutermostBytes, kOutermostBytes);
}
#else
constexpr std::size_t kStackBytes = 64 << 10;
constexpr std::size_t kBehindShared =
    64;  // bytes behind a block's shared memory, to stay untouched
inline void before_switch(void**, const void*, std::size_t) {}
inline void after_switch(void*, const void** = nullptr, std::size_t* = nullptr) {}
inline void clean(const stack_context&) {}
#endif

// Stacks survive their fiber, since mapping one costs more than running most threads. The page
// below each is a guard: a kernel that outgrows its stack stops there. Aligned, since the pools of
// two cores in one line of the cache would make each wait for the other.
struct alignas(128) StackPool {
  boost::context::protected_fixedsize_stack source{kStackBytes};
  std::vector<stack_context> free;

  stack_context take() {
    if (free.empty()) return source.allocate();
    const stack_context stack = free.back();
    free.pop_back();
    return stack;
  }
  ~StackPool() {
    for (stack_context& stack : free) source.deallocate(stack);
  }
};
inline thread_local StackPool* stack_pool = nullptr;  // of the core that this is, while a grid runs

struct ReturnToPool {
  void deallocate(stack_context& stack) {
    clean(stack);  // whatever lies here next, even if that is another core's
    stack_pool->free.push_back(stack);
  }
};

}  // namespace simt
