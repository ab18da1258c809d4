// y = a x + y: with a stride in memory, by neighbours, in a grid-stride loop on managed memory, and
// in pieces on two streams, timed by events.
#include <cmath>
#include <cstdio>
#include <cstdlib>

inline cudaError_t checkCuda(cudaError_t result) {
  if (result != cudaSuccess) {
    fprintf(stderr, "CUDA Runtime Error: %s\n", cudaGetErrorString(result));
    exit(1);
  }
  return result;
}

// each thread has a piece of its own: neighbours are far apart
__global__ void saxpy_pieces(int n, float a, const float* x, float* y) {
  int threads = gridDim.x * blockDim.x, each = (n + threads - 1) / threads;
  int first = (blockIdx.x * blockDim.x + threadIdx.x) * each;
  for (int i = first; i < first + each && i < n; i++) y[i] = a * x[i] + y[i];  // in pieces
}

__global__ void saxpy(int n, float a, const float* __restrict__ x, float* __restrict__ y) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x)
    y[i] = a * x[i] + y[i];  // in strides of the grid
}

// 16 bytes a lane
__global__ void saxpy4(int n, float a, const float4* x, float4* y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n / 4) return;
  float4 v = x[i], w = y[i];
  w.x = a * v.x + w.x, w.y = a * v.y + w.y, w.z = a * v.z + w.z, w.w = a * v.w + w.w;
  y[i] = w;
}

// one float off the sectors
__global__ void saxpy_offset(int n, int offset, float a, const float* x, float* y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x + offset;
  if (i < n) y[i] = a * x[i] + y[i];  // off by one
}

int main() {
  const int N = 1 << 12, streams = 2;
  float *x, *y;
  checkCuda(cudaMallocManaged(&x, N * sizeof(float)));
  checkCuda(cudaMallocManaged(&y, N * sizeof(float)));
  for (int i = 0; i < N; i++) x[i] = i % 10, y[i] = 1.0f;

  int device, numSMs;
  checkCuda(cudaGetDevice(&device));
  checkCuda(cudaDeviceGetAttribute(&numSMs, cudaDevAttrMultiProcessorCount, device));
  cudaMemPrefetchAsync(x, N * sizeof(float), device, NULL);

  cudaEvent_t start, stop;
  checkCuda(cudaEventCreate(&start));
  checkCuda(cudaEventCreate(&stop));
  checkCuda(cudaEventRecord(start, 0));
  saxpy_pieces<<<2, 64>>>(N, 1.0f, x, y);
  saxpy<<<2, 256>>>(N, 1.0f, x, y);
  saxpy4<<<(N / 4 + 255) / 256, 256>>>(N, 1.0f, (const float4*)x, (float4*)y);
  saxpy_offset<<<N / 256, 256>>>(N, 1, 1.0f, x, y);
  checkCuda(cudaEventRecord(stop, 0));
  checkCuda(cudaEventSynchronize(stop));
  float ms = 0;
  checkCuda(cudaEventElapsedTime(&ms, start, stop));
  checkCuda(cudaDeviceSynchronize());

  cudaStream_t stream[streams];
  float *host, *piece[streams];
  checkCuda(cudaMallocHost((void**)&host, N * sizeof(float)));
  for (int s = 0; s < streams; s++) {
    checkCuda(cudaStreamCreate(&stream[s]));
    int n = N / streams;
    checkCuda(cudaMalloc((void**)&piece[s], n * sizeof(float)));
    checkCuda(
        cudaMemcpyAsync(piece[s], y + s * n, n * sizeof(float), cudaMemcpyDefault, stream[s]));
    saxpy<<<1, 256, 0, stream[s]>>>(n, 2.0f, x + s * n, piece[s]);
    checkCuda(cudaMemcpyAsync(host + s * n, piece[s], n * sizeof(float), cudaMemcpyDeviceToHost,
                              stream[s]));
  }
  for (int s = 0; s < streams; s++) {
    while (cudaStreamQuery(stream[s]) == cudaErrorNotReady) {
    }
    checkCuda(cudaStreamSynchronize(stream[s]));
    checkCuda(cudaStreamDestroy(stream[s]));
    checkCuda(cudaFree(piece[s]));
  }

  float maxError = 0.0f;
  for (int i = 0; i < N; i++) {
    float a = i == 0 ? 5.0f : 6.0f;  // saxpy_offset leaves out the first
    maxError = fmaxf(maxError, fabsf(host[i] - (1.0f + a * (i % 10))));
  }
  checkCuda(cudaEventDestroy(start));
  checkCuda(cudaEventDestroy(stop));
  checkCuda(cudaFreeHost(host));
  checkCuda(cudaFree(x));
  checkCuda(cudaFree(y));
  if (ms < 0 || numSMs < 1 || maxError > 0) {
    printf("wrong, by %g\n", maxError);
    return 1;
  }
  puts("right");
  return 0;
}
