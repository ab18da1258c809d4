// fwd05 · A row in tiles
//
// fwd04 walks a row twice instead of three times, and pays with Welford's update: a division for
// each element, and a chain from one to the next. Here a block walks its row in tiles, three times.
// A thread has eight places in a tile and a partial sum for each, so that eight loads are on their
// way at once and an addition waits for nothing but the tile before.
//
// Any width will do. A walk should cost what the place costs where the row waits for it: little in
// L1, more in L2, as much as the first walk once the rows in flight outgrow both.
#include "common/kernel/chapter.h"
#include "common/kernel/reduce.h"

namespace fwd05 {
using namespace lnc;

constexpr int kTile = 1024;  // [1] columns
constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kPlaces = kTile / kThreads;  // of a thread in a tile, so its loads in flight
static_assert(kTile % kThreads == 0);
constexpr int kBlocksByRegisters = 12;  // [2] on a multiprocessor, at 40 registers a thread

/// What a thread holds of a tile: a float for each of its places.
struct Places {
  float at[kPlaces];
};

/// The column of this thread's place `k`, counted from where the tile begins.
__device__ inline int place(int k) { return k * kThreads + static_cast<int>(threadIdx.x); }  // [3]

/// Calls `body(tile, in_row)` with the first column of each tile of a row; `in_row(k)` tells
/// whether this thread's place `k` is a column.
template <typename Body>
__device__ inline void walk(int64_t cols, Body body) {
  const auto everywhere = [](int) { return true; };  // [4]
  int64_t tile = 0;
#pragma unroll 1
  for (; tile + kTile <= cols; tile += kTile) {
    body(tile, everywhere);
  }
  const int rest = static_cast<int>(cols - tile);
  const auto in_rest = [rest](int k) { return place(k) < rest; };
  if (rest > 0) body(tile, in_rest);
}

/// This thread's elements of a tile of `from`, and `beyond` where there is none.
template <typename E, typename InRow>
__device__ inline Places load(const E* from, int64_t tile, InRow in_row, float beyond) {
  Places places;
#pragma unroll
  for (int k = 0; k < kPlaces; ++k) {
    places.at[k] = in_row(k) ? to_float(from[tile + place(k)]) : beyond;
  }
  return places;
}

/// The sum over all places of all threads, in every thread.
__device__ inline float sum_of(const Places& places) {
  float sum = 0.0f;
#pragma unroll
  for (int k = 0; k < kPlaces; ++k) {
    sum += places.at[k];
  }
  return block_sum<kThreads>(sum);
}

template <typename T, typename W>
__global__ void __launch_bounds__(kThreads) layer_norm_forward(ForwardArgs<T, W> a) {
  const int64_t row = blockIdx.x;
  const T* x = a.x + row * a.cols;
  T* y = a.y + row * a.cols;
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);

  float mean = 0.0f;
  if (a.kind == Kind::Layer) {  // [5] all threads agree, so all meet at the barriers inside
    Places sums = {};
    walk(a.cols, [&](int64_t tile, auto in_row) {
      const Places values = load(x, tile, in_row, 0.0f);
#pragma unroll
      for (int k = 0; k < kPlaces; ++k) {
        sums.at[k] += values.at[k];  // [6]
      }
    });
    mean = sum_of(sums) * inverse_cols;
  }

  Places squares = {};
  walk(a.cols, [&](int64_t tile, auto in_row) {
    const Places values = load(x, tile, in_row, mean);  // [7] not 0: mean - mean adds nothing
#pragma unroll
    for (int k = 0; k < kPlaces; ++k) {
      const float centred = values.at[k] - mean;
      squares.at[k] += centred * centred;
    }
  });
  const float rstd = rsqrtf(sum_of(squares) * inverse_cols + a.eps);

  walk(a.cols, [&](int64_t tile, auto in_row) {
    const auto in_weight = [&](int k) { return a.weight != nullptr && in_row(k); };
    const auto in_bias = [&](int k) { return a.bias != nullptr && in_row(k); };
    const Places values = load(x, tile, in_row, 0.0f);  // [8] all loads, then the first store
    const Places weight = load(a.weight, tile, in_weight, 1.0f);
    const Places bias = load(a.bias, tile, in_bias, 0.0f);
#pragma unroll
    for (int k = 0; k < kPlaces; ++k) {
      const float xhat = (values.at[k] - mean) * rstd;
      if (in_row(k)) y[tile + place(k)] = from_float<T>(xhat * weight.at[k] + bias.at[k]);
    }
  });
  if (threadIdx.x == 0) {
    if (a.kind == Kind::Layer) a.mean[row] = mean;
    a.rstd[row] = rstd;
  }
}

template <typename T, typename W = T>
void run(const ForwardArgs<T, W>& a) {
  launch(layer_norm_forward<T, W>, {blocks_for(a.rows, 1), kThreads, 0, a.stream}, a);
}

const Registration registration{{
    .id = "fwd05",
    .title = "A row in tiles",
    .teaches = "a row in tiles, of any width; what reading it again costs in each cache",
    .source = "Triton tutorial 05",
    .parent = "fwd03",
    .road = Road::Main,
    .run = ForwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>, run<__half, float>,
                            run<__nv_bfloat16, float>},
    .predicted_bytes = [](const Problem& p, const Gpu& gpu) -> std::int64_t {
      const int walks = p.kind == Kind::Layer ? 3 : 2;
      const std::int64_t rows = std::min(rows_in_flight(p, kThreads, gpu),
                                         std::int64_t{kBlocksByRegisters} * gpu.multiprocessors);
      const std::int64_t in_flight = rows * p.cols * p.element_bytes();
      return (device_reads(walks, in_flight, gpu) + 1) * p.tensor_bytes() + parameter_bytes(p);
    },
}};

}  // namespace fwd05
