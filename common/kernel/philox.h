// A random number by Philox: explained by fwd07.
#pragma once

#include <cstdint>

#include "common/kernel/launch.h"

namespace lnc {

/// tl.rand(seed, column, n_rounds=7) of Triton, bit for bit: reference_cpu/philox.h explains it.
__device__ inline float triton_uniform(uint32_t seed, uint32_t column) {
  uint32_t c0 = column;
  uint32_t c1 = 0;
  uint32_t c2 = 0;
  uint32_t c3 = 0;
  uint32_t key0 = seed;
  uint32_t key1 = 0;
#pragma unroll
  for (int round = 0; round < 7; ++round) {
    const auto product0 = __builtin_bit_cast(uint2, uint64_t{0xD2511F53} * c0);  // x: low word
    const auto product1 = __builtin_bit_cast(uint2, uint64_t{0xCD9E8D57} * c2);
    c0 = product1.y ^ c1 ^ key0;
    c1 = product1.x;
    c2 = product0.y ^ c3 ^ key1;
    c3 = product0.x;
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  const int32_t word = static_cast<int32_t>(c0);
  const int32_t folded = word < 0 ? ~word : word;
  return static_cast<float>(folded) * 4.6566127342e-10f;
}

}  // namespace lnc
