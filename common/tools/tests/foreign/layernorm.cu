// Layer norm as llm.c's dev/cuda develops it: forward by a thread a row, by three launches, by a
// warp a row, and by a row in shared memory; backward by atomics in global and in shared memory.
#include <assert.h>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda_runtime.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

namespace cg = cooperative_groups;

void cuda_check(cudaError_t error, const char* file, int line) {
  if (error != cudaSuccess) {
    printf("[CUDA ERROR] at file %s:%d:\n%s\n", file, line, cudaGetErrorString(error));
    exit(EXIT_FAILURE);
  }
}
#define cudaCheck(err) (cuda_check(err, __FILE__, __LINE__))

template <class T>
__host__ __device__ T ceil_div(T dividend, T divisor) {
  return (dividend + divisor - 1) / divisor;
}

// --- CPU ---

void layernorm_forward_cpu(float* out, float* mean, float* rstd, const float* inp,
                           const float* weight, const float* bias, int N, int C) {
  float eps = 1e-5f;
  for (int i = 0; i < N; i++) {
    const float* x = inp + i * C;
    float m = 0.0f, v = 0.0f;
    for (int c = 0; c < C; c++) m += x[c];
    m = m / C;
    for (int c = 0; c < C; c++) v += (x[c] - m) * (x[c] - m);
    float s = 1.0f / sqrtf(v / C + eps);
    for (int c = 0; c < C; c++) out[i * C + c] = s * (x[c] - m) * weight[c] + bias[c];
    mean[i] = m, rstd[i] = s;
  }
}

void layernorm_backward_cpu(float* dinp, float* dweight, float* dbias, const float* dout,
                            const float* inp, const float* weight, const float* mean,
                            const float* rstd, int N, int C) {
  for (int i = 0; i < N; i++) {
    float dnorm_mean = 0.0f, dnorm_norm_mean = 0.0f;
    for (int c = 0; c < C; c++) {
      float norm = (inp[i * C + c] - mean[i]) * rstd[i], dnorm = weight[c] * dout[i * C + c];
      dnorm_mean += dnorm, dnorm_norm_mean += dnorm * norm;
    }
    dnorm_mean /= C, dnorm_norm_mean /= C;
    for (int c = 0; c < C; c++) {
      float norm = (inp[i * C + c] - mean[i]) * rstd[i], dnorm = weight[c] * dout[i * C + c];
      dbias[c] += dout[i * C + c];
      dweight[c] += norm * dout[i * C + c];
      dinp[i * C + c] += (dnorm - dnorm_mean - norm * dnorm_norm_mean) * rstd[i];
    }
  }
}

// --- forward ---

// 1: a thread a row
__global__ void layernorm_forward_kernel1(float* out, float* mean, float* rstd, const float* inp,
                                          const float* weight, const float* bias, int N, int C) {
  int idx = blockIdx.x * blockDim.x + threadIdx.x;
  float eps = 1e-5f;
  if (idx < N) {
    const float* x = inp + idx * C;
    float m = 0.0f;
    for (int i = 0; i < C; i++) {
      m += x[i];  // a thread a row
    }
    m = m / C;
    float v = 0.0f;
    for (int i = 0; i < C; i++) {
      float xshift = x[i] - m;
      v += xshift * xshift;
    }
    v = v / C;
    float s = 1.0f / sqrtf(v + eps);
    float* out_idx = out + idx * C;
    for (int i = 0; i < C; i++) {
      float n = s * (x[i] - m);
      float o = n * weight[i] + bias[i];
      out_idx[i] = o;
    }
    mean[idx] = m;
    rstd[idx] = s;
  }
}

