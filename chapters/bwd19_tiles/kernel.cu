// bwd19 · Narrow rows that start anywhere, by rows and by columns
//
// bwd14 takes rows of 65 halves element by element. Here a block has a tile of rows of x and one of
// dy, which the copy engine brings, and it takes dx away, as fwd15 does with y. A tile in shared
// memory is walked over three times: by rows for c1 and c2, a thread a row; by columns for dweight
// and dbias, a thread a column; and by rows again for dx. No lane adds up anything with another.
//
// It should run at the speed of a triad: 3·M·N elements, each moved once.
#include "common/kernel/chapter.h"
#include "common/kernel/gradient_terms.h"
#include "common/kernel/hopper.h"
#include "common/kernel/partial_sums.h"
#include "common/kernel/tile.h"

namespace bwd19 {
using namespace lnc;

constexpr int kThreads = 128;
constexpr int kMostBlocks = 2048 / kThreads;  // that a multiprocessor has threads for
constexpr int kMostRowBytes = 512;
constexpr int kMaxCols = kMostRowBytes / 2;
constexpr int kThreadCols = kMaxCols / kThreads;  // columns of a thread, at most
constexpr int kSpareBytes = 4 << 10;              // for what is static, and the weight

/// What dx of a row is made of, beside x, dy and weight.
struct RowTerms {
  float mean;
  float rstd;
  float scaled_c1;  ///< c1 · rstd
  float scaled_c2;
};

/// [1] By rows: c1 and c2 of a row.
template <Kind kKind, typename T>
__device__ void sum_row(const T* x, const T* dy, const float* weights, int cols, float inverse_cols,
                        RowTerms& terms) {
  float2 c = make_float2(0.0f, 0.0f);
#pragma unroll 8
  for (int col = 0; col < cols; ++col) {
    const float xhat = xhat_from_x(to_float(x[col]), terms.mean, terms.rstd);
    const float wdy = weights[col] * to_float(dy[col]);
    c.x += wdy * xhat;
    if (kKind == Kind::Layer) c.y += wdy;
  }
  terms.scaled_c1 = c.x * inverse_cols * terms.rstd;
  terms.scaled_c2 = c.y * inverse_cols * terms.rstd;
}

/// [2] By columns: what a tile's rows add to dweight and dbias of a column.
template <Kind kKind, typename T>
__device__ void sum_column(const T* x, const T* dy, const float2* statistics_of_row, int rows,
                           int cols, float& dweight, float& dbias) {
#pragma unroll 8
  for (int row = 0; row < rows; ++row) {
    const float2 statistics = statistics_of_row[row];
    const float of_dy = to_float(dy[row * cols]);
    dweight += of_dy * xhat_from_x(to_float(x[row * cols]), statistics.x, statistics.y);
    if (kKind == Kind::Layer) dbias += of_dy;
  }
}

/// [3] By rows: dx of a row, in place of x.
template <typename T>
__device__ void put_dx(T* x, const T* dy, const float* weights, int cols, const RowTerms& terms) {
#pragma unroll 8
  for (int col = 0; col < cols; ++col) {
    const float xhat = xhat_from_x(to_float(x[col]), terms.mean, terms.rstd);
    const float wdy = weights[col] * to_float(dy[col]);
    const float dx = terms.rstd * wdy - (xhat * terms.scaled_c1 + terms.scaled_c2);
    x[col] = from_float<T>(dx);
  }
}

/// A block has every gridDim.x-th tile of `tile_rows` rows: 128, one for each thread, or 64.
/// `at_boundary`: x, dy and dx start at 16-byte boundaries, and so does each tile of them.
template <typename T, typename W, Kind kKind>
__global__ void __launch_bounds__(kThreads)
    layer_norm_backward(BackwardArgs<T, W> a, int tile_rows, bool at_boundary, float inverse_cols,
                        PartialSums sums) {
  constexpr bool kLayer = kKind == Kind::Layer;
  __shared__ Barrier full;
  __shared__ float2 statistics_of_row[kThreads];  // mean and rstd
  const auto thread = static_cast<int>(threadIdx.x);
  const auto cols = static_cast<int>(a.cols);
  T* const x = dynamic_shared<T>();  // later dx
  T* const dy = x + tile_rows * cols;
  auto* const weights = reinterpret_cast<float*>(dy + tile_rows * cols);
  const int own_row = own_row_of_tile<T>(cols);

  if (thread == 0) {
    full.init(1);
    fence_barrier_init();
  }
  for (int col = thread; col < cols; col += kThreads) {
    weights[col] = a.weight != nullptr ? to_float(a.weight[col]) : 1.0f;
  }
  launch_dependents();  // [4]
  float dweight[kThreadCols] = {};
  float dbias[kThreadCols] = {};
  __syncthreads();

  int parity = 0;
  const int64_t stride = int64_t{gridDim.x} * tile_rows;
  for (int64_t first_row = int64_t{blockIdx.x} * tile_rows; first_row < a.rows;
       first_row += stride) {
    const auto rows = static_cast<int>(min(a.rows - first_row, int64_t{tile_rows}));
    const int64_t start = first_row * cols;
    const Tile<T> x_tile(x, rows * cols, at_boundary);
    const Tile<T> dy_tile(dy, rows * cols, at_boundary);
    if (thread == 0) {
      wait_bulk_stores_read<0>();  // [5] dx of the tile before
      full.arrive_and_expect(2 * x_tile.bytes_to_copy());
      x_tile.ask_for(a.x + start, full);
      dy_tile.ask_for(a.dy + start, full);
    }
    const bool has_row = own_row < rows;
    RowTerms terms{};
    if (kLayer && has_row) terms.mean = a.mean[first_row + own_row];
    if (has_row) terms.rstd = a.rstd[first_row + own_row];
    if (x_tile.to_copy < x_tile.elements) {  // [6]
      __syncthreads();
      x_tile.bring_rest(a.x + start);
      dy_tile.bring_rest(a.dy + start);
      __syncthreads();
    }
    full.wait(parity);
    parity ^= 1;

    T* const x_row = x + own_row * cols;
    const T* const dy_row = dy + own_row * cols;
    if (has_row) {
      sum_row<kKind>(x_row, dy_row, weights, cols, inverse_cols, terms);
      statistics_of_row[own_row] = make_float2(terms.mean, terms.rstd);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kThreadCols; ++i) {
      const int col = thread + i * kThreads;
      if (col >= cols || a.dweight == nullptr) break;
      sum_column<kKind>(x + col, dy + col, statistics_of_row, rows, cols, dweight[i], dbias[i]);
    }
    __syncthreads();
    if (has_row) put_dx(x_row, dy_row, weights, cols, terms);
    fence_proxy_async();
    __syncthreads();
    if (thread == 0) x_tile.take_away(a.dx + start);
    x_tile.take_rest(a.dx + start);
  }
  if (thread == 0) wait_bulk_stores_read<0>();

  if (a.dweight == nullptr) return;  // frozen parameters: nobody wants the sums
  const int64_t part = blockIdx.x * a.cols;
#pragma unroll
  for (int i = 0; i < kThreadCols; ++i) {
    const int col = thread + i * kThreads;
    if (col >= cols) break;
    sums.dweight[part + col] = dweight[i];
    if (kLayer) sums.dbias[part + col] = dbias[i];
  }
}

/// [7] A row for each thread where three blocks with such tiles share a multiprocessor, else for
/// every second one.
int rows_of_tile(int64_t row_bytes) {
  const int64_t room = (max_shared_bytes() / 3 - kSpareBytes) / (2 * row_bytes);
  return room >= kThreads ? kThreads : kThreads / 2;
}

/// As many blocks as the GPU has places for, or as --blocks says.
int64_t most_blocks(int group, int places) {
  return group > 0 ? group : int64_t{multiprocessors()} * places;
}

template <Kind kKind, typename T, typename W>
void run_kind(const BackwardArgs<T, W>& a) {
  const auto kernel = layer_norm_backward<T, W, kKind>;
  const int tile_rows = rows_of_tile(a.cols * sizeof(T));
  const std::size_t tile_bytes = tile_rows * a.cols * sizeof(T);
  const std::size_t shared_bytes = 2 * tile_bytes + a.cols * sizeof(float);
  const bool at_boundary =
      start_in_vector(a.x) == 0 && start_in_vector(a.dy) == 0 && start_in_vector(a.dx) == 0;
  const int64_t most = most_blocks(a.group, resident_blocks(kernel, kThreads, shared_bytes));
  const int64_t blocks = std::min<int64_t>(most, blocks_for(a.rows, tile_rows));
  const PartialSums sums = partial_sums(a, blocks);
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  launch(kernel, {static_cast<unsigned>(blocks), kThreads, shared_bytes, a.stream}, a, tile_rows,
         at_boundary, inverse_cols, sums);
  add_partial_sums<EarlyStart, kMaxCols>(a, sums, blocks);  // [4]
}

template <typename T, typename W>
void run(const BackwardArgs<T, W>& a) {
  if (a.kind == Kind::Layer) {
    run_kind<Kind::Layer>(a);
  } else {
    run_kind<Kind::Rms>(a);
  }
}

const Registration registration{{
    .id = "bwd19",
    .title = "Narrow rows that start anywhere, by rows and by columns",
    .teaches = "a tile in shared memory is walked over by rows, and by columns",
    .source = "this repository",
    .parent = "bwd14",
    .road = Road::NarrowRows,
    .usual_cols = 127,
    .takes_frozen = true,
    .group = "blocks",
    .min_architecture = 90,
    .max_row_bytes = kMostRowBytes,
    .max_row_bytes_because = "of wider rows too few have room in shared memory",
    .run = BackwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>, run<__half, float>,
                             run<__nv_bfloat16, float>},
    .predicted_bytes = [](const Problem& p, const Gpu&) -> std::int64_t {
      return 3 * p.tensor_bytes() + parameter_bytes(p);
    },
    .workspace_bytes = [](const Problem& p) -> std::int64_t {
      return partial_sums_bytes(p, std::min(p.rows, most_blocks(p.group, kMostBlocks)));
    },
}};

}  // namespace bwd19
