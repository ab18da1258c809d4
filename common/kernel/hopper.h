// What Hopper adds, for chapters that need it.
//
// Such a chapter says `.min_architecture = 90` in its registration. On the CPU backend it runs like
// any other. All of it speaks of shared memory, static or dynamic.
//
//   Barrier                                 an mbarrier: arrivals and bytes         fwd08
//   Barrier::arrive                         that a slot has been read               fwd18
//   fence_barrier_init                      before the first use                    fwd08
//   bulk_load                               global to shared, by the copy engine    fwd08
//   L2Policy                                what L2 gives up first                  bwd17
//   bulk_store, commit_bulk_stores,
//   wait_bulk_stores_read                   shared to global, by the copy engine    fwd15
//   fence_proxy_async                       own loads and stores before a copy      fwd08, fwd15
//   cluster_rank, cluster_size              which block of a cluster                fwd09, bwd13
//   cluster_arrive_relaxed, cluster_wait    until the others' Barriers are there    fwd09
//   cluster_sync                            waits for all threads of the cluster    bwd13
//   remote_load, remote_store               another block's shared memory
//   remote_store_async                      likewise, with a Barrier over there     fwd09
//   remote_arrive                           at a Barrier over there                 bwd13
//   launch_dependents, grid_dependency_wait the next kernel starts early            bwd12
//
// Barrier. A barrier in shared memory that goes through phases 0, 1, 2, … A phase is complete when
// all its arrivals are there and all bytes that somebody expected in it have come; the next begins
// at once. Any number of threads may wait for a phase, by its parity: phase % 2.
//
//   init(arrivals)            by one thread, once; then fence_barrier_init() by the same thread
//   arrive()                  what this thread wrote before is seen by those who wait
//   arrive_and_expect(bytes)  arrives, and the phase wants so many bytes more: less than 2^20
//   wait(parity)              until the phase of this parity is complete
//   wait_at_cluster_scope(parity)  the same, where other blocks store or arrive
//
// What other blocks do is released at the cluster's scope, so by the letter of PTX a wait for it
// acquires there. It speaks of shared memory only: of device memory it orders nothing, and L1 keeps
// what it has.
//
// Other threads know a Barrier only after a __syncthreads(). Of a new one the phase before the
// first counts as complete: wait(1) returns. A thread that waits must be at most one phase behind:
// a parity says no more.
//
// bulk_load(to_shared, from_global, bytes, barrier). One thread asks, the copy engine works. Both
// addresses and the size are multiples of 16; a multiple of 32 in shared memory is faster. The
// bytes count for the barrier's phase when they are there; who has waited for that sees them. An
// L2Policy may follow: lines that are EvictFirst are the first that L2 gives up.
//
// The copy engine is another proxy: a barrier alone does not order threads' loads and stores before
// its copies. Before a copy overwrites what threads have read, each of them calls
// fence_proxy_async() after its last load, then they meet at a barrier, then one of them starts the
// copy. Many kernels leave that fence out, and none is known to fail; PTX guarantees nothing then.
//
// bulk_store(to_global, from_shared, bytes). By the same rules, but it completes in a group: a
// thread commits what it has begun as one group, and wait_bulk_stores_read<n>() waits until all of
// its groups but the last n have been read, so that their sources may be overwritten. A block must
// not end before. Each thread that wrote to the source by ordinary stores calls fence_proxy_async()
// before the threads meet and one of them calls bulk_store.
//
// Clusters. LaunchConfig::cluster blocks, neighbours in x, run at the same time. Before one reaches
// for another's shared memory, and after the last time, they meet in a cluster_sync(); it orders
// all memory, global too, and so waits for the stores before it and empties L1. It is made of
// cluster_arrive() and cluster_wait(), between which a thread may do something else. Where others
// need nothing but Barriers that are initialised, fence_barrier_init() and then
// cluster_arrive_relaxed() are enough: that waits for no store.
// remote_…(&x, rank, …) means x of block `rank`, for 4 or 8 bytes, and with remote_store_async for
// 16. The latter needs no meeting: its bytes count for that block's barrier, as a bulk_load's do.
// It wants a cluster of 2 or more: without one it is an illegal instruction, and compute-sanitizer
// rejects it in one of 1. resident_clusters(kernel, config) says how many the GPU holds at once.
//
// remote_arrive(barrier, rank) tells those who wait there at the cluster's scope that this thread,
// and those of its block that it has met, are done with what they read or wrote in their own shared
// memory: it may be overwritten. A remote_store_async alone says nothing of that.
// lib_fwd_cluster_ring takes it to say so all the same, for an arrival would cost up to 10 %: a
// convention of that kernel, not of PTX. `make race` passes over what it orders, and counts it;
// with ARGS=--strict those pairs are races.
//
// The next kernel. One that is launched with LaunchConfig::starts_early may start when every block
// of the kernel before it has called launch_dependents() or ended, on what those leave free. Before
// it touches global memory each of its threads calls grid_dependency_wait(), which returns when the
// kernel before has ended and its writes are seen. On the CPU backend there is nothing to wait for.
#pragma once

#include "common/kernel/launch.h"

#if defined(__CUDACC__)
#include "common/cuda/hopper.h"
#else
#include "common/simt/hopper.h"
#endif

namespace lnc {

/// A kernel that is launched early, and waits before it reads what the one before has written.
struct EarlyStart {
  static constexpr bool kEarly = true;
  static __device__ void wait() { grid_dependency_wait(); }
};

}  // namespace lnc
