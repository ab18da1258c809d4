// lib_bwd_unaligned · Unaligned rows in a ring, sums in registers
//
// Rows of up to 8184 columns that start anywhere, layer and RMS norm, on Hopper. The copy engine
// loads neighbouring rows in the 16-byte vectors that contain them. A block processes only rows
// that start at the same offset from a 16-byte boundary, so a thread has the same columns in each
// of them and keeps their dweight and dbias in registers. A row has a team of as many warps as it
// needs. If x, dy and dx start at different offsets, the same kernel reads shared memory element by
// element.
//
// Parts: unaligned_rows.h (periods, a thread's columns; bwd15), ring.h and hopper.h (fwd08, bwd12),
// column_gradients.h (bwd01, bwd09), partial_sums.h (bwd06, early start bwd12), reduce.h's
// team_sums.
//
// Measurements behind the constants, on an H100, layer norm / RMS norm:
// - TwoBlocks: bf16 16384 × 4097 took 167 / 163 µs with two blocks of up to 18 warps, 182 / 175
//   with one of 1024 threads.
// - Each copy has the same offset in a 128-byte line as its source: 157 / 153 µs at bf16 16384 ×
//   4097; if it begins at the start of the stage, 161 / 157.
// - Sixteen columns per thread in 18 warps would spill four to six registers in layer norm of
//   halves; hence the limit of 8184 columns.
// - The result: 156 / 152 µs at bf16 16384 × 4097 (89 / 90 % of a triad), 148 / 146 at 65536 ×
//   1001, 149 / 149 at f32 8192 × 4097; lib_bwd_any takes 378, 215 and 283 in layer norm. Some
//   aligned widths are faster than with lib_bwd_ring, whose copies begin at a stage's start: 148
//   against 159 at 2304 columns of bf16.
#include "common/kernel/chapter.h"
#include "common/kernel/column_gradients.h"
#include "common/kernel/gradient_terms.h"
#include "common/kernel/hopper.h"
#include "common/kernel/kinds.h"
#include "common/kernel/partial_sums.h"
#include "common/kernel/reduce.h"
#include "common/kernel/ring.h"
#include "common/kernel/unaligned_rows.h"

namespace lib_bwd_unaligned {
using namespace lnc;

constexpr int kMostStages = 3;         // of a block's ring
constexpr int kSpareBytes = 10 << 10;  // of a multiprocessor's shared memory
constexpr int64_t kFewColumns = 2048;  // of rows with 16 columns a thread

/// What the registers allow: kBlocks blocks of up to kThreads threads on a multiprocessor, with
/// kColumns columns a thread.
template <int kThreads_, int kBlocks_, int kColumns_>
struct Variant {
  static constexpr int kThreads = kThreads_;
  // Turing, for which this is compiled but never run, holds fewer threads.
  static constexpr int kBlocks = std::min(kBlocks_, kSmThreads / kThreads);
  static constexpr int kColumns = kColumns_;
};
using FewWarps = Variant<256, 2, 16>;
using ManyWarps = Variant<1024, 1, 8>;
using TwoBlocks = Variant<576, 2, 8>;  // for rows of 17 or 18 warps, of 16-bit types

/// Columns that a block of one team has room for, with the places before a row.
template <typename Fit>
constexpr int64_t kRoom = int64_t{Fit::kThreads} * Fit::kColumns;
// Up to 7 places come before a row; 8 leave a multiple of 8.
constexpr int64_t kMostCols = kRoom<ManyWarps> - 8;

/// How a launch cuts the rows.
struct Plan {
  int row_threads;
  unsigned teams;  ///< of a block: a step has a row for each
  int stages;
  int slot_elements;  ///< of a stage for the rows of x, and for those of dy
  unsigned end_rows;  ///< at each end of a tensor
};

/// A copy to shared memory of neighbouring rows, far from the tensor's ends: the whole vectors that
/// contain them. Their elements of other rows are not used.
template <typename T>
struct InnerPiece {
  const T* boundary;  ///< where the first vector begins
  unsigned bytes;

