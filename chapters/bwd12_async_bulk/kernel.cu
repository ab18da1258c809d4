// bwd12 · Bulk copies in a ring, an early last sum
//
// A thread of bwd09 fetches x and dy of its next row itself: registers wait for them, and one row
// ahead is all that fits there. Here the copy engine brings rows to a ring in shared memory, as in
// fwd08, several rows ahead; registers hold weight, dweight, dbias and the rows at work, as many as
// a block has threads for. The kernel that adds up the blocks' sums is launched meanwhile.
//
// It should run at the speed of a triad: 3·M·N elements, each moved once.
#include "common/kernel/bulk_rows.h"
#include "common/kernel/chapter.h"
#include "common/kernel/columns.h"
#include "common/kernel/gradient_terms.h"
#include "common/kernel/partial_sums.h"
#include "common/kernel/reduce.h"
#include "common/kernel/vector.h"

namespace bwd12 {
using namespace lnc;

constexpr int kMinThreads = 256;  // [1] of a block
constexpr int kMaxThreads = 1024;
constexpr int kBlocks = 2;
constexpr int kColumns = 16;  // [2] of a thread
constexpr int kFewColumns = 8;
constexpr int kFewFrom = 512;
constexpr int kMaxStages = 3;  // [3] of a block's ring
constexpr int kSpareBytes = 10 << 10;
constexpr bool kEarlySum = true;  // [4]
constexpr int kSumThreads = 512;  // [5]
constexpr int kSumColumns = 16;
constexpr int kSumBatch = 9;
constexpr int64_t kSmallBytes = 12 << 20;  // [6] of a tensor
template <int kRowThreads>
constexpr int kBlockThreads = kRowThreads < kMinThreads ? kMinThreads : kMaxThreads;
template <int kRowThreads>
constexpr int kPlaces = kRowThreads < kMinThreads ? kBlocks : 1;  // of them on a multiprocessor

/// A block takes kRows neighbouring rows at a time, then those gridDim.x · kRows further on. A slot
/// holds these of x, then these of dy, each in slot_vectors vectors. `sums`: [blocks, 2, padded],
/// or [blocks, 1, padded] for Kind::Rms, which has no dbias.
template <typename T, typename W, int kRowThreads, int kVectors, bool kAligned>
__global__ void __launch_bounds__(kBlockThreads<kRowThreads>, kPlaces<kRowThreads>)
    layer_norm_backward(BackwardArgs<T, W> a, int stages, int slot_vectors, int padded,
                        float inverse_cols, L2Policy policy, float* sums) {
  constexpr int kThreads = kBlockThreads<kRowThreads>;
  constexpr int kRows = kThreads / kRowThreads;
  constexpr int kElements = kVectorElements<T>;
  constexpr bool kKept = kRows > 1 || kVectors * kElements <= kFewColumns;  // [7]
  __shared__ Barrier full[kMaxStages];
  const int in_slot = threadIdx.x / kRowThreads;
  const int thread = threadIdx.x % kRowThreads;
  const BulkRows<T, kAligned> x_rows{a.x, a.rows, a.cols};
  const BulkRows<T, kAligned> dy_rows{a.dy, a.rows, a.cols};
  const int dy_at = kRows * slot_vectors;
  Ring<T> ring{dynamic_shared<Packed<T, kElements>>(), 2 * dy_at, stages, full};
  const int ahead = kKept ? stages : stages - 1;
  const int64_t first_row = int64_t{blockIdx.x} * kRows;
  const int64_t stride = int64_t{gridDim.x} * kRows;
  const auto request = [&](int64_t row, int stage) {
    if (row >= a.rows) return;
    Barrier& arrived = full[stage];
    auto* const x_slot = ring.slot(stage);
    auto* const dy_slot = x_slot + dy_at;
    const unsigned x_bytes = x_rows.load_rows(row, kRows, slot_vectors, x_slot, arrived, policy);
    const unsigned dy_bytes = dy_rows.load_rows(row, kRows, slot_vectors, dy_slot, arrived, policy);
    arrived.arrive_and_expect(x_bytes + dy_bytes);  // [8]
  };
  const auto columns = [&](int i) {
    return Columns<T, kAligned>(nullptr, i * kRowThreads + thread, a.cols);
  };

  if (threadIdx.x == 0) {
    ring.fill([&](int i) {
      if (i < ahead) request(first_row + i * stride, i);
    });
  }
  if (kEarlySum) launch_dependents();
  const bool layer = a.kind == Kind::Layer;
  const auto mean_of = [&](int64_t row) { return row < a.rows && layer ? a.mean[row] : 0.0f; };
  const auto rstd_of = [&](int64_t row) { return row < a.rows ? a.rstd[row] : 0.0f; };
  float next_mean = mean_of(first_row + in_slot);  // [9]
  float next_rstd = rstd_of(first_row + in_slot);
  Packed<W, kElements> weight[kVectors];
  Vector<float, kElements> dweight[kVectors] = {};
  Vector<float, kElements> dbias[kVectors] = {};
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    weight[i] = columns(i).load_or(1.0f, a.weight);
  }
  __syncthreads();

