// The kernels of races_test.cpp, compiled so that each access is seen.
#include "common/watch/tests/race_kernels.h"

using namespace lnc;

namespace kernels {

constexpr unsigned kFull = 0xFFFF'FFFF;

// ------------------------------------------------------------------------- threads of a block

__global__ void neighbours(float* y, bool right) {
  __shared__ float of_thread[64];
  of_thread[threadIdx.x] = 1.0f;  // first
  if (right) __syncthreads();
  y[blockIdx.x * 64 + threadIdx.x] = of_thread[threadIdx.x ^ 32];  // second
}

__global__ void read_before_write(float* y, bool right) {
  __shared__ float shared[1];
  if (threadIdx.x == 0) shared[0] = 1.0f;
  __syncthreads();
  y[threadIdx.x] = shared[0];  // first
  if (right) __syncthreads();
  if (threadIdx.x == 33) shared[0] = 2.0f;  // second
}

__global__ void two_writers(float* y, bool right) {
  if (threadIdx.x == 0) y[5] = 1.0f;  // first
  if (right) __syncthreads();
  if (threadIdx.x == 63) y[5] = 2.0f;  // second
}

__global__ void lanes(float* y, bool right) {
  __shared__ float of_lane[32];
  of_lane[threadIdx.x] = 1.0f;  // first
  if (right) __syncwarp();
  y[threadIdx.x] = of_lane[threadIdx.x ^ 1];  // second
}

__global__ void shuffle_is_no_barrier(float* y) {
  __shared__ float of_lane[32];
  of_lane[threadIdx.x] = 1.0f;  // first
  const float sum = __shfl_xor_sync(kFull, 1.0f, 16) + __any_sync(kFull, 1);
  y[threadIdx.x] = sum + of_lane[threadIdx.x ^ 1];  // second
}

__global__ void volatile_is_no_barrier(float* y) {
  __shared__ volatile float of_lane[32];
  of_lane[threadIdx.x] = 1.0f;                // first
  y[threadIdx.x] = of_lane[threadIdx.x ^ 1];  // second
}

// The warps' own barriers order nothing between warps.
__global__ void warps_apart(float* y) {
  __shared__ float of_warp[2];
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = 1.0f;  // first
  __syncwarp();
  y[threadIdx.x] = of_warp[1 - threadIdx.x / 32];  // second
}

__global__ void half_a_warp_meets(float* y, int from) {
  __shared__ float of_lane[32];
  const unsigned half = threadIdx.x < 16 ? 0x0000'FFFF : 0xFFFF'0000;
  of_lane[threadIdx.x] = 1.0f;  // first
  __syncwarp(half);
  if (threadIdx.x == 3) y[0] = of_lane[from];  // second
}

// A barrier passes on what another barrier has brought.
__global__ void by_two_barriers(float* y, bool right) {
  __shared__ float shared[1];
  if (threadIdx.x == 0) shared[0] = 1.0f;  // first
  if (threadIdx.x < 32) __syncwarp();
  if (right) __syncthreads();
  if (threadIdx.x >= 32) __syncwarp();
  if (threadIdx.x == 40) y[0] = shared[0];  // second
}

__global__ void halves_of_a_word(unsigned short* y, int distance) {
  const int at = threadIdx.x == 0 ? 0 : distance;
  if (threadIdx.x % 32 == 0) y[at] = threadIdx.x;  // first and second
}

// ---------------------------------------------------------------------------- blocks and atomics

__global__ void block_to_block(float* y) {
  if (blockIdx.x == 0) y[7] = 1.0f;                // first
  if (blockIdx.x == 1) y[8 + threadIdx.x] = y[7];  // second
}

__global__ void write_one(float* y) { y[7] = 1.0f; }
__global__ void read_one(float* y) { y[8] = y[7]; }

__global__ void sums(float* y) { atomicAdd(&y[0], 1.0f); }

__global__ void sums_of_a_block(float* y) { atomicAdd_block(&y[0], 1.0f); }  // first and second

__global__ void atomic_and_load(float* y) {
  if (threadIdx.x == 0) atomicAdd(&y[0], 1.0f);  // first
  if (threadIdx.x == 32) y[1] = y[0];            // second
}

__device__ void fence_for(bool near) {
  if (near) {
    __threadfence_block();
  } else {
    __threadfence();
  }
}

// Block 0 writes with all its threads and says so; block 1 waits for that, and reads.
__global__ void handshake(float* y, int* flag, Part part) {
  if (blockIdx.x == 0) {
    y[threadIdx.x] = 1.0f;  // first
    if (part != kEarly) __syncthreads();
    if (threadIdx.x == 0) {
      if (part != kNoRelease) fence_for(part == kNear);
      if (part == kNearAtomic) {
        atomicAdd_block(flag, 1);
      } else {
        atomicExch(flag, 1);  // lets go
      }
    }
  } else {
    if (threadIdx.x == 0) {
      while (atomicAdd(flag, 0) == 0) {  // goes on
        __nanosleep(1);
      }
      if (part != kNoAcquire) __threadfence();
    }
    if (part != kLate) __syncthreads();
    y[100 + threadIdx.x] = y[threadIdx.x ^ 32];  // second
  }
}

// The same between two warps, in shared memory, where a fence of the block is enough.
__global__ void handshake_of_warps(float* y, bool right) {
  __shared__ int flag;
  __shared__ float value;
  if (threadIdx.x == 0) flag = 0;
  __syncthreads();
  if (threadIdx.x == 0) {
    value = 1.0f;  // first
    if (right) __threadfence_block();
    atomicExch(&flag, 1);  // lets go
  }
  if (threadIdx.x == 32) {
    while (atomicAdd(&flag, 0) == 0) {
      __nanosleep(1);
    }
    __threadfence_block();
    y[0] = value;  // second
  }
}

__global__ void flag_without_atomics(float* y, volatile int* flag) {
  if (blockIdx.x == 0) {
    y[0] = 1.0f;
    __threadfence();
    *flag = 1;  // first
  } else {
    while (*flag != 1) {  // second
    }
    __threadfence();
  }
}

// The last atomic has observed the others, and a fence keeps the store behind it.
__global__ void last_block_resets(int* counter, bool right) {
  if (atomicAdd(counter, 1) < static_cast<int>(gridDim.x) - 1) return;  // first
  if (right) __threadfence();
  *counter = 0;  // second
}

// ---------------------------------------------------------------------------- copies of a thread

__global__ void copy_of_a_thread(const float* x, float* y, Wait wait) {
  __shared__ float arrived[64];
  float mine = 0.0f;
  __pipeline_memcpy_async(&arrived[threadIdx.x], &x[threadIdx.x], 4);  // first
  __pipeline_commit();
  if (wait != Wait::None) __pipeline_wait_prior(wait == Wait::TooFew ? 1 : 0);
  if (wait != Wait::NoBarrier) __syncthreads();
  mine = arrived[threadIdx.x ^ 32];  // second
  y[threadIdx.x] = mine;
  __pipeline_wait_prior(0);
}

__global__ void own_copy(const float* x, float* y, bool right) {
  __shared__ float arrived[32];
  __pipeline_memcpy_async(&arrived[threadIdx.x], &x[threadIdx.x], 4);  // first
  __pipeline_commit();
  if (right) __pipeline_wait_prior(0);
  y[threadIdx.x] = arrived[threadIdx.x];  // second
  __pipeline_wait_prior(0);
}

__global__ void copy_for_another(const float* x, float* y, bool right) {
  __shared__ float arrived[1];
  __syncthreads();
  if (threadIdx.x == 63) {  // who comes last to a barrier is the first behind it
    __pipeline_memcpy_async(&arrived[0], &x[0], 4);  // first
    __pipeline_commit();
    __pipeline_wait_prior(0);
  }
  if (right) __syncthreads();
  if (threadIdx.x == 0) y[0] = arrived[0];  // second
}

__global__ void source_of_a_copy(float* x, bool right) {
  __shared__ float arrived[32];
  __pipeline_memcpy_async(&arrived[threadIdx.x], &x[threadIdx.x], 4);  // first
  __pipeline_commit();
  if (right) __pipeline_wait_prior(0);
  x[threadIdx.x] = 1.0f;  // second
  __pipeline_wait_prior(0);
}

// ----------------------------------------------------------------------- the copy engine, Barriers

constexpr int kSlot = 64;
constexpr unsigned kSlotBytes = kSlot * sizeof(float);

__device__ void init(Barrier& barrier, unsigned arrivals) {
  if (threadIdx.x == 0) {
    barrier.init(arrivals);
    fence_barrier_init();
  }
  __syncthreads();
}

__global__ void arrivals(float* y, bool right) {
  __shared__ Barrier barrier;
  __shared__ float of_thread[64];
  init(barrier, 64);
  of_thread[threadIdx.x] = 1.0f;  // first
  barrier.arrive();
  if (right) barrier.wait(0);
  y[threadIdx.x] = of_thread[threadIdx.x ^ 32];  // second
  barrier.wait(0);
}

// What is written behind the arrival is not passed on.
__global__ void written_late(float* y) {
  __shared__ Barrier barrier;
  __shared__ float of_thread[64];
  init(barrier, 64);
  barrier.arrive();
  of_thread[threadIdx.x] = 1.0f;  // first
  barrier.wait(0);
  y[threadIdx.x] = of_thread[threadIdx.x ^ 32];  // second
}

__global__ void unknown_barrier(bool right) {
  __shared__ Barrier barrier;
  if (threadIdx.x == 0) {
    barrier.init(64);  // first
    fence_barrier_init();
  }
  if (right) __syncthreads();
  barrier.arrive();  // second
}

__global__ void loaded(const float* x, float* y, bool right) {
  __shared__ Barrier full;
  alignas(16) __shared__ float slot[kSlot];
  init(full, 1);
  if (threadIdx.x == 0) {
    bulk_load(slot, x, kSlotBytes, full);  // first
    full.arrive_and_expect(kSlotBytes);
  }
  if (right) full.wait(0);
  y[threadIdx.x] = slot[threadIdx.x];  // second
  full.wait(0);
}

// The phase before a new Barrier's first counts as complete.
__global__ void wrong_parity(const float* x, float* y) {
  __shared__ Barrier full;
  alignas(16) __shared__ float slot[kSlot];
  init(full, 1);
  if (threadIdx.x == 0) {
    bulk_load(slot, x, kSlotBytes, full);  // first
    full.arrive_and_expect(kSlotBytes);
  }
  full.wait(1);
  y[threadIdx.x] = slot[threadIdx.x];  // second
  full.wait(0);
}

// A thread that comes three phases late finds a phase of the parity that it waits for complete, by
// luck: what the third phase has brought it cannot know.
__global__ void three_phases_late(const float* x, float* y) {
  __shared__ Barrier full;
  __shared__ int flag;
  alignas(16) __shared__ float slot[3][kSlot];
  if (threadIdx.x == 0) flag = 0;
  init(full, 1);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 3; ++i) {
      bulk_load(slot[i], x, kSlotBytes, full);  // first
      full.arrive_and_expect(kSlotBytes);
      full.wait(i % 2);
    }
    atomicExch(&flag, 1);
  }
  if (threadIdx.x == 32) {
    while (atomicAdd(&flag, 0) == 0) {  // without fences: it orders nothing
      __nanosleep(1);
    }
    full.wait(0);
    y[0] = slot[0][0];
    y[1] = slot[2][0];  // second
  }
}

