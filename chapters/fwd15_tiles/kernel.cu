// fwd15 · Narrow rows that start anywhere, a tile at a time
//
// fwd10 takes rows of 65 halves element by element: a request brings 64 bytes that could bring 512.
// Here a block has a tile, neighbouring rows that start at a 16-byte boundary together. The copy
// engine brings it to shared memory and takes it away, in two requests. There a row may start
// anywhere, so a thread has a row for itself, as in fwd01.
//
// It should run at the speed of a copy: 2·M·N elements, each moved once.
#include "common/kernel/chapter.h"
#include "common/kernel/hopper.h"
#include "common/kernel/moments.h"
#include "common/kernel/tile.h"

namespace fwd15 {
using namespace lnc;

constexpr int kMostWarps = 4;         // of a block: [1]
constexpr int kFewestWarps = 2;       // two share 64 rows
constexpr int kTileBytes = 36 << 10;  // of a tile of four warps, at most
constexpr int64_t kMostRowBytes = 512;

/// Weight and bias of each column, as floats in shared memory: [2].
template <Kind kKind, typename T, typename W>
__device__ void load_affine(const ForwardArgs<T, W>& a, float2* affine) {
  for (int64_t col = threadIdx.x; col < a.cols; col += blockDim.x) {
    const float weight = a.weight != nullptr ? to_float(a.weight[col]) : 1.0f;
    const bool has_bias = kKind == Kind::Layer && a.bias != nullptr;
    const float bias = has_bias ? to_float(a.bias[col]) : 0.0f;
    affine[col] = make_float2(weight, bias);
  }
}

/// Normalises a row in its place, and returns what it was normalised by.
template <Kind kKind, typename T>
__device__ Normaliser normalise(T* row, const float2* affine, int cols, float inverse_cols,
                                float eps) {
  float near = 0.0f;
  if constexpr (kKind == Kind::Layer) {
    float sums[4] = {};                                // four short sums round less than a long one
    for_columns(row, cols, [&]<int kCount>(int col) {  // [3]
      float x[kCount];
      read_elements(row + col, x);
      for (int k = 0; k < kCount; ++k) {
        sums[k] += x[k];
      }
    });
    near = (sums[0] + sums[1] + sums[2] + sums[3]) * inverse_cols;
  }
  Deviations<kKind> sums{};
  for_columns(row, cols, [&]<int kCount>(int col) {
    float x[kCount];
    read_elements(row + col, x);
    for (int k = 0; k < kCount; ++k) {
      add_deviation(sums, x[k] - near);
    }
  });
  const Normaliser of_row = normaliser(near, sums, inverse_cols, eps);
  for_columns(row, cols, [&]<int kCount>(int col) {
    float values[kCount];
    read_elements(row + col, values);
    for (int k = 0; k < kCount; ++k) {
      const float2 of_column = affine[col + k];
      values[k] = of_row.xhat(values[k]) * of_column.x + of_column.y;
    }
    write_elements(row + col, values);
  });
  return of_row;
}

/// A block has a tile with a row for each of its threads. `at_boundary`: x and y start at 16-byte
/// boundaries, and so does each tile of them: [4].
template <typename T, typename W, Kind kKind>
__global__ void __launch_bounds__(kMostWarps* kWarpSize)
    layer_norm_forward(ForwardArgs<T, W> a, bool at_boundary, float inverse_cols) {
  __shared__ Barrier full;
  const auto cols = static_cast<int>(a.cols);
  const auto tile_rows = static_cast<int>(blockDim.x);
  const int64_t first_row = int64_t{blockIdx.x} * tile_rows;
  const auto rows = static_cast<int>(min(a.rows - first_row, int64_t{tile_rows}));
  const int64_t start = first_row * cols;
  T* const shared = dynamic_shared<T>();
  auto* const affine = reinterpret_cast<float2*>(shared + tile_rows * cols);
  const Tile<T> tile(shared, rows * cols, at_boundary);

  if (threadIdx.x == 0) {
    full.init(1);
    fence_barrier_init();
    full.arrive_and_expect(tile.bytes_to_copy());
    tile.ask_for(a.x + start, full);
  }
  tile.bring_rest(a.x + start);
  load_affine<kKind>(a, affine);
  __syncthreads();
  full.wait(0);

  const int row = own_row_of_tile<T>(static_cast<int>(threadIdx.x), cols);  // [5]
  if (row < rows) {
    const Normaliser of_row =
        normalise<kKind>(shared + row * cols, affine, cols, inverse_cols, a.eps);
    if (kKind == Kind::Layer) a.mean[first_row + row] = of_row.mean;
    a.rstd[first_row + row] = of_row.rstd;
  }
  fence_proxy_async();  // [6]
  __syncthreads();
  if (threadIdx.x == 0) tile.take_away(a.y + start);
  tile.take_rest(a.y + start);
  if (threadIdx.x == 0) wait_bulk_stores_read<0>();  // [7]
}

template <Kind kKind, typename T, typename W>
void run_kind(const ForwardArgs<T, W>& a) {
  const auto warp_bytes = static_cast<int>(kWarpSize * a.cols * sizeof(T));
  const bool fits = kMostWarps * warp_bytes <= kTileBytes;
  const int warps = fits ? kMostWarps : kFewestWarps;
  const auto threads = static_cast<unsigned>(warps * kWarpSize);
  const std::size_t shared_bytes = warps * warp_bytes + a.cols * sizeof(float2);
  const bool at_boundary = start_in_vector(a.x) == 0 && start_in_vector(a.y) == 0;
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  launch(layer_norm_forward<T, W, kKind>,
         {blocks_for(a.rows, threads), threads, shared_bytes, a.stream}, a, at_boundary,
         inverse_cols);
}

template <typename T, typename W>
void run(const ForwardArgs<T, W>& a) {
  if (a.kind == Kind::Layer) {
    run_kind<Kind::Layer>(a);
  } else {
    run_kind<Kind::Rms>(a);
  }
}

const Registration registration{{
    .id = "fwd15",
    .title = "Narrow rows that start anywhere, a tile at a time",
    .teaches = "the copy engine moves whole tiles; in shared memory a row may start anywhere",
    .source = "this repository",
    .parent = "fwd10",
    .road = Road::NarrowRows,
    .usual_cols = 127,
    .shares_by_address = true,
    .min_architecture = 90,
    .keeps_digits_at_large_means = true,
    .max_row_bytes = kMostRowBytes,
    .max_row_bytes_because = "of wider rows too few have room in shared memory",
    .run = ForwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>, run<__half, float>,
                            run<__nv_bfloat16, float>},
    .predicted_bytes = [](const Problem& p, const Gpu&) -> std::int64_t {
      return 2 * p.tensor_bytes() + parameter_bytes(p);
    },
}};

}  // namespace fwd15