// 2: three launches, a block a row
__global__ void mean_kernel(float* mean, const float* inp, int N, int C, int block_size) {
  extern __shared__ float shared[];
  int idx = blockIdx.x;
  int tid = threadIdx.x;
  const float* x = inp + idx * C;
  float sum = 0.0f;
  for (int i = tid; i < C; i += block_size) sum += x[i];
  shared[tid] = sum;
  __syncthreads();
  for (int stride = block_size / 2; stride >= 1; stride /= 2) {
    __syncthreads();
    if (tid < stride) shared[tid] += shared[tid + stride];
  }
  if (tid == 0) mean[idx] = shared[0] / C;
}
__global__ void rstd_kernel(float* rstd, const float* inp, const float* mean, int N, int C,
                            int block_size) {
  extern __shared__ float shared[];
  int idx = blockIdx.x;
  int tid = threadIdx.x;
  const float* x = inp + idx * C;
  float m = mean[idx];
  float sum = 0.0f;
  for (int i = tid; i < C; i += block_size) {
    float diff = x[i] - m;
    sum += diff * diff;
  }
  shared[tid] = sum;
  __syncthreads();
  for (int stride = block_size / 2; stride >= 1; stride /= 2) {
    __syncthreads();
    if (tid < stride) shared[tid] += shared[tid + stride];
  }
  if (tid == 0) rstd[idx] = 1.0f / sqrtf(shared[0] / C + 1e-5f);
}
__global__ void normalization_kernel(float* out, const float* inp, float* mean, float* rstd,
                                     const float* weight, const float* bias, int B, int T, int C) {
  int idx = blockIdx.x * blockDim.x + threadIdx.x;
  int bt = idx / C;
  int c = idx % C;
  if (bt >= B * T) return;
  float m = mean[bt];
  float s = rstd[bt];
  out[idx] = s * (inp[idx] - m) * weight[c] + bias[c];
}

// 3: a warp a row, by cooperative groups
__global__ void layernorm_forward_kernel3(float* __restrict__ out, float* __restrict__ mean,
                                          float* __restrict__ rstd, const float* __restrict__ inp,
                                          const float* __restrict__ weight,
                                          const float* __restrict__ bias, int N, int C) {
  cg::thread_block block = cg::this_thread_block();
  cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
  int idx = blockIdx.x * warp.meta_group_size() + warp.meta_group_rank();
  if (idx >= N) return;
  const float* x = inp + idx * C;
  float sum = 0.0f;
  for (int i = warp.thread_rank(); i < C; i += warp.size()) {
    sum += x[i];  // a warp a row
  }
  sum = cg::reduce(warp, sum, cg::plus<float>{});
  float m = sum / C;
  if (warp.thread_rank() == 0 && mean != nullptr) __stcs(mean + idx, m);
  sum = 0.0f;
  for (int i = warp.thread_rank(); i < C; i += warp.size()) {
    float diff = x[i] - m;
    sum += diff * diff;
  }
  sum = cg::reduce(warp, sum, cg::plus<float>{});
  float s = rsqrtf(sum / C + 1e-5f);
  if (warp.thread_rank() == 0 && rstd != nullptr) __stcs(rstd + idx, s);
  float* o = out + idx * C;
  for (int c = warp.thread_rank(); c < C; c += warp.size()) {
    float n = s * (__ldcs(x + c) - m);
    __stcs(o + c, n * weight[c] + bias[c]);
  }
}

// 5: a block a row, both sums at once
__global__ void layernorm_forward_kernel5(float* __restrict__ out, float* __restrict__ mean,
                                          float* __restrict__ rstd, const float* __restrict__ inp,
                                          const float* __restrict__ weight,
                                          const float* __restrict__ bias, int N, int C) {
  cg::thread_block block = cg::this_thread_block();
  cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
  __shared__ float shared_sum[32];
  __shared__ float shared_sum2[32];
  int num_warps = blockDim.x / 32;
  int warp_id = threadIdx.x / 32;
  int lane_id = threadIdx.x % 32;
  int idx = blockIdx.x;
  const float* x = inp + idx * C;
  float thread_sum = 0.0, thread_sum2 = 0.0;
  for (int i = threadIdx.x; i < C; i += blockDim.x) {
    float xi = x[i];
    thread_sum += xi;
    thread_sum2 += xi * xi;
  }
  float warp_sum = cg::reduce(warp, thread_sum, cg::plus<float>{});
  float warp_sum2 = cg::reduce(warp, thread_sum2, cg::plus<float>{});
  if (lane_id == 0) {
    shared_sum[warp_id] = warp_sum;
    shared_sum2[warp_id] = warp_sum2;
  }
  __syncthreads();
  warp_sum = (lane_id < num_warps) ? shared_sum[lane_id] : 0.0f;
  warp_sum2 = (lane_id < num_warps) ? shared_sum2[lane_id] : 0.0f;
  float block_sum = cg::reduce(warp, warp_sum, cg::plus<float>{});
  float block_sum2 = cg::reduce(warp, warp_sum2, cg::plus<float>{});
  block_sum /= C;
  block_sum2 /= C;
  float m = block_sum;
  float var = block_sum2 - m * m;
  float s = rsqrtf(var + 1e-5f);
  if (threadIdx.x == 0 && mean != nullptr) __stcs(mean + idx, m);
  if (threadIdx.x == 0 && rstd != nullptr) __stcs(rstd + idx, s);
  float* o = out + idx * C;
  for (int i = threadIdx.x; i < C; i += blockDim.x) {
    float n = s * (__ldcs(x + i) - m);
    __stcs(o + i, n * weight[i] + bias[i]);
  }
}

