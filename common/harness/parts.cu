// The parts of a fusion. If every tensor starts and every row ends on a 16-byte boundary, a part
// moves 16 bytes per access; otherwise it moves single elements, coalesced.
#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <string_view>
#include <utility>

#include "common/harness/parts.h"
#include "common/kernel/contract.h"
#include "common/kernel/launch.h"
#include "common/kernel/philox.h"
#include "common/kernel/types.h"
#include "common/kernel/vector.h"

namespace lnc {
namespace {

constexpr int kThreads = 256;

/// A block processes blockDim.y rows, or part of one row. A thread loads all its vectors before it
/// stores the first.
template <int kElements, int kVectors, typename Part>
__global__ void __launch_bounds__(kThreads)
    run_part(Part part, std::int64_t rows, std::int64_t cols, unsigned blocks_per_row) {
  const std::int64_t row = std::int64_t{blockIdx.x / blocks_per_row} * blockDim.y + threadIdx.y;
  if (row >= rows) return;
  // The vector's index has 32 bits: with 64, nvcc 13 no longer sees that the elements' addresses
  // are adjacent, and stores them one by one.
  const unsigned first = blockIdx.x % blocks_per_row * kVectors * blockDim.x + threadIdx.x;
  const auto column = [&](int i) { return std::int64_t{first + i * blockDim.x} * kElements; };
  decltype(part.template load<kElements>(0)) inputs[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (column(i) < cols) inputs[i] = part.template load<kElements>(row * cols + column(i));
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (column(i) < cols) part.store(inputs[i], row, column(i), row * cols + column(i));
  }
}

template <int kElements, int kVectors, typename Part>
void launch_part(const Part& part, std::int64_t rows, std::int64_t cols, cudaStream_t stream) {
  unsigned threads = 1;  // per row
  while (threads < kThreads && threads * kVectors * kElements < cols) threads *= 2;
  const unsigned blocks_per_row = blocks_for(cols, threads * kVectors * kElements);
  const unsigned rows_per_block = kThreads / threads;
  const unsigned blocks = blocks_for(rows, rows_per_block) * blocks_per_row;
  launch(run_part<kElements, kVectors, Part>, {blocks, dim3(threads, rows_per_block), 0, stream},
         part, rows, cols, blocks_per_row);
}

template <int kElements, typename T>
__device__ Vector<T, kElements> load_vector(const T* from) {
  return *reinterpret_cast<const Vector<T, kElements>*>(from);
}
template <int kElements, typename T>
__device__ void store_vector(T* to, const Vector<T, kElements>& vector) {
  *reinterpret_cast<Vector<T, kElements>*>(to) = vector;
}

bool on_boundaries(std::initializer_list<const void*> pointers) {  // null counts as aligned
  for (const void* pointer : pointers) {
    if (reinterpret_cast<std::uintptr_t>(pointer) % 16 != 0) return false;
  }
  return true;
}

/// y = x · a number for each row
template <typename T>
struct Scale {
  const T* x;
  const float* scale;
  T* y;

  bool aligned() const { return on_boundaries({x, y}); }
  template <int kElements>
  __device__ Vector<T, kElements> load(std::int64_t at) const {
    return load_vector<kElements>(x + at);
  }
  template <int kElements>
  __device__ void store(const Vector<T, kElements>& in, std::int64_t row, std::int64_t,
                        std::int64_t at) const {
    Vector<T, kElements> out;
    for (int k = 0; k < kElements; ++k) out.at[k] = from_float<T>(to_float(in.at[k]) * scale[row]);
    store_vector(y + at, out);
  }
};

/// y = x / (1 - p) if the mask is 1, otherwise 0
template <typename T>
struct Dropout {
  const T* x;
  const std::uint32_t* seeds;
  float p;
  T* y;
  std::uint8_t* mask;

  bool aligned() const { return on_boundaries({x, y, mask}); }
  template <int kElements>
  __device__ Vector<T, kElements> load(std::int64_t at) const {
    return load_vector<kElements>(x + at);
  }
  template <int kElements>
  __device__ void store(const Vector<T, kElements>& in, std::int64_t row, std::int64_t col,
                        std::int64_t at) const {
    Vector<T, kElements> out;
    Vector<std::uint8_t, kElements> kept;
    for (int k = 0; k < kElements; ++k) {
      kept.at[k] = triton_uniform(seeds[row], static_cast<std::uint32_t>(col + k)) > p;
      const float scaled = to_float(in.at[k]) * (1.0f / (1.0f - p));
      out.at[k] = from_float<T>(kept.at[k] ? scaled : 0.0f);
    }
    store_vector(y + at, out);
    store_vector(mask + at, kept);
  }
};

/// sum = a + b. R is the type of b and of a second copy of the sum, whose pointer may be null.
template <typename T, typename R>
struct Add {
  const T* a;
  const R* b;
  T* sum;
  R* sum_too;

  template <int kElements>
  struct Inputs {
    Vector<T, kElements> a;
    Vector<R, kElements> b;
  };

