// fwd05 · A row in tiles
//
// A thread of fwd03 loads one element, adds it, loads the next, and relies on the compiler to move
// loads ahead, which the compiler cannot do in the last walk. Here a block walks its row in tiles
// of 1024 columns. A thread has eight columns of a tile: it loads all eight, and only then uses
// them.
//
// Eight loads are in flight together, so at 2048 columns the last walk should wait 2 times instead
// of 8. The kernel still walks the row three times: what that costs depends on the cache that holds
// the row.
#include "common/kernel/chapter.h"
#include "common/kernel/reduce.h"

namespace fwd05 {
using namespace lnc;

constexpr int kTile = 1024;  // [1] columns
constexpr int kThreads = 128;
constexpr int kPlaces = kTile / kThreads;  // of a thread in a tile

// exercise
/// Loads this thread's places of a tile that begins at `tile` and has `width` columns: kTile, or
/// fewer at the row's end. A place past the end gets `beyond`.
template <typename T>
__device__ inline void load_tile(float (&values)[kPlaces], const T* tile, int width, float beyond) {
  const int thread = static_cast<int>(threadIdx.x);
  if (width == kTile) {  // [2] a whole tile needs no tests
#pragma unroll
    for (int k = 0; k < kPlaces; ++k) {
      values[k] = to_float(tile[k * kThreads + thread]);  // [3]
    }
    return;
  }
#pragma unroll
  for (int k = 0; k < kPlaces; ++k) {
    const int place = k * kThreads + thread;
    values[k] = place < width ? to_float(tile[place]) : beyond;
  }
}

/// The sum over all places of all threads, in every thread.
__device__ inline float sum_of_places(const float (&values)[kPlaces]) {
  float sum = 0.0f;
#pragma unroll
  for (int k = 0; k < kPlaces; ++k) {
    sum += values[k];
  }
  return block_sum<kThreads>(sum);
}

/// How many columns the tile that begins at column `first` has.
__device__ inline int width_of_tile(int64_t first, int64_t cols) {
  return static_cast<int>(min(cols - first, int64_t{kTile}));
}
// end of exercise

template <typename T>
__global__ void __launch_bounds__(kThreads) layer_norm_forward(ForwardArgs<T> a) {
  // exercise
  const int64_t row = blockIdx.x;
  const T* x = a.x + row * a.cols;
  T* y = a.y + row * a.cols;
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  float values[kPlaces];

  float sums[kPlaces] = {};  // [4]
  for (int64_t first = 0; first < a.cols; first += kTile) {
    load_tile(values, x + first, width_of_tile(first, a.cols), 0.0f);
#pragma unroll
    for (int k = 0; k < kPlaces; ++k) {
      sums[k] += values[k];
    }
  }
  const float mean = sum_of_places(sums) * inverse_cols;

  float squares[kPlaces] = {};
  for (int64_t first = 0; first < a.cols; first += kTile) {
    load_tile(values, x + first, width_of_tile(first, a.cols), mean);  // [5]
#pragma unroll
    for (int k = 0; k < kPlaces; ++k) {
      const float centred = values[k] - mean;
      squares[k] += centred * centred;
    }
  }
  const float rstd = rsqrtf(sum_of_places(squares) * inverse_cols + a.eps);

  for (int64_t first = 0; first < a.cols; first += kTile) {
    const int width = width_of_tile(first, a.cols);
    float weight[kPlaces];
    float bias[kPlaces];
    load_tile(values, x + first, width, 0.0f);  // [6]
    load_tile(weight, a.weight + first, width, 0.0f);
    load_tile(bias, a.bias + first, width, 0.0f);
#pragma unroll
    for (int k = 0; k < kPlaces; ++k) {
      const int place = k * kThreads + static_cast<int>(threadIdx.x);
      const float xhat = (values[k] - mean) * rstd;
      if (place < width) y[first + place] = from_float<T>(xhat * weight[k] + bias[k]);
    }
  }
  if (threadIdx.x == 0) {
    a.mean[row] = mean;
    a.rstd[row] = rstd;
  }
}

template <typename T>
void run(const ForwardArgs<T>& a) {
  launch(layer_norm_forward<T>, {blocks_for(a.rows, 1), kThreads, 0, a.stream}, a);
}

const Registration registration{{
    .id = "fwd05",
    .title = "A row in tiles",
    .teaches = "eight loads wait together; what reading a row again costs in each cache",
    .source = "Triton tutorial 05",
    .parent = "fwd03",
    .road = Road::Main,
    .kinds = {Kind::Layer},
    .needs_affine = true,
    .run = ForwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>},
    .predicted_bytes =
        [](const Problem& p, const Gpu& gpu) {
          return predict_bytes(p, gpu, {.inputs = 1, .walks = 3, .threads_per_row = kThreads});
        },
}};

}  // namespace fwd05