// One thread waits, the others meet it.
__global__ void one_waits(const float* x, float* y, bool right) {
  __shared__ Barrier full;
  alignas(16) __shared__ float slot[kSlot];
  init(full, 1);
  if (threadIdx.x == 0) {
    bulk_load(slot, x, kSlotBytes, full);  // first
    full.arrive_and_expect(kSlotBytes);
    full.wait(0);
  }
  if (right) __syncthreads();
  y[threadIdx.x] = slot[threadIdx.x];  // second
}

// A slot that was only read: the copy engine is another proxy, and may write before that is over.
__global__ void slot_again(const float* x, float* y, Again how) {
  __shared__ Barrier full;
  alignas(16) __shared__ float slot[kSlot];
  init(full, 1);
  const auto request = [&] {
    bulk_load(slot, x, kSlotBytes, full);  // second
    full.arrive_and_expect(kSlotBytes);
  };
  if (threadIdx.x == 0) request();
  full.wait(0);
  y[threadIdx.x] = slot[threadIdx.x];  // first
  if (how != Again::NoFence) fence_proxy_async();
  if (how != Again::NoBarrier) __syncthreads();
  if (threadIdx.x == 0) request();
  full.wait(1);
  y[threadIdx.x] += slot[threadIdx.x];
}

// A slot that was written to by threads needs the fence as well.
__global__ void slot_after_stores(const float* x, float* y, bool right) {
  __shared__ Barrier full;
  alignas(16) __shared__ float slot[kSlot];
  init(full, 1);
  slot[threadIdx.x] = 1.0f;  // first
  if (right) fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    bulk_load(slot, x, kSlotBytes, full);  // second
    full.arrive_and_expect(kSlotBytes);
  }
  full.wait(0);
  y[threadIdx.x] = slot[threadIdx.x];
}

