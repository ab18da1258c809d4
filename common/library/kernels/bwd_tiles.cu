// lib_bwd_tiles · Narrow unaligned rows in tiles, by rows and by columns
//
// Rows of up to 512 bytes that start anywhere, layer and RMS norm, on Hopper. A persistent block
// has a tile of 64 neighbouring rows of x and one of dy, which the copy engine loads; dx replaces x
// in shared memory, and a bulk store writes it. The threads walk each tile three times: by rows for
// c1 and c2, with two threads per row; by columns for dweight and dbias; and by rows for dx. There
// are no shuffles, because partial results meet in shared memory.
//
// Parts: tile.h (fwd15), hopper.h (bulk copies; fwd08, stores fwd15), gradient_terms.h (bwd01),
// partial_sums.h (bwd06, early start bwd12). bwd19 teaches the three walks.
//
// Measurements behind the constants, on an H100, layer norm, 1032444 × 65, 528416 × 127 and 263172
// × 255 of bf16, µs:
// - Two threads per row and 64 rows per tile: 162, 158, 162; one thread per row and 128 rows per
//   tile: 168, 166, 177.
// - A block's tiles lie a whole grid apart: 161, 157, 165; if they are neighbours: 184, 173, 172.
// - Only five blocks per multiprocessor take 156 at 65 columns, but 192 against 167 at 33.
// - The result: 160 at 1032444 × 65 (86 % of a triad; lib_bwd_narrow 197), 156 at 528416 × 127
//   (187). Even widths lose to bank conflicts: 722 at 64 columns, where lib_bwd_narrow takes 150.
#include "common/kernel/chapter.h"
#include "common/kernel/gradient_terms.h"
#include "common/kernel/hopper.h"
#include "common/kernel/kinds.h"
#include "common/kernel/partial_sums.h"
#include "common/kernel/tile.h"

namespace lib_bwd_tiles {
using namespace lnc;

constexpr int kTileRows = 64;
constexpr int kThreads = 2 * kTileRows;                        // a row has two
constexpr int kSmBlocks = std::min(9, kSmThreads / kThreads);  // that it has registers for
constexpr int kMostBlocks = 2048 / kThreads;
constexpr int kMostRowBytes = 512;
constexpr int kMaxCols = kMostRowBytes / 2;
constexpr int kMostGroups = 16;                              // of a tile's rows
constexpr int kThreadWords = kMostRowBytes / 4 / kTileRows;  // of a row and thread, at most

/// By rows: the half of a row that a thread has. The middle is a multiple of four columns, which
/// for_columns takes at a time.
struct HalfRow {
  int row;
  int first;
  int cols;

  /// @param row which row of a tile the thread has
  __device__ HalfRow(int row_, int all_cols) : row(row_) {
    const int middle = (all_cols + 4) / 8 * 4;
    const bool second = static_cast<int>(threadIdx.x) >= kTileRows;
    first = second ? middle : 0;
    cols = second ? all_cols - middle : middle;
  }
};

/// What these columns add to the row's sums for c1 and c2.
template <Kind kKind, typename T>
__device__ float2 sum_columns(const T* x, const T* dy, const float* weights, int cols,
                              float2 statistics) {
  float2 c = make_float2(0.0f, 0.0f);
  for_columns(x, cols, [&]<int kCount>(int col) {
    float of_x[kCount];
    float of_dy[kCount];
    read_elements(x + col, of_x);
    read_elements(dy + col, of_dy);
    for (int k = 0; k < kCount; ++k) {
      const float xhat = xhat_from_x(of_x[k], statistics.x, statistics.y);
      const float wdy = weights[col + k] * of_dy[k];
      c.x += wdy * xhat;
      if (kKind == Kind::Layer) c.y += wdy;
    }
  });
  return c;
}

/// By columns: the words that a thread has in every `groups`-th row of a tile.
template <typename T>
struct OwnWords {
  static constexpr int kElements = 4 / static_cast<int>(sizeof(T));
  int groups;     ///< of rows, an even number
  int group;      ///< the rows group, group + groups, … are this thread's
  int first_col;  ///< of its first word: -1 in a row that starts inside a word
  int apart;      ///< columns from one of its words to the next

