// The norm's kind as a constant, for kernels that are compiled once for each.
#pragma once

#include <type_traits>

#include "common/kernel/contract.h"

namespace lnc {

/// Calls `run` with the kind as a constant: run(std::integral_constant<Kind, …>{}).
template <typename Run>
void with_kind(Kind kind, const Run& run) {
  if (kind == Kind::Layer) {
    run(std::integral_constant<Kind, Kind::Layer>{});
  } else {
    run(std::integral_constant<Kind, Kind::Rms>{});
  }
}

}  // namespace lnc
