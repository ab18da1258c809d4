// Philox-4x32: stateless random numbers, and Triton's uniform numbers computed from them.
//
// An ordinary generator walks from state to state, so number n waits for the n - 1 before it.
// Philox is a function: it scrambles a counter under a key, and every (key, counter) has its own
// four words. A dropout mask is then recomputed wherever it is needed, in any order, on any
// machine, and never has to be stored.
//
// Sources:
//   Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3", SC '11
//   Triton, python/triton/language/random.py: philox_impl, rand, uint_to_uniform_float
#pragma once

#include <array>
#include <cstdint>

namespace reference {

// Four random words for a counter and a key. With 7 rounds or more the words pass all of TestU01's
// BigCrush (the paper's table 2); 10 is the paper's choice, with a margin. 0 rounds return the
// counter as it is.
constexpr std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                                  std::array<std::uint32_t, 2> key, int rounds) {
  // The multipliers were found by search: each spreads one word well over the 64 bits of a product.
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53;
  constexpr std::uint64_t kMultiplier1 = 0xCD9E8D57;
  // The key moves on by a Weyl sequence, so that no two rounds are the same.
  constexpr std::uint32_t kKeyStep0 = 0x9E3779B9;  // golden ratio - 1, times 2³²
  constexpr std::uint32_t kKeyStep1 = 0xBB67AE85;  // sqrt(3) - 1, times 2³²

  auto [c0, c1, c2, c3] = counter;
  auto [k0, k1] = key;
  for (int round = 0; round < rounds; ++round) {
    const std::uint64_t product0 = kMultiplier0 * c0;
    const std::uint64_t product1 = kMultiplier1 * c2;
    c0 = static_cast<std::uint32_t>(product1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<std::uint32_t>(product1);
    c2 = static_cast<std::uint32_t>(product0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<std::uint32_t>(product0);
    k0 += kKeyStep0;
    k1 += kKeyStep1;
  }
  return {c0, c1, c2, c3};
}

// A word as a float in [0, 1), by Triton's uint_to_uniform_float. The word is read as a signed
// number and a negative one is folded up, x -> -x - 1, so 31 bits remain. The largest of them,
// 2³¹ - 1, becomes 2³¹ as a float: the scale is one float below 2⁻³¹, so that even this product
// stays below 1.
constexpr float triton_uniform_of_word(std::uint32_t word) {
  constexpr float kScale = 4.6566127342e-10f;
  const auto x = static_cast<std::int32_t>(word);
  const std::int32_t folded = x < 0 ? -(x + 1) : x;  // -x - 1; -x alone overflows for -2³¹
  return static_cast<float>(folded) * kScale;
}

// tl.rand(seed, offset, n_rounds=rounds), bit for bit, for a 32-bit seed and offset: the key is the
// seed (its high word is 0), the counter the offset, and the first word counts.
constexpr float triton_uniform(std::uint32_t seed, std::uint32_t offset, int rounds = 7) {
  return triton_uniform_of_word(philox4x32({offset, 0, 0, 0}, {seed, 0}, rounds)[0]);
}

}  // namespace reference
