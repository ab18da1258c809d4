// What the system ends a program for: an access to memory that is not there. In a kernel it ends
// with a sentence that names the thread and the line, and with exit status 1.
#pragma once

#include <signal.h>

#include <cstddef>

namespace simt {

/// On the core that makes it, while it exists.
class Crashes {
 public:
  explicit Crashes(int core);
  ~Crashes();
  Crashes(const Crashes&) = delete;
  Crashes& operator=(const Crashes&) = delete;

 private:
  stack_t before_{};  // where handlers ran
};

/// Memory for a buffer of the device, aligned as by cudaMalloc, and registered. After its end
/// (rounded up to the alignment) and before it is memory that is not there; the sanitizers see each
/// access outside.
void* allocate_buffer(std::size_t bytes);
void free_buffer(void* buffer);

}  // namespace simt
