// Elements that move together: 128-bit access, explained by fwd06, which has a vector type of its
// own.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "common/kernel/types.h"

namespace lnc {

/// kCount neighbouring elements, moved together: up to 16 bytes in one instruction, more in
/// several. Their address must be a multiple of the alignment.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount < 16 ? sizeof(T) * kCount : 16) Vector {
  T at[kCount];
};

/// The elements as floats. Halves and bfloat16s are converted in pairs: one instruction an element,
/// against two if they are first unpacked.
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

/// A vector as registers hold it: in words of 32 bits, each with two elements if T is shorter. The
/// compiler splits a Vector that stays in registers, or is selected from two, into its elements,
/// and therefore waits for the load first.
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

/// Called in each iteration of a loop, keeps the compiler from converting a vector before the loop
/// and holding floats throughout: twice the registers if T is shorter.
template <typename T, int kCount>
__device__ inline void stay_packed([[maybe_unused]] Packed<T, kCount>& packed) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) < sizeof(float) && sizeof(packed.at[0]) == 4)
    for (auto& word : packed.at) asm volatile("" : "+r"(word));  // may change here
#endif
}

/// A vector of single elements as Packed. An instruction packs those of 16 bits in pairs: after a
/// mere cast, nvcc keeps one element a register.
template <typename T, int kCount>
__device__ inline Packed<T, kCount> pack(const Vector<T, kCount>& vector) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == 2 && kCount % 2 == 0) {
    Packed<T, kCount> packed;
    for (int i = 0; i < kCount; i += 2) {
      const std::uint32_t low = __builtin_bit_cast(std::uint16_t, vector.at[i]);
      const std::uint32_t high = __builtin_bit_cast(std::uint16_t, vector.at[i + 1]);
      packed.at[i / 2] = __byte_perm(low, high, 0x5410);
    }
    return packed;
  }
#endif
  return __builtin_bit_cast(Packed<T, kCount>, vector);
}

/// Floats as packed elements, rounded to nearest even: nvcc stores registers of single elements
/// four bytes at a time.
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

/// Rounds each float to the nearest value of T.
template <typename T, int kCount>
__device__ inline void round_to(float (&values)[kCount]) {
  to_floats(from_floats<T>(values), values);
}

/// Rounds the floats and stores them from element `index` on, a multiple of kCount, up to 16 bytes
/// in one instruction. The address counts whole vectors: nvcc 13 does not see that `tensor + index`
/// is aligned, and stores 4 bytes at a time.
template <typename T, int kCount>
__device__ inline void store(T* tensor, std::int64_t index, const float (&values)[kCount]) {
  const auto vector = static_cast<std::uint64_t>(index) / kCount;
  reinterpret_cast<Packed<T, kCount>*>(tensor)[vector] = from_floats<T>(values);
}

/// The same, to an address that is a multiple of the vector's alignment.
template <typename T, int kCount>
__device__ inline void store_vector(T* to, const float (&values)[kCount]) {
  *reinterpret_cast<Packed<T, kCount>*>(to) = from_floats<T>(values);
}

/// The vector at element `at` of a tensor if it is `there`, else `otherwise` in each element. Its
/// address must be a multiple of the vector's alignment.
template <int kElements, typename T>
__device__ inline Packed<T, kElements> load_if(bool there, const T* tensor, std::int64_t at,
                                               float otherwise = 0.0f) {
  Vector<T, kElements> vector;
  for (T& value : vector.at) value = from_float<T>(otherwise);
  auto packed = __builtin_bit_cast(Packed<T, kElements>, vector);
  if (there) packed = *reinterpret_cast<const Packed<T, kElements>*>(tensor + at);
  return packed;
}

/// The vector at element `at` of a tensor, with the same alignment.
template <int kElements, typename T>
__device__ inline Packed<T, kElements> load_vector(const T* tensor, std::int64_t at) {
  return *reinterpret_cast<const Packed<T, kElements>*>(tensor + at);
}

/// Prefetches the line of element `i` into L2: no thread waits, and no register holds it. Does
/// nothing for a null tensor, or on the SIMT machine, which has no L2.
template <typename T>
__device__ inline void prefetch_to_l2([[maybe_unused]] const T* tensor,
                                      [[maybe_unused]] std::int64_t i) {
#if defined(__CUDA_ARCH__)
  if (tensor == nullptr) return;
  asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(tensor + i)));
#endif
}

/// Whether each pointer is at a 16-byte boundary; null counts as one.
template <typename... Ts>
bool at_16_bytes(const Ts*... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

/// How many elements fit in 16 bytes, the widest access.
template <typename T>
inline constexpr int kVectorElements = 16 / static_cast<int>(sizeof(T));

}  // namespace lnc
