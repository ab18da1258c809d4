// Steps of a matrix product, after Simon Boehm: from uncoalesced loads to register tiles filled by
// float4 loads.
#include <cuda_runtime.h>

#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CEIL_DIV(M, N) (((M) + (N)-1) / (N))

void cudaCheck(cudaError_t error, const char* file, int line) {
  if (error != cudaSuccess) {
    printf("[CUDA ERROR] at file %s:%d:\n%s\n", file, line, cudaGetErrorString(error));
    exit(EXIT_FAILURE);
  }
}
#define cudaCheck(err) (cudaCheck(err, __FILE__, __LINE__))

typedef unsigned int uint;

// 1: neighbouring threads are in neighbouring rows
__global__ void sgemm_naive(int M, int N, int K, float alpha, const float* A, const float* B,
                            float beta, float* C) {
  const uint x = blockIdx.x * blockDim.x + threadIdx.x;
  const uint y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x < M && y < N) {
    float tmp = 0.0;
    for (int i = 0; i < K; ++i) {
      float a = A[x * K + i];
      tmp += a * B[i * N + y];  // naive
    }
    C[x * N + y] = alpha * tmp + beta * C[x * N + y];
  }
}

// 2: and in neighbouring columns
template <const uint BLOCKSIZE>
__global__ void sgemm_global_mem_coalesce(int M, int N, int K, float alpha, const float* A,
                                          const float* B, float beta, float* C) {
  const int cRow = blockIdx.x * BLOCKSIZE + (threadIdx.x / BLOCKSIZE);
  const int cCol = blockIdx.y * BLOCKSIZE + (threadIdx.x % BLOCKSIZE);
  if (cRow < M && cCol < N) {
    float tmp = 0.0;
    for (int i = 0; i < K; ++i) {
      float a = A[cRow * K + i];
      tmp += a * B[i * N + cCol];  // coalesced
    }
    C[cRow * N + cCol] = alpha * tmp + beta * C[cRow * N + cCol];
  }
}

// 6: a tile of registers a thread, of A transposed in shared memory, by vectors
template <const int BM, const int BN, const int BK, const int TM, const int TN>
__global__ void __launch_bounds__((BM * BN) / (TM * TN), 1)
    sgemmVectorize(int M, int N, int K, float alpha, float* A, float* B, float beta, float* C) {
  const uint cRow = blockIdx.y;
  const uint cCol = blockIdx.x;
  const int threadCol = threadIdx.x % (BN / TN);
  const int threadRow = threadIdx.x / (BN / TN);
  __shared__ float As[BM * BK];
  __shared__ float Bs[BK * BN];
  A += cRow * BM * K;
  B += cCol * BN;
  C += cRow * BM * N + cCol * BN;
  const uint innerRowA = threadIdx.x / (BK / 4);
  const uint innerColA = threadIdx.x % (BK / 4);
  const uint innerRowB = threadIdx.x / (BN / 4);
  const uint innerColB = threadIdx.x % (BN / 4);
  float threadResults[TM * TN] = {0.0};
  float regM[TM] = {0.0};
  float regN[TN] = {0.0};
  for (uint bkIdx = 0; bkIdx < K; bkIdx += BK) {
    float4 tmp = reinterpret_cast<float4*>(&A[innerRowA * K + innerColA * 4])[0];
    As[(innerColA * 4 + 0) * BM + innerRowA] = tmp.x;
    As[(innerColA * 4 + 1) * BM + innerRowA] = tmp.y;
    As[(innerColA * 4 + 2) * BM + innerRowA] = tmp.z;
    As[(innerColA * 4 + 3) * BM + innerRowA] = tmp.w;
    reinterpret_cast<float4*>(&Bs[innerRowB * BN + innerColB * 4])[0] =
        reinterpret_cast<float4*>(&B[innerRowB * N + innerColB * 4])[0];
    __syncthreads();
    A += BK;
    B += BK * N;
    for (uint dotIdx = 0; dotIdx < BK; ++dotIdx) {
      for (uint i = 0; i < TM; ++i) regM[i] = As[dotIdx * BM + threadRow * TM + i];
      for (uint i = 0; i < TN; ++i) regN[i] = Bs[dotIdx * BN + threadCol * TN + i];
      for (uint resIdxM = 0; resIdxM < TM; ++resIdxM)
        for (uint resIdxN = 0; resIdxN < TN; ++resIdxN)
          threadResults[resIdxM * TN + resIdxN] += regM[resIdxM] * regN[resIdxN];
    }
    __syncthreads();
  }
  for (uint resIdxM = 0; resIdxM < TM; resIdxM += 1) {
    for (uint resIdxN = 0; resIdxN < TN; resIdxN += 4) {
      float* c = &C[(threadRow * TM + resIdxM) * N + threadCol * TN + resIdxN];
      float4 tmp = reinterpret_cast<float4*>(c)[0];
      tmp.x = alpha * threadResults[resIdxM * TN + resIdxN] + beta * tmp.x;
      tmp.y = alpha * threadResults[resIdxM * TN + resIdxN + 1] + beta * tmp.y;
      tmp.z = alpha * threadResults[resIdxM * TN + resIdxN + 2] + beta * tmp.z;
      tmp.w = alpha * threadResults[resIdxM * TN + resIdxN + 3] + beta * tmp.w;
      reinterpret_cast<float4*>(c)[0] = tmp;
    }
  }
}