  bool aligned() const { return on_boundaries({a, b, sum, sum_too}); }
  template <int kElements>
  __device__ Inputs<kElements> load(std::int64_t at) const {
    return {load_vector<kElements>(a + at), load_vector<kElements>(b + at)};
  }
  template <int kElements>
  __device__ void store(const Inputs<kElements>& in, std::int64_t, std::int64_t,
                        std::int64_t at) const {
    Vector<T, kElements> out;
    Vector<R, kElements> too;
    for (int k = 0; k < kElements; ++k) {
      const float value = to_float(in.a.at[k]) + to_float(in.b.at[k]);
      out.at[k] = from_float<T>(value);
      too.at[k] = from_float<R>(value);
    }
    store_vector(sum + at, out);
    if (sum_too != nullptr) store_vector(sum_too + at, too);
  }
};

}  // namespace

bool has_parts(const Chapter& chapter, const Problem& problem) {
  constexpr std::string_view kTaken[] = {
      "x",        "weight",       "bias",    "y",     "mean",      "rstd",
      "rowscale", "seeds",        "x1",      "y1",    "rowscale1", "seeds1",
      "residual", "residual_out", "weight1", "bias1", "mask",      "mask1"};
  if (chapter.direction() != Direction::Forward || problem.fusion == Fusion{}) return false;
  const auto tensors = describe_tensors(problem, false);
  return std::all_of(tensors.begin(), tensors.end(), [&](const TensorDescription& tensor) {
    const bool taken =
        std::find(std::begin(kTaken), std::end(kTaken), tensor.name) != std::end(kTaken);
    return taken || !tensor.in(Direction::Forward);
  });
}

std::int64_t parts_scratch_bytes(const Problem& problem) {
  const std::int64_t masks = problem.fusion.dropout > 0.0f ? problem.rows * problem.cols : 0;
  return (1 + problem.fusion.second_input) * (problem.tensor_bytes() + masks);
}

Parts::Parts(const Chapter& chapter, const Tensors& tensors) {
  with_types(tensors.problem(), [&]<typename T, typename W>() {
    build(chapter, tensors.problem(), forward_args<T, W>(tensors));
  });
}

template <typename T, typename W>
void Parts::build(const Chapter& chapter, const Problem& problem, ForwardArgs<T, W> a) {
  const FusedForward<T, W> f = std::exchange(a.fused, {});
  for (int i = 0; i < 1 + problem.fusion.second_input; ++i) {
    branch_[i] = Buffer(problem.tensor_bytes());
    mask_[i] = Buffer(problem.fusion.dropout > 0.0f ? problem.rows * problem.cols : 0);
  }
  Problem plain = problem;
  plain.fusion = {};
  workspace_ = Buffer(chapter.workspace_bytes == nullptr ? 0 : chapter.workspace_bytes(plain));
  a.workspace = workspace_.as<void>();

  const auto add = [&](const auto& part, std::int64_t element_bytes, std::int64_t row_bytes) {
    const std::int64_t rows = a.rows;
    const std::int64_t cols = a.cols;
    predicted_bytes_ += rows * cols * element_bytes + rows * row_bytes;
    const bool aligned = cols % kVectorElements<T> == 0 && part.aligned();
    launches_.emplace_back([=, stream = a.stream] {
      if (aligned)
        launch_part<kVectorElements<T>, 2>(part, rows, cols, stream);
      else
        launch_part<1, 8>(part, rows, cols, stream);
    });
  };
  constexpr std::int64_t kT = sizeof(T);
  const auto branch = [&](const T* x, const float* scale, const std::uint32_t* seeds,
                          std::uint8_t* kept, T* out) {
    if (scale != nullptr) {
      add(Scale<T>{x, scale, out}, 2 * kT, 4);
      x = out;
    }
    if (seeds != nullptr) {
      add(Dropout<T>{x, seeds, f.dropout, out, kept}, 2 * kT + 1, 4);
      x = out;
    }
    return x;
  };
  const auto mask = [&](std::uint8_t* given, int i) {
    return given != nullptr ? given : mask_[i].as<std::uint8_t>();
  };
  // If residual_out has type T, it is the sum itself; otherwise it is a second copy, in float.
  const bool is_t = sizeof(T) == sizeof(float) || !f.residual_is_float;
  T* const sum =
      is_t && f.residual_out != nullptr ? static_cast<T*>(f.residual_out) : branch_[0].as<T>();
  a.x = branch(a.x, f.rowscale, f.seeds, mask(f.mask, 0), sum);
  if (f.x1 != nullptr) {
    const T* const x1 = branch(f.x1, f.rowscale1, f.seeds1, mask(f.mask1, 1), branch_[1].as<T>());
    add(Add<T, T>{a.x, x1, sum, nullptr}, 3 * kT, 0);
    a.x = sum;
  }
  if (f.residual != nullptr && is_t) {
    const auto* const residual = static_cast<const T*>(f.residual);
    add(Add<T, T>{a.x, residual, sum, nullptr}, 3 * kT, 0);
    a.x = sum;
  } else if (f.residual != nullptr) {
    const auto* const residual = static_cast<const float*>(f.residual);
    auto* const too = static_cast<float*>(f.residual_out);
    const std::int64_t element_bytes = 2 * kT + (too == nullptr ? 4 : 8);
    add(Add<T, float>{a.x, residual, sum, too}, element_bytes, 0);
    a.x = sum;
  }

  const auto norm = std::get<ForwardLaunchers>(chapter.run).get<T, W>();
  const auto add_norm = [&] {
    predicted_bytes_ += chapter.predicted_bytes(plain, device().gpu);
    launches_.emplace_back([norm, a] { norm(a); });
  };
  add_norm();
  if (f.y1 != nullptr) {
    a.weight = f.weight1;
    a.bias = f.bias1;
    a.y = f.y1;
    add_norm();
  }
}

}  // namespace lnc
