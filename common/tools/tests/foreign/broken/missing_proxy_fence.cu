// A tile is scaled in shared memory and leaves by a bulk store. The copy engine reads shared memory
// through the async proxy, so each thread that wrote must fence before the barrier; here only the
// thread that starts the copy does, after it, and its fence orders its own writes alone.
#include <cstdint>
#include <cstdio>
#include <vector>

constexpr int TILE = 256;

__device__ uint32_t smem(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__global__ void scale(const float* x, float* y, float factor) {
  __shared__ __align__(128) float tile[TILE];
  const size_t base = (size_t)blockIdx.x * TILE;
  tile[threadIdx.x] = factor * x[base + threadIdx.x];
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(y + base),
                 "r"(smem(tile)), "r"(TILE * 4)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;");
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  }
}

int main() {
  const int n = 8 * TILE;
  std::vector<float> x(n), y(n);
  for (int i = 0; i < n; ++i) x[i] = i;
  float *dx, *dy;
  cudaMalloc(&dx, n * 4), cudaMalloc(&dy, n * 4);
  cudaMemcpy(dx, x.data(), n * 4, cudaMemcpyHostToDevice);
  scale<<<n / TILE, TILE>>>(dx, dy, 3);
  cudaMemcpy(y.data(), dy, n * 4, cudaMemcpyDeviceToHost);
  for (int i = 0; i < n; ++i)
    if (y[i] != 3 * x[i]) return puts("wrong"), 1;
  puts("right");
}