  __device__ explicit OwnWords(int cols) {
    const int words = (cols + kElements - 1) / kElements;  // that a row lies in
    groups = min(max(kThreads / words / 2, 1) * 2, kMostGroups);
    const int threads = min(words, kThreads / groups);
    group = threadIdx.x / threads;
    const bool inside = kElements == 2 && cols % 2 != 0 && group % 2 != 0;
    first_col = threadIdx.x % threads * kElements - (inside ? 1 : 0);
    apart = threads * kElements;
  }
  __device__ bool has(int i, int cols) const {
    return group < groups && first_col + i * apart < cols;
  }
};

/// Adds a thread's rows of a tile to dweight and dbias of a word's columns.
template <Kind kKind, typename T, int kCount>
__device__ void sum_rows(const T* x, const T* dy, const float2* statistics_of_row, int first_row,
                         int step, int rows, int cols, float (&dweight)[kCount],
                         float (&dbias)[kCount]) {
#pragma unroll 4
  for (int row = first_row; row < rows; row += step) {
    const float2 statistics = statistics_of_row[row];
    float of_x[kCount];
    float of_dy[kCount];
    read_elements(x + row * cols, of_x);
    read_elements(dy + row * cols, of_dy);
    for (int k = 0; k < kCount; ++k) {
      dweight[k] += of_dy[k] * xhat_from_x(of_x[k], statistics.x, statistics.y);
      if (kKind == Kind::Layer) dbias[k] += of_dy[k];
    }
  }
}

/// By rows: dx of some columns of a row, in place of x. c1 and c2 are scaled by rstd. xhat and wdy
/// are computed again: keeping half a row of 255 halves would take 256 registers.
template <typename T>
__device__ void put_dx(T* x, const T* dy, const float* weights, int cols, float2 statistics,
                       float2 scaled_c) {
  for_columns(x, cols, [&]<int kCount>(int col) {
    float dx[kCount];
    float of_dy[kCount];
    read_elements(x + col, dx);
    read_elements(dy + col, of_dy);
    for (int k = 0; k < kCount; ++k) {
      const float xhat = xhat_from_x(dx[k], statistics.x, statistics.y);
      const float wdy = weights[col + k] * of_dy[k];
      dx[k] = statistics.y * wdy - (xhat * scaled_c.x + scaled_c.y);
    }
    write_elements(x + col, dx);
  });
}

/// Requests a tile of x and one of dy; `full` completes when they arrive. In the last tile, or if a
/// tensor is unaligned, the threads load the rest themselves, after thread 0 has seen that the tile
/// is free. All threads of the block call it.
template <typename T>
__device__ void request_tiles(const Tile<T>& x_tile, const T* x, const Tile<T>& dy_tile,
                              const T* dy, Barrier& full) {
  if (threadIdx.x == 0) {
    wait_bulk_stores_read<0>();  // dx of the previous tile has been read
    full.arrive_and_expect(2 * x_tile.bytes_to_copy());
    x_tile.ask_for(x, full);
    dy_tile.ask_for(dy, full);
  }
  if (x_tile.to_copy == x_tile.elements) return;
  __syncthreads();
  x_tile.bring_rest(x);
  dy_tile.bring_rest(dy);
  __syncthreads();
}

/// Adds up the sums of all groups of rows in the tiles' shared memory, and stores the block's part.
/// All threads of the block call it.
template <bool kLayer, typename T, int kElements>
__device__ void store_sums_of_groups(const OwnWords<T>& words, int cols,
                                     const float (&dweight)[kThreadWords][kElements],
                                     const float (&dbias)[kThreadWords][kElements],
                                     const PartialSums& sums) {
  __syncthreads();
  auto* const of_groups = dynamic_shared<float2>();
#pragma unroll
  for (int i = 0; i < kThreadWords; ++i) {
    if (!words.has(i, cols)) break;
    for (int k = 0; k < kElements; ++k) {
      const int col = words.first_col + i * words.apart + k;
      if (col < 0 || col >= cols) continue;
      of_groups[words.group * cols + col] = make_float2(dweight[i][k], dbias[i][k]);
    }
  }
  __syncthreads();
  const int64_t part = blockIdx.x * int64_t{cols};
  for (int col = static_cast<int>(threadIdx.x); col < cols; col += kThreads) {
    float2 sum = make_float2(0.0f, 0.0f);
    for (int group = 0; group < words.groups; ++group) {
      const float2 of_group = of_groups[group * cols + col];
      sum.x += of_group.x;
      sum.y += of_group.y;
    }
    sums.dweight[part + col] = sum.x;
    if (kLayer) sums.dbias[part + col] = sum.y;
  }
}

/// A block has every gridDim.x-th tile of kTileRows rows. `at_boundary`: x, dy and dx start at
/// 16-byte boundaries, and so does each tile of them.
template <typename T, typename W, Kind kKind>
__global__ void __launch_bounds__(kThreads, kSmBlocks)
    layer_norm_backward(BackwardArgs<T, W> a, bool at_boundary, float inverse_cols,
                        PartialSums sums) {
  constexpr bool kLayer = kKind == Kind::Layer;
  constexpr int kElements = OwnWords<T>::kElements;
  __shared__ Barrier full;
  __shared__ float2 statistics_of_row[kTileRows];  // mean and rstd
  __shared__ float2 c_of_half[2][kTileRows];       // what half a row adds to c1 and c2
  const auto thread = static_cast<int>(threadIdx.x);
  const auto cols = static_cast<int>(a.cols);
  T* const x = dynamic_shared<T>();  // later dx
  T* const dy = x + kTileRows * cols;
  auto* const weights = reinterpret_cast<float*>(dy + kTileRows * cols);
  const HalfRow own(own_row_of_tile<T>(thread % kTileRows, cols), cols);
  const OwnWords<T> words(cols);

  if (thread == 0) {
    full.init(1);
    fence_barrier_init();
  }
  for (int col = thread; col < cols; col += kThreads) {
    weights[col] = a.weight != nullptr ? to_float(a.weight[col]) : 1.0f;
  }
  launch_dependents();  // of the kernel that adds up the partial sums
  float dweight[kThreadWords][kElements] = {};
  float dbias[kThreadWords][kElements] = {};
  __syncthreads();

  int parity = 0;
  const int64_t stride = int64_t{gridDim.x} * kTileRows;
  for (int64_t first_row = int64_t{blockIdx.x} * kTileRows; first_row < a.rows;
       first_row += stride) {
    const auto rows = static_cast<int>(min(a.rows - first_row, int64_t{kTileRows}));
    const int64_t start = first_row * cols;
    const Tile<T> x_tile(x, rows * cols, at_boundary);
    const Tile<T> dy_tile(dy, rows * cols, at_boundary);
    const bool has_row = own.row < rows;
    float2 statistics = make_float2(0.0f, 0.0f);
    if (kLayer && has_row) statistics.x = a.mean[first_row + own.row];
    if (has_row) statistics.y = a.rstd[first_row + own.row];
    request_tiles(x_tile, a.x + start, dy_tile, a.dy + start, full);
    full.wait(parity);
    parity ^= 1;

    T* const own_x = x + own.row * cols + own.first;
    const T* const own_dy = dy + own.row * cols + own.first;
    const float* const own_weights = weights + own.first;
    if (has_row) {
      if (thread < kTileRows) statistics_of_row[own.row] = statistics;
      c_of_half[thread / kTileRows][own.row] =
          sum_columns<kKind>(own_x, own_dy, own_weights, own.cols, statistics);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kThreadWords; ++i) {
      if (!words.has(i, cols) || a.dweight == nullptr) break;
      const int col = words.first_col + i * words.apart;
      sum_rows<kKind>(x + col, dy + col, statistics_of_row, words.group, words.groups, rows, cols,
                      dweight[i], dbias[i]);
    }
    __syncthreads();
    if (has_row) {
      const float2 c = c_of_half[0][own.row];
      const float2 other = c_of_half[1][own.row];
      const float scale = inverse_cols * statistics.y;
      const float2 scaled_c = make_float2((c.x + other.x) * scale, (c.y + other.y) * scale);
      put_dx(own_x, own_dy, own_weights, own.cols, statistics, scaled_c);
    }
    fence_proxy_async();
    __syncthreads();
    if (thread == 0) x_tile.take_away(a.dx + start);
    x_tile.take_rest(a.dx + start);
  }
  if (thread == 0) wait_bulk_stores_read<0>();

  if (a.dweight == nullptr) return;  // frozen parameters: no sums to store
  store_sums_of_groups<kLayer>(words, cols, dweight, dbias, sums);
}

template <Kind kKind, typename T, typename W>
void run_kind(const BackwardArgs<T, W>& a) {
  const auto kernel = layer_norm_backward<T, W, kKind>;
  const std::size_t tile_bytes = kTileRows * a.cols * sizeof(T);
  const std::size_t shared_bytes = 2 * tile_bytes + a.cols * sizeof(float);
  const bool at_boundary =
      start_in_vector(a.x) == 0 && start_in_vector(a.dy) == 0 && start_in_vector(a.dx) == 0;
  const int64_t most = most_blocks(a.group, resident_blocks(kernel, kThreads, shared_bytes));
  const int64_t blocks = std::min<int64_t>(most, blocks_for(a.rows, kTileRows));
  const PartialSums sums = partial_sums(a, blocks);
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  launch(kernel, {static_cast<unsigned>(blocks), kThreads, shared_bytes, a.stream}, a, at_boundary,
         inverse_cols, sums);
  add_partial_sums<EarlyStart, kMaxCols>(a, sums, blocks);
}

template <typename T, typename W>
void run(const BackwardArgs<T, W>& a) {
  with_kind(a.kind, [&](auto kind) { run_kind<kind()>(a); });
}

const Registration registration{{
    .id = "lib_bwd_tiles",
    .title = "Narrow unaligned rows in tiles, by rows and by columns",
    .teaches = "rows of up to 512 bytes that start anywhere, moved by the copy engine",
    .source = "this repository",
    .road = Road::Library,
    .usual_cols = 127,
    .takes_frozen = true,
    .group = "blocks",
    .min_architecture = 90,
    .max_row_bytes = kMostRowBytes,
    .max_row_bytes_because = "of wider rows too few have room in shared memory",
    .run = BackwardLaunchers::every([](const auto& args) { run(args); }),
    .predicted_bytes = least_bytes<Direction::Backward>,
    .workspace_bytes = [](const Problem& p) -> std::int64_t {
      return partial_sums_bytes(p, std::min(p.rows, most_blocks(p.group, kMostBlocks)));
    },
}};

}  // namespace lib_bwd_tiles
