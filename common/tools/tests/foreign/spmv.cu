// A sparse matrix (CSR) times a vector, after Bell and Garland: a thread a row, and a warp a row.
#include <cstdio>
#include <cstdlib>
#include <vector>

#define HANDLE(x)                                                \
  if ((x) != cudaSuccess) {                                      \
    std::fprintf(stderr, "failed: %s, line %d\n", #x, __LINE__); \
    std::abort();                                                \
  }

template <typename T>
__global__ void spmv_csr_scalar_kernel(const int num_rows, const int* __restrict__ ptr,
                                       const int* __restrict__ indices, const T* __restrict__ data,
                                       const T* __restrict__ x, T* __restrict__ y) {
  int row = blockDim.x * blockIdx.x + threadIdx.x;
  if (row < num_rows) {
    T dot = 0;
    int row_start = ptr[row];
    int row_end = ptr[row + 1];
    for (int jj = row_start; jj < row_end; jj++) {
      T value = data[jj];  // a row a thread
      dot += value * x[indices[jj]];
    }
    y[row] += dot;
  }
}

template <typename T>
__global__ void spmv_csr_vector_kernel(const int num_rows, const int* __restrict__ ptr,
                                       const int* __restrict__ indices, const T* __restrict__ data,
                                       const T* __restrict__ x, T* __restrict__ y) {
  int thread_id = blockDim.x * blockIdx.x + threadIdx.x;
  int warp_id = thread_id / 32;
  int lane = thread_id & (32 - 1);
  int row = warp_id;
  if (row < num_rows) {
    int row_start = ptr[row];
    int row_end = ptr[row + 1];
    T sum = 0;
    for (int jj = row_start + lane; jj < row_end; jj += 32) {
      T value = data[jj];  // a row a warp
      sum += value * __ldg(&x[indices[jj]]);
    }
    for (int offset = 16; offset > 0; offset >>= 1)
      sum += __shfl_down_sync(0xFFFFFFFFu, sum, offset);
    if (lane == 0) y[row] += sum;
  }
}

int main() {
  const int rows = 128, each = 32;
  std::vector<int> ptr(rows + 1), indices(rows * each);
  std::vector<double> data(rows * each), x(rows), y(rows);
  for (int r = 0; r < rows; ++r) {
    ptr[r + 1] = (r + 1) * each;
    x[r] = r % 9;
    for (int j = 0; j < each; ++j) {
      indices[r * each + j] = (r + j * 4) % rows;
      data[r * each + j] = j % 4;
    }
  }
  int *d_ptr, *d_indices;
  double *d_data, *d_x, *d_y;
  HANDLE(cudaMalloc(&d_ptr, ptr.size() * sizeof(int)));
  HANDLE(cudaMalloc(&d_indices, indices.size() * sizeof(int)));
  HANDLE(cudaMalloc(&d_data, data.size() * sizeof(double)));
  HANDLE(cudaMalloc(&d_x, rows * sizeof(double)));
  HANDLE(cudaMalloc(&d_y, rows * sizeof(double)));
  HANDLE(cudaMemcpy(d_ptr, ptr.data(), ptr.size() * sizeof(int), cudaMemcpyHostToDevice));
  HANDLE(
      cudaMemcpy(d_indices, indices.data(), indices.size() * sizeof(int), cudaMemcpyHostToDevice));
  HANDLE(cudaMemcpy(d_data, data.data(), data.size() * sizeof(double), cudaMemcpyHostToDevice));
  HANDLE(cudaMemcpy(d_x, x.data(), rows * sizeof(double), cudaMemcpyHostToDevice));
  HANDLE(cudaMemset(d_y, 0, rows * sizeof(double)));
  spmv_csr_scalar_kernel<double><<<rows / 64, 64>>>(rows, d_ptr, d_indices, d_data, d_x, d_y);
  spmv_csr_vector_kernel<double><<<rows / 4, 128>>>(rows, d_ptr, d_indices, d_data, d_x, d_y);
  HANDLE(cudaGetLastError());
  HANDLE(cudaMemcpy(y.data(), d_y, rows * sizeof(double), cudaMemcpyDeviceToHost));
  for (int r = 0; r < rows; ++r) {
    double want = 0;
    for (int j = ptr[r]; j < ptr[r + 1]; ++j) want += 2 * data[j] * x[indices[j]];
    if (y[r] != want) return std::printf("wrong in row %d\n", r), 1;
  }
  std::puts("right");
}
