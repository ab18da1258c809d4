// Mark Harris' steps of a reduction, from divergent threads to one load and add per thread.
#include <cstdio>

// 1: interleaved addressing, a divergent branch
__global__ void reduce1(const int* in, int* out, int n) {
  extern __shared__ int sdata[];
  unsigned tid = threadIdx.x, i = blockIdx.x * blockDim.x + threadIdx.x;
  sdata[tid] = i < n ? in[i] : 0;
  __syncthreads();
  for (unsigned s = 1; s < blockDim.x; s *= 2) {
    if (tid % (2 * s) == 0) sdata[tid] += sdata[tid + s];
    __syncthreads();
  }
  if (tid == 0) atomicAdd(out, sdata[0]);
}

// 2: strided indices, bank conflicts
__global__ void reduce2(const int* in, int* out, int n) {
  extern __shared__ int sdata[];
  unsigned tid = threadIdx.x, i = blockIdx.x * blockDim.x + threadIdx.x;
  sdata[tid] = i < n ? in[i] : 0;
  __syncthreads();
  for (unsigned s = 1; s < blockDim.x; s *= 2) {
    unsigned index = 2 * s * tid;
    if (index < blockDim.x) sdata[index] += sdata[index + s];
    __syncthreads();
  }
  if (tid == 0) atomicAdd(out, sdata[0]);
}

// 3: sequential addressing
__global__ void reduce3(const int* in, int* out, int n) {
  extern __shared__ int sdata[];
  unsigned tid = threadIdx.x, i = blockIdx.x * blockDim.x + threadIdx.x;
  sdata[tid] = i < n ? in[i] : 0;
  __syncthreads();
  for (unsigned s = blockDim.x / 2; s > 0; s >>= 1) {
    if (tid < s) sdata[tid] += sdata[tid + s];
    __syncthreads();
  }
  if (tid == 0) atomicAdd(out, sdata[0]);
}

// 5: the last warp without block barriers; 7: many elements per thread
template <unsigned blockSize>
__global__ void reduce7(const int* in, int* out, unsigned n) {
  __shared__ int sdata[blockSize];
  unsigned tid = threadIdx.x, i = blockIdx.x * (blockSize * 2) + tid;
  int sum = 0;
  for (; i < n; i += blockSize * 2 * gridDim.x)
    sum += in[i] + (i + blockSize < n ? in[i + blockSize] : 0);
  sdata[tid] = sum;
  __syncthreads();
  for (unsigned s = blockSize / 2; s >= 32; s >>= 1) {
    if (tid < s) sdata[tid] = sum = sum + sdata[tid + s];
    __syncthreads();
  }
  if (tid < 32)
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffff, sum, offset);
  if (tid == 0) atomicAdd(out, sum);
}

int main() {
  const int n = 100000, threads = 256, blocks = (n + threads - 1) / threads;
  int *in, *out, sums[4];
  cudaMallocManaged(&in, n * sizeof(int));
  cudaMallocManaged(&out, 4 * sizeof(int));
  long long expected = 0;
  for (int i = 0; i < n; ++i) expected += in[i] = i % 7 - 2;
  cudaMemset(out, 0, 4 * sizeof(int));
  reduce1<<<blocks, threads, threads * sizeof(int)>>>(in, out, n);
  reduce2<<<blocks, threads, threads * sizeof(int)>>>(in, out + 1, n);
  reduce3<<<blocks, threads, threads * sizeof(int)>>>(in, out + 2, n);
  reduce7<threads><<<40, threads>>>(in, out + 3, n);
  cudaDeviceSynchronize();
  cudaMemcpy(sums, out, sizeof sums, cudaMemcpyDefault);
  for (int sum : sums)
    if (sum != expected) return printf("wrong: %d, not %lld\n", sum, expected), 1;
  puts("right");
}
