// The kernel header: the only file that a chapter includes.
//
// It brings the CUDA language (nvcc's own, or the CPU backend's in common/simt), the arguments of a
// chapter, `launch`, and the primitives that an early chapter explains and later ones use:
//
//   to_float, from_float   element conversions             fwd01
//   warp_sum               five shuffles                   fwd02
//   block_sum              shared memory between warps     fwd03
//   GradientSums           dweight, dbias added in float   bwd01
//   Packed, Columns        128-bit access                  fwd06
//   triton_uniform         a random number by Philox       fwd07
//   GradientTerms          what dx, dweight, dbias need    bwd08
//   PartialSums            dweight, dbias in parts         bwd08
//   row_sums               two sums behind one barrier     bwd09
//   row_means              c1 and c2, where rows are cut   bwd09
//   multiprocessors        how many the GPU has            bwd09
//   __pipeline_…           copies of a thread's own        bwd11
//   team_sums              row_sums of teams of any size   bwd11
#pragma once

#if defined(__CUDACC__)
#include "common/cuda/launch.h"
#else
#include "common/simt/cuda.h"
#include "common/simt/launch.h"
#endif
#include <algorithm>

#include "common/kernel/chapter.h"

namespace lnc {

inline constexpr int kWarpSize = 32;
inline constexpr unsigned kFullMask = 0xffffffffu;

/// An element as float: exact, since every half and bfloat16 is a float.
__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(__half value) { return __half2float(value); }
__device__ inline float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

/// A float as an element, rounded to nearest even.
template <typename T>
__device__ inline T from_float(float value);
template <>
__device__ inline float from_float<float>(float value) {
  return value;
}
template <>
__device__ inline __half from_float<__half>(float value) {
  return __float2half_rn(value);
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

/// The number of blocks that cover `count` items with `per_block` each.
constexpr unsigned blocks_for(std::int64_t count, std::int64_t per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

/// Threads that a multiprocessor has places for, at least.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr int kSmThreads = 1024;  // Turing
#else
constexpr int kSmThreads = 1536;
#endif

/// The sum of `value` over the 32 lanes of a warp, or over each kLanes neighbours, a power of two,
/// in every lane. All lanes must call it.
template <int kLanes = kWarpSize>
__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2)
    value += __shfl_xor_sync(kFullMask, value, offset);
  return value;
}

/// Likewise of both values.
template <int kLanes = kWarpSize>
__device__ inline float2 warp_sum(float2 values) {
  return make_float2(warp_sum<kLanes>(values.x), warp_sum<kLanes>(values.y));
}

/// The sum of `value` over the threads of a block, in every thread. All must call it. The block has
/// kMaxThreads threads, or `threads` of them, a multiple of 32.
template <int kMaxThreads>
__device__ float block_sum(float value, int threads = kMaxThreads) {
  static_assert(kMaxThreads % kWarpSize == 0 && kMaxThreads <= kWarpSize * kWarpSize);
  __shared__ float partial[kMaxThreads / kWarpSize];
  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;

  value = warp_sum(value);
  if (lane == 0) partial[warp] = value;
  __syncthreads();  // every partial is written before one is read
  const bool there = lane < threads / kWarpSize;
  value = warp_sum(there ? partial[lane] : 0.0f);  // each warp adds them up for itself
  __syncthreads();  // every partial is read before the next call writes one
  return value;
}

/// The sums of a value, or of both of a float2, over the kRowThreads threads of a row, in each of
/// them; a block has kThreads / kRowThreads rows at a time. All threads of the block must call it,
/// with 0 and 1 as `parity` in turns: then the barrier of one call says that the partials of the
/// call before are read, and a second barrier is not needed.
template <int kThreads, int kRowThreads, typename Values>
__device__ Values row_sums(Values values, int parity) {
  static_assert((kRowThreads & (kRowThreads - 1)) == 0);
  values = warp_sum(values);
  if constexpr (kRowThreads > kWarpSize) {
    constexpr int kRowWarps = kRowThreads / kWarpSize;
    __shared__ Values partial[2][kThreads / kWarpSize];
    const int warp = threadIdx.x / kWarpSize;
    const int lane = threadIdx.x % kWarpSize;
    if (lane == 0) partial[parity][warp] = values;
    __syncthreads();
    values = partial[parity][warp / kRowWarps * kRowWarps + lane % kRowWarps];
    values = warp_sum<kRowWarps>(values);
  }
  return values;
}

/// The same for one row a block, whose size need not be known before the launch: a multiple of 32,
/// at most kMaxThreads.
template <int kMaxThreads>
__device__ float2 block_sums(float2 values, int parity) {
  __shared__ float2 partial[2][kMaxThreads / kWarpSize];
  const unsigned warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  values = warp_sum(values);
  if (lane == 0) partial[parity][warp] = values;
  __syncthreads();
  values = make_float2(0.0f, 0.0f);
  if (lane < blockDim.x / kWarpSize) values = partial[parity][lane];
  return warp_sum(values);
}

/// The same for rows of `row_warps` warps each, side by side in a block of at most kMaxWarps.
/// `team` is the number of this warp's row in the block.
template <int kMaxWarps>
__device__ float2 team_sums(float2 values, int team, int row_warps, int parity) {
  values = warp_sum(values);
  if (row_warps == 1) return values;
  __shared__ float2 partial[2][kMaxWarps];
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  if (lane == 0) partial[parity][warp] = values;
  __syncthreads();
  values = make_float2(0.0f, 0.0f);
  if (lane < row_warps) values = partial[parity][team * row_warps + lane];
  return warp_sum(values);
}

/// kCount neighbouring elements, moved at once: up to 16 bytes in one instruction, and as often as
/// it takes for more. Their address must be a multiple of the alignment.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount < 16 ? sizeof(T) * kCount : 16) Vector {
  T at[kCount];
};

