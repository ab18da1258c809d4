// A dot product in one launch: the last block to finish adds up what the others found, as in the
// CUDA Toolkit's threadFenceReduction. As published (`dot published`) only the blocks that let go
// have a fence; `dot nofence` has none.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda_runtime.h>

#include <cstdlib>
#include <cub/cub.cuh>
#include <iostream>
#include <vector>

namespace cg = cooperative_groups;

#define gpuErrchk(ans) \
  { gpuAssert((ans), __FILE__, __LINE__); }
inline void gpuAssert(cudaError_t code, const char* file, int line, bool abort = true) {
  if (code != cudaSuccess) {
    std::cerr << "GPUassert: " << cudaGetErrorString(code) << " " << file << " " << line << "\n";
    if (abort) exit(code);
  }
}

const int THREADS = 128;

__device__ unsigned int count = 0;
__shared__ bool isLastBlockDone;

__device__ float calculatePartialSum(const float* x, const float* y, int n) {
  __shared__ float cache[THREADS];
  float temp = 0;
  for (int tid = threadIdx.x + blockIdx.x * blockDim.x; tid < n; tid += blockDim.x * gridDim.x)
    temp += x[tid] * y[tid];
  cache[threadIdx.x] = temp;
  __syncthreads();
  for (int i = blockDim.x / 2; i != 0; i /= 2) {
    if (threadIdx.x < i) cache[threadIdx.x] += cache[threadIdx.x + i];
    __syncthreads();
  }
  return cache[0];
}

template <bool kFence, bool kFenceAgain = kFence>
__global__ void dot(const float* x, const float* y, int n, volatile float* partial, float* result) {
  float partialSum = calculatePartialSum(x, y, n);
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = partialSum;
    if (kFence) __threadfence();
    unsigned int value = atomicInc(&count, gridDim.x);
    isLastBlockDone = (value == (gridDim.x - 1));
  }
  __syncthreads();
  if (isLastBlockDone && threadIdx.x == 0) {
    if (kFenceAgain) __threadfence();
    float total = 0;
    for (int b = 0; b < gridDim.x; ++b) total += partial[b];
    *result = total;
    count = 0;
  }
}

// by cooperative groups: a tile adds up, and its first thread updates the result
__global__ void dot_groups(const float* x, const float* y, int n, float* result) {
  auto block = cg::this_thread_block();
  auto warp = cg::tiled_partition<32>(block);
  __shared__ float sums[32];
  float sum = 0;
  for (int i = blockIdx.x * block.size() + block.thread_rank(); i < n;
       i += gridDim.x * block.size())
    sum += x[i] * y[i];
  sum = cg::reduce(warp, sum, cg::plus<float>());
  if (warp.thread_rank() == 0) sums[warp.meta_group_rank()] = sum;
  cg::sync(block);
  if (warp.meta_group_rank() == 0) {
    sum = warp.thread_rank() < warp.meta_group_size() ? sums[warp.thread_rank()] : 0.0f;
    sum = cg::reduce(warp, sum, cg::plus<float>());
    if (warp.thread_rank() == 0) atomicAdd(result, sum);
  }
}

// by CUB
template <int BLOCK_THREADS, int ITEMS_PER_THREAD>
__global__ void dot_cub(const float* x, const float* y, int n, float* result) {
  using BlockReduce = cub::BlockReduce<float, BLOCK_THREADS>;
  __shared__ typename BlockReduce::TempStorage temp_storage;
  float products[ITEMS_PER_THREAD];
#pragma unroll
  for (int k = 0; k < ITEMS_PER_THREAD; ++k) {
    int i = (blockIdx.x * ITEMS_PER_THREAD + k) * BLOCK_THREADS + threadIdx.x;
    products[k] = i < n ? x[i] * y[i] : 0.0f;
  }
  float aggregate = BlockReduce(temp_storage).Sum(products);
  if (threadIdx.x == 0) atomicAdd(result, aggregate);
}

int main(int argc, char** argv) {
  const int n = 3000, blocks = 8;
  std::vector<float> x(n), y(n);
  float want = 0;
  for (int i = 0; i < n; ++i) {
    x[i] = i % 5, y[i] = i % 3;
    want += x[i] * y[i];
  }
  float *d_x, *d_y, *d_partial, *d_result;
  gpuErrchk(cudaMalloc(&d_x, n * sizeof(float)));
  gpuErrchk(cudaMalloc(&d_y, n * sizeof(float)));
  gpuErrchk(cudaMalloc(&d_partial, blocks * sizeof(float)));
  gpuErrchk(cudaMalloc(&d_result, 4 * sizeof(float)));
  gpuErrchk(cudaMemcpy(d_x, x.data(), n * sizeof(float), cudaMemcpyHostToDevice));
  gpuErrchk(cudaMemcpy(d_y, y.data(), n * sizeof(float), cudaMemcpyHostToDevice));
  gpuErrchk(cudaMemset(d_result, 0, 4 * sizeof(float)));
  if (argc > 1 && argv[1][0] == 'p')
    dot<true, false><<<blocks, THREADS>>>(d_x, d_y, n, d_partial, d_result);
  else if (argc > 1)
    dot<false><<<blocks, THREADS>>>(d_x, d_y, n, d_partial, d_result);
  else
    dot<true><<<blocks, THREADS>>>(d_x, d_y, n, d_partial, d_result);
  dot<true><<<blocks, THREADS>>>(d_x, d_y, n, d_partial, d_result + 1);  // count is 0 again
  dot_groups<<<blocks, THREADS>>>(d_x, d_y, n, d_result + 2);
  dot_cub<THREADS, 4>
      <<<(n + 4 * THREADS - 1) / (4 * THREADS), THREADS>>>(d_x, d_y, n, d_result + 3);
  gpuErrchk(cudaPeekAtLastError());
  gpuErrchk(cudaDeviceSynchronize());
  float got[4];
  gpuErrchk(cudaMemcpy(got, d_result, sizeof got, cudaMemcpyDeviceToHost));
  for (float each : got)
    if (each != want) {
      std::cout << "wrong: " << each << ", not " << want << std::endl;
      return EXIT_FAILURE;
    }
  std::cout << "right" << std::endl;
  return EXIT_SUCCESS;
}