  __device__ InnerPiece(const T* first, int elements) {
    const auto begin = reinterpret_cast<std::uintptr_t>(first) / 16 * 16;
    const auto end = (reinterpret_cast<std::uintptr_t>(first + elements) + 15) / 16 * 16;
    boundary = reinterpret_cast<const T*>(begin);
    bytes = static_cast<unsigned>(end - begin);
  }
  __device__ unsigned copy_bytes() const { return bytes; }
  __device__ void copy(T* slot, Barrier& barrier) const {
    bulk_load(slot + start_in_line(boundary), boundary, bytes, barrier);
  }
};

/// The same at an end of the tensor: only vectors wholly inside the tensor are copied. The numbers
/// count elements from the boundary before the piece, as the slot does.
template <typename T>
struct EndPiece {
  static constexpr int kElements = kVectorElements<T>;
  const T* boundary;
  int begin, end;
  int copy_begin, copy_end;

  /// @param tensor_elements of which the piece has `elements`, from number `first` on
  __device__ EndPiece(const T* tensor, int64_t tensor_elements, int64_t first, int elements) {
    begin = start_in_vector(tensor + first);
    end = begin + elements;
    boundary = tensor + first - begin;
    copy_begin = boundary < tensor ? kElements : 0;
    copy_end = (end + kElements - 1) / kElements * kElements;
    if (boundary + copy_end > tensor + tensor_elements) copy_end -= kElements;
    copy_end = max(copy_end, copy_begin);
  }
  __device__ unsigned copy_bytes() const { return (copy_end - copy_begin) * sizeof(T); }
  __device__ void copy(T* slot, Barrier& barrier) const {
    if (copy_end <= copy_begin) return;
    T* const to = slot + start_in_line(boundary);
    bulk_load(to + copy_begin, boundary + copy_begin, copy_bytes(), barrier);
  }
  /// The block's threads load what the copy leaves out, an element each. A __syncthreads() must
  /// follow.
  __device__ void bring_ends(T* slot) const {
    const int front = begin + static_cast<int>(threadIdx.x);
    const int back = copy_end + static_cast<int>(threadIdx.x);
    T* const to = slot + start_in_line(boundary);
    if (front < min(copy_begin, end)) to[front] = boundary[front];
    if (back < end) to[back] = boundary[back];
  }
};

/// One thread requests a piece of x and one of dy. `full` counts their bytes.
template <typename Piece, typename T>
__device__ void copy_both(const Piece& x, T* x_slot, const Piece& dy, T* dy_slot, Barrier& full) {
  full.arrive_and_expect(x.copy_bytes() + dy.copy_bytes());
  x.copy(x_slot, full);
  dy.copy(dy_slot, full);
}

/// Reads vector i of a row that starts in shared memory as the thread's columns do, in one access.
/// Elements of other rows become 0; with dy = 0 they add nothing to any sum.
struct TakeVectors {
  template <typename T>
  static __device__ auto take(const OwnColumns& own, int i, const T* row) {
    constexpr int kElements = kVectorElements<T>;
    const auto all = *reinterpret_cast<const Packed<T, kElements>*>(row + own.of(i));
    if (own.has_all<kElements>(i)) return all;
    auto vector = __builtin_bit_cast(Vector<T, kElements>, all);
    for (int k = 0; k < kElements; ++k) {
      if (!own.has(i, k)) vector.at[k] = from_float<T>(0.0f);
    }
    return __builtin_bit_cast(Packed<T, kElements>, vector);
  }
};

/// Reads vector i of a row that starts anywhere in shared memory, element by element: sixteen
/// 2-byte reads instead of two of 16 bytes.
struct TakeElements {
  template <typename T>
  static __device__ auto take(const OwnColumns& own, int i, const T* row) {
    Vector<T, kVectorElements<T>> vector{};
    for (int k = 0; k < kVectorElements<T>; ++k) {
      if (own.has(i, k)) vector.at[k] = row[own.of(i) + k];
    }
    return __builtin_bit_cast(Packed<T, kVectorElements<T>>, vector);
  }
};

/// Stores a team's sums in its row of shared memory, where a column has the same offset in a vector
/// as in the team's rows, then adds up all teams' sums into `sums`. All threads of the block call
/// it.
template <int kElements, int kVectors>
__device__ void add_teams(const Vector<float, kElements> (&of_thread)[kVectors], const Plan& plan,
                          int first_start, int cols, float* sums) {
  auto* const of_teams = dynamic_shared<Vector<float, kElements>>();
  const int team_vectors = plan.row_threads * kVectors;
  const int team = threadIdx.x / plan.row_threads;
  const int thread = threadIdx.x % plan.row_threads;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    of_teams[team * team_vectors + i * plan.row_threads + thread] = of_thread[i];
  }
  __syncthreads();
  for (int col = threadIdx.x; col < cols; col += blockDim.x) {
    float sum = 0.0f;
    for (unsigned other = 0; other < plan.teams; ++other) {
      const int start = (first_start + other * cols) % kElements;
      const auto* const of_team = reinterpret_cast<float*>(of_teams + other * team_vectors);
      sum += of_team[start + col];
    }
    sums[col] = sum;
  }
  __syncthreads();
}

