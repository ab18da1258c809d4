// A matrix transposed as it is, and through shared memory without and with a padding column.
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                                   \
  do {                                                                                \
    cudaError_t status = (call);                                                      \
    if (status != cudaSuccess) {                                                      \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(status)); \
      exit(1);                                                                        \
    }                                                                                 \
  } while (0)

const int TILE = 32;

__global__ void transposeNaive(float* out, const float* in, int width, int height) {
  int x = blockIdx.x * TILE + threadIdx.x;
  int y = blockIdx.y * TILE + threadIdx.y;
  if (x < width && y < height) out[x * height + y] = in[y * width + x];
}

template <int PAD>
__global__ void transpose(float* out, const float* in, int width, int height) {
  __shared__ float tile[TILE][TILE + PAD];
  int x = blockIdx.x * TILE + threadIdx.x;
  int y = blockIdx.y * TILE + threadIdx.y;
  if (x < width && y < height) tile[threadIdx.y][threadIdx.x] = in[y * width + x];
  __syncthreads();
  x = blockIdx.y * TILE + threadIdx.x;
  y = blockIdx.x * TILE + threadIdx.y;
  if (x < height && y < width) out[y * height + x] = tile[threadIdx.x][threadIdx.y];
}

int main(int argc, char** argv) {
  const int width = argc > 1 ? atoi(argv[1]) : 100, height = argc > 2 ? atoi(argv[2]) : 70;
  std::vector<float> a(width * height), b(width * height);
  for (int i = 0; i < width * height; ++i) a[i] = i;
  float *in, *out;
  CHECK(cudaMalloc(&in, a.size() * sizeof(float)));
  CHECK(cudaMalloc((void**)&out, a.size() * sizeof(float)));
  CHECK(cudaMemcpy(in, a.data(), a.size() * sizeof(float), cudaMemcpyHostToDevice));
  dim3 grid((width + TILE - 1) / TILE, (height + TILE - 1) / TILE);
  transposeNaive<<<grid, dim3(TILE, TILE)>>>(out, in, width, height);
  transpose<0><<<grid, dim3(TILE, TILE)>>>(out, in, width, height);
  transpose<1><<<grid, dim3(TILE, TILE), 0, 0>>>(out, in, width, height);
  CHECK(cudaGetLastError());
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaMemcpy(b.data(), out, b.size() * sizeof(float), cudaMemcpyDeviceToHost));
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      if (b[x * height + y] != a[y * width + x]) return printf("wrong at %d, %d\n", y, x), 1;
  printf("right\n");
  return 0;
}
