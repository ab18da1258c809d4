// Stencils with a halo in shared memory: the 1D one of NVIDIA's introduction, and steps of heat in
// 2D that swap two buffers. `stencil nosync` forgets the barrier of the introduction's slides.
#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <vector>

#define RADIUS 3
#define BLOCK_SIZE 128

static void HandleError(cudaError_t err, const char* file, int line) {
  if (err != cudaSuccess) {
    printf("%s in %s at line %d\n", cudaGetErrorString(err), file, line);
    exit(EXIT_FAILURE);
  }
}
#define HANDLE_ERROR(err) (HandleError(err, __FILE__, __LINE__))

template <bool SYNC>
__global__ void stencil_1d(const int* in, int* out) {
  __shared__ int temp[BLOCK_SIZE + 2 * RADIUS];
  int gindex = threadIdx.x + blockIdx.x * blockDim.x + RADIUS;
  int lindex = threadIdx.x + RADIUS;
  temp[lindex] = in[gindex];
  if (threadIdx.x < RADIUS) {
    temp[lindex - RADIUS] = in[gindex - RADIUS];          // left halo
    temp[lindex + BLOCK_SIZE] = in[gindex + BLOCK_SIZE];  // right halo
  }
  if (SYNC) __syncthreads();
  int result = 0;
  for (int offset = -RADIUS; offset <= RADIUS; offset++) result += temp[lindex + offset];
  out[gindex] = result;
}

#define TX 32
#define TY 8

// without shared memory
__global__ void heat_global(float* out, const float* in, int nx, int ny) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x < 1 || y < 1 || x >= nx - 1 || y >= ny - 1) return;
  float c = in[y * nx + x];  // centre
  float sum = in[y * nx + x - 1];
  sum += in[y * nx + x + 1];
  sum += in[(y - 1) * nx + x];
  sum += in[(y + 1) * nx + x];
  out[y * nx + x] = c + 0.25f * (sum - 4 * c);
}

__global__ void heat_tiled(float* out, const float* in, int nx, int ny) {
  __shared__ float tile[TY + 2][TX + 2];
  int x = blockIdx.x * TX + threadIdx.x, y = blockIdx.y * TY + threadIdx.y;
  int tx = threadIdx.x + 1, ty = threadIdx.y + 1;
  if (x < nx && y < ny) {
    tile[ty][tx] = in[y * nx + x];  // into the tile
    if (threadIdx.x == 0 && x > 0) tile[ty][0] = in[y * nx + x - 1];
    if (threadIdx.x == TX - 1 && x < nx - 1) tile[ty][TX + 1] = in[y * nx + x + 1];
    if (threadIdx.y == 0 && y > 0) tile[0][tx] = in[(y - 1) * nx + x];
    if (threadIdx.y == TY - 1 && y < ny - 1) tile[TY + 1][tx] = in[(y + 1) * nx + x];
  }
  __syncthreads();
  if (x < 1 || y < 1 || x >= nx - 1 || y >= ny - 1) return;
  float c = tile[ty][tx];
  float sum = tile[ty][tx - 1];
  sum += tile[ty][tx + 1];
  sum += tile[ty - 1][tx];
  sum += tile[ty + 1][tx];
  out[y * nx + x] = c + 0.25f * (sum - 4 * c);
}

int main(int argc, char** argv) {
  const int N = 4 * BLOCK_SIZE;
  int h_in[N + 2 * RADIUS], h_out[N + 2 * RADIUS], *d_in, *d_out;
  for (int i = 0; i < N + 2 * RADIUS; i++) h_in[i] = i % 11;
  HANDLE_ERROR(cudaMalloc((void**)&d_in, sizeof(h_in)));
  HANDLE_ERROR(cudaMalloc((void**)&d_out, sizeof(h_out)));
  HANDLE_ERROR(cudaMemcpy(d_in, h_in, sizeof(h_in), cudaMemcpyHostToDevice));
  if (argc > 1)
    stencil_1d<false><<<N / BLOCK_SIZE, BLOCK_SIZE>>>(d_in, d_out);
  else
    stencil_1d<true><<<N / BLOCK_SIZE, BLOCK_SIZE>>>(d_in, d_out);
  HANDLE_ERROR(cudaMemcpy(h_out, d_out, sizeof(h_out), cudaMemcpyDeviceToHost));
  for (int i = RADIUS; i < N + RADIUS; i++) {
    int want = 0;
    for (int j = -RADIUS; j <= RADIUS; j++) want += h_in[i + j];
    if (h_out[i] != want) return printf("wrong at %d\n", i), 1;
  }

  const int nx = 96, ny = 32, steps = 2;
  std::vector<float> a(nx * ny), b, got(nx * ny);
  for (int i = 0; i < nx * ny; i++) a[i] = i % 13;
  size_t pitch = 0;
  float* d[2];
  for (auto& buffer : d) {
    HANDLE_ERROR(cudaMallocPitch(&buffer, &pitch, nx * sizeof(float), ny));
    HANDLE_ERROR(cudaMemcpy2D(buffer, pitch, a.data(), nx * sizeof(float), nx * sizeof(float), ny,
                              cudaMemcpyHostToDevice));
  }
  int width = pitch / sizeof(float);
  dim3 threads(TX, TY), blocks((nx + TX - 1) / TX, (ny + TY - 1) / TY);
  for (int step = 0; step < steps; step++) {
    b = a;
    for (int y = 1; y < ny - 1; y++)
      for (int x = 1; x < nx - 1; x++) {
        const float* at = &a[y * nx + x];
        float sum = at[-1];
        sum += at[1], sum += at[-nx], sum += at[nx];
        b[y * nx + x] = *at + 0.25f * (sum - 4 * *at);
      }
    a.swap(b);
    if (step == 0)
      heat_global<<<blocks, threads>>>(d[1], d[0], width, ny);
    else
      heat_tiled<<<blocks, threads>>>(d[1], d[0], width, ny);
    std::swap(d[0], d[1]);
  }
  HANDLE_ERROR(cudaGetLastError());
  HANDLE_ERROR(cudaMemcpy2D(got.data(), nx * sizeof(float), d[0], pitch, nx * sizeof(float), ny,
                            cudaMemcpyDeviceToHost));
  for (int y = 1; y < ny - 1; y++)
    for (int x = 1; x < nx - 2; x++)
      if (!(fabsf(got[y * nx + x] - a[y * nx + x]) < 1e-4f))
        return printf("wrong at %d, %d\n", y, x), 1;
  for (auto buffer : d) HANDLE_ERROR(cudaFree(buffer));
  HANDLE_ERROR(cudaFree(d_in)), HANDLE_ERROR(cudaFree(d_out));
  printf("right\n");
  return 0;
}