/// A block's rows, which pass through the ring in steps of neighbouring rows, a row a team,
/// gridDim.x steps apart, which all start alike. A stage holds a step's rows of x, then those of
/// dy. Rows, strides and steps are counted in 32 bits to save registers.
template <typename T, typename W>
struct StepsOfRows {
  static constexpr int kElements = kVectorElements<T>;
  const BackwardArgs<T, W>& a;
  const Plan& plan;
  unsigned count;
  int cols;
  Ring<T> ring;

  __device__ StepsOfRows(const BackwardArgs<T, W>& a_, const Plan& plan_, Barrier* full)
      : a(a_),
        plan(plan_),
        count(static_cast<unsigned>(a.rows)),
        cols(static_cast<int>(a.cols)),
        ring{dynamic_shared<Packed<T, kElements>>(), 2 * plan.slot_elements / kElements,
             plan.stages, full} {}
  __device__ bool at_end(unsigned step_row) const {  // of the tensor
    return step_row < plan.end_rows || step_row + plan.teams + plan.end_rows > count;
  }
  __device__ EndPiece<T> end_piece(const T* tensor, unsigned step_row) const {
    const int elements = static_cast<int>(min(count - step_row, plan.teams)) * cols;
    return EndPiece<T>(tensor, a.rows * a.cols, step_row * a.cols, elements);
  }
  __device__ InnerPiece<T> inner_piece(const T* tensor, unsigned step_row) const {
    return InnerPiece<T>(tensor + step_row * a.cols, plan.teams * cols);
  }
  __device__ void request(unsigned step_row, int stage) const {
    if (step_row >= count) return;
    T* const x = reinterpret_cast<T*>(ring.slot(stage));
    T* const dy = x + plan.slot_elements;
    Barrier& full = ring.full[stage];
    if (at_end(step_row)) {
      copy_both(end_piece(a.x, step_row), x, end_piece(a.dy, step_row), dy, full);
    } else {
      copy_both(inner_piece(a.x, step_row), x, inner_piece(a.dy, step_row), dy, full);
    }
  }
  /// All threads call this when a step has arrived, to load the elements that the copies leave out.
  __device__ void complete(unsigned step_row, T* slot) const {
    if (!at_end(step_row)) return;
    end_piece(a.x, step_row).bring_ends(slot);
    end_piece(a.dy, step_row).bring_ends(slot + plan.slot_elements);
    __syncthreads();
  }
};

/// Reads the thread's vectors of a row into `terms`, adds them to `gradients`, and returns the
/// thread's share of the row's two sums.
template <typename Taking, typename T, typename W, int kElements, int kVectors, typename Gradients>
__device__ float2 read_row(const T* x_row, const T* dy_row, const OwnColumns& own, bool there,
                           Packed<W, kElements> (&weight)[kVectors], float2 statistics,
                           GradientTerms<kElements> (&terms)[kVectors], Gradients& gradients) {
  float2 c = make_float2(0.0f, 0.0f);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    Packed<T, kElements> x{};
    Packed<T, kElements> dy{};
    if (there && own.has(i)) {
      x = Taking::take(own, i, x_row);
      dy = Taking::take(own, i, dy_row);
    }
    stay_packed(weight[i]);
    terms[i] = GradientTerms<kElements>(x, dy, weight[i], statistics.x, statistics.y);
    terms[i].add_to(c);
    gradients.add(i, terms[i]);
  }
  return c;
}

