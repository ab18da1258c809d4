// What cuda/atomic and cuda/barrier share: the scopes of threads.
#pragma once

#include <cuda/std/standard.h>

#include "common/simt/facades.h"

namespace cuda {

/// Which threads see an operation.
enum thread_scope {
  thread_scope_system,
  thread_scope_device,
  thread_scope_block,
  thread_scope_thread
};

namespace simt_details {

// An atomic of one thread is one of its block.
constexpr simt::Scope scope_of(thread_scope scope) {
  if (scope == thread_scope_system) return simt::Scope::System;
  return scope == thread_scope_device ? simt::Scope::Device : simt::Scope::Block;
}

}  // namespace simt_details
}  // namespace cuda
