// CUDA's intrinsics of one thread: bits, conversions, rounding, fast mathematics, cache hints.
//
// The CUDA Toolkit's headers declare them for nvcc alone. A fast function is computed as exactly as
// the CPU can, so a kernel's rounding differs from a GPU's in its last bits.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <bit>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <type_traits>

// ------------------------------------------------------------------------------------------- bits

inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return std::countl_zero(static_cast<unsigned long long>(x)); }
/// The lowest bit's number, from 1; 0 if there is none.
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }

inline unsigned __brev(unsigned x) {
  x = (x >> 1 & 0x5555'5555u) | (x & 0x5555'5555u) << 1;
  x = (x >> 2 & 0x3333'3333u) | (x & 0x3333'3333u) << 2;
  x = (x >> 4 & 0x0F0F'0F0Fu) | (x & 0x0F0F'0F0Fu) << 4;
  return __builtin_bswap32(x);
}
inline unsigned long long __brevll(unsigned long long x) {
  return static_cast<unsigned long long>(__brev(static_cast<unsigned>(x))) << 32 |
         __brev(static_cast<unsigned>(x >> 32));
}

/// Four bytes of the eight in `x` and `y`, as the lowest three bits of each nibble of `selector`
/// say; the fourth bit fills the byte with its sign.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const std::uint64_t bytes = std::uint64_t{y} << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned nibble = selector >> 4 * i & 0xF;
    auto byte = static_cast<unsigned>(bytes >> 8 * (nibble & 7) & 0xFF);
    if (nibble & 8) byte = byte & 0x80 ? 0xFF : 0;
    result |= byte << 8 * i;
  }
  return result;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((std::uint64_t{high} << 32 | low) << (shift & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((std::uint64_t{high} << 32 | low) >> (shift & 31));
}

inline int __mul24(int x, int y) { return (x << 8 >> 8) * (y << 8 >> 8); }
inline int __mulhi(int x, int y) { return static_cast<int>(std::int64_t{x} * y >> 32); }
inline unsigned __umulhi(unsigned x, unsigned y) {
  return static_cast<unsigned>(std::uint64_t{x} * y >> 32);
}
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(x) * y >> 64);
}
/// c plus the products of the four signed bytes of a and b.
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 32; i += 8)
    c += static_cast<std::int8_t>(a >> i) * static_cast<std::int8_t>(b >> i);
  return c;
}

// ------------------------------------------------------------------------------------ conversions

inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }

// To whole numbers: to the nearest, towards zero, down and up. Past the ends of the type a GPU
// saturates and turns NaN into 0.
namespace simt {
template <typename To, typename From>
To saturated(From x) {
  constexpr From kEnd = 2 * From(std::uint64_t{1} << (8 * sizeof(To) - 1 - std::is_signed_v<To>));
  if (x != x) return 0;
  if (x >= kEnd) return std::numeric_limits<To>::max();
  if (x < From(std::numeric_limits<To>::min())) return std::numeric_limits<To>::min();
  return static_cast<To>(x);
}
}  // namespace simt
#define SIMT_TO_WHOLE(To, name, From)                                                \
  inline To __##name##_rn(From x) { return simt::saturated<To>(std::nearbyint(x)); } \
  inline To __##name##_rz(From x) { return simt::saturated<To>(std::trunc(x)); }     \
  inline To __##name##_rd(From x) { return simt::saturated<To>(std::floor(x)); }     \
  inline To __##name##_ru(From x) { return simt::saturated<To>(std::ceil(x)); }
SIMT_TO_WHOLE(int, float2int, float)
SIMT_TO_WHOLE(unsigned, float2uint, float)
SIMT_TO_WHOLE(long long, float2ll, float)
SIMT_TO_WHOLE(unsigned long long, float2ull, float)
SIMT_TO_WHOLE(int, double2int, double)
SIMT_TO_WHOLE(unsigned, double2uint, double)
SIMT_TO_WHOLE(long long, double2ll, double)
SIMT_TO_WHOLE(unsigned long long, double2ull, double)
#undef SIMT_TO_WHOLE

inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
inline float __ll2float_rn(long long x) { return static_cast<float>(x); }
inline float __ull2float_rn(unsigned long long x) { return static_cast<float>(x); }
inline double __int2double_rn(int x) { return x; }
inline double __uint2double_rn(unsigned x) { return x; }
inline double __ll2double_rn(long long x) { return static_cast<double>(x); }
inline float __double2float_rn(double x) { return static_cast<float>(x); }

// ------------------------------------------------------------------------- arithmetic, as rounded

#define SIMT_ARITHMETIC(prefix, T)                        \
  inline T __##prefix##add_rn(T x, T y) { return x + y; } \
  inline T __##prefix##sub_rn(T x, T y) { return x - y; } \
  inline T __##prefix##mul_rn(T x, T y) { return x * y; } \
  inline T __##prefix##div_rn(T x, T y) { return x / y; }
SIMT_ARITHMETIC(f, float)
SIMT_ARITHMETIC(d, double)
#undef SIMT_ARITHMETIC
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline double __fma_rn(double x, double y, double z) { return std::fma(x, y, z); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline double __dsqrt_rn(double x) { return std::sqrt(x); }
inline float __frsqrt_rn(float x) { return static_cast<float>(1.0 / std::sqrt(double{x})); }

// ------------------------------------------------------------------------------ fast mathematics

inline float __fdividef(float x, float y) { return x / y; }
inline float __saturatef(float x) { return x > 0.0f ? std::fmin(x, 1.0f) : 0.0f; }  // NaN: 0
inline float fdividef(float x, float y) { return x / y; }
inline float __exp10f(float x) { return std::pow(10.0f, x); }
// __expf, __logf, __powf and their like are declared by the C library's <math.h>: fast_math.cpp.

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float rsqrt(float x) { return rsqrtf(x); }
inline float rcbrtf(float x) { return 1.0f / std::cbrt(x); }
inline float normcdff(float x) { return 0.5f * std::erfc(-x * 0.70710678f); }

// The functions of 16-bit types that the CUDA Toolkit's headers keep from other compilers: computed
// in float, and rounded once.
#define SIMT_HALF_FUNCTIONS(T, T2)                                                               \
  inline T __hfma(T a, T b, T c) { return T(std::fma(float(a), float(b), float(c))); }           \
  inline T2 __hfma2(T2 a, T2 b, T2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; } \
  SIMT_HALF_FUNCTION(T, T2, sqrt, std::sqrt(x))                                                  \
  SIMT_HALF_FUNCTION(T, T2, rsqrt, 1.0f / std::sqrt(x))                                          \
  SIMT_HALF_FUNCTION(T, T2, rcp, 1.0f / x)                                                       \
  SIMT_HALF_FUNCTION(T, T2, exp, std::exp(x))                                                    \
  SIMT_HALF_FUNCTION(T, T2, exp2, std::exp2(x))                                                  \
  SIMT_HALF_FUNCTION(T, T2, log, std::log(x))                                                    \
  SIMT_HALF_FUNCTION(T, T2, log2, std::log2(x))                                                  \
  SIMT_HALF_FUNCTION(T, T2, sin, std::sin(x))                                                    \
  SIMT_HALF_FUNCTION(T, T2, cos, std::cos(x))
#define SIMT_HALF_FUNCTION(T, T2, name, value) \
  inline T h##name(T of) {                     \
    const float x = of;                        \
    return T(value);                           \
  }                                            \
  inline T2 h2##name(T2 of) { return {h##name(of.x), h##name(of.y)}; }
SIMT_HALF_FUNCTIONS(__half, __half2)
SIMT_HALF_FUNCTIONS(__nv_bfloat16, __nv_bfloat162)
#undef SIMT_HALF_FUNCTION
#undef SIMT_HALF_FUNCTIONS

/// Ends the program, as a kernel that traps ends with its context.
[[noreturn]] inline void __trap() {
  std::fputs("a kernel called __trap()\n", stderr);
  std::abort();
}
