// The CUDA backend's side of common/kernel/peers.h: NCCL's windows, and loads and stores of words.
#pragma once

#include <nccl.h>
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <nccl_device.h>
#pragma GCC diagnostic pop

#include <cstdint>
#include <cstring>

namespace lnc {

/// Stores all 16 bytes in one access, at system scope; a vector of four floats would count as four.
/// The text of PTX's memory model speaks of scalars up to 64 bits. That no reader sees half of a
/// `.b128` we take from the hardware, as NCCL's LL128 protocol does.
__device__ inline void store_word(Word* to, const Word& word) {
  std::uint64_t half[2];
  memcpy(half, &word, sizeof word);
  asm volatile(
      "{\n"
      ".reg .b128 word;\n"
      "mov.b128 word, {%1, %2};\n"
      "st.relaxed.sys.global.b128 [%0], word;\n"
      "}" ::"l"(__cvta_generic_to_global(to)),
      "l"(half[0]), "l"(half[1])
      : "memory");
}

__device__ inline Word load_word(const Word* from) {
  std::uint64_t half[2];
  asm volatile(
      "{\n"
      ".reg .b128 word;\n"
      "ld.relaxed.sys.global.b128 word, [%2];\n"
      "mov.b128 {%0, %1}, word;\n"
      "}"
      : "=l"(half[0]), "=l"(half[1])
      : "l"(__cvta_generic_to_global(from))
      : "memory");
  Word word;
  memcpy(&word, half, sizeof word);
  return word;
}

}  // namespace lnc
