// Writes the reference's Philox words of (seed, offset), seed = 0 … N-1 times a stride and offset =
// 0 … N-1, to standard output as 32-bit integers. pytorch_test.py compares them with Triton's.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "reference_cpu/philox.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: philox_words N STRIDE\n");
    return 2;
  }
  const auto count = static_cast<std::uint32_t>(std::strtoul(argv[1], nullptr, 10));
  const auto stride = static_cast<std::uint32_t>(std::strtoul(argv[2], nullptr, 10));
  std::vector<std::uint32_t> words;
  for (std::uint32_t seed = 0; seed < count; ++seed)
    for (std::uint32_t offset = 0; offset < count; ++offset)
      words.push_back(reference::philox4x32({offset, 0, 0, 0}, {seed * stride, 0}, 7)[0]);
  return std::fwrite(words.data(), 4, words.size(), stdout) == words.size() ? 0 : 1;
}
