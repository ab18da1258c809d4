// Small kernels that run on two or three GPUs, with a fault between these or without, for
// gpu_races_test.cpp. Accesses in question are marked `first` and `second` in gpu_race_kernels.cpp.
#pragma once

#include "common/simt/peers.h"

namespace kernels {

struct alignas(16) Word {
  float first, second, third;
  unsigned epoch;
};

/// Where a word of an epoch goes, and how it is waited for.
enum class Slot { Doubled, One, WrongParity };
enum class Poll { UntilEpoch, Once };
/// What a sender and a receiver do around a word that says that a payload is there.
enum class Part {
  All,
  NoFences,
  NoRelease,
  NoAcquire,
  DeviceRelease,
  DeviceAcquire,
  NoBarrierBefore,
  NoBarrierAfter,
  NoWait,
  WrongSender,
  PlainWord
};
enum class Counter { Right, TooEarly };

__global__ void exchange(ncclWindow_t window, int gpu, unsigned epoch, float* out, Slot slot,
                         Poll poll);
__global__ void phases(ncclWindow_t window, int gpu, float* out, Slot slot, bool shuffles);
__global__ void rows_by_copies(ncclWindow_t window, int gpu, const float* x, float* out, int rows,
                               unsigned epoch);
__global__ void tell(ncclWindow_t window, int to);
__global__ void load_once(ncclWindow_t window, float* out);
__global__ void publish(ncclWindow_t window, int gpu, float* out, Part part);
__global__ void last_block_publishes(ncclWindow_t window, int gpu, int* counter, float* out,
                                     bool of_system);
__global__ void publish_by_atomics(ncclWindow_t window, int gpu, float* out, bool of_system);
__global__ void store_at_peer(ncclWindow_t window, int gpu);
__global__ void load_own(ncclWindow_t window, float* out);
__global__ void sums_of_gpus(ncclWindow_t window, bool of_system);
__global__ void epoch_of_counter(ncclWindow_t window, int gpu, unsigned* counter, float* out,
                                 Counter how);

}  // namespace kernels
