// Runs code on chunks of rows, on all cores.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>

#include "common/harness/values.h"

namespace lnc {

inline constexpr std::int64_t kChunkElements = 1 << 16;

/// Calls `body(RowRange)` for every chunk of the rows, on several threads at once. A chunk has at
/// most kChunkElements elements, to fit in a core's cache, or one row. Rethrows what `body` throws,
/// after all threads have ended.
template <typename Body>
void for_each_row_chunk(RowRange rows, std::int64_t cols, const Body& body) {
  const std::int64_t per_chunk = std::max<std::int64_t>(1, kChunkElements / cols);
  const std::int64_t chunks = (rows.count + per_chunk - 1) / per_chunk;
  std::exception_ptr failure;
#pragma omp parallel for schedule(dynamic)
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    try {
      const std::int64_t done = chunk * per_chunk;
      body(RowRange{rows.begin + done, std::min(per_chunk, rows.count - done)});
    } catch (...) {
#pragma omp critical(lnc_row_chunk)
      failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace lnc
