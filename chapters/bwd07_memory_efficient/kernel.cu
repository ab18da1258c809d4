// bwd07 · Gradients from y
//
// bwd09 reads x and mean only to compute xhat. But the layer that reads y keeps y in any case, and
// xhat = (y - bias) / weight. So x and mean can be freed. The price is accuracy: dividing by a
// small weight magnifies the rounding error of y.
//
// It should take hardly more time than bwd09: y replaces x, byte for byte. The kernel also needs
// bias and 1 / weight, which a block keeps in shared memory. If a thread loaded the bias from L1
// for each row, it would wait for the next row's loads too; the lesson shows that in the machine
// code.
#include "common/kernel/chapter.h"
#include "common/kernel/partial_sums.h"
#include "common/kernel/reduce.h"
#include "common/kernel/vector.h"

namespace bwd07 {
using namespace lnc;

constexpr int kThreads = 256;
constexpr int kBlocks = 2;   // on a multiprocessor, as in bwd09
constexpr int kVectors = 2;  // of 16 bytes, that a thread has of a row

/// What a thread has of one row.
template <typename T>
struct Row {
  Packed<T, kVectorElements<T>> y[kVectors];
  Packed<T, kVectorElements<T>> dy[kVectors];
  float rstd;
};

// exercise
/// 1 / weight, after a magnitude below `least` is raised to it. 0 if it is then still below every
/// normal float, which only a `least` near 0 allows.
__device__ inline float inverse_of(float weight, float least) {
  const float clamped = copysignf(fmaxf(fabsf(weight), least), weight);  // [1]
  constexpr float kLeastNormal = 0x1p-126f;
  return fabsf(clamped) < kLeastNormal ? 0.0f : 1.0f / clamped;
}
// end of exercise

/// bwd09's kernel with y in place of x and mean: the numbers mark what changes.
template <typename T>
__global__ void __launch_bounds__(kThreads, kBlocks)
    layer_norm_backward(BackwardArgs<T> a, PartialSums sums) {
  // exercise
  constexpr int kElements = kVectorElements<T>;
  const auto col = [](int i) { return static_cast<int>(i * kThreads + threadIdx.x) * kElements; };
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);

  __shared__ float inverse_weight[kVectors][kElements][kThreads];  // [2]
  __shared__ float bias[kVectors][kElements][kThreads];
  Packed<T, kElements> weight[kVectors];
  for (int i = 0; i < kVectors; ++i) {
    weight[i] = load_if<kElements>(col(i) < a.cols, a.weight, col(i));
    float of_weight[kElements];
    to_floats(weight[i], of_weight);
    for (int k = 0; k < kElements; ++k) {
      inverse_weight[i][k][threadIdx.x] = inverse_of(of_weight[k], a.eps);
    }
    float of_bias[kElements];
    to_floats(load_if<kElements>(col(i) < a.cols, a.bias, col(i)), of_bias);
    for (int k = 0; k < kElements; ++k) {
      bias[i][k][threadIdx.x] = of_bias[k];
    }
  }
  float dweight[kVectors][kElements] = {};
  float dbias[kVectors][kElements] = {};

  const auto load = [&](int64_t row) {
    Row<T> loaded;
    for (int i = 0; i < kVectors; ++i) {
      loaded.y[i] = load_if<kElements>(col(i) < a.cols, a.y, row * a.cols + col(i));  // [3]
      loaded.dy[i] = load_if<kElements>(col(i) < a.cols, a.dy, row * a.cols + col(i));
    }
    loaded.rstd = a.rstd[row];
    return loaded;
  };

  Row<T> next = load(blockIdx.x);
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const Row<T> now = next;
    if (row + gridDim.x < a.rows) next = load(row + gridDim.x);

    float xhat[kVectors][kElements];
    float wdy[kVectors][kElements];
    float2 c = make_float2(0.0f, 0.0f);
    for (int i = 0; i < kVectors; ++i) {
      float y[kElements];
      float dy[kElements];
      to_floats(now.y[i], y);
      to_floats(now.dy[i], dy);
      to_floats(weight[i], wdy[i]);
      for (int k = 0; k < kElements; ++k) {
        const float centred = y[k] - bias[i][k][threadIdx.x];      // [4]
        xhat[i][k] = centred * inverse_weight[i][k][threadIdx.x];  // [5]
        wdy[i][k] *= dy[k];
        c.x += dy[k] * centred;  // [6] wdy · xhat: the weight cancels out
        c.y += wdy[i][k];
        dweight[i][k] += dy[k] * xhat[i][k];
        dbias[i][k] += dy[k];
      }
    }
    c = block_sum<kThreads>(c);
    const float c1 = c.x * inverse_cols;
    const float c2 = c.y * inverse_cols;

    for (int i = 0; i < kVectors; ++i) {
      float dx[kElements];
      for (int k = 0; k < kElements; ++k) {
        dx[k] = now.rstd * (wdy[i][k] - c2 - xhat[i][k] * c1);
      }
      if (col(i) < a.cols) store(a.dx, row * a.cols + col(i), dx);
    }
  }

  for (int i = 0; i < kVectors; ++i) {
    if (col(i) >= a.cols) continue;
    store(sums.dweight, blockIdx.x * a.cols + col(i), dweight[i]);
    store(sums.dbias, blockIdx.x * a.cols + col(i), dbias[i]);
  }
}

/// The fewest blocks with which no block has more rows than if the GPU were full.
int64_t blocks_of(int64_t rows) {
  const int64_t rows_per_block = std::max(blocks_for(rows, kBlocks * multiprocessors()), 1u);
  return blocks_for(rows, rows_per_block);
}

template <typename T>
void run(const BackwardArgs<T>& a) {
  const int64_t blocks = blocks_of(a.rows);
  const PartialSums sums = partial_sums(a, blocks);
  launch(layer_norm_backward<T>, {static_cast<unsigned>(blocks), kThreads, 0, a.stream}, a, sums);
  add_partial_sums(a, sums, blocks);
}

const Registration registration{{
    .id = "bwd07",
    .title = "Gradients from y",
    .teaches = "keep y instead of x; what that does to the digits",
    .source = "NVIDIA Apex",
    .parent = "bwd09",
    .road = Road::Numerics,
    .kinds = {Kind::Layer},
    .needs_affine = true,
    .needs_aligned = true,
    .from_y = true,
    .max_row_bytes = kThreads * kVectors * 16,
    .max_row_bytes_because = "a thread keeps two vectors of 16 bytes in registers",
    .run = BackwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>},
    .predicted_bytes = [](const Problem& p, const Gpu&) -> std::int64_t {
      const std::int64_t mean_bytes = 4 * p.rows;  // which is not read
      return 3 * p.tensor_bytes() + parameter_bytes(p) - mean_bytes;
    },
    .workspace_bytes = [](const Problem& p) -> std::int64_t {
      return partial_sums_bytes(p, blocks_of(p.rows));
    },
}};

}  // namespace bwd07
