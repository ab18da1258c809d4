// Small kernels that have a race or have none, for races_test.cpp.
//
// Each has two accesses, marked `first` and `second` in race_kernels.cpp, and one thing that orders
// them, which an argument leaves in place or takes away.
#pragma once

#include "common/kernel/hopper.h"

namespace kernels {

enum Part { kAll, kNoRelease, kNoAcquire, kNear, kNearAtomic, kEarly, kLate };

enum class Wait { Right, None, TooFew, NoBarrier };

enum class Store { Right, NoFence, FenceFirst, FenceLate, FenceOfOne, NoBarrier };

enum class Reuse { Right, NoWait, TooFew, NoBarrier };

enum class Again { Right, NoBarrier, NoFence };

enum class Sent { Right, Near, None };
enum class Answer { Arrived, Sent, TooEarly, SentTooEarly };
enum class Relaxed { Right, NoFence, Value };

__global__ void neighbours(float* y, bool right);
__global__ void read_before_write(float* y, bool right);
__global__ void two_writers(float* y, bool right);
__global__ void lanes(float* y, bool right);
__global__ void shuffle_is_no_barrier(float* y);
__global__ void volatile_is_no_barrier(float* y);
__global__ void warps_apart(float* y);
__global__ void half_a_warp_meets(float* y, int from);
__global__ void by_two_barriers(float* y, bool right);
__global__ void halves_of_a_word(unsigned short* y, int distance);
__global__ void block_to_block(float* y);
__global__ void write_one(float* y);
__global__ void read_one(float* y);
__global__ void sums(float* y);
__global__ void sums_of_a_block(float* y);
__global__ void atomic_and_load(float* y);
__global__ void handshake(float* y, int* flag, Part part);
__global__ void handshake_of_warps(float* y, bool right);
__global__ void flag_without_atomics(float* y, volatile int* flag);
__global__ void last_block_resets(int* counter, bool right);
__global__ void copy_of_a_thread(const float* x, float* y, Wait wait);
__global__ void own_copy(const float* x, float* y, bool right);
__global__ void copy_for_another(const float* x, float* y, bool right);
__global__ void source_of_a_copy(float* x, bool right);
__global__ void arrivals(float* y, bool right);
__global__ void written_late(float* y);
__global__ void unknown_barrier(bool right);
__global__ void loaded(const float* x, float* y, bool right);
__global__ void wrong_parity(const float* x, float* y);
__global__ void three_phases_late(const float* x, float* y);
__global__ void one_waits(const float* x, float* y, bool right);
__global__ void slot_again(const float* x, float* y, Again how);
__global__ void slot_after_stores(const float* x, float* y, bool right);
__global__ void stored(float* y, Store how);
__global__ void source_again(float* y, Reuse how);
__global__ void destination(float* y);
__global__ void load_of_a_store(float* x);
__global__ void remote_value(float* y, bool right);
__global__ void cluster_orders_global(float* y, bool right);
__global__ void between_the_halves(float* y);
__global__ void relaxed_meeting(float* y, Relaxed how);
__global__ void remote_written(float* y, bool right);
__global__ void sent(float* y, Sent how);
__global__ void answered(float* y, Answer how);
__global__ void store_before_a_message(float* y, unsigned storing_thread, bool arrives);
__global__ void writes_and_lets_start(float* y);
__global__ void starts_early(float* y, bool right);
__global__ void one_waits_for_all(float* y);

}  // namespace kernels