__global__ void stored(float* y, Store how) {
  alignas(16) __shared__ float slot[kSlot];
  if (how == Store::FenceFirst) fence_proxy_async();
  const float unchanged = __int_as_float(-1);  // else the machine itself sees a store that is late
  if (how != Store::FenceLate || threadIdx.x == 63) slot[threadIdx.x] = unchanged;  // first
  if (how == Store::Right || how == Store::NoBarrier) fence_proxy_async();
  if (how != Store::NoBarrier) __syncthreads();
  if (how == Store::FenceLate && threadIdx.x == 63) fence_proxy_async();
  if (threadIdx.x == 0) {
    fence_proxy_async();
    bulk_store(y, slot, kSlotBytes);  // second
    commit_bulk_stores();
    wait_bulk_stores_read<0>();
  }
}

__global__ void source_again(float* y, Reuse how) {
  alignas(16) __shared__ float slot[kSlot];
  slot[threadIdx.x] = 1.0f;
  fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    bulk_store(y, slot, kSlotBytes);  // first
    commit_bulk_stores();
    if (how == Reuse::TooFew) wait_bulk_stores_read<1>();
    if (how != Reuse::NoWait && how != Reuse::TooFew) wait_bulk_stores_read<0>();
  }
  if (how != Reuse::NoBarrier) __syncthreads();
  if (threadIdx.x == 33) slot[33] = 1.0f;  // second
  if (threadIdx.x == 0) wait_bulk_stores_read<0>();
}

