// How the machine reports what a kernel does: each memory access, each operation at which threads
// meet or wait, and each copy, in the order in which they happen.
//
// The machine reports nothing until set_watch has been called, and accesses only in a build with
// -DWATCH=ON, in which the compiler inserts a call before each load and store of a kernel
// (instrument.cpp). The watchers are in common/watch/.
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

inline constexpr int kNoGpu = -1;

/// A buffer in device memory. Memory outside all buffers and shared memory is private to a thread:
/// its stack represents registers.
struct DeviceBuffer {
  const std::byte* begin;
  std::size_t bytes;
  std::string name = "";  ///< of the variable that points to it; empty if unknown
  std::size_t element_bytes = 1;
  bool is_variable = false;  ///< a `__device__` variable
  int gpu = kNoGpu;          ///< in whose memory it is, of several
};

/// Registers a buffer, names it, says which of several GPUs it belongs to, or removes it. Not while
/// a kernel runs.
void add_device_buffer(const void* begin, std::size_t bytes);
void name_device_buffer(const void* begin, std::string name, std::size_t element_bytes);
void set_buffer_gpu(const void* begin, int gpu);
void remove_device_buffer(const void* begin);
/// Whether a buffer is in the memory of another GPU than the caller's.
bool is_across_link(const DeviceBuffer& buffer);
/// Registers every `__device__` variable, once. Some others of the program look the same.
void add_device_variables();
/// In ascending order of address.
const std::vector<DeviceBuffer>& device_buffers();
/// The buffer that contains an address; null if none does.
const DeviceBuffer* device_buffer_of(const std::byte* address);
/// The last of the removed buffers that contained it; null if none did.
const DeviceBuffer* former_device_buffer_of(const std::byte* address);

// --------------------------------------------------------------------------------- what is seen

/// Where in the program something happens: the return address of the call that reports it, in the
/// kernel's machine code. Every helper is inlined into the kernel, so debug information turns the
/// address into the chain of lines from which the helpers were called.
using Place = const void*;

enum class Kind : std::uint8_t { Load, Store, Atomic };
enum class Space : std::uint8_t {
  Device,  ///< a DeviceBuffer
  Shared,  ///< of the same block
  Remote   ///< shared memory of another block of the cluster
};

/// A thread loads, stores or updates `bytes` of memory.
struct Access {
  Place place;
  const std::byte* address;
  std::uint32_t bytes;
  Kind kind;
  Space space;
  Scope scope = Scope::Device;  ///< of an atomic
  bool past_l1 = false;         ///< a load that bypasses L1: __ldcg
  bool is_word = false;         ///< store_word or load_word (gpus.h), relaxed, for the System
  bool is_again = false;        ///< a load_word that polls: the thread's last access was the same
};

/// A copy that arrives later than it begins.
struct Copy {
  enum class Kind {
    OfThread,    ///< __pipeline_memcpy_async, waited for by its thread
    BulkLoad,    ///< by the copy engine to shared memory; completes on `barrier`
    BulkStore,   ///< by the copy engine from shared memory; waited for by its thread
    RemoteStore  ///< of a value to another block's shared memory; completes on its `barrier`
  };
  Kind kind;
  Place place;
  const void* to;
  const void* from;  ///< null for a RemoteStore, whose source is a register
  std::size_t bytes;
  const void* barrier;
};

/// Watches a block. The machine calls it on the block's core, before or during each event. Threads
/// and warps are numbered within the block. A watcher overrides only what it needs.
class Witness {
 public:
  virtual ~Witness() = default;

  /// A thread enters a basic block of the kernel: code without a branch.
  virtual void enters([[maybe_unused]] unsigned thread, [[maybe_unused]] Place place) {}
  /// A thread is about to access memory.
  virtual void touches([[maybe_unused]] unsigned thread, [[maybe_unused]] const Access& access) {}
  /// The same for a load_word. Returns whether the thread sees the newest value; if not, the load
  /// returns the value before it, since nothing says that the store is visible yet.
  virtual bool loads_word(unsigned thread, const Access& access) {
    touches(thread, access);
    return true;
  }

  /// The lanes in the mask `lanes` of a warp have met at a warp operation and complete it.
  virtual void meets([[maybe_unused]] unsigned warp, [[maybe_unused]] unsigned lanes,
                     [[maybe_unused]] Op op, [[maybe_unused]] Place place) {}
  /// Which lane each lane reads in the shuffle that the next `meets` reports.
  virtual void shuffles([[maybe_unused]] unsigned warp,
                        [[maybe_unused]] const std::array<unsigned, 32>& from) {}
  /// All threads of the block have met at __syncthreads.
  virtual void block_meets([[maybe_unused]] Place place) {}
  /// A thread starts to wait at an operation; `goes_on` ends the wait.
  virtual void waits([[maybe_unused]] unsigned thread, [[maybe_unused]] Op op,
                     [[maybe_unused]] Place place, [[maybe_unused]] const void* object) {}
  virtual void goes_on([[maybe_unused]] unsigned thread) {}
  virtual void exits([[maybe_unused]] unsigned thread) {}

