// How the machine lets others see what a kernel does: each access to memory, each operation that
// threads meet or wait at, each copy, in the order in which they happen.
//
// Nobody watches unless set_watch has been called. Accesses are seen in a build with -DWATCH=ON
// alone: there the compiler puts a call before each load and store of a kernel (instrument.cpp).
// common/watch/ has those who watch.
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

/// A buffer in device memory. What lies outside of all of them, and outside of shared memory, is a
/// thread's own: its stack stands for registers.
struct DeviceBuffer {
  const std::byte* begin;
  std::size_t bytes;
};

/// Makes a buffer known to the machine, or unknown. Not while a kernel runs.
void add_device_buffer(const void* begin, std::size_t bytes);
void remove_device_buffer(const void* begin);
/// In rising order of their addresses.
const std::vector<DeviceBuffer>& device_buffers();
/// The one that holds an address; null where none does.
const DeviceBuffer* device_buffer_of(const std::byte* address);

// --------------------------------------------------------------------------------- what is seen

/// Where in the program something happens: the return address of the call that tells of it, in the
/// kernel's machine code. Every helper is inlined into the kernel, so that this says through which
/// calls the thread came there, and debug information turns it into lines.
using Place = const void*;

enum class Kind : std::uint8_t { Load, Store, Atomic };
enum class Space : std::uint8_t {
  Device,  ///< a DeviceBuffer
  Shared,  ///< of the own block
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

/// A copy that arrives later than it is begun.
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

/// Who watches a block. The machine calls, on the block's core, while or before the thing happens;
/// threads are numbered as in the block, warps likewise. What a watcher need not know it leaves.
class Witness {
 public:
  virtual ~Witness() = default;

  /// A thread enters a basic block of the kernel: code without a branch.
  virtual void enters([[maybe_unused]] unsigned thread, [[maybe_unused]] Place place) {}
  /// A thread is about to touch memory.
  virtual void touches([[maybe_unused]] unsigned thread, [[maybe_unused]] const Access& access) {}

  /// The lanes of a warp that `lanes` has bits of have met at a warp operation, and it ends.
  virtual void meets([[maybe_unused]] unsigned warp, [[maybe_unused]] unsigned lanes,
                     [[maybe_unused]] Op op, [[maybe_unused]] Place place) {}
  /// Which lane each lane of the shuffle reads that `meets` tells of next.
  virtual void shuffles([[maybe_unused]] unsigned warp,
                        [[maybe_unused]] const std::array<unsigned, 32>& from) {}
  /// All threads of the block have met at __syncthreads.
  virtual void block_meets([[maybe_unused]] Place place) {}
  /// A thread begins to wait at an operation that it did not find over; it goes on when `goes_on`.
  virtual void waits([[maybe_unused]] unsigned thread, [[maybe_unused]] Op op,
                     [[maybe_unused]] Place place, [[maybe_unused]] const void* object) {}
  virtual void goes_on([[maybe_unused]] unsigned thread) {}
  virtual void exits([[maybe_unused]] unsigned thread) {}

  virtual void fence([[maybe_unused]] unsigned thread, [[maybe_unused]] Scope scope) {}
  /// fence_proxy_async: what the thread has written before, the copy engine sees.
  virtual void fence_for_copies([[maybe_unused]] unsigned thread) {}
  virtual void fence_barrier_init([[maybe_unused]] unsigned thread) {}

  virtual void inits([[maybe_unused]] unsigned thread, [[maybe_unused]] const void* barrier) {}
  virtual void arrives([[maybe_unused]] unsigned thread, [[maybe_unused]] const void* barrier) {}
  /// The same at a barrier of another block of the cluster, which `other` watches.
  virtual void arrives_at([[maybe_unused]] unsigned thread, [[maybe_unused]] Witness& other,
                          [[maybe_unused]] const void* barrier) {}
  /// All arrivals and bytes of the barrier's phase have come.
  virtual void completes([[maybe_unused]] const void* barrier) {}
  /// A thread's wait for the barrier is over; what it sees then was done at `scope` or nearer.
  virtual void passes([[maybe_unused]] unsigned thread, [[maybe_unused]] const void* barrier,
                      [[maybe_unused]] Scope scope) {}

  virtual void cluster_arrives([[maybe_unused]] unsigned thread, [[maybe_unused]] Publishes what) {}
  virtual void cluster_passes([[maybe_unused]] unsigned thread) {}

  /// A thread begins a copy, which is given a `number` of its own in the program.
  virtual void begins([[maybe_unused]] unsigned thread, [[maybe_unused]] std::uint64_t number,
                      [[maybe_unused]] const Copy& copy) {}
  /// A copy arrives: for OfThread in its thread's own wait, else at any time.
  virtual void arrives([[maybe_unused]] std::uint64_t number) {}
  /// A thread makes a group of the copies of this kind that it has begun since the last.
  virtual void commits([[maybe_unused]] unsigned thread, [[maybe_unused]] Copy::Kind kind) {}
  /// Of its groups of this kind all but the last `prior` are over for this thread. Of a BulkStore
  /// that says that its source was read.
  virtual void waited([[maybe_unused]] unsigned thread, [[maybe_unused]] Copy::Kind kind,
                      [[maybe_unused]] std::size_t prior) {}

  virtual void waits_for_grid([[maybe_unused]] unsigned thread) {}
  virtual void launches_dependents([[maybe_unused]] unsigned thread) {}
};

/// A block that begins, as its watcher gets to know it.
struct BlockInfo {
  const Launch& launch;
  std::uint64_t number;  ///< in the grid, x first
  unsigned rank;         ///< in its cluster
  const std::byte* dynamic_shared;
  std::vector<DeviceBuffer> static_shared;  ///< where each __shared__ of the program may lie
};

/// Who watches launches. The machine calls begins_block from several cores at once.
class Watch {
 public:
  virtual ~Watch() = default;
  virtual void begins([[maybe_unused]] const Launch& launch) {}
  /// Who shall watch the block; null: nobody.
  virtual std::unique_ptr<Witness> begins_block(const BlockInfo& block) = 0;
  virtual void ends([[maybe_unused]] const Launch& launch) {}
  /// Whether blocks must run one after another, in their order.
  virtual bool one_at_a_time() const { return false; }
};

/// For a Witness that is told of a thread's operation: where the thread called it.
Place here();

/// Who watches the launches to come; null: nobody. It must outlive them.
void set_watch(Watch* watch);

// --------------------------------------------------------------------------------- who tells

/// For instrument.cpp: the running thread enters a basic block; touches memory.
void enters(Place place);
void touches(Place place, const void* address, std::uint32_t bytes, Kind kind);

/// For cuda.h: the running thread is about to update `bytes` at once; to load them past L1; has a
/// fence.
void updates(const void* address, std::uint32_t bytes, Scope scope = Scope::Device);
void loads_past_l1(const void* address, std::uint32_t bytes);
void fence(Scope scope);
void launches_dependents();

}  // namespace simt
