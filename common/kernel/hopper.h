// What Hopper adds, for chapters that need it.
//
// Such a chapter says `.min_architecture = 90` in its registration. On the CPU backend it runs like
// any other. All of this works on shared memory, static or dynamic.
//
//   Barrier                                 an mbarrier: arrivals and bytes         fwd08
//   Barrier::arrive                         that a slot has been read               fwd18
//   fence_barrier_init                      before the first use                    fwd08
//   bulk_load                               global to shared, by the copy engine    fwd08
//   L2Policy                                what L2 evicts first                    bwd17
//   bulk_store, commit_bulk_stores,
//   wait_bulk_stores_read                   shared to global, by the copy engine    fwd15
//   fence_proxy_async                       orders own accesses before a copy       fwd08, fwd15
//   cluster_rank, cluster_size              which block of a cluster                fwd09, bwd13
//   cluster_arrive_relaxed, cluster_wait    until others' Barriers are initialised  fwd09
//   cluster_sync                            waits for all threads of the cluster    bwd13
//   remote_load, remote_store               another block's shared memory
//   remote_store_async                      the same, with that block's Barrier     fwd09
//   remote_arrive                           at another block's Barrier              bwd13
//   launch_dependents, grid_dependency_wait the next kernel starts early            bwd12
//
// Barrier. A barrier in shared memory that goes through phases 0, 1, 2, … A phase completes when
// all its arrivals have been made and all bytes expected in it have arrived; the next begins at
// once. Any number of threads may wait for a phase, by its parity: phase % 2.
//
//   init(arrivals)            by one thread, once; then fence_barrier_init() by the same thread
//   arrive()                  earlier writes of this thread are visible to waiting threads
//   arrive_and_expect(bytes)  arrives, and the phase expects this many more bytes: below 2^20
//   wait(parity)              until the phase of this parity is complete
//   wait_at_cluster_scope(parity)  the same, if other blocks store or arrive
//
// Other blocks release at the cluster's scope, so PTX requires that a wait for them acquires there.
// This wait covers shared memory only: it does not order device memory, and L1 keeps its lines.
//
// Other threads may use a Barrier only after a __syncthreads(). The phase before a new Barrier's
// first counts as complete: wait(1) returns. A waiting thread may be at most one phase late: a
// parity cannot tell more phases apart.
//
// bulk_load(to_shared, from_global, bytes, barrier). One thread issues the copy, and the copy
// engine does it. Both addresses and the size are multiples of 16; a multiple of 32 in shared
// memory is faster. The bytes count for the barrier's phase when they arrive; threads that have
// waited for it see them. An L2Policy may follow: L2 evicts EvictFirst lines first.
//
// The copy engine is another proxy: a barrier alone does not order threads' loads and stores before
// its copies. Before a copy overwrites what threads have read, each of them calls
// fence_proxy_async() after its last load, then they wait at a barrier, then one of them starts the
// copy. Many kernels omit that fence, and none is known to fail; PTX guarantees nothing then.
//
// bulk_store(to_global, from_shared, bytes). The same rules, but it completes in a group: a thread
// commits the stores that it has issued as one group, and wait_bulk_stores_read<n>() waits until
// the sources of all its groups but the last n have been read and may be overwritten. A block must
// not retire before that. Each thread that wrote to the source with ordinary stores calls
// fence_proxy_async() before the barrier after which one thread calls bulk_store.
//
// Clusters. LaunchConfig::cluster blocks, neighbours in x, run at the same time. Before the first
// access to another block's shared memory, and after the last, they call cluster_sync(). It orders
// all memory, global too, and so waits for earlier stores and empties L1. It consists of
// cluster_arrive() and cluster_wait(), between which a thread may do other work. Where other blocks
// need only initialised Barriers, fence_barrier_init() and then cluster_arrive_relaxed() are
// enough: that waits for no store.
// remote_…(&x, rank, …) accesses x of block `rank`, 4 or 8 bytes, or 16 with remote_store_async.
// The latter needs no cluster_sync(): its bytes count for that block's barrier, as a bulk_load's
// do. It needs a cluster of 2 or more: without a cluster it is an illegal instruction, and
// compute-sanitizer rejects it in a cluster of 1. resident_clusters(kernel, config) says how many
// the GPU holds at once.
//
// remote_arrive(barrier, rank) tells threads that wait there at the cluster's scope that this
// thread, and the threads of its block that it has synchronised with, have finished their earlier
// accesses to their own shared memory, which may be overwritten. A remote_store_async alone does
// not say so. lib_fwd_cluster_ring relies on it anyway, since an arrival costs 10 to 17 %: a
// convention of that kernel, not of PTX. `make race` only counts the pairs that it orders; with
// ARGS=--strict they are races.
//
// The next kernel. A kernel launched with LaunchConfig::starts_early may start when every block of
// the previous kernel has called launch_dependents() or retired, in the room that these leave.
// Before it touches global memory, each of its threads calls grid_dependency_wait(), which returns
// when the previous kernel has ended and its writes are visible. The CPU backend need not wait.
#pragma once

#include "common/kernel/launch.h"

#if defined(__CUDACC__)
#include "common/cuda/hopper.h"
#else
#include "common/simt/hopper.h"
#endif

namespace lnc {

/// A kernel that is launched early and waits before it reads what the previous kernel has written.
struct EarlyStart {
  static constexpr bool kEarly = true;
  static __device__ void wait() { grid_dependency_wait(); }
};

}  // namespace lnc
