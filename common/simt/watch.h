// How the machine reports what a kernel does: each access to memory, each operation at which
// threads meet or wait, and each copy, in the order in which they happen.
//
// Nothing is reported until set_watch has been called, and accesses only in a build with
// -DWATCH=ON: there the compiler inserts a call before each load and store of a kernel
// (instrument.cpp). common/watch/ has the watchers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/simt/machine.h"

namespace simt {

// --------------------------------------------------------------------------------- device memory

/// A buffer in device memory. Memory outside of all buffers and of shared memory is a thread's own:
/// its stack represents registers.
struct DeviceBuffer {
  const std::byte* begin;
  std::size_t bytes;
};

/// Registers a buffer, or removes it. Not while a kernel runs.
void add_device_buffer(const void* begin, std::size_t bytes);
void remove_device_buffer(const void* begin);
/// In rising order of their addresses.
const std::vector<DeviceBuffer>& device_buffers();
/// The one that contains an address; null if none does.
const DeviceBuffer* device_buffer_of(const std::byte* address);

// --------------------------------------------------------------------------------- what is seen

/// Where in the program something happens: the return address of the call that reports it, in the
/// kernel's machine code. Every helper is inlined into the kernel, so debug information turns the
/// address into the chain of lines from which the helpers were called.
using Place = const void*;

enum class Kind : std::uint8_t { Load, Store, Atomic };
enum class Space : std::uint8_t {
  Device,  ///< a DeviceBuffer
  Shared,  ///< of the same block
  Remote   ///< of another block of the cluster
};

/// A thread loads, stores or updates `bytes` of memory.
struct Access {
  Place place;
  const std::byte* address;
  std::uint32_t bytes;
  Kind kind;
  Space space;
  Scope scope = Scope::Device;  ///< of an atomic
  bool past_l1 = false;         ///< a load that L1 does not serve: __ldcg
};

/// A copy that arrives later than it begins.
struct Copy {
  enum class Kind {
    OfThread,    ///< __pipeline_memcpy_async, waited for by its thread
    BulkLoad,    ///< by the copy engine to shared memory; completes on `barrier`
    BulkStore,   ///< by the copy engine from shared memory; waited for by its thread
    RemoteStore  ///< of a value to another block's shared memory; completes on `barrier` there
  };
  Kind kind;
  Place place;
  const void* to;
  const void* from;  ///< null for a RemoteStore: a register
  std::size_t bytes;
  const void* barrier;
};

/// Watches a block. The machine calls it on the block's core, before or while something happens;
/// threads and warps are numbered as in the block. A watcher overrides only what it needs.
class Witness {
 public:
  virtual ~Witness() = default;

  /// A thread enters a basic block of the kernel: code without a branch.
  virtual void enters([[maybe_unused]] unsigned thread, [[maybe_unused]] Place place) {}
  /// A thread is about to touch memory.
  virtual void touches([[maybe_unused]] unsigned thread, [[maybe_unused]] const Access& access) {}

  /// The lanes of a warp in the mask `lanes` have met at a warp operation, which ends.
  virtual void meets([[maybe_unused]] unsigned warp, [[maybe_unused]] unsigned lanes,
                     [[maybe_unused]] Op op, [[maybe_unused]] Place place) {}
  /// Which lane each lane reads in the shuffle that the next `meets` reports.
  virtual void shuffles([[maybe_unused]] unsigned warp,
                        [[maybe_unused]] const std::array<unsigned, 32>& from) {}
  /// All threads of the block have met at __syncthreads.
  virtual void block_meets([[maybe_unused]] Place place) {}
  /// A thread begins to wait at an operation that is not over; `goes_on` ends the wait.
  virtual void waits([[maybe_unused]] unsigned thread, [[maybe_unused]] Op op,
                     [[maybe_unused]] Place place, [[maybe_unused]] const void* object) {}
  virtual void goes_on([[maybe_unused]] unsigned thread) {}
  virtual void exits([[maybe_unused]] unsigned thread) {}