/// The elements as floats. Halves and bfloat16s are converted in pairs: an instruction an element,
/// where taking them apart first costs two.
template <typename T, int kCount>
__device__ inline void to_floats(const Vector<T, kCount>& vector, float (&values)[kCount]) {
  if constexpr (sizeof(T) == 2 && kCount % 2 == 0) {
    using Pair = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      float2 pair;
      if constexpr (std::is_same_v<T, __half>)
        pair = __half22float2(Pair(vector.at[i], vector.at[i + 1]));
      else
        pair = __bfloat1622float2(Pair(vector.at[i], vector.at[i + 1]));
      values[i] = pair.x;
      values[i + 1] = pair.y;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = to_float(vector.at[i]);
  }
}

/// tl.rand(seed, column, n_rounds=7) of Triton, bit for bit: reference_cpu/philox.h explains it.
__device__ inline float triton_uniform(uint32_t seed, uint32_t column) {
  uint32_t c0 = column, c1 = 0, c2 = 0, c3 = 0, key0 = seed, key1 = 0;
#pragma unroll
  for (int round = 0; round < 7; ++round, key0 += 0x9E3779B9, key1 += 0xBB67AE85) {
    const auto product0 = __builtin_bit_cast(uint2, uint64_t{0xD2511F53} * c0);  // x: low word
    const auto product1 = __builtin_bit_cast(uint2, uint64_t{0xCD9E8D57} * c2);
    c0 = product1.y ^ c1 ^ key0;
    c1 = product1.x;
    c2 = product0.y ^ c3 ^ key1;
    c3 = product0.x;
  }
  const int32_t word = static_cast<int32_t>(c0);
  return static_cast<float>(word < 0 ? ~word : word) * 4.6566127342e-10f;
}

/// A vector as registers hold it: in words of 32 bits, where T is shorter two elements each. A
/// Vector that waits in a register, or that is one of two things, is taken apart into its elements
/// by the compiler, and for that it first waits for the load.
template <typename T, int kCount>
struct alignas(Vector<T, kCount>) Packed {
  using Word = std::conditional_t<sizeof(T) * kCount % 4 == 0, std::uint32_t, std::uint16_t>;
  Word at[sizeof(T) * kCount / sizeof(Word)];
};

template <typename T, int kCount>
__device__ inline void to_floats(const Packed<T, kCount>& packed, float (&values)[kCount]) {
  if constexpr (sizeof(T) == 2 && kCount % 2 == 0) {
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      const std::uint32_t word = packed.at[i / 2];
      if constexpr (std::is_same_v<T, __half>) {
        const float2 pair = __half22float2(__half2(__builtin_bit_cast(__half2_raw, word)));
        values[i] = pair.x;
        values[i + 1] = pair.y;
      } else {  // a bfloat16 is the upper half of a float
        values[i] = __builtin_bit_cast(float, word << 16);
        values[i + 1] = __builtin_bit_cast(float, word & 0xffff0000u);
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = to_float(__builtin_bit_cast(T, packed.at[i]));
  }
}

/// Called once in each turn of a loop, keeps the compiler from converting a vector before the loop
/// and holding floats all the while: twice the registers, where T is shorter.
template <typename T, int kCount>
__device__ inline void stay_packed([[maybe_unused]] Packed<T, kCount>& packed) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) < sizeof(float) && sizeof(packed.at[0]) == 4)
    for (auto& word : packed.at) asm volatile("" : "+r"(word));  // perhaps it changes here