// 6: weight, bias and the rows of a block in shared memory, by 128 bits
struct alignas(16) x128 {
  float payload[4];
};
__global__ void layernorm_forward_kernel6(float* __restrict__ out, float* __restrict__ mean,
                                          float* __restrict__ rstd, const float* __restrict__ inp,
                                          const float* __restrict__ weight,
                                          const float* __restrict__ bias, int N, int C) {
  assert(blockDim.x == 32);
  extern __shared__ char params[];
  constexpr int x128_size = 4;
  x128* s_weight = reinterpret_cast<x128*>(params);
  x128* s_bias = reinterpret_cast<x128*>(params) + (C / x128_size);
  x128* s_in = reinterpret_cast<x128*>(params) + ((2 + threadIdx.y) * C / x128_size);
  int sidx = (threadIdx.x + 32 * threadIdx.y) * x128_size;
  for (int i = sidx; i < C; i += blockDim.y * 32 * x128_size) {
    s_weight[i / x128_size] = *reinterpret_cast<const x128*>(weight + i);
    s_bias[i / x128_size] = *reinterpret_cast<const x128*>(bias + i);
  }
  __syncthreads();
  int idx = blockIdx.x * blockDim.y + threadIdx.y;
  if (idx >= N) return;
  inp += idx * C;
  out += idx * C;
  float sum = 0.0f;
  for (int c = threadIdx.x * x128_size; c < C; c += 32 * x128_size) {
    const x128 in_data = *reinterpret_cast<const x128*>(inp + c);
    for (int k = 0; k < x128_size; ++k) sum += in_data.payload[k];
    s_in[c / x128_size] = in_data;
  }
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xFFFFFFFF, sum, offset);
  float m = sum / C;
  float v = 0.f;
  for (int c = threadIdx.x * x128_size; c < C; c += 32 * x128_size) {
    const x128 in_data = s_in[c / x128_size];
    for (int k = 0; k < x128_size; ++k) v += (in_data.payload[k] - m) * (in_data.payload[k] - m);
  }
  for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(0xFFFFFFFF, v, offset);
  float s = rsqrtf(v / C + 1e-5f);
  for (int c = threadIdx.x * x128_size; c < C; c += 32 * x128_size) {
    const x128 in_data = s_in[c / x128_size];
    const x128 w = s_weight[c / x128_size];
    const x128 b = s_bias[c / x128_size];
    x128 out_data;
    for (int k = 0; k < x128_size; ++k)
      out_data.payload[k] = s * (in_data.payload[k] - m) * w.payload[k] + b.payload[k];
    *reinterpret_cast<x128*>(out + c) = out_data;
  }
  if (threadIdx.x == 0 && mean != nullptr) __stcs(mean + idx, m);
  if (threadIdx.x == 0 && rstd != nullptr) __stcs(rstd + idx, s);
}

// --- backward ---

// 1: a thread a row, atomics in global memory
__global__ void layernorm_backward_kernel1(float* dinp, float* dweight, float* dbias,
                                           const float* dout, const float* inp, const float* weight,
                                           const float* mean, const float* rstd, int B, int T,
                                           int C) {
  int idx = blockIdx.x * blockDim.x + threadIdx.x;
  if (idx >= B * T) return;
  const float* dout_bt = dout + idx * C;
  const float* inp_bt = inp + idx * C;
  float* dinp_bt = dinp + idx * C;
  float mean_bt = mean[idx];
  float rstd_bt = rstd[idx];
  float dnorm_mean = 0.0f;
  float dnorm_norm_mean = 0.0f;
  for (int i = 0; i < C; i++) {
    float norm_bti = (inp_bt[i] - mean_bt) * rstd_bt;
    float dnorm_i = weight[i] * dout_bt[i];
    dnorm_mean += dnorm_i;
    dnorm_norm_mean += dnorm_i * norm_bti;
  }
  dnorm_mean = dnorm_mean / C;
  dnorm_norm_mean = dnorm_norm_mean / C;
  for (int i = 0; i < C; i++) {
    float norm_bti = (inp_bt[i] - mean_bt) * rstd_bt;
    float dnorm_i = weight[i] * dout_bt[i];
    atomicAdd(&dbias[i], dout_bt[i]);
    atomicAdd(&dweight[i], norm_bti * dout_bt[i]);
    float dval = 0.0f;
    dval += dnorm_i;
    dval -= dnorm_mean;
    dval -= norm_bti * dnorm_norm_mean;
    dval *= rstd_bt;
    dinp_bt[i] += dval;
  }
}

