// The shapes in which a kernel is compiled, and the choice among them by a row's width.
#pragma once

#include <cstdint>

namespace lnc {

/// A block of kThreads threads has a row, and each thread kVectors vectors of it.
template <int kThreads_, int kVectors_>
struct BlockShape {
  static constexpr int kThreads = kThreads_;
  static constexpr int kVectors = kVectors_;
  static constexpr int kHolds = kThreads * kVectors;  ///< vectors of a row, at most
};

/// Calls `run` with the first of the shapes that holds a row of so many vectors (or columns,
/// whichever Shape::kHolds counts). Returns whether there is one.
template <typename... Shapes, typename Run>
bool run_first_that_holds(std::int64_t count, const Run& run) {
  return ((count <= Shapes::kHolds && (run(Shapes{}), true)) || ...);
}

}  // namespace lnc
