// The text of a Fault: the kernel, the block, what is wrong, and where each thread is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/simt/copies.h"
#include "common/simt/machine.h"
#include "common/simt/thread.h"

namespace simt {

class Faults {
 public:
  /// @param block its number in the grid
  Faults(const Launch& launch, std::uint64_t block, const std::vector<Thread>& threads,
         const CopyEngine& copies)
      : launch_(launch), block_(block), threads_(threads), copies_(copies) {}

  Fault of_block(const std::string& what) const;
  /// @param does what the thread does wrong, as a verb phrase
  Fault of(const Thread& thread, const std::string& does) const;

  /// What the block waits for when none of its threads can continue.
  std::string what_is_missing() const;

 private:
  std::string place_of(const Thread& thread) const;

  const Launch& launch_;
  const std::uint64_t block_;
  const std::vector<Thread>& threads_;
  const CopyEngine& copies_;
};

}  // namespace simt
