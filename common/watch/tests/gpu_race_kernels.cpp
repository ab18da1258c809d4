// The kernels of gpu_races_test.cpp, compiled so that each access is seen.
#include "common/watch/tests/gpu_race_kernels.h"

#include "common/simt/hopper.h"

namespace kernels {

constexpr std::size_t kPayload = 4096;  // bytes from the start of the window, behind its words
constexpr std::size_t kFlag = 8192;

__device__ Word* word_of(ncclWindow_t window, int number, int gpu) {
  return static_cast<Word*>(ncclGetLsaPointer(window, number * sizeof(Word), gpu));
}
__device__ Word* own_word(ncclWindow_t window, int number) {
  return static_cast<Word*>(ncclGetLocalPointer(window, number * sizeof(Word)));
}
__device__ float* payload_in(ncclWindow_t window, int gpu) {
  return static_cast<float*>(ncclGetLsaPointer(window, kPayload, gpu));
}
__device__ int* flag_in(ncclWindow_t window, int gpu) {
  return static_cast<int*>(ncclGetLsaPointer(window, kFlag, gpu));
}

__global__ void exchange(ncclWindow_t window, int gpu, unsigned epoch, float* out, Slot slot,
                         Poll poll) {
  if (threadIdx.x != 0) return;
  unsigned place = slot == Slot::Doubled ? epoch % 2 : 0;
  if (slot == Slot::WrongParity) place = epoch / 2 % 2;
  place = place * gridDim.x + blockIdx.x;
  const Word mine{static_cast<float>(gpu), 0, 0, epoch};
  lnc::store_word(word_of(window, place, 1 - gpu), mine);  // second
  Word word = lnc::load_word(own_word(window, place));     // first
  while (poll == Poll::UntilEpoch && word.epoch != epoch) {
    word = lnc::load_word(own_word(window, place));  // first
  }
  out[blockIdx.x] = word.first + mine.first;
}

// Lane 1 sends and lane 0 receives, phase by phase.
__global__ void phases(ncclWindow_t window, int gpu, float* out, Slot slot, bool shuffles) {
  float sum = 0.0f;
  for (unsigned phase = 1; phase <= 6; ++phase) {
    const unsigned place = slot == Slot::Doubled ? phase % 2 : 0;
    const Word mine{sum + 1.0f, 0, 0, phase};
    if (threadIdx.x == 1) lnc::store_word(word_of(window, place, 1 - gpu), mine);  // second
    Word word{};
    while (threadIdx.x == 0 && word.epoch != phase) {
      word = lnc::load_word(own_word(window, place));  // first
    }
    sum += shuffles ? __shfl_sync(~0u, word.first, 0) : word.first;
  }
  out[threadIdx.x] = sum;
}

// A warp loads rows by bulk copies, and another adds them up; sums of rows meet the other GPU's.
__global__ void rows_by_copies(ncclWindow_t window, int gpu, const float* x, float* out, int rows,
                               unsigned epoch) {
  constexpr int kStages = 2, kCols = 64;
  alignas(128) __shared__ float slot[kStages][kCols];
  __shared__ lnc::Barrier full[kStages], empty[kStages];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      full[stage].init(1);
      empty[stage].init(1);
    }
    lnc::fence_barrier_init();
  }
  __syncthreads();
  for (int row = blockIdx.x, n = 0; row < rows; row += gridDim.x, ++n) {
    const int stage = n % kStages, parity = n / kStages % 2;
    if (warp == 0) {
      if (lane != 0) continue;
      empty[stage].wait(parity ^ 1);
      full[stage].arrive_and_expect(sizeof slot[stage]);
      lnc::bulk_load(slot[stage], x + row * kCols, sizeof slot[stage], full[stage]);
    } else {
      full[stage].wait(parity);
      float sum = slot[stage][lane] + slot[stage][lane + 32];
      for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
      lnc::fence_proxy_async();
      __syncwarp();
      if (lane != 0) continue;
      empty[stage].arrive();
      const int place = epoch % 2 * rows + row;
      lnc::store_word(word_of(window, place, 1 - gpu), Word{sum, 0, 0, epoch});
      Word word = lnc::load_word(own_word(window, place));
      while (word.epoch != epoch) word = lnc::load_word(own_word(window, place));
      out[row] = sum + word.first;
    }
  }
}

__global__ void tell(ncclWindow_t window, int to) {
  if (threadIdx.x == 0) lnc::store_word(word_of(window, 0, to), Word{1, 2, 3, 4});  // first
}
__global__ void load_once(ncclWindow_t window, float* out) {
  if (threadIdx.x == 0) *out = lnc::load_word(own_word(window, 0)).first;  // second
}

__device__ void fence_for(bool of_device) {
  if (of_device) {
    __threadfence();
  } else {
    __threadfence_system();
  }
}

