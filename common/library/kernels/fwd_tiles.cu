// lib_fwd_tiles · Narrow unaligned rows in tiles
//
// Rows of up to 512 bytes that start anywhere, layer and RMS norm, on Hopper. A block has a tile of
// 64 or 128 neighbouring rows, which together start at a 16-byte boundary. The copy engine loads
// the tile into shared memory with one request, and stores it with another. Each thread has a row,
// wherever the row starts.
//
// Parts: tile.h (tiles, and which thread has which row; fwd15), hopper.h (bulk copies; fwd08,
// stores fwd15), moments.h (fwd04). The walks over a row are fwd01's.
//
// Measurements behind the constants, on an H100 with a cold L2, layer norm / RMS norm:
// - kTileBytes: with 36 KB six blocks share a multiprocessor.
// - Four columns at a time: bf16 263172 × 255 takes 109 / 104 µs; one column at a time, 115 / 108.
// - The result: 99 / 97 µs at bf16 1032444 × 65 (lib_fwd_narrow 145 / 123), 98 / 97 at 528416 × 127
//   (132 / 107); a copy takes 94. Even widths lose to bank conflicts: 546 µs at 64 columns of bf16,
//   152 at 80; lib_fwd_narrow handles these widths.
#include "common/kernel/chapter.h"
#include "common/kernel/hopper.h"
#include "common/kernel/kinds.h"
#include "common/kernel/moments.h"
#include "common/kernel/tile.h"

namespace lib_fwd_tiles {
using namespace lnc;

constexpr int kMostWarps = 4;         // of a block, a row a thread
constexpr int kFewestWarps = 2;       // two share 64 rows
constexpr int kTileBytes = 36 << 10;  // of a tile of four warps, at most
constexpr int64_t kMostRowBytes = 512;

/// Weight and bias of each column, as floats in shared memory: lanes read the same column at the
/// same time, a broadcast.
template <Kind kKind, typename T, typename W>
__device__ void load_affine(const ForwardArgs<T, W>& a, float2* affine) {
  for (int64_t col = threadIdx.x; col < a.cols; col += blockDim.x) {
    const float weight = a.weight != nullptr ? to_float(a.weight[col]) : 1.0f;
    const bool has_bias = kKind == Kind::Layer && a.bias != nullptr;
    const float bias = has_bias ? to_float(a.bias[col]) : 0.0f;
    affine[col] = make_float2(weight, bias);
  }
}

/// Normalises a row in shared memory, and returns what it was normalised by. A row is read again in
/// each walk; registers for all its columns would leave room for few rows.
template <Kind kKind, typename T>
__device__ Normaliser normalise(T* row, const float2* affine, int cols, float inverse_cols,
                                float eps) {
  float near = 0.0f;
  if constexpr (kKind == Kind::Layer) {
    float sums[4] = {};  // four short sums round less than a long one
    for_columns(row, cols, [&]<int kCount>(int col) {
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
    add_deviations(sums, near, x);
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
/// boundaries, and so does each tile of them. Otherwise threads move all elements, correct but
/// slow.
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

  // The row that keeps a warp's lanes in different banks: for 16-bit types every second one.
  const int row = own_row_of_tile<T>(static_cast<int>(threadIdx.x), cols);
  if (row < rows) {
    const Normaliser of_row =
        normalise<kKind>(shared + row * cols, affine, cols, inverse_cols, a.eps);
    store_statistics<kKind>(a, first_row + row, of_row);
  }
  fence_proxy_async();  // the copy engine sees what threads stored
  __syncthreads();
  if (threadIdx.x == 0) tile.take_away(a.y + start);
  tile.take_rest(a.y + start);
  // A retired block gives up its shared memory, so it stays until the tile has been read.
  if (threadIdx.x == 0) wait_bulk_stores_read<0>();
}

template <typename T, typename W>
void run(const ForwardArgs<T, W>& a) {
  const auto warp_bytes = static_cast<int>(kWarpSize * a.cols * sizeof(T));
  const bool fits = kMostWarps * warp_bytes <= kTileBytes;
  const int warps = fits ? kMostWarps : kFewestWarps;
  const auto threads = static_cast<unsigned>(warps * kWarpSize);
  const std::size_t shared_bytes = warps * warp_bytes + a.cols * sizeof(float2);
  const LaunchConfig config{blocks_for(a.rows, threads), threads, shared_bytes, a.stream};
  const bool at_boundary = start_in_vector(a.x) == 0 && start_in_vector(a.y) == 0;
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  with_kind(a.kind, [&](auto kind) {
    launch(layer_norm_forward<T, W, kind()>, config, a, at_boundary, inverse_cols);
  });
}

const Registration registration{{
    .id = "lib_fwd_tiles",
    .title = "Narrow unaligned rows in tiles",
    .teaches = "rows of up to 512 bytes that start anywhere, moved by the copy engine",
    .source = "this repository",
    .road = Road::Library,
    .usual_cols = 127,
    .shares_by_address = true,
    .min_architecture = 90,
    .keeps_digits_at_large_means = true,
    .max_row_bytes = kMostRowBytes,
    .max_row_bytes_because = "of wider rows too few have room in shared memory",
    .run = ForwardLaunchers::every([](const auto& args) { run(args); }),
    .predicted_bytes = least_bytes<Direction::Forward>,
}};

}  // namespace lib_fwd_tiles