// 2: a warp a row, sums of a block by atomics in shared memory, then in global memory
__global__ void layernorm_backward_kernel2(float* dinp, float* dweight, float* dbias,
                                           const float* dout, const float* inp, const float* weight,
                                           const float* mean, const float* rstd, int B, int T,
                                           int C) {
  extern __shared__ float shared[];
  cg::thread_block block = cg::this_thread_block();
  cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
  int idx = blockIdx.x * warp.meta_group_size() + warp.meta_group_rank();
  int N = B * T;
  if (idx >= N) return;
  int b = idx / T;
  int t = idx % T;
  const float* dout_bt = dout + b * T * C + t * C;
  const float* inp_bt = inp + b * T * C + t * C;
  float* dinp_bt = dinp + b * T * C + t * C;
  const float mean_bt = mean[b * T + t];
  const float rstd_bt = rstd[b * T + t];
  float* dbias_shared = shared;
  float* dweight_shared = shared + C;
#pragma unroll
  for (int i = threadIdx.x; i < C; i += blockDim.x) {
    dbias_shared[i] = 0.0f;
    dweight_shared[i] = 0.0f;
  }
  __syncthreads();
  float dnorm_mean = 0.0f;
  float dnorm_norm_mean = 0.0f;
  for (int i = warp.thread_rank(); i < C; i += warp.size()) {
    float norm_bti = (inp_bt[i] - mean_bt) * rstd_bt;
    float dnorm_i = weight[i] * dout_bt[i];
    dnorm_mean += dnorm_i;
    dnorm_norm_mean += dnorm_i * norm_bti;
  }
  dnorm_mean = cg::reduce(warp, dnorm_mean, cg::plus<float>{});
  dnorm_norm_mean = cg::reduce(warp, dnorm_norm_mean, cg::plus<float>{});
  dnorm_mean = dnorm_mean / C;
  dnorm_norm_mean = dnorm_norm_mean / C;
  for (int i = warp.thread_rank(); i < C; i += warp.size()) {
    float norm_bti = (inp_bt[i] - mean_bt) * rstd_bt;
    float dnorm_i = weight[i] * dout_bt[i];
    atomicAdd(&dbias_shared[i], dout_bt[i]);
    atomicAdd(&dweight_shared[i], norm_bti * dout_bt[i]);
    float dval = 0.0f;
    dval += dnorm_i;
    dval -= dnorm_mean;
    dval -= norm_bti * dnorm_norm_mean;
    dval *= rstd_bt;
    dinp_bt[i] += dval;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < C; i += blockDim.x) {
    atomicAdd(&dbias[i], dbias_shared[i]);  // of a block
    atomicAdd(&dweight[i], dweight_shared[i]);
  }
}

// --- the program ---

float* make_random(int n) {
  float* a = (float*)malloc(n * sizeof(float));
  for (int i = 0; i < n; i++) a[i] = (float)rand() / RAND_MAX * 2.0f - 1.0f;
  return a;
}
float* to_device(const float* host, int n) {
  float* d;
  cudaCheck(cudaMalloc(&d, n * sizeof(float)));
  cudaCheck(cudaMemcpy(d, host, n * sizeof(float), cudaMemcpyHostToDevice));
  return d;
}
void validate_result(float* device, const float* cpu, const char* name, int n, float tolerance) {
  float* got = (float*)malloc(n * sizeof(float));
  cudaCheck(cudaMemcpy(got, device, n * sizeof(float), cudaMemcpyDeviceToHost));
  for (int i = 0; i < n; i++) {
    if (!(fabs(cpu[i] - got[i]) <= tolerance * (1 + fabs(cpu[i])))) {
      printf("Mismatch of %s at %d: CPU_ref: %f vs GPU: %f\n", name, i, cpu[i], got[i]);
      exit(EXIT_FAILURE);
    }
  }
  cudaCheck(cudaMemset(device, 0, n * sizeof(float)));
  free(got);
}

