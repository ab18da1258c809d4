// The machine's state of a thread of a block.
#pragma once

#include <vector_types.h>

#include <array>
#include <boost/context/fiber.hpp>
#include <cstddef>
#include <cstdint>
#include <source_location>

#include "common/simt/copies.h"
#include "common/simt/machine.h"
#include "common/simt/watch.h"

namespace simt {

inline constexpr unsigned kWarpSize = 32;

/// The index of thread `i` in a block, or of block `i` in a grid.
inline uint3 index_of(std::uint64_t i, dim3 extent) {
  return {static_cast<unsigned>(i % extent.x), static_cast<unsigned>(i / extent.x % extent.y),
          static_cast<unsigned>(i / extent.x / extent.y)};
}

/// Where a thread, or the scheduler, was suspended, and on which stack.
struct Context {
  /// Empty while it runs, before a thread has started and after it has ended.
  boost::context::fiber stopped;
  const void* bottom = nullptr;  ///< of its stack
  std::size_t size = 0;
  void* asan_keep = nullptr;
};

struct Thread {
  enum class State { Runnable, Waiting, Exited };

  unsigned number = 0;
  uint3 index = {};
  State state = State::Runnable;
  Context context;
  // The operation that it waits at, its inputs, and its result.
  Op op = Op::BlockBarrier;
  unsigned mask = 0;
  std::uint64_t value = 0;
  unsigned source = 0;
  std::source_location where;
  std::uint64_t result = 0;
  const void* object = nullptr;  // the Barrier that it waits for
  ThreadCopies copies;
  unsigned groups = 0;              // of bulk stores, committed
  unsigned operations = 0;          // at which it has arrived
  Place place = nullptr;            // of its last operation, in the kernel's machine code
  std::uint64_t cluster_phase = 0;  // the last one it arrived for
  bool waited_for_grid = false;     // has called grid_dependency_wait
  // Where it spins, if it does: what it polls, and how often in a row; where the clock interrupted
  // it, and the states in which the clock has found it.
  const void* polled = nullptr;
  unsigned polls = 0;
  const void* loaded_word = nullptr;  // by its last access, as far as the machine sees
  Place interrupted_at = nullptr;
  Place interrupted_before = nullptr;  // the time before: the clock may interrupt itself
  std::array<std::uint64_t, 8> states{};
  unsigned newest_state = 0;
  bool was_new = false;

  bool is_runnable() const { return state == State::Runnable; }
  bool waits_at(Op at) const { return state == State::Waiting && op == at; }
  unsigned warp() const { return number / kWarpSize; }
  unsigned lane() const { return number % kWarpSize; }
};

}  // namespace simt
