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

void neighbours(float* y, bool right);
void read_before_write(float* y, bool right);
void two_writers(float* y, bool right);
void lanes(float* y, bool right);
void shuffle_is_no_barrier(float* y);
void volatile_is_no_barrier(float* y);
void warps_apart(float* y);
void half_a_warp_meets(float* y, int from);
void by_two_barriers(float* y, bool right);
void halves_of_a_word(unsigned short* y, int distance);
void block_to_block(float* y);
void write_one(float* y);
void read_one(float* y);
void sums(float* y);
void sums_of_a_block(float* y);
void atomic_and_load(float* y);
void handshake(float* y, int* flag, Part part);
void handshake_of_warps(float* y, bool right);
void flag_without_atomics(float* y, volatile int* flag);
void copy_of_a_thread(const float* x, float* y, Wait wait);
void own_copy(const float* x, float* y, bool right);
void copy_for_another(const float* x, float* y, bool right);
void source_of_a_copy(float* x, bool right);
void arrivals(float* y, bool right);
void written_late(float* y);
void unknown_barrier(bool right);
void loaded(const float* x, float* y, bool right);
void wrong_parity(const float* x, float* y);
void three_phases_late(const float* x, float* y);
void one_waits(const float* x, float* y, bool right);
void slot_again(const float* x, float* y, Again how);
void slot_after_stores(const float* x, float* y, bool right);
void stored(float* y, Store how);
void source_again(float* y, Reuse how);
void destination(float* y);
void load_of_a_store(float* x);
void remote_value(float* y, bool right);
void cluster_orders_global(float* y, bool right);
void between_the_halves(float* y);
void relaxed_meeting(float* y, Relaxed how);
void remote_written(float* y, bool right);
void sent(float* y, Sent how);
void answered(float* y, Answer how);
void store_before_a_message(float* y, unsigned storing_thread, bool arrives);
void writes_and_lets_start(float* y);
void starts_early(float* y, bool right);
void one_waits_for_all(float* y);

}  // namespace kernels