  int turn = 0;
  for (int64_t first = first_row; first < a.rows; first += stride) {
    const int64_t row = first + in_slot;
    const bool there = kRows == 1 || row < a.rows;  // [10]
    const float mean = next_mean;
    const float rstd = next_rstd;
    next_mean = mean_of(row + stride);
    next_rstd = rstd_of(row + stride);
    const auto* const x_slots = ring.wait() + in_slot * slot_vectors;
    const auto* const dy_slots = x_slots + dy_at;
    const auto make_terms = [&](int i) {
      if (!kKept) weight[i] = columns(i).load_or(1.0f, a.weight);
      stay_packed(weight[i]);
      const int col = static_cast<int>(columns(i).first);
      const auto x = x_rows.take_columns(there, row, col, x_slots);
      const auto dy = dy_rows.take_columns(there, row, col, dy_slots);
      return GradientTerms<kElements>(x, dy, weight[i], mean, rstd);
    };
    GradientTerms<kElements> terms[kVectors];
    float2 c = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      terms[i] = make_terms(i);
      terms[i].add_to(c);
      for (int k = 0; k < kElements; ++k) {
        dweight[i].at[k] += terms[i].dy[k] * terms[i].xhat[k];
        dbias[i].at[k] += terms[i].dy[k];
      }
    }
    c = row_sums<kThreads, kRowThreads>(c, turn);
    if (kRowThreads == kWarpSize) __syncthreads();
    if (threadIdx.x == 0) {
      const int free_stage = kKept ? ring.stage : ring.before();  // [11]
      request(first + ahead * stride, free_stage);
    }
    ring.advance();
    const float c1 = c.x * inverse_cols * rstd;
    const float c2 = layer ? c.y * inverse_cols * rstd : 0.0f;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if constexpr (!kKept) terms[i] = make_terms(i);
      float dx[kElements];
      for (int k = 0; k < kElements; ++k) {
        dx[k] = rstd * terms[i].wdy[k] - (terms[i].xhat[k] * c1 + c2);
      }
      if (there) columns(i).store(a.dx + row * a.cols, dx);
    }
    turn ^= 1;
  }

  const int width = layer ? 2 * padded : padded;  // dweight, and dbias where there is one
  float* const of_block = sums + blockIdx.x * int64_t{width};
  float* const of_rows = kRows > 1 ? dynamic_shared<float>() : of_block;  // [12]
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (!columns(i).any()) continue;
    float* const to = of_rows + in_slot * width + columns(i).first;
    *reinterpret_cast<Vector<float, kElements>*>(to) = dweight[i];
    if (layer) *reinterpret_cast<Vector<float, kElements>*>(to + padded) = dbias[i];
  }
  if (kRows == 1) return;
  __syncthreads();
  for (int at = threadIdx.x * 4; at < width; at += kThreads * 4) {
    Vector<float, 4> sum = {};
    for (int of_row = 0; of_row < kRows; ++of_row) {
      const auto part = *reinterpret_cast<Vector<float, 4>*>(of_rows + of_row * width + at);
      for (int k = 0; k < 4; ++k) {
        sum.at[k] += part.at[k];
      }
    }
    *reinterpret_cast<Vector<float, 4>*>(of_block + at) = sum;
  }
}

/// Adds up the blocks' sums: a block has kSumColumns of `width` columns, a thread some blocks' one.
/// A column from `padded` on is one of dbias.
template <typename W>
__global__ void __launch_bounds__(kSumThreads)
    add_blocks(const float* sums, int blocks, int padded, int width, W* dweight, W* dbias,
               int64_t cols) {
  constexpr int kGroups = kSumThreads / kSumColumns;
  __shared__ float of_group[kGroups][kSumColumns];
  const int in_block = threadIdx.x % kSumColumns;
  const int group = threadIdx.x / kSumColumns;
  const int column = blockIdx.x * kSumColumns + in_block;
  const float* from = sums + int64_t{group} * width + min(column, width - 1);
  float sum = 0.0f;
  grid_dependency_wait();  // [13]
  for (int left = blocks - group; left > 0; left -= kGroups * kSumBatch) {
    float part[kSumBatch];
#pragma unroll
    for (int i = 0; i < kSumBatch; ++i) {
      const int block = min(i * kGroups, left - 1);  // [14]
      part[i] = from[block * width];
    }
#pragma unroll
    for (int i = 0; i < kSumBatch; ++i) {
      sum += i * kGroups < left ? part[i] : 0.0f;
    }
    from += int64_t{kGroups * kSumBatch} * width;
  }
  of_group[group][in_block] = sum;
  __syncthreads();
  if (group > 0 || column >= width) return;
  for (int other = 1; other < kGroups; ++other) {
    sum += of_group[other][in_block];
  }
  W* const to = column < padded ? dweight : dbias;
  const int col = column < padded ? column : column - padded;
  if (col < cols) to[col] = from_float<W>(sum);
}

