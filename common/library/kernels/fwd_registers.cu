// lib_fwd_registers · Rows in registers, by 16-byte accesses
//
// The general forward kernel: layer and RMS norm, every type, width and alignment, strided x. A
// warp has a row, or a block of as few warps as can hold it. Each thread holds up to seven 16-byte
// vectors of x, packed. Rows over 64 KB are kept in shared memory; the part that does not fit is
// read again in each walk.
//
// Parts: vector.h and columns.h (16-byte accesses, and single elements at the ends of an unaligned
// row; fwd06), moments.h (a mean in two floats; fwd04), reduce.h (fwd02, fwd03), rows.h (strides).
//
// Measurements behind the constants, on an H100 unless an H200 is named, layer norm with a cold L2:
// - Vectors and warps per row (Share), 128 MiB of bf16 on an H200: 72 µs at 1152 columns with five
//   vectors per thread, against 104 with blocks of a fixed size; 73 against 106 at 2304. Eight
//   vectors would spill.
// - f32, 292 × 7168: 11.9 µs with eight warps of seven vectors per lane, four such blocks per
//   multiprocessor; 13.1 with 14 warps of four vectors.
// - One block prefetches weight and bias: bf16, 8 MiB of 2048 columns: 11.2 µs, against 12.5 if
//   none does and 19.1 if every block does.
// - The result: 94 to 100 % of a copy's speed from 64 MiB per tensor on, up to 16 384 columns (51.5
//   µs at f16 4096 × 8192, 717 at bf16 131072 × 4096); 47 to 64 % from 65 536 columns on.
#include "common/kernel/chapter.h"
#include "common/kernel/columns.h"
#include "common/kernel/kinds.h"
#include "common/kernel/moments.h"
#include "common/kernel/reduce.h"
#include "common/kernel/rows.h"
#include "common/kernel/shapes.h"
#include "common/kernel/vector.h"

namespace lib_fwd_registers {
using namespace lnc;

constexpr int kFewWarps = 8;
constexpr int kMostWarps = 16;  // 32 for the widest rows, which fit no other share

/// How a row is divided: vectors a thread, and warps.
struct Share {
  int vectors;
  int64_t warps;
  int64_t places() const { return vectors * warps * kWarpSize; }
};

/// A thread holds kVectors vectors of 16 bytes. A row has one of a block's four warps, or a block
/// of as many warps as it needs, kWarps at most.
template <int kVectors_, int kWarps>
struct Variant {
  static constexpr int kVectors = kVectors_;
  static constexpr bool kOneWarp = kWarps == 1;
  static constexpr int kBlockRows = kOneWarp ? 4 : 1;
  static constexpr int kMostThreads = kWarps * kBlockRows * kWarpSize;
  static constexpr bool holds(const Share& share) {
    return share.vectors == kVectors && share.warps <= kWarps;
  }
};

/// Blocks that a multiprocessor has registers for: limits nvcc to 40, 64 or 80 a thread.
template <typename T, typename W, typename V>
constexpr int sm_blocks() {
  constexpr bool kLean = sizeof(T) == sizeof(W) && V::kVectors == 3;
  constexpr bool kWide = sizeof(T) == 2 && V::kVectors == 7;
  constexpr int kThreads = kLean ? kSmThreads : kWide ? 768 : 1024;
  return V::kVectors <= 2 ? 0 : kThreads / V::kMostThreads;
}

/// The sum over the threads of a row, in each of them.
template <typename V, typename Value>
__device__ Value row_sum(Value value) {
  if constexpr (V::kOneWarp) {
    return warp_sum(value);
  } else {
    return block_sum<V::kMostThreads>(value, blockDim.x);
  }
}

/// add_deviations of a vector that may extend outside the row: only the row's elements count.
template <typename Sums, typename T, int kElements, bool kAligned>
__device__ void add_deviations(Sums& sums, float near, const Packed<T, kElements>& vector,
                               const Columns<T, kAligned>& columns) {
  float x[kElements];
  to_floats(vector, x);
  for (int k = 0; k < kElements; ++k) {
    if (columns.has(k)) add_deviation(sums, x[k] - near);
  }
}

/// Computes y of a vector of x and stores it.
template <Kind kKind, typename T, typename W, int kElements, bool kAligned>
__device__ void store_y(T* y_row, const Packed<T, kElements>& vector, const Normaliser& of_row,
                        const Packed<W, kElements>& weight, const Packed<W, kElements>& bias,
                        const Columns<T, kAligned>& columns) {
  float y[kElements];
  normalise<kKind>(vector, of_row, weight, bias, y);
  columns.store(y_row, y);
}

/// A row in registers, of a warp or of a whole block. x_rows says where the rows of x start.
template <typename T, typename W, Kind kKind, typename V, bool kAligned, typename Rows>
__global__ void __launch_bounds__(V::kMostThreads, kAligned ? sm_blocks<T, W, V>() : 0)
    layer_norm_forward(ForwardArgs<T, W> a, Rows x_rows) {
  constexpr int kElements = kVectorElements<T>;
  constexpr int kVectors = V::kVectors;
  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  const int64_t row = int64_t{blockIdx.x} * V::kBlockRows + (V::kOneWarp ? warp : 0);
  if (row >= a.rows) return;
  const int first = (V::kOneWarp ? 0 : warp) * kVectors * kWarpSize + lane;
  const T* x_row = a.x + x_rows.start(row, a.cols);
  const auto columns = [&](int i) {  // this thread's vector i
    return Columns<T, kAligned>(x_row, first + i * kWarpSize, a.cols, a.batch_invariant);
  };

  // Every load is issued before the first use. The vectors stay packed: eight halves take four
  // registers.
  Packed<T, kElements> x[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    x[i] = columns(i).load(x_row);
  }
  // Block 0 prefetches weight and bias into L2 for all blocks, which need them after their sums. A
  // prefetch holds no register; if every block prefetched, they would queue for the same lines.
  if (blockIdx.x == 0) {
    for (int i = 0; i < kVectors; ++i) {
      if (!columns(i).any()) continue;
      prefetch_to_l2(a.weight, columns(i).start());
      prefetch_to_l2(a.bias, columns(i).start());
    }
  }

  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  float near = 0.0f;
  if constexpr (kKind == Kind::Layer) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      // Elements outside the row are 0, so the sum needs no test; without this one nvcc converts
      // all vectors to float at once and takes 48 registers, not 40.
      if (columns(i).any()) add_elements(sum, x[i]);
    }
    near = row_sum<V>(sum) * inverse_cols;
  }
  Deviations<kKind> sums{};
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    // Here the test matters: an element outside the row would deviate by 0 - near.
    if (columns(i).any()) add_deviations(sums, near, x[i], columns(i));
  }
  sums = row_sum<V>(sums);
  const Normaliser of_row = normaliser(near, sums, inverse_cols, a.eps);
  if (first == 0) store_statistics<kKind>(a, row, of_row);

