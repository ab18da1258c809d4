// Messages between GPUs on the SIMT machine: the CPU backend's side of common/kernel/peers.h.
#pragma once

#include <type_traits>

#include "common/simt/gpus.h"
#include "common/simt/include/nccl_device.h"
#include "common/simt/launch.h"

namespace lnc {

template <typename T>
concept WordOf16Bytes = std::is_trivially_copyable_v<T> && sizeof(T) == 16 && alignof(T) == 16;

/// st.relaxed.sys.b128: all 16 bytes at once.
template <WordOf16Bytes Word>
void store_word(Word* to, const std::type_identity_t<Word>& word,
                std::source_location where = std::source_location::current()) {
  simt::store_word(to, &word, where);
}

/// ld.relaxed.sys.b128. Lets other threads run, so a loop that polls a word is quick.
template <WordOf16Bytes Word>
Word load_word(const Word* from, std::source_location where = std::source_location::current()) {
  std::remove_const_t<Word> word;
  simt::load_word(&word, from, where);
  return word;
}

}  // namespace lnc
