#include <cstdio>
#include <cuda/ptx>
namespace ptx = cuda::ptx;
__global__ void twice(const int* x, int* y) {
  __shared__ alignas(16) int stage[2][256];
  __shared__ uint64_t full[2];
  if (threadIdx.x == 0) {
    for (int s = 0; s < 2; ++s) ptx::mbarrier_init(&full[s], 1);
    ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
    for (int s = 0; s < 2; ++s) {
      ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &full[s],
                                     1024);
      ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global, stage[s], x + s * 256, 1024,
                         &full[s]);
    }
  }
  __syncthreads();
  for (int s = 0; s < 2; ++s) {
    while (!ptx::mbarrier_try_wait_parity(&full[s], 0)) {
    }
    stage[s][threadIdx.x] *= 2;
    ptx::fence_proxy_async(ptx::space_shared);
    __syncthreads();
    if (threadIdx.x == 0) {
      ptx::cp_async_bulk(ptx::space_global, ptx::space_shared, y + s * 256, stage[s], 1024);
      ptx::cp_async_bulk_commit_group();
    }
  }
  if (threadIdx.x == 0) ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>());
}
int main() {
  int x[512], *dx, *dy;
  for (int i = 0; i < 512; ++i) x[i] = i;
  cudaMalloc(&dx, 2048), cudaMalloc(&dy, 2048);
  cudaMemcpy(dx, x, 2048, cudaMemcpyDefault);
  twice<<<1, 256>>>(dx, dy);
  cudaMemcpy(x, dy, 2048, cudaMemcpyDefault);
  for (int i = 0; i < 512; ++i)
    if (x[i] != 2 * i) return puts("wrong"), 1;
  puts("right");
}
