// Sorts of a block in shared memory: bitonic, and by radix, a bit at a time with a scan of ballots.
#include <algorithm>
#include <cstdint>
#include <iostream>
#include <vector>

#define CUDA_CALL(x)                                                                              \
  do {                                                                                            \
    cudaError_t status_ = (x);                                                                    \
    if (status_ != cudaSuccess) {                                                                 \
      std::cerr << "CUDA error " << cudaGetErrorName(status_) << " ("                             \
                << cudaGetErrorString(status_) << ") at " << __FILE__ << ':' << __LINE__ << '\n'; \
      std::exit(EXIT_FAILURE);                                                                    \
    }                                                                                             \
  } while (0)

constexpr int THREADS = 128;

__device__ inline void Comparator(uint32_t& a, uint32_t& b, bool up) {
  if ((a > b) == up) {
    uint32_t t = a;
    a = b;
    b = t;
  }
}

// two elements a thread
__global__ void bitonicSortShared(uint32_t* keys) {
  __shared__ uint32_t s_key[2 * THREADS];
  keys += blockIdx.x * 2 * THREADS + threadIdx.x;
  s_key[threadIdx.x] = keys[0];
  s_key[threadIdx.x + THREADS] = keys[THREADS];
  for (uint32_t size = 2; size <= 2 * THREADS; size <<= 1) {
    bool up = (threadIdx.x & (size / 2)) == 0 || size == 2 * THREADS;
    for (uint32_t stride = size / 2; stride > 0; stride >>= 1) {
      __syncthreads();
      uint32_t pos = 2 * threadIdx.x - (threadIdx.x & (stride - 1));
      Comparator(s_key[pos], s_key[pos + stride], up);
    }
  }
  __syncthreads();
  keys[0] = s_key[threadIdx.x];
  keys[THREADS] = s_key[threadIdx.x + THREADS];
}

// one element a thread
__global__ void radixSortShared(uint32_t* keys, int bits) {
  __shared__ uint32_t s_key[2][THREADS];
  __shared__ int s_zeros[THREADS / 32];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  uint32_t key = keys[blockIdx.x * THREADS + threadIdx.x];
  for (int bit = 0; bit < bits; ++bit) {
    const bool zero = !(key >> bit & 1u);
    const unsigned ballot = __ballot_sync(0xffffffffu, zero);
    if (lane == 0) s_zeros[warp] = __popc(ballot);
    __syncthreads();
    int before = __popc(ballot & ((1u << lane) - 1)), zeros = 0;
    for (int w = 0; w < THREADS / 32; ++w) {
      if (w < warp) before += s_zeros[w];
      zeros += s_zeros[w];
    }
    const int to = zero ? before : zeros + threadIdx.x - before;
    s_key[bit & 1][to] = key;  // scattered
    __syncthreads();
    key = s_key[bit & 1][threadIdx.x];
  }
  keys[blockIdx.x * THREADS + threadIdx.x] = key;
}

int main() {
  const int blocks = 3;
  std::vector<uint32_t> keys(2 * THREADS * blocks);
  uint32_t state = 12345;
  for (auto& key : keys) key = (state = state * 1664525u + 1013904223u) >> 20;
  uint32_t* d_keys;
  CUDA_CALL(cudaMalloc(&d_keys, keys.size() * sizeof(uint32_t)));
  for (int part : {2 * THREADS, THREADS}) {
    auto sorted = keys, got = keys;
    CUDA_CALL(
        cudaMemcpy(d_keys, keys.data(), keys.size() * sizeof(uint32_t), cudaMemcpyHostToDevice));
    if (part == THREADS)
      radixSortShared<<<2 * blocks, THREADS>>>(d_keys, 12);
    else
      bitonicSortShared<<<blocks, THREADS>>>(d_keys);
    CUDA_CALL(cudaPeekAtLastError());
    CUDA_CALL(
        cudaMemcpy(got.data(), d_keys, keys.size() * sizeof(uint32_t), cudaMemcpyDeviceToHost));
    for (auto at = sorted.begin(); at != sorted.end(); at += part) std::sort(at, at + part);
    if (got != sorted) return std::cout << "wrong\n", 1;
  }
  CUDA_CALL(cudaFree(d_keys));
  std::cout << "right\n";
}