#endif
}

/// Floats as elements, rounded to nearest even, and packed already: what is stored from registers
/// of single elements is stored four bytes at a time.
template <typename T, int kCount>
__device__ inline Packed<T, kCount> from_floats(const float (&values)[kCount]) {
  Packed<T, kCount> packed;
  if constexpr (sizeof(T) == 2 && kCount % 2 == 0) {
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      if constexpr (std::is_same_v<T, __half>) {
        const __half2 pair = __floats2half2_rn(values[i], values[i + 1]);
        memcpy(&packed.at[i / 2], &pair, sizeof pair);
      } else {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(values[i], values[i + 1]);
        memcpy(&packed.at[i / 2], &pair, sizeof pair);
      }
    }
  } else {
    using Word = typename Packed<T, kCount>::Word;
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      packed.at[i] = __builtin_bit_cast(Word, from_float<T>(values[i]));
  }
  return packed;
}

/// Rounds the floats and stores them from element `index` on, a multiple of kCount: at once, up to
/// 16 bytes. The address is made of a number of whole vectors: of `tensor + index` nvcc 13 does not
/// see that it is aligned, and stores 4 bytes at a time.
template <typename T, int kCount>
__device__ inline void store(T* tensor, std::int64_t index, const float (&values)[kCount]) {
  const auto vector = static_cast<std::uint64_t>(index) / kCount;
  reinterpret_cast<Packed<T, kCount>*>(tensor)[vector] = from_floats<T>(values);
}

/// The vector at element `at` of a tensor where it is there, and `otherwise` in each lane where
/// not. Its address must be a multiple of the vector's alignment.
template <int kLanes, typename T>
__device__ inline Packed<T, kLanes> load_if(bool there, const T* tensor, std::int64_t at,
                                            float otherwise = 0.0f) {
  Vector<T, kLanes> vector;
  for (T& value : vector.at) value = from_float<T>(otherwise);
  auto packed = __builtin_bit_cast(Packed<T, kLanes>, vector);
  if (there) packed = *reinterpret_cast<const Packed<T, kLanes>*>(tensor + at);
  return packed;
}

/// What dx, dweight and dbias are made of, for the columns of one vector.
template <int kLanes>
struct GradientTerms {
  float xhat[kLanes], dy[kLanes], wdy[kLanes];

  GradientTerms() = default;
  template <typename X, typename T, typename W>
  __device__ GradientTerms(const Packed<X, kLanes>& packed_x, const Packed<T, kLanes>& packed_dy,
                           const Packed<W, kLanes>& weight, float mean, float rstd) {
    to_floats(packed_x, xhat);
    to_floats(packed_dy, dy);
    to_floats(weight, wdy);
    for (float& value : xhat) value = (value - mean) * rstd;
    for (int lane = 0; lane < kLanes; ++lane) wdy[lane] *= dy[lane];
  }
  /// Adds to the sums that c1 (x) and c2 (y) are means of. Where dy is 0 there is nothing to add.
  __device__ void add_to(float2& sums) const {
    for (int lane = 0; lane < kLanes; ++lane) {
      sums.x += wdy[lane] * xhat[lane];
      sums.y += wdy[lane];
    }
  }
};

inline constexpr int kMeansThreads = 512;

/// c1 and c2 of a row, a block each, for kernels in which no block sees the whole of it.
template <typename T, typename W, int kLanes>
__global__ void __launch_bounds__(kMeansThreads) row_means(BackwardArgs<T, W> a, float2* means) {
  const std::int64_t row = blockIdx.x, start = row * a.cols;
  const bool layer = a.kind == Kind::Layer;
  const float mean = layer ? a.mean[row] : 0.0f, rstd = a.rstd[row];
  float2 c = make_float2(0.0f, 0.0f);
#pragma unroll 4
  for (std::int64_t col = threadIdx.x * kLanes; col < a.cols; col += kMeansThreads * kLanes) {
    const GradientTerms<kLanes> t(
        load_if<kLanes>(true, a.x, start + col), load_if<kLanes>(true, a.dy, start + col),
        load_if<kLanes>(a.weight != nullptr, a.weight, col, 1.0f), mean, rstd);
    t.add_to(c);
  }
  c = row_sums<kMeansThreads, kMeansThreads>(c, 0);
  if (threadIdx.x == 0) means[row] = make_float2(c.x / a.cols, layer ? c.y / a.cols : 0.0f);
}

