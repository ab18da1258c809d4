// The shapes in which a kernel is compiled, and the choice among them by a row's width.
#pragma once

#include <cstdint>

namespace lnc {

/// A block of kThreads threads has a row, and each thread kVectors vectors of it.
template <int kThreads_, int kVectors_>
struct BlockShape {
  static constexpr int kThreads = kThreads_;
  static constexpr int kVectors = kVectors_;
  static constexpr bool holds(std::int64_t row_vectors) {
    return row_vectors <= kThreads * kVectors;
  }
};

/// Calls `run` with the first of the shapes that holds a row: of so many vectors, or columns, or
/// whatever Shape::holds asks for. Returns whether there is one.
template <typename... Shapes, typename Row, typename Run>
bool run_first_that_holds(const Row& row, const Run& run) {
  return ((Shapes::holds(row) && (run(Shapes{}), true)) || ...);
}

}  // namespace lnc