#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const auto weight = columns(i).load_or(1.0f, a.weight);
    const auto bias = columns(i).load_or(0.0f, a.bias);
    store_y<kKind>(a.y + row * a.cols, x[i], of_row, weight, bias, columns(i));
  }
}

constexpr int kWideThreads = 1024;
constexpr int64_t kSharedBytes = 64 << 10;  // every GPU from Turing on has this much

/// A row of any width, of `vectors` vectors: the first `kept` of them stay in shared memory, the
/// others are read again in each walk.
template <typename T, typename W, Kind kKind, bool kAligned, typename Rows>
__global__ void __launch_bounds__(kWideThreads)
    layer_norm_forward_wide(ForwardArgs<T, W> a, Rows x_rows, int64_t vectors, int64_t kept) {
  constexpr int kElements = kVectorElements<T>;
  auto* const waiting = dynamic_shared<Packed<T, kElements>>();
  const int64_t row = blockIdx.x;
  const T* x_row = a.x + x_rows.start(row, a.cols);
  const auto columns = [&](int64_t i) {
    return Columns<T, kAligned>(x_row, i, a.cols, a.batch_invariant);
  };
  const auto vector = [&](int64_t i) {
    // A thread reads back only what it stored: no barrier.
    return i < kept ? waiting[i] : columns(i).load(x_row);
  };
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < kept; i += kWideThreads) {
    waiting[i] = columns(i).load(x_row);
  }

  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  float near = 0.0f;
  if constexpr (kKind == Kind::Layer) {
    float sum = 0.0f;
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < vectors; i += kWideThreads) {
      add_elements(sum, vector(i));
    }
    near = block_sum<kWideThreads>(sum) * inverse_cols;
  }
  Deviations<kKind> sums{};
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < vectors; i += kWideThreads) {
    add_deviations(sums, near, vector(i), columns(i));
  }
  sums = block_sum<kWideThreads>(sums);
  const Normaliser of_row = normaliser(near, sums, inverse_cols, a.eps);
  if (threadIdx.x == 0) store_statistics<kKind>(a, row, of_row);

#pragma unroll 1  // unrolled, a load of x could not move ahead of the store before it either
  for (int64_t i = threadIdx.x; i < vectors; i += kWideThreads) {
    const auto weight = columns(i).load_or(1.0f, a.weight);
    const auto bias = columns(i).load_or(0.0f, a.bias);
    store_y<kKind>(a.y + row * a.cols, vector(i), of_row, weight, bias, columns(i));
  }
}

/// Layer norm of 16-bit elements, whose sums take the most instructions.
template <Kind kKind, typename T>
constexpr bool kManySums = kKind == Kind::Layer && sizeof(T) == 2;

/// The most warps of a row whose threads have `vectors` vectors each.
int most_warps(int vectors, bool many_sums) {
  return vectors == 7 && many_sums ? kFewWarps : kMostWarps;  // else nvcc would spill
}

