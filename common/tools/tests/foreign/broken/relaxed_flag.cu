// Each block adds its neighbour's partial sum to its own, and a flag says that it is there. The
// flag is stored and read relaxed: nothing orders the sum before the flag.
#include <cstdio>
#include <cuda/atomic>
#include <vector>

__global__ void chain(const float* x, float* partial, int* ready) {
  if (threadIdx.x != 0) return;
  const int b = blockIdx.x;
  float sum = x[b];
  if (b > 0) {
    cuda::atomic_ref<int, cuda::thread_scope_device> before(ready[b - 1]);
    while (before.load(cuda::memory_order_relaxed) == 0) {
    }
    sum += partial[b - 1];
  }
  partial[b] = sum;
  cuda::atomic_ref<int, cuda::thread_scope_device> mine(ready[b]);
  mine.store(1, cuda::memory_order_relaxed);
}

int main() {
  const int n = 16;
  std::vector<float> x(n), sums(n);
  for (int i = 0; i < n; ++i) x[i] = i;
  float *dx, *dsums;
  int* ready;
  cudaMalloc(&dx, n * 4), cudaMalloc(&dsums, n * 4), cudaMalloc(&ready, n * 4);
  cudaMemset(ready, 0, n * 4);
  cudaMemcpy(dx, x.data(), n * 4, cudaMemcpyHostToDevice);
  chain<<<n, 32>>>(dx, dsums, ready);
  cudaMemcpy(sums.data(), dsums, n * 4, cudaMemcpyDeviceToHost);
  for (int i = 0; i < n; ++i)
    if (sums[i] != i * (i + 1) / 2) return puts("wrong"), 1;
  puts("right");
}