template <typename T, typename W, Kind kKind, typename Fit, typename Taking>
__global__ void __launch_bounds__(Fit::kThreads, Fit::kBlocks)
    layer_norm_backward(BackwardArgs<T, W> a, Plan plan, float inverse_cols, PartialSums sums) {
  constexpr int kElements = kVectorElements<T>;
  constexpr int kVectors = Fit::kColumns / kElements;
  constexpr bool kLayer = kKind == Kind::Layer;
  __shared__ Barrier full[kMostStages];
  StepsOfRows<T, W> rows(a, plan, full);
  auto& ring = rows.ring;
  const int cols = rows.cols;
  const int team = threadIdx.x / plan.row_threads;
  const int thread = threadIdx.x % plan.row_threads;
  const int team_warps = plan.row_threads / kWarpSize;
  const unsigned first_row = blockIdx.x * plan.teams;  // of the block's first step
  const unsigned stride = gridDim.x * plan.teams;
  const int64_t first_element = first_row * a.cols;
  // The team's first row: all of its rows start alike.
  const int start = start_in_vector(a.dx + first_element + team * cols);
  const OwnColumns own{thread * kElements - start, plan.row_threads * kElements, cols};
  if (threadIdx.x == 0) {
    ring.fill([&](int stage) { rows.request(first_row + stage * stride, stage); });
  }
  launch_dependents();

  const auto statistics = [&](unsigned row) {
    return statistics_of<kLayer>(a, row, row < rows.count);
  };
  float2 next = statistics(first_row + team);
  Packed<W, kElements> weight[kVectors];  // may start anywhere; loaded once
  ColumnGradients<kElements, kVectors, kLayer> gradients;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) weight[i] = own.load<kElements>(i, a.weight, 1.0f);
  __syncthreads();

  for (unsigned step_row = first_row; step_row < rows.count; step_row += stride) {
    const unsigned row = step_row + team;
    const bool there = row < rows.count;
    const float2 of_row = next;
    const float rstd = of_row.y;
    next = statistics(row + stride);
    T* const slot = reinterpret_cast<T*>(ring.wait());
    rows.complete(step_row, slot);
    // A step's rows have the same offset in a line in shared memory as in global memory.
    const int64_t step = step_row * a.cols;
    const T* const x_row = slot + start_in_line(a.x + step) + team * cols;
    const T* const dy_row = slot + plan.slot_elements + start_in_line(a.dy + step) + team * cols;
    GradientTerms<kElements> terms[kVectors];
    float2 c = read_row<Taking>(x_row, dy_row, own, there, weight, of_row, terms, gradients);
    ring.release();
    // Each stage has its own slots for the warps' sums: a call must not use those of the previous
    // call, so a ring has at least two stages. The barrier in team_sums frees the stage.
    c = team_sums<Fit::kThreads, kMostStages>(c, ring.stage, team * team_warps, team_warps);
    if (threadIdx.x == 0) rows.request(step_row + plan.stages * stride, ring.stage);
    ring.advance();

    const float2 scaled = scaled_means<kLayer>(c, inverse_cols, rstd);
    T* const dx_row = a.dx + row * a.cols;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float dx[kElements];
      dx_of(terms[i], rstd, scaled, dx);
      // Stores a row's ends element by element: their vectors are shared with other rows.
      if (there && own.has(i)) own.store(i, dx_row, dx);
    }
  }

  if (a.dweight == nullptr) return;  // frozen parameters: no sums to store
  const int64_t part = blockIdx.x * a.cols;
  const int first_start = start_in_vector(a.dx + first_element);
  add_teams(gradients.dweight, plan, first_start, cols, sums.dweight + part);
  if (kLayer) add_teams(gradients.dbias, plan, first_start, cols, sums.dbias + part);
}