  virtual void fence([[maybe_unused]] unsigned thread, [[maybe_unused]] Scope scope) {}
  /// fence_proxy_async: the copy engine sees the thread's earlier writes.
  virtual void fence_for_copies([[maybe_unused]] unsigned thread) {}
  virtual void fence_barrier_init([[maybe_unused]] unsigned thread) {}

  virtual void inits([[maybe_unused]] unsigned thread, [[maybe_unused]] const void* barrier) {}
  virtual void arrives([[maybe_unused]] unsigned thread, [[maybe_unused]] const void* barrier) {}
  /// A thread arrives at a barrier of another block of the cluster, which `other` watches.
  virtual void arrives_at([[maybe_unused]] unsigned thread, [[maybe_unused]] Witness& other,
                          [[maybe_unused]] const void* barrier) {}
  /// The barrier's phase is complete: it has all its arrivals and bytes.
  virtual void completes([[maybe_unused]] const void* barrier) {}
  /// A thread's wait for the barrier is over; it sees what happened within `scope`.
  virtual void passes([[maybe_unused]] unsigned thread, [[maybe_unused]] const void* barrier,
                      [[maybe_unused]] Scope scope) {}

  virtual void cluster_arrives([[maybe_unused]] unsigned thread, [[maybe_unused]] Publishes what) {}
  virtual void cluster_passes([[maybe_unused]] unsigned thread) {}

  /// A thread starts a copy, whose `number` is unique in the program.
  virtual void begins([[maybe_unused]] unsigned thread, [[maybe_unused]] std::uint64_t number,
                      [[maybe_unused]] const Copy& copy) {}
  /// A copy arrives: OfThread during its thread's wait, any other at any time.
  virtual void arrives([[maybe_unused]] std::uint64_t number) {}
  /// A thread commits a group: the copies of this kind that it has started since its last group.
  virtual void commits([[maybe_unused]] unsigned thread, [[maybe_unused]] Copy::Kind kind) {}
  /// All of the thread's groups of this kind except the last `prior` are complete. A BulkStore is
  /// complete once its source has been read.
  virtual void waited([[maybe_unused]] unsigned thread, [[maybe_unused]] Copy::Kind kind,
                      [[maybe_unused]] std::size_t prior) {}

  virtual void waits_for_grid([[maybe_unused]] unsigned thread) {}
  virtual void launches_dependents([[maybe_unused]] unsigned thread) {}
};

/// What a watcher learns about a block when it starts.
struct BlockInfo {
  const Launch& launch;
  std::uint64_t number;  ///< in the grid, x first
  unsigned rank;         ///< in its cluster
  int gpu;               ///< 0 unless there are several
  const std::byte* dynamic_shared;
  std::vector<DeviceBuffer> static_shared;  ///< where any __shared__ of the program may be
};

/// Watches launches. The machine calls begins_block from several cores at once.
class Watch {
 public:
  virtual ~Watch() = default;
  virtual void begins([[maybe_unused]] const Launch& launch) {}
  /// The block's watcher; null for none. Its `launch` is the object that `begins` got.
  virtual std::unique_ptr<Witness> begins_block(const BlockInfo& block) = 0;
  virtual void ends([[maybe_unused]] const Launch& launch) {}
  /// run_on_gpus begins, or ends: what the host did before is over, on all GPUs.
  virtual void gpus_meet() {}
  /// Whether blocks must run one after another, in their order; blocks of several GPUs take turns.
  virtual bool one_at_a_time() const { return false; }
};

/// For a Witness, during a call about a thread's operation: the place of that operation.
Place here();

/// The watcher of launches; null for none.
Watch* watch();
/// Sets the watcher of later launches, which it must outlive; null for none.
void set_watch(Watch* watch);

// --------------------------------------------------------------------------------- reporting

/// For instrument.cpp: the running thread enters a basic block; is about to access memory.
void enters(Place place);
void touches(Place place, const void* address, std::uint32_t bytes, Kind kind);

/// For cuda.h: the running thread is about to update `bytes` atomically; to load them bypassing L1;
/// executes a fence.
void updates(const void* address, std::uint32_t bytes, Scope scope = Scope::Device);
void loads_past_l1(const void* address, std::uint32_t bytes);
void fence(Scope scope);
void launches_dependents();
/// For gpus.cpp: the running thread is about to store a word, or to load one. The latter returns
/// whether it sees the newest value.
void stores_word(const void* to);
bool loads_word(const void* from);

}  // namespace simt
