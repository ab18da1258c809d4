// cooperative_groups::memcpy_async over the machine's asynchronous copies, which arrive when their
// thread waits for them.
#pragma once

#include <cooperative_groups.h>

namespace cooperative_groups {

/// Starts a copy of `bytes` to shared memory by all threads of the group.
template <typename Group, typename T, typename Bytes>
void memcpy_async(const Group& group, T* to_shared, const T* from, const Bytes& bytes,
                  std::source_location where = std::source_location::current()) {
  simt::copy_together(to_shared, from, bytes, group.thread_rank(), group.size(), where);
  __pipeline_commit();
}
/// The same, of as many elements as both sides have.
template <typename Group, typename T>
void memcpy_async(const Group& group, T* to_shared, std::size_t to_elements, const T* from,
                  std::size_t from_elements,
                  std::source_location where = std::source_location::current()) {
  const std::size_t bytes = std::min(to_elements, from_elements) * sizeof(T);
  memcpy_async(group, to_shared, from, bytes, where);
}

/// Waits for this thread's copies, and then for every thread of the group.
template <typename Group>
void wait(const Group& group, std::source_location where = std::source_location::current()) {
  __pipeline_wait_prior(0, where);
  group.sync(where);
}
/// The same, for all copies but those of the last `kPrior` calls.
template <unsigned kPrior, typename Group>
void wait_prior(const Group& group, std::source_location where = std::source_location::current()) {
  __pipeline_wait_prior(kPrior, where);
  group.sync(where);
}

}  // namespace cooperative_groups
