// A convolution of an image with a filter in constant memory, by rows and columns, as in the CUDA
// Toolkit's convolutionSeparable.
#include <stdio.h>
#include <stdlib.h>

#define KERNEL_RADIUS 4
#define KERNEL_LENGTH (2 * KERNEL_RADIUS + 1)
#define TILE_W 32
#define TILE_H 8

#define checkCudaErrors(val) check((val), #val, __FILE__, __LINE__)
template <typename T>
void check(T result, char const* const func, const char* const file, int const line) {
  if (result) {
    fprintf(stderr, "CUDA error at %s:%d code=%d(%s) \"%s\" \n", file, line,
            static_cast<unsigned int>(result), cudaGetErrorName(result), func);
    exit(EXIT_FAILURE);
  }
}

__constant__ float c_Kernel[KERNEL_LENGTH];
__device__ __managed__ int outside = 0;  // accesses that the border cuts off

__global__ void convolutionRowsKernel(float* d_Dst, const float* d_Src, int w, int h) {
  __shared__ float s_Data[TILE_H][TILE_W + 2 * KERNEL_RADIUS];
  const int x = blockIdx.x * TILE_W + threadIdx.x, y = blockIdx.y * TILE_H + threadIdx.y;
  for (int i = threadIdx.x; i < TILE_W + 2 * KERNEL_RADIUS; i += TILE_W) {
    const int from = blockIdx.x * TILE_W + i - KERNEL_RADIUS;
    const bool inside = from >= 0 && from < w;
    if (!inside) atomicAdd(&outside, 1);
    s_Data[threadIdx.y][i] = inside ? d_Src[y * w + from] : 0;
  }
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int j = -KERNEL_RADIUS; j <= KERNEL_RADIUS; j++)
    sum += c_Kernel[KERNEL_RADIUS - j] * s_Data[threadIdx.y][threadIdx.x + KERNEL_RADIUS + j];
  d_Dst[y * w + x] = sum;
}

// a column a thread of x: a tile is a row of threads wide, so banks are free of conflicts
__global__ void convolutionColumnsKernel(float* d_Dst, const float* d_Src, int w, int h) {
  __shared__ float s_Data[TILE_H + 2 * KERNEL_RADIUS][TILE_W];
  const int x = blockIdx.x * TILE_W + threadIdx.x, y = blockIdx.y * TILE_H + threadIdx.y;
  for (int i = threadIdx.y; i < TILE_H + 2 * KERNEL_RADIUS; i += TILE_H) {
    const int from = blockIdx.y * TILE_H + i - KERNEL_RADIUS;
    s_Data[i][threadIdx.x] = from >= 0 && from < h ? d_Src[from * w + x] : 0;
  }
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int j = -KERNEL_RADIUS; j <= KERNEL_RADIUS; j++)
    sum += c_Kernel[KERNEL_RADIUS - j] * s_Data[threadIdx.y + KERNEL_RADIUS + j][threadIdx.x];
  d_Dst[y * w + x] = sum;
}

int main(int argc, char** argv) {
  const int w = 64, h = 16;
  float* h_Kernel = (float*)malloc(KERNEL_LENGTH * sizeof(float));
  float* h_Input = (float*)malloc(w * h * sizeof(float));
  float* h_Buffer = (float*)malloc(w * h * sizeof(float));
  float* h_Output = (float*)malloc(w * h * sizeof(float));
  for (int i = 0; i < KERNEL_LENGTH; i++) h_Kernel[i] = (float)(i % 3);
  for (int i = 0; i < w * h; i++) h_Input[i] = (float)(i % 16);
  float *d_Input, *d_Buffer, *d_Output;
  checkCudaErrors(cudaMalloc((void**)&d_Input, w * h * sizeof(float)));
  checkCudaErrors(cudaMalloc((void**)&d_Buffer, w * h * sizeof(float)));
  checkCudaErrors(cudaMalloc((void**)&d_Output, w * h * sizeof(float)));
  checkCudaErrors(cudaMemcpyToSymbol(c_Kernel, h_Kernel, KERNEL_LENGTH * sizeof(float)));
  checkCudaErrors(cudaMemcpy(d_Input, h_Input, w * h * sizeof(float), cudaMemcpyHostToDevice));
  dim3 blocks(w / TILE_W, h / TILE_H), threads(TILE_W, TILE_H);
  convolutionRowsKernel<<<blocks, threads>>>(d_Buffer, d_Input, w, h);
  convolutionColumnsKernel<<<blocks, threads>>>(d_Output, d_Buffer, w, h);
  checkCudaErrors(cudaDeviceSynchronize());
  checkCudaErrors(cudaMemcpy(h_Output, d_Output, w * h * sizeof(float), cudaMemcpyDeviceToHost));
  int errors = outside != 2 * KERNEL_RADIUS * h;
  for (int pass = 0; pass < 2; pass++) {
    const float* from = pass ? h_Buffer : h_Input;
    for (int y = 0; y < h; y++)
      for (int x = 0; x < w; x++) {
        float sum = 0;
        for (int j = -KERNEL_RADIUS; j <= KERNEL_RADIUS; j++) {
          int xx = pass ? x : x + j, yy = pass ? y + j : y;
          if (xx >= 0 && xx < w && yy >= 0 && yy < h)
            sum += h_Kernel[KERNEL_RADIUS - j] * from[yy * w + xx];
        }
        if (pass)
          errors += h_Output[y * w + x] != sum;
        else
          h_Buffer[y * w + x] = sum;
      }
  }
  free(h_Kernel), free(h_Input), free(h_Buffer), free(h_Output);
  printf(errors ? "wrong\n" : "right\n");
  exit(errors ? EXIT_FAILURE : EXIT_SUCCESS);
}