/// The columns of a row in whole vectors.
int64_t padded_columns(int64_t cols, int64_t elements) {
  return blocks_for(cols, elements) * elements;
}

template <bool kAligned, int kRowThreads, int kVectors, typename T, typename W>
void launch_rows(const BackwardArgs<T, W>& a) {
  constexpr int kThreads = kBlockThreads<kRowThreads>;
  constexpr int kRows = kThreads / kRowThreads;
  constexpr int kElements = kVectorElements<T>;
  const auto padded = static_cast<int>(padded_columns(a.cols, kElements));
  // A row that starts anywhere may share its first vector with its neighbour, and its last.
  const int slot_vectors = padded / kElements + (kAligned ? 0 : 1);
  const int stage_bytes = 2 * kRows * slot_vectors * 16;
  const int room = (max_shared_bytes() - kSpareBytes) / kPlaces<kRowThreads> / stage_bytes;
  const int stages = std::clamp(room, 2, kMaxStages);
  const std::size_t shared_bytes = std::size_t(stages) * stage_bytes;
  const unsigned most = a.group > 0 ? a.group : multiprocessors() * kPlaces<kRowThreads>;
  const unsigned blocks = std::min(most, blocks_for(a.rows, kRows));
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  const bool small = a.rows * a.cols * int64_t{sizeof(T)} <= kSmallBytes;
  const L2Policy policy = small ? L2Policy::EvictFirst : L2Policy::EvictNormal;
  auto* const sums = static_cast<float*>(a.workspace);
  launch(layer_norm_backward<T, W, kRowThreads, kVectors, kAligned>,
         {blocks, kThreads, shared_bytes, a.stream}, a, stages, slot_vectors, padded, inverse_cols,
         policy, sums);
  const int width = a.kind == Kind::Layer ? 2 * padded : padded;
  launch(add_blocks<W>, {blocks_for(width, kSumColumns), kSumThreads, 0, a.stream, 0, kEarlySum},
         sums, blocks, padded, width, a.dweight, a.dbias, a.cols);
}

/// Looks for the smallest team of threads that holds a row: of 32, 64 and 128 threads with kColumns
/// columns each, of 512 and 1024 with kFewColumns, of 1024 with kColumns. Unaligned rows of up to
/// 2048 columns have 32 or 128 threads.
template <bool kAligned, int kRowThreads, int kVectors, typename T, typename W>
void run_team(const BackwardArgs<T, W>& a) {
  constexpr int kElements = kVectorElements<T>;
  if (a.cols <= kRowThreads * kVectors * kElements) {
    launch_rows<kAligned, kRowThreads, kVectors>(a);
  } else if constexpr (kRowThreads * 2 < kMinThreads) {
    run_team<kAligned, kAligned ? kRowThreads * 2 : kMinThreads / 2, kVectors>(a);
  } else if constexpr (kRowThreads < kMaxThreads) {
    constexpr int kWider = kRowThreads < kFewFrom ? kFewFrom : kMaxThreads;
    run_team<kAligned, kWider, kFewColumns / kElements>(a);
  } else if constexpr (kVectors * kElements < kColumns && sizeof(T) == 2) {
    run_team<kAligned, kRowThreads, kColumns / kElements>(a);
  } else {
    throw std::logic_error("bwd12 has no kernel for rows of " + std::to_string(a.cols) +
                           " columns of " + std::to_string(sizeof(T)) +
                           " bytes: they should have been refused");
  }
}

template <typename T, typename W>
void run(const BackwardArgs<T, W>& a) {
  constexpr int kVectors = kColumns / kVectorElements<T>;
  const bool aligned = a.cols % kVectorElements<T> == 0 && at_16_bytes(a.x, a.dy, a.dx, a.weight);
  if (aligned) {
    run_team<true, kWarpSize, kVectors>(a);
  } else {
    run_team<false, kWarpSize, kVectors>(a);
  }
}

const Registration registration{{
    .id = "bwd12",
    .title = "Bulk copies in a ring, an early last sum",
    .teaches = "the copy engine brings the next rows; the last sum is launched before it is needed",
    .source = "this repository",
    .parent = "bwd11",
    .road = Road::Main,
    .group = "blocks",
    .min_architecture = 90,
    .max_row_bytes = kMaxThreads * kColumns * 2,
    .run = BackwardLaunchers{run<float>, run<__half>, run<__nv_bfloat16>, run<__half, float>,
                             run<__nv_bfloat16, float>},
    .predicted_bytes = [](const Problem& p, const Gpu&) -> std::int64_t {
      return 3 * p.tensor_bytes() + parameter_bytes(p);
    },
    .workspace_bytes = [](const Problem& p) -> std::int64_t {
      const int64_t places = int64_t{multiprocessors()} * kBlocks;
      const int64_t blocks = std::min<int64_t>(p.rows, p.group > 0 ? p.group : places);
      const int64_t padded = padded_columns(p.cols, 16 / p.element_bytes());
      const int64_t width = p.kind == Kind::Layer ? 2 * padded : padded;
      return blocks * width * int64_t{sizeof(float)};
    },
}};

}  // namespace bwd12