/// Whether each pointer is to a 16-byte boundary; null is.
template <typename... Ts>
bool at_16_bytes(const Ts*... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

/// How many elements fit in 16 bytes, the widest access.
template <typename T>
inline constexpr int kVectorElements = 16 / static_cast<int>(sizeof(T));

/// The columns of a row that one vector covers, for access in 16 bytes where that is possible and
/// element by element at a row's ends. kAligned: every tensor's rows start and end at 16-byte
/// boundaries, so that it always is.
template <typename T, bool kAligned>
struct Columns {
  static constexpr int kLanes = kVectorElements<T>;
  std::int64_t first;  // before the row's start, or past its end, for a vector that straddles
  std::int64_t cols;

  __device__ Columns(const T* row, std::int64_t vector, std::int64_t cols) : cols(cols) {
    // Vectors start at 16-byte boundaries of memory, wherever the row starts.
    const std::int64_t shift =
        kAligned ? 0 : reinterpret_cast<std::uintptr_t>(row) % 16 / sizeof(T);
    first = vector * kLanes - shift;
  }
  __device__ bool any() const { return first < cols; }
  __device__ bool has(int lane) const {  // no test at all where rows are aligned
    return kAligned || (first + lane >= 0 && first + lane < cols);
  }
  template <typename U>
  __device__ bool in_one_access(const U* row) const {
    return kAligned || (first >= 0 && first + kLanes <= cols &&
                        reinterpret_cast<std::uintptr_t>(row + first) % 16 == 0);
  }

  template <typename U>
  __device__ Packed<U, kLanes> load(const U* row) const {
    Packed<U, kLanes> packed{};  // 0 outside of the row
    if (!any()) return packed;
    if (in_one_access(row)) return *reinterpret_cast<const Packed<U, kLanes>*>(row + first);
    Vector<U, kLanes> vector{};
    for (int lane = 0; lane < kLanes; ++lane)
      if (has(lane)) vector.at[lane] = row[first + lane];
    return __builtin_bit_cast(Packed<U, kLanes>, vector);
  }
  /// Of a tensor that may be null: then each lane is `otherwise`.
  template <typename U>
  __device__ Packed<U, kLanes> load_or(float otherwise, const U* row) const {
    return row == nullptr ? load_if<kLanes>(false, row, 0, otherwise) : load(row);
  }
  __device__ void store(T* row, const float (&values)[kLanes]) const {
    if (!any()) return;
    if (in_one_access(row)) {
      *reinterpret_cast<Packed<T, kLanes>*>(row + first) = from_floats<T>(values);
      return;
    }
    for (int lane = 0; lane < kLanes; ++lane)
      if (has(lane)) row[first + lane] = from_float<T>(values[lane]);
  }
};

/// Where dweight and dbias are added up in float by atomics. For float these are the outputs
/// themselves; for half and bfloat16 a workspace of [2, cols], rounded once at the end.
struct GradientSums {
  float* dweight;
  float* dbias;  ///< null for Kind::Rms
};

inline std::int64_t gradient_sums_bytes(const Problem& problem) {
  return problem.parameter_element_bytes() == 4 ? 0
                                                : 2 * problem.cols * std::int64_t{sizeof(float)};
}

inline constexpr int kColumnThreads = 256;  ///< a block, where a thread takes one column

template <int kThreads>
__global__ void zero_gradients_kernel(GradientSums sums, std::int64_t cols) {
  const std::int64_t col = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (col >= cols) return;
  sums.dweight[col] = 0.0f;
  if (sums.dbias != nullptr) sums.dbias[col] = 0.0f;
}

/// Sums set to 0, for atomics to add to.
template <typename T, typename W>
GradientSums zero_gradient_sums(const BackwardArgs<T, W>& a) {
  GradientSums sums;
  if constexpr (sizeof(W) == sizeof(float)) {
    sums = {a.dweight, a.dbias};
  } else {
    auto* workspace = static_cast<float*>(a.workspace);
    sums = {workspace, a.dbias == nullptr ? nullptr : workspace + a.cols};
  }
  launch(zero_gradients_kernel<kColumnThreads>,
         {blocks_for(a.cols, kColumnThreads), kColumnThreads, 0, a.stream}, sums, a.cols);
  return sums;
}

template <typename W>
__global__ void round_gradients_kernel(GradientSums sums, W* dweight, W* dbias, std::int64_t cols) {
  const std::int64_t col = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (col >= cols) return;
  dweight[col] = from_float<W>(sums.dweight[col]);
  if (dbias != nullptr) dbias[col] = from_float<W>(sums.dbias[col]);
}

/// The sums rounded to W, into dweight and dbias; nothing to do for float.
template <typename T, typename W>
void round_gradients(const BackwardArgs<T, W>& a, const GradientSums& sums) {
  if constexpr (sizeof(W) != sizeof(float)) {
    launch(round_gradients_kernel<W>,
           {blocks_for(a.cols, kColumnThreads), kColumnThreads, 0, a.stream}, sums, a.dweight,
           a.dbias, a.cols);
  }
}

/// dweight and dbias in parts: float sums over some of the rows each, [parts, cols]. dbias is null
/// for Kind::Rms.
struct PartialSums {
  float* dweight;
  float* dbias;
};

inline std::int64_t partial_sums_bytes(const Problem& problem, std::int64_t parts) {
  return 2 * parts * problem.cols * std::int64_t{sizeof(float)};
}

/// The partial sums in a workspace of partial_sums_bytes.
template <typename T, typename W>
PartialSums partial_sums(const BackwardArgs<T, W>& a, std::int64_t parts) {
  auto* workspace = static_cast<float*>(a.workspace);
  return {workspace, a.kind == Kind::Layer ? workspace + parts * a.cols : nullptr};
}

/// A kernel that is launched when the one before it in the stream has ended.
struct OrdinaryStart {
  static constexpr bool kEarly = false;
  static __device__ void wait() {}
};

/// A block adds up 32 vectors of dweight's columns (blockIdx.y = 0) or of dbias's (1): a lane has a
/// vector, the warps share the parts. Always in the same order, so the bits are always the same.
template <typename Start, int kLanes, typename W>
__global__ void __launch_bounds__(kWarpSize* kWarpSize)
    add_partial_sums_kernel(PartialSums sums, std::int64_t parts, W* dweight, W* dbias,
                            std::int64_t cols) {
  __shared__ Vector<float, kLanes> of_warp[kWarpSize][kWarpSize];
  const float* partial = blockIdx.y == 0 ? sums.dweight : sums.dbias;
  const int warps = blockDim.x / kWarpSize, warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  const std::int64_t col = (std::int64_t{blockIdx.x} * kWarpSize + lane) * kLanes;

  Vector<float, kLanes> sum = {};
  const auto add = [&sum](const Vector<float, kLanes>& part) {
    for (int i = 0; i < kLanes; ++i) sum.at[i] += part.at[i];
  };
  Start::wait();
  if (col < cols) {
#pragma unroll 8
    for (std::int64_t part = warp; part < parts; part += warps)
      add(*reinterpret_cast<const Vector<float, kLanes>*>(partial + part * cols + col));
  }
  of_warp[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || col >= cols) return;
  for (int other = 1; other < warps; ++other) add(of_warp[other][lane]);
  store(blockIdx.y == 0 ? dweight : dbias, col, sum.at);
}

/// Adds up the parts, and rounds the sums to W, into dweight and dbias. No parts give 0.
/// @tparam Start EarlyStart (common/kernel/hopper.h) where the kernel before calls launch_dependents()
template <typename Start = OrdinaryStart, typename T, typename W>
void add_partial_sums(const BackwardArgs<T, W>& a, const PartialSums& sums, std::int64_t parts) {
  constexpr std::int64_t kPartsPerWarp = 8;  // as many loads are on their way at once
  const auto warps = static_cast<unsigned>(
      std::clamp<std::int64_t>((parts + kPartsPerWarp - 1) / kPartsPerWarp, 1, kWarpSize));
  const auto launch_lanes = [&](auto kernel, int lanes) {
    const dim3 grid(blocks_for(a.cols, kWarpSize * lanes), a.kind == Kind::Layer ? 2 : 1);
    launch(kernel, {grid, warps * kWarpSize, 0, a.stream, 0, Start::kEarly}, sums, parts, a.dweight,
           a.dbias, a.cols);
  };
  constexpr std::int64_t kWide = 16384;  // columns: blocks of vectors for a whole GPU
  if (a.cols >= kWide && a.cols % 4 == 0 && at_16_bytes(a.dweight, a.dbias))
    launch_lanes(add_partial_sums_kernel<Start, 4, W>, 4);
  else
    launch_lanes(add_partial_sums_kernel<Start, 1, W>, 1);
}

}  // namespace lnc