int main(int argc, char** argv) {
  int B = 4, T = 16, C = 256, N = B * T;
  srand(0);
  float *out = make_random(N * C), *mean = make_random(N), *rstd = make_random(N);
  float *inp = make_random(N * C), *weight = make_random(C), *bias = make_random(C);
  float* dout = make_random(N * C);
  float *dinp = (float*)calloc(N * C, 4), *dweight = (float*)calloc(C, 4),
        *dbias = (float*)calloc(C, 4);
  layernorm_forward_cpu(out, mean, rstd, inp, weight, bias, N, C);
  layernorm_backward_cpu(dinp, dweight, dbias, dout, inp, weight, mean, rstd, N, C);
  float *d_out = to_device(out, N * C), *d_mean = to_device(mean, N), *d_rstd = to_device(rstd, N);
  float *d_inp = to_device(inp, N * C), *d_weight = to_device(weight, C),
        *d_bias = to_device(bias, C);
  cudaCheck(cudaMemset(d_out, 0, N * C * sizeof(float)));
  for (int kernel_num : {1, 2, 3, 5, 6}) {
    const int block_size = 128;
    switch (kernel_num) {
      case 1:
        layernorm_forward_kernel1<<<ceil_div(N, 32), 32>>>(d_out, d_mean, d_rstd, d_inp, d_weight,
                                                           d_bias, N, C);
        break;
      case 2:
        mean_kernel<<<N, block_size, block_size * sizeof(float)>>>(d_mean, d_inp, N, C, block_size);
        cudaCheck(cudaGetLastError());
        rstd_kernel<<<N, block_size, block_size * sizeof(float)>>>(d_rstd, d_inp, d_mean, N, C,
                                                                   block_size);
        cudaCheck(cudaGetLastError());
        normalization_kernel<<<ceil_div(N * C, 256), 256>>>(d_out, d_inp, d_mean, d_rstd, d_weight,
                                                            d_bias, B, T, C);
        break;
      case 3:
        layernorm_forward_kernel3<<<ceil_div(N * 32, block_size), block_size>>>(
            d_out, d_mean, d_rstd, d_inp, d_weight, d_bias, N, C);
        break;
      case 5:
        layernorm_forward_kernel5<<<N, block_size>>>(d_out, d_mean, d_rstd, d_inp, d_weight, d_bias,
                                                     N, C);
        break;
      case 6: {
        int block_y = block_size / 32;
        size_t smem = (2 + block_y) * C * sizeof(float);
        auto status = cudaFuncSetAttribute(layernorm_forward_kernel6,
                                           cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
        cudaGetLastError();
        assert(status == cudaSuccess);
        layernorm_forward_kernel6<<<ceil_div(N, block_y), dim3(32, block_y), smem>>>(
            d_out, d_mean, d_rstd, d_inp, d_weight, d_bias, N, C);
        break;
      }
    }
    cudaCheck(cudaGetLastError());
    validate_result(d_out, out, "out", N * C, 1e-4f);
    validate_result(d_mean, mean, "mean", N, 1e-4f);
    validate_result(d_rstd, rstd, "rstd", N, 1e-4f);
  }
  d_mean = to_device(mean, N), d_rstd = to_device(rstd, N);
  float *d_dinp = d_out, *d_dweight = to_device(bias, C), *d_dbias = to_device(bias, C);
  float* d_dout = to_device(dout, N * C);
  cudaCheck(cudaMemset(d_dweight, 0, C * sizeof(float)));
  cudaCheck(cudaMemset(d_dbias, 0, C * sizeof(float)));
  for (int kernel_num = 1; kernel_num <= 2; kernel_num++) {
    if (kernel_num == 1) {
      layernorm_backward_kernel1<<<ceil_div(N, 32), 32>>>(d_dinp, d_dweight, d_dbias, d_dout, d_inp,
                                                          d_weight, d_mean, d_rstd, B, T, C);
    } else {
      layernorm_backward_kernel2<<<ceil_div(N, 8), 256, 2 * C * sizeof(float)>>>(
          d_dinp, d_dweight, d_dbias, d_dout, d_inp, d_weight, d_mean, d_rstd, B, T, C);
    }
    cudaCheck(cudaGetLastError());
    validate_result(d_dinp, dinp, "dinp", N * C, 1e-3f);
    validate_result(d_dweight, dweight, "dweight", C, 1e-3f);
    validate_result(d_dbias, dbias, "dbias", C, 1e-3f);
  }
  printf("right\n");
  return 0;
}
