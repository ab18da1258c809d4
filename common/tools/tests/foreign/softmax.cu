// An online softmax: a block per row, the running maximum and sum of each thread merged by
// shuffles.
#include <cuda_fp16.h>

#include <cfloat>
#include <cmath>
#include <cstdio>
#include <vector>

struct __align__(8) MD {
  float m, d;
};

__device__ MD merge(MD a, MD b) {
  MD big = a.m > b.m ? a : b, small = a.m > b.m ? b : a;
  return {big.m, big.d + small.d * __expf(small.m - big.m)};
}

__global__ void softmax(const half2* x, half2* y, int pairs) {
  __shared__ MD from_warp[32];
  const half2* row = x + (size_t)blockIdx.x * pairs;
  MD mine = {-FLT_MAX, 0};
  for (int i = threadIdx.x; i < pairs; i += blockDim.x) {
    float2 v = __half22float2(__ldg(row + i));
    mine = merge(mine, MD{v.x, 1}), mine = merge(mine, MD{v.y, 1});
  }
  for (int o = 16; o > 0; o >>= 1)
    mine = merge(mine, MD{__shfl_xor_sync(~0u, mine.m, o), __shfl_xor_sync(~0u, mine.d, o)});
  if (threadIdx.x % warpSize == 0) from_warp[threadIdx.x / 32] = mine;
  __syncthreads();
  mine = from_warp[0];
  for (int w = 1; w < blockDim.x / 32; ++w) mine = merge(mine, from_warp[w]);
  for (int i = threadIdx.x; i < pairs; i += blockDim.x) {
    float2 v = __half22float2(row[i]);
    float inverse = __frcp_rn(mine.d);
    y[(size_t)blockIdx.x * pairs + i] =
        __floats2half2_rn(__expf(v.x - mine.m) * inverse, __expf(v.y - mine.m) * inverse);
  }
}

int main() {
  const int rows = 9, cols = 300;
  std::vector<half> x(rows * cols), y(rows * cols);
  for (int i = 0; i < rows * cols; ++i) x[i] = __float2half(std::sin(1.0f * i) * 4);
  half2 *dx, *dy;
  cudaMalloc(&dx, x.size() * 2), cudaMalloc(&dy, x.size() * 2);
  cudaMemcpy(dx, x.data(), x.size() * 2, cudaMemcpyHostToDevice);
  softmax<<<rows, 128>>>(dx, dy, cols / 2);
  cudaMemcpy(y.data(), dy, y.size() * 2, cudaMemcpyDeviceToHost);
  for (int r = 0; r < rows; ++r) {
    double sum = 0;
    for (int c = 0; c < cols; ++c) sum += std::exp((double)__half2float(x[r * cols + c]));
    for (int c = 0; c < cols; ++c) {
      double want = std::exp((double)__half2float(x[r * cols + c])) / sum;
      if (!(std::abs(__half2float(y[r * cols + c]) - want) < 1e-3 * want + 1e-6))
        return puts("wrong"), 1;
    }
  }
  puts("right");
}