// That a store's source was read says nothing of where it goes.
__global__ void destination(float* y) {
  alignas(16) __shared__ float slot[kSlot];
  slot[threadIdx.x] = 1.0f;
  fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    bulk_store(y, slot, kSlotBytes);  // first
    commit_bulk_stores();
    wait_bulk_stores_read<0>();
  }
  __syncthreads();
  if (threadIdx.x == 1) y[kSlot] = y[1];  // second
}

// fence_proxy_async speaks of shared memory.
__global__ void load_of_a_store(float* x) {
  __shared__ Barrier full;
  alignas(16) __shared__ float slot[kSlot];
  init(full, 1);
  x[threadIdx.x] = 1.0f;  // first
  fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    bulk_load(slot, x, kSlotBytes, full);  // second
    full.arrive_and_expect(kSlotBytes);
  }
  full.wait(0);
}

// --------------------------------------------------------------------------------------- clusters

__global__ void remote_value(float* y, bool right) {
  __shared__ float value;
  cluster_sync();
  if (threadIdx.x == 0) value = 1.0f;  // first
  if (right) cluster_sync();
  if (threadIdx.x == 0) y[blockIdx.x] = remote_load(&value, 1 - cluster_rank());  // second
  cluster_sync();
}

__global__ void cluster_orders_global(float* y, bool right) {
  y[blockIdx.x * 64 + threadIdx.x] = 1.0f;  // first
  if (right) {
    cluster_arrive();
    cluster_wait();
  }
  y[128 + blockIdx.x * 64 + threadIdx.x] = y[(1 - blockIdx.x) * 64 + (threadIdx.x ^ 32)];  // second
  cluster_sync();
}

// What is written between the two halves of cluster_sync is not passed on.
__global__ void between_the_halves(float* y) {
  cluster_arrive();
  if (threadIdx.x == 0) y[blockIdx.x] = 1.0f;  // first
  cluster_wait();
  if (threadIdx.x == 32) y[2 + blockIdx.x] = y[1 - blockIdx.x];  // second
}

// A relaxed arrival passes on that a Barrier is initialised, where a fence says so, and no value.
__global__ void relaxed_meeting(float* y, Relaxed how) {
  __shared__ Barrier arrived;
  __shared__ float sent;
  __shared__ float own;
  if (threadIdx.x == 0) {
    arrived.init(1);
    if (how != Relaxed::NoFence) fence_barrier_init();
    own = 1.0f;  // first
  }
  cluster_arrive_relaxed();
  cluster_wait();
  if (threadIdx.x == 0) {
    arrived.arrive_and_expect(sizeof sent);
    remote_store_async(&sent, 1 - cluster_rank(), 1.0f, arrived);
  }
  arrived.wait_at_cluster_scope(0);
  y[blockIdx.x * 64 + threadIdx.x] = sent;
  if (how == Relaxed::Value && threadIdx.x == 0) {
    y[128 + blockIdx.x] = remote_load(&own, 1 - cluster_rank());  // second
  }
  cluster_sync();
}