/// Launches rows of up to kThreads · kColumns columns, each with the fewest warps that hold it, and
/// as many a block as it has threads for.
template <Kind kKind, typename Fit, typename Taking, typename T, typename W>
void launch_rows(const BackwardArgs<T, W>& a) {
  constexpr int kElements = kVectorElements<T>;
  constexpr int kVectors = Fit::kColumns / kElements;
  const auto cols = static_cast<int>(a.cols);
  const auto row_threads =
      static_cast<int>(blocks_for(row_vectors(a.dx, a.cols), kVectors * kWarpSize) * kWarpSize);
  const unsigned teams = Fit::kThreads / row_threads;
  const unsigned threads = teams * row_threads;
  const int slot_elements = slot_elements_for<T>(teams * cols);
  const auto stage_bytes = static_cast<int>(2 * slot_elements * sizeof(T));
  const int room = (max_shared_bytes() - kSpareBytes) / Fit::kBlocks / stage_bytes;
  const int stages = std::clamp(room, 2, kMostStages);  // two at least, for team_sums
  const auto sums_bytes = static_cast<int>(threads * Fit::kColumns * sizeof(float));
  const auto shared_bytes = static_cast<std::size_t>(std::max(stages * stage_bytes, sums_bytes));

  const unsigned end_rows = rows_at_end<T>(a.cols);
  const Plan plan{row_threads, teams, stages, slot_elements, end_rows};

  const int64_t most = most_blocks(a.group, Fit::kBlocks);
  const int64_t in_step = blocks_in_step<T>(most, teams, a.cols);
  const int64_t steps = blocks_for(a.rows, teams);
  const int64_t blocks = std::min(in_step, steps);
  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  const PartialSums sums = partial_sums(a, blocks);
  const dim3 grid(static_cast<unsigned>(blocks));
  launch(layer_norm_backward<T, W, kKind, Fit, Taking>, {grid, threads, shared_bytes, a.stream}, a,
         plan, inverse_cols, sums);
  add_partial_sums<EarlyStart, kMostCols>(a, sums, blocks);
}

/// x, dy and dx start alike.
template <Kind kKind, typename T, typename W>
void run_alike(const BackwardArgs<T, W>& a) {
  using Middle = std::conditional_t<sizeof(T) < sizeof(float), TwoBlocks, ManyWarps>;
  constexpr int64_t kHalfRoom = kRoom<ManyWarps> / 2;  // its block has two teams up to here
  // Of the vectors that a row spans.
  const int64_t columns = row_vectors(a.dx, a.cols) * kVectorElements<T>;
  // Up to half the room of 1024 threads these have two or more rows at work. Wider rows of 16-bit
  // types share a multiprocessor while two fit; float rows, whose bytes take twice as long, do not.
  if (columns <= kFewColumns) {
    launch_rows<kKind, FewWarps, TakeVectors>(a);
  } else if (columns > kHalfRoom && columns <= kRoom<Middle>) {
    launch_rows<kKind, Middle, TakeVectors>(a);
  } else {
    launch_rows<kKind, ManyWarps, TakeVectors>(a);
  }
}

/// x, dy and dx start differently.
template <Kind kKind, typename T, typename W>
void run_apart(const BackwardArgs<T, W>& a) {
  launch_rows<kKind, ManyWarps, TakeElements>(a);
}

template <Kind kKind, typename T, typename W>
void run_kind(const BackwardArgs<T, W>& a) {
  const int start = start_in_vector(a.dx);
  const bool alike = start_in_vector(a.x) == start && start_in_vector(a.dy) == start;
  if (alike) {
    run_alike<kKind>(a);
  } else {
    run_apart<kKind>(a);
  }
}

template <typename T, typename W>
void run(const BackwardArgs<T, W>& a) {
  with_kind(a.kind, [&](auto kind) { run_kind<kind()>(a); });
}

const Registration registration{{
    .id = "lib_bwd_unaligned",
    .title = "Unaligned rows in a ring, sums in registers",
    .teaches = "rows of 513 to 8184 columns that start anywhere, at 90 % of a triad",
    .source = "this repository",
    .road = Road::Library,
    .usual_cols = 2049,
    .shares_by_address = true,
    .takes_frozen = true,
    .group = "blocks",
    .min_architecture = 90,
    .max_cols = kMostCols,
    .max_cols_because = "a block holds a whole row",
    .run = BackwardLaunchers::every([](const auto& args) { run(args); }),
    .predicted_bytes = least_bytes<Direction::Backward>,
    .workspace_bytes = [](const Problem& p) -> std::int64_t {
      constexpr int kMostBlocks =
          std::max({FewWarps::kBlocks, ManyWarps::kBlocks, TwoBlocks::kBlocks});
      constexpr int64_t kMostPeriod = kVectorElements<__half>;
      const int64_t blocks = std::max(most_blocks(p.group, kMostBlocks), kMostPeriod);
      return partial_sums_bytes(p, std::min(p.rows, blocks));
    },
}};

}  // namespace lib_bwd_unaligned
