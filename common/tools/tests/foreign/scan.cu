// Scans of a block: Hillis and Steele's with two buffers, and Blelloch's work-efficient one without
// and with padding against bank conflicts, as in GPU Gems 3, chapter 39.
#include <stdio.h>
#include <stdlib.h>

#define CUDA_CHECK(x)                                                  \
  if (cudaError_t e = (x); e != cudaSuccess) {                         \
    fprintf(stderr, "line %d: %s\n", __LINE__, cudaGetErrorString(e)); \
    exit(1);                                                           \
  }

#define NUM_BANKS 32
#define LOG_NUM_BANKS 5
#define CONFLICT_FREE_OFFSET(n) ((n) >> LOG_NUM_BANKS)

__global__ void scan_hillis_steele(float* g_odata, const float* g_idata, int n) {
  extern __shared__ float temp[];
  int thid = threadIdx.x;
  int pout = 0, pin = 1;
  temp[pout * n + thid] = (thid > 0) ? g_idata[thid - 1] : 0;
  __syncthreads();
  for (int offset = 1; offset < n; offset *= 2) {
    pout = 1 - pout;
    pin = 1 - pout;
    if (thid >= offset)
      temp[pout * n + thid] = temp[pin * n + thid] + temp[pin * n + thid - offset];
    else
      temp[pout * n + thid] = temp[pin * n + thid];
    __syncthreads();
  }
  g_odata[thid] = temp[pout * n + thid];
}

__global__ void scan_blelloch(float* g_odata, const float* g_idata, int n) {
  extern __shared__ float temp[];
  int thid = threadIdx.x;
  int offset = 1;
  temp[2 * thid] = g_idata[2 * thid];
  temp[2 * thid + 1] = g_idata[2 * thid + 1];
  for (int d = n >> 1; d > 0; d >>= 1) {
    __syncthreads();
    if (thid < d) {
      int ai = offset * (2 * thid + 1) - 1;
      int bi = offset * (2 * thid + 2) - 1;
      temp[bi] += temp[ai];
    }
    offset *= 2;
  }
  if (thid == 0) temp[n - 1] = 0;
  for (int d = 1; d < n; d *= 2) {
    offset >>= 1;
    __syncthreads();
    if (thid < d) {
      int ai = offset * (2 * thid + 1) - 1;
      int bi = offset * (2 * thid + 2) - 1;
      float t = temp[ai];
      temp[ai] = temp[bi];
      temp[bi] += t;
    }
  }
  __syncthreads();
  g_odata[2 * thid] = temp[2 * thid];
  g_odata[2 * thid + 1] = temp[2 * thid + 1];
}

__global__ void scan_blelloch_padded(float* g_odata, const float* g_idata, int n) {
  extern __shared__ float temp[];
  int thid = threadIdx.x;
  int offset = 1;
  int ai = thid;
  int bi = thid + (n / 2);
  int bankOffsetA = CONFLICT_FREE_OFFSET(ai);
  int bankOffsetB = CONFLICT_FREE_OFFSET(bi);
  temp[ai + bankOffsetA] = g_idata[ai];
  temp[bi + bankOffsetB] = g_idata[bi];
  for (int d = n >> 1; d > 0; d >>= 1) {
    __syncthreads();
    if (thid < d) {
      int ai = offset * (2 * thid + 1) - 1;
      int bi = offset * (2 * thid + 2) - 1;
      ai += CONFLICT_FREE_OFFSET(ai);
      bi += CONFLICT_FREE_OFFSET(bi);
      temp[bi] += temp[ai];
    }
    offset *= 2;
  }
  if (thid == 0) temp[n - 1 + CONFLICT_FREE_OFFSET(n - 1)] = 0;
  for (int d = 1; d < n; d *= 2) {
    offset >>= 1;
    __syncthreads();
    if (thid < d) {
      int ai = offset * (2 * thid + 1) - 1;
      int bi = offset * (2 * thid + 2) - 1;
      ai += CONFLICT_FREE_OFFSET(ai);
      bi += CONFLICT_FREE_OFFSET(bi);
      float t = temp[ai];
      temp[ai] = temp[bi];
      temp[bi] += t;
    }
  }
  __syncthreads();
  g_odata[ai] = temp[ai + bankOffsetA];
  g_odata[bi] = temp[bi + bankOffsetB];
}

int main(void) {
  const int n = 512;
  float h_in[n], h_out[n];
  for (int i = 0; i < n; i++) h_in[i] = (float)(rand() % 8);
  float *d_in, *d_out;
  CUDA_CHECK(cudaMalloc((void**)&d_in, sizeof(h_in)));
  CUDA_CHECK(cudaMalloc((void**)&d_out, sizeof(h_out)));
  CUDA_CHECK(cudaMemcpy(d_in, h_in, sizeof(h_in), cudaMemcpyHostToDevice));
  int errors = 0;
  for (int which = 0; which < 3; which++) {
    CUDA_CHECK(cudaMemset(d_out, 0, sizeof(h_out)));
    if (which == 0)
      scan_hillis_steele<<<1, n, 2 * n * sizeof(float)>>>(d_out, d_in, n);
    else if (which == 1)
      scan_blelloch<<<1, n / 2, n * sizeof(float)>>>(d_out, d_in, n);
    else
      scan_blelloch_padded<<<1, n / 2, (n + n / NUM_BANKS) * sizeof(float)>>>(d_out, d_in, n);
    CUDA_CHECK(cudaPeekAtLastError());
    CUDA_CHECK(cudaMemcpy(h_out, d_out, sizeof(h_out), cudaMemcpyDeviceToHost));
    float sum = 0;
    for (int i = 0; i < n; i++) {
      if (h_out[i] != sum) errors++;
      sum += h_in[i];
    }
  }
  cudaFree(d_in);
  cudaFree(d_out);
  printf(errors ? "wrong\n" : "right\n");
  return errors != 0;
}