__global__ void remote_written(float* y, bool right) {
  __shared__ float value;
  cluster_sync();
  if (threadIdx.x == 0) remote_store(&value, 1 - cluster_rank(), 1.0f);  // first
  if (right) cluster_sync();
  if (threadIdx.x == 1) y[blockIdx.x] = value;  // second
  cluster_sync();
}

__device__ void wait_for(Barrier& barrier, unsigned parity, bool wide) {
  if (wide) {
    barrier.wait_at_cluster_scope(parity);
  } else {
    barrier.wait(parity);
  }
}

__global__ void sent(float* y, Sent how) {
  __shared__ Barrier arrived;
  __shared__ float value;
  init(arrived, 1);
  cluster_sync();
  if (threadIdx.x == 0) {
    arrived.arrive_and_expect(sizeof value);
    remote_store_async(&value, 1 - cluster_rank(), 1.0f, arrived);  // first
  }
  if (how != Sent::None) wait_for(arrived, 0, how == Sent::Right);
  y[blockIdx.x * 64 + threadIdx.x] = value;  // second
  wait_for(arrived, 0, true);
  cluster_sync();
}

// Block 1 sends twice to the same place. In between it hears from block 0, whose threads have read
// by then and arrive, as in fwd09 and bwd13; or send, which says nothing of what they have read.
__global__ void answered(float* y, Answer how) {
  __shared__ Barrier arrived[2];
  __shared__ float value, answer;
  init(arrived[0], 1);
  init(arrived[1], 1);
  cluster_sync();
  if (threadIdx.x == 0 && cluster_rank() == 1) {
    remote_store_async(&value, 0, 1.0f, arrived[0]);
    if (how == Answer::Sent || how == Answer::SentTooEarly) {
      arrived[1].arrive_and_expect(sizeof answer);
    }
    arrived[1].wait_at_cluster_scope(0);
    remote_store_async(&value, 0, 2.0f, arrived[0]);  // second
  }
  if (cluster_rank() == 0) {
    const auto wait = [&](unsigned parity) {
      if (threadIdx.x > 0) return;
      arrived[0].arrive_and_expect(sizeof value);
      arrived[0].wait_at_cluster_scope(parity);
    };
    wait(0);
    __syncthreads();
    const auto answers = [&](Answer by_arriving, Answer by_sending) {
      if (threadIdx.x != 0) return;
      if (how == by_arriving) remote_arrive(arrived[1], 1);
      if (how == by_sending) remote_store_async(&answer, 1, 1.0f, arrived[1]);
    };
    answers(Answer::TooEarly, Answer::SentTooEarly);
    if (threadIdx.x == 33) y[0] = value;  // first
    __syncthreads();
    answers(Answer::Arrived, Answer::Sent);
    wait(1);
  }
  cluster_sync();
}

// A message, or an arrival, says nothing of device memory: a store may still be on its way.
__global__ void store_before_a_message(float* y, unsigned storing_thread, bool arrives) {
  __shared__ Barrier arrived;
  __shared__ float message;
  init(arrived, 1);
  cluster_sync();
  if (threadIdx.x == storing_thread && cluster_rank() == 0) y[0] = 1.0f;  // first
  __syncthreads();
  if (threadIdx.x == 0 && cluster_rank() == 0) {
    if (arrives) {
      remote_arrive(arrived, 1);
    } else {
      remote_store_async(&message, 1, 1.0f, arrived);
    }
  }
  if (threadIdx.x == 0 && cluster_rank() == 1) {
    if (!arrives) arrived.arrive_and_expect(sizeof message);
    arrived.wait_at_cluster_scope(0);
    y[1] = y[0];  // second
  }
  cluster_sync();
}

// --------------------------------------------------------------------------------- the next kernel

__global__ void writes_and_lets_start(float* y) {
  launch_dependents();
  y[threadIdx.x] = 1.0f;  // first
}

__global__ void starts_early(float* y, bool right) {
  if (right) grid_dependency_wait();
  y[128 + threadIdx.x] = y[threadIdx.x ^ 32];  // second
  grid_dependency_wait();
}

// One thread's wait reaches the others by a barrier.
__global__ void one_waits_for_all(float* y) {
  if (threadIdx.x == 0) grid_dependency_wait();
  __syncthreads();
  y[128 + threadIdx.x] = y[threadIdx.x ^ 32];
  grid_dependency_wait();
}

}  // namespace kernels
