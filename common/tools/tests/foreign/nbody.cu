// All pairs of bodies, in tiles of shared memory, as in GPU Gems 3, chapter 31; and a step of the
// bodies as an array of structures and as a structure of arrays.
#include <cuda.h>
#include <cuda_runtime.h>
#include <device_launch_parameters.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define SOFTENING 1e-3f
#define CHECK(call)                                                       \
  {                                                                       \
    const cudaError_t error = call;                                       \
    if (error != cudaSuccess) {                                           \
      printf("Error: %s:%d, ", __FILE__, __LINE__);                       \
      printf("code: %d, reason: %s\n", error, cudaGetErrorString(error)); \
      exit(1);                                                            \
    }                                                                     \
  }

__device__ __forceinline__ float3 bodyBodyInteraction(float4 bi, float4 bj, float3 ai) {
  float3 r;
  r.x = bj.x - bi.x;
  r.y = bj.y - bi.y;
  r.z = bj.z - bi.z;
  float distSqr = r.x * r.x + r.y * r.y + r.z * r.z + SOFTENING;
  float invDist = rsqrtf(distSqr);
  float s = bj.w * invDist * invDist * invDist;
  ai.x += r.x * s;
  ai.y += r.y * s;
  ai.z += r.z * s;
  return ai;
}

__device__ float3 tile_calculation(float4 myPosition, float3 accel) {
  extern __shared__ float4 shPosition[];
#pragma unroll 4
  for (int i = 0; i < blockDim.x; i++)
    accel = bodyBodyInteraction(myPosition, shPosition[i], accel);
  return accel;
}

__global__ void calculate_forces(const float4* devX, float4* devA, int N) {
  extern __shared__ float4 shPosition[];
  float3 acc = make_float3(0.0f, 0.0f, 0.0f);
  int gtid = blockIdx.x * blockDim.x + threadIdx.x;
  float4 myPosition = devX[gtid];
  for (int i = 0, tile = 0; i < N; i += blockDim.x, tile++) {
    int idx = tile * blockDim.x + threadIdx.x;
    shPosition[threadIdx.x] = devX[idx];
    __syncthreads();
    acc = tile_calculation(myPosition, acc);
    __syncthreads();
  }
  devA[gtid] = make_float4(acc.x, acc.y, acc.z, 0.0f);
}

struct Body {
  float x, y, z, vx, vy, vz, mass, radius;
};
struct Bodies {
  float *x, *vx;
};

__global__ void step_of_structures(Body* b, int n, float dt) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) b[i].x += dt * b[i].vx;  // an array of structures
}
__global__ void step_of_arrays(Bodies b, int n, float dt) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) b.x[i] += dt * b.vx[i];  // a structure of arrays
}

int main() {
  const int N = 256, p = 64;
  float4 *x = (float4*)malloc(N * sizeof(float4)), *a = (float4*)malloc(N * sizeof(float4));
  srand(1);
  for (int i = 0; i < N; i++)
    x[i] = make_float4(rand() / (float)RAND_MAX, rand() / (float)RAND_MAX, rand() / (float)RAND_MAX,
                       1);
  float4 *dx, *da;
  CHECK(cudaMalloc(&dx, N * sizeof(float4)));
  CHECK(cudaMalloc(&da, N * sizeof(float4)));
  CHECK(cudaMemcpy(dx, x, N * sizeof(float4), cudaMemcpyHostToDevice));
  size_t sharedMemSize = p * sizeof(float4);
  calculate_forces<<<N / p, p, sharedMemSize>>>(dx, da, N);
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaMemcpy(a, da, N * sizeof(float4), cudaMemcpyDeviceToHost));
  for (int i = 0; i < N; i++) {
    double ax = 0;
    for (int j = 0; j < N; j++) {
      double rx = x[j].x - x[i].x, ry = x[j].y - x[i].y, rz = x[j].z - x[i].z;
      ax += rx * pow(rx * rx + ry * ry + rz * rz + SOFTENING, -1.5);
    }
    if (!(fabs(a[i].x - ax) < 1e-3 * (1 + fabs(ax)))) {
      printf("wrong at %d: %g, not %g\n", i, a[i].x, ax);
      return 1;
    }
  }
  Body* bodies;
  Bodies arrays;
  CHECK(cudaMallocManaged((void**)&bodies, N * sizeof(Body)));
  CHECK(cudaMallocManaged((void**)&arrays.x, N * sizeof(float)));
  CHECK(cudaMallocManaged((void**)&arrays.vx, N * sizeof(float)));
  for (int i = 0; i < N; i++) {
    bodies[i].x = arrays.x[i] = i;
    bodies[i].vx = arrays.vx[i] = 2 * i;
  }
  step_of_structures<<<(N + 127) / 128, 128>>>(bodies, N, 0.5f);
  step_of_arrays<<<(N + 127) / 128, 128>>>(arrays, N, 0.5f);
  CHECK(cudaGetLastError());
  CHECK(cudaDeviceSynchronize());
  for (int i = 0; i < N; i++)
    if (bodies[i].x != 2 * i || arrays.x[i] != 2 * i) return printf("wrong at %d\n", i), 1;
  free(x), free(a);
  CHECK(cudaDeviceReset());
  printf("right\n");
  return 0;
}
