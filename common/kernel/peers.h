// Messages between GPUs while their kernels run: explained by fwd17, used by bwd20 and bwd21.
//
// Each GPU has a window: memory that all of them reach, registered with NCCL. A message is a Word
// in another GPU's window, and each pair of GPUs has slots of its own there, so that a slot has one
// writer and one reader. A Word carries the epoch, which counts launches: the reader waits until
// the epoch is its own, and nothing needs to be cleared between launches.
//
//   epoch_of_launch(peers)                      of the launch that the kernel belongs to
//   advance_epoch(peers, epoch)                 once a block, by a thread that has read the epoch
//   send(peers, epoch, slot, to, word)          does not wait
//   receive(peers, epoch, slot, from)           waits for that GPU's word
//
// Rules. All GPUs launch the same kernels in the same order, each in one stream, and send the same
// slots to one another. A block may wait only for words that blocks which are resident, or have
// been, will send: so a grid has no more blocks than the GPU holds at once. A word is visible as a
// whole, but says nothing of other memory: for that, a fence of the whole system would come first.
#pragma once

#include <cstdint>

#include "common/kernel/launch.h"

namespace lnc {

/// 16 bytes that one store writes and one load reads as a whole.
struct alignas(16) Word {
  float first = 0.0f, second = 0.0f, third = 0.0f;
  unsigned epoch = 0;  ///< set by send()
};

}  // namespace lnc

#if defined(__CUDACC__)
#include "common/cuda/peers.h"
#else
#include "common/simt/peers.h"
#endif

namespace lnc {

/// The most GPUs that share a problem: a lane of a warp for each.
inline constexpr int kMaxGpus = kWarpSize;

/// What a kernel needs to know of the other GPUs. In C++ it is passed by value.
struct Peers {
  ncclWindow_t window;  ///< [2][slots][ranks] Words in each GPU
  Word* alone;          ///< the words of a single GPU, to which NCCL gives no window; else null
  int rank;             ///< this GPU, from 0
  int ranks;            ///< all GPUs; 1 sends to itself
  std::int64_t slots;   ///< that a launch may use
  unsigned* epoch;      ///< in this GPU's memory: of its last launch
  unsigned* readers;    ///< in this GPU's memory: blocks of this launch that have read `epoch`
  unsigned* silent;     ///< in host memory: 0, or 1 + the GPU whose word has not come
};

/// How often a thread looks for a word before it gives up: a few seconds on a GPU.
inline constexpr unsigned kMostPolls = 1u << 22;

__device__ inline unsigned epoch_of_launch(const Peers& peers) { return *peers.epoch + 1; }

/// The last block to come here sets the epoch for the next launch; by then all have read it.
__device__ inline void advance_epoch(const Peers& peers, unsigned epoch) {
  __threadfence();
  if (atomicInc(peers.readers, gridDim.x - 1) < gridDim.x - 1) return;
  __threadfence();
  *peers.epoch = epoch;
}

/// The word from one GPU in the window of another. Odd and even epochs have slots of their own,
/// since a GPU may be one launch ahead of another.
__device__ inline Word* word_of(const Peers& peers, unsigned epoch, std::int64_t slot, int from,
                                int in) {
  const std::int64_t number = (epoch % 2 * peers.slots + slot) * peers.ranks + from;
  if (peers.alone != nullptr) return peers.alone + number;
  return static_cast<Word*>(ncclGetLsaPointer(peers.window, number * sizeof(Word), in));
}

__device__ inline void send(const Peers& peers, unsigned epoch, std::int64_t slot, int to,
                            Word word) {
  word.epoch = epoch;
  store_word(word_of(peers, epoch, slot, peers.rank, to), word);
}

/// Gives up after kMostPolls, or once another thread has: `silent` then names the GPU, and the word
/// has no numbers.
__device__ inline Word receive(const Peers& peers, unsigned epoch, std::int64_t slot, int from) {
  const Word* const word = word_of(peers, epoch, slot, from, peers.rank);
  for (unsigned polls = 1;; ++polls) {
    const Word arrived = load_word(word);
    if (arrived.epoch == epoch) return arrived;
    if (polls % 1024 != 0) continue;
    auto* const silent = static_cast<volatile unsigned*>(peers.silent);
    if (polls >= kMostPolls) *silent = 1 + from;
    if (*silent != 0) return {__int_as_float(-1), __int_as_float(-1), __int_as_float(-1), epoch};
  }
}

}  // namespace lnc
