// Inline PTX as it is written elsewhere.
#include <cstdint>
#include <cstdio>
#include <vector>

#define CP_ASYNC_CG(dst, src, bytes)                                                        \
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], %2;\n" ::"r"(dst), "l"(src), \
               "n"(bytes))
#define CP_ASYNC_COMMIT() asm volatile("cp.async.commit_group;\n" ::)
template <int N>
__device__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(N));
}

__device__ __forceinline__ unsigned lane_id() {
  unsigned lane;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}
__device__ uint32_t smem_u32(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ float4 ld_stream(const float4* p) {
  float4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(p));
  return v;
}
__global__ void staged(const float* x, float* y, int n) {
  __shared__ alignas(16) float s[2][128];
  const int base = blockIdx.x * 256;
  for (int i = 0; i < 2; ++i) {
    if (threadIdx.x < 32)
      CP_ASYNC_CG(smem_u32(&s[i][threadIdx.x * 4]), x + base + i * 128 + threadIdx.x * 4, 16);
    CP_ASYNC_COMMIT();
  }
  cp_async_wait<1>();
  __syncthreads();
  y[base + threadIdx.x] = s[0][threadIdx.x] + lane_id();
  cp_async_wait<0>();
  __syncthreads();
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(smem_u32(&s[1][threadIdx.x])));
  asm volatile("st.global.cs.f32 [%0], %1;" ::"l"(y + base + 128 + threadIdx.x), "f"(v + lane_id())
               : "memory");
}
__device__ void mbarrier_init(uint64_t* b, int n) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_u32(b)), "r"(n));
}
__device__ void mbarrier_wait(uint64_t* b, int parity) {
  asm volatile(
      "{\n"
      ".reg .pred                P1;\n"
      "LAB_WAIT:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 P1, [%0], %1;\n"
      "@P1                       bra DONE;\n"
      "bra                   LAB_WAIT;\n"
      "DONE:\n"
      "}\n" ::"r"(smem_u32(b)),
      "r"(parity));
}
__global__ void bulk(const float* x, float* y) {
  extern __shared__ __align__(128) float stage[];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    mbarrier_init(&full, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_u32(&full)),
                 "r"(1024));
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
        "[%3];\n" ::"r"(smem_u32(stage)),
        "l"(x + blockIdx.x * 256), "r"(1024), "r"(smem_u32(&full))
        : "memory");
  }
  __syncthreads();
  mbarrier_wait(&full, 0);
  stage[threadIdx.x] *= 2;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile(
        "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(y + blockIdx.x * 256),
        "r"(smem_u32(stage)), "r"(1024)
        : "memory");
    asm volatile("cp.async.bulk.commit_group;");
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  }
}
__global__ void others(const float4* x, float* y, unsigned* counter) {
  float4 v = ld_stream(x + threadIdx.x);
  int guard = threadIdx.x < 7;
  float w = 0;
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %2, 0; mov.b32 %0, 0; @p ld.global.f32 %0, [%1 + 4]; }"
      : "=f"(w)
      : "l"(x), "r"(guard));
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(counter), "r"(1) : "memory");
  unsigned old;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(old)
               : "l"(counter), "r"(1u)
               : "memory");
  float e;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(3.0f));
  y[threadIdx.x] = v.x + v.y + v.z + v.w + w + e;
}

int main() {
  const int n = 1024;
  std::vector<float> x(n), y(n);
  for (int i = 0; i < n; ++i) x[i] = i;
  float *dx, *dy;
  unsigned* counter;
  cudaMalloc(&dx, n * 4), cudaMalloc((void**)&dy, n * 4), cudaMalloc(&counter, 4);
  cudaMemset(counter, 0, 4);
  cudaMemcpy(dx, x.data(), n * 4, cudaMemcpyHostToDevice);
  staged<<<n / 256, 128>>>(dx, dy, n);
  cudaMemcpy(y.data(), dy, n * 4, cudaMemcpyDeviceToHost);
  for (int i = 0; i < n; ++i)
    if (y[i] != x[i] + i % 32) return printf("staged: wrong at %d: %f\n", i, y[i]), 1;
  bulk<<<n / 256, 256, 1024>>>(dx, dy);
  cudaMemcpy(y.data(), dy, n * 4, cudaMemcpyDeviceToHost);
  for (int i = 0; i < n; ++i)
    if (y[i] != 2 * x[i]) return printf("bulk: wrong at %d: %f\n", i, y[i]), 1;
  others<<<1, 256>>>((const float4*)dx, dy, counter);
  unsigned count;
  cudaMemcpy(y.data(), dy, n, cudaMemcpyDeviceToHost),
      cudaMemcpy(&count, counter, 4, cudaMemcpyDeviceToHost);
  for (int i = 0; i < 256; ++i)
    if (y[i] != 16 * i + 6 + (i < 7) + 8) return printf("others: wrong at %d: %f\n", i, y[i]), 1;
  puts(count == 512 ? "right" : "wrong count");
}
