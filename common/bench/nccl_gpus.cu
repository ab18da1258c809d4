// What fwd17, bwd20 and bwd21 are compared with: separate kernels, and NCCL's all-reduce between
// them or after them. Linked with the harness as three kernels, so that they are checked and timed
// as the chapters are. CUDA only.
//
//   nccl_gpus --gpus 2 --set gpus --json FILE
//
// nccl_fwd      sums of each row's slice · all-reduce of 2 floats a row · y
// nccl_columns  the two sums of each row's slice · all-reduce of 2 floats a row · dx, and last sums
// nccl_rows     bwd12 · all-reduce of dweight and dbias
#include <nccl.h>

#include "common/cuda/communicator.h"
#include "common/kernel/chapter.h"
#include "common/kernel/partial_sums.h"
#include "common/kernel/peers.h"
#include "common/kernel/reduce.h"
#include "common/kernel/registry.h"
#include "common/kernel/vector.h"

namespace nccl_gpus {
using namespace lnc;

constexpr int kThreads = 256;

void check_nccl(ncclResult_t status) {
  if (status != ncclSuccess)
    throw std::runtime_error(std::string("ncclAllReduce failed: ") + ncclGetErrorString(status));
}

void all_reduce(float* sums, std::int64_t count, cudaStream_t stream) {
  check_nccl(ncclAllReduce(sums, sums, count, ncclFloat, ncclSum, current_communicator(), stream));
}

/// Calls body(col) for each vector of a row that this thread has.
template <typename T, typename Body>
__device__ void for_each_vector(std::int64_t cols, const Body& body) {
  constexpr int kElements = kVectorElements<T>;
  for (std::int64_t col = threadIdx.x * kElements; col < cols; col += kThreads * kElements)
    body(col);
}

/// The sum of a row's slice and that of its squares.
template <typename T>
__global__ void __launch_bounds__(kThreads) sums_of_rows(ForwardArgs<T> a, float2* sums) {
  constexpr int kElements = kVectorElements<T>;
  const std::int64_t row = blockIdx.x;
  float2 sum = make_float2(0.0f, 0.0f);
  for_each_vector<T>(a.cols, [&](std::int64_t col) {
    float x[kElements];
    to_floats(load_vector<kElements>(a.x, row * a.cols + col), x);
    for (const float value : x) {
      sum.x += value;
      sum.y += value * value;
    }
  });
  sum = block_sum<kThreads>(sum);
  if (threadIdx.x == 0) sums[row] = sum;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    y_of_rows(ForwardArgs<T> a, const float2* sums, float inverse_cols) {
  constexpr int kElements = kVectorElements<T>;
  const std::int64_t row = blockIdx.x;
  const float mean = sums[row].x * inverse_cols;
  const float rstd = rsqrtf(fmaxf(sums[row].y * inverse_cols - mean * mean, 0.0f) + a.eps);
  for_each_vector<T>(a.cols, [&](std::int64_t col) {
    float x[kElements], w[kElements], b[kElements];
    to_floats(load_vector<kElements>(a.x, row * a.cols + col), x);
    to_floats(load_vector<kElements>(a.weight, col), w);
    to_floats(load_vector<kElements>(a.bias, col), b);
    for (int k = 0; k < kElements; ++k) x[k] = (x[k] - mean) * rstd * w[k] + b[k];
    store(a.y, row * a.cols + col, x);
  });
  if (threadIdx.x == 0) {
    a.mean[row] = mean;
    a.rstd[row] = rstd;
  }
}

/// The columns of a whole row, all-reduced once.
template <typename Args>
float inverse_cols(const Args& a, float* scratch) {
  static thread_local std::pair<std::int64_t, float> known{-1, 0.0f};
  if (known.first != a.cols) {
    float cols = static_cast<float>(a.cols);
    check_cuda(cudaMemcpy(scratch, &cols, sizeof cols, cudaMemcpyHostToDevice), "an upload");
    all_reduce(scratch, 1, a.stream);
    check_cuda(cudaMemcpy(&cols, scratch, sizeof cols, cudaMemcpyDeviceToHost), "a download");
    known = {a.cols, 1.0f / cols};
  }
  return known.second;
}

template <typename T>
void forward(const ForwardArgs<T>& a) {
  auto* const sums = static_cast<float2*>(a.workspace);
  const float inverse = inverse_cols(a, static_cast<float*>(a.workspace));
  const auto rows = static_cast<unsigned>(a.rows);
  launch(sums_of_rows<T>, {rows, kThreads, 0, a.stream}, a, sums);
  all_reduce(static_cast<float*>(a.workspace), 2 * a.rows, a.stream);
  launch(y_of_rows<T>, {rows, kThreads, 0, a.stream}, a, sums, inverse);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) terms_of_rows(BackwardArgs<T> a, float2* sums) {
  constexpr int kElements = kVectorElements<T>;
  const std::int64_t row = blockIdx.x;
  const float mean = a.mean[row], rstd = a.rstd[row];
  float2 sum = make_float2(0.0f, 0.0f);
  for_each_vector<T>(a.cols, [&](std::int64_t col) {
    float x[kElements], dy[kElements], w[kElements];
    to_floats(load_vector<kElements>(a.x, row * a.cols + col), x);
    to_floats(load_vector<kElements>(a.dy, row * a.cols + col), dy);
    to_floats(load_vector<kElements>(a.weight, col), w);
    for (int k = 0; k < kElements; ++k) {
      sum.x += w[k] * dy[k] * (x[k] - mean) * rstd;
      sum.y += w[k] * dy[k];
    }
  });
  sum = block_sum<kThreads>(sum);
  if (threadIdx.x == 0) sums[row] = sum;
}

constexpr int kVectors = 4;   // of a row in a thread: rows of up to 16 KB
constexpr int kResident = 2;  // blocks of a multiprocessor

std::int64_t blocks_of(std::int64_t rows) {
  return std::min<std::int64_t>(rows, kResident * multiprocessors());
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    dx_of_rows(BackwardArgs<T> a, const float2* sums, PartialSums partials, float inverse_cols) {
  constexpr int kElements = kVectorElements<T>;
  float dweight[kVectors][kElements] = {}, dbias[kVectors][kElements] = {};
  for (std::int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const float mean = a.mean[row], rstd = a.rstd[row];
    const float c1 = sums[row].x * inverse_cols, c2 = sums[row].y * inverse_cols;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const std::int64_t col = (i * kThreads + threadIdx.x) * kElements;
      if (col >= a.cols) continue;
      float x[kElements], dy[kElements], w[kElements];
      to_floats(load_vector<kElements>(a.x, row * a.cols + col), x);
      to_floats(load_vector<kElements>(a.dy, row * a.cols + col), dy);
      to_floats(load_vector<kElements>(a.weight, col), w);
      for (int k = 0; k < kElements; ++k) {
        const float xhat = (x[k] - mean) * rstd;
        dweight[i][k] += dy[k] * xhat;
        dbias[i][k] += dy[k];
        x[k] = rstd * (w[k] * dy[k] - c2 - xhat * c1);
      }
      store(a.dx, row * a.cols + col, x);
    }
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const std::int64_t col = (i * kThreads + threadIdx.x) * kElements;
    if (col >= a.cols) continue;
    store(partials.dweight + blockIdx.x * partials.stride, col, dweight[i]);
    store(partials.dbias + blockIdx.x * partials.stride, col, dbias[i]);
  }
}

template <typename T>
void backward_columns(const BackwardArgs<T>& a) {
  const std::int64_t blocks = blocks_of(a.rows);
  const PartialSums partials = partial_sums(a, blocks);
  auto* const sums = reinterpret_cast<float2*>(partials.dweight + 2 * blocks * a.cols);
  const float inverse = inverse_cols(a, static_cast<float*>(a.workspace));
  launch(terms_of_rows<T>, {static_cast<unsigned>(a.rows), kThreads, 0, a.stream}, a, sums);
  all_reduce(reinterpret_cast<float*>(sums), 2 * a.rows, a.stream);
  launch(dx_of_rows<T>, {static_cast<unsigned>(blocks), kThreads, 0, a.stream}, a, sums, partials,
         inverse);
  add_partial_sums(a, partials, blocks);
}

/// In the gradients' own type and place, as torch's DistributedDataParallel does.
template <typename T>
void backward_rows(const BackwardArgs<T>& a) {
  std::get<BackwardLaunchers>(find_chapter("bwd12")->run).get<T, T>()(a);
  const ncclDataType_t type = std::is_same_v<T, float>    ? ncclFloat
                              : std::is_same_v<T, __half> ? ncclHalf
                                                          : ncclBfloat16;
  check_nccl(ncclGroupStart());
  const auto reduce = [&](T* sums) {
    check_nccl(ncclAllReduce(sums, sums, a.cols, type, ncclSum, current_communicator(), a.stream));
  };
  reduce(a.dweight);
  reduce(a.dbias);
  check_nccl(ncclGroupEnd());
}

const Registration forward_registration{{
    .id = "nccl_fwd",
    .title = "Sums, an all-reduce, y",
    .teaches = "what fwd17 is compared with",
    .source = "NCCL",
    .road = Road::Library,
    .kinds = {Kind::Layer},
    .split = Split::Columns,
    .needs_affine = true,
    .needs_aligned = true,
    .run = ForwardLaunchers{forward<float>, forward<__half>, forward<__nv_bfloat16>},
    .predicted_bytes = [](const Problem& p, const Gpu&) -> std::int64_t {
      return 3 * p.tensor_bytes() + parameter_bytes(p);
    },
    .workspace_bytes = [](const Problem& p) -> std::int64_t {
      return std::max<std::int64_t>(p.rows, 1) * std::int64_t{sizeof(float2)};
    },
}};

const Registration columns_registration{{
    .id = "nccl_columns",
    .title = "Sums, an all-reduce, dx",
    .teaches = "what bwd20 is compared with",
    .source = "NCCL",
    .road = Road::Library,
    .kinds = {Kind::Layer},
    .split = Split::Columns,
    .needs_affine = true,
    .needs_aligned = true,
    .max_row_bytes = kThreads * kVectors * 16,
    .run = BackwardLaunchers{backward_columns<float>, backward_columns<__half>,
                             backward_columns<__nv_bfloat16>},
    .predicted_bytes = [](const Problem& p, const Gpu&) -> std::int64_t {
      return 5 * p.tensor_bytes() + parameter_bytes(p);
    },
    .workspace_bytes = [](const Problem& p) -> std::int64_t {
      return partial_sums_bytes(p, blocks_of(p.rows)) + (p.rows + 1) * std::int64_t{sizeof(float2)};
    },
}};

const Registration rows_registration{{
    .id = "nccl_rows",
    .title = "bwd12, an all-reduce of the gradients",
    .teaches = "what bwd21 is compared with",
    .source = "NCCL",
    .road = Road::Library,
    .kinds = {Kind::Layer},
    .split = Split::Rows,
    .needs_affine = true,
    .needs_aligned = true,
    .min_architecture = 90,
    .max_row_bytes = 16 << 10,
    .run = BackwardLaunchers{backward_rows<float>, backward_rows<__half>,
                             backward_rows<__nv_bfloat16>},
    .predicted_bytes = [](const Problem& p, const Gpu&) -> std::int64_t {
      return 3 * p.tensor_bytes() + parameter_bytes(p);
    },
    .workspace_bytes = [](const Problem& p) -> std::int64_t {
      return find_chapter("bwd12")->workspace_bytes(p);
    },
}};

}  // namespace nccl_gpus
