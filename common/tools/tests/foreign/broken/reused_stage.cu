// A ring of two stages, filled by bulk loads. Thread 0 refills a stage as soon as its own warp is
// done with it: nothing tells it that the other warps have read theirs.
#include <cstdint>
#include <cstdio>
#include <vector>

constexpr int TILE = 256, STAGES = 2;

__device__ uint32_t smem(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ void load(float* to, const float* from, uint64_t* full) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem(full)),
               "r"(TILE * 4));
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(smem(to)),
      "l"(from), "r"(TILE * 4), "r"(smem(full))
      : "memory");
}
__device__ void wait(uint64_t* full, int parity) {
  asm volatile(
      "{\n.reg .pred p;\nagain:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@!p bra again;\n}" ::"r"(smem(full)),
      "r"(parity)
      : "memory");
}

__global__ void sums(const float* x, float* y, int tiles) {
  __shared__ __align__(128) float stage[STAGES][TILE];
  __shared__ uint64_t full[STAGES];
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s)
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(smem(&full[s])));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    for (int s = 0; s < STAGES; ++s) load(stage[s], x + s * TILE, &full[s]);
  }
  __syncthreads();
  float sum = 0;
  for (int t = 0; t < tiles; ++t) {
    const int s = t % STAGES;
    wait(&full[s], t / STAGES % 2);
    sum += stage[s][threadIdx.x];
    __syncwarp();
    if (threadIdx.x == 0 && t + STAGES < tiles) load(stage[s], x + (t + STAGES) * TILE, &full[s]);
  }
  y[threadIdx.x] = sum;
}

int main() {
  const int tiles = 6, n = tiles * TILE;
  std::vector<float> x(n), y(TILE);
  for (int i = 0; i < n; ++i) x[i] = i;
  float *dx, *dy;
  cudaMalloc(&dx, n * 4), cudaMalloc(&dy, TILE * 4);
  cudaMemcpy(dx, x.data(), n * 4, cudaMemcpyHostToDevice);
  sums<<<1, TILE>>>(dx, dy, tiles);
  cudaMemcpy(y.data(), dy, TILE * 4, cudaMemcpyDeviceToHost);
  for (int i = 0; i < TILE; ++i)
    if (y[i] != tiles * i + TILE * (tiles * (tiles - 1) / 2)) return puts("wrong"), 1;
  puts("right");
}
