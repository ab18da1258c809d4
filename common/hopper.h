// What Hopper adds, for chapters that need it: included after common/kernel.h.
//
// Such a chapter says `.min_architecture = 90` in its registration. On the CPU backend it runs like
// any other. All of it speaks of shared memory, static or dynamic.
//
//   Barrier                                 an mbarrier: arrivals and bytes         fwd08
//   fence_barrier_init                      before the first use                    fwd08
//   bulk_load                               global to shared, by the copy engine    fwd08
//   bulk_store, commit_bulk_stores,
//   wait_bulk_stores_read                   shared to global, likewise              fwd08
//   fence_proxy_async                       between own stores and the engine       fwd08
//   cluster_rank, cluster_size              which block of a cluster                fwd09
//   cluster_sync                            waits for all threads of the cluster    fwd09
//   remote_load, remote_store               another block's shared memory           fwd09
//   remote_store_async                      likewise, with a Barrier over there     fwd09
//
// Barrier. A barrier in shared memory that goes through phases 0, 1, 2, … A phase is complete when
// all its arrivals are there and all bytes that somebody expected in it have come; the next begins
// at once. Any number of threads may wait for a phase, by its parity: phase % 2.
//
//   init(arrivals)            by one thread, once; then fence_barrier_init() by the same thread,
//   and
//                             __syncthreads() before others use it
//   arrive()                  what this thread wrote before is seen by those who wait
//   arrive_and_expect(bytes)  arrives, and the phase wants so many bytes more: less than 2^20
//   wait(parity)              until the phase of this parity is complete. Of a new barrier the
//   phase
//                             before the first counts as complete: wait(1) returns.
//
// A thread that waits must be at most one phase behind: a parity says no more.
//
// bulk_load(to_shared, from_global, bytes, barrier). One thread asks, the copy engine works. Both
// addresses and the size are multiples of 16. The bytes count for the barrier's phase when they are
// there; who has waited for that sees them.
//
// bulk_store(to_global, from_shared, bytes). By the same rules, but it completes in a group: a
// thread commits what it has begun as one group, and wait_bulk_stores_read<n>() waits until all of
// its groups but the last n have been read, so that their sources may be overwritten. A block must
// not end before. Each thread that wrote to the source by ordinary stores calls fence_proxy_async()
// before the threads meet and one of them calls bulk_store.
//
// Clusters. LaunchConfig::cluster blocks, neighbours in x, run at the same time. Before one reaches
// for another's shared memory, and after the last time, they meet in a cluster_sync(); it orders
// all memory, global too. remote_…(&x, rank, …) means x of block `rank`, for 4 or 8 bytes.
// remote_store_async needs no meeting: its bytes count for that block's barrier, as a bulk_load's.
#pragma once

#include "common/kernel.h"

#if defined(__CUDACC__)
#include "common/cuda/hopper.h"
#else
#include "common/simt/hopper.h"
#endif
