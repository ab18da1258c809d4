// What CUDA needs that common/tools/rewrite_cuda.py has made C++.
#pragma once

#include "common/simt/launch.h"
#include "common/simt/ptx.h"

namespace simt {

/// kernel<<<grid, block, shared_bytes, stream>>>(arguments…), of which the rewritten line passes
/// the kernel as a call. Each thread gets its own copy of the arguments.
template <typename Kernel>
class RewrittenLaunch {
 public:
  RewrittenLaunch(const char* name, Kernel kernel, dim3 grid, dim3 block,
                  std::size_t shared_bytes = 0, cudaStream_t = nullptr)
      : kernel_(kernel), launch_{grid, block, shared_bytes, nullptr, 0, false, name} {}

  template <typename... Args>
  void operator()(Args... args) const {
    run(launch_, [&] { kernel_(args...); });
  }

 protected:
  Kernel kernel_;
  Launch launch_;
};

}  // namespace simt
