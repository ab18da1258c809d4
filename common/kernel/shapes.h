// The shapes in which a kernel is compiled, and the choice among them by a row's width.
#pragma once

#include <cstdint>
#include <stdexcept>

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

/// Calls `run` with the first shape that holds the row. `row` is what Shape::holds takes: vectors,
/// columns or a share. Returns whether any shape did.
template <typename... Shapes, typename Row, typename Run>
[[nodiscard]] bool try_shapes(const Row& row, const Run& run) {
  return ((Shapes::holds(row) && (run(Shapes{}), true)) || ...);
}

/// The same for a kernel whose shapes hold every row that it does not refuse.
/// @throws std::logic_error if none holds this one
template <typename... Shapes, typename Row, typename Run>
void run_shapes(const Row& row, const Run& run) {
  if (!try_shapes<Shapes...>(row, run))
    throw std::logic_error("no shape of this kernel holds a row that it did not refuse");
}

}  // namespace lnc
