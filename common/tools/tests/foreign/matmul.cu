// A matrix product in tiles of shared memory.
#include <cstdio>
#include <vector>

template <int TILE>
__global__ void matmul(const float* A, const float* B, float* C, int M, int N, int K) {
  __shared__ float a[TILE][TILE], b[TILE][TILE];
  const int row = blockIdx.y * TILE + threadIdx.y, col = blockIdx.x * TILE + threadIdx.x;
  float sum = 0;
  for (int t = 0; t < K; t += TILE) {
    a[threadIdx.y][threadIdx.x] = row < M && t + threadIdx.x < K ? A[row * K + t + threadIdx.x] : 0;
    b[threadIdx.y][threadIdx.x] =
        t + threadIdx.y < K && col < N ? B[(t + threadIdx.y) * N + col] : 0;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < TILE; ++k) sum = __fmaf_rn(a[threadIdx.y][k], b[k][threadIdx.x], sum);
    __syncthreads();
  }
  if (row < M && col < N) C[row * N + col] = sum;
}

int main() {
  const int M = 37, N = 50, K = 29;
  std::vector<float> A(M * K), B(K * N), C(M * N);
  for (int i = 0; i < M * K; ++i) A[i] = i % 5 - 2;
  for (int i = 0; i < K * N; ++i) B[i] = i % 7 - 3;
  float *a, *b, *c;
  cudaMalloc(&a, A.size() * 4), cudaMalloc(&b, B.size() * 4), cudaMalloc(&c, C.size() * 4);
  cudaMemcpy(a, A.data(), A.size() * 4, cudaMemcpyHostToDevice);
  cudaMemcpy(b, B.data(), B.size() * 4, cudaMemcpyHostToDevice);
  cudaEvent_t start, stop;
  cudaEventCreate(&start), cudaEventCreate(&stop);
  cudaEventRecord(start);
  matmul<16><<<dim3((N + 15) / 16, (M + 15) / 16), dim3(16, 16)>>>(a, b, c, M, N, K);
  cudaEventRecord(stop);
  float ms;
  cudaEventElapsedTime(&ms, start, stop);
  cudaMemcpy(C.data(), c, C.size() * 4, cudaMemcpyDeviceToHost);
  for (int i = 0; i < M; ++i)
    for (int j = 0; j < N; ++j) {
      float sum = 0;
      for (int k = 0; k < K; ++k) sum += A[i * K + k] * B[k * N + j];
      if (C[i * N + j] != sum) return printf("wrong at %d, %d\n", i, j), 1;
    }
  puts("right");
}
