// The intrinsics of CUDA that kernels from elsewhere use: each against what CUDA's guide says of
// it.
#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "common/simt/launch.h"
#include "common/simt/tests/under.h"

using lnc::launch;
using simt::kSchedules;
using simt::Under;

namespace kernels {

constexpr unsigned kFull = 0xFFFF'FFFF;

__global__ void vote_in_the_block(int* count, int* all, int* any) {
  const auto t = threadIdx.x;
  count[t] = __syncthreads_count(t % 3 == 0);
  all[t] = __syncthreads_and(t < 96) + 2 * __syncthreads_and(1);
  any[t] = __syncthreads_or(t == 95) + 2 * __syncthreads_or(0);
}

__global__ void reduce_in_the_warp(int* sums, int* least, unsigned* most, unsigned* bits) {
  const auto lane = threadIdx.x % 32;
  const unsigned half = lane < 16 ? 0xFFFFu : 0xFFFF'0000u;
  sums[threadIdx.x] = __reduce_add_sync(half, static_cast<int>(lane) - 20);
  least[threadIdx.x] = __reduce_min_sync(kFull, static_cast<int>(lane) - 20);
  most[threadIdx.x] = __reduce_max_sync(kFull, lane == 7 ? 0x8000'0000u : lane);
  bits[threadIdx.x] = __reduce_or_sync(kFull, 1u << lane % 8) ^
                      __reduce_and_sync(kFull, lane | 64) ^ __reduce_xor_sync(kFull, lane);
}

__global__ void match_in_the_warp(unsigned* any, unsigned* all, unsigned* active) {
  const auto lane = threadIdx.x;
  any[lane] = __match_any_sync(kFull, 0.5f * static_cast<float>(lane % 3));
  int same = 0;
  all[lane] = __match_all_sync(kFull, 7, &same) + same;
  all[lane] += __match_all_sync(kFull, lane, &same) + same;
  if (lane == 5) return;
  if (lane % 2 == 0)
    active[lane] = __activemask();
  else
    active[lane] = __reduce_add_sync(__activemask(), 1u);
}

__global__ void add_atomically(__half* h, __half2* h2, __nv_bfloat162* b2, long long* most,
                               unsigned* wrapped, unsigned* bits) {
  atomicAdd(h, __half(0.5f));
  atomicAdd(h2, __floats2half2_rn(1.0f, 2.0f));
  atomicAdd_block(b2, __floats2bfloat162_rn(1.0f, -1.0f));
  atomicMax(most, (1LL << 40) + threadIdx.x);
  atomicInc(wrapped, 6);      // 0, 1, … 6, 0, …
  atomicDec(wrapped + 1, 6);  // 0, 6, 5, … 0, 6, …
  atomicOr(bits, 1u << threadIdx.x % 32);
  atomicXor(bits + 1, threadIdx.x);
  atomicSub(bits + 2, 1);
  atomicAnd_system(bits + 3, ~(1u << threadIdx.x % 32));
}

__global__ void divide_with_hints(const float* x, float* y) {
  const auto t = threadIdx.x;
  __stcs(y + t, __fdividef(__ldcs(x + t), __ldca(x + t) + __ldlu(x + t) + __ldcv(x + t)));
  __threadfence_system();
}

}  // namespace kernels

using namespace kernels;

TEST_CASE("a block's votes are of all its threads, one call at a time") {
  for (const auto& schedule : kSchedules) {
    const Under under(schedule);
    std::vector<int> count(96), all(96), any(96);
    launch(vote_in_the_block, {1, 96}, count.data(), all.data(), any.data());
    CHECK(count == std::vector<int>(96, 32));
    CHECK(all == std::vector<int>(96, 3));
    CHECK(any == std::vector<int>(96, 1));
  }
}

TEST_CASE("a warp reduces over the lanes of the mask; ints are compared with their sign") {
  for (const auto& schedule : kSchedules) {
    const Under under(schedule);
    std::vector<int> sums(64), least(64);
    std::vector<unsigned> most(64), bits(64);
    launch(reduce_in_the_warp, {1, 64}, sums.data(), least.data(), most.data(), bits.data());
    for (int t = 0; t < 64; ++t) CHECK(sums[t] == (t % 32 < 16 ? 120 - 320 : 376 - 320));
    CHECK(least == std::vector<int>(64, -20));
    CHECK(most == std::vector<unsigned>(64, 0x8000'0000u));
    CHECK(bits == std::vector<unsigned>(64, 0xFFu ^ 64u ^ 0u));
  }
}

TEST_CASE("a match finds the lanes with the same value; the active mask has those of one branch") {
  for (const auto& schedule : kSchedules) {
    const Under under(schedule);
    std::vector<unsigned> any(32), all(32), active(32);
    launch(match_in_the_warp, {1, 32}, any.data(), all.data(), active.data());
    std::array<unsigned, 3> of_value{};
    for (int lane = 0; lane < 32; ++lane) of_value[lane % 3] |= 1u << lane;
    for (int lane = 0; lane < 32; ++lane) {
      CHECK(any[lane] == of_value[lane % 3]);
      CHECK(all[lane] == kFull + 1u);  // all lanes and 1; then neither
      if (lane != 5) CHECK(active[lane] == (lane % 2 == 0 ? 0x5555'5555u : 15u));
    }
  }
}

TEST_CASE("atomics of 16-bit types, of 64 bits, and those that wrap") {
  __half h = 0.0f;
  __half2 h2 = {0.0f, 0.0f};
  __nv_bfloat162 b2 = {0.0f, 0.0f};
  long long most = 0;
  unsigned wrapped[2] = {0, 0};
  unsigned bits[4] = {0, 0, 100, kFull};
  launch(add_atomically, {1, 64}, &h, &h2, &b2, &most, wrapped, bits);
  CHECK(float(h) == 32.0f);
  CHECK(float(h2.x) == 64.0f);
  CHECK(float(h2.y) == 128.0f);
  CHECK(float(b2.y) == -64.0f);
  CHECK(most == (1LL << 40) + 63);
  CHECK(wrapped[0] == 64 % 7);
  CHECK(wrapped[1] == 6);  // 64 % 7 = 1 step after 0
  CHECK(bits[0] == kFull);
  CHECK(bits[1] == 0);  // 0 ^ 1 ^ … ^ 63
  CHECK(bits[2] == 36);
  CHECK(bits[3] == 0);
}

TEST_CASE("cache hints change no result") {
  std::vector<float> x(32, 4.0f), y(32);
  launch(divide_with_hints, {1, 32}, x.data(), y.data());
  CHECK(y == std::vector<float>(32, 1.0f / 3.0f));
}

TEST_CASE("bits") {
  CHECK(__popc(0xF0F0u) == 8);
  CHECK(__popcll(~0ull) == 64);
  CHECK(__clz(1) == 31);
  CHECK(__clz(0) == 32);
  CHECK(__clzll(1) == 63);
  CHECK(__ffs(0) == 0);
  CHECK(__ffs(8) == 4);
  CHECK(__ffsll(1ll << 40) == 41);
  CHECK(__brev(1) == 0x8000'0000u);
  CHECK(__brev(0x0000'00F1u) == 0x8F00'0000u);
  CHECK(__brevll(1) == 1ull << 63);
  CHECK(__byte_perm(0x3322'1100u, 0x7766'5544u, 0x7250) == 0x7722'5500u);
  CHECK(__byte_perm(0x80u, 0, 0x0008) == 0x8080'80FFu);
  CHECK(__funnelshift_l(0x8000'0000u, 1, 1) == 3);
  CHECK(__funnelshift_r(0x8000'0000u, 1, 31) == 3);
  CHECK(__mulhi(-1, 1) == -1);
  CHECK(__umulhi(~0u, 2) == 1);
  CHECK(__umul64hi(~0ull, 2) == 1);
  CHECK(__mul24(0x0100'0002, 3) == 6);
  CHECK(__dp4a(0x01FF'0203, 0x0101'0101, 10) == 10 + 1 - 1 + 2 + 3);
}

TEST_CASE("conversions round as their names say, saturate, and make NaN 0") {
  CHECK(__float2int_rn(2.5f) == 2);
  CHECK(__float2int_rz(-2.7f) == -2);
  CHECK(__float2int_rd(-2.2f) == -3);
  CHECK(__float2int_ru(2.2f) == 3);
  CHECK(__float2int_rn(1e20f) == std::numeric_limits<int>::max());
  CHECK(__float2int_rn(-1e20f) == std::numeric_limits<int>::min());
  CHECK(__float2int_rn(std::nanf("")) == 0);
  CHECK(__float2uint_rn(-1.0f) == 0);
  CHECK(__float2ull_rz(1.8446744e19f) == std::numeric_limits<unsigned long long>::max());
  CHECK(__double2ll_rn(9.3e18) == std::numeric_limits<long long>::max());
  CHECK(__int2float_rn(16777217) == 16777216.0f);
  CHECK(__float_as_uint(1.0f) == 0x3F80'0000u);
  CHECK(__int_as_float(0x4000'0000) == 2.0f);
  CHECK(__longlong_as_double(__double_as_longlong(3.5)) == 3.5);
}

TEST_CASE("fast and rounded arithmetic, and that of 16-bit types") {
  CHECK(__fmaf_rn(1.0f + 0x1p-23f, 1.0f - 0x1p-23f, -1.0f) == -0x1p-46f);  // rounded once
  CHECK(__frsqrt_rn(4.0f) == 0.5f);
  CHECK(rsqrt(4.0) == 0.5);
  CHECK(__saturatef(-1.0f) == 0.0f);
  CHECK(__saturatef(std::nanf("")) == 0.0f);
  CHECK(__expf(1.0f) == doctest::Approx(std::exp(1.0f)));
  CHECK(__powf(2.0f, 3.0f) == doctest::Approx(8.0f));
  float sine = 0.0f, cosine = 0.0f;
  __sincosf(1.0f, &sine, &cosine);
  CHECK(sine * sine + cosine * cosine == doctest::Approx(1.0f));
  const __half2 two = __floats2half2_rn(2.0f, 4.0f);
  CHECK(float(__hfma2(two, two, two).y) == 20.0f);
  CHECK(float(h2rsqrt(two).y) == 0.5f);
  CHECK(float(hexp(__nv_bfloat16(0.0f))) == 1.0f);
}
