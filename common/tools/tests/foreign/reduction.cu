// The seven reductions of Mark Harris' "Optimizing Parallel Reduction in CUDA". As published, the
// last warp of 5 to 7 relies on volatile alone; `reduction published` runs them so.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define CUDA_CHECK(call)                                                           \
  do {                                                                             \
    cudaError_t err = (call);                                                      \
    if (err != cudaSuccess) {                                                      \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(err)); \
      exit(EXIT_FAILURE);                                                          \
    }                                                                              \
  } while (0)

// 1: interleaved addressing, a divergent branch
__global__ void reduce1(int* g_idata, int* g_odata) {
  extern __shared__ int sdata[];
  unsigned int tid = threadIdx.x;
  unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
  sdata[tid] = g_idata[i];
  __syncthreads();
  for (unsigned int s = 1; s < blockDim.x; s *= 2) {
    if (tid % (2 * s) == 0) {
      sdata[tid] += sdata[tid + s];  // by modulo
    }
    __syncthreads();
  }
  if (tid == 0) g_odata[blockIdx.x] = sdata[0];
}

// 2: interleaved addressing, a strided index and bank conflicts
__global__ void reduce2(int* g_idata, int* g_odata) {
  extern __shared__ int sdata[];
  unsigned int tid = threadIdx.x;
  unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
  sdata[tid] = g_idata[i];
  __syncthreads();
  for (unsigned int s = 1; s < blockDim.x; s *= 2) {
    int index = 2 * s * tid;
    if (index < blockDim.x) {
      sdata[index] += sdata[index + s];
    }
    __syncthreads();
  }
  if (tid == 0) g_odata[blockIdx.x] = sdata[0];
}

// 3: sequential addressing
__global__ void reduce3(int* g_idata, int* g_odata) {
  extern __shared__ int sdata[];
  unsigned int tid = threadIdx.x;
  unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
  sdata[tid] = g_idata[i];
  __syncthreads();
  for (unsigned int s = blockDim.x / 2; s > 0; s >>= 1) {
    if (tid < s) {
      sdata[tid] += sdata[tid + s];  // in sequence
    }
    __syncthreads();
  }
  if (tid == 0) g_odata[blockIdx.x] = sdata[0];
}

// 4: the first add during the load
__global__ void reduce4(int* g_idata, int* g_odata) {
  extern __shared__ int sdata[];
  unsigned int tid = threadIdx.x;
  unsigned int i = blockIdx.x * (blockDim.x * 2) + threadIdx.x;
  sdata[tid] = g_idata[i] + g_idata[i + blockDim.x];
  __syncthreads();
  for (unsigned int s = blockDim.x / 2; s > 0; s >>= 1) {
    if (tid < s) sdata[tid] += sdata[tid + s];  // half as many blocks
    __syncthreads();
  }
  if (tid == 0) g_odata[blockIdx.x] = sdata[0];
}

// The last warp, as published: right on GPUs whose warps run in lockstep, before Volta.
struct Volatile {
  static __device__ void warpReduce(volatile int* sdata, int tid) {
    sdata[tid] += sdata[tid + 32];
    sdata[tid] += sdata[tid + 16];
    sdata[tid] += sdata[tid + 8];
    sdata[tid] += sdata[tid + 4];
    sdata[tid] += sdata[tid + 2];
    sdata[tid] += sdata[tid + 1];
  }
};
// The same, as NVIDIA's post on warp-level primitives mends it.
struct Synced {
  static __device__ void warpReduce(int* sdata, int tid) {
    int v = sdata[tid];
    v += sdata[tid + 32], __syncwarp(), sdata[tid] = v, __syncwarp();
    v += sdata[tid + 16], __syncwarp(), sdata[tid] = v, __syncwarp();
    v += sdata[tid + 8], __syncwarp(), sdata[tid] = v, __syncwarp();
    v += sdata[tid + 4], __syncwarp(), sdata[tid] = v, __syncwarp();
    v += sdata[tid + 2], __syncwarp(), sdata[tid] = v, __syncwarp();
    v += sdata[tid + 1], __syncwarp(), sdata[tid] = v;
  }
};
struct Shuffled {
  static __device__ void warpReduce(int* sdata, int tid) {
    int v = sdata[tid] + sdata[tid + 32];
    for (int offset = warpSize / 2; offset > 0; offset /= 2)
      v += __shfl_down_sync(0xffffffff, v, offset);
    if (tid == 0) sdata[0] = v;
  }
};

// 5: the last warp unrolled
template <class Last>
__global__ void reduce5(int* g_idata, int* g_odata) {
  extern __shared__ int sdata[];
  unsigned int tid = threadIdx.x;
  unsigned int i = blockIdx.x * (blockDim.x * 2) + threadIdx.x;
  sdata[tid] = g_idata[i] + g_idata[i + blockDim.x];
  __syncthreads();
  for (unsigned int s = blockDim.x / 2; s > 32; s >>= 1) {
    if (tid < s) sdata[tid] += sdata[tid + s];
    __syncthreads();
  }
  if (tid < 32) Last::warpReduce(sdata, tid);
  if (tid == 0) g_odata[blockIdx.x] = sdata[0];
}

