// bwd08 · Sums in buffers under a lock
//
// bwd06 reads x and dy twice, the second time for dweight and dbias. Here a block reads them once:
// it computes dx of its row and, from the same registers, the row's part of dweight and dbias. It
// adds these to one of F buffers of 2·N sums, each shared by many rows: it takes the lock of buffer
// row % F, adds with ordinary loads and stores, and releases the lock. A second kernel adds up the
// buffers.
//
// Three tensors instead of five should save time. But the M / F rows of a buffer take its lock one
// after another, and each time is a chain of trips to L2 that no bandwidth shortens. The lesson
// predicts too short a time for that chain.
#include "common/kernel/chapter.h"
#include "common/kernel/partial_sums.h"
#include "common/kernel/reduce.h"
#include "common/kernel/vector.h"

namespace bwd08 {
using namespace lnc;

constexpr int kMaxThreads = 512;
constexpr int kBlocks = kSmThreads / kMaxThreads;  // on a multiprocessor: 40 registers a thread
constexpr int kVectors = 2;                        // that a thread has of a row
constexpr int kElements = 4;                       // of a vector: 16 bytes of sums
constexpr int kBuffers = 128;
constexpr int kLockThreads = 256;

/// What the word of a buffer's lock says. A launch begins with all of them free and empty.
enum LockState : int { kFreeAndEmpty, kFreeWithSums, kHeld };

// exercise
/// Takes the buffer for this block, and says whether it holds sums already. All threads call it.
__device__ bool acquire(int* lock) {
  __shared__ int before;
  if (threadIdx.x == 0) {
    do {
      before = atomicExch(lock, kHeld);  // [1]
    } while (before == kHeld);
    __threadfence();  // [2]
  }
  __syncthreads();  // [3] no thread reads the buffer before thread 0 has the lock
  return before == kFreeWithSums;
}

/// Gives the buffer back. All threads call it.
__device__ void release(int* lock) {
  __syncthreads();  // [4] every warp has stored its columns before thread 0 gives it back
  if (threadIdx.x == 0) {
    __threadfence();  // [5] and what they stored is seen before the lock is seen free
    atomicExch(lock, kFreeWithSums);
  }
}

/// Four sums of a buffer, from L2.
__device__ inline Vector<float, kElements> load_past_l1(const float* at) {
  return __builtin_bit_cast(Vector<float, kElements>, __ldcg(reinterpret_cast<const float4*>(at)));
}
// end of exercise

/// A block a row, eight of its columns a thread.
template <typename T>
__global__ void __launch_bounds__(kMaxThreads, kBlocks)
    layer_norm_backward(BackwardArgs<T> a, PartialSums sums, int* locks, int buffers) {
  // exercise
  const int64_t row = blockIdx.x;
  const int cols = static_cast<int>(a.cols);
  const float mean = a.mean[row];
  const float rstd = a.rstd[row];
  const float inverse_cols = 1.0f / static_cast<float>(cols);
  const auto col = [](int i) { return static_cast<int>(i * blockDim.x + threadIdx.x) * kElements; };

  float xhat[kVectors][kElements];
  float dy[kVectors][kElements];
  float wdy[kVectors][kElements];
  float2 c = make_float2(0.0f, 0.0f);
  for (int i = 0; i < kVectors; ++i) {  // [6]
    const bool there = col(i) < cols;
    to_floats(load_if<kElements>(there, a.x, row * cols + col(i)), xhat[i]);
    to_floats(load_if<kElements>(there, a.dy, row * cols + col(i)), dy[i]);
    to_floats(load_if<kElements>(there, a.weight, col(i)), wdy[i]);
    for (int k = 0; k < kElements; ++k) {
      xhat[i][k] = (xhat[i][k] - mean) * rstd;
      wdy[i][k] *= dy[i][k];
      c.x += wdy[i][k] * xhat[i][k];
      c.y += wdy[i][k];
    }
  }
  c = block_sum<kMaxThreads>(c, blockDim.x);
  const float c1 = c.x * inverse_cols;
  const float c2 = c.y * inverse_cols;

  for (int i = 0; i < kVectors; ++i) {  // [7] before the lock, so that no block waits for dx
    float dx[kElements];
    for (int k = 0; k < kElements; ++k) dx[k] = rstd * (wdy[i][k] - c2 - xhat[i][k] * c1);
    if (col(i) < cols) store(a.dx, row * cols + col(i), dx);
  }

  const int64_t buffer = blockIdx.x % static_cast<unsigned>(buffers);  // [8]
  const int64_t start = buffer * cols;
  float dweight[kVectors][kElements] = {};
  float dbias[kVectors][kElements] = {};
  const bool has_sums = acquire(locks + buffer);

  for (int i = 0; i < kVectors; ++i) {
    if (!has_sums || col(i) >= cols) continue;
    to_floats(load_past_l1(sums.dweight + start + col(i)), dweight[i]);  // [9] L1 may be stale
    to_floats(load_past_l1(sums.dbias + start + col(i)), dbias[i]);
  }
  for (int i = 0; i < kVectors; ++i) {
    if (col(i) >= cols) continue;
    for (int k = 0; k < kElements; ++k) {
      dweight[i][k] += dy[i][k] * xhat[i][k];
      dbias[i][k] += dy[i][k];
    }
    store(sums.dweight, start + col(i), dweight[i]);
    store(sums.dbias, start + col(i), dbias[i]);
  }
  release(locks + buffer);
}

__global__ void free_locks(int* locks, int buffers) {
  // exercise
  const int buffer = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (buffer < buffers) locks[buffer] = kFreeAndEmpty;
}

/// As many as asked for, or kBuffers, which the Triton tutorial has for 1025 to 4096 columns; no
/// more than rows.
int64_t buffers_of(int64_t rows, int asked) {
  return std::min<int64_t>(rows, asked > 0 ? asked : kBuffers);
}

template <typename T>
void run(const BackwardArgs<T>& a) {
  const auto buffers = static_cast<int>(buffers_of(a.rows, a.group));
  const PartialSums sums = partial_sums(a, buffers);
  int* locks = reinterpret_cast<int*>(static_cast<float*>(a.workspace) + 2 * a.cols * buffers);
  launch(free_locks, {blocks_for(buffers, kLockThreads), kLockThreads, 0, a.stream}, locks,
         buffers);  // [10]
  const unsigned threads = blocks_for(a.cols, kVectors * kElements * kWarpSize) * kWarpSize;
  launch(layer_norm_backward<T>, {blocks_for(a.rows, 1), threads, 0, a.stream}, a, sums, locks,
         buffers);
  add_partial_sums(a, sums, buffers);
}

const Registration registration{{
    .id = "bwd08",
    .title = "Sums in buffers under a lock",
    .teaches = "a lock between blocks; what acquire and release must wait for",
    .source = "Triton tutorial 05",
    .parent = "bwd06",
    .road = Road::Sums,
    .kinds = {Kind::Layer},
    .needs_affine = true,
    .needs_aligned = true,
    .group = "buffers",
    .deterministic = false,
    .max_cols = kMaxThreads * kVectors * kElements,
    .max_cols_because = "a thread keeps eight columns in registers",
    .run = BackwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>},
    .predicted_bytes = [](const Problem& p, const Gpu& gpu) -> std::int64_t {
      const int64_t in_l2 = partial_sums_bytes(p, buffers_of(p.rows, p.group));
      const int64_t sums = in_l2 <= gpu.l2_bytes ? 0 : 16 * p.rows * p.cols;
      return 3 * p.tensor_bytes() + parameter_bytes(p) + sums;
    },
    .workspace_bytes = [](const Problem& p) -> std::int64_t {
      const int64_t buffers = buffers_of(p.rows, p.group);
      return partial_sums_bytes(p, buffers) + buffers * std::int64_t{sizeof(int)};
    },
}};

}  // namespace bwd08
