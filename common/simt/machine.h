// A small SIMT machine: it runs a CUDA kernel, compiled as C++, on the CPU.
//
// A thread of a block is a fiber: a stack of its own that runs until it must wait, then hands the
// core to the next thread. A block stays on one core, so its threads never run at the same instant
// and `__shared__` can be thread-local storage; the blocks of a grid spread over the cores. What
// CUDA calls waiting (a barrier, a shuffle) is bookkeeping here, so a wait that can never end is
// seen, and reported as a Fault that says which threads wait where.
//
// Hopper's bulk copies arrive later than they are begun (async.h). The blocks of a cluster have a
// core each, since their `__shared__` differs, and run one at a time.
//
// Kernels include cuda.h, which gives this machine CUDA's spelling.
#pragma once

#include <vector_types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>
#include <stdexcept>

// CUDA's special registers. A fiber finds its own values here whenever it runs.
extern constinit thread_local uint3 threadIdx;
extern constinit thread_local uint3 blockIdx;
extern constinit thread_local dim3 blockDim;
extern constinit thread_local dim3 gridDim;

namespace simt {

/// What `kernel<<<grid, block, shared_bytes>>>` says. The kernel's address serves error messages,
/// which turn it into a name (link with -rdynamic).
struct Launch {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;
  const void* kernel = nullptr;
  unsigned cluster = 0;       ///< blocks, neighbours in x; 0: the launch names no cluster
  bool starts_early = false;  ///< every thread must call grid_dependency_wait()
};

/// The threads of a block, or the blocks of a grid.
inline std::uint64_t volume(dim3 extent) { return std::uint64_t{extent.x} * extent.y * extent.z; }

/// A kernel broke a rule of the execution model. The message names kernel, block, threads and
/// lines.
class Fault : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The order in which blocks start and in which a block's threads take turns. CUDA promises none,
/// so a kernel free of races gives the same bits under each. Random draws a new permutation every
/// round, and the warps that take part in it: some get far ahead of others. A bulk copy arrives
/// when no thread can go on without it, the oldest first (Forward) or last; under Random at any
/// time.
enum class Order { Forward, Reverse, Random };

struct Schedule {
  Order order = Order::Forward;
  std::uint64_t seed = 0;  ///< of Order::Random; the same seed replays the same turns of each block
  std::chrono::duration<double> patience{
      30};  ///< how long a block may only spin before it's a Fault
};

/// The schedule of the launches to come. Until set_schedule, the environment decides:
/// SIMT_SCHEDULE = forward | reverse | random | random:SEED. Throws std::invalid_argument for any
/// other value.
Schedule schedule();
void set_schedule(Schedule schedule);

/// Runs `thread_body` once for every thread of the grid and returns when all have ended.
/// Throws std::runtime_error for a configuration that CUDA refuses, Fault for a broken rule, and
/// whatever the body throws; the first failure wins, and the blocks not yet started are skipped.
/// Where the environment's SIMT_LAUNCHED names a file, the program's end writes there the linker's
/// names of all kernels that ran.
void run(const Launch& launch, const std::function<void()>& thread_body);

/// The running block's dynamic shared memory: `shared_bytes` long to the byte, 128-byte aligned,
/// and filled with 0xFF (NaN in every float format) when the block starts. A write to the bytes
/// behind it is a Fault at the block's end.
void* dynamic_shared();

// What the functions of cuda.h are made of.

/// What an arrival at a cluster's barrier passes on.
enum class Publishes : std::uint8_t { All, BarrierInits };

/// How far an operation is seen.
enum class Scope : std::uint8_t { Block, Cluster, Device };

/// Everything that a thread can wait at or do wrong. BlockBarrier is the block's, those up to All
/// are the warp's, the last two the thread's own, the rest is Hopper's.
enum class Op {
  BlockBarrier,
  SyncWarp,
  Shuffle,
  ShuffleUp,
  ShuffleDown,
  ShuffleXor,
  Ballot,
  Any,
  All,
  BarrierInit,
  BarrierArrive,
  BarrierWait,
  BulkLoad,
  BulkStore,
  BulkWait,
  ClusterArrive,
  ClusterWait,
  Remote,
  MemcpyAsync,
  WaitPrior
};

/// Waits until every thread of the block is at this barrier.
void barrier(std::source_location where);

/// Waits until every lane in `mask` that has not exited is at `op` with the same mask. A shuffle
/// returns the `value` of the lane that `x` and `width` select, a vote the set of lanes whose value
/// is not 0.
std::uint64_t collective(Op op, unsigned mask, std::uint64_t value, int x, int width,
                         std::source_location where);

/// Copies of a thread's own, to shared memory: `zeros` of the `bytes` are 0. They arrive when the
/// thread waits for their group, and no sooner.
void memcpy_async(void* to, const void* from, std::size_t bytes, std::size_t zeros,
                  std::source_location where);
void commit_copies();
/// Waits for all groups that the thread has committed but the last `prior`.
void wait_for_copies(std::size_t prior, std::source_location where);

// What common/simt/hopper.h is made of; common/kernel/hopper.h says what each does.

void barrier_init(const void* barrier, unsigned arrivals, std::source_location where);
void fence_barrier_init();
void fence_proxy_async();
void barrier_arrive(const void* barrier, std::uint32_t bytes, std::source_location where);
void barrier_wait(const void* barrier, unsigned parity, Scope scope, std::source_location where);
void bulk_load(void* to, const void* from, std::uint32_t bytes, const void* barrier,
               std::source_location where);
void bulk_store(void* to, const void* from, std::uint32_t bytes, std::source_location where);
void commit_bulk_stores();
void wait_bulk_stores(unsigned groups, std::source_location where);
unsigned cluster_rank();
unsigned cluster_size();
void cluster_arrive(std::source_location where, Publishes what = Publishes::All);
void cluster_wait(std::source_location where);

/// The place in block `rank` of the cluster that `local` is in this block's shared memory.
std::byte* remote(const void* local, unsigned rank, std::source_location where);
void remote_store_async(const void* local, unsigned rank, const void* value, std::size_t bytes,
                        const void* barrier, std::source_location where);
void remote_arrive(const void* barrier, unsigned rank, std::source_location where);

/// Kernels never overlap here, so it returns at once; a launch that starts early demands it.
void grid_dependency_wait();

/// Lets the block's other threads take a turn. Spin loops need this, since no thread is
/// interrupted.
void yield();

}  // namespace simt
