// A small SIMT machine: it runs a CUDA kernel, compiled as C++, on the CPU.
//
// Each thread of a block is a fiber with its own stack: it runs until it must wait, then hands the
// core to the next thread. A block stays on one core, so its threads never run simultaneously and
// `__shared__` can be thread-local storage; the blocks of a grid spread over the cores. The machine
// keeps track of every wait, so it notices one that can never end and reports a Fault that says
// which threads wait where.
//
// Hopper's bulk copies arrive later than they begin (copies.h). Each block of a cluster has its own
// core, since each needs its own `__shared__`, but they run one at a time.
//
// Kernels include cuda.h, which spells this interface the way CUDA does.
#pragma once

#include <vector_types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <source_location>
#include <stdexcept>

// CUDA's special registers. A fiber finds its own values here whenever it runs.
extern constinit thread_local uint3 threadIdx;
extern constinit thread_local uint3 blockIdx;
extern constinit thread_local dim3 blockDim;
extern constinit thread_local dim3 gridDim;

namespace simt {

/// The arguments of `kernel<<<grid, block, shared_bytes>>>`. Error messages turn the kernel's
/// address into its name (link with -rdynamic).
struct Launch {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;
  const void* kernel = nullptr;
  unsigned cluster = 0;        ///< blocks, adjacent in x; 0: a launch without clusters
  bool starts_early = false;   ///< every thread must call grid_dependency_wait()
  const char* name = nullptr;  ///< of the kernel, for messages, where there is no pointer to it
};

/// The threads of a block, or the blocks of a grid.
inline std::uint64_t volume(dim3 extent) { return std::uint64_t{extent.x} * extent.y * extent.z; }

/// A kernel broke a rule of the execution model. The message names the kernel, block, threads and
/// lines.
class Fault : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The order in which blocks start and in which a block's threads run. CUDA promises none, so a
/// kernel without races gives the same bits under each. Random draws a new permutation every round
/// and also which warps run in it, so that some get far ahead of others. A bulk copy arrives when
/// no thread can continue without it, the oldest first (Forward) or last (Reverse); under Random it
/// may arrive at any time.
enum class Order { Forward, Reverse, Random };

struct Schedule {
  Order order = Order::Forward;
  std::uint64_t seed = 0;  ///< of Order::Random; a seed gives each block the same order every time
  std::chrono::duration<double> patience{2};  ///< threads that spin for longer are a Fault
  /// A thread that computes for longer, neither waiting nor ending, is a Fault. Time of its core,
  /// half of which the block's other threads may have.
  std::chrono::duration<double> longest_run{2};
  /// Of each grid only so many blocks run, or clusters, the last ones: in Order::Forward, for tests
  /// of tensors that no memory holds.
  std::optional<std::uint64_t> only_last = {};
};

/// The schedule of later launches. Until set_schedule is called, the environment decides:
/// SIMT_SCHEDULE = forward | reverse | random | random:SEED, and SIMT_LONGEST_RUN = seconds. Throws
/// std::invalid_argument for any other value.
Schedule schedule();
void set_schedule(Schedule schedule);

/// Runs `thread_body` once for every thread of the grid and returns when all have ended.
/// Throws std::runtime_error for a configuration that CUDA refuses, Fault for a broken rule, and
/// whatever the body throws; the first failure wins, and blocks not yet started are skipped.
/// Inside run_on_gpus (gpus.h) it runs on the host thread's GPU; else one grid runs at a time.
/// If the environment variable SIMT_LAUNCHED names a file, the program writes the linker symbols of
/// all kernels that ran to it when it ends.
void run(const Launch& launch, const std::function<void()>& thread_body);

/// The running block's dynamic shared memory: exactly `shared_bytes` bytes, 128-byte aligned, and
/// filled with 0xFF (NaN in every float format) when the block starts. A write past its end is a
/// Fault when the block ends.
void* dynamic_shared();

// The functions below implement cuda.h.

/// An assertion does not hold: in a kernel a Fault that names the thread; elsewhere the program
/// ends.
[[noreturn]] void fail_assertion(const char* text, const char* file, unsigned line,
                                 const char* function);

/// Which earlier writes an arrival at the cluster barrier makes visible.
enum class Publishes : std::uint8_t { All, BarrierInits };

/// Which threads see an operation, from the fewest on: a Device is a GPU, the System all of them.
enum class Scope : std::uint8_t { Block, Cluster, Device, System };

/// Every operation at which a thread can wait or fault: the block's (BlockBarrier), the warp's (up
/// to ActiveMask), Hopper's (up to Remote), and those of the thread's own copies.
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
  ReduceAdd,
  ReduceMin,
  ReduceMax,
  ReduceAnd,
  ReduceOr,
  ReduceXor,
  Match,
  ActiveMask,
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
/// @return how many of them passed `vote`
std::uint64_t barrier(std::source_location where, bool vote = false);

/// Waits until every lane in `mask` that has not exited is at `op` with the same mask. A shuffle
/// returns the `value` of the lane that `x` and `width` select, a vote the set of lanes whose value
/// is not 0, a reduction that of all values, compared as unsigned, and a match the set of lanes
/// that passed the same value.
std::uint64_t collective(Op op, unsigned mask, std::uint64_t value, int x, int width,
                         std::source_location where);

/// Waits until every thread of the block waits, spins or has exited.
/// @return the lanes of this thread's warp that wait here
unsigned active_lanes(std::source_location where);

/// Starts a copy by this thread to shared memory, whose last `zeros` bytes are 0. It arrives only
/// when the thread waits for its group.
void memcpy_async(void* to, const void* from, std::size_t bytes, std::size_t zeros,
                  std::source_location where);
void commit_copies();
/// Waits for all groups that the thread has committed except the last `prior`.
void wait_for_copies(std::size_t prior, std::source_location where);

// These implement common/simt/hopper.h; common/kernel/hopper.h says what each does.

void barrier_init(const void* barrier, unsigned arrivals, std::source_location where);
void fence_barrier_init();
void fence_proxy_async();
void barrier_arrive(const void* barrier, std::uint32_t bytes, std::source_location where);
void barrier_wait(const void* barrier, unsigned parity, Scope scope, std::source_location where);
/// Adds to the bytes that the phase expects, without an arrival.
void barrier_expect(const void* barrier, std::uint32_t bytes, std::source_location where);
/// Lets other threads run, and returns whether the phase of this parity is complete.
bool barrier_passed(const void* barrier, unsigned parity, Scope scope, std::source_location where);
/// The parity of the phase that is not yet complete.
unsigned barrier_parity(const void* barrier, std::source_location where);
void bulk_load(void* to, const void* from, std::uint32_t bytes, const void* barrier,
               std::source_location where);
void bulk_store(void* to, const void* from, std::uint32_t bytes, std::source_location where);
void commit_bulk_stores();
void wait_bulk_stores(unsigned groups, std::source_location where);
unsigned cluster_rank();
unsigned cluster_size();
void cluster_arrive(std::source_location where, Publishes what = Publishes::All);
void cluster_wait(std::source_location where);

/// The address in the shared memory of the cluster's block `rank` that corresponds to `local`.
std::byte* remote(const void* local, unsigned rank, std::source_location where);
void remote_store_async(const void* local, unsigned rank, const void* value, std::size_t bytes,
                        const void* barrier, std::source_location where);
void remote_arrive(const void* barrier, unsigned rank, std::source_location where);

/// An address in this block's shared memory in 32 bits, as PTX has it, and back. They are as far
/// apart as the addresses, and as aligned.
std::uint32_t shared_address(const void* pointer);
std::byte* from_shared_address(std::uint32_t address);

/// Kernels never overlap here, so it returns at once; a kernel that starts early must call it.
void grid_dependency_wait();

/// Lets the block's other threads run. Spin loops that call this are quick; one that does not is
/// interrupted by a clock after a while.
/// @param polled what the caller reads again and again, for messages
void yield(const void* polled = nullptr,
           std::source_location where = std::source_location::current());

/// The running thread has found that an atomic did not change `address`. From a number of times in
/// a row on, the others run first.
void poll(const void* address, std::source_location where);

}  // namespace simt