int main() {
  const int M = 128, N = 128, K = 16;
  const float alpha = 0.5f, beta = 3.0f;
  std::vector<float> A(M * K), B(K * N), C(M * N), got(M * N);
  for (int i = 0; i < M * K; ++i) A[i] = i % 7 - 3;
  for (int i = 0; i < K * N; ++i) B[i] = i % 5 - 2;
  for (int i = 0; i < M * N; ++i) C[i] = i % 3;
  float *dA = nullptr, *dB = nullptr, *dC = nullptr;
  cudaCheck(cudaMalloc((void**)&dA, sizeof(float) * M * K));
  cudaCheck(cudaMalloc((void**)&dB, sizeof(float) * K * N));
  cudaCheck(cudaMalloc((void**)&dC, sizeof(float) * M * N));
  cudaCheck(cudaMemcpy(dA, A.data(), sizeof(float) * M * K, cudaMemcpyHostToDevice));
  cudaCheck(cudaMemcpy(dB, B.data(), sizeof(float) * K * N, cudaMemcpyHostToDevice));
  for (int kernel = 1; kernel <= 3; ++kernel) {
    cudaCheck(cudaMemcpy(dC, C.data(), sizeof(float) * M * N, cudaMemcpyHostToDevice));
    if (kernel == 1) {
      dim3 gridDim(CEIL_DIV(M, 32), CEIL_DIV(N, 8));
      dim3 blockDim(32, 8);
      sgemm_naive<<<gridDim, blockDim>>>(M, N, K, alpha, dA, dB, beta, dC);
    } else if (kernel == 2) {
      dim3 gridDim(CEIL_DIV(M, 32), CEIL_DIV(N, 32));
      dim3 blockDim(32 * 32);
      sgemm_global_mem_coalesce<32><<<gridDim, blockDim>>>(M, N, K, alpha, dA, dB, beta, dC);
    } else {
      const uint BK = 8, TM = 8, TN = 8, BM = 128, BN = 128;
      dim3 gridDim(CEIL_DIV(N, BN), CEIL_DIV(M, BM));
      dim3 blockDim((BM * BN) / (TM * TN));
      assert(M % BM == 0 && N % BN == 0 && K % BK == 0);
      sgemmVectorize<BM, BN, BK, TM, TN><<<gridDim, blockDim>>>(M, N, K, alpha, dA, dB, beta, dC);
    }
    cudaCheck(cudaGetLastError());
    cudaCheck(cudaMemcpy(got.data(), dC, sizeof(float) * M * N, cudaMemcpyDeviceToHost));
    for (int i = 0; i < M; ++i)
      for (int j = 0; j < N; ++j) {
        float sum = 0;
        for (int k = 0; k < K; ++k) sum += A[i * K + k] * B[k * N + j];
        if (got[i * N + j] != alpha * sum + beta * C[i * N + j]) {
          printf("wrong: kernel %d at %d, %d\n", kernel, i, j);
          return EXIT_FAILURE;
        }
      }
  }
  cudaFree(dA), cudaFree(dB), cudaFree(dC);
  printf("right\n");
  return 0;
}