  virtual void fence([[maybe_unused]] unsigned thread, [[maybe_unused]] Scope scope) {}
  /// fence_proxy_async: the copy engine sees what the thread has written before.
  virtual void fence_for_copies([[maybe_unused]] unsigned thread) {}
  virtual void fence_barrier_init([[maybe_unused]] unsigned thread) {}

  virtual void inits([[maybe_unused]] unsigned thread, [[maybe_unused]] const void* barrier) {}
  virtual void arrives([[maybe_unused]] unsigned thread, [[maybe_unused]] const void* barrier) {}
  /// The same at a barrier of another block of the cluster, watched by `other`.
  virtual void arrives_at([[maybe_unused]] unsigned thread, [[maybe_unused]] Witness& other,
                          [[maybe_unused]] const void* barrier) {}
  /// All arrivals and bytes of the barrier's phase have arrived.
  virtual void completes([[maybe_unused]] const void* barrier) {}
  /// A thread's wait for the barrier is over; it sees what was done at `scope` or nearer.
  virtual void passes([[maybe_unused]] unsigned thread, [[maybe_unused]] const void* barrier,
                      [[maybe_unused]] Scope scope) {}

  virtual void cluster_arrives([[maybe_unused]] unsigned thread, [[maybe_unused]] Publishes what) {}
  virtual void cluster_passes([[maybe_unused]] unsigned thread) {}

  /// A thread begins a copy, whose `number` is unique in the program.
  virtual void begins([[maybe_unused]] unsigned thread, [[maybe_unused]] std::uint64_t number,
                      [[maybe_unused]] const Copy& copy) {}
  /// A copy arrives: OfThread during its thread's wait, any other at any time.
  virtual void arrives([[maybe_unused]] std::uint64_t number) {}
  /// A thread makes a group of the copies of this kind that it has begun since the last group.
  virtual void commits([[maybe_unused]] unsigned thread, [[maybe_unused]] Copy::Kind kind) {}
  /// All of the thread's groups of this kind except the last `prior` are over. For a BulkStore that
  /// means that its source has been read.
  virtual void waited([[maybe_unused]] unsigned thread, [[maybe_unused]] Copy::Kind kind,
                      [[maybe_unused]] std::size_t prior) {}

  virtual void waits_for_grid([[maybe_unused]] unsigned thread) {}
  virtual void launches_dependents([[maybe_unused]] unsigned thread) {}
};

/// What a watcher is told about a block that begins.
struct BlockInfo {
  const Launch& launch;
  std::uint64_t number;  ///< in the grid, x first
  unsigned rank;         ///< in its cluster
  const std::byte* dynamic_shared;
  std::vector<DeviceBuffer> static_shared;  ///< where each __shared__ of the program may lie
};

/// Watches launches. The machine calls begins_block from several cores at once.
class Watch {
 public:
  virtual ~Watch() = default;
  virtual void begins([[maybe_unused]] const Launch& launch) {}
  /// The block's watcher; null for none.
  virtual std::unique_ptr<Witness> begins_block(const BlockInfo& block) = 0;
  virtual void ends([[maybe_unused]] const Launch& launch) {}
  /// Whether blocks must run one after another, in their order.
  virtual bool one_at_a_time() const { return false; }
};

/// For a Witness that is called for a thread's operation: where the thread called that.
Place here();

/// Sets the watcher of later launches, which it must outlive; null for none.
void set_watch(Watch* watch);

// --------------------------------------------------------------------------------- who reports

/// For instrument.cpp: the running thread enters a basic block; touches memory.
void enters(Place place);
void touches(Place place, const void* address, std::uint32_t bytes, Kind kind);

/// For cuda.h: the running thread is about to update `bytes` atomically; to load them past L1; has
/// executed a fence.
void updates(const void* address, std::uint32_t bytes, Scope scope = Scope::Device);
void loads_past_l1(const void* address, std::uint32_t bytes);
void fence(Scope scope);
void launches_dependents();

}  // namespace simt