/// The share of a row of `vectors` vectors. Reductions and barriers cost the same for a half-empty
/// warp, so warps should be few and full: 4 vectors a thread, or 3 where that leaves fewer places
/// empty; with many sums also 5 or 7. (1152 halves are 144 vectors: 160 places with 5 a thread, 256
/// with 4.) Above kFewWarps warps 7 vectors, or with many sums 5, are taken even if they leave as
/// many places empty. Rows that would need more than kMostWarps take whichever share needs fewer. A
/// row of up to two vectors a lane has a warp.
Share share_of(int64_t vectors, bool many_sums, bool exact) {
  const auto share = [=](int each) { return Share{each, blocks_for(vectors, each * kWarpSize)}; };
  if (vectors <= kWarpSize) return share(1);
  if (vectors <= 2 * kWarpSize) return share(2);
  Share best = share(4);
  if (!exact) return best;
  for (const int each : {3, 5, 7}) {
    const Share other = share(each);
    const bool too_wide = best.warps > kMostWarps;
    if (other.warps > most_warps(each, many_sums)) continue;
    const bool fewer = other.places() < best.places() && (each < 4 || many_sums);
    const bool as_few = other.places() == best.places() && best.warps > kFewWarps;
    const bool rather = as_few && (each == 7 || (each == 5 && many_sums));
    if (fewer || rather || too_wide) best = other;
  }
  return best;
}

/// Launches the kernel of a row's share, or the wide one. Only variants that share_of() may ask for
/// are compiled.
template <Kind kKind, bool kAligned, typename T, typename W, typename Rows>
void run_width(const ForwardArgs<T, W>& a, const Rows& x_rows) {
  constexpr bool kExact = kAligned && std::is_same_v<Rows, DenseRows>;  // else fewer kernels
  constexpr bool kMany = kManySums<kKind, T>;
  const int64_t vectors = vectors_of_row<T, kAligned>(a.cols);
  const Share share = share_of(vectors, kMany, kExact);
  const auto run = [&]<typename V>(V) {
    const auto threads = static_cast<unsigned>(share.warps * V::kBlockRows * kWarpSize);
    launch(layer_norm_forward<T, W, kKind, V, kAligned, Rows>,
           {blocks_for(a.rows, V::kBlockRows), threads, 0, a.stream}, a, x_rows);
  };
  bool launched = try_shapes<Variant<1, 1>, Variant<2, 1>, Variant<4, 1>, Variant<4, kMostWarps>,
                             Variant<4, 2 * kMostWarps>>(share, run);
  if constexpr (kExact && kMany) {
    launched = launched ||
               try_shapes<Variant<3, 1>, Variant<3, kMostWarps>, Variant<5, 1>,
                          Variant<5, kMostWarps>, Variant<7, 1>, Variant<7, kFewWarps>>(share, run);
  } else if constexpr (kExact) {
    launched = launched || try_shapes<Variant<3, 1>, Variant<3, kMostWarps>, Variant<5, kMostWarps>,
                                      Variant<7, kMostWarps>>(share, run);
  }
  if (launched) return;
  const int64_t kept = std::min<int64_t>(vectors, kSharedBytes / 16);
  const auto shared_bytes = static_cast<std::size_t>(kept) * 16;
  launch(layer_norm_forward_wide<T, W, kKind, kAligned, Rows>,
         {blocks_for(a.rows, 1), kWideThreads, shared_bytes, a.stream}, a, x_rows, vectors, kept);
}

template <typename T, typename W>
void run(const ForwardArgs<T, W>& a) {
  with_kind(a.kind, [&](auto kind) {
    with_rows(a, [&](const auto& x_rows) {
      if (in_whole_vectors(a)) {
        run_width<kind(), true>(a, x_rows);
      } else {
        run_width<kind(), false>(a, x_rows);
      }
    });
  });
}

const Registration registration{{
    .id = "lib_fwd_registers",
    .title = "Rows in registers, by 16-byte accesses",
    .teaches = "the general forward kernel: one read of x at the speed of a copy",
    .source = "OneFlow, PyTorch",
    .road = Road::Library,
    .takes_strides = true,
    .strided_like_dense_bytes = 2 * kWarpSize * 16,  // two vectors a lane: a warp a row
    .keeps_digits_at_large_means = true,
    .run = ForwardLaunchers::every([](const auto& args) { run(args); }),
    .predicted_bytes = [](const Problem& p, const Gpu& gpu) -> std::int64_t {
      const std::int64_t row_bytes = p.cols * p.element_bytes();
      const auto beyond = std::max<std::int64_t>(row_bytes - kSharedBytes, 0);  // waits in L2
      const std::int64_t in_flight = rows_in_flight(p, kWideThreads, gpu) * beyond;
      const auto walks = device_reads(p.kind == Kind::Layer ? 3 : 2, in_flight, gpu);
      const auto again = (walks - 1) * p.rows * beyond;
      return 2 * p.tensor_bytes() + again + parameter_bytes(p);
    },
}};

}  // namespace lib_fwd_registers