__device__ void send(ncclWindow_t window, int to, int number, Part part) {
  payload_in(window, to)[number * 64 + threadIdx.x] = 1.0f;  // first
  if (part != Part::NoBarrierBefore) __syncthreads();
  if (threadIdx.x != 0) return;
  if (part != Part::NoRelease && part != Part::NoFences) fence_for(part == Part::DeviceRelease);
  const Word word{0, 0, 0, 1};
  if (part == Part::PlainWord) {
    *word_of(window, number, to) = word;  // lets go
  } else {
    lnc::store_word(word_of(window, number, to), word);  // lets go
  }
}

__device__ void receive(ncclWindow_t window, int number, float* out, Part part) {
  if (threadIdx.x == 0 && part != Part::NoWait) {
    const int of = part == Part::WrongSender ? number + 1 : number;
    while (lnc::load_word(own_word(window, of)).epoch != 1) {  // goes on
    }
    if (part != Part::NoAcquire && part != Part::NoFences) fence_for(part == Part::DeviceAcquire);
  }
  if (part != Part::NoBarrierAfter) __syncthreads();
  const float* const payload = static_cast<const float*>(ncclGetLocalPointer(window, kPayload));
  out[threadIdx.x] = payload[number * 64 + (threadIdx.x ^ 32)];  // second
}

// GPUs 1 and 2 send 64 floats each to GPU 0, which needs those of GPU 1.
__global__ void publish(ncclWindow_t window, int gpu, float* out, Part part) {
  if (gpu == 0) {
    receive(window, 0, out, part);
  } else {
    send(window, 0, gpu - 1, part);
  }
}

// The blocks of GPU 1 store into the window of GPU 0, and the last of them says so.
__global__ void last_block_publishes(ncclWindow_t window, int gpu, int* counter, float* out,
                                     bool of_system) {
  if (gpu == 1) {
    payload_in(window, 0)[blockIdx.x * 64 + threadIdx.x] = 1.0f;  // first
    __syncthreads();
    if (threadIdx.x != 0) return;
    __threadfence();
    if (atomicAdd(counter, 1) != static_cast<int>(gridDim.x) - 1) return;
    __threadfence();
    if (of_system) __threadfence_system();
    lnc::store_word(word_of(window, 0, 0), Word{0, 0, 0, 1});
    return;
  }
  if (threadIdx.x == 0) {
    while (lnc::load_word(own_word(window, 0)).epoch != 1) {
    }
    __threadfence_system();
  }
  __syncthreads();
  const float* const payload = static_cast<const float*>(ncclGetLocalPointer(window, kPayload));
  for (int i = threadIdx.x; i < 3 * 64; i += 64) out[threadIdx.x] += payload[i];  // second
}

__global__ void publish_by_atomics(ncclWindow_t window, int gpu, float* out, bool of_system) {
  if (threadIdx.x != 0) return;
  if (gpu == 1) {
    *payload_in(window, 0) = 1.0f;
    __threadfence_system();
    if (of_system) {
      atomicAdd_system(flag_in(window, 0), 1);
    } else {
      atomicAdd(flag_in(window, 0), 1);  // first and second
    }
    return;
  }
  if (of_system) {
    while (atomicAdd_system(flag_in(window, 0), 0) == 0) __nanosleep(20);
  } else {
    while (atomicAdd(flag_in(window, 0), 0) == 0) __nanosleep(20);  // first and second
  }
  __threadfence_system();
  *out = *payload_in(window, 0);
}

__global__ void store_at_peer(ncclWindow_t window, int gpu) {
  payload_in(window, 1 - gpu)[threadIdx.x] = 1.0f;  // first
}
__global__ void load_own(ncclWindow_t window, float* out) {
  out[threadIdx.x] = static_cast<const float*>(ncclGetLocalPointer(window, kPayload))[5];  // second
}

__global__ void sums_of_gpus(ncclWindow_t window, bool of_system) {
  if (of_system) {
    atomicAdd_system(flag_in(window, 0), 1);
  } else {
    atomicAdd(flag_in(window, 0), 1);  // first and second
  }
}

// The epoch is in a counter of the GPU's memory, which its last block advances.
__global__ void epoch_of_counter(ncclWindow_t window, int gpu, unsigned* counter, float* out,
                                 Counter how) {
  if (threadIdx.x != 0) return;
  const unsigned epoch = counter[0] + 1;  // first
  const unsigned place = epoch % 2 * gridDim.x + blockIdx.x;
  lnc::store_word(word_of(window, place, 1 - gpu), Word{1, 0, 0, epoch});
  while (lnc::load_word(own_word(window, place)).epoch != epoch) {
  }
  out[blockIdx.x] = 1.0f;
  if (how == Counter::TooEarly && blockIdx.x == 0) counter[0] = epoch;  // second
  __threadfence();
  const bool is_last = atomicInc(&counter[1], gridDim.x - 1) == gridDim.x - 1;
  __threadfence();
  if (how == Counter::Right && is_last) counter[0] = epoch;
}

}  // namespace kernels
