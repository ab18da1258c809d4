// fwd15 · Narrow rows that start anywhere, a tile at a time
//
// fwd10 needs rows of whole vectors. A row of 65 halves may start at any element, and if lanes load
// it element by element, a request brings 64 bytes where it could bring 512. Here a block has a
// tile of 128 neighbouring rows, which starts at a 16-byte boundary. The copy engine brings the
// tile to shared memory with one request, and stores it with another. In shared memory a row may
// start anywhere, so each thread can process a row of its own, as in fwd01.
//
// It should cost what a copy costs: 2·M·N elements, each moved once, and 8 bytes of statistics per
// row; the walks over shared memory should hide behind other blocks' copies. If rows start at
// 16-byte boundaries, lanes conflict in the banks: fwd10 handles such rows.
#include "common/kernel/chapter.h"
#include "common/kernel/hopper.h"
#include "common/kernel/vector.h"

namespace fwd15 {
using namespace lnc;

constexpr int kTileRows = 128;  // [1] a row for each thread of a block
constexpr int kAtOnce = 4;      // columns of which y is made at a time

template <typename T>
__global__ void __launch_bounds__(kTileRows) layer_norm_forward(ForwardArgs<T> a) {
  // exercise
  __shared__ Barrier full;
  const int thread = static_cast<int>(threadIdx.x);
  const int cols = static_cast<int>(a.cols);
  const int64_t first_row = int64_t{blockIdx.x} * kTileRows;
  const int rows = static_cast<int>(min(a.rows - first_row, int64_t{kTileRows}));
  const T* from_x = a.x + first_row * cols;  // [2] at a 16-byte boundary, wherever rows start
  T* to_y = a.y + first_row * cols;
  T* tile = dynamic_shared<T>();
  auto* affine = reinterpret_cast<float2*>(tile + kTileRows * cols);

  constexpr int kVector = kVectorElements<T>;
  const int elements = rows * cols;
  const int copied = elements / kVector * kVector;  // [3] by the copy engine
  const auto bytes = static_cast<unsigned>(copied * sizeof(T));

  if (thread == 0) {
    full.init(1);
    fence_barrier_init();
    full.arrive_and_expect(bytes);
    if (bytes > 0) bulk_load(tile, from_x, bytes, full);  // [4]
  }

  for (int i = copied + thread; i < elements; i += kTileRows) tile[i] = from_x[i];
  for (int col = thread; col < cols; col += kTileRows) {
    affine[col] = make_float2(to_float(a.weight[col]), to_float(a.bias[col]));  // [5]
  }
  __syncthreads();
  full.wait(0);  // the tile is here

  constexpr int kHalf = kTileRows / 2;
  const bool even_rows_first = sizeof(T) == 2 && cols % 2 == 1;  // [6] 32 banks for 32 lanes
  const int row = even_rows_first ? 2 * (thread % kHalf) + thread / kHalf : thread;

  if (row < rows) {
    T* x = tile + row * cols;
    const float inverse_cols = 1.0f / static_cast<float>(cols);
    float sum = 0.0f;  // [7] from here on as in fwd01
    for (int col = 0; col < cols; ++col) {
      sum += to_float(x[col]);
    }
    const float mean = sum * inverse_cols;

    float squares = 0.0f;
    for (int col = 0; col < cols; ++col) {
      const float centred = to_float(x[col]) - mean;
      squares += centred * centred;
    }
    const float rstd = rsqrtf(squares * inverse_cols + a.eps);

    for (int first = 0; first < cols; first += kAtOnce) {  // [8]
      float y[kAtOnce];
      for (int k = 0; k < kAtOnce; ++k) {
        if (first + k >= cols) continue;
        const float2 of_column = affine[first + k];
        const float xhat = (to_float(x[first + k]) - mean) * rstd;
        y[k] = xhat * of_column.x + of_column.y;
      }
      for (int k = 0; k < kAtOnce; ++k) {
        if (first + k < cols) x[first + k] = from_float<T>(y[k]);
      }
    }
    a.mean[first_row + row] = mean;
    a.rstd[first_row + row] = rstd;
  }

  fence_proxy_async();  // [9]
  __syncthreads();
  for (int i = copied + thread; i < elements; i += kTileRows) to_y[i] = tile[i];
  if (thread == 0 && bytes > 0) {
    bulk_store(to_y, tile, bytes);
    commit_bulk_stores();
    wait_bulk_stores_read<0>();  // [10] the tile must live until it is read
  }
}

template <typename T>
void run(const ForwardArgs<T>& a) {
  const std::size_t shared_bytes = a.cols * (kTileRows * sizeof(T) + sizeof(float2));
  launch(layer_norm_forward<T>, {blocks_for(a.rows, kTileRows), kTileRows, shared_bytes, a.stream},
         a);
}

const Registration registration{{
    .id = "fwd15",
    .title = "Narrow rows that start anywhere, a tile at a time",
    .teaches = "the copy engine moves whole tiles; in shared memory a row may start anywhere",
    .source = "this repository",
    .parent = "fwd10",
    .road = Road::NarrowRows,
    .usual_cols = 127,
    .kinds = {Kind::Layer},
    .needs_affine = true,
    .needs_same_alignment = true,
    .min_architecture = 90,
    .max_row_bytes = 512,
    .max_row_bytes_because = "blocks of wider rows leave room for too few of them",
    .run = ForwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>},
    .predicted_bytes = [](const Problem& p, const Gpu&) -> std::int64_t {
      return 2 * p.tensor_bytes() + parameter_bytes(p);
    },
}};

}  // namespace fwd15