// 6: completely unrolled
template <unsigned int blockSize, class Last>
__global__ void reduce6(int* g_idata, int* g_odata) {
  extern __shared__ int sdata[];
  unsigned int tid = threadIdx.x;
  unsigned int i = blockIdx.x * (blockDim.x * 2) + threadIdx.x;
  sdata[tid] = g_idata[i] + g_idata[i + blockDim.x];
  __syncthreads();
  if (blockSize >= 512) {
    if (tid < 256) {
      sdata[tid] += sdata[tid + 256];
    }
    __syncthreads();
  }
  if (blockSize >= 256) {
    if (tid < 128) {
      sdata[tid] += sdata[tid + 128];
    }
    __syncthreads();
  }
  if (blockSize >= 128) {
    if (tid < 64) {
      sdata[tid] += sdata[tid + 64];
    }
    __syncthreads();
  }
  if (tid < 32) Last::warpReduce(sdata, tid);
  if (tid == 0) g_odata[blockIdx.x] = sdata[0];
}

// 7: many elements a thread
template <unsigned int blockSize, class Last>
__global__ void reduce7(int* g_idata, int* g_odata, unsigned int n) {
  extern __shared__ int sdata[];
  unsigned int tid = threadIdx.x;
  unsigned int i = blockIdx.x * (blockSize * 2) + tid;
  unsigned int gridSize = blockSize * 2 * gridDim.x;
  sdata[tid] = 0;
  while (i < n) {
    sdata[tid] += g_idata[i] + g_idata[i + blockSize];
    i += gridSize;
  }
  __syncthreads();
  if (blockSize >= 512) {
    if (tid < 256) {
      sdata[tid] += sdata[tid + 256];
    }
    __syncthreads();
  }
  if (blockSize >= 256) {
    if (tid < 128) {
      sdata[tid] += sdata[tid + 128];
    }
    __syncthreads();
  }
  if (blockSize >= 128) {
    if (tid < 64) {
      sdata[tid] += sdata[tid + 64];
    }
    __syncthreads();
  }
  if (tid < 32) Last::warpReduce(sdata, tid);
  if (tid == 0) g_odata[blockIdx.x] = sdata[0];
}

template <class Last>
void reduce(int which, int n, int threads, int* d_in, int* d_out, int* blocks) {
  int smem = threads * sizeof(int);
  *blocks = which < 4 ? n / threads : which < 7 ? n / threads / 2 : 4;
  dim3 dimGrid(*blocks, 1, 1), dimBlock(threads, 1, 1);
  switch (which) {
    case 1:
      reduce1<<<dimGrid, dimBlock, smem>>>(d_in, d_out);
      break;
    case 2:
      reduce2<<<dimGrid, dimBlock, smem>>>(d_in, d_out);
      break;
    case 3:
      reduce3<<<dimGrid, dimBlock, smem>>>(d_in, d_out);
      break;
    case 4:
      reduce4<<<dimGrid, dimBlock, smem>>>(d_in, d_out);
      break;
    case 5:
      reduce5<Last><<<dimGrid, dimBlock, smem>>>(d_in, d_out);
      break;
    case 6:
      switch (threads) {
        case 512:
          reduce6<512, Last><<<dimGrid, dimBlock, smem>>>(d_in, d_out);
          break;
        case 256:
          reduce6<256, Last><<<dimGrid, dimBlock, smem>>>(d_in, d_out);
          break;
        case 128:
          reduce6<128, Last><<<dimGrid, dimBlock, smem>>>(d_in, d_out);
          break;
      }
      break;
    case 7:
      switch (threads) {
        case 512:
          reduce7<512, Last><<<dimGrid, dimBlock, smem>>>(d_in, d_out, n);
          break;
        case 256:
          reduce7<256, Last><<<dimGrid, dimBlock, smem>>>(d_in, d_out, n);
          break;
        case 128:
          reduce7<128, Last><<<dimGrid, dimBlock, smem>>>(d_in, d_out, n);
          break;
      }
      break;
  }
  CUDA_CHECK(cudaGetLastError());
}

template <class Last>
bool right(int which, int n, int threads, int* d_in, int* d_out, int* h_out, int expected) {
  int blocks, sum = 0;
  reduce<Last>(which, n, threads, d_in, d_out, &blocks);
  CUDA_CHECK(cudaMemcpy(h_out, d_out, blocks * sizeof(int), cudaMemcpyDeviceToHost));
  for (int b = 0; b < blocks; ++b) sum += h_out[b];
  if (sum != expected) printf("wrong: reduce%d gives %d, not %d\n", which, sum, expected);
  return sum == expected;
}

int main(int argc, char** argv) {
  const int n = 1 << 13, threads = 256;
  int* h_in = (int*)malloc(n * sizeof(int));
  int* h_out = (int*)malloc(n / threads * sizeof(int));
  int expected = 0;
  for (int i = 0; i < n; ++i) expected += h_in[i] = (i * 37) & 0xff;
  int *d_in, *d_out;
  CUDA_CHECK(cudaMalloc((void**)&d_in, n * sizeof(int)));
  CUDA_CHECK(cudaMalloc((void**)&d_out, n / threads * sizeof(int)));
  CUDA_CHECK(cudaMemcpy(d_in, h_in, n * sizeof(int), cudaMemcpyHostToDevice));
  bool ok = true;
  if (argc > 1 && strcmp(argv[1], "published") == 0) {
    for (int which = 5; which <= 7; ++which)
      ok &= right<Volatile>(which, n, threads, d_in, d_out, h_out, expected);
  } else {
    for (int which = 1; which <= 7; ++which)
      ok &= right<Synced>(which, n, threads, d_in, d_out, h_out, expected);
    for (int which = 5; which <= 7; ++which)
      ok &= right<Shuffled>(which, n, threads, d_in, d_out, h_out, expected);
  }
  CUDA_CHECK(cudaFree(d_in));
  CUDA_CHECK(cudaFree(d_out));
  free(h_in), free(h_out);
  if (ok) printf("right\n");
  return ok ? EXIT_SUCCESS : EXIT_FAILURE;
}
