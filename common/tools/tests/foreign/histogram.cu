// A histogram by atomics in global memory; and with a private copy in shared memory, added up by
// atomics, and its exclusive scan.
#include <cstdio>

#define BINS 64

__device__ int finished;  // blocks of the histogram that are done

__global__ void histogram_global(const unsigned char* data, int n, int* bins) {
  int i = threadIdx.x + blockIdx.x * blockDim.x, stride = blockDim.x * gridDim.x;
  while (i < n) {
    atomicAdd(&bins[data[i] % BINS], 1);
    i += stride;
  }
}

__global__ void histogram(const unsigned char* data, int n, int* bins) {
  __shared__ int local[BINS];
  for (int b = threadIdx.x; b < BINS; b += blockDim.x) local[b] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    atomicAdd(&local[data[i] % BINS], 1);
  __syncthreads();
  for (int b = threadIdx.x; b < BINS; b += blockDim.x) atomicAdd(&bins[b], local[b]);
  if (threadIdx.x == 0) atomicAdd(&finished, 1);
}

__global__ void scan(int* bins) {
  __shared__ int temp[2 * BINS];
  int t = threadIdx.x, in = 1, out = 0;
  temp[t] = t > 0 ? bins[t - 1] : 0;
  __syncthreads();
  for (int offset = 1; offset < BINS; offset *= 2) {
    out = 1 - out, in = 1 - out;
    temp[out * BINS + t] = temp[in * BINS + t] + (t >= offset ? temp[in * BINS + t - offset] : 0);
    __syncthreads();
  }
  bins[t] = temp[out * BINS + t];
}

int main() {
  const int n = 20000;
  static unsigned char host[n];
  int expected[BINS] = {}, bins[BINS], blocks;
  for (int i = 0; i < n; ++i) expected[(host[i] = i * i % 251) % BINS]++;
  unsigned char* data;
  int* counts;
  cudaMalloc(&data, n);
  cudaMalloc(&counts, sizeof bins);
  cudaMemcpy(data, host, n, cudaMemcpyHostToDevice);
  cudaMemset(counts, 0, sizeof bins);
  histogram_global<<<12, 128>>>(data, n, counts);
  cudaMemcpy(bins, counts, sizeof bins, cudaMemcpyDeviceToHost);
  for (int b = 0; b < BINS; b++)
    if (bins[b] != expected[b]) return puts("wrong"), 1;
  cudaMemsetAsync(counts, 0, sizeof bins);
  histogram<<<12, 128>>>(data, n, counts);
  scan<<<1, BINS>>>(counts);
  cudaMemcpy(bins, counts, sizeof bins, cudaMemcpyDeviceToHost);
  cudaMemcpyFromSymbol(&blocks, finished, sizeof blocks);
  int sum = 0, wrong = blocks != 12;
  for (int b = 0; b < BINS; sum += expected[b++]) wrong += bins[b] != sum;
  puts(wrong ? "wrong" : "right");
  return wrong;
}
